"""Witnesses: sample contexts that satisfy a filter, found from its normal form.

What covers a filter holds of its witnesses, so an index that matches contexts names the filters
that can cover it. There are two, from opposite ends of every range: whatever covers a range holds
of both ends, and few other filters do.
"""

import math

import msgspec

from roamcast.model import time
from roamcast.model.contexts import Attribute, Context
from roamcast.model.filters import Filter, syntax
from roamcast.model.filters.atoms import (
    T_D,
    T_R,
    Atom,
    Box,
    Conjunction,
    Presence,
    Residual,
    Values,
)
from roamcast.model.filters.evaluate import geometry
from roamcast.model.filters.values import Interval, Intervals, Kind

Witnesses = tuple[Context, Context]

_LAST = "~"
"""A character after those of most names; a path may end with it."""

_FILLER = "x"


def witnesses(wanted: Filter, vid: str) -> Witnesses | None:
    """Give two contexts that satisfy the filter, from both ends of its ranges; None if not found.

    They have this vid, unless the filter asks for another.
    """
    conjunctions = wanted.conjunctions()
    if not conjunctions:
        return None
    made = [_made(conjunctions[0], vid, high=high) for high in (False, True)]
    good = [context for context in made if wanted.matches(context)]
    return (good[0], good[-1]) if good else None


class _Sketch(msgspec.Struct):
    """A context in the making."""

    attributes: dict[str, Attribute]
    texts: dict[str, str]
    """Of vid and place."""
    ends: dict[str, int]
    point: tuple[float, float] | None = None

    def text(self, name: str, value: str) -> None:
        if name in ("place", "vid"):
            self.texts[name] = value
        else:
            self.attributes[name] = value

    def take(self, atom: Atom, *, high: bool) -> None:
        match atom:
            case Values("t_r" | "t_d" as name, kind, intervals) if intervals:
                moment = _end(intervals, kind, high=high)
                assert isinstance(moment, int)
                self.ends[name] = moment
            case Values(name, "string", intervals) if intervals:
                self.text(name, _text(intervals[-1 if high else 0], high=high))
            case Values(name, kind, intervals) if intervals:
                self.attributes[name] = _attribute(_end(intervals, kind, high=high), kind)
            case Box(west, south, east, north):
                self.point = (east, north) if high else (west, south)
            case Residual(syntax.Near(longitude, latitude), True):
                self.point = self.point or (longitude, latitude)
            case Residual(syntax.Spatial(_, shape, _), True):
                inside = geometry(shape).point_on_surface()
                self.point = self.point or (float(inside.x), float(inside.y))
            case Residual(syntax.Like(syntax.Property(name), pattern), True):
                self.text(name, _matching(pattern))

    def fill(self, name: str) -> None:
        """Have a value for a property, whichever."""
        if name == "geometry":
            self.point = self.point or (0.0, 0.0)
        elif name not in self.attributes and name not in self.texts:
            self.text(name, _FILLER)

    def context(self) -> Context:
        begin, end = self.ends.get(T_R), self.ends.get(T_D)
        if begin is None:
            begin = 0 if end is None else min(0, end)
        end = None if end is None or end > time.LATEST else max(begin, end)
        texts = self.texts
        return Context(texts["vid"], texts.get("place"), self.point, self.attributes, begin, end)


def _made(conjunction: Conjunction, vid: str, *, high: bool) -> Context:
    sketch = _Sketch({}, {"vid": vid}, {})
    for atom in conjunction:
        sketch.take(atom, high=high)
    for atom in conjunction:
        if isinstance(atom, Presence) and atom.present:
            sketch.fill(atom.property)
    return sketch.context()


def _end(intervals: Intervals, kind: Kind, *, high: bool) -> int | float:
    """Give the lowest or the highest value of a set; where it has none, one far out."""
    interval = intervals[-1 if high else 0]
    bound = interval.high if high else interval.low
    closed = interval.high_closed if high else interval.low_closed
    assert not isinstance(bound, str)
    if bound is None:
        if kind == "instant":
            return time.FOREVER if high else time.EARLIEST
        return 1e300 if high else -1e300
    if closed:
        return bound
    return math.nextafter(bound, -math.inf if high else math.inf)


def _text(interval: Interval, *, high: bool) -> str:
    low = interval.low if isinstance(interval.low, str) else ""
    tried = [low + _LAST, low] if high else [low, low + _LAST]
    if high and isinstance(interval.high, str):
        tried.insert(0, interval.high)
    return next((text for text in tried if text in interval), low)


def _attribute(value: float, kind: Kind) -> Attribute:
    if kind == "boolean":
        return bool(value)
    if kind == "instant":
        assert isinstance(value, int)
        return time.to_datetime(min(value, time.LATEST))
    return value


def _matching(pattern: str) -> str:
    """Give a text that matches a LIKE pattern."""
    out, quoted = [], False
    for character in pattern:
        if not quoted and character == "\\":
            quoted = True
            continue
        if quoted or character not in "%_":
            out.append(character)
        elif character == "_":
            out.append(_FILLER)
        quoted = False
    return "".join(out)
