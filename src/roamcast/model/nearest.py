"""Nearest-neighbour search over the contexts that satisfy a filter (AMS: the nearest printer)."""

import heapq
from collections.abc import Iterable

import msgspec

from roamcast.errors import InputError, LimitError
from roamcast.model.contexts import Context
from roamcast.model.earth import distance_metres
from roamcast.model.filters import Filter

COUNT_MAX = 1_000


class Found(msgspec.Struct, frozen=True):
    """A context and how far away it is."""

    metres: float
    context: Context


def nearest(
    contexts: Iterable[Context],
    to: tuple[float, float],
    wanted: Filter,
    *,
    count: int = 1,
    metres_max: float | None = None,
) -> list[Found]:
    """Return the `count` nearest contexts that satisfy the filter, ties broken by vid.

    Contexts without a point are skipped. Memory is bounded by `count`, not by the input.
    """
    if not 1 <= count <= COUNT_MAX:
        raise LimitError(f"count is between 1 and {COUNT_MAX}, not {count}")
    if not (-180 <= to[0] <= 180 and -90 <= to[1] <= 90):
        raise InputError(f"{to[0]}, {to[1]} is not a valid longitude and latitude")
    candidates = (
        Found(distance_metres(context.point, to), context)
        for context in contexts
        if context.point is not None and wanted.matches(context)
    )
    if metres_max is not None:
        candidates = (found for found in candidates if found.metres <= metres_max)
    # nsmallest holds `count` candidates at a time, however many contexts stream by.
    return heapq.nsmallest(count, candidates, key=lambda found: (found.metres, found.context.vid))
