"""Twelve questions that analysts ask have DuckDB's answers on the same rows, wherever Spark runs.

By DataFrames, SQL, lookups and commands: on this machine in every run, on a standalone cluster and
through Connect in `make soak`. Plans are printed and show columns pruned and filters pushed down.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from roamcast import pipeline
from roamcast.model.context_arrow import schema
from roamcast.pipeline.archive.append import append
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


def rounded(rows: list[tuple[Any, ...]]) -> list[str]:
    """Make rows comparable: both sum floats in an order of their own."""
    return sorted(
        repr([round(v, 6) if isinstance(v, float) else str(v) for v in row]) for row in rows
    )


def test_twelve_questions_have_duckdbs_answers(anywhere: Any, tmp_path: Path) -> None:
    for start in range(0, TABLE.num_rows, 200):
        append(TABLE.slice(start, 200), tmp_path / "archive")
    assert len(QUESTIONS) == 12
    for name, (ask, _) in QUESTIONS.items():
        found = ask(anywhere, str(tmp_path / "archive")).toArrow()
        got = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
        assert rounded(got) == rounded(told_by_duckdb(name)), name
        assert got, name


def told_by_duckdb(name: str) -> list[tuple[Any, ...]]:
    peer = duckdb.connect()
    peer.execute("SET TimeZone = 'UTC'")
    peer.register("c", TABLE)
    want = peer.sql(QUESTIONS[name][1]).to_arrow_table()
    return list(zip(*(column.to_pylist() for column in want.columns), strict=True))


WHERE = {
    "place": "within(place, 'campus/b1')",
    "time": DURING,
    "filter": f"{BOX} AND age > 40",
    "match": "kind LIKE 'B%'",
}


def exported(run: Callable[..., str], folder: Path, *words: str) -> pa.Table:
    """Ask a command for a file of rows, and read it."""
    run(*words, "--archive", folder / "archive")
    return pq.read_table(folder / "rows.parquet")


def test_twelve_commands_have_duckdbs_answers(
    anywhere: Any, commanded: Callable[[Any], Callable[..., str]], tmp_path: Path
) -> None:
    append(TABLE, tmp_path / "archive")
    run, rows = commanded(anywhere), str(tmp_path / "rows.parquet")
    answers: dict[str, Iterable[tuple[Any, ...]]] = {}
    every = exported(run, tmp_path, "export", rows)
    answers["all"] = [(every.num_rows,)]
    kinds = every.group_by("string:kind").aggregate([([], "count_all"), ("integer:age", "mean")])
    answers["kinds"] = columns_of(kinds, "string:kind", "count_all", "integer:age_mean")
    for name, where in WHERE.items():
        found = exported(run, tmp_path, "export", rows, "--where", where)
        answers[name] = columns_of(found, "vid", "t_r")
    for name, extra in (
        *((name, ["--k", "1"]) for name in ("occupancy", "dwell", "entries", "flows")),
        ("exposure", ["--minutes", "30"]),
    ):
        found = exported(run, tmp_path, name, "--on", "spark", "--out", rows, *extra)
        if "hour" in found.column_names:
            seconds = pc.divide(found["hour"].cast(pa.timestamp("us")).cast(pa.int64()), 1_000_000)
            at = found.column_names.index("hour")
            found = found.set_column(at, "hour", seconds)
        told = ["place", "kind", "hour", "count"] if name == "entries" else found.column_names
        told = ["place", "count", "mean_s"] if name == "dwell" else told
        answers[name] = columns_of(found, *told)
    messages = {"m1": f"{DURING} AND {BOX}", "m2": "kind = 'dog' AND age <= 30"}
    lines = [json.dumps({"id": name, "filter": text}) for name, text in messages.items()]
    (tmp_path / "messages.jsonl").write_text("\n".join(lines) + "\n")
    words = (tmp_path / "messages.jsonl", "--archive", tmp_path / "archive", "--on", "spark")
    reached = [json.loads(line) for line in run("lookup", *words).splitlines()]
    answers["lookup"] = [(one["id"], vid) for one in reached for vid in one["vids"]]
    assert answers.keys() == QUESTIONS.keys()
    for name, got in answers.items():
        assert rounded(list(got)) == rounded(told_by_duckdb(name)), name


def columns_of(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def test_a_printed_plan_shows_what_is_pruned_and_pushed_down(
    anywhere: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(TABLE, tmp_path / "archive")
    found = pipeline.contexts(anywhere, tmp_path / "archive")
    found.where("place = 'campus/b1/r1' AND span = 'hours'").select("vid").explain()
    plan = capsys.readouterr().out
    assert "EqualTo(place,campus/b1/r1)" in plan
    assert "PartitionFilters: [isnotnull(span" in plan
    assert "ReadSchema: struct<vid:string,place:string>" in plan
