"""Analysts' questions of an archive on Spark, beside DuckDB on the same Parquet files.

Occupancy, flows and exposure of contexts with places. DuckDB gets the list of files for free and
answers in SQL, without suppression (k = 1 for both). Exposure is asked of everybody with everybody;
the plain self-join compares all contexts of a place with each other, is asked of a share of the
places and multiplied. Then occupancy is published with k = 5, at three levels: how much of all
visits it tells, what it takes, and whether levels, subtracted, give a count below 5.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from roamcast.lab.report import Claim, Report, Steps
from roamcast.model.context_arrow import schema
from roamcast.model.time import parse_instant
from roamcast.pipeline import contexts, exposure, flows, occupancy
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.archive.layout import ArchiveSettings
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.spark.session import Settings, started

sys.path.append(str(Path(__file__).parent))  # benches live outside the package

TITLE = "Occupancy, flows and exposure on Spark, beside DuckDB"
ORIGIN = parse_instant("2026-01-01T00:00:00Z")
DAYS = 30
CHUNK = 1_000_000
PLACES = 2_000
SAMPLED = 20
"""The plain self-join is asked of every so many places."""

REPEATS = 2
K = 5
MINUTES = 15
WIDE = "SET threads = 2; SET TimeZone = 'UTC'"


def run(quick: bool, progress: Steps) -> Report:
    """Build an archive, ask all three questions of both, compare answers and times."""
    size = 300_000 if quick else 10_000_000
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="roamcast-bench-") as folder,
        started(Settings(master="local[2]", memory="4g")) as spark,
    ):
        archive = Path(folder) / "archive"
        with progress("contexts", size) as step:
            for number, start in enumerate(range(0, size, CHUNK)):
                table = drawn(min(CHUNK, size - start), number)
                append(table, archive, settings=ArchiveSettings(grid_s=0))
                step(table.num_rows)
        seen = contexts(spark, archive)
        duck = Duck(archive)
        with progress("questions", 4) as step:
            rows += [_held(seen, duck, name) for name in ("occupancy", "flows")]
            step(2)
            rows.append(_met(seen, duck))
            step(1)
            told, learned = _learned(seen)
            rows += told
            step(1)
    return Report("analytics", {"contexts": size, "places": PLACES}, rows, _claims(rows, learned))


def drawn(count: int, seed: int) -> pa.Table:
    """Draw contexts of walks: a vid visits a few places of a building, one after another."""
    rng = np.random.default_rng([27, seed])
    visits = 4
    people = -(-count // visits)
    home = rng.zipf(1.3, people) % PLACES
    places = np.where(
        rng.random((people, visits)) < 0.6, home[:, None], rng.integers(0, PLACES, (people, visits))
    )
    lasts = rng.exponential(1_500, (people, visits)).clip(30, 4 * 3_600)
    begin = rng.integers(0, DAYS * 86_400 - 20 * 3_600, people)[:, None]
    ends = begin + np.cumsum(lasts, axis=1)
    stamp = schema([]).field("t_r").type
    moments = [
        pa.array((ORIGIN + 1_000_000 * when.ravel()[:count]).astype(np.int64)).cast(stamp)
        for when in (ends - lasts, ends)
    ]
    names = pa.array([f"city/b{n // 40}/{n // 8 % 5}/r{n}" for n in range(PLACES)])
    vids = pa.array([f"v{seed:03d}{n:08d}" for n in range(people)])
    return pa.table(
        {
            "vid": vids.take(pa.array(np.repeat(np.arange(people), visits)[:count])),
            "place": names.take(pa.array(places.ravel()[:count])),
            "lon": pa.nulls(count, pa.float64()),
            "lat": pa.nulls(count, pa.float64()),
            "t_r": moments[0],
            "t_d": moments[1],
        },
        schema=schema([]),
    )


class Duck:
    """DuckDB on the files of the snapshot."""

    def __init__(self, archive: Path) -> None:
        import duckdb

        files = Archive.open(archive).files()["path"].to_pylist()
        names = ", ".join(f"'{archive}/{path}'" for path in files)
        self._connection = duckdb.connect()
        self._connection.execute(WIDE)
        self._source = f"read_parquet([{names}], hive_partitioning = false)"

    def occupancy(self) -> pa.Table:
        """Count vids by place and hour."""
        return self._table(
            "SELECT place, hour, count(DISTINCT vid) AS count FROM (SELECT vid, place, "  # noqa: S608
            "unnest(range(epoch_us(t_r) // 3600000000, epoch_us(t_d) // 3600000000 + 1)) AS hour "
            f"FROM {self._source}) GROUP BY ALL"
        )

    def flows(self) -> pa.Table:
        """Count moves by hour."""
        return self._table(
            "SELECT origin, place AS destination, hour, count(*) AS count FROM (SELECT "  # noqa: S608
            "place, "
            "lag(place) OVER (PARTITION BY vid ORDER BY t_r, t_d) AS origin, "
            f"epoch_us(t_r) // 3600000000 AS hour FROM {self._source}) "
            "WHERE origin <> place GROUP BY ALL"
        )

    def plain(self, sampled: int) -> pa.Table:
        """Join the table with itself, for one place of so many."""
        where = f"hash(place) % {sampled} = 0"
        return self._table(
            f"WITH c AS (SELECT vid, place, epoch_us(t_r) AS a, epoch_us(t_d) AS b "  # noqa: S608
            f"FROM {self._source} WHERE {where}) SELECT l.vid AS source, r.vid, l.place, "
            "sum(least(l.b, r.b) - greatest(l.a, r.a)) / 60e6 AS minutes FROM c l JOIN c r "
            "ON l.place = r.place AND l.vid <> r.vid AND l.a < r.b AND r.a < l.b "
            f"GROUP BY ALL HAVING minutes >= {MINUTES}"
        )

    def sampled(self, sampled: int) -> list[str]:
        """Name the places of the sample."""
        found = self._table(
            f"SELECT DISTINCT place FROM {self._source} WHERE hash(place) % {sampled} = 0"  # noqa: S608
        )
        names: list[str] = found["place"].to_pylist()
        return names

    def _table(self, query: str) -> pa.Table:
        return self._connection.sql(query).to_arrow_table()


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    found = work()
    return time.perf_counter() - begin, found


def _held(seen: Any, duck: Duck, name: str) -> dict[str, Any]:
    """Ask one question of both in turns; they must count the same."""
    asked = {"occupancy": occupancy, "flows": flows}[name]
    ours, theirs = [], []
    for _ in range(REPEATS):
        took, told = _timed(getattr(duck, name))
        theirs.append(took)
        took, found = _timed(lambda: asked(seen, k=1).toArrow())
        ours.append(took)
        assert sum(found["count"].to_pylist()) == sum(told["count"].to_pylist()), name
        assert found.num_rows == told.num_rows, name
    return {
        "question": name,
        "rows": found.num_rows,
        "spark_s": statistics.median(ours),
        "duckdb_s": statistics.median(theirs),
    }


def _met(seen: Any, duck: Duck) -> dict[str, Any]:
    """Ask who met whom: all of it by the sweep, a sample of the places by a plain self-join."""
    places = duck.sampled(SAMPLED)
    some = exposure(seen.where(seen.place.isin(places)), minutes=MINUTES).count()
    plain, told = _timed(lambda: duck.plain(SAMPLED))
    assert some == told.num_rows, "exposure is answered differently"
    ours, found = _timed(lambda: exposure(seen, minutes=MINUTES).count())
    return {
        "question": "exposure",
        "rows": found,
        "spark_s": ours,
        "self_join_s": plain * SAMPLED,
        "self_join/spark": plain * SAMPLED / ours,
    }


def _learned(seen: Any) -> tuple[list[dict[str, Any]], int]:
    """Publish occupancy at three levels; give what is told, and how many counts below k come out.

    A cell less the finer cells within it is what it counts beside them: nothing, or a crowd.
    """
    rows, found = [], {}
    for level in (2, 3, 4):
        every = occupancy(seen, level=level, k=1).toArrow()
        took, table = _timed(lambda at=level: occupancy(seen, level=at, k=K).toArrow())
        cells = zip(table["place"].to_pylist(), table["hour"].to_pylist(), strict=True)
        found[level] = dict(zip(cells, table["count"].to_pylist(), strict=True))
        rows.append(
            {
                "question": f"occupancy, k = {K}, level {level}",
                "rows": table.num_rows,
                "spark_s": took,
                "told": sum(found[level].values()) / sum(every["count"].to_pylist()),
            }
        )
    learned = sum(count < K for one in found.values() for count in one.values())
    for fine, coarse in ((4, 3), (3, 2), (4, 2)):
        rest = dict(found[coarse])
        for (place, hour), count in found[fine].items():
            rest["/".join(place.split("/")[:coarse]), hour] -= count
        learned += sum(0 < left < K for left in rest.values())
    return rows, learned


def _claims(rows: list[dict[str, Any]], learned: int) -> list[Claim]:
    by = {row["question"]: row for row in rows}
    ratio = by["exposure"]["self_join/spark"]
    return [
        Claim(
            "exposure, everybody with everybody, against DuckDB's plain self-join",
            round(ratio, 1),
            ratio >= 20,
            bar=">= 20 times",
            note=f"the self-join was asked of one place in {SAMPLED}",
        ),
        Claim(
            "counts below k that published tables of other levels give away",
            learned,
            learned == 0,
            bar=0,
        ),
    ]
