"""Which rows does a context satisfy? Enter its clusters, AND the pages' lines, check what is left.

One context at a time, or a batch page by page: then a page is fetched once for all contexts that
need it. Both check every candidate's record exactly; bitmaps only spare that work.
"""

import numpy as np

from roamcast.matching.checking import number_key, satisfied, satisfied_plain
from roamcast.matching.clustering import column_bit
from roamcast.matching.compiled import count_bits, inlined, kernel, lowest_bit, prefetch
from roamcast.matching.grids import line_of
from roamcast.matching.hashing import find_child
from roamcast.matching.layout import (
    CELL_TOKEN,
    CLUSTER_CHAIN,
    CLUSTER_CHAINED,
    CLUSTER_PAGE,
    CLUSTER_ROWS,
    GRID_COLUMN,
    GRID_LEVELS,
    GRID_USES,
    GRIDS,
    HEADER_COUNT,
    LEVELS,
    PAGE_AFTER,
    PAGE_ALIVE,
    PAGE_ENTRIES,
    PAGE_ROWS_MAX,
    PAGE_SLOTS,
    PAGE_WIDTH,
    PLAIN,
    ROW_NEXT,
    ROW_RECORD,
    SLOTS_MAX,
    TOKEN_COLUMN,
    TOKEN_SETS,
    TWINNED,
    VERIFY,
    WIDTH_MAX,
    Array,
    Arrays,
    Int,
)

LISTED_FULL = 2048  # candidates collected before they are checked: misses of the cache overlap
LISTED_MAX = LISTED_FULL + PAGE_ROWS_MAX + 8
AHEAD = 8  # records fetched before they are needed
ENTRY_BITS = (1 << 32) - 1


@kernel
def _find_lines(
    grids: Array, bounds: Array, tokens: Array, labels: Array, count: Int, keys: Array, lines: Array
) -> None:
    for grid in range(count):
        if grids[grid, GRID_USES] > 0 or grids[grid, GRID_LEVELS]:
            key = keys[grids[grid, GRID_COLUMN]]
            lines[grid] = line_of(grids, bounds, tokens, labels, grid, key)


@kernel
def _find_tokens(
    grids: Array, known: Array, count: Int, given: Array, lines: Array, tokens: Array
) -> Int:
    """List the context's tokens with their columns' bits: the given ones, then its cells."""
    found = 0
    for token in given:
        if token >= 0:
            tokens[found, 0] = token
            tokens[found, 1] = np.int64(column_bit(known[token, TOKEN_COLUMN]))
            found += 1
    for grid in range(count):
        levels = grids[grid, GRID_LEVELS]
        if levels and lines[grid] > 0:
            bit = np.int64(column_bit(grids[grid, GRID_COLUMN]))
            for level in range(LEVELS):
                if (levels >> level) & 1:
                    cell = (np.int64(lines[grid]) - 1) >> level
                    tokens[found, 0] = CELL_TOKEN + grid * 256 + level * 64 + cell
                    tokens[found, 1] = bit
                    found += 1
    return found


@inlined
def _push_children(
    masks: Array,
    hash_keys: Array,
    hash_clusters: Array,
    cluster: Int,
    tokens: Array,
    count: Int,
    stack: Array,
    top: Int,
) -> Int:
    mask = np.int64(masks[cluster])
    if mask:
        for i in range(count):
            if mask & tokens[i, 1]:
                child = find_child(hash_keys, hash_clusters, cluster, tokens[i, 0])
                if child >= 0:
                    stack[top] = child
                    top += 1
    return top


@inlined
def _list_bits(word: np.uint64, pool: Array, first: Int, listed: Array, n: Int) -> Int:
    """Append the entries of a word's set bits; two are fetched in any case: no branch to guess."""
    bits = count_bits(word)
    listed[n] = np.int64(pool[first + (lowest_bit(word) & 63)])
    word &= word - np.uint64(1)
    listed[n + 1] = np.int64(pool[first + (lowest_bit(word) & 63)])
    if bits > 2:
        for i in range(2, bits):
            word &= word - np.uint64(1)
            listed[n + i] = np.int64(pool[first + lowest_bit(word)])
    return n + bits


@inlined
def _list_page(
    pages: Array,
    page_slots: Array,
    pool: Array,
    page: Int,
    lines: Array,
    contradicted: Array,
    listed: Array,
    n: Int,
) -> Int:
    """List the entries of a page's rows that no line contradicts."""
    width = np.int64(pages[page, PAGE_WIDTH])
    alive = np.int64(pages[page, PAGE_ALIVE])
    for word in range(width):
        contradicted[word] = ~pool[alive + word]
    at = page * SLOTS_MAX * 2
    end = at + 2 * pages[page, PAGE_SLOTS]
    while at + 8 <= end:  # four slots at a time: fewer passes, more lines fetched at once
        a = np.int64(page_slots[at + 1]) + width * lines[page_slots[at]]
        b = np.int64(page_slots[at + 3]) + width * lines[page_slots[at + 2]]
        c = np.int64(page_slots[at + 5]) + width * lines[page_slots[at + 4]]
        d = np.int64(page_slots[at + 7]) + width * lines[page_slots[at + 6]]
        for word in range(width):
            four = pool[a + word] | pool[b + word] | pool[c + word] | pool[d + word]
            contradicted[word] |= four
        at += 8
    while at < end:
        a = np.int64(page_slots[at + 1]) + width * lines[page_slots[at]]
        for word in range(width):
            contradicted[word] |= pool[a + word]
        at += 2
    entries = np.int64(pages[page, PAGE_ENTRIES])
    for word in range(width):
        n = _list_bits(~contradicted[word], pool, entries + 64 * word, listed, n)
    return n


@inlined
def _list_chain(rows: Array, row: Int, listed: Array, n: Int) -> Int:
    while row >= 0:
        listed[n] = (np.int64(rows[row, ROW_RECORD]) << 32) | np.int64(row)
        n += 1
        row = rows[row, ROW_NEXT]
    return n


@inlined
def _report(
    records: Array,
    labels: Array,
    twins: Array,
    keys: Array,
    context: Int,
    listed: Array,
    n: Int,
    pairs: Array,
    found: Int,
) -> Int:
    """Check the listed entries; write down who owns those that hold.

    A pair is context × 2³² + number, the owner's and its twins'; -1 - (context × 2³² + row) if the
    reference must confirm it. Beyond the room it only counts.
    """
    base = np.int64(context) << 32
    for i in range(n):
        prefetch(records, listed[min(i + AHEAD, n - 1)] >> 32)
        start = listed[i] >> 32
        header = records[start]
        count = header & HEADER_COUNT
        if header & PLAIN:
            ok = satisfied_plain(records, keys, start + 1, count)
        else:
            ok = satisfied(records, labels, keys, start + 1, count)
        if header & (VERIFY | TWINNED) == 0 and found < len(pairs):
            pairs[found] = base | (header >> 32)
            found += np.int64(ok)
        elif ok and header & VERIFY:
            if found < len(pairs):
                pairs[found] = -1 - (base | (listed[i] & ENTRY_BITS))
            found += 1
        elif ok:
            owner = header >> 32
            while owner >= 0:
                if found < len(pairs):
                    pairs[found] = base | owner
                found += 1
                owner = np.int64(twins[owner])
    return found


@inlined
def _read_context(
    known: Array, defaults: Array, words: Array, numbers: Array, tokens: Int, keys: Array
) -> None:
    """Fill in the keys of one context (`events.Event`)."""
    keys[: len(defaults)] = defaults
    for i in range(len(numbers)):
        keys[words[i]] = number_key(numbers[i])
    for i in range(len(numbers), tokens, 2):
        keys[words[i]] = words[i + 1]
    for i in range(tokens, len(words)):
        column = known[words[i], TOKEN_SETS]
        if column >= 0:
            keys[column] = words[i]


@kernel
def search_one(
    s: Arrays,
    defaults: Array,
    words: Array,
    numbers: Array,
    begin: Int,
    keys: Array,
    lines: Array,
    tokens: Array,
    stack: Array,
    listed: Array,
    pairs: Array,
) -> Int:
    """Find all pairs of one context; give how many there are (perhaps more than there is room)."""
    _read_context(s.tokens, defaults, words, numbers, begin, keys)
    grids_count = s.counters[GRIDS]
    _find_lines(s.grids, s.grid_bounds, s.tokens, s.labels, grids_count, keys, lines)
    count = _find_tokens(s.grids, s.tokens, grids_count, words[begin:], lines, tokens)
    clusters, pages, rows, page_slots, pool = s.clusters, s.pages, s.rows, s.page_slots, s.pool
    masks, hash_keys, hash_clusters = s.cluster_masks, s.hash_keys, s.hash_clusters
    contradicted = np.empty(WIDTH_MAX, np.uint64)
    stack[0] = 0
    top, found, n = 1, 0, 0
    while top:
        top -= 1
        cluster = stack[top]
        if n + clusters[cluster, CLUSTER_CHAINED] > LISTED_FULL:
            found = _report(s.records, s.labels, s.twins, keys, 0, listed, n, pairs, found)
            n = 0
        n = _list_chain(rows, clusters[cluster, CLUSTER_CHAIN], listed, n)
        page = np.int64(clusters[cluster, CLUSTER_PAGE])
        while page >= 0:
            if n > LISTED_FULL:
                found = _report(s.records, s.labels, s.twins, keys, 0, listed, n, pairs, found)
                n = 0
            n = _list_page(pages, page_slots, pool, page, lines, contradicted, listed, n)
            page = np.int64(pages[page, PAGE_AFTER])
        top = _push_children(masks, hash_keys, hash_clusters, cluster, tokens, count, stack, top)
    return _report(s.records, s.labels, s.twins, keys, 0, listed, n, pairs, found)


@kernel
def find_clusters(
    s: Arrays,
    given: Array,
    keys: Array,
    lines: Array,
    tokens: Array,
    stack: Array,
    heads: Array,
    visits: Array,
    order: Array,
) -> tuple[Int, Int]:
    """List, for each cluster that some context enters, the contexts that do.

    `heads[cluster]` (-1 before and after) begins a list of `visits`: (context, next). `order` is
    the clusters in the order first entered. Gives how many clusters and visits there are; the
    visits beyond the room are only counted.
    """
    entered, visited = 0, 0
    grids_count = s.counters[GRIDS]
    clusters, masks = s.clusters, s.cluster_masks
    hash_keys, hash_clusters = s.hash_keys, s.hash_clusters
    for context in range(len(keys)):
        _find_lines(
            s.grids,
            s.grid_bounds,
            s.tokens,
            s.labels,
            grids_count,
            keys[context],
            lines[context],
        )
        count = _find_tokens(s.grids, s.tokens, grids_count, given[context], lines[context], tokens)
        stack[0] = 0
        top = 1
        while top:
            top -= 1
            cluster = stack[top]
            if clusters[cluster, CLUSTER_ROWS] > 0:
                if visited < len(visits):
                    if heads[cluster] < 0:
                        order[entered] = cluster
                        entered += 1
                    visits[visited, 0] = context
                    visits[visited, 1] = heads[cluster]
                    heads[cluster] = visited
                visited += 1
            top = _push_children(
                masks, hash_keys, hash_clusters, cluster, tokens, count, stack, top
            )
    return entered, visited


@kernel
def search_clusters(
    s: Arrays,
    keys: Array,
    lines: Array,
    heads: Array,
    visits: Array,
    order: Array,
    entered: Int,
    listed: Array,
    pairs: Array,
) -> Int:
    """Find all pairs of the contexts in these clusters, page by page; give how many there are."""
    found = 0
    clusters, pages, rows, page_slots, pool = s.clusters, s.pages, s.rows, s.page_slots, s.pool
    records, labels, twins = s.records, s.labels, s.twins
    contradicted = np.empty(WIDTH_MAX, np.uint64)
    for i in range(entered):
        cluster = order[i]
        chained = _list_chain(rows, clusters[cluster, CLUSTER_CHAIN], listed, 0)
        visit = heads[cluster] if chained else -1
        while visit >= 0:
            context = np.int64(visits[visit, 0])
            found = _report(
                records, labels, twins, keys[context], context, listed, chained, pairs, found
            )
            visit = visits[visit, 1]
        page = np.int64(clusters[cluster, CLUSTER_PAGE])
        while page >= 0:
            visit = heads[cluster]
            while visit >= 0:
                context = np.int64(visits[visit, 0])
                n = _list_page(
                    pages, page_slots, pool, page, lines[context], contradicted, listed, 0
                )
                found = _report(
                    records, labels, twins, keys[context], context, listed, n, pairs, found
                )
                visit = visits[visit, 1]
            page = np.int64(pages[page, PAGE_AFTER])
        heads[cluster] = -1
    return found
