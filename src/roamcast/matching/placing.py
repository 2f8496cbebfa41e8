"""Placement of rows in a cluster: in a chain while there are few, then on pages of bits.

Nothing is rebuilt as a whole (decision 0006): a row takes a free bit of a page and later returns
it; a full page doubles its width, up to a bound.
"""

import numpy as np

from roamcast.matching.grids import lines_between
from roamcast.matching.layout import (
    CACHE_LINE,
    CHAIN_ROWS,
    CLUSTER_CHAIN,
    CLUSTER_CHAINED,
    CLUSTER_PAGE,
    CLUSTER_ROWS,
    COLUMN_BITS,
    COLUMN_GRID,
    GRID_LINES,
    GRID_USES,
    MORE,
    PAGE_AFTER,
    PAGE_ALIVE,
    PAGE_BEFORE,
    PAGE_CLUSTER,
    PAGE_COUNT,
    PAGE_ENTRIES,
    PAGE_ROWS_MAX,
    PAGE_SLOTS,
    PAGE_WIDTH,
    PAGES,
    PAGES_FREE,
    POOL,
    POOL_FREE,
    PREDICATE_WORDS,
    ROW_NEXT,
    ROW_POSITION,
    ROW_PREDICATES,
    ROW_RECORD,
    ROW_WHERE,
    SLOTS_MAX,
    WIDTH_MAX,
    Arrays,
    Int,
)
from roamcast.matching.settling import find_slot, implied, settle
from roamcast.model.kernels import kernel, lowest_bit

MERGE_SHARE = 8  # a page with less than an eighth of its bits in use is merged into another


@kernel
def _size_class(words: Int) -> Int:
    size, power = 1, 0
    while size < words:
        size *= 2
        power += 1
    return power


@kernel
def _take(s: Arrays, words: Int) -> Int:
    """Allocate `words` (a power of two) zeroed words of the pool; return the first."""
    free = POOL_FREE + _size_class(words)
    first = s.counters[free]
    if first < 0:
        first = s.counters[POOL]
        if words >= CACHE_LINE:  # a line of bits should not straddle two cache lines
            first = -(-first // CACHE_LINE) * CACHE_LINE
        s.counters[POOL] = first + words
        return first
    # A free block's first word links to the next one, plus 1: the pool is unsigned, -1 ends a list.
    s.counters[free] = np.int64(s.pool[first]) - 1
    s.pool[first : first + words] = 0
    return first


@kernel
def _give(s: Arrays, first: Int, words: Int) -> None:
    free = POOL_FREE + _size_class(words)
    s.pool[first] = np.uint64(s.counters[free] + 1)
    s.counters[free] = first


@kernel
def _link_page(s: Arrays, cluster: Int, page: Int) -> None:
    head = s.clusters[cluster, CLUSTER_PAGE]
    s.pages[page, PAGE_BEFORE] = -1
    s.pages[page, PAGE_AFTER] = head
    if head >= 0:
        s.pages[head, PAGE_BEFORE] = page
    s.clusters[cluster, CLUSTER_PAGE] = page


@kernel
def _unlink_page(s: Arrays, page: Int) -> None:
    before, after = s.pages[page, PAGE_BEFORE], s.pages[page, PAGE_AFTER]
    if before >= 0:
        s.pages[before, PAGE_AFTER] = after
    else:
        s.clusters[s.pages[page, PAGE_CLUSTER], CLUSTER_PAGE] = after
    if after >= 0:
        s.pages[after, PAGE_BEFORE] = before


@kernel
def _make_page(s: Arrays, cluster: Int) -> Int:
    page = s.counters[PAGES_FREE]
    if page >= 0:
        s.counters[PAGES_FREE] = s.pages[page, PAGE_AFTER]
    else:
        page = s.counters[PAGES]
        s.counters[PAGES] += 1
    s.pages[page, PAGE_CLUSTER] = cluster
    s.pages[page, PAGE_COUNT] = 0
    s.pages[page, PAGE_SLOTS] = 0
    s.pages[page, PAGE_WIDTH] = 1
    s.pages[page, PAGE_ALIVE] = _take(s, 1)
    s.pages[page, PAGE_ENTRIES] = _take(s, 64)
    _link_page(s, cluster, page)
    return page


@kernel
def _free_page(s: Arrays, page: Int) -> None:
    width = np.int64(s.pages[page, PAGE_WIDTH])
    for slot in range(s.pages[page, PAGE_SLOTS]):
        at = (page * SLOTS_MAX + slot) * 2
        grid = s.page_slots[at]
        s.grids[grid, GRID_USES] -= 1
        _give(s, s.page_slots[at + 1], s.grids[grid, GRID_LINES] * width)
    _give(s, s.pages[page, PAGE_ALIVE], width)
    _give(s, s.pages[page, PAGE_ENTRIES], 64 * width)
    _unlink_page(s, page)
    s.pages[page, PAGE_CLUSTER] = -1
    s.pages[page, PAGE_AFTER] = s.counters[PAGES_FREE]
    s.counters[PAGES_FREE] = page


@kernel
def _widen(s: Arrays, old: Int, lines: Int, width: Int) -> Int:
    """Copy lines to new memory with twice their width."""
    new = _take(s, 2 * width * lines)
    for line in range(lines):
        for word in range(width):
            s.pool[new + 2 * width * line + word] = s.pool[old + width * line + word]
    _give(s, old, width * lines)
    return new


@kernel
def _widen_page(s: Arrays, page: Int) -> None:
    width = np.int64(s.pages[page, PAGE_WIDTH])
    for slot in range(s.pages[page, PAGE_SLOTS]):
        at = (page * SLOTS_MAX + slot) * 2
        lines = np.int64(s.grids[s.page_slots[at], GRID_LINES])
        s.page_slots[at + 1] = _widen(s, np.int64(s.page_slots[at + 1]), lines, width)
    s.pages[page, PAGE_ALIVE] = _widen(s, np.int64(s.pages[page, PAGE_ALIVE]), 1, width)
    s.pages[page, PAGE_ENTRIES] = _widen(s, np.int64(s.pages[page, PAGE_ENTRIES]), 1, 64 * width)
    s.pages[page, PAGE_WIDTH] = 2 * width


@kernel
def _make_slot(s: Arrays, page: Int, column: Int) -> Int:
    slot = s.pages[page, PAGE_SLOTS]
    grid = s.columns[column, COLUMN_GRID]
    if slot == SLOTS_MAX or grid < 0:
        return -1
    at = (page * SLOTS_MAX + slot) * 2
    s.page_slots[at] = grid
    s.page_slots[at + 1] = _take(s, s.grids[grid, GRID_LINES] * s.pages[page, PAGE_WIDTH])
    s.grids[grid, GRID_USES] += 1
    s.pages[page, PAGE_SLOTS] = slot + 1
    return at


@kernel
def _write_bits(s: Arrays, page: Int, position: Int, row: Int) -> None:
    """Set the row's bit on every line whose values all contradict one of its predicates."""
    cluster = s.pages[page, PAGE_CLUSTER]
    word, bit = position >> 6, np.uint64(1) << np.uint64(position & 63)
    width = np.int64(s.pages[page, PAGE_WIDTH])
    at = np.int64(s.rows[row, ROW_RECORD]) + 1
    end = at + PREDICATE_WORDS * s.rows[row, ROW_PREDICATES]
    while at < end:
        if implied(s, cluster, at):  # decided by the cluster's token: a slot would be wasted on it
            at += PREDICATE_WORDS
            continue
        column = s.records[at] & COLUMN_BITS
        slot = find_slot(s, page, column)
        if slot < 0:
            slot = _make_slot(s, page, column)
        # Alternatives of one predicate (MORE) share a slot: a line is allowed if any of them is.
        allowed = np.uint64(0)
        more = True
        while more:
            if slot >= 0:
                grid = s.page_slots[slot]
                allowed |= lines_between(s, grid, s.records[at + 1], s.records[at + 2])
            more = s.records[at] & MORE != 0
            at += PREDICATE_WORDS
        if slot >= 0:
            first = np.int64(s.page_slots[slot + 1]) + word
            for line in range(s.grids[s.page_slots[slot], GRID_LINES]):
                if not (allowed >> np.uint64(line)) & np.uint64(1):
                    s.pool[first + line * width] |= bit


@kernel
def _clear_bits(s: Arrays, page: Int, position: Int, row: Int) -> None:
    word, bit = position >> 6, np.uint64(1) << np.uint64(position & 63)
    width = np.int64(s.pages[page, PAGE_WIDTH])
    at = np.int64(s.rows[row, ROW_RECORD]) + 1
    for _ in range(s.rows[row, ROW_PREDICATES]):
        slot = find_slot(s, page, s.records[at] & COLUMN_BITS)
        if slot >= 0:
            first = np.int64(s.page_slots[slot + 1]) + word
            for line in range(s.grids[s.page_slots[slot], GRID_LINES]):
                s.pool[first + line * width] &= ~bit
        at += PREDICATE_WORDS


@kernel
def _put_on_page(s: Arrays, page: Int, row: Int) -> None:
    """Put a row at the page's first free bit; there must be one."""
    alive = np.int64(s.pages[page, PAGE_ALIVE])
    position = -1
    for word in range(s.pages[page, PAGE_WIDTH]):
        if ~s.pool[alive + word]:
            position = word * 64 + lowest_bit(~s.pool[alive + word])
            break
    assert position >= 0
    s.pool[alive + (position >> 6)] |= np.uint64(1) << np.uint64(position & 63)
    entry = (np.int64(s.rows[row, ROW_RECORD]) << 32) | np.int64(row)
    s.pool[np.int64(s.pages[page, PAGE_ENTRIES]) + position] = np.uint64(entry)
    s.pages[page, PAGE_COUNT] += 1
    s.rows[row, ROW_WHERE] = page
    s.rows[row, ROW_POSITION] = position
    _write_bits(s, page, position, row)
    settle(s, row, s.pages[page, PAGE_CLUSTER], page)


@kernel
def _page_with_room(s: Arrays, cluster: Int) -> Int:
    """Return a page of the cluster with a free bit, making one if needed; such pages come first."""
    page = s.clusters[cluster, CLUSTER_PAGE]
    if page < 0:
        return _make_page(s, cluster)
    if s.pages[page, PAGE_COUNT] < 64 * s.pages[page, PAGE_WIDTH]:
        return page
    if s.pages[page, PAGE_WIDTH] < WIDTH_MAX:
        _widen_page(s, page)
        return page
    after = s.pages[page, PAGE_AFTER]
    if after >= 0 and s.pages[after, PAGE_COUNT] < PAGE_ROWS_MAX:
        _move_behind(s, page)
        return s.clusters[cluster, CLUSTER_PAGE]
    return _make_page(s, cluster)


@kernel
def _move_behind(s: Arrays, page: Int) -> None:
    """Move a full page behind the pages with room."""
    last = s.pages[page, PAGE_AFTER]
    while s.pages[last, PAGE_AFTER] >= 0 and (
        s.pages[s.pages[last, PAGE_AFTER], PAGE_COUNT] < PAGE_ROWS_MAX
    ):
        last = s.pages[last, PAGE_AFTER]
    _unlink_page(s, page)
    follower = s.pages[last, PAGE_AFTER]
    s.pages[page, PAGE_BEFORE] = last
    s.pages[page, PAGE_AFTER] = follower
    s.pages[last, PAGE_AFTER] = page
    if follower >= 0:
        s.pages[follower, PAGE_BEFORE] = page


@kernel
def _take_from_page(s: Arrays, row: Int) -> None:
    page, position = s.rows[row, ROW_WHERE], s.rows[row, ROW_POSITION]
    bit = np.uint64(1) << np.uint64(position & 63)
    s.pool[np.int64(s.pages[page, PAGE_ALIVE]) + (position >> 6)] &= ~bit
    _clear_bits(s, page, position, row)
    s.pages[page, PAGE_COUNT] -= 1


@kernel
def _join_sparse_page(s: Arrays, page: Int) -> None:
    """Move the last few rows of a page to another page, so that no page stays almost empty."""
    cluster = s.pages[page, PAGE_CLUSTER]
    other = s.clusters[cluster, CLUSTER_PAGE]
    if other == page:
        other = s.pages[page, PAGE_AFTER]
    if other < 0:
        return
    # Leave a margin: a page filled to the brim would soon be split again.
    room = 64 * s.pages[other, PAGE_WIDTH] * 7 // 8
    if s.pages[other, PAGE_COUNT] + s.pages[page, PAGE_COUNT] > room:
        return
    alive, entries = np.int64(s.pages[page, PAGE_ALIVE]), np.int64(s.pages[page, PAGE_ENTRIES])
    for position in range(64 * s.pages[page, PAGE_WIDTH]):
        if (s.pool[alive + (position >> 6)] >> np.uint64(position & 63)) & np.uint64(1):
            row = np.int64(s.pool[entries + position] & np.uint64(COLUMN_BITS))
            _take_from_page(s, row)
            _put_on_page(s, other, row)
    _free_page(s, page)


@kernel
def put_in_cluster(s: Arrays, cluster: Int, row: Int) -> None:
    """Add the row to the cluster's chain, or to a page if it has many rows."""
    s.clusters[cluster, CLUSTER_ROWS] += 1
    if s.clusters[cluster, CLUSTER_PAGE] >= 0:
        _put_on_page(s, _page_with_room(s, cluster), row)
        return
    s.rows[row, ROW_WHERE] = cluster
    s.rows[row, ROW_POSITION] = -1
    s.rows[row, ROW_NEXT] = s.clusters[cluster, CLUSTER_CHAIN]
    s.clusters[cluster, CLUSTER_CHAIN] = row
    s.clusters[cluster, CLUSTER_CHAINED] += 1
    if s.clusters[cluster, CLUSTER_CHAINED] <= s.tuning[CHAIN_ROWS]:
        settle(s, row, cluster, -1)
        return
    # The chain became too long: move all its rows to pages. They stay there for good, so a cluster
    # near the threshold does not switch back and forth.
    row = s.clusters[cluster, CLUSTER_CHAIN]
    s.clusters[cluster, CLUSTER_CHAIN] = -1
    s.clusters[cluster, CLUSTER_CHAINED] = 0
    while row >= 0:
        following = s.rows[row, ROW_NEXT]
        _put_on_page(s, _page_with_room(s, cluster), row)
        row = following


@kernel
def take_from_cluster(s: Arrays, row: Int) -> Int:
    """Remove the row from its chain or page; return its cluster."""
    if s.rows[row, ROW_POSITION] < 0:
        cluster = s.rows[row, ROW_WHERE]
        before, here = -1, s.clusters[cluster, CLUSTER_CHAIN]
        while here != row:
            before, here = here, s.rows[here, ROW_NEXT]
        if before < 0:
            s.clusters[cluster, CLUSTER_CHAIN] = s.rows[row, ROW_NEXT]
        else:
            s.rows[before, ROW_NEXT] = s.rows[row, ROW_NEXT]
        s.clusters[cluster, CLUSTER_CHAINED] -= 1
    else:
        page = s.rows[row, ROW_WHERE]
        cluster = s.pages[page, PAGE_CLUSTER]
        was_full = s.pages[page, PAGE_COUNT] == PAGE_ROWS_MAX
        _take_from_page(s, row)
        if s.pages[page, PAGE_COUNT] == 0:
            _free_page(s, page)
        elif was_full:
            _unlink_page(s, page)
            _link_page(s, cluster, page)
        elif s.pages[page, PAGE_COUNT] * MERGE_SHARE <= 64 * s.pages[page, PAGE_WIDTH]:
            _join_sparse_page(s, page)
    s.clusters[cluster, CLUSTER_ROWS] -= 1
    return cluster
