"""Translation of one predicate into atoms: sets of values where possible, else a residual."""

import math

from roamcast.model import kinds
from roamcast.model.contexts import Context
from roamcast.model.earth import RADIUS_METRES
from roamcast.model.filters import shapes, syntax, temporal
from roamcast.model.filters import values as sets
from roamcast.model.filters.atoms import (
    FALSE,
    T_D,
    T_R,
    TRUE,
    All,
    Any,
    Box,
    Normal,
    Presence,
    Residual,
    Values,
)
from roamcast.model.filters.evaluate import evaluate
from roamcast.model.filters.values import Interval, Intervals, Kind

_TURNED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NOWHERE = Context("nobody")


def leaf(expression: syntax.Expression, wanted: bool) -> Normal:
    """Return the atoms of "this predicate is exactly `wanted`", not yet simplified."""
    match expression:
        case syntax.Comparison(op, syntax.Property(name), right):
            found = _compared(name, op, right, wanted)
        case syntax.Comparison(op, left, syntax.Property(name)):
            found = _compared(name, _TURNED[op], left, wanted)
        case syntax.In(syntax.Property(name), options):
            found = _in_list(name, options, wanted)
        case syntax.Like(syntax.Property(name), pattern):
            return _like(expression, name, pattern, wanted)
        case syntax.IsNull(name):
            return Presence(name, not wanted)
        case syntax.Within(path):
            return _string("place", sets.inside_place(path), wanted)
        case syntax.TimePredicate():
            bounds = temporal.formula(expression)
            return _ends([[(e, op, b) for e, op, b in t] for t in bounds], wanted)
        case syntax.Temporal():
            found = _related(expression, wanted)
        case syntax.Spatial():
            return _spatial(expression, wanted)
        case syntax.Near():
            # Points that are *not* near lie anywhere, so a negated circle has no envelope.
            envelope = _circle_envelope(expression) if wanted else None
            return Residual(expression, wanted, envelope)
        case _:
            found = None
    return _residual(expression, wanted) if found is None else found


def _residual(expression: syntax.Expression, wanted: bool) -> Normal:
    if _is_constant(expression):  # such as 1 + 1 = 2: any context gives the same answer
        return TRUE if evaluate(expression, _NOWHERE) is wanted else FALSE
    return Residual(expression, wanted)


def _is_constant(node: object) -> bool:
    """Return whether the expression contains no property."""
    if isinstance(node, syntax.Property | syntax.Lifetime | syntax.Spatial | syntax.Near):
        return False
    if isinstance(node, tuple):
        return all(_is_constant(part) for part in node)
    if isinstance(node, syntax.Node):
        return all(_is_constant(getattr(node, name)) for name in node.__struct_fields__)
    return True


def _compared(name: str, op: str, operand: syntax.Operand, wanted: bool) -> Normal | None:
    """Return the set of values of `name` for which the comparison with a constant is `wanted`."""
    found = _accepted(op, operand)
    if found is None:
        return None
    kind, accepted = found
    if not wanted:
        # The complement within the kind: a value of another kind makes the comparison unknown,
        # and NOT unknown does not match.
        accepted = sets.complement(accepted, kind)
    return Values(name, kind, accepted)


def _accepted(op: str, operand: syntax.Operand) -> tuple[Kind, Intervals] | None:
    if isinstance(operand, syntax.Span):
        return "instant", _side(op, operand.start, operand.end, "instant")
    if not isinstance(operand, syntax.Constant):
        return None
    kind, value = next(kinds.scalars(operand.value))
    return kind, _side(op, value, value, kind)


def _side(op: str, low: sets.Scalar, high: sets.Scalar, kind: Kind) -> Intervals:
    match op:
        case "=":
            accepted: Intervals = (Interval(low, high),)
        case "<>":
            accepted = sets.complement((Interval(low, high),), kind)
        case "<":
            accepted = sets.below(low, closed=False)
        case "<=":
            accepted = sets.below(high, closed=True)
        case ">":
            accepted = sets.above(high, closed=False)
        case _:
            accepted = sets.above(low, closed=True)
    return sets.normalise(accepted, kind)


def _in_list(name: str, options: tuple[syntax.Operand, ...], wanted: bool) -> Normal | None:
    by_kind: dict[Kind, list[Interval]] = {}
    for option in options:
        found = _accepted("=", option)
        if found is None:
            return None
        by_kind.setdefault(found[0], []).extend(found[1])
    parts = []
    for kind, intervals in by_kind.items():
        accepted = sets.normalise(intervals, kind)
        parts.append(Values(name, kind, accepted if wanted else sets.complement(accepted, kind)))
    return Any(tuple(parts)) if wanted else All(tuple(parts))


def _string(name: str, accepted: Intervals, wanted: bool) -> Values:
    return Values(name, "string", accepted if wanted else sets.complement(accepted, "string"))


def _like(expression: syntax.Like, name: str, pattern: str, wanted: bool) -> Normal:
    literal, wild = _literal_prefix(pattern)
    if not wild:
        return _string(name, sets.point(literal), wanted)
    if wild == "%":
        return _string(name, sets.prefixed(literal), wanted)
    # `ab%c` still implies the prefix `ab`, which an index can use.
    exact = Residual(expression, wanted)
    if not wanted or not literal:
        return exact
    return All((_string(name, sets.prefixed(literal), True), exact))


def _literal_prefix(pattern: str) -> tuple[str, str]:
    """Split a pattern into the literal text before its first wildcard, and the rest."""
    out = []
    index = 0
    while index < len(pattern):
        character = pattern[index]
        if character in "%_":
            break
        if character == "\\" and index + 1 < len(pattern):
            index += 1
            character = pattern[index]
        out.append(character)
        index += 1
    return "".join(out), pattern[index:]


def _ends(alternatives: list[list[tuple[str, str, int]]], wanted: bool) -> Normal:
    """Convert bounds on t_r and t_d to sets. Both are always known, so NOT is the complement."""
    together: list[Normal] = []
    for bounds in alternatives:
        # De Morgan: the negation of a disjunction of conjunctions is the reverse, with complements.
        parts = tuple(_end(end, op, moment, wanted) for end, op, moment in bounds)
        together.append(All(parts) if wanted else Any(parts))
    return Any(tuple(together)) if wanted else All(tuple(together))


def _end(name: str, op: str, moment: int, wanted: bool) -> Values:
    accepted = _side(op, moment, moment, "instant")
    return Values(name, "instant", accepted if wanted else sets.complement(accepted, "instant"))


_MIRRORED = {
    "t_after": "t_before",
    "t_contains": "t_during",
    "t_finishedby": "t_finishes",
    "t_metby": "t_meets",
    "t_overlappedby": "t_overlaps",
    "t_startedby": "t_starts",
}
_MIRROR = {**_MIRRORED, **{b: a for a, b in _MIRRORED.items()}}


def _related(expression: syntax.Temporal, wanted: bool) -> Normal | None:
    """Convert a relation of `time` or an attribute to a constant span into sets."""
    op, left, right = expression.op, expression.left, expression.right
    if isinstance(left, syntax.Lifetime) and isinstance(right, syntax.Lifetime):
        return _related_to_itself(op, wanted)
    if isinstance(left, syntax.Span):
        left, right, op = right, left, _MIRROR.get(op, op)
    if not isinstance(right, syntax.Span) or isinstance(left, syntax.Span | syntax.SpanOf):
        return None
    moment = {"a": right.start, "b": right.end}
    lifetime = isinstance(left, syntax.Lifetime)
    bounds = [
        [({"s": T_R, "e": T_D}[end], c, moment[bound]) for end, c, bound in together]
        for together in temporal.RELATIONS[op]
    ]
    if lifetime:
        return _ends(bounds, wanted)
    assert isinstance(left, syntax.Property)
    alternatives = [
        [_side(comparator, bound, bound, "instant") for _, comparator, bound in together]
        for together in bounds
    ]
    accepted: Intervals = sets.EMPTY
    for parts in alternatives:
        both = sets.FULL
        for part in parts:
            both = sets.intersect(both, part, "instant")
        accepted = sets.union(accepted, both, kind="instant")
    if not wanted:
        accepted = sets.complement(accepted, "instant")
    return Values(left.name, "instant", accepted)


def _related_to_itself(op: str, wanted: bool) -> Normal:
    """Decide a relation of `time` to itself.

    It holds always, never, or exactly for contexts that last a single instant.
    """
    lasting, moment = (temporal.related(op, span, span) for span in ((0, 1), (0, 0)))
    if lasting is moment:
        return TRUE if lasting is wanted else FALSE
    meets = syntax.Temporal("t_meets", syntax.Lifetime(), syntax.Lifetime())
    return Residual(meets, moment is wanted)


_SPATIAL_MIRROR = {"s_contains": "s_within", "s_within": "s_contains"}
"""All other spatial relations are symmetric."""


def _spatial(expression: syntax.Spatial, wanted: bool) -> Normal:
    if not expression.point_first:
        op = _SPATIAL_MIRROR.get(expression.op, expression.op)
        expression = syntax.Spatial(op, expression.shape, True)
    meets = expression.op == "s_intersects" and wanted
    meets = meets or (expression.op == "s_disjoint" and not wanted)
    box = shapes.rectangle(expression.shape) if meets else None
    if box is not None:
        return Box(*box)
    if expression.op == "s_disjoint":  # equivalent filters get the same text
        turned = syntax.Spatial("s_intersects", expression.shape, expression.point_first)
        return _spatial(turned, not wanted)
    # Every relation but disjoint requires the point to touch the shape.
    envelope = Box(*shapes.bounds(expression.shape)) if wanted else None
    return Residual(expression, wanted, envelope)


def _circle_envelope(near: syntax.Near) -> Box:
    """Return a box around the circle, slightly larger so that rounding cannot exclude a point."""
    angle = near.metres / RADIUS_METRES * (1 + 1e-9) + 1e-12
    south = near.latitude - math.degrees(angle)
    north = near.latitude + math.degrees(angle)
    if south <= -90 or north >= 90:
        return Box(-180.0, max(south, -90.0), 180.0, min(north, 90.0))
    reach = math.sin(angle) / math.cos(math.radians(near.latitude))
    spread = math.degrees(math.asin(min(1.0, reach))) * (1 + 1e-9) + 1e-9
    west, east = near.longitude - spread, near.longitude + spread
    if west < -180 or east > 180:  # across the antimeridian
        west, east = -180.0, 180.0
    return Box(west, south, east, north)
