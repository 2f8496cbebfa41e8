"""Shapes (`S_INTERSECTS`, `S_WITHIN` and the others) for many points at once.

GEOS decides on points, some hundred nanoseconds each. A polygon that is asked about often gets a
raster: its cells lie inside, outside or across the border, and only points in cells of the last
kind are given to GEOS (decision 0156).
"""

from typing import Any

import numpy as np
import shapely

from roamcast.matching.layout import Array
from roamcast.model.filters.syntax import Spatial

ASKED_MIN = 8_192
"""Points after which a raster pays: making one costs about as much as they do."""

LEVELS = 7
"""Times that a raster's cells are divided into four: 128 × 128 at the end."""

OUTSIDE, INSIDE, BORDER = 0, 1, 2
AREAS = {"Polygon", "MultiPolygon"}
PREPARED = {"s_intersects": shapely.intersects_xy, "s_within": shapely.contains_xy}
"""Relations that prepared shapes answer by coordinates; the point is first: within is contains."""


class Region:
    """One spatial predicate."""

    def __init__(self, expression: Spatial) -> None:
        self._shape: Any = shapely.from_wkb(expression.shape)
        self._name = expression.op.removeprefix("s_")
        one_kind = self._shape.geom_type != "GeometryCollection"
        self._prepared = PREPARED.get(expression.op) if one_kind else None
        shapely.prepare(self._shape)
        # Points inside meet and lie within, points outside do neither: a raster decides both.
        self._rastered = self._prepared is not None and self._shape.geom_type in AREAS
        self._asked = 0
        self._raster: Raster | None = None

    def holds(self, lon: Array, lat: Array) -> Array:
        """Say for each point whether the predicate is true."""
        self._asked += len(lon)
        if self._rastered and self._asked >= ASKED_MIN:
            if self._raster is None:
                self._raster = Raster(self._shape)
            found = self._raster.classes(lon, lat)
            told: Array = found == INSIDE
            unclear = np.flatnonzero(found == BORDER)
            told[unclear] = self._exactly(lon[unclear], lat[unclear])
            return told
        return self._exactly(lon, lat)

    def _exactly(self, lon: Array, lat: Array) -> Array:
        found: Array
        if self._prepared is not None:
            found = self._prepared(self._shape, lon, lat)
        else:
            found = getattr(shapely, self._name)(shapely.points(lon, lat), self._shape)
        return found


class Raster:
    """The cells of a polygon's envelope, each inside, outside or across the border."""

    def __init__(self, shape: Any) -> None:
        self._bounds = [float(bound) for bound in shape.bounds]
        west, south, east, north = self._bounds
        self._count = 1 << LEVELS
        self._steps = ((east - west) / self._count, (north - south) / self._count)
        cells = np.full((1, 1), BORDER, np.int8)
        for _ in range(LEVELS):
            cells = cells.repeat(2, axis=0).repeat(2, axis=1)
            across = np.flatnonzero(cells == BORDER)
            boxes = self._boxes(across, len(cells))
            # Closed boxes, a little larger than cells: rounding moves no point out of its own.
            cells.flat[across] = np.where(
                shapely.contains_properly(shape, boxes),
                INSIDE,
                np.where(shapely.intersects(shape, boxes), BORDER, OUTSIDE),
            )
        self._cells = cells.ravel()

    def _boxes(self, cells: Array, count: int) -> Any:
        west, south, east, north = self._bounds
        row, column = np.divmod(cells, count)
        width, height = (east - west) / count, (north - south) / count
        # 64 ulps of the largest coordinate, for shapes as small as the last bits of a degree
        spare = 64 * np.spacing(max(map(abs, self._bounds)))
        aside, above = width * 1e-6 + spare, height * 1e-6 + spare
        return shapely.box(
            west + column * width - aside,
            south + row * height - above,
            west + (column + 1) * width + aside,
            south + (row + 1) * height + above,
        )

    def classes(self, lon: Array, lat: Array) -> Array:
        """Give the class of each point's cell."""
        west, south, east, north = self._bounds
        last = self._count - 1
        column = np.clip((lon - west) / self._steps[0], 0, last).astype(np.int64)
        row = np.clip((lat - south) / self._steps[1], 0, last).astype(np.int64)
        found: Array = self._cells[row * self._count + column]
        beyond = (lon < west) | (lon > east) | (lat < south) | (lat > north)
        found[beyond] = OUTSIDE
        return found
