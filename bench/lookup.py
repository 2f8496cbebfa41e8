"""How fast are historic messages answered, beside DuckDB on the same pruned list of files?

Both are warm, both read the same Parquet files. DuckDB gets the list of files for free. It answers
one question after another, and all as one join of messages and contexts, by cell and hour; ours
plans, reads and matches all messages in one batch, on Spark and in the driver. Then one message of
each shape is asked of all files, and its CPU compared. `--full` adds 100 million contexts.
"""

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from roamcast.lab.report import Claim, Report, Steps
from roamcast.model.filters import Filter
from roamcast.pipeline.archive.append import commit
from roamcast.pipeline.archive.care import compact
from roamcast.pipeline.archive.files import write_table
from roamcast.pipeline.archive.layout import placed
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.lookup.plan import Needs
from roamcast.pipeline.lookup.run import Lookup
from roamcast.pipeline.spark.session import Settings, started

sys.path.append(str(Path(__file__).parent))  # benches live outside the package
import _contexts as generator
import _lookup_shapes as shapes

TITLE = "Historic lookups: one batch on Spark beside DuckDB, one by one and as one join"
MESSAGES = [1, 10, 100, 1_000, 10_000]
TOGETHER = 10
"""Millions of contexts sorted into files together; more are compacted afterwards."""

CHECKED = 1_000
"""Questions whose every answer is compared with DuckDB's."""

SINGLE = 50
SLICE = 100
REPEATS = 3


def run(quick: bool, progress: Steps, *, full: bool = False) -> Report:
    """Build the archives, ask both, compare every answer."""
    sizes = [200_000, 1_000_000] if quick else [1_000_000, 10_000_000]
    if full:
        sizes.append(100_000_000)
    rows: list[dict[str, Any]] = []
    shaped: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="roamcast-bench-") as folder,
        started(Settings(master="local[2]", memory="3g")) as spark,
    ):
        for size in sizes:
            archive = Path(folder) / str(size)
            _build(archive, size, progress)
            with progress(f"{size:,} contexts", len(MESSAGES)) as step:
                rows += _asked(archive, size, spark, step)
            shaped += shapes.rows(archive, size)
            if size != sizes[-1]:
                shutil.rmtree(archive)
    parameters = {"contexts": sizes, "messages": MESSAGES, "spark": "local[2]", "repeats": REPEATS}
    claims = [*_claims(rows, sizes), *shapes.claims(shaped, max(sizes[:2]))]
    return Report("lookup", parameters, [*rows, *shaped], claims)


def _build(archive: Path, size: int, progress: Steps) -> None:
    target = Archive.make(archive)
    held: list[pa.Table] = []
    with progress("contexts", size) as step:
        for number, drawn in enumerate(generator.raw(size), 1):
            table = generator.table(drawn)
            held += [
                pa.Table.from_batches([placed(batch, target.settings)])
                for batch in table.to_batches()
            ]
            if number % TOGETHER == 0 or number * generator.CHUNK >= size:
                files = list(write_table(target.storage, pa.concat_tables(held)))
                commit(target, files, table.schema.names, None)
                held = []
            step(table.num_rows)
    if size > TOGETHER * generator.CHUNK:
        compact(archive)


def _asked(
    archive: Path, size: int, spark: Any, step: Callable[[int], None]
) -> list[dict[str, Any]]:
    asked = generator.questions(MESSAGES[-1])
    filters = [Filter.parse(generator.filter_text(question)) for question in asked]
    on_spark = Lookup(archive, spark, driver_rows=0)
    here = Lookup(archive)
    duck = _Duck(archive, here, asked[:CHECKED])
    answers = [duck.answer(number)[1] for number in range(CHECKED)]  # warm, and to compare with
    rows = []
    for count in MESSAGES:
        chosen = filters[:count]
        found = on_spark.pairs(chosen)
        _check(found, answers, min(count, CHECKED))
        ours, theirs = [], []
        for repeat in range(REPEATS):  # in turns: what else the machine does meets both
            some = range(repeat * SLICE, (repeat + 1) * SLICE)
            theirs += [duck.answer(number)[0] for number in some]
            ours.append(_timed(lambda c=chosen: on_spark.pairs(c)))
        seconds = statistics.median(ours)
        row: dict[str, Any] = {
            "contexts": size,
            "messages": count,
            "spark_s": seconds,
            "duckdb_s": sum(theirs) / len(theirs) * count,
            "pairs": found.num_rows,
        }
        if count == 1:
            turns = [
                (_timed(lambda n=n: here.pairs([filters[n]])), duck.answer(n)[0])
                for n in range(SINGLE)
            ]
            row["driver_ms_median"] = 1_000 * statistics.median(turn[0] for turn in turns)
            row["duckdb_ms_median"] = 1_000 * statistics.median(turn[1] for turn in turns)
        joined = []
        for _ in range(REPEATS):
            took, pairs = duck.join(asked[:count])
            assert pairs["vid"].equals(found["vid"]), "the join is answered differently"
            joined.append(took)
        row["join_s"] = statistics.median(joined)
        row["join/spark"] = row["join_s"] / seconds
        row["driver_s"] = _timed(lambda c=chosen: here.pairs(c))
        row["duckdb/spark"] = row["duckdb_s"] / seconds
        rows.append(row)
        step(1)
    return rows


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


class _Duck:
    """DuckDB with each question's file list at hand: it comes from our plan and costs nothing."""

    def __init__(self, archive: Path, lookup: Lookup, asked: list[dict[str, Any]]) -> None:
        import duckdb

        self._connection = duckdb.connect()
        self._connection.execute("SET threads = 2; SET TimeZone = 'UTC'")
        self._texts = []
        self._source = [f"{archive}/{path}" for path in lookup.archive.files()["path"].to_pylist()]
        for question in asked:
            shares = lookup.plan(Needs([Filter.parse(generator.filter_text(question))]))
            files = [f"{archive}/{share.path}" for share in shares]
            none = "SELECT NULL WHERE false"
            self._texts.append(generator.sql(question, files) if files else none)

    def answer(self, number: int) -> tuple[float, list[str]]:
        """Answer one question; give the seconds it took and the vids, sorted."""
        begin = time.perf_counter()
        found = self._connection.execute(self._texts[number]).fetchall()
        return time.perf_counter() - begin, sorted(row[0] for row in found)

    def join(self, asked: list[dict[str, Any]]) -> tuple[float, pa.Table]:
        """Answer questions by one join; give the seconds and the distinct pairs, sorted."""
        names = ("x0", "x1", "y0", "y1", "t0", "t1", "kind", "level")
        columns = {name: [question[name] for question in asked] for name in names}
        self._connection.register("asked", pa.table({"number": range(len(asked)), **columns}))
        begin = time.perf_counter()
        found = self._connection.sql(generator.join_sql(self._source, "asked")).to_arrow_table()
        return time.perf_counter() - begin, found


def _check(found: pa.Table, answers: list[list[str]], count: int) -> None:
    """Ours and DuckDB's must be the same answers, or no time means anything."""
    ours: list[list[str]] = [[] for _ in range(count)]
    for message, vid in zip(found["message"].to_pylist(), found["vid"].to_pylist(), strict=True):
        if message < count:
            ours[message].append(vid)
    for number in range(count):
        assert ours[number] == answers[number], f"message {number} is answered differently"


def _claims(rows: list[dict[str, Any]], sizes: list[int]) -> list[Claim]:
    by = {(row["contexts"], row["messages"]): row for row in rows}
    size = 10_000_000 if 10_000_000 in sizes else sizes[-1]
    told = f"on {size:,} contexts"
    ratios = [(1_000, 2.0), (10_000, 5.0)]
    claims = [
        Claim(
            f"{count:,} messages in one batch on Spark against DuckDB one by one, {told}",
            round(by[size, count]["duckdb/spark"], 2),
            by[size, count]["duckdb/spark"] >= bar,
            bar=f">= {bar:g} times",
            note=f"DuckDB: the mean of {REPEATS * SLICE} questions, times {count:,}",
        )
        for count, bar in ratios
    ]
    for count in (1_000, 10_000):
        row = by[size, count]
        claims += [
            Claim(
                f"{count:,} messages in one batch on Spark against DuckDB's one join, {told}",
                round(row["join/spark"], 2),
                row["join/spark"] >= 1,
                bar=">= 1 times",
            ),
            Claim(
                f"{count:,} messages on Spark against our own driver alone, {told}",
                round(row["driver_s"] / row["spark_s"], 2),
                row["driver_s"] >= row["spark_s"],
                bar=">= 1 times",
            ),
        ]
    one = by[size, 1]
    alone = one["driver_ms_median"] / one["duckdb_ms_median"]
    claims.append(
        Claim(
            f"one message alone, in the driver, against DuckDB's median, {told}",
            round(alone, 2),
            alone <= 3,
            bar="<= 3 times",
            note=f"as a Spark job {1_000 * one['spark_s']:.0f} ms",
        )
    )
    grown = by[size, 10_000]["spark_s"] / by[size, 100]["spark_s"]
    claims.append(
        Claim(
            f"100 times the messages (100 to 10,000), {told}",
            round(grown, 2),
            grown < 100,
            bar="< 100 times the time",
        )
    )
    for small, large in pairwise(sizes):
        factor = large / small
        grown = by[large, 1_000]["spark_s"] / by[small, 1_000]["spark_s"]
        claims.append(
            Claim(
                f"{factor:g} times the contexts ({small:,} to {large:,}), 1,000 messages",
                round(grown, 2),
                grown < factor,
                bar=f"< {factor:g} times the time",
            )
        )
    return claims
