"""The reference evaluator of normal forms: slow and simple, the oracle for every index."""

from roamcast.model import kinds
from roamcast.model.contexts import Context
from roamcast.model.filters import values as sets
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
from roamcast.model.filters.evaluate import evaluate
from roamcast.model.filters.syntax import IsNull
from roamcast.model.filters.values import Kind, Scalar


def holds(normal: Normal, context: Context) -> bool:
    """Evaluate a normal form over the context."""
    match normal:
        case All(parts):
            return all(holds(part, context) for part in parts)
        case Any(parts):
            return any(holds(part, context) for part in parts)
        case Values(name, kind, intervals):
            value = scalar(context, name, kind)
            return value is not None and sets.contains(intervals, value)
        case Presence(name, present):
            return evaluate(IsNull(name), context) is not present
        case Box(west, south, east, north):
            if context.point is None:
                return False
            longitude, latitude = context.point
            return west <= longitude <= east and south <= latitude <= north
        case Residual(expression, wanted):
            return evaluate(expression, context) is wanted


def scalar(context: Context, name: str, kind: Kind) -> Scalar | None:
    """Return a property's value as this kind, or None if it has no such value."""
    if name == T_R:
        return context.t_r
    if name == T_D:
        return context.end
    value = context.place if name == "place" else context.vid if name == "vid" else None
    return kinds.scalar(value or context.attributes.get(name), kind)
