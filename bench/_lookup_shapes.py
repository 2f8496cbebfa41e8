"""What does one message of each shape cost on the whole archive, in CPU, beside DuckDB?

Every message reads all files: nothing is excluded by time. DuckDB computes the same in SQL, and
both give the same Arrow column: distinct vids, sorted. It has no polygons without an extension, so
a polygon is held against our own box.
"""

import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roamcast.lab.report import Claim
from roamcast.model.earth import RADIUS_METRES
from roamcast.model.filters import Filter
from roamcast.pipeline.lookup.run import Lookup

REPEATS = 3
CORNERS = 500
"""Of the polygon, as a city's border has them."""

CENTRE, RADIUS_M = (0.5, 0.5), 30_000.0


def _polygon() -> str:
    """Draw a jagged ring around the middle, some 0.3 to 0.45 wide."""
    corners = []
    for number in range(CORNERS):
        angle = 2 * math.pi * number / CORNERS
        reach = 0.38 + 0.05 * math.sin(7 * angle) + 0.02 * (number % 2)
        corners.append((0.5 + reach * math.cos(angle), 0.5 + reach * math.sin(angle)))
    text = ",".join(f"{x!r} {y!r}" for x, y in [*corners, corners[0]])
    return f"S_WITHIN(geometry, POLYGON(({text})))"


def _haversine() -> str:
    lon, lat = CENTRE
    return (
        f"2 * {RADIUS_METRES} * asin(least(1, sqrt(pow(sin(radians({lat} - lat) / 2), 2) + "
        f"cos(radians(lat)) * cos(radians({lat})) * pow(sin(radians({lon} - lon) / 2), 2)))) "
        f"<= {RADIUS_M}"
    )


MOMENT = "2026-01-15T12:00:00Z"
SHAPES: dict[str, tuple[str, str | None]] = {
    "box": (
        "S_INTERSECTS(geometry, BBOX(0.2,0.2,0.7,0.7))",
        "lon BETWEEN 0.2 AND 0.7 AND lat BETWEEN 0.2 AND 0.7",
    ),
    "near": (f"near(geometry, POINT(0.5 0.5), {RADIUS_M})", _haversine()),
    "S_WITHIN": (
        "S_WITHIN(geometry, BBOX(0.2,0.2,0.7,0.7))",
        "lon > 0.2 AND lon < 0.7 AND lat > 0.2 AND lat < 0.7",
    ),
    "polygon": (_polygon(), None),
    "LIKE": ("kind LIKE '%1%'", "\"string:kind\" LIKE '%1%'"),
    "before": (f"before(time, TIMESTAMP('{MOMENT}'))", f"t_d < TIMESTAMPTZ '{MOMENT}'"),
}


def rows(archive: Path, size: int) -> list[dict[str, Any]]:
    """Ask one message of each shape of both, and compare the answers."""
    import duckdb

    lookup = Lookup(archive)
    files = ", ".join(f"'{archive}/{path}'" for path in lookup.archive.files()["path"].to_pylist())
    source = f"read_parquet([{files}], hive_partitioning = false)"
    connection = duckdb.connect()
    connection.execute("SET threads = 2; SET TimeZone = 'UTC'")
    found = []
    for name, (text, where) in SHAPES.items():
        asked = [Filter.parse(text)]
        ours, pairs = _cpu(lambda a=asked: lookup.pairs(a))
        row = {"contexts": size, "shape": name, "vids": pairs.num_rows, "ours_cpu_s": ours}
        if where is not None:
            query = f"SELECT DISTINCT vid FROM {source} WHERE {where} ORDER BY vid"  # noqa: S608
            theirs, told = _cpu(lambda q=query: connection.sql(q).to_arrow_table())
            assert told["vid"].equals(pairs["vid"]), f"{name} is answered differently"
            row |= {"duckdb_cpu_s": theirs, "ours/duckdb": ours / theirs}
        found.append(row)
    return found


def claims(found: list[dict[str, Any]], size: int) -> list[Claim]:
    """Hold each shape to twice DuckDB's CPU; a polygon to five of our own boxes'."""
    by = {row["shape"]: row for row in found if row["contexts"] == size}
    told = [
        Claim(
            f"one message, {name}, CPU against DuckDB's, on {size:,} contexts",
            round(row["ours/duckdb"], 2),
            row["ours/duckdb"] <= 2,
            bar="<= 2 times",
        )
        for name, row in by.items()
        if "ours/duckdb" in row
    ]
    ratio = by["polygon"]["ours_cpu_s"] / by["box"]["ours_cpu_s"]
    told.append(
        Claim(
            f"one message, a polygon of {CORNERS} corners, CPU against our box's",
            round(ratio, 2),
            ratio <= 5,
            bar="<= 5 times",
        )
    )
    return told


def _cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    """Give the median CPU seconds of this process, all threads, and the last answer."""
    answer = work()
    seconds = []
    for _ in range(REPEATS):
        begin = time.process_time()
        answer = work()
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds), answer
