"""The location of sightings: the given place, else the deepest place around the point, else a cell.

A location is a text that the agent compares: a place's path, or `/` and an H3 cell (no path starts
with `/`). A place given without a point gets its centre, if the hierarchy has its polygon.
"""

from collections.abc import Iterator
from itertools import repeat

import h3.api.basic_int as h3
import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roamcast.errors import InputError
from roamcast.model.places import Places

CELL_RESOLUTION = 9
"""H3 cells of about 0.1 km² stand for places where the hierarchy has none."""
CELL_RESOLUTION_MAX = 15

Floats = npt.NDArray[np.float64]


class Whereabouts(msgspec.Struct, frozen=True):
    """Converts between points and places, by a hierarchy if there is one, and by H3 cells."""

    places: Places | None = None
    resolution: int = CELL_RESOLUTION

    def __post_init__(self) -> None:
        if not 0 <= self.resolution <= CELL_RESOLUTION_MAX:
            raise InputError(f"an H3 resolution is between 0 and {CELL_RESOLUTION_MAX}")

    def locate(
        self, place: str | None, point: tuple[float, float] | None
    ) -> tuple[str, tuple[float, float] | None]:
        """Return the location of a sighting as text, and its point."""
        lon, lat = point if point is not None else (np.nan, np.nan)
        texts, lons, lats = self.locate_many(
            pa.array([place], pa.string()), np.array([lon]), np.array([lat])
        )
        return texts[0].as_py(), None if np.isnan(lons[0]) else (float(lons[0]), float(lats[0]))

    def locate_many(
        self, places: pa.Array, lons: Floats, lats: Floats
    ) -> tuple[pa.Array, Floats, Floats]:
        """Return locations and points of many sightings; an unknown point is NaN."""
        lons, lats = self._centred(places, lons, lats)
        texts = self._around(places, lons, lats)
        unplaced = np.flatnonzero(texts.is_null().to_numpy(zero_copy_only=False))
        if len(unplaced):
            cells = map(
                h3.latlng_to_cell,
                lats[unplaced].tolist(),
                lons[unplaced].tolist(),
                repeat(self.resolution),
            )
            texts = _filled(texts, unplaced, map("/{:x}".format, cells))
        return texts, lons, lats

    def _centred(self, places: pa.Array, lons: Floats, lats: Floats) -> tuple[Floats, Floats]:
        rows = np.flatnonzero(np.isnan(lons))
        if self.places is None or not len(rows):
            return lons, lats
        encoded = places.take(pa.array(rows)).dictionary_encode()
        centres = [self._centre(path) for path in encoded.dictionary.to_pylist()]
        table = np.array([*centres, (np.nan, np.nan)], dtype=np.float64)
        codes = encoded.indices.fill_null(len(centres)).to_numpy(zero_copy_only=False)
        lons, lats = lons.copy(), lats.copy()
        lons[rows], lats[rows] = table[codes, 0], table[codes, 1]
        return lons, lats

    def _centre(self, path: str) -> tuple[float, float]:
        known = self.places is not None and path in self.places
        centre = self.places.centre(path) if known and self.places is not None else None
        return centre or (np.nan, np.nan)

    def _around(self, places: pa.Array, lons: Floats, lats: Floats) -> pa.Array:
        rows = np.flatnonzero(places.is_null().to_numpy(zero_copy_only=False))
        if self.places is None or not len(rows):
            return places
        found = self.places.deepest_many(np.column_stack([lons[rows], lats[rows]]))
        inside = found >= 0
        paths = pa.array(self.places.paths, pa.string())
        texts = iter(paths.take(pa.array(found[inside])).to_pylist())
        return _filled(places, rows[inside], texts)


def cell_or_place(texts: pa.Array) -> pa.Array:
    """Return the places of these locations, null where a location is a cell."""
    return pc.if_else(pc.starts_with(texts, "/"), pa.scalar(None, pa.string()), texts)


def _filled(texts: pa.Array, rows: npt.NDArray[np.int64], values: Iterator[str]) -> pa.Array:
    mask = np.zeros(len(texts), dtype=bool)
    mask[rows] = True
    return pc.replace_with_mask(texts, pa.array(mask), pa.array(list(values), pa.string()))
