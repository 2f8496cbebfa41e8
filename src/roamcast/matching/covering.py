"""Covering: whether every context that satisfies one filter also satisfies another.

Brokers forward only filters that no forwarded filter covers (CBM's subsumption, JIT's routing
table). The test is sound: a yes is always right. It is complete for conjunctions of equalities,
ranges, sets, places and boxes. Shapes and circles are compared geometrically; any other predicate
covers only itself.
"""

import shapely

from roamcast.model.earth import distance_metres
from roamcast.model.filters import Filter, syntax
from roamcast.model.filters import values as sets
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
from roamcast.model.filters.shapes import upright
from roamcast.model.filters.values import Interval, Intervals

CONJUNCTIONS_MAX = 64


def covers(wide: Filter, narrow: Filter) -> bool:
    """Return whether every context that matches `narrow` provably matches `wide`."""
    if wide.text == narrow.text:
        return True
    inner = narrow.conjunctions(CONJUNCTIONS_MAX)
    outer = wide.conjunctions(CONJUNCTIONS_MAX)
    if inner is None or outer is None:
        return False
    return all(any(_covers(one, part) for one in outer) for part in inner)


def _covers(wide: Conjunction, narrow: Conjunction) -> bool:
    return all(_implied(atom, narrow) for atom in wide)


def _implied(atom: Atom, by: Conjunction) -> bool:
    """Return whether a conjunction implies an atom."""
    if atom in by:
        return True
    match atom:
        case Values(name, kind, intervals):
            allowed = _allowed(name, kind, by)
            return allowed is not None and sets.subset(allowed, intervals)
        case Presence(name, True):
            return any(_needs(name, other) for other in by)
        case Box():
            return any(_within_box(other, atom) for other in by)
        case Residual(syntax.Spatial("s_intersects", shape, _), True):
            return any(_within_shape(other, geometry(shape)) for other in by)
        case Residual(syntax.Near() as circle, True):
            return any(_within_circle(other, circle) for other in by)
        case _:
            return False


def _allowed(name: str, kind: str, by: Conjunction) -> Intervals | None:
    """Return the values that a conjunction allows a property, using t_r ≤ t_d as well."""
    allowed: Intervals | None = None
    for other in by:
        if not isinstance(other, Values) or other.kind != kind:
            continue
        found = other.intervals
        if name == T_D and other.property == T_R:
            found = (Interval(low=found[0].low),) if found else sets.EMPTY
        elif name == T_R and other.property == T_D:
            found = (Interval(high=found[-1].high),) if found else sets.EMPTY
        elif other.property != name:
            continue
        allowed = found if allowed is None else sets.intersect(allowed, found, other.kind)
    return allowed


def _needs(name: str, atom: Atom) -> bool:
    """Return whether an atom implies that the context has the property."""
    if isinstance(atom, Values):
        return atom.property == name
    if name == "geometry":
        spatial = isinstance(atom, Residual) and isinstance(
            atom.expression, syntax.Spatial | syntax.Near
        )
        return isinstance(atom, Box) or spatial
    return False


def _area(atom: Atom) -> Box | None:
    if isinstance(atom, Box):
        return atom
    return atom.envelope if isinstance(atom, Residual) else None


def _within_box(atom: Atom, box: Box) -> bool:
    area = _area(atom)
    return (
        area is not None
        and box.west <= area.west
        and area.east <= box.east
        and box.south <= area.south
        and area.north <= box.north
    )


def _within_shape(atom: Atom, shape: shapely.Geometry) -> bool:
    """Return whether all points of the atom lie in the shape or on its border."""
    match atom:
        case Residual(syntax.Spatial(op, inner, point_first), True):
            inside = op in ("s_intersects", "s_equals", "s_touches")
            inside = inside or op == ("s_within" if point_first else "s_contains")
            return inside and bool(shape.covers(geometry(inner)))
    area = _area(atom)
    if area is None:
        return False
    return bool(shape.covers(upright(area.west, area.south, area.east, area.north)))


def _within_circle(atom: Atom, circle: syntax.Near) -> bool:
    match atom:
        case Residual(syntax.Near(longitude, latitude, metres), True):
            apart = distance_metres((longitude, latitude), (circle.longitude, circle.latitude))
            return (apart + metres) * (1 + 1e-9) <= circle.metres
        case _:
            return False
