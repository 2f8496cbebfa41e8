"""Predicates that a row's position already decides, so that candidates skip them.

A context enters a cluster only with its token, so the rows' equality with that value holds. And a
predicate whose ends are bounds of its page's grid is decided by the page's bits. The remaining
predicates are moved to the front of the record: a large set spends most of its time waiting for
records (decision 0005).
"""

from roamcast.matching.grids import is_exact
from roamcast.matching.layout import (
    CELL_TOKEN,
    CLUSTER_PARENT,
    CLUSTER_TOKEN,
    COLUMN_BITS,
    GRID_COLUMN,
    HEADER_COUNT,
    PAGE_SLOTS,
    PLAIN,
    PREDICATE_WORDS,
    ROW_PREDICATES,
    ROW_RECORD,
    SLOTS_MAX,
    TOKEN_COLUMN,
    Arrays,
    Int,
)
from roamcast.model.kernels import kernel


@kernel
def find_slot(s: Arrays, page: Int, column: Int) -> Int:
    """Return the index in `page_slots` of the column's slot on this page, or -1."""
    for slot in range(s.pages[page, PAGE_SLOTS]):
        at = (page * SLOTS_MAX + slot) * 2
        if s.grids[s.page_slots[at], GRID_COLUMN] == column:
            return at
    return -1


@kernel
def implied(s: Arrays, cluster: Int, at: Int) -> Int:
    """Return whether every context in the cluster satisfies the predicate at this word.

    A row is in the cluster because it has its token, and a token comes from the row's only
    predicate on that column, an equality (a merged conjunction has one atom per property and kind).
    """
    if s.records[at + 1] != s.records[at + 2]:
        return False
    column = s.records[at]  # with its flags, so sets and ordered texts equal no column
    while cluster > 0:
        token = s.clusters[cluster, CLUSTER_TOKEN]
        if token < CELL_TOKEN and s.tokens[token, TOKEN_COLUMN] == column:
            return True
        cluster = s.clusters[cluster, CLUSTER_PARENT]
    return False


@kernel
def _settled(s: Arrays, cluster: Int, page: Int, at: Int) -> Int:
    if implied(s, cluster, at):
        return True
    if page < 0:
        return False
    slot = find_slot(s, page, s.records[at] & COLUMN_BITS)
    return slot >= 0 and is_exact(s, s.page_slots[slot], s.records[at + 1], s.records[at + 2])


@kernel
def settle(s: Arrays, row: Int, cluster: Int, page: Int) -> None:
    """Move the predicates that candidates must still check to the front, and count them.

    `page` is -1 for a row in a chain; otherwise the row's bits must already be set.
    """
    start = s.rows[row, ROW_RECORD]
    header = s.records[start]
    if not header & PLAIN:
        return
    at = start + 1
    end = at + PREDICATE_WORDS * s.rows[row, ROW_PREDICATES]
    while at < end:
        if _settled(s, cluster, page, at):
            end -= PREDICATE_WORDS
            for word in range(PREDICATE_WORDS):
                here, there = s.records[at + word], s.records[end + word]
                s.records[at + word], s.records[end + word] = there, here
        else:
            at += PREDICATE_WORDS
    s.records[start] = (header & ~HEADER_COUNT) | ((end - start - 1) // PREDICATE_WORDS)
