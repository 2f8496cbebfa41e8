"""The memory layout of a filter set: flat arrays for compiled code. docs/matching.md draws it.

A *row* is one conjunction of a filter. Its *record* has a header and its predicates: closed
intervals of 64-bit keys over columns. Rows lie in *clusters*; a context enters a cluster only if it
has its *token* (an equality, a place it is within, or a cell of a column's grid) and its parent's.
A small cluster chains its rows; a larger one keeps them on *pages* of 64 to 4,096 rows. On a page,
every constrained column has a *slot*: one line of bits for each bucket of the column's *grid*, with
a bit for each row that a value in that bucket contradicts.
"""

import math
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray
Int = Any
"""An integer in compiled code, of Python or NumPy: Numba infers which."""

MISSING = -(2**63)
"""The key of a column without a value; no predicate's interval contains it."""
LOWEST, HIGHEST = MISSING + 1, 2**63 - 1

# A record begins with owner × 2³² + flags + number of predicates, so checking and reporting a
# candidate touch the same cache line. A predicate is three words: its column with flags, low and
# high (both included). The row's tokens follow the predicates.
HEADER_COUNT = (1 << 16) - 1
VERIFY = 1 << 16  # the reference evaluator must confirm the row
PLAIN = 1 << 17  # every predicate is one interval of keys
TWINNED = 1 << 18  # the owner has twins
PREDICATE_WORDS = 3
COLUMN_BITS = (1 << 32) - 1
ORDERED = 1 << 40  # low and high are cuts between texts: read them through `labels`
MORE = 1 << 41  # the next predicate is an alternative to this one (a set of several intervals)

WIDTH_MAX = 64
"""A page's lines have 1 to 64 words; a full page doubles its width."""
PAGE_ROWS_MAX = 64 * WIDTH_MAX
SLOTS_MAX = 48  # further columns on a page are decided by the exact check alone
LINES_MAX = 64  # lines of a slot: the first for a missing value, the others for buckets
BOUNDS_MAX = LINES_MAX - 2
SAMPLE = 256  # breakpoints sampled per column, to cut its grid where they are dense
TOKENS_MAX = 16  # tokens considered for one row
LEVELS = 4  # a grid's cells come in four widths: 1, 2, 4 and 8 buckets
CELL_TOKEN = 1 << 30  # tokens from here on are cells: grid × 256 + level × 64 + cell
GRIDS_MAX = 1 << 22
RECORD_CLASSES = 96
CACHE_LINE_BYTES = 64
CACHE_LINE = CACHE_LINE_BYTES // 8  # words

# Fields of the two-dimensional arrays.
CLUSTER_CHAIN, CLUSTER_CHAINED, CLUSTER_PAGE, CLUSTER_ROWS = 0, 1, 2, 3
CLUSTER_PARENT, CLUSTER_CHILDREN, CLUSTER_TOKEN, CLUSTER_DEPTH = 4, 5, 6, 7
PAGE_CLUSTER, PAGE_BEFORE, PAGE_AFTER, PAGE_COUNT = 0, 1, 2, 3
PAGE_SLOTS, PAGE_WIDTH, PAGE_ALIVE, PAGE_ENTRIES = 4, 5, 6, 7
ROW_RECORD, ROW_PREDICATES, ROW_OWNER, ROW_NEXT = 0, 1, 2, 3
ROW_WHERE, ROW_POSITION, ROW_SIBLING, ROW_TOKENS = 4, 5, 6, 7
GRID_COLUMN, GRID_KIND, GRID_BOUNDS, GRID_LINES, GRID_USES, GRID_LEVELS = 0, 1, 2, 3, 4, 5
RANGES, CODES, ORDERS = 0, 1, 2  # kinds of columns and of their grids
TOKEN_COLUMN, TOKEN_SETS, TOKEN_ORDINAL, TOKEN_USES = 0, 1, 2, 3

# Indices into `counters`: numbers of entries, and heads of free lists.
(
    ROWS,
    ROWS_FREE,
    CLUSTERS,
    CLUSTERS_FREE,
    PAGES,
    PAGES_FREE,
    POOL,
    RECORD_WORDS,
    GRIDS,
    HASHED,
) = range(10)
POOL_FREE = 10  # one list for each power of two
RECORDS_FREE = 30  # one list for each class of sizes
COUNTERS = RECORDS_FREE + RECORD_CLASSES


class Arrays(NamedTuple):
    """All arrays of a filter set. An array's used length is in its counter."""

    counters: Array
    tuning: Array
    clusters: Array
    cluster_masks: Array
    hash_keys: Array
    hash_clusters: Array
    pages: Array
    page_slots: Array
    pool: Array
    rows: Array
    records: Array
    columns: Array
    samples: Array
    grids: Array
    grid_bounds: Array
    tokens: Array
    labels: Array
    twins: Array


# Indices into `tuning`.
ROOT_ROWS, CLUSTER_ROWS_MAX, CHAIN_ROWS, DEPTH_MAX = 0, 1, 2, 3
# Fields of `columns`: kind, current grid, tokens in use, breakpoints seen, when to cut a new grid,
# number of ordinals assigned.
COLUMN_KIND, COLUMN_GRID, COLUMN_USES, COLUMN_SEEN, COLUMN_RENEW, COLUMN_ORDINALS = range(6)


class Tuning(NamedTuple):
    """When to cluster and when to use bitmaps: chosen by measurement (decision 0005)."""

    root_rows: int = 4096
    cluster_rows: int = 32_768
    chain_rows: int = 12
    depth: int = 3


CHAIN_MAX = 2048  # rows of a chain: all are listed before any is checked
DEEPEST = 6  # levels that the stack of clusters to enter has room for


def empty(tuning: Tuning) -> Arrays:
    """Return the arrays of an empty set. Every context enters cluster 0."""
    clusters = np.full((16, 8), -1, np.int32)
    clusters[0] = (-1, 0, -1, 0, -1, 0, -1, 0)
    counters = np.full(COUNTERS, -1, np.int64)
    counters[[ROWS, PAGES, POOL, RECORD_WORDS, GRIDS, HASHED]] = 0
    counters[CLUSTERS] = 1
    return Arrays(
        counters=counters,
        tuning=np.array(
            tuning._replace(
                chain_rows=min(tuning.chain_rows, CHAIN_MAX), depth=min(tuning.depth, DEEPEST)
            ),
            np.int64,
        ),
        clusters=clusters,
        cluster_masks=np.zeros(16, np.uint64),
        hash_keys=np.full(64, -1, np.int64),
        hash_clusters=np.full(64, -1, np.int32),
        pages=np.full((4, 8), -1, np.int32),
        page_slots=np.zeros(4 * SLOTS_MAX * 2, np.int32),
        pool=np.zeros(1 << 17, np.uint64),
        rows=np.full((64, 8), -1, np.int32),
        records=np.zeros(1024, np.int64),
        columns=np.zeros((16, 6), np.int64),
        samples=np.zeros((16, SAMPLE), np.int64),
        grids=np.zeros((16, 6), np.int32),
        grid_bounds=np.zeros(16 * LINES_MAX, np.int64),
        tokens=np.zeros((64, 4), np.int32),
        labels=np.zeros(64, np.int64),
        twins=np.full(64, -1, np.int32),
    )


def grown(array: Array, length: int, used: int | None = None) -> Array:
    """Return the array with room for `length` entries, at least half as much again as before.

    Only the `used` entries are copied: what was never written takes no memory, nor time to copy.
    """
    if len(array) >= length:
        return array
    larger = _zeros((max(length, len(array) * 3 // 2), *array.shape[1:]), array.dtype)
    held = len(array) if used is None else used
    larger[:held] = array[:held]
    return larger


def _zeros(shape: tuple[int, ...], kind: "np.dtype[Any]") -> Array:
    """Return zeros aligned to a cache line, so that lines of bits fill whole cache lines."""
    if kind.hasobject:
        return np.zeros(shape, kind)
    size = math.prod(shape) * kind.itemsize
    room = np.zeros(size + CACHE_LINE_BYTES, np.uint8)
    first = -room.ctypes.data % CACHE_LINE_BYTES
    return room[first : first + size].view(kind).reshape(shape)
