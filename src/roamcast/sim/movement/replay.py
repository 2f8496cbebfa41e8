"""Replay of recorded positions and sightings in time order.

Reads positions as CSV (`lat,lng,datetime,uid`, times in UTC: the format of the GeoLife sample,
plain or gzipped) and sightings as JSON lines (`person`, `time`, and `place` or `lon` and `lat`).
People are numbered in the order of their names, so a recording always gives the same moves.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from roamcast.errors import InputError, LimitError, PlaceError
from roamcast.model.contexts import check_path
from roamcast.model.time import parse_instant
from roamcast.sim.movement.moves import Move

ROWS_MAX = 50_000_000
LINE_BYTES_MAX = 1 << 20


class Recording(msgspec.Struct, frozen=True):
    """Sightings sorted by time, then person, each with a place or a point."""

    names: tuple[str, ...]
    times_us: npt.NDArray[np.int64]
    people: npt.NDArray[np.int64]
    points: npt.NDArray[np.float64]
    places: tuple[str | None, ...] | None = None

    def __len__(self) -> int:
        return len(self.times_us)

    def moves(self, start_us: int | None = None, faster: float = 1.0) -> Iterator[Move]:
        """Yield the moves, optionally shifted to begin at `start_us`, or `faster` times as fast."""
        if not faster > 0:
            raise LimitError("the speed of a replay must be above 0")
        if not len(self):
            return
        first = int(self.times_us[0])
        start = first if start_us is None else start_us
        for index in range(len(self)):
            time_us = start + int((int(self.times_us[index]) - first) / faster)
            place = None if self.places is None else self.places[index]
            lon, lat = self.points[index].tolist()
            point = (lon, lat) if place is None else None
            yield Move(time_us, int(self.people[index]), place, point)


def read_positions(path: Path, rows_max: int = ROWS_MAX) -> Recording:
    """Read a CSV of positions: columns lat, lng, datetime (UTC), uid."""
    import pyarrow as pa
    from pyarrow import csv

    columns = {"lat": pa.float64(), "lng": pa.float64(), "uid": pa.string()}
    columns["datetime"] = pa.timestamp("us")
    convert = csv.ConvertOptions(column_types=columns, include_columns=list(columns))
    try:
        table = csv.read_csv(path, convert_options=convert)
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
        raise InputError(f"not a CSV of positions: {error}", source=str(path)) from None
    if len(table) > rows_max:
        raise LimitError(f"more than the limit of {rows_max} rows", source=str(path))
    if any(table[name].null_count for name in columns):
        raise InputError("a row lacks a value", source=str(path))
    points = np.column_stack([table["lng"].to_numpy(), table["lat"].to_numpy()])
    if not (np.abs(points) <= [180.0, 90.0]).all():
        raise InputError("a row is not a WGS84 longitude and latitude", source=str(path))
    times = table["datetime"].cast(pa.int64()).to_numpy()
    return _sorted(table["uid"].to_pylist(), times, points, None)


def read_sightings(path: Path, rows_max: int = ROWS_MAX) -> Recording:
    """Read sightings, one JSON object per line."""
    names: list[str] = []
    times: list[int] = []
    points: list[tuple[float, float]] = []
    places: list[str | None] = []
    with path.open("rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(LINE_BYTES_MAX + 1), b""), 1):
            if len(line) > LINE_BYTES_MAX:
                text = f"a line is longer than {LINE_BYTES_MAX} bytes"
                raise LimitError(text, source=str(path), line=number)
            if number > rows_max:
                raise LimitError(f"more than the limit of {rows_max} rows", source=str(path))
            try:
                name, time_us, place, point = _sighting(line)
            except InputError as error:
                raise error.located(str(path), number) from None
            names.append(name)
            times.append(time_us)
            places.append(place)
            points.append(point)
    positions = np.array(points, dtype=np.float64).reshape(-1, 2)
    return _sorted(names, np.array(times, dtype=np.int64), positions, places)


def _sighting(line: bytes) -> tuple[str, int, str | None, tuple[float, float]]:
    try:
        said = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from None
    if not isinstance(said, dict) or not isinstance(said.get("person"), str):
        raise InputError("a sighting is an object with a 'person'")
    if not isinstance(said.get("time"), str):
        raise InputError("a sighting has a 'time', RFC 3339")
    time_us = parse_instant(said["time"])
    if said.get("place") is not None:
        try:
            return said["person"], time_us, check_path(said["place"]), (0.0, 0.0)
        except PlaceError as error:
            raise InputError(error.problem) from None
    lon, lat = _degrees(said.get("lon"), 180), _degrees(said.get("lat"), 90)
    return said["person"], time_us, None, (lon, lat)


def _degrees(value: Any, most: int) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= most:
        raise InputError("a sighting has a 'place', or a 'lon' and a 'lat' in degrees")
    return float(value)


def _sorted(
    names: list[str],
    times: npt.NDArray[np.int64],
    points: npt.NDArray[np.float64],
    places: list[str | None] | None,
) -> Recording:
    known = tuple(sorted(set(names)))
    number = {name: index for index, name in enumerate(known)}
    people = np.array([number[name] for name in names], dtype=np.int64)
    order = np.lexsort((people, times))
    kept = None if places is None else tuple(places[index] for index in order.tolist())
    return Recording(known, times[order], people[order], points[order], kept)
