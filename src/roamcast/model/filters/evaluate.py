"""The reference evaluator: an expression over a context gives True, False or None (unknown).

A missing attribute, or values of different kinds, makes a comparison unknown. This module defines
the meaning of filters; property tests compare every other back end with it.
"""

import math
import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import shapely

from roamcast.model.caching import remembering
from roamcast.model.contexts import Context
from roamcast.model.earth import distance_metres
from roamcast.model.filters import syntax, temporal
from roamcast.model.kinds import kind_of, scalar

REMEMBERED_BYTES: Final = 8 << 20
"""Compiled patterns are remembered up to so many bytes, and prepared shapes, too."""

Ternary = bool | None
Moments = tuple[int, int]
"""A time span as a value; an instant has equal ends."""


def evaluate(expression: syntax.Expression, context: Context) -> Ternary:
    """Evaluate the expression over the context."""
    return _MEANINGS[type(expression)](expression, context)


def _truth(expression: syntax.Truth, _: Context) -> Ternary:
    return expression.value


def _and(expression: syntax.And, context: Context) -> Ternary:
    return _all(evaluate(part, context) for part in expression.parts)


def _or(expression: syntax.Or, context: Context) -> Ternary:
    return _not(_all(_not(evaluate(part, context)) for part in expression.parts))


def _negation(expression: syntax.Not, context: Context) -> Ternary:
    return _not(evaluate(expression.part, context))


def _comparison(expression: syntax.Comparison, context: Context) -> Ternary:
    left, right = _value(expression.left, context), _value(expression.right, context)
    return _compare(expression.op, left, right)


def _in(expression: syntax.In, context: Context) -> Ternary:
    value = _value(expression.operand, context)
    return _not(_all(_compare("<>", value, _value(o, context)) for o in expression.options))


def _like(expression: syntax.Like, context: Context) -> Ternary:
    value = _value(expression.operand, context)
    return bool(like(expression.pattern).fullmatch(value)) if isinstance(value, str) else None


def _is_null(expression: syntax.IsNull, context: Context) -> Ternary:
    return not _present(expression.name, context)


def _within(expression: syntax.Within, context: Context) -> Ternary:
    place, path = context.place, expression.path
    return None if place is None else place == path or place.startswith(path + "/")


def _near(expression: syntax.Near, context: Context) -> Ternary:
    if context.point is None:
        return None
    centre = (expression.longitude, expression.latitude)
    return distance_metres(context.point, centre) <= expression.metres


def _spatial(expression: syntax.Spatial, context: Context) -> Ternary:
    if context.point is None:
        return None
    point, other = _point(context.point), geometry(expression.shape)
    left, right = (point, other) if expression.point_first else (other, point)
    return bool(getattr(left, expression.op.removeprefix("s_"))(right))


def _temporal(expression: syntax.Temporal, context: Context) -> Ternary:
    a, b = stretch(expression.left, context), stretch(expression.right, context)
    return None if a is None or b is None else temporal.related(expression.op, a, b)


def _time_predicate(expression: syntax.TimePredicate, context: Context) -> Ternary:
    return temporal.lived(expression, context.t_r, context.end)


# A table by type, because every `case` of a `match` costs an isinstance, and this is a hot path.
_MEANINGS: dict[type[syntax.Expression], Callable[[Any, Context], Ternary]] = {
    syntax.Truth: _truth,
    syntax.And: _and,
    syntax.Or: _or,
    syntax.Not: _negation,
    syntax.Comparison: _comparison,
    syntax.In: _in,
    syntax.Like: _like,
    syntax.IsNull: _is_null,
    syntax.Within: _within,
    syntax.Near: _near,
    syntax.Spatial: _spatial,
    syntax.Temporal: _temporal,
    syntax.TimePredicate: _time_predicate,
}


def _all(values: Any) -> Ternary:
    """Kleene's conjunction."""
    result: Ternary = True
    for value in values:
        if value is False:
            return False
        if value is None:
            result = None
    return result


def _not(value: Ternary) -> Ternary:
    return None if value is None else not value


def _value(operand: syntax.Operand, context: Context) -> Any:
    """Return the operand's value: str, int, float, bool, datetime, Moments, or None for unknown."""
    match operand:
        case syntax.Property("place"):
            return context.place
        case syntax.Property("vid"):
            return context.vid
        case syntax.Property(name):
            return context.attributes.get(name)
        case syntax.Constant(value):
            return value
        case syntax.Span(start, end):
            return (start, end)
        case syntax.Arithmetic(op, left, right):
            return _calculate(op, _value(left, context), _value(right, context))
        case syntax.Folded(name, inner):
            value = _value(inner, context)
            return fold(name, value) if isinstance(value, str) else None


def _compare(op: str, left: Any, right: Any) -> Ternary:
    if isinstance(left, tuple) or isinstance(right, tuple):
        return _compare_moments(op, moments(left), moments(right))
    first, second = kind_of(left), kind_of(right)
    if first is None or second is None or first.compared != second.compared:
        return None
    left, right = first.scalar(left), second.scalar(right)
    if op == "=":
        return bool(left == right)
    if op == "<>":
        return bool(left != right)
    if op == "<" or op == "<=":
        return bool(left < right or (op == "<=" and left == right))
    return bool(left > right or (op == ">=" and left == right))


def _compare_moments(op: str, left: Moments | None, right: Moments | None) -> Ternary:
    """Compare spans. A day equals every instant in it and is after all earlier ones (0004)."""
    if left is None or right is None:
        return None
    earlier, later = left[1] < right[0], left[0] > right[1]
    answers = {
        "=": not earlier and not later,
        "<>": earlier or later,
        "<": earlier,
        ">": later,
        "<=": not later,
        ">=": not earlier,
    }
    return answers[op]


def moments(value: Any) -> Moments | None:
    """Return a value as a time span, None if it is not one; a string may be a timestamp (0004)."""
    if isinstance(value, tuple):
        return (value[0], value[1])
    instant = scalar(value, "instant")
    assert instant is None or isinstance(instant, int)
    return None if instant is None else (instant, instant)


def stretch(
    operand: syntax.Lifetime | syntax.Property | syntax.Span | syntax.SpanOf, context: Context
) -> Moments | None:
    """Return the operand of a temporal relation as a time span, None if unknown."""
    if isinstance(operand, syntax.Lifetime):
        return (context.t_r, context.end)
    if isinstance(operand, syntax.SpanOf):
        start = moments(_value(operand.start, context))
        end = moments(_value(operand.end, context))
        return None if start is None or end is None else (start[0], end[1])
    return moments(_value(operand, context))


def _calculate(op: str, left: Any, right: Any) -> float | None:
    """Calculate in float64, as every back end does; what has no finite result is unknown."""
    left, right = scalar(left, "number"), scalar(right, "number")
    if left is None or right is None:
        return None
    a, b = float(left), float(right)
    try:
        match op:
            case "+":
                result = a + b
            case "-":
                result = a - b
            case "*":
                result = a * b
            case "/":
                result = a / b
            case "%":
                result = math.fmod(a, b)
            case "div":
                result = float(math.trunc(a / b))
            case _:
                result = math.pow(a, b)
    except (ZeroDivisionError, OverflowError, ValueError):
        return None
    return result if math.isfinite(result) else None


def _present(name: str, context: Context) -> bool:
    if name == "geometry":
        return context.point is not None
    if name == "place":
        return context.place is not None
    return name == "vid" or name in context.attributes


def fold(name: str, text: str) -> str:
    """Remove the case (casei) or the accents (accenti) of a text (OGC 21-065r2, clauses 7.3, 7.4).

    Case goes by Unicode's full folding: ß equals ss, and a final sigma any other. What is left
    without accents is composed again, so that `_` of LIKE still counts a Hangul syllable as one.
    """
    if name == "casei":
        return text.casefold()
    parts = unicodedata.normalize("NFD", text)
    bare = "".join(part for part in parts if unicodedata.category(part) != "Mn")
    return unicodedata.normalize("NFC", bare)


@remembering(REMEMBERED_BYTES, each=128)
def like(pattern: str) -> re.Pattern[str]:
    """Compile a LIKE pattern.

    Between two % the leftmost place that fits is as good as any, so what was found is never tried
    again (an atomic group): the work stays linear in the text where `.*` would be exponential.
    """
    runs, escaped = [[""]], False
    for character in pattern:
        if escaped or character not in "%_\\":
            runs[-1].append(re.escape(character))
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "_":
            runs[-1].append(".")
        elif runs[-1] != [""] or len(runs) == 1:
            runs.append([""])
    if escaped:  # a lone backslash at the end stands for itself
        runs[-1].append(re.escape("\\"))
    first, *between = ("".join(run) for run in runs)
    if not between:
        return re.compile(first, re.DOTALL)
    middle = "".join(f"(?>.*?{run})" for run in between[:-1])
    return re.compile(f"{first}{middle}.*{between[-1]}", re.DOTALL)


@remembering(REMEMBERED_BYTES, each=16)
def geometry(wkb: bytes) -> Any:
    """Return the shape, prepared for many questions."""
    shape = shapely.from_wkb(wkb)
    shapely.prepare(shape)
    return shape


@lru_cache(maxsize=4096)  # one context is held against many filters
def _point(point: tuple[float, float]) -> shapely.Point:
    return shapely.Point(point)
