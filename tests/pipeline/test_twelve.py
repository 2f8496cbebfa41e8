"""Twelve questions that analysts ask have DuckDB's answers on the same rows, wherever Spark runs.

By DataFrames, SQL and lookups: on this machine in every run, on a standalone cluster and through
Connect in `make soak`. Plans are printed and show columns pruned and filters pushed down.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from roamcast import pipeline
from roamcast.model.context_arrow import schema
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.spark.session import Settings, started
from tests.pipeline.clusters import connect_server, need_java, stop_running
from tests.strategies_pipeline import BEGIN

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]
COLUMNS = schema(["integer:age", "string:kind"])
FROM, TO = "2026-09-22T08:00:00Z", "2026-09-22T12:00:00Z"
HOUR = "epoch_us({0}) // 3600000000 * 3600"
MOVES = (
    "SELECT vid, place AS destination, lag(place) OVER (PARTITION BY vid ORDER BY t_r, t_d) AS "
    f"origin, {HOUR.format('t_r')} AS hour FROM c"
)


def walks(people: int = 120, visits: int = 5) -> pa.Table:
    """Draw people who walk from place to place within two days."""
    rng = np.random.default_rng(12)
    lasts = rng.integers(300, 9_000, (people, visits)) * 1_000_000
    ends = BEGIN + rng.integers(0, 100_000, people)[:, None] * 1_000_000 + np.cumsum(lasts, axis=1)
    count = people * visits
    stamp = COLUMNS.field("t_r").type
    places = [f"campus/b{n % 3}/r{n}" for n in range(9)]
    return pa.table(
        {
            "vid": [f"v{n // visits:04d}@node" for n in range(count)],
            "place": [places[n] for n in rng.integers(0, 9, count)],
            "lon": 8.5 + 0.6 * rng.random(count),
            "lat": 48.4 + 0.6 * rng.random(count),
            "t_r": pa.array((ends - lasts).ravel()).cast(stamp),
            "t_d": pa.array(ends.ravel()).cast(stamp),
            "integer:age": pa.array(rng.integers(0, 90, count), mask=rng.random(count) < 0.2),
            "string:kind": [("bus", "Bike", "dog")[n] for n in rng.integers(0, 3, count)],
        },
        schema=COLUMNS,
    )


TABLE = walks()
Ask = Callable[[Any, str], Any]


def _frame(how: Callable[[Any], Any]) -> Ask:
    return lambda spark, archive: how(pipeline.contexts(spark, archive))


def _sql(text: str) -> Ask:
    def ask(spark: Any, archive: str) -> Any:
        pipeline.define_functions(spark)
        pipeline.contexts(spark, archive).createOrReplaceTempView("contexts")
        return spark.sql(text)

    return ask


def _seconds(frame: Any, *names: str) -> Any:
    return frame.selectExpr(*names, "unix_seconds(hour) AS hour", "count")


BOX = "S_INTERSECTS(geometry, BBOX(8.6, 48.5, 8.9, 48.8))"
DURING = f"overlaps(time, INTERVAL('{FROM}', '{TO}'))"
OVERLAP = f"t_r <= TIMESTAMPTZ '{TO}' AND t_d >= TIMESTAMPTZ '{FROM}'"
QUESTIONS: dict[str, tuple[Ask, str]] = {
    "all": (_frame(lambda c: c.selectExpr("count(*)")), "SELECT count(*) FROM c"),
    "kinds": (
        _sql("SELECT `string:kind`, count(*), avg(`integer:age`) FROM contexts GROUP BY 1"),
        'SELECT "string:kind", count(*), avg("integer:age") FROM c GROUP BY 1',
    ),
    "place": (
        _sql("SELECT vid, t_r FROM contexts WHERE place_within(place, 'campus/b1')"),
        "SELECT vid, t_r FROM c WHERE place LIKE 'campus/b1/%'",
    ),
    "time": (
        _sql(
            f"SELECT vid, t_r FROM contexts WHERE time_overlaps(t_r, t_d, TIMESTAMP '{FROM}', "
            f"TIMESTAMP '{TO}')"
        ),
        f"SELECT vid, t_r FROM c WHERE {OVERLAP}",
    ),
    "filter": (
        lambda spark, archive: pipeline.contexts(
            spark, archive, filter=f"{BOX} AND age > 40", columns=["vid", "t_r"]
        ),
        (
            "SELECT vid, t_r FROM c WHERE lon BETWEEN 8.6 AND 8.9 AND lat BETWEEN 48.5 AND 48.8 "
            'AND "integer:age" > 40'
        ),
    ),
    "match": (
        _sql("SELECT vid, t_r FROM contexts WHERE cql2_match('kind LIKE ''B%''', struct(*))"),
        "SELECT vid, t_r FROM c WHERE \"string:kind\" LIKE 'B%'",
    ),
    "lookup": (
        lambda spark, archive: pipeline.look_up(
            spark, archive, {"m1": f"{DURING} AND {BOX}", "m2": "kind = 'dog' AND age <= 30"}
        ),
        (
            f"SELECT DISTINCT 'm1', vid FROM c WHERE {OVERLAP} AND lon BETWEEN 8.6 AND 8.9 AND lat "
            "BETWEEN 48.5 AND 48.8 UNION ALL SELECT DISTINCT 'm2', vid FROM c WHERE "
            '"string:kind" = \'dog\' AND "integer:age" <= 30'
        ),
    ),
    "occupancy": (
        _frame(lambda c: _seconds(pipeline.occupancy(c, k=1), "place")),
        (
            "SELECT place, 3600 * h, count(DISTINCT vid) FROM (SELECT place, vid, unnest(range("
            "epoch_us(t_r) // 3600000000, epoch_us(t_d) // 3600000000 + 1)) AS h FROM c) "
            "GROUP BY ALL"
        ),
    ),
    "dwell": (
        _frame(lambda c: pipeline.dwell(c, k=1).select("place", "count", "mean_s")),
        "SELECT place, count(*), avg((epoch_us(t_d) - epoch_us(t_r)) / 1e6) FROM c GROUP BY 1",
    ),
    "entries": (
        _frame(lambda c: _seconds(pipeline.entries(c, k=1), "place", "kind")),
        (
            f"SELECT place, 'entry', {HOUR.format('t_r')}, count(*) FROM c GROUP BY ALL UNION ALL "
            f"SELECT place, 'exit', {HOUR.format('t_d')}, count(*) FROM c GROUP BY ALL"
        ),
    ),
    "flows": (
        _frame(lambda c: _seconds(pipeline.flows(c, k=1), "origin", "destination")),
        (
            f"SELECT origin, destination, hour, count(*) FROM ({MOVES}) "
            "WHERE origin <> destination GROUP BY ALL"
        ),
    ),
    "exposure": (
        _frame(lambda c: pipeline.exposure(c, minutes=30)),
        (
            "SELECT l.vid, r.vid, l.place, sum(epoch_us(least(l.t_d, r.t_d)) - epoch_us(greatest("
            "l.t_r, r.t_r))) / 60e6 AS m FROM c l JOIN c r ON l.place = r.place "
            "AND l.vid <> r.vid AND l.t_r < r.t_d AND r.t_r < l.t_d GROUP BY ALL HAVING m >= 30"
        ),
    ),
}


@pytest.fixture(
    scope="module",
    params=[
        "local",
        pytest.param("cluster", marks=pytest.mark.soak),
        pytest.param("connect", marks=pytest.mark.soak),
    ],
)
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    if request.param != "connect":
        yield request.getfixturevalue("spark" if request.param == "local" else "cluster_session")
        return
    need_java()
    stop_running()
    before = dict(os.environ)
    with ExitStack() as stack:
        server = stack.enter_context(connect_server(tmp_path_factory.mktemp("connect") / "log"))
        yield stack.enter_context(started(Settings(master=server)))
    for name in os.environ.keys() - before.keys():
        del os.environ[name]  # pyspark's: other processes would look for a server, too


def rounded(rows: list[tuple[Any, ...]]) -> list[str]:
    """Make rows comparable: both sum floats in an order of their own."""
    return sorted(
        repr([round(v, 6) if isinstance(v, float) else str(v) for v in row]) for row in rows
    )


def test_twelve_questions_have_duckdbs_answers(session: Any, tmp_path: Path) -> None:
    for start in range(0, TABLE.num_rows, 200):
        append(TABLE.slice(start, 200), tmp_path / "archive")
    assert len(QUESTIONS) == 12
    peer = duckdb.connect()
    peer.execute("SET TimeZone = 'UTC'")
    peer.register("c", TABLE)
    for name, (ask, sql) in QUESTIONS.items():
        found = ask(session, str(tmp_path / "archive")).toArrow()
        got = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
        want = peer.sql(sql).to_arrow_table()
        told = list(zip(*(column.to_pylist() for column in want.columns), strict=True))
        assert rounded(got) == rounded(told), name
        assert got, name


def test_a_printed_plan_shows_what_is_pruned_and_pushed_down(
    session: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(TABLE, tmp_path / "archive")
    found = pipeline.contexts(session, tmp_path / "archive")
    found.where("place = 'campus/b1/r1' AND span = 'hours'").select("vid").explain()
    plan = capsys.readouterr().out
    assert "EqualTo(place,campus/b1/r1)" in plan
    assert "PartitionFilters: [isnotnull(span" in plan
    assert "ReadSchema: struct<vid:string,place:string>" in plan
