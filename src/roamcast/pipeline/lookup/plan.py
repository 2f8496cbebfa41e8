"""The plan of a lookup: what messages need of a context, and which files can hold it.

Each conjunction of a message's filter becomes one need: ranges of times, a box, places and
attributes that hold whatever it accepts. Needs only rule out; the matching kernel decides on what
remains, so a need may be too wide and is never too narrow. `archive.bounds` compares needs with
files.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from roamcast.model.filters import Filter, syntax
from roamcast.model.filters import values as sets
from roamcast.model.filters.atoms import All, Box, Conjunction, Normal, Presence, Residual, Values
from roamcast.model.filters.lasting import lifetime
from roamcast.model.filters.values import Intervals
from roamcast.model.time import FOREVER
from roamcast.pipeline.archive.bounds import FIRST, AskedColumns, FileBounds, Hull
from roamcast.pipeline.archive.layout import Array
from roamcast.pipeline.archive.table import Archive


class Needs:
    """The needs of many messages as arrays, one entry per conjunction."""

    def __init__(self, messages: Sequence[Filter]) -> None:
        found = [
            (number, conjunction)
            for number, message in enumerate(messages)
            for conjunction in _alternatives(message)
        ]
        self.count = len(found)
        self.messages: Array = np.array([number for number, _ in found], np.int64)
        times = [_times(conjunction) for _, conjunction in found]
        self.times: Array = np.array(times, np.int64).reshape(-1, 4)
        """t_r from, t_r to, t_d from, t_d to."""
        boxes = [_box(conjunction) for _, conjunction in found]
        self.boxed: Array = np.array([box is not None for box in boxes], bool)
        everywhere = (-np.inf, np.inf, -np.inf, np.inf)
        self.boxes: Array = np.array([box or everywhere for box in boxes]).reshape(-1, 4)
        """West, east, south, north; only where `boxed`."""
        self.places: dict[int, tuple[Hull, ...]] = {}
        self.asked: dict[int, tuple[AskedColumns, ...]] = {}
        for number, (_, conjunction) in enumerate(found):
            self._note_texts(number, conjunction)

    def _note_texts(self, number: int, conjunction: Conjunction) -> None:
        asked = []
        for atom in conjunction:
            if not isinstance(atom, Values) or atom.property in {"t_r", "t_d", "vid"}:
                continue
            if atom.property == "place":
                # A place may also be compared as a moment; only texts have an order here.
                if atom.kind == "string":
                    self.places[number] = tuple((i.low, i.high) for i in atom.intervals)
                continue
            low, high = hull(atom.intervals)
            asked.append(AskedColumns(atom.property, atom.kind, low, high))
        if asked:
            self.asked[number] = tuple(asked)


def _alternatives(message: Filter) -> list[Conjunction]:
    """Split a filter into conjunctions; if they are too many, keep what must hold in any case."""
    normal = message.normal
    parts = normal.parts if isinstance(normal, All) else (normal,)
    atoms = tuple(part for part in parts if isinstance(part, Values | Presence | Box | Residual))
    if len(atoms) == len(parts):  # one conjunction, as most messages are: it is merged already
        return [atoms]
    found = message.conjunctions()
    return [atoms] if found is None else found


def _times(conjunction: Conjunction) -> tuple[int, int, int, int]:
    starts, ends = (hull(intervals) for intervals in lifetime(conjunction))
    return (*_whole(starts), *_whole(ends))


def hull(intervals: Intervals) -> Hull:
    """Return the ends of a set of values; those of an empty set are inverted."""
    if not intervals:
        return FOREVER, FIRST
    return intervals[0].low, intervals[-1].high


def _whole(ends: Hull) -> tuple[int, int]:
    low = FIRST if ends[0] is None else max(FIRST, int(ends[0]))
    high = FOREVER if ends[1] is None else min(FOREVER, int(ends[1]))
    return low, high


def _box(conjunction: Conjunction) -> tuple[float, float, float, float] | None:
    west, east, south, north = -np.inf, np.inf, -np.inf, np.inf
    boxed = False
    for atom in conjunction:
        box = atom.envelope if isinstance(atom, Residual) else atom
        if isinstance(box, Box):
            boxed = True
            west, east = max(west, box.west), min(east, box.east)
            south, north = max(south, box.south), min(north, box.north)
    return (west, east, south, north) if boxed else None


def properties(messages: Sequence[Filter]) -> list[str]:
    """Name the properties that the messages speak of, whose columns must be read."""
    names: dict[str, None] = {}
    for message in messages:
        names |= dict.fromkeys(_names(message.normal))
    return sorted(names)


def _names(node: Normal | Any) -> Iterator[str]:
    match node:
        case Values(name) | Presence(name) | syntax.Property(name) | syntax.IsNull(name):
            yield name
        case syntax.Within():
            yield "place"
        case tuple():
            for part in node:
                yield from _names(part)
        case msgspec.Struct() if not isinstance(node, sets.Interval):
            for field in node.__struct_fields__:
                yield from _names(getattr(node, field))
        case _:
            return


class Share(msgspec.Struct, frozen=True):
    """One file to read and the needs that it may satisfy."""

    path: str
    rows: int
    needs: Array


class Statistics:
    """Statistics from the table's log, built once per snapshot."""

    def __init__(self, archive: Archive) -> None:
        self.version = archive.version
        files = archive.files()
        self.paths: list[str] = files["path"].to_pylist()
        self.bounds = FileBounds(files)


def plan(statistics: Statistics, needs: Needs) -> list[Share]:
    """Give the files to read, each with the needs that it may satisfy."""
    which, files = statistics.bounds.pairs(needs)
    order = np.lexsort([which, files])
    which, files = which[order], files[order]
    distinct, starts = np.unique(files, return_index=True)
    ends = np.append(starts, len(files))[1:]
    rows = statistics.bounds.rows
    return [
        Share(statistics.paths[file], int(rows[file]), which[start:end].astype(np.int32))
        for file, start, end in zip(distinct.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]
