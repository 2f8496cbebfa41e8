"""Columns of live contexts: slot → value and value → slots, both kept at every change.

A slot is the number of a context on the map, reused when the context leaves. A column holds one
property in one comparison as int64 keys: numbers by `number_key`, instants in microseconds,
booleans as 0 and 1, points by their Morton code, texts by their number in `texts.Texts`, whose
labels give their order. Labels may change while their order does not, so entries name the text.

- `Table`: slot → key. An open-addressing table whose hash is the slot itself: for a property that
  every context has it is an array, for a rare one it is as small as its entries.
- `Order`: the entries in blocks of at most BLOCK, sorted by (value, slot), and a directory of the
  blocks: a change moves at most one block and, when a block splits, the directory.
"""

from typing import NamedTuple

import numpy as np

from roamcast.matching.layout import Array
from roamcast.model.kernels import inlined, kernel

BLOCK = 128
"""Entries of a block: a change moves half of them on average, about 1 KB."""

MISSING = -(2**63)
"""The key of a slot without a value; no value has it."""

EMPTY = -1
FULL_BLOCK = MISSING + 1
"""The kernel needs a free block and changes nothing."""

BLOCKS, ENTRIES = 0, 1
"""Counters: blocks in the directory, entries in all of them."""


class Entries(NamedTuple):
    """The arrays of a column, replaced as a whole when they grow."""

    table_slots: Array
    table_keys: Array
    keys: Array
    slots: Array
    sizes: Array
    order: Array
    """Block numbers: the first BLOCKS in the order of their entries, the others free."""
    counters: Array


@inlined
def _value(labels: Array, key: int) -> int:
    return labels[key] if len(labels) else key


@inlined
def find(table_slots: Array, slot: int) -> int:
    """Return where a slot stands in the table, or -1 - the empty place where it would."""
    mask = len(table_slots) - 1
    at = slot & mask
    while table_slots[at] != slot:
        if table_slots[at] == EMPTY:
            return -1 - at
        at = (at + 1) & mask
    return at


@inlined
def key_of(table_slots: Array, table_keys: Array, slot: int) -> int:
    """Return the key of a slot."""
    at = find(table_slots, slot)
    return table_keys[at] if at >= 0 else MISSING


@inlined
def _forget(table_slots: Array, table_keys: Array, at: int) -> None:
    """Empty a place of the table, and move back what had to stand behind it."""
    mask = len(table_slots) - 1
    gap = at
    at = (at + 1) & mask
    while table_slots[at] != EMPTY:
        home = table_slots[at] & mask
        if ((at - home) & mask) >= ((at - gap) & mask):
            table_slots[gap] = table_slots[at]
            table_keys[gap] = table_keys[at]
            gap = at
        at = (at + 1) & mask
    table_slots[gap] = EMPTY


@inlined
def _block(entries: Entries, labels: Array, value: int, slot: int) -> int:
    """Return the directory's place of the last block that begins at or before an entry, or 0."""
    low, high = 0, entries.counters[BLOCKS]
    while high - low > 1:
        middle = (low + high) >> 1
        block = entries.order[middle]
        first = _value(labels, entries.keys[block, 0])
        if first < value or (first == value and entries.slots[block, 0] <= slot):
            low = middle
        else:
            high = middle
    return low


@inlined
def _place(entries: Entries, labels: Array, block: int, value: int, slot: int) -> int:
    """Return the first place in a block at or after an entry."""
    low, high = 0, entries.sizes[block]
    while low < high:
        middle = (low + high) >> 1
        here = _value(labels, entries.keys[block, middle])
        if here < value or (here == value and entries.slots[block, middle] < slot):
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _leave(entries: Entries, labels: Array, key: int, slot: int) -> None:
    place = _block(entries, labels, _value(labels, key), slot)
    block = entries.order[place]
    size = entries.sizes[block] - 1
    keys, slots = entries.keys[block], entries.slots[block]
    for at in range(_place(entries, labels, block, _value(labels, key), slot), size):
        keys[at] = keys[at + 1]
        slots[at] = slots[at + 1]
    entries.sizes[block] = size
    entries.counters[ENTRIES] -= 1
    blocks = entries.counters[BLOCKS]
    if size == 0:
        _drop_block(entries.order, entries.counters, place)
    elif size < BLOCK // 4 and place + 1 < blocks:
        # Neighbours that are nearly empty share a block: removals leave no hollow directory.
        other = entries.order[place + 1]
        if size + entries.sizes[other] <= BLOCK // 2:
            for at in range(entries.sizes[other]):
                keys[size + at] = entries.keys[other, at]
                slots[size + at] = entries.slots[other, at]
            entries.sizes[block] = size + entries.sizes[other]
            _drop_block(entries.order, entries.counters, place + 1)


@inlined
def _drop_block(order: Array, counters: Array, place: int) -> None:
    block = order[place]
    last = counters[BLOCKS] - 1
    for at in range(place, last):
        order[at] = order[at + 1]
    order[last] = block
    counters[BLOCKS] = last


@inlined
def _enter(entries: Entries, labels: Array, key: int, slot: int) -> None:
    value = _value(labels, key)
    if entries.counters[BLOCKS] == 0:
        entries.counters[BLOCKS] = 1
        entries.sizes[entries.order[0]] = 0
    place = _block(entries, labels, value, slot)
    block = entries.order[place]
    if entries.sizes[block] == BLOCK:
        blocks = entries.counters[BLOCKS]
        fresh = entries.order[blocks]
        for at in range(blocks, place + 1, -1):
            entries.order[at] = entries.order[at - 1]
        entries.order[place + 1] = fresh
        entries.counters[BLOCKS] = blocks + 1
        # Ascending values, such as times, fill the last block before the next one begins.
        half = BLOCK - 8 if place + 1 == blocks else BLOCK // 2
        for at in range(half, BLOCK):
            entries.keys[fresh, at - half] = entries.keys[block, at]
            entries.slots[fresh, at - half] = entries.slots[block, at]
        entries.sizes[fresh] = BLOCK - half
        entries.sizes[block] = half
        if _place(entries, labels, block, value, slot) == half:
            block = fresh
    at = _place(entries, labels, block, value, slot)
    for move in range(entries.sizes[block], at, -1):
        entries.keys[block, move] = entries.keys[block, move - 1]
        entries.slots[block, move] = entries.slots[block, move - 1]
    entries.keys[block, at] = key
    entries.slots[block, at] = slot
    entries.sizes[block] += 1
    entries.counters[ENTRIES] += 1


@kernel
def change(entries: Entries, labels: Array, slot: int, key: int) -> int:
    """Set the key of a slot, MISSING to remove it; return the key before, or FULL_BLOCK."""
    at = find(entries.table_slots, slot)
    before = entries.table_keys[at] if at >= 0 else MISSING
    if before == key:
        return before
    if key != MISSING and entries.counters[BLOCKS] >= len(entries.order) - 1:
        return FULL_BLOCK
    if before != MISSING:
        _leave(entries, labels, before, slot)
        if key == MISSING:
            _forget(entries.table_slots, entries.table_keys, at)
            return before
    else:
        at = -1 - at
    entries.table_slots[at] = slot
    entries.table_keys[at] = key
    _enter(entries, labels, key, slot)
    return before


@kernel
def retable(old_slots: Array, old_keys: Array, table_slots: Array, table_keys: Array) -> None:
    """Copy a table into a larger or smaller one."""
    for at in range(len(old_slots)):
        if old_slots[at] != EMPTY:
            place = -1 - find(table_slots, old_slots[at])
            table_slots[place] = old_slots[at]
            table_keys[place] = old_keys[at]


@inlined
def _start(entries: Entries, labels: Array, low: int) -> tuple[int, int]:
    """Return the directory's place and the place in the block of the first value from `low` on."""
    place = _block(entries, labels, low, -1)
    at = _place(entries, labels, entries.order[place], low, -1)
    if at == entries.sizes[entries.order[place]]:
        return place + 1, 0
    return place, at


@kernel
def count(entries: Entries, labels: Array, lows: Array, highs: Array) -> int:
    """Count the entries with a value in any of some disjoint closed ranges."""
    total = 0
    for number in range(len(lows)):
        if entries.counters[BLOCKS] == 0 or lows[number] > highs[number]:
            continue
        place, at = _start(entries, labels, lows[number])
        if highs[number] == 2**63 - 1:
            last, end = entries.counters[BLOCKS], 0
        else:
            last, end = _start(entries, labels, highs[number] + 1)
        for between in range(place, last):
            total += entries.sizes[entries.order[between]]
        total += end - at
    return total


@kernel
def gather(entries: Entries, labels: Array, lows: Array, highs: Array, found: Array) -> int:
    """Copy the slots with a value in any of the ranges, by value; return how many there are."""
    total = 0
    if entries.counters[BLOCKS] == 0:
        return total
    for number in range(len(lows)):
        place, at = _start(entries, labels, lows[number])
        high = highs[number]
        while place < entries.counters[BLOCKS] and total < len(found):
            block = entries.order[place]
            size = entries.sizes[block]
            if _value(labels, entries.keys[block, size - 1]) <= high:  # the whole block
                stop = size
            else:
                stop = _place(entries, labels, block, high, 2**31 - 1)
            for here in range(at, stop):
                if total == len(found):
                    break
                found[total] = entries.slots[block, here]
                total += 1
            if stop < size:
                break
            place += 1
            at = 0
    return total


@kernel
def before(entries: Entries, value: int, found: Array) -> int:
    """Copy the slots of the last entries below a value, the nearest first; return how many."""
    total = 0
    if entries.counters[BLOCKS] == 0:
        return 0
    place = _block(entries, entries.keys[0, :0], value, -1)
    at = _place(entries, entries.keys[0, :0], entries.order[place], value, -1) - 1
    while total < len(found):
        if at < 0:
            place -= 1
            if place < 0:
                break
            at = entries.sizes[entries.order[place]] - 1
        found[total] = entries.slots[entries.order[place], at]
        total += 1
        at -= 1
    return total


@kernel
def in_ranges(
    entries: Entries, labels: Array, slots: Array, lows: Array, highs: Array, out: Array
) -> None:
    """Say of each slot whether its value lies in one of the ranges, which ascend."""
    for number in range(len(slots)):
        out[number] = False
        key = key_of(entries.table_slots, entries.table_keys, slots[number])
        if key == MISSING:
            continue
        value = _value(labels, key)
        low, high = 0, len(lows)
        while low < high:
            middle = (low + high) >> 1
            if lows[middle] <= value:
                low = middle + 1
            else:
                high = middle
        out[number] = low > 0 and value <= highs[low - 1]


@kernel
def keys_at(entries: Entries, slots: Array, out: Array) -> None:
    """Give the key of each slot, MISSING if it has none."""
    for number in range(len(slots)):
        out[number] = key_of(entries.table_slots, entries.table_keys, slots[number])


@kernel
def in_box(
    longitudes: Array,
    latitudes: Array,
    slots: Array,
    box: tuple[float, float, float, float],
    out: Array,
) -> None:
    """Say of each slot whether it has a point in a box, or on its border."""
    west, south, east, north = box
    for number in range(len(slots)):
        longitude, latitude = longitudes[slots[number]], latitudes[slots[number]]
        out[number] = west <= longitude <= east and south <= latitude <= north


@inlined
def _interleaved(bits: int) -> int:
    """Put a zero before every bit."""
    bits = (bits | bits << 16) & 0x0000FFFF0000FFFF
    bits = (bits | bits << 8) & 0x00FF00FF00FF00FF
    bits = (bits | bits << 4) & 0x0F0F0F0F0F0F0F0F
    bits = (bits | bits << 2) & 0x3333333333333333
    return (bits | bits << 1) & 0x5555555555555555


@kernel
def cover(
    west: int, south: int, east: int, north: int, level: int, lows: Array, highs: Array
) -> int:
    """Write ranges of Morton codes that contain a box of cells; return how many.

    Squares that the box cuts are quartered as long as the ranges have room, so what lies outside
    the box is a thin rim. The ranges ascend, and those that touch are joined.
    """
    room = len(lows)
    squares, finer = np.empty((room, 2), np.int64), np.empty((room, 2), np.int64)
    squares[0] = 0
    cut, whole = 1, 0
    while cut and level and whole + 4 * cut <= room:
        level -= 1
        size = 1 << level
        count = 0
        for number in range(cut):
            for quarter in range(4):
                left = squares[number, 0] + (quarter & 1) * size
                low = squares[number, 1] + (quarter >> 1) * size
                if left > east or left + size <= west or low > north or low + size <= south:
                    continue
                across = west <= left and left + size - 1 <= east
                if across and south <= low and low + size - 1 <= north:
                    lows[whole] = _interleaved(left) | _interleaved(low) << 1
                    highs[whole] = lows[whole] + (1 << 2 * level) - 1
                    whole += 1
                else:
                    finer[count, 0], finer[count, 1] = left, low
                    count += 1
        squares, finer = finer, squares
        cut = count
    for number in range(cut):
        lows[whole] = _interleaved(squares[number, 0]) | _interleaved(squares[number, 1]) << 1
        highs[whole] = lows[whole] + (1 << 2 * level) - 1
        whole += 1
    lows[:whole].sort()
    highs[:whole].sort()  # the ranges are disjoint, so both orders are the same
    joined = 0
    for number in range(1, whole):
        if highs[joined] + 1 == lows[number]:
            highs[joined] = highs[number]
        else:
            joined += 1
            lows[joined], highs[joined] = lows[number], highs[number]
    return joined + 1


NO_LABELS: Array = np.empty(0, np.int64)
TABLE_MIN = 8
BLOCKS_MIN = 2


class Column:
    """One property in one comparison."""

    def __init__(self, *, texts: bool = False) -> None:
        self.texts = texts
        self.entries = Entries(
            np.full(TABLE_MIN, EMPTY, np.int32),
            np.empty(TABLE_MIN, np.int64),
            np.empty((BLOCKS_MIN, BLOCK), np.int64),
            np.empty((BLOCKS_MIN, BLOCK), np.int32),
            np.zeros(BLOCKS_MIN, np.int32),
            np.arange(BLOCKS_MIN, dtype=np.int32),
            np.zeros(2, np.int64),
        )
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def set(self, slot: int, key: int, labels: Array) -> int:
        """Set the key of a slot, MISSING to remove it; return the key before."""
        if 2 * (self._size + 1) > len(self.entries.table_slots):
            self._resize_table(2 * len(self.entries.table_slots))
        was: int = change(self.entries, labels, slot, key)
        if was == FULL_BLOCK:
            self._grow_blocks()
            was = change(self.entries, labels, slot, key)
        self._size += (key != MISSING) - (was != MISSING)
        if key == MISSING and 16 * self._size < len(self.entries.table_slots) > TABLE_MIN:
            self._shrink()
        return was

    def _resize_table(self, size: int) -> None:
        slots, keys = np.full(size, EMPTY, np.int32), np.empty(size, np.int64)
        retable(self.entries.table_slots, self.entries.table_keys, slots, keys)
        self.entries = self.entries._replace(table_slots=slots, table_keys=keys)

    def _grow_blocks(self) -> None:
        entries, room = self.entries, len(self.entries.order)
        self.entries = entries._replace(
            keys=np.concatenate([entries.keys, np.empty_like(entries.keys)]),
            slots=np.concatenate([entries.slots, np.empty_like(entries.slots)]),
            sizes=np.concatenate([entries.sizes, np.zeros_like(entries.sizes)]),
            order=np.concatenate([entries.order, np.arange(room, 2 * room, dtype=np.int32)]),
        )

    def _shrink(self) -> None:
        """Give memory back when most of a column's contexts are gone."""
        self._resize_table(max(TABLE_MIN, len(self.entries.table_slots) // 4))
        entries = self.entries
        used = int(entries.counters[BLOCKS])
        room = max(BLOCKS_MIN, 2 * used)
        if 2 * room > len(entries.order):
            return
        blocks = entries.order[:room]
        self.entries = entries._replace(
            keys=entries.keys[blocks],
            slots=entries.slots[blocks],
            sizes=entries.sizes[blocks],
            order=np.arange(room, dtype=np.int32),
        )
