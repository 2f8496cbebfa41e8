"""Predicates that the index cannot decide; they are evaluated for candidates only.

The common case is a shape that the point must intersect, or must not: shapes are prepared once, and
all candidates are tested together. Everything else goes to the reference evaluator.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import shapely

from roamcast.matching.layout import Array
from roamcast.model.contexts import Context
from roamcast.model.filters.atoms import Normal, Residual
from roamcast.model.filters.holds import holds
from roamcast.model.filters.syntax import Spatial


class Contexts(Protocol):
    """Contexts by number."""

    def __getitem__(self, number: int, /) -> Context:
        """Return the context with this number."""


class Residuals:
    """By row, the conditions beyond its indexed predicates."""

    def __init__(self) -> None:
        self.parts: dict[int, tuple[Normal, ...]] = {}
        self._shapes: dict[int, tuple[Any, bool]] = {}

    def add(self, row: int, parts: Sequence[Normal]) -> None:
        """Add a row's conditions."""
        self.parts[row] = tuple(parts)
        part = parts[0]
        if len(parts) == 1 and isinstance(part, Residual) and isinstance(part.expression, Spatial):
            if part.expression.op != "s_intersects":
                return
            shape = shapely.from_wkb(part.expression.shape)
            shapely.prepare(shape)
            self._shapes[row] = (shape, part.wanted)

    def drop(self, row: int) -> None:
        """Remove a row."""
        self.parts.pop(row, None)
        self._shapes.pop(row, None)

    def hold(self, rows: Array, where: Array, contexts: Contexts) -> Array:
        """Return, for each row, whether its conditions hold for the context numbered in `where`."""
        told = np.zeros(len(rows), bool)
        asked: list[int] = []
        shapes: list[Any] = []
        points: list[tuple[float, float]] = []
        wanted: list[bool] = []
        for place, (row, number) in enumerate(zip(rows.tolist(), where.tolist(), strict=True)):
            context = contexts[number]
            shape = self._shapes.get(row)
            if shape is None:
                told[place] = all(holds(part, context) for part in self.parts[row])
            elif context.point is not None:
                asked.append(place)
                shapes.append(shape[0])
                wanted.append(shape[1])
                points.append(context.point)
        if asked:
            at = np.array(points)
            inside = shapely.intersects_xy(np.array(shapes, object), at[:, 0], at[:, 1])
            told[asked] = inside == np.array(wanted)
        return told
