"""Which contexts does the lookup bench ask about? A seeded generator, its questions, its archive.

`raw` and `questions` draw exactly what the shared generator of contexts draws (x, y in a unit
square, milliseconds from 0, vehicles' ids); `table` gives the same rows in our columns: degrees,
and moments counted from 2026-01-01.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from roamcast.model.context_arrow import schema
from roamcast.model.time import format_instant, parse_instant

DAY_MS = 86_400_000
CHUNK = 1_000_000
ORIGIN = parse_instant("2026-01-01T00:00:00Z")
COLUMNS = schema(["string:kind", "float:speed", "integer:level", "integer:flag"])


def raw(count: int, seed: int = 7) -> Iterator[dict[str, Any]]:
    """Draw contexts, a million at a time."""
    rng = np.random.Generator(np.random.PCG64(seed))
    centres = rng.random((64, 2))
    for start in range(0, count, CHUNK):
        yield _drawn(rng, min(CHUNK, count - start), centres)


def _drawn(rng: np.random.Generator, n: int, centres: Any) -> dict[str, Any]:
    uniform = rng.random((n, 2))
    near = centres[rng.integers(0, len(centres), n)] + rng.normal(0, 0.02, (n, 2))
    chosen = rng.random(n) < 0.5
    points = np.where(chosen[:, None], uniform, near % 1.0)
    t_r = rng.integers(0, 30 * DAY_MS, n)
    lasted = np.minimum(rng.exponential(1_800_000, n), 6 * 3_600_000).astype(np.int64)
    kinds = np.array([f"k{i}" for i in range(8)])[np.minimum(rng.zipf(1.6, n) - 1, 7)]
    return {
        "x": points[:, 0],
        "y": points[:, 1],
        "t_r": t_r,
        "t_d": t_r + lasted,
        "kind": kinds,
        "speed": (rng.random(n) * 40).astype(np.float32),
        "level": rng.integers(0, 100, n).astype(np.int16),
        "flag": rng.integers(0, 4, n).astype(np.int8),
        "vid": rng.integers(0, 200_000, n),
    }


def table(drawn: dict[str, Any]) -> pa.Table:
    """Give drawn contexts in the columns of `model.context_arrow`."""
    moments = {name: pa.array(ORIGIN + 1_000 * drawn[name]) for name in ("t_r", "t_d")}
    names = pa.array([f"V{vehicle:07d}" for vehicle in range(200_000)])
    columns = {
        "vid": names.take(pa.array(drawn["vid"])),
        "place": pa.nulls(len(drawn["x"]), pa.string()),
        "lon": drawn["x"],
        "lat": drawn["y"],
        "t_r": moments["t_r"].cast(COLUMNS.field("t_r").type),
        "t_d": moments["t_d"].cast(COLUMNS.field("t_d").type),
        "string:kind": pa.array(drawn["kind"]),
        "float:speed": drawn["speed"].astype(np.float64),
        "integer:level": drawn["level"].astype(np.int64),
        "integer:flag": drawn["flag"].astype(np.int64),
    }
    return pa.table(columns, schema=COLUMNS)


def questions(count: int, seed: int = 11) -> list[dict[str, Any]]:
    """Draw rectangles of side 0.05 with two hours, a kind and a level each."""
    rng = np.random.Generator(np.random.PCG64(seed))
    centres = np.random.Generator(np.random.PCG64(7)).random((64, 2))
    found = []
    for number in range(count):
        x, y = centres[rng.integers(64)] if number % 2 else rng.random(2)
        west, south = (float(np.clip(value - 0.025, 0, 0.95)) for value in (x, y))
        start = int(rng.integers(0, 30 * DAY_MS - 7_200_000))
        level = int(rng.integers(50, 100))
        found.append(
            {
                "x0": west,
                "x1": west + 0.05,
                "y0": south,
                "y1": south + 0.05,
                "t0": start,
                "t1": start + 7_200_000,
                "kind": "k0",
                "level": level,
            }
        )
    return found


def filter_text(question: dict[str, Any]) -> str:
    """Say a question in CQL2."""
    start, end = (format_instant(ORIGIN + 1_000 * question[name]) for name in ("t0", "t1"))
    box = ", ".join(repr(question[name]) for name in ("x0", "y0", "x1", "y1"))
    return (
        f"S_INTERSECTS(geometry, BBOX({box})) AND "
        f"overlaps(time, INTERVAL('{start}', '{end}')) AND "
        f"kind = '{question['kind']}' AND level <= {question['level']}"
    )


def sql(question: dict[str, Any], files: list[str]) -> str:
    """Say a question in DuckDB's SQL over a list of the archive's files."""
    names = ", ".join(f"'{name}'" for name in files)
    start, end = (ORIGIN + 1_000 * question[name] for name in ("t0", "t1"))
    return (
        f"SELECT DISTINCT vid FROM read_parquet([{names}], hive_partitioning = false) "  # noqa: S608
        f"WHERE lon BETWEEN {question['x0']!r} AND {question['x1']!r} "
        f"AND lat BETWEEN {question['y0']!r} AND {question['y1']!r} "
        f"AND t_r <= make_timestamptz({end}) AND t_d >= make_timestamptz({start}) "
        f"AND \"string:kind\" = '{question['kind']}' "
        f'AND "integer:level" <= {question["level"]}'
    )


def join_sql(files: list[str], asked: str) -> str:
    """Say all questions of a table in one join, and give the distinct pairs, sorted.

    As somebody would write it who knows the data: questions and contexts meet by cells of a
    twentieth of a degree and hours, since DuckDB compares all pairs otherwise. No context lasts
    longer than six hours and twice the grid.
    """
    names = ", ".join(f"'{name}'" for name in files)
    hour = 3_600_000
    cells = "range(floor({0}0 * 20)::BIGINT, floor({0}1 * 20)::BIGINT + 1)"
    return f"""
        WITH by_x AS (SELECT *, unnest({cells.format("x")}) AS cx FROM {asked}),
        by_y AS (SELECT *, unnest({cells.format("y")}) AS cy FROM by_x),
        m AS (SELECT *, unnest(range((t0 - 7 * {hour}) // {hour}, t1 // {hour} + 1)) AS h FROM by_y)
        SELECT DISTINCT number, vid FROM read_parquet([{names}], hive_partitioning = false) c JOIN m
        ON floor(c.lon * 20)::BIGINT = m.cx AND floor(c.lat * 20)::BIGINT = m.cy
        AND (epoch_us(c.t_r) - {ORIGIN}) // {1_000 * hour} = m.h AND c."string:kind" = m.kind
        WHERE c.lon BETWEEN m.x0 AND m.x1 AND c.lat BETWEEN m.y0 AND m.y1
        AND c.t_r <= make_timestamptz({ORIGIN} + 1000 * m.t1)
        AND c.t_d >= make_timestamptz({ORIGIN} + 1000 * m.t0) AND c."integer:level" <= m.level
        ORDER BY number, vid"""  # noqa: S608
