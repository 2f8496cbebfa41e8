"""The canonical text of a normal form: CQL2 that parses back to the same normal form."""

import re
from typing import Final

from roamcast.errors import InputError
from roamcast.model import time
from roamcast.model.caching import ByBytes
from roamcast.model.contexts import check_place
from roamcast.model.filters import shapes, syntax, temporal
from roamcast.model.filters.atoms import (
    T_D,
    T_R,
    All,
    Any,
    Box,
    Normal,
    Presence,
    Residual,
    Values,
)
from roamcast.model.filters.values import FULL, Interval, Kind, Scalar, inside_place
from roamcast.model.kinds import attribute_literal, literal, number, quoted

# `cql2` takes names that begin like a shape (pointempty) for shapes, so we quote them.
_PLAIN_NAME = re.compile(r"(?!(?i:multi|point|linestring|polygon|geometryc))[A-Za-z][A-Za-z0-9_]*")
_KEYWORDS = {
    *("and", "or", "not", "in", "like", "between", "is", "null", "true", "false", "div"),
    *("casei", "accenti", "date", "timestamp", "interval", "bbox"),
}


Written = tuple[str, int]
"""A text and how tightly it binds."""

EITHER: Final = 1
BOTH: Final = 2
TERM: Final = 3

WRITTEN_BYTES_MAX: Final = 8 << 20
"""Bytes of forms that are remembered: one is written once for every level above it."""

WEIGHT: Final = 16
"""Bytes of a form and its text for each character of the text."""

remembered: ByBytes[Normal, Written] = ByBytes(WRITTEN_BYTES_MAX)


def of(normal: Normal) -> str:
    """Return the canonical text of a normal form."""
    return _written(normal)[0]


def _written(normal: Normal) -> Written:
    known = remembered.get(normal)
    if known is None:
        known = _write(normal)
        remembered.put(normal, known, WEIGHT * len(known[0]))
    return known


def _write(normal: Normal) -> Written:
    match normal:
        case All(()):
            return "true", TERM
        case Any(()):
            return "false", TERM
        case All(parts):
            return " AND ".join(_inside(_written(part), BOTH) for part in parts), BOTH
        case Any(parts):
            return " OR ".join(_inside(_written(part), EITHER) for part in parts), EITHER
        case Presence(name, present):
            return f"{name_text(name)} IS {'NOT ' if present else ''}NULL", TERM
        case Box(west, south, east, north):
            numbers = ",".join(map(shapes.plain, (west, south, east, north)))
            return f"S_INTERSECTS(geometry, BBOX({numbers}))", TERM
        case Residual(expression, wanted):
            text = expression_text(expression)
            return (text if wanted else f"NOT ({text})"), TERM
        case Values():
            return _values(normal)


def _inside(written: Written, level: int) -> str:
    """Add parentheses unless the text binds more tightly than its surroundings."""
    text, own = written
    return text if own > level else f"({text})"


def _values(atom: Values) -> Written:
    name, kind, intervals = name_text(atom.property), atom.kind, atom.intervals
    if atom.property in (T_R, T_D):
        stretches = [_lifetime(atom.property, interval) for interval in intervals]
        return " OR ".join(stretches), EITHER if len(stretches) > 1 else TERM
    if atom.property == "place":
        path = _place_of(atom)
        if path is not None:
            return f"within(place, {quoted(path)})", TERM
    if intervals == FULL:  # any value of this kind; CQL2 has no shorter form
        zero = literal(0, kind)
        return f"{name} <= {zero} OR {name} >= {zero}", EITHER
    points = [i.low for i in intervals if i.low is not None and i.low == i.high]
    parts: list[Written] = []
    if len(points) == 1:
        parts.append((f"{name} = {literal(points[0], kind)}", TERM))
    elif points:
        listed = ", ".join(literal(value, kind) for value in points)
        parts.append((f"{name} IN ({listed})", TERM))
    parts += [_range(name, kind, i) for i in intervals if i.low is None or i.low != i.high]
    if len(parts) == 1:
        return parts[0]
    return " OR ".join(_inside(part, EITHER) for part in parts), EITHER


def _range(name: str, kind: Kind, interval: Interval) -> Written:
    low, high = interval.low, interval.high
    if low is not None and high is not None and interval.low_closed and interval.high_closed:
        return f"{name} BETWEEN {literal(low, kind)} AND {literal(high, kind)}", TERM
    parts = []
    if low is not None:
        parts.append(f"{name} {'>=' if interval.low_closed else '>'} {literal(low, kind)}")
    if high is not None:
        parts.append(f"{name} {'<=' if interval.high_closed else '<'} {literal(high, kind)}")
    return " AND ".join(parts), TERM if len(parts) == 1 else BOTH


def _lifetime(end: str, interval: Interval) -> str:
    predicate = "start_by" if end == T_R else "end_by"
    low, high = interval.low, interval.high
    if low is not None and low == time.LATEST + 1:  # only open contexts
        return f"NOT end_by(time, INTERVAL('..','{time.format_instant(time.LATEST)}'))"
    return f"{predicate}(time, INTERVAL('{_moment(low)}','{_moment(high)}'))"


def _moment(value: Scalar | None) -> str:
    if value is None:
        return ".."
    assert isinstance(value, int)
    return time.format_instant(value)


def _place_of(atom: Values) -> str | None:
    """Return the path if the set is a place and everything within it, else None."""
    path = atom.intervals[0].low
    if not isinstance(path, str) or atom.intervals != inside_place(path):
        return None
    try:
        return check_place(path)
    except InputError:
        return None


def is_plain_name(name: str) -> bool:
    """Whether a property's name needs no quotes."""
    return _PLAIN_NAME.fullmatch(name) is not None and name.lower() not in _KEYWORDS


def name_text(name: str) -> str:
    """Format a property's name, in quotes unless it is a plain word."""
    if is_plain_name(name):
        return name
    return '"' + name.replace('"', '""') + '"'


def expression_text(expression: syntax.Expression) -> str:
    """Format the predicate of a residual."""
    match expression:
        case syntax.Comparison(op, left, right):
            return f"{operand_text(left)} {op} {operand_text(right)}"
        case syntax.In(operand, options):
            listed = ", ".join(operand_text(option) for option in options)
            return f"{operand_text(operand)} IN ({listed})"
        case syntax.Like(operand, pattern):
            return f"{operand_text(operand)} LIKE {quoted(pattern)}"
        case syntax.Near(longitude, latitude, metres):
            centre = f"POINT({shapes.plain(longitude)} {shapes.plain(latitude)})"
            return f"near(geometry, {centre}, {number(metres)})"
        case syntax.Spatial(op, shape, point_first):
            pair = ["geometry", shapes.text(shape)]
            pair = pair if point_first else pair[::-1]
            return f"{op.upper()}({', '.join(pair)})"
        case syntax.Temporal(op, left, right):
            name = temporal.SPELLINGS.get(op, op)
            return f"{name}({operand_text(left)}, {operand_text(right)})"
        case _:
            raise AssertionError(f"{type(expression).__name__} never stands in a residual")


def operand_text(operand: syntax.Operand | syntax.Lifetime | syntax.SpanOf) -> str:
    """Format an operand; calculations get parentheses."""
    match operand:
        case syntax.Property(name):
            return name_text(name)
        case syntax.Constant(value):
            return attribute_literal(value)
        case syntax.Lifetime():
            return "time"
        case syntax.Span(start, end):
            return _span(start, end)
        case syntax.SpanOf(start, end):
            return f"INTERVAL({_span_end(start)}, {_span_end(end)})"
        case syntax.Arithmetic(op, left, right):
            return f"({operand_text(left)} {op} {operand_text(right)})"
        case syntax.Folded(name, inner):
            return f"{name}({operand_text(inner)})"


def _span(start: int, end: int) -> str:
    if start == end:
        return f"TIMESTAMP('{time.format_instant(start)}')"
    low = ".." if start == syntax.BEGINNING else time.format_instant(start)
    high = ".." if end == time.FOREVER else time.format_instant(end)
    return f"INTERVAL('{low}','{high}')"


def _span_end(operand: syntax.Property | syntax.Span) -> str:
    if isinstance(operand, syntax.Property):
        return name_text(operand.name)
    if operand.start in (syntax.BEGINNING, time.FOREVER):
        return "'..'"
    return quoted(time.format_instant(operand.start))
