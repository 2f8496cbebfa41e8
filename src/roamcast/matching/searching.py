"""The search: enter the context's clusters, combine the pages' lines, check what is left.

Every candidate's record is checked exactly; bitmaps only reduce the number of candidates.
`Searcher` is the bridge between Python and the compiled search.
"""

import struct
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from roamcast.matching.addresses import (
    float64s,
    int32_rows,
    int32s,
    int64_pairs,
    int64s,
    table_of,
    uint64s,
)
from roamcast.matching.checking import number_key, satisfied, satisfied_plain
from roamcast.matching.clustering import column_bit
from roamcast.matching.grids import line_of
from roamcast.matching.hashing import find_child
from roamcast.matching.layout import (
    CACHE_LINE,
    CELL_TOKEN,
    CLUSTER_CHAIN,
    CLUSTER_CHAINED,
    CLUSTER_PAGE,
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
from roamcast.matching.vocabulary import Event
from roamcast.model.kernels import count_bits, inlined, kernel, lowest_bit, prefetch

LISTED_FULL = 2048  # candidates collected before they are checked, so that cache misses overlap
LISTED_MAX = LISTED_FULL + PAGE_ROWS_MAX + 8
AHEAD = 12  # records prefetched ahead of the check
ENTRY_BITS = (1 << 32) - 1
DEPTH_SPARE = 8
PAIRS_MAX = 1 << 24
"""Maximum pairs found at once; a batch with more is split in half."""


@kernel
def _find_lines(
    grids: Array, bounds: Array, tokens: Array, labels: Array, count: Int, keys: Array, lines: Array
) -> None:
    """Find the context's line in every grid."""
    for grid in range(count):
        if grids[grid, GRID_USES] > 0 or grids[grid, GRID_LEVELS]:
            key = keys[grids[grid, GRID_COLUMN]]
            lines[grid] = line_of(grids, bounds, tokens, labels, grid, key)


@kernel
def _find_tokens(
    grids: Array, known: Array, count: Int, given: Array, lines: Array, tokens: Array
) -> Int:
    """List the context's tokens with their columns' bits: the given ones, then those of cells."""
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
    """Push the children of a cluster whose tokens the context has."""
    # The mask has a bit per column (modulo 64) of the children: it spares most hash lookups.
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
    """Append the entries of a word's set bits, the first two without a branch to mispredict."""
    bits = np.uint64(count_bits(word))
    listed[n] = np.int64(pool[first + np.uint64(lowest_bit(word) & 63)])
    word &= word - np.uint64(1)
    listed[n + np.uint64(1)] = np.int64(pool[first + np.uint64(lowest_bit(word) & 63)])
    if bits > np.uint64(2):
        for i in range(np.uint64(2), bits):
            word &= word - np.uint64(1)
            listed[n + i] = np.int64(pool[first + np.uint64(lowest_bit(word))])
    return n + bits


@inlined
def _line(page_slots: Array, at: Int, width: Int, lines: Array) -> Int:
    """Return the position of a slot's line for this context."""
    line = np.uint64(lines[np.uint64(page_slots[at])])
    return np.uint64(page_slots[at + np.uint64(1)]) + width * line


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
    """List the entries of a page's rows that no line contradicts.

    Indices are unsigned: Numba does not vectorise loops over signed ones, which may count from the
    end (decision 0005).
    """
    width = np.uint64(pages[page, PAGE_WIDTH])
    alive = np.uint64(pages[page, PAGE_ALIVE])
    for word in range(width):
        contradicted[word] = ~pool[alive + word]  # bits of no row count as contradicted
    at = np.uint64(page * SLOTS_MAX * 2)
    end = at + np.uint64(2 * pages[page, PAGE_SLOTS])
    while at + np.uint64(8) <= end:  # four slots at a time: fewer passes, more loads in flight
        a = _line(page_slots, at, width, lines)
        b = _line(page_slots, at + np.uint64(2), width, lines)
        c = _line(page_slots, at + np.uint64(4), width, lines)
        d = _line(page_slots, at + np.uint64(6), width, lines)
        for word in range(width):
            four = pool[a + word] | pool[b + word] | pool[c + word] | pool[d + word]
            contradicted[word] |= four
        at += np.uint64(8)
    while at < end:
        a = _line(page_slots, at, width, lines)
        for word in range(width):
            contradicted[word] |= pool[a + word]
        at += np.uint64(2)
    entries = np.uint64(pages[page, PAGE_ENTRIES])
    filled = np.uint64(n)
    for word in range(width):
        candidates = ~contradicted[word]
        first = entries + np.uint64(64) * word
        filled = _list_bits(candidates, pool, first, listed, filled)
    return np.int64(filled)


@inlined
def _list_chain(rows: Array, row: Int, listed: Array, n: Int) -> Int:
    """List the entries of a chain's rows."""
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
    """Check the listed entries; append a pair for the owner, and each twin, of those that hold.

    A pair is context × 2³² + number, or -1 - (context × 2³² + row) if the reference evaluator must
    confirm it. Pairs beyond the array's length are only counted.
    """
    base = np.int64(context) << 32
    for i in range(n):
        ahead = listed[min(i + AHEAD, n - 1)] >> 32
        prefetch(records, ahead)
        prefetch(records, ahead + CACHE_LINE)
        start = listed[i] >> 32
        header = records[start]
        count = header & HEADER_COUNT
        if header & PLAIN:
            ok = satisfied_plain(records, keys, start + 1, count)
        else:
            ok = satisfied(records, labels, keys, start + 1, count)
        # The common case has no branch on `ok`: write the pair, and advance only if it holds.
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
    known: Array,
    defaults: Array,
    floats: Array,
    numbers: Int,
    tokens: Int,
    words: Array,
    other: Int,
    keys: Array,
) -> None:
    """Fill in the keys of one context (`vocabulary.Event`); its tokens follow the words."""
    keys[: len(defaults)] = defaults
    for i in range(0, numbers, 2):
        keys[np.int64(floats[i])] = number_key(floats[i + 1])
    for i in range(0, other, 2):
        keys[words[i]] = words[i + 1]
    for i in range(tokens):
        token = np.int64(floats[numbers + i])
        words[other + i] = token
        column = known[token, TOKEN_SETS]
        if column >= 0:
            keys[column] = token


# Indices into the table of `search_context`.
(
    AT_COUNTERS,
    AT_CLUSTERS,
    AT_MASKS,
    AT_HASH_KEYS,
    AT_HASH_CLUSTERS,
    AT_PAGES,
    AT_PAGE_SLOTS,
    AT_POOL,
    AT_ROWS,
    AT_RECORDS,
    AT_GRIDS,
    AT_GRID_BOUNDS,
    AT_TOKENS,
    AT_LABELS,
    AT_TWINS,
    AT_DEFAULTS,
    AT_KEYS,
    AT_LINES,
    AT_OWN_TOKENS,
    AT_STACK,
    AT_FLOATS,
    AT_WORDS,
    AT_LISTED,
    AT_PAIRS,
) = range(24)


def search_table(
    s: Arrays, defaults: Array, scratch: tuple[Array, ...], listed: Array, pairs: Array
) -> Array:
    """Return the table of `search_context`, valid until one of these arrays is replaced."""
    return table_of(
        (
            *(s.counters, s.clusters, s.cluster_masks, s.hash_keys, s.hash_clusters, s.pages),
            *(s.page_slots, s.pool, s.rows, s.records, s.grids, s.grid_bounds, s.tokens),
            *(s.labels, s.twins, defaults, *scratch, listed, pairs),
        )
    )


@inlined
def _search(
    table: Array, context: Int, keys: Array, given: Array, contradicted: Array, found: Int
) -> Int:
    """Find all pairs of one context, after `found` others."""
    lines, tokens = int32s(table, AT_LINES), int64_pairs(table, AT_OWN_TOKENS)
    grids, known = int32_rows(table, AT_GRIDS, 6), int32_rows(table, AT_TOKENS, 4)
    counters, labels = int64s(table, AT_COUNTERS), int64s(table, AT_LABELS)
    grids_count = counters[GRIDS]
    _find_lines(grids, int64s(table, AT_GRID_BOUNDS), known, labels, grids_count, keys, lines)
    count = _find_tokens(grids, known, grids_count, given, lines, tokens)
    clusters, pages = int32_rows(table, AT_CLUSTERS, 8), int32_rows(table, AT_PAGES, 8)
    rows, page_slots = int32_rows(table, AT_ROWS, 8), int32s(table, AT_PAGE_SLOTS)
    pool, masks = uint64s(table, AT_POOL), uint64s(table, AT_MASKS)
    hash_keys, hash_clusters = int64s(table, AT_HASH_KEYS), int32s(table, AT_HASH_CLUSTERS)
    records, twins = int64s(table, AT_RECORDS), int32s(table, AT_TWINS)
    stack, listed, pairs = (
        int32s(table, AT_STACK),
        int64s(table, AT_LISTED),
        int64s(table, AT_PAIRS),
    )
    stack[0] = 0
    top, n = 1, 0
    while top:
        top -= 1
        cluster = stack[top]
        # Candidates of many clusters are checked together, so that prefetching has work ahead.
        if n + clusters[cluster, CLUSTER_CHAINED] > LISTED_FULL:
            found = _report(records, labels, twins, keys, context, listed, n, pairs, found)
            n = 0
        n = _list_chain(rows, clusters[cluster, CLUSTER_CHAIN], listed, n)
        page = np.int64(clusters[cluster, CLUSTER_PAGE])
        while page >= 0:
            if n > LISTED_FULL:
                found = _report(records, labels, twins, keys, context, listed, n, pairs, found)
                n = 0
            n = _list_page(pages, page_slots, pool, page, lines, contradicted, listed, n)
            page = np.int64(pages[page, PAGE_AFTER])
        top = _push_children(masks, hash_keys, hash_clusters, cluster, tokens, count, stack, top)
    return _report(records, labels, twins, keys, context, listed, n, pairs, found)


@kernel
def search_context(table: Array, numbers: Int, tokens: Int, other: Int) -> Int:
    """Find all pairs of one context; return their number, which may exceed the room for them.

    The context is passed in the table's arrays: array arguments would cost more than reading it.
    """
    keys, words = int64s(table, AT_KEYS), int64s(table, AT_WORDS)
    known, defaults = int32_rows(table, AT_TOKENS, 4), int64s(table, AT_DEFAULTS)
    floats = float64s(table, AT_FLOATS)
    _read_context(known, defaults, floats, numbers, tokens, words, other, keys)
    contradicted = np.empty(WIDTH_MAX, np.uint64)
    return _search(table, 0, keys, words[other : other + tokens], contradicted, 0)


@kernel
def search_batch(table: Array, keys: Array, given: Array) -> Int:
    """Find all pairs of many contexts; return their number, which may exceed the room for them.

    Contexts are searched one at a time. Cluster by cluster was slower: the candidates of one page
    are too few to prefetch (decision 0005).
    """
    found = 0
    contradicted = np.empty(WIDTH_MAX, np.uint64)
    for context in range(len(keys)):
        found = _search(table, context, keys[context], given[context], contradicted, found)
    return found


@lru_cache(maxsize=1024)
def _packer(kind: str, count: int) -> Callable[..., None]:
    """Return a packer of `count` numbers into a buffer: three times as fast as making an array."""
    return struct.Struct(f"{count}{kind}").pack_into


class Searcher:
    """The table of addresses, the working memory and the result of one search after another."""

    def __init__(self) -> None:
        self._pairs: Array = np.empty(1 << 12, np.int64)
        self._scratch: tuple[Array, ...] = ()
        self._words_max = -1
        self._defaults: Array = np.empty(0, np.int64)  # kept alive: the table holds its address
        self._table: Array = np.empty(0, np.int64)
        self._tabled: Arrays | None = None  # the arrays whose addresses are in the table
        self._listed: Array = np.empty(LISTED_MAX, np.int64)

    def search(self, arrays: Arrays, defaults: Array, event: Event) -> Array:
        """Return the owners that one context satisfies, and -1 - row for rows yet to verify.

        The next search reuses the array.
        """
        numbers, tokens, other = event
        size = len(numbers) + len(tokens)
        while True:
            # Arrays are replaced as a whole (`Arrays._replace`), so identity tells whether the
            # table of addresses is stale.
            if self._tabled is not arrays or size + len(other) > self._words_max:
                self._write_table(arrays, defaults, size + len(other))
            if size:
                _packer("d", size)(self._floats, 0, *numbers, *tokens)
            if other:
                _packer("q", len(other))(self._words, 0, *other)
            found = search_context(self._table, len(numbers), len(tokens), len(other))
            if found <= len(self._pairs):
                return self._pairs[:found]
            self._grow_pairs(found)

    def search_batch(self, arrays: Arrays, defaults: Array, keys: Array, given: Array) -> Array:
        """Return what many contexts satisfy: context × 2³² + owner, or -1 - (… + row) to verify."""
        while True:
            if self._tabled is not arrays or given.shape[1] > self._words_max:
                self._write_table(arrays, defaults, given.shape[1])
            found = search_batch(self._table, keys, given)
            if found <= len(self._pairs):
                return self._pairs[:found]
            if found > PAIRS_MAX and len(keys) > 1:
                half = len(keys) // 2
                first = self.search_batch(arrays, defaults, keys[:half], given[:half]).copy()
                second = self.search_batch(arrays, defaults, keys[half:], given[half:])
                # Shift the contexts' numbers; pairs to verify are stored negated.
                moved = second + np.where(second < 0, -1, 1) * (half << 32)
                return np.concatenate([first, moved])
            self._grow_pairs(found)

    def _grow_pairs(self, count: int) -> None:
        self._pairs = np.empty(count * 3 // 2, np.int64)
        self._tabled = None

    def _write_table(self, arrays: Arrays, defaults: Array, words: int) -> None:
        """Make room for a context of so many words, and rewrite the table of addresses."""
        grids_count = int(arrays.counters[GRIDS])
        self._words_max = 2 * words
        tokens = self._words_max + LEVELS * grids_count + 16
        self._floats: Array = np.empty(self._words_max, np.float64)
        self._words: Array = np.empty(self._words_max, np.int64)
        self._scratch = (
            np.empty(len(defaults), np.int64),
            np.zeros(grids_count, np.int32),
            np.empty((tokens, 2), np.int64),
            np.empty(tokens * DEPTH_SPARE, np.int32),
            self._floats,
            self._words,
        )
        self._defaults = defaults
        self._table = search_table(arrays, defaults, self._scratch, self._listed, self._pairs)
        self._tabled = arrays
