"""Which predicates of a row need no check once it is a candidate? Those its place settles.

A cluster is entered only with its token, so its rows' equality with that value holds for whoever
comes. And a predicate whose ends fall on bounds of its page's grid is decided by the page's bits.
What is left stands first in the record: a candidate costs fewer fetches, and most of the time of a
large set is waiting for records.
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
    """Give the place in `page_slots` of the column's slot on this page, or -1."""
    for slot in range(s.pages[page, PAGE_SLOTS]):
        at = (page * SLOTS_MAX + slot) * 2
        if s.grids[s.page_slots[at], GRID_COLUMN] == column:
            return at
    return -1


@kernel
def implied(s: Arrays, cluster: Int, at: Int) -> Int:
    """Tell whether every context in the cluster satisfies the predicate at this word.

    A row is in a cluster because it has the token, and it has one only from the one predicate on
    the token's column, an equality (a merged conjunction has one atom a property and kind).
    """
    if s.records[at + 1] != s.records[at + 2]:
        return False
    column = s.records[at]  # flags of sets and orders make it no column's number
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
    """Put the predicates that a candidate must still be checked for first, and count them.

    `page` is -1 for a row in a chain. Its bits, if any, are written already.
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
