"""The plan of a lookup: what messages need of a context, and which files can hold it.

Each conjunction of a message's filter becomes one need: ranges of times and a box, which the scan
of a file decides, rules that exclude whole files by their places and attributes, and checks of what
is left (`lookup.checks`). Ranges and rules may be too wide and are never too narrow.
`archive.bounds` compares needs with files.
"""

import typing
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from roamcast.model.filters import Filter, syntax
from roamcast.model.filters import values as sets
from roamcast.model.filters.atoms import (
    T_D,
    T_R,
    All,
    Any,
    Box,
    Conjunction,
    Normal,
    Presence,
    Residual,
    Values,
)
from roamcast.model.filters.values import Intervals
from roamcast.model.time import FOREVER
from roamcast.pipeline.archive.bounds import FIRST, AskedColumns, FileBounds, Hull, Rule
from roamcast.pipeline.archive.layout import Array
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.lookup.checks import Checks

EVERYWHERE = (-np.inf, np.inf, -np.inf, np.inf)
ALWAYS = (FIRST, FOREVER)
_MOMENTS = {T_R, T_D}
_JOINED = {All, Any}


class Needs:
    """The needs of many messages as arrays, one entry per conjunction."""

    def __init__(self, messages: Sequence[Filter]) -> None:
        self.checks = Checks()
        self._times: list[tuple[int, int, int, int]] = []
        self._boxes: list[tuple[float, float, float, float] | None] = []
        self._rules: dict[Rule, int] = {}
        rules: list[list[int]] = []
        owners: list[int] = []
        for owner, message in enumerate(messages):
            for conjunction, rest in _alternatives(message):
                rules.append(self._add(len(owners), conjunction, rest))
                owners.append(owner)
        self.count = len(owners)
        self.messages: Array = np.array(owners, np.int32)
        self.times: Array = np.array(self._times, np.int64).reshape(-1, 4)
        """t_r from, t_r to, t_d from, t_d to."""
        self.boxed: Array = np.array([box is not None for box in self._boxes], bool)
        self.boxes: Array = np.array([box or EVERYWHERE for box in self._boxes]).reshape(-1, 4)
        """West, east, south, north; only where `boxed`."""
        self.rules: list[Rule] = list(self._rules)
        """Distinct rules that exclude files by places and attributes."""
        width = max(map(len, rules), default=0)
        self.ruled: Array = np.full((self.count, width), -1, np.int32)
        """By need the numbers of its rules; -1: no more."""
        for need, some in enumerate(rules):
            self.ruled[need, : len(some)] = some
        self.checks.finish(self.count)
        del self._times, self._boxes, self._rules

    def _add(self, need: int, conjunction: Conjunction, rest: Normal | None) -> list[int]:
        """Note one conjunction; give the numbers of its rules."""
        starts = ends = ALWAYS
        box: tuple[float, float, float, float] | None = None
        rules: list[int] = []
        for atom in conjunction:  # no patterns: they cost several times that, for each message
            if isinstance(atom, Box):
                box = _common(box, atom)
                continue
            if isinstance(atom, Values) and atom.property in _MOMENTS:
                if atom.property == T_R:
                    starts = _narrowed(starts, atom.intervals)
                else:
                    ends = _narrowed(ends, atom.intervals)
                if len(atom.intervals) < 2:
                    continue
            elif isinstance(atom, Residual):
                if atom.envelope is not None:
                    box = _common(box, atom.envelope)
            else:
                rule = _rule(atom)
                if rule is not None:
                    rules.append(self._rules.setdefault(rule, len(self._rules)))
            self.checks.add(need, atom)
        if rest is not None:
            self.checks.add(need, rest)
        self._times.append((*starts, *ends))
        self._boxes.append(box)
        return rules


def _alternatives(message: Filter) -> list[tuple[Conjunction, Normal | None]]:
    """Split a filter into conjunctions, each with what must be checked beside its atoms.

    If they are too many, one is left: what must hold in any case, and the whole filter to check.
    """
    normal = message.normal
    parts = normal.parts if isinstance(normal, All) else (normal,)
    if _JOINED.isdisjoint(map(type, parts)):  # one conjunction, as most are: it is merged already
        return [(parts, None)]  # type: ignore[list-item] # all of them are atoms
    atoms = tuple(part for part in parts if isinstance(part, Values | Presence | Box | Residual))
    found = message.conjunctions()
    return [(atoms, normal)] if found is None else [(one, None) for one in found]


def _rule(atom: Normal) -> Rule | None:
    """Give what an atom demands of a file's places or attributes."""
    if not isinstance(atom, Values) or atom.property == "vid":
        return None
    if atom.property != "place":
        return AskedColumns(atom.property, atom.kind, *hull(atom.intervals))
    # A place may also be compared as a moment; only texts have an order here.
    return tuple((i.low, i.high) for i in atom.intervals) if atom.kind == "string" else None


def hull(intervals: Intervals) -> Hull:
    """Return the ends of a set of values; those of an empty set are inverted."""
    if not intervals:
        return FOREVER, FIRST
    return intervals[0].low, intervals[-1].high


def _narrowed(span: tuple[int, int], intervals: Intervals) -> tuple[int, int]:
    """Give the part of a span of moments that a set of moments may lie in."""
    first, last = span
    low, high = hull(intervals)
    if low is not None:
        first = max(first, int(low))
    if high is not None:
        last = min(last, int(high))
    return first, last


def _common(
    box: tuple[float, float, float, float] | None, other: Box
) -> tuple[float, float, float, float]:
    west, east, south, north = box or EVERYWHERE
    return (
        max(west, other.west),
        min(east, other.east),
        max(south, other.south),
        min(north, other.north),
    )


def properties(messages: Sequence[Filter]) -> list[str]:
    """Name the properties that the messages speak of, whose columns must be read."""
    names: dict[str, None] = {}
    for message in messages:
        names |= dict.fromkeys(named(message.normal))
    return sorted(names)


def named(node: Normal | typing.Any) -> Iterator[str]:
    """Name the properties of which a part of a normal form speaks."""
    match node:
        case Values(name) | Presence(name) | syntax.Property(name) | syntax.IsNull(name):
            yield name
        case syntax.Within():
            yield "place"
        case tuple():
            for part in node:
                yield from named(part)
        case msgspec.Struct() if not isinstance(node, sets.Interval):
            for field in node.__struct_fields__:
                yield from named(getattr(node, field))
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
