"""Parsing of filters: `cql2` reads text or JSON, and this module validates every construct.

The result is the tree of `syntax`. An error names the position of the mistake (decision 0003).
"""

import math
from collections.abc import Callable
from typing import Any, cast

import cql2
import msgspec

from roamcast.errors import FilterError, InputError, LimitError
from roamcast.model import time
from roamcast.model.contexts import RESERVED, check_place
from roamcast.model.filters import hints, pieces, scan, shapes, syntax
from roamcast.model.filters.evaluate import fold
from roamcast.model.filters.temporal import RELATIONS
from roamcast.model.kinds import is_finite

_COMPARATORS = ("=", "<>", "<", "<=", ">", ">=")
_ARITHMETIC = ("+", "-", "*", "/", "%", "^", "div")
_PREDICATES = ("within", "near", *syntax.SPATIAL, *RELATIONS, *syntax.PREDICATES)
_FUNCTIONS = ("casei", "accenti", "timestamp", "date", "interval")
DEPTH_MAX = 48
"""Maximum nesting of operators; a chain of arithmetic counts each of its operators."""

SHAPE_JSON_DEPTH = 8
"""Nesting that a shape's coordinates add below the innermost operator."""

PATTERN_LENGTH_MAX = 1_024
"""Matching costs up to the pattern's length times the text's."""

TOLERANCE_SECONDS_MAX = 10_000 * 366 * 86_400


def parse_text(text: str) -> syntax.Expression:
    """Parse CQL2 text; an error names the position, in characters from 1."""
    if not text.strip():
        raise FilterError("the filter is empty; to match everything, write: true", position=1)
    builder = _Builder()
    try:
        return builder.build(pieces.parse(text, scan.check_text(text)))
    except InputError as error:
        if error.position is None:
            error.position = scan.position_of(text, builder.visited)
        elif error.problem.startswith(scan.NOT_CQL2):
            error.problem += hints.advice(text, error.position)
        raise


def parse_json(source: Any) -> syntax.Expression:
    """Parse CQL2 JSON that is already decoded."""
    _check_tree(source)
    try:
        text = msgspec.json.encode(source).decode()
        scan.check_length(text)
        tree = cql2.parse_json(text).to_json()
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - `cql2` also raises bare Exceptions
        raise FilterError(f"not CQL2 JSON: {str(error)[:200]}") from None
    return _Builder().build(tree)


def _check_tree(tree: Any, depth: int = 0) -> None:
    if depth > 2 * DEPTH_MAX + SHAPE_JSON_DEPTH:  # an operator is an object that holds a list
        raise LimitError(f"nested deeper than {DEPTH_MAX}")
    if isinstance(tree, dict | list):
        for part in tree.values() if isinstance(tree, dict) else tree:
            _check_tree(part, depth + 1)
    elif isinstance(tree, int) and not isinstance(tree, bool):
        scan.check_number(str(abs(tree)) if tree.bit_length() < 1100 else "1" * 400)
    elif isinstance(tree, str):
        scan.check_length(tree)


class _Builder:
    """Builds one expression; tracks its terms, its depth and the constructs visited so far."""

    def __init__(self) -> None:
        self.visited: list[str] = []
        self._terms = 0
        self._depth = 0

    def build(self, tree: Any) -> syntax.Expression:
        """Convert a decoded CQL2 JSON predicate to an expression."""
        if isinstance(tree, bool):
            return syntax.Truth(tree)
        if isinstance(tree, dict) and tree.keys() == {"property"}:
            return syntax.Comparison("=", self._property(tree["property"]), syntax.Constant(True))
        if not isinstance(tree, dict) or "op" not in tree:
            raise FilterError(f"a filter is true or false; {_shown(tree)} is a value")
        op, args = str(tree["op"]), tree.get("args", [])
        name = op.lower()
        self._enter(name)
        if name in {"and", "or"}:
            parts = tuple(self.build(part) for part in self._flat(name, args))
            built: syntax.Expression = syntax.And(parts) if name == "and" else syntax.Or(parts)
        elif name == "not":
            built = syntax.Not(self.build(self._many(op, args, 1, 1)[0]))
        else:
            self._count(1)
            builder = self._builder_of(name)
            if builder is None:
                raise FilterError(f"{op[:60]} is not supported{hints.meant(op, _PREDICATES)}")
            built = builder(name, args)
        self._depth -= 1
        return built

    def _flat(self, name: str, args: Any) -> list[Any]:
        """Return the parts of an AND or OR, with nested ones of the same operator flattened."""
        parts = []
        for part in self._many(name, args, 2):
            inner = part.get("op") if isinstance(part, dict) else None
            same = isinstance(inner, str) and inner.lower() == name
            parts += self._flat(name, part.get("args")) if same else [part]
        return parts

    def _enter(self, construct: str) -> None:
        self.visited.append(construct)
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise LimitError(f"nested deeper than {DEPTH_MAX}")

    def _builder_of(self, name: str) -> Callable[[str, list[Any]], syntax.Expression] | None:
        if name in _COMPARATORS:
            return self._comparison
        if name in syntax.SPATIAL:
            return self._spatial
        if name in RELATIONS:
            return self._temporal
        if name in syntax.PREDICATES:
            return self._predicate
        return {
            "between": self._between,
            "in": self._in,
            "like": self._like,
            "isnull": self._is_null,
            "within": self._within,
            "near": self._near,
        }.get(name)

    def _comparison(self, name: str, args: list[Any]) -> syntax.Expression:
        left, right = self._many(name, args, 2, 2)
        op = cast("syntax.Comparator", name)
        return syntax.Comparison(op, self._scalar(left), self._scalar(right))

    def _between(self, name: str, args: list[Any]) -> syntax.Expression:
        value, low, high = (self._scalar(part) for part in self._many(name, args, 3, 3))
        return syntax.And(
            (syntax.Comparison(">=", value, low), syntax.Comparison("<=", value, high))
        )

    def _in(self, name: str, args: list[Any]) -> syntax.Expression:
        value, options = self._many(name, args, 2, 2)
        if not isinstance(options, list) or not options:
            raise FilterError("IN needs a list of values in parentheses")
        self._count(len(options) - 1)
        return syntax.In(self._scalar(value), tuple(self._scalar(part) for part in options))

    def _like(self, name: str, args: list[Any]) -> syntax.Expression:
        value, pattern = self._many(name, args, 2, 2)
        folds = []
        while isinstance(pattern, dict) and str(pattern.get("op")).lower() in {"casei", "accenti"}:
            folds.append(str(pattern["op"]).lower())
            pattern = self._many(name, pattern.get("args"), 1, 1)[0]
        if not isinstance(pattern, str):
            shown = pattern.get("property", "a%") if isinstance(pattern, dict) else "a%"
            raise FilterError(f"LIKE needs a pattern in quotes, such as '{str(shown)[:40]}'")
        if len(pattern) > PATTERN_LENGTH_MAX:
            raise LimitError(f"a LIKE pattern has at most {PATTERN_LENGTH_MAX} characters")
        for how in reversed(folds):
            pattern = fold(how, pattern)
        return syntax.Like(self._scalar(value), pattern)

    def _is_null(self, name: str, args: list[Any]) -> syntax.Expression:
        (operand,) = self._many(name, args, 1, 1)
        if not isinstance(operand, dict) or set(operand) != {"property"}:
            raise FilterError("IS NULL needs a property")
        if operand["property"] == "geometry":
            return syntax.IsNull("geometry")
        return syntax.IsNull(self._property(operand["property"]).name)

    def _within(self, name: str, args: list[Any]) -> syntax.Expression:
        operand, path = self._many(name, args, 2, 2)
        if operand != {"property": "place"} or not isinstance(path, str):
            raise FilterError("within is written: within(place, 'campus/b35')")
        try:
            return syntax.Within(check_place(path))
        except InputError as error:
            raise FilterError(f"within: {error.problem}") from None

    def _near(self, name: str, args: list[Any]) -> syntax.Expression:
        operand, centre, metres = self._many(name, args, 3, 3)
        form = "near is written: near(geometry, POINT(longitude latitude), metres)"
        if operand != {"property": "geometry"} or not isinstance(centre, dict):
            raise FilterError(form)
        if centre.get("type") != "Point" or len(centre["coordinates"]) != 2:
            raise FilterError(form)
        longitude, latitude = centre["coordinates"]
        if not (-180 <= longitude <= 180 and -90 <= latitude <= 90):
            raise FilterError(f"near: {longitude}, {latitude} is not a longitude and latitude")
        if not _is_number(metres) or not 0 <= metres < math.inf:
            raise FilterError("near: the distance is a number of metres, 0 or more")
        return syntax.Near(float(longitude), float(latitude), float(metres))

    def _spatial(self, name: str, args: list[Any]) -> syntax.Expression:
        left, right = self._many(name, args, 2, 2)
        ours = {"property": "geometry"}
        if (left == ours) == (right == ours):
            raise FilterError(f"{name} compares geometry with one shape")
        other = right if left == ours else left
        if isinstance(other, dict) and "op" in other:
            raise FilterError(f"{str(other['op'])[:60]} is not supported as a shape")
        box = other.get("bbox") if isinstance(other, dict) else None
        shape = shapes.read(other)
        if box is not None and shapes.is_across(box):
            return _across(name, box, shape, left == ours)
        return syntax.Spatial(name, shape, left == ours)

    def _temporal(self, name: str, args: list[Any]) -> syntax.Expression:
        left, right = self._many(name, args, 2, 2)
        return syntax.Temporal(name, self._stretch(left), self._stretch(right))

    def _predicate(self, name: str, args: list[Any]) -> syntax.Expression:
        most = 3 if name == "equals" else 2
        operand, span, *rest = self._many(name, args, 2, most)
        if operand != {"property": "time"}:
            raise FilterError(f"{name} is written: {name}(time, INTERVAL('…','…'))")
        stretch = self._stretch(span)
        if not isinstance(stretch, syntax.Span):
            raise FilterError(f"{name} takes an INTERVAL, a TIMESTAMP or a DATE")
        seconds = rest[0] if rest else 0
        if not _is_number(seconds) or not 0 <= seconds <= TOLERANCE_SECONDS_MAX:
            raise FilterError("the tolerance of equals is a number of seconds, 0 or more")
        return syntax.TimePredicate(name, stretch, round(seconds * time.MICROSECONDS))

    def _stretch(
        self, tree: Any
    ) -> syntax.Lifetime | syntax.Property | syntax.Span | syntax.SpanOf:
        if tree == {"property": "time"}:
            return syntax.Lifetime()
        if isinstance(tree, str):  # CQL2 JSON allows bare strings as instants here
            tree = {"date" if len(tree) == 10 else "timestamp": tree}
        operand = self._operand(tree)
        if isinstance(operand, syntax.Property | syntax.Span | syntax.SpanOf):
            return operand
        raise FilterError(f"{_shown(tree)} is not a time")

    def _operand(self, tree: Any) -> Any:
        """Convert a decoded value to an operand, or to a span for callers that accept one."""
        if isinstance(tree, bool | str):
            return syntax.Constant(tree)
        if isinstance(tree, int | float):
            if not is_finite(tree):
                raise FilterError("a number is too large")
            return syntax.Constant(float(tree) + 0.0)  # -0.0 becomes 0.0
        if tree is None:
            raise FilterError("nothing compares with NULL; write IS NULL or IS NOT NULL")
        if isinstance(tree, list):
            raise FilterError("a list is allowed only after IN")
        if "property" in tree:
            return self._property(tree["property"])
        if tree.keys() & {"timestamp", "date", "interval"}:
            return self._moment(tree)
        if "op" in tree:
            return self._calculation(str(tree["op"]), tree.get("args", []))
        raise FilterError("a shape is allowed only in a spatial predicate")

    def _calculation(self, op: str, args: Any) -> syntax.Operand:
        name = op.lower()
        self._enter(name)
        if name in _ARITHMETIC:
            self._count(1)
            left, right = self._many(op, args, 2, 2)
            made: syntax.Operand = syntax.Arithmetic(name, self._scalar(left), self._scalar(right))
        elif name in {"casei", "accenti"}:
            made = self._folded(name, self._scalar(self._many(op, args, 1, 1)[0]))
        else:
            raise FilterError(f"{op[:60]} is not supported as a value{hints.meant(op, _FUNCTIONS)}")
        self._depth -= 1
        return made

    def _folded(self, name: str, operand: syntax.Operand) -> syntax.Operand:
        if isinstance(operand, syntax.Constant) and isinstance(operand.value, str):
            return syntax.Constant(fold(name, operand.value))
        return syntax.Folded(name, operand)

    def _scalar(self, tree: Any) -> syntax.Operand:
        operand = self._operand(tree)
        if isinstance(operand, syntax.SpanOf):
            raise FilterError("an INTERVAL of attributes is allowed only in a temporal predicate")
        return cast("syntax.Operand", operand)

    def _moment(self, tree: dict[str, Any]) -> syntax.Span | syntax.SpanOf:
        try:
            if "timestamp" in tree:
                instant = time.parse_instant(_quoted("TIMESTAMP", tree["timestamp"]))
                return syntax.Span(instant, instant)
            if "date" in tree:
                start = time.parse_day(_quoted("DATE", tree["date"]))
                return syntax.Span(start, start + 86_400 * time.MICROSECONDS - 1)
            if not isinstance(tree["interval"], list) or len(tree["interval"]) != 2:
                raise FilterError("INTERVAL takes two ends")
            start, end = tree["interval"]
            first, last = self._end(start, syntax.BEGINNING), self._end(end, time.FOREVER)
        except InputError as error:
            raise FilterError(error.problem) from None
        if isinstance(first, syntax.Property) or isinstance(last, syntax.Property):
            return syntax.SpanOf(first, last)
        if first.start > last.start:
            raise FilterError("an INTERVAL ends before it starts")
        return syntax.Span(first.start, last.start)

    def _end(self, tree: Any, unbounded: int) -> syntax.Property | syntax.Span:
        """Parse an end of an INTERVAL: an attribute or an instant; a date is its first instant."""
        if not isinstance(tree, dict):
            moment = _limit(tree, unbounded)
            return syntax.Span(moment, moment)
        operand = None if "interval" in tree else self._operand(tree)
        if isinstance(operand, syntax.Span):
            return syntax.Span(operand.start, operand.start)
        if isinstance(operand, syntax.Property):
            return operand
        raise FilterError("an INTERVAL goes from a time to a time")

    def _property(self, name: Any) -> syntax.Property:
        if not isinstance(name, str) or not name:
            raise FilterError("a property needs a name")
        if name in {"place", "vid"} or name not in RESERVED:
            return syntax.Property(name)
        if name == "geometry":
            raise FilterError("geometry is allowed only in spatial predicates, near and IS NULL")
        raise FilterError(
            f"{name} is not a value: use a temporal predicate such as during(time, INTERVAL(…))"
        )

    def _many(self, op: str, args: Any, least: int, most: int = scan.TERMS_MAX) -> list[Any]:
        if isinstance(args, list) and least <= len(args) <= most:
            return args
        count = str(least) if least == most else f"{least} to {most}"
        raise FilterError(f"{op[:60]} takes {count} argument{'s' if most > 1 else ''}")

    def _count(self, terms: int) -> None:
        self._terms += terms
        if self._terms > scan.TERMS_MAX:
            raise LimitError(f"more than {scan.TERMS_MAX} terms")


def _across(name: str, box: list[float], shape: bytes, point_first: bool) -> syntax.Expression:
    """Relate geometry to a box across the antimeridian, which is no border of it.

    As a shape it is two halves, which tell no inside from a border at ±180. Only relations that
    ask for the inside see that; they are put together from the parts of the inside.
    """
    if not point_first:
        name = {"s_contains": "s_within", "s_within": "s_contains"}.get(name, name)
    whole = syntax.Spatial("s_intersects", shape, True)
    if name in {"s_equals", "s_contains"} and shapes.is_one_point(box):
        return whole
    inside = [syntax.Spatial("s_within", part, True) for part in shapes.insides(box)]
    within = inside[0] if len(inside) == 1 else syntax.Or(tuple(inside))
    if name == "s_within":
        return within
    if name == "s_touches":
        return syntax.And((whole, syntax.Not(within)))
    return syntax.Spatial(name, shape, True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _quoted(function: str, value: Any) -> str:
    if not isinstance(value, str):
        raise FilterError(f"{function} takes a text in quotes")
    return value


def _limit(text: Any, unbounded: int) -> int:
    if text == "..":
        return unbounded
    if not isinstance(text, str):
        raise InputError("an INTERVAL goes from a time to a time")
    return time.parse_day(text) if len(text) == 10 else time.parse_instant(text)


def _shown(tree: Any) -> str:
    text = msgspec.json.encode(tree).decode()
    return text if len(text) <= 60 else text[:57] + "…"
