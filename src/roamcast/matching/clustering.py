"""The choice of a row's cluster: the one whose tokens the fewest contexts are likely to have.

A cluster takes rows until it is full. Later rows go to a child by their most selective token. Small
sets stay flat, large ones become deep, and no row is ever moved (decisions 0005, 0006).
"""

import numpy as np

from roamcast.matching.grids import cell_token
from roamcast.matching.hashing import enter, find_child, leave
from roamcast.matching.layout import (
    CELL_TOKEN,
    CLUSTER_CHAIN,
    CLUSTER_CHAINED,
    CLUSTER_CHILDREN,
    CLUSTER_DEPTH,
    CLUSTER_PAGE,
    CLUSTER_PARENT,
    CLUSTER_ROWS,
    CLUSTER_ROWS_MAX,
    CLUSTER_TOKEN,
    CLUSTERS,
    CLUSTERS_FREE,
    CODES,
    COLUMN_BITS,
    COLUMN_KIND,
    COLUMN_USES,
    DEPTH_MAX,
    GRID_BOUNDS,
    GRID_COLUMN,
    GRID_LEVELS,
    HASHED,
    HEADER_COUNT,
    LINES_MAX,
    MORE,
    ORDERED,
    PAGES,
    PLAIN,
    POOL,
    PREDICATE_WORDS,
    RECORD_CLASSES,
    RECORD_WORDS,
    RECORDS_FREE,
    ROOT_ROWS,
    ROW_NEXT,
    ROW_OWNER,
    ROW_PREDICATES,
    ROW_RECORD,
    ROW_SIBLING,
    ROW_TOKENS,
    ROWS,
    ROWS_FREE,
    SLOTS_MAX,
    TOKEN_COLUMN,
    TOKEN_USES,
    TOKENS_MAX,
    TWINNED,
    VERIFY,
    WIDTH_MAX,
    Array,
    Arrays,
    Int,
)
from roamcast.matching.placing import put_in_cluster, take_from_cluster
from roamcast.model.kernels import inlined, kernel

SELECTIVE_TOKEN = 0.5  # a token used by a larger share of its column's filters is not selective
SELECTIVE_CELL = 0.2
POOL_SPARE = 3 * SLOTS_MAX * LINES_MAX * WIDTH_MAX  # words that widening a page may take


@inlined
def column_bit(column: Int) -> np.uint64:
    """Return a column's bit in a cluster's mask of its children's columns."""
    return np.uint64(1) << np.uint64(column & 63)


@kernel
def _make_child(s: Arrays, parent: Int, token: Int, column: Int) -> Int:
    child = s.counters[CLUSTERS_FREE]
    if child >= 0:
        s.counters[CLUSTERS_FREE] = s.clusters[child, CLUSTER_PARENT]
    else:
        child = s.counters[CLUSTERS]
        s.counters[CLUSTERS] += 1
    s.clusters[child, CLUSTER_CHAIN] = -1
    s.clusters[child, CLUSTER_CHAINED] = 0
    s.clusters[child, CLUSTER_PAGE] = -1
    s.clusters[child, CLUSTER_ROWS] = 0
    s.clusters[child, CLUSTER_PARENT] = parent
    s.clusters[child, CLUSTER_CHILDREN] = 0
    s.clusters[child, CLUSTER_TOKEN] = token
    s.clusters[child, CLUSTER_DEPTH] = s.clusters[parent, CLUSTER_DEPTH] + 1
    s.cluster_masks[child] = 0
    s.cluster_masks[parent] |= column_bit(column)
    s.clusters[parent, CLUSTER_CHILDREN] += 1
    enter(s.hash_keys, s.hash_clusters, (np.int64(parent) << 32) | np.int64(token), child)
    s.counters[HASHED] += 1
    return child


@kernel
def _drop_empty(s: Arrays, cluster: Int) -> None:
    """Free a cluster without rows and children, then its parents that become empty."""
    while (
        cluster != 0
        and s.clusters[cluster, CLUSTER_ROWS] == 0
        and s.clusters[cluster, CLUSTER_CHILDREN] == 0
    ):
        parent = s.clusters[cluster, CLUSTER_PARENT]
        token = s.clusters[cluster, CLUSTER_TOKEN]
        leave(s.hash_keys, s.hash_clusters, (np.int64(parent) << 32) | np.int64(token))
        s.counters[HASHED] -= 1
        s.clusters[parent, CLUSTER_CHILDREN] -= 1
        if s.clusters[parent, CLUSTER_CHILDREN] == 0:
            s.cluster_masks[parent] = 0
        s.clusters[cluster, CLUSTER_PARENT] = s.counters[CLUSTERS_FREE]
        s.counters[CLUSTERS_FREE] = cluster
        cluster = parent


@kernel
def _best_token(s: Arrays, tokens: Int, count: Int, used: Int) -> Int:
    """Return the index of the row's most selective unused token, or -1."""
    best, best_share = -1, SELECTIVE_TOKEN
    for i in range(count):
        if (used >> i) & 1:
            continue
        token = s.records[tokens + i]
        share = s.tokens[token, TOKEN_USES] / s.columns[s.tokens[token, TOKEN_COLUMN], COLUMN_USES]
        if share < best_share:
            best, best_share = i, share
    return best


@kernel
def _best_cell(s: Arrays, row: Int, cluster: Int) -> Int:
    """Return the narrowest cell that contains one of the row's intervals, or -1.

    Columns that a cluster further up uses are skipped.
    """
    best, best_share = -1, SELECTIVE_CELL
    at = np.int64(s.rows[row, ROW_RECORD]) + 1
    more = False
    for _ in range(s.rows[row, ROW_PREDICATES]):
        single = not more and not s.records[at] & MORE
        more = s.records[at] & MORE != 0
        column = s.records[at] & COLUMN_BITS
        if single and not _column_used(s, cluster, column):
            cell = cell_token(s, column, s.records[at + 1], s.records[at + 2])
            if cell >= 0:
                width = 1 << ((cell >> 6) & 3)
                share = width / (s.grids[cell >> 8, GRID_BOUNDS] + 1)
                if share < best_share:
                    best, best_share = cell, share
        at += PREDICATE_WORDS
    return best


@kernel
def _column_used(s: Arrays, cluster: Int, column: Int) -> Int:
    while cluster > 0:
        token = s.clusters[cluster, CLUSTER_TOKEN]
        if token >= CELL_TOKEN:
            if s.grids[(token - CELL_TOKEN) >> 8, GRID_COLUMN] == column:
                return True
        elif s.tokens[token, TOKEN_COLUMN] == column:
            return True
        cluster = s.clusters[cluster, CLUSTER_PARENT]
    return False


@kernel
def _choose_cluster(s: Arrays, row: Int, tokens: Int, count: Int) -> Int:
    cluster, used = 0, 0
    while True:
        limit = s.tuning[CLUSTER_ROWS_MAX] if cluster else s.tuning[ROOT_ROWS]
        if (
            s.clusters[cluster, CLUSTER_ROWS] < limit
            or s.clusters[cluster, CLUSTER_DEPTH] >= s.tuning[DEPTH_MAX]
        ):
            return cluster
        best = _best_token(s, tokens, count, used)
        if best >= 0:
            used |= 1 << best
            token = np.int64(s.records[tokens + best])
            column = np.int64(s.tokens[token, TOKEN_COLUMN])
        else:
            cell = _best_cell(s, row, cluster)
            if cell < 0:
                return cluster
            s.grids[cell >> 8, GRID_LEVELS] |= 1 << ((cell >> 6) & 3)
            token = np.int64(CELL_TOKEN + cell)
            column = np.int64(s.grids[cell >> 8, GRID_COLUMN])
        child = find_child(s.hash_keys, s.hash_clusters, cluster, token)
        cluster = child if child >= 0 else _make_child(s, cluster, token, column)


@kernel
def _record_class(words: Int) -> Int:
    """Return the size class of a record: multiples of 4 up to 256 words, then powers of two."""
    if words <= 256:
        return (words + 3) // 4
    size, place = 512, 65
    while size < words:
        size *= 2
        place += 1
    assert place < RECORD_CLASSES
    return place


@kernel
def _class_words(place: Int) -> Int:
    return place * 4 if place <= 64 else 256 << (place - 64)


@kernel
def _take_record(s: Arrays, words: Int) -> Int:
    place = _record_class(words)
    start = s.counters[RECORDS_FREE + place]
    if start < 0:
        start = s.counters[RECORD_WORDS]
        s.counters[RECORD_WORDS] += _class_words(place)
    else:
        s.counters[RECORDS_FREE + place] = s.records[start]
    return start


@kernel
def _give_record(s: Arrays, start: Int, words: Int) -> None:
    place = _record_class(words)
    s.records[start] = s.counters[RECORDS_FREE + place]
    s.counters[RECORDS_FREE + place] = start


@kernel
def used_token(s: Arrays, at: Int, tokens: Int) -> Int:
    """Return the token that this word of a record refers to, or -1.

    A predicate on a column of codes refers to its code. Of the tokens after the predicates only
    those of other columns count; otherwise an equality of texts would be counted twice.
    """
    if at < tokens:
        column = s.records[at] & COLUMN_BITS
        return s.records[at + 1] if s.columns[column, COLUMN_KIND] == CODES else -1
    token = s.records[at]
    kind = s.columns[s.tokens[token, TOKEN_COLUMN], COLUMN_KIND]
    return -1 if kind == CODES else token


@kernel
def _has_room(s: Arrays, words: Int, depth: Int) -> Int:
    return (
        s.counters[ROWS] < len(s.rows)
        and s.counters[RECORD_WORDS] + _class_words(_record_class(words)) <= len(s.records)
        and s.counters[CLUSTERS] + depth < len(s.clusters)
        and 2 * (s.counters[HASHED] + depth) < len(s.hash_keys)
        and s.counters[PAGES] + 1 < len(s.pages)
        and s.counters[POOL] + POOL_SPARE <= len(s.pool)
    )


@kernel
def _plain(words: Array, at: Int, predicates: Int) -> Int:
    for _ in range(predicates):
        if words[at] & (MORE | ORDERED):
            return 0
        at += PREDICATE_WORDS
    return PLAIN


@kernel
def insert(
    s: Arrays,
    begin: Int,
    word: Int,
    words: Array,
    predicates: Array,
    tokens: Array,
    owners: Array,
    marks: Array,
    rows: Array,
) -> tuple[Int, Int]:
    """Insert rows from `begin` on, until one does not fit into the arrays.

    Returns the next row to insert and where its words begin: compiled code cannot grow arrays, so
    `Index` grows them and calls again.
    """
    for i in range(begin, len(owners)):
        count = min(tokens[i], TOKENS_MAX)
        length = PREDICATE_WORDS * predicates[i] + tokens[i]
        if not _has_room(s, 1 + length, s.tuning[DEPTH_MAX]):
            return i, word
        row = s.counters[ROWS_FREE]
        if row >= 0:
            s.counters[ROWS_FREE] = s.rows[row, ROW_NEXT]
        else:
            row = s.counters[ROWS]
            s.counters[ROWS] += 1
        start = _take_record(s, 1 + length)
        header = predicates[i] | marks[i] | _plain(words, word, predicates[i])
        if s.twins[owners[i]] >= 0:
            header |= TWINNED
        s.records[start] = (np.int64(owners[i]) << 32) | header
        s.records[start + 1 : start + 1 + length] = words[word : word + length]
        s.rows[row, ROW_RECORD] = start
        s.rows[row, ROW_PREDICATES] = predicates[i]
        s.rows[row, ROW_OWNER] = owners[i]
        s.rows[row, ROW_SIBLING] = -1
        s.rows[row, ROW_TOKENS] = tokens[i]
        rows[i] = row
        cluster = _choose_cluster(s, row, start + 1 + PREDICATE_WORDS * predicates[i], count)
        put_in_cluster(s, cluster, row)
        word += length
    return len(owners), word


@kernel
def name_owner(s: Arrays, row: Int, owner: Int) -> None:
    """Set a row's owner, and flag whether the owner has twins (ids of the same filter)."""
    s.rows[row, ROW_OWNER] = owner
    start = s.rows[row, ROW_RECORD]
    header = s.records[start] & (HEADER_COUNT | VERIFY | PLAIN)
    if s.twins[owner] >= 0:
        header |= TWINNED
    s.records[start] = (np.int64(owner) << 32) | header


@kernel
def delete(s: Arrays, row: Int, dropped: Array) -> Int:
    """Delete a row; write the tokens that became unused to `dropped` and return their number."""
    start = np.int64(s.rows[row, ROW_RECORD]) + 1
    length = PREDICATE_WORDS * s.rows[row, ROW_PREDICATES]
    tokens = s.rows[row, ROW_TOKENS]
    _drop_empty(s, take_from_cluster(s, row))
    count = 0
    at, end = start, start + length + tokens
    while at < end:
        token = used_token(s, at, start + length)
        if token >= 0:
            s.tokens[token, TOKEN_USES] -= 1
            s.columns[s.tokens[token, TOKEN_COLUMN], COLUMN_USES] -= 1
            if s.tokens[token, TOKEN_USES] == 0:
                dropped[count] = token
                count += 1
        at += PREDICATE_WORDS if at < start + length else 1
    _give_record(s, start - 1, 1 + length + tokens)
    s.rows[row, ROW_OWNER] = -1
    s.rows[row, ROW_NEXT] = s.counters[ROWS_FREE]
    s.counters[ROWS_FREE] = row
    return count
