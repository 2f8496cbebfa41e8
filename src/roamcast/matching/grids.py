"""Grids: buckets of a column's values, cut where the ends of its predicates are dense.

A column gets a finer grid as more predicates are seen. Pages keep the grid they were made with, so
a new grid costs only its own table; no page is rebuilt (decision 0006).
"""

import numpy as np

from roamcast.matching.layout import (
    BOUNDS_MAX,
    CODES,
    COLUMN_BITS,
    COLUMN_GRID,
    COLUMN_KIND,
    COLUMN_ORDINALS,
    COLUMN_RENEW,
    COLUMN_SEEN,
    COLUMN_USES,
    GRID_BOUNDS,
    GRID_COLUMN,
    GRID_KIND,
    GRID_LEVELS,
    GRID_LINES,
    GRID_USES,
    GRIDS,
    HIGHEST,
    LEVELS,
    LINES_MAX,
    LOWEST,
    MISSING,
    ORDERED,
    ORDERS,
    PREDICATE_WORDS,
    RANGES,
    SAMPLE,
    TOKEN_COLUMN,
    TOKEN_ORDINAL,
    TOKEN_USES,
    Array,
    Arrays,
    Int,
)
from roamcast.model.kernels import inlined, kernel

RENEWALS_DENSE = 1024  # up to this many breakpoints, a grid is renewed at every fourfold growth
CODES_OWN = LINES_MAX // 2  # codes with a line of their own if there are more codes than lines
CELLS_MIN = 16  # a coarser grid has no cells worth a cluster


@inlined
def cut_label(labels: Array, cut: Int) -> Int:
    """Return the current label of a cut (just before, at, or just after a known text)."""
    return labels[cut >> 2] + (cut & 3) - 1


@inlined
def line_of(grids: Array, bounds: Array, tokens: Array, labels: Array, grid: Int, key: Int) -> Int:
    """Return the line of a slot that marks the rows contradicted by this key."""
    if key == MISSING:
        return 0
    kind = grids[grid, GRID_KIND]
    if kind == CODES:  # the first codes have lines of their own, the others share
        ordinal, own = np.int64(tokens[key, TOKEN_ORDINAL]), grids[grid, GRID_BOUNDS]
        if ordinal < own:
            return 1 + ordinal
        return 1 + own + (ordinal - own) % (grids[grid, GRID_LINES] - 1 - own)
    first, count = grid * LINES_MAX, grids[grid, GRID_BOUNDS]
    place: Int = 0
    step = LINES_MAX // 2
    if kind == ORDERS:
        while step:
            if place + step <= count and cut_label(labels, bounds[first + place + step - 1]) <= key:
                place += step
            step >>= 1
        return 1 + place
    while step:  # binary search without branches: unused bounds hold the highest key
        place += step * np.int64(bounds[first + place + step - 1] <= key)
        step >>= 1
    return 1 + min(place, count)


@kernel
def lines_between(s: Arrays, grid: Int, low: Int, high: Int) -> np.uint64:
    """Return a bit for each line whose values may lie between low and high."""
    kind = s.grids[grid, GRID_KIND]
    if kind == ORDERS:
        low, high = cut_label(s.labels, low), cut_label(s.labels, high)
    if low > high:
        return np.uint64(0)
    first = line_of(s.grids, s.grid_bounds, s.tokens, s.labels, grid, low)
    last = first
    if kind != CODES:
        last = line_of(s.grids, s.grid_bounds, s.tokens, s.labels, grid, high)
    ones = np.uint64(0xFFFFFFFFFFFFFFFF)
    return (ones << np.uint64(first)) & (ones >> np.uint64(63 - last))


@kernel
def _is_bound(s: Arrays, grid: Int, key: Int) -> Int:
    first = grid * LINES_MAX
    for place in range(first, first + s.grids[grid, GRID_BOUNDS]):
        if s.grid_bounds[place] == key:
            return True
    return False


@kernel
def is_exact(s: Arrays, grid: Int, low: Int, high: Int) -> Int:
    """Return whether the lines between low and high contain no value outside."""
    kind = s.grids[grid, GRID_KIND]
    if kind == CODES:
        return s.tokens[low, TOKEN_ORDINAL] < s.grids[grid, GRID_BOUNDS]
    return (
        kind == RANGES
        and (low == LOWEST or _is_bound(s, grid, low))
        and (high == HIGHEST or _is_bound(s, grid, high + 1))
    )


@kernel
def cell_token(s: Arrays, column: Int, low: Int, high: Int) -> Int:
    """Return the smallest cell of the column's grid that contains the interval, or -1.

    A cell is encoded as grid × 256 + level × 64 + cell.
    """
    grid = s.columns[column, COLUMN_GRID]
    if grid < 0 or s.grids[grid, GRID_BOUNDS] < CELLS_MIN or s.grids[grid, GRID_KIND] == CODES:
        return -1
    if s.grids[grid, GRID_KIND] == ORDERS:
        low, high = cut_label(s.labels, low), cut_label(s.labels, high)
    if low > high:
        return -1
    first = line_of(s.grids, s.grid_bounds, s.tokens, s.labels, grid, low) - 1
    last = line_of(s.grids, s.grid_bounds, s.tokens, s.labels, grid, high) - 1
    for level in range(LEVELS):
        if first >> level == last >> level:
            return grid * 256 + level * 64 + (first >> level)
    return -1


@kernel
def _remember(s: Arrays, column: Int, end: Int) -> None:
    """Add a breakpoint to the column's sample (reservoir sampling; a fixed hash is the dice)."""
    seen = s.columns[column, COLUMN_SEEN]
    s.columns[column, COLUMN_SEEN] = seen + 1
    if seen < SAMPLE:
        s.samples[column, seen] = end
        return
    dice = np.uint64(seen + 1) * np.uint64(0x9E3779B97F4A7C15)
    place = np.int64((dice >> np.uint64(20)) % np.uint64(seen + 1))
    if place < SAMPLE:
        s.samples[column, place] = end


@kernel
def _cut_ranges(s: Arrays, column: Int, grid: Int) -> Int:
    """Cut a grid at quantiles of the sampled breakpoints; return the number of bounds."""
    count = min(s.columns[column, COLUMN_SEEN], SAMPLE)
    sample = s.samples[column, :count].copy()
    if s.columns[column, COLUMN_KIND] == ORDERS:
        label = np.empty(count, np.int64)
        for i in range(count):
            label[i] = cut_label(s.labels, sample[i])
        sample = sample[np.argsort(label)]
    else:
        sample.sort()
    distinct = 0
    for i in range(count):
        if distinct == 0 or sample[i] != sample[distinct - 1]:
            sample[distinct] = sample[i]
            distinct += 1
    first = grid * LINES_MAX
    bounds = min(distinct, BOUNDS_MAX)
    s.grid_bounds[first : first + LINES_MAX] = HIGHEST
    for i in range(bounds):
        s.grid_bounds[first + i] = sample[(2 * i + 1) * distinct // (2 * bounds)]
    return bounds


@kernel
def renew(s: Arrays, column: Int) -> None:
    """Cut a new grid for the column if it has seen enough predicates since the last one."""
    kind = s.columns[column, COLUMN_KIND]
    old = s.columns[column, COLUMN_GRID]
    ordinals = s.columns[column, COLUMN_ORDINALS]
    if kind == CODES:
        if old >= 0:
            lines = s.grids[old, GRID_LINES]
            if ordinals < lines - 1 or lines == LINES_MAX:
                return
    elif s.columns[column, COLUMN_SEEN] < s.columns[column, COLUMN_RENEW]:
        return
    grid = s.counters[GRIDS]
    if old >= 0 and s.grids[old, GRID_USES] == 0 and s.grids[old, GRID_LEVELS] == 0:
        grid = old  # no page uses the old grid, so overwrite it
    else:
        s.counters[GRIDS] += 1
    bounds = 0
    if kind == CODES:
        lines = 4
        while lines < ordinals + 2 and lines < LINES_MAX:
            lines *= 2
        bounds = lines - 2 if ordinals <= lines - 2 else CODES_OWN
    else:
        bounds = _cut_ranges(s, column, grid)
        lines = 2
        while lines < bounds + 2:
            lines *= 2
        seen = s.columns[column, COLUMN_SEEN]
        s.columns[column, COLUMN_RENEW] = max(4, seen * (4 if seen < RENEWALS_DENSE else 16))
    s.grids[grid, GRID_COLUMN] = column
    s.grids[grid, GRID_KIND] = kind
    s.grids[grid, GRID_BOUNDS] = bounds
    s.grids[grid, GRID_LINES] = lines
    s.grids[grid, GRID_USES] = 0
    s.grids[grid, GRID_LEVELS] = 0
    s.columns[column, COLUMN_GRID] = grid


@kernel
def survey(s: Arrays, words: Array, predicates: Array, tokens: Array) -> None:
    """Count new rows' breakpoints and tokens, on which grids and clusters are based."""
    at = 0
    for row in range(len(predicates)):
        for _ in range(predicates[row]):
            column = words[at] & COLUMN_BITS
            if s.columns[column, COLUMN_KIND] != CODES:
                ordered = words[at] & ORDERED
                low, high = words[at + 1], words[at + 2]
                if (low >> 2 > 1) if ordered else (low != LOWEST):
                    _remember(s, column, low)
                if (high >> 2 > 1) if ordered else (high != HIGHEST):
                    _remember(s, column, high + 1)
            else:
                _count(s, words[at + 1])
            at += PREDICATE_WORDS
        for _ in range(tokens[row]):
            token = words[at]
            if s.columns[s.tokens[token, TOKEN_COLUMN], COLUMN_KIND] != CODES:
                _count(s, token)
            at += 1


@kernel
def _count(s: Arrays, token: Int) -> None:
    s.tokens[token, TOKEN_USES] += 1
    s.columns[s.tokens[token, TOKEN_COLUMN], COLUMN_USES] += 1


@kernel
def renew_all(s: Arrays, words: Array, predicates: Array, tokens: Array) -> None:
    """Cut new grids for these rows' columns where due; the arrays must have room for them."""
    at = 0
    for row in range(len(predicates)):
        for _ in range(predicates[row]):
            renew(s, words[at] & COLUMN_BITS)
            at += PREDICATE_WORDS
        at += tokens[row]
