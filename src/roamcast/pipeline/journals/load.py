"""Brokers' journals into the archive: each context from its beginning to its end.

The contexts of one vid follow each other: one begins when it appears or changes, and ends when the
next begins or it leaves. What has not ended waits for a later load. A journal grows by segments,
and each load is one commit named after the last segment: what ended in segments that were loaded
before is not loaded again (decision 0047).

A broker that was killed did not write the ends of what it held. When it starts again it numbers its
updates under a new epoch, clients publish again within seconds (their link waits at most 15 s), and
so does the broker what its disk holds. What has not come back by then ended when the broker fell:
at the last moment at which its journal knows it to have been up. The segment in which that is clear
is fixed, so the context is loaded once.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from roamcast.errors import InputError
from roamcast.model.context_arrow import column_of, columns_of, schema, to_arrow
from roamcast.model.contexts import Context, context_of
from roamcast.model.records import ContextChanged, ContextClosed, ContextOpened, kind_of
from roamcast.model.time import MICROSECONDS
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.archive.feed import check_unfed
from roamcast.pipeline.archive.layout import ArchiveSettings
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.journals.read import FAILED, read_journals, segments
from roamcast.pipeline.spark.errors import collected

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

RETURN_S = 60
"""How long after a restart an object may be heard of again as if nothing had happened."""

GONE = "Gone"
"""The kind of an end that nobody wrote."""


def with_gone(journal: "DataFrame", events: "DataFrame") -> "DataFrame":
    """Add to the contexts' events (`vid`, `kind`, `t_d`, …) the ends that restarts make clear."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = Window.partitionBy("run", "host", "vid").orderBy("segment", "row")
    here = f.struct("segment", "row")
    heard_next = f.lead(here).over(order)
    missed = f.filter(
        "restarts",
        lambda one: (
            (one.at > f.col("here"))
            & (one.back_us > f.col("time_us"))  # what is heard first stands before the epoch
            & (f.col("heard_next").isNull() | (f.col("heard_next") > one.clear))
        ),
    )
    placed = events.select("*", here.alias("here"), heard_next.alias("heard_next"))
    known = placed.join(f.broadcast(restarts(journal)), ["run", "host"], "left")
    first = known.select(*events.columns, f.get(missed, f.lit(0)).alias("missed"))
    changed: dict[str, Column] = {
        "segment": f.col("missed.clear.segment"),
        "row": f.col("missed.clear.row"),
        "kind": f.lit(GONE),
        "t_d": f.col("missed.fell_us"),
    }
    ends = first.where(f.col("missed").isNotNull() & (f.col("kind") != _ENDS))
    names = [changed[name].alias(name) if name in changed else name for name in events.columns]
    return events.unionByName(ends.select(*names))


def restarts(journal: "DataFrame") -> "DataFrame":
    """Give each broker's restarts in order: the first record after it, and when it had fallen.

    `clear` is the first record so much later that nobody returns any more; without one the restart
    is left out.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    host = ["run", "host"]
    here = f.struct("segment", "row")
    first = f.min(f.struct(here.alias("at"), f.col("time_us").alias("back_us")))
    epochs = journal.where(f.col("epoch").isNotNull()).groupBy(*host, "epoch")
    began = epochs.agg(first.alias("first")).select(*host, "first.at", "first.back_us")
    earliest = f.min("at").over(Window.partitionBy(*host))
    again = began.select("*", (f.col("at") > earliest).alias("again")).where("again").drop("again")
    up = (here < f.col("at")) & (f.col("time_us") < f.col("back_us"))
    late = (here > f.col("at")) & (f.col("time_us") >= f.col("back_us") + RETURN_S * MICROSECONDS)
    records = journal.select(*host, "segment", "row", "time_us")
    each = (
        records.join(f.broadcast(again), host)
        .groupBy(*host, "at", "back_us")
        .agg(
            f.max(f.when(up, f.col("time_us"))).alias("fell_us"),
            f.min(f.when(late, here)).alias("clear"),
        )
        .where(f.col("clear").isNotNull() & f.col("fell_us").isNotNull())
    )
    listed = f.sort_array(f.collect_list(f.struct("at", "back_us", "clear", "fell_us")))
    return each.groupBy(*host).agg(listed.alias("restarts"))


HERE_ROWS = 200_000
"""Up to so many contexts are read in this process: an hourly load has few."""

TOGETHER = 16_384
_BEGINS = (kind_of(ContextOpened), kind_of(ContextChanged))
_ENDS = kind_of(ContextClosed)


class LoadedJournal(msgspec.Struct, frozen=True):
    """What a load took from one journal; `lasting`: contexts that had not ended.

    left_out: how many attribute names the archive had no room for.
    """

    journal: str
    rows: int
    lasting: int
    committed: bool
    left_out: int = 0


def load_journals(
    spark: "SparkSession",
    paths: Sequence[Path],
    archive: str | Path,
    *,
    finish: bool = False,
    settings: ArchiveSettings | None = None,
) -> list[LoadedJournal]:
    """Append the contexts that ended since the last load, journal by journal.

    finish: the journals are over; what lasts is loaded as lasting, and nothing can follow.
    """
    listed = segments(paths)
    target = Archive.make(archive, settings)
    check_unfed(target, "a journal")
    return [
        _load(spark, run, [path for path in listed if _named(path)[0] == run], target, finish)
        for run in sorted({_named(path)[0] for path in listed})
    ]


def _named(path: Path) -> tuple[str, int]:
    name, _, number = path.stem.rpartition("-")
    return name, int(number)


def _load(
    spark: "SparkSession", run: str, listed: list[Path], target: Archive, finish: bool
) -> LoadedJournal:
    application = f"journal-{run}"
    newest = max(_named(path)[1] for path in listed)
    # A batch number is twice the last segment's, and one more for the load that finishes.
    done = target.last_batch(application) or 0
    number = 2 * newest + finish
    if done >= number:
        return LoadedJournal(run, 0, 0, False)
    if done % 2:
        raise InputError(f"the journal {run} was finished: nothing can follow it")
    before = done // 2
    _check_whole(run, listed, before, newest)
    intervals = context_intervals(read_journals(spark, listed)).cache()
    try:
        rows, lasting = _counted(intervals, _to_load(before, finish=finish))
        found = intervals.where(_to_load(before, finish=finish)).select("t_r", "t_d", "body")
        reading = _read_here if rows <= HERE_ROWS else _read_there
        contexts, left_out = reading(found, target)
        landed = append(contexts, target.storage.uri, transaction=(application, number))
    finally:
        intervals.unpersist()
    return LoadedJournal(run, landed.rows, lasting, landed.committed, left_out)


def _counted(intervals: "DataFrame", to_load: Any) -> tuple[int, int]:
    """Count what is to be loaded and what lasts."""
    from pyspark.sql import functions as f

    counts = [f.count_if(to_load), f.count_if(f.col("t_d").isNull())]
    both = intervals.agg(counts[0].alias("rows"), counts[1].alias("lasting"))
    row = collected(both, FAILED).to_pylist()[0]
    return row["rows"], row["lasting"]


def _check_whole(run: str, listed: list[Path], loaded: int, newest: int) -> None:
    """Refuse a journal with a gap: contexts would begin or end at the wrong moment.

    Segments that were loaded may have been deleted, the oldest first, as the service's retention
    does: what began in them and still lasts is not loaded.
    """
    numbers = {_named(path)[1] for path in listed}
    first = min(min(numbers, default=1), loaded + 1)
    missing = sorted(set(range(first, newest + 1)) - numbers)
    if missing:
        raise InputError(f"segment {missing[0]} of the journal {run} is missing: give its folder")


def _to_load(before: int, *, finish: bool) -> Any:
    from pyspark.sql import functions as f

    ended = f.col("ended_in") > before
    return (ended | f.col("t_d").isNull()) if finish else ended


def context_intervals(journal: "DataFrame") -> "DataFrame":
    """Give each context (run, host, vid, t_r, t_d, body), and the segment in which it ended.

    A beginning that repeats the state at hand is none: clients publish again when a broker has
    restarted. One that does not lie after the beginning before it, or after the end that a restart
    made clear (`restarts`), counts from when it was heard.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = Window.partitionBy("run", "host", "vid").orderBy("segment", "row")
    begins = f.col("kind").isin(*_BEGINS)
    before = f.lag("kind").over(order).isin(*_BEGINS)
    written = journal.where(begins | (f.col("kind") == _ENDS)).select(
        *("run", "host", "vid", "segment", "row", "time_us", "kind", "t_r", "t_d", "body")
    )
    events = with_gone(journal, written).select(
        "*", (begins & before & (f.lag("body").over(order) == f.col("body"))).alias("again")
    )
    returns = (f.lag("kind").over(order) == GONE) & (f.col("t_r") <= f.lag("t_d").over(order))
    fresh = events.where(~f.coalesce("again", f.lit(False))).select(
        *("run", "host", "vid", "segment", "row", "kind", "t_d", "body"),
        f.when(before & (f.col("t_r") <= f.lag("t_r").over(order)), f.col("time_us"))
        .when(returns, f.col("time_us"))
        .otherwise(f.col("t_r"))
        .alias("start"),
    )
    following = f.lead("kind").over(order)
    end = f.when(following.isin(_ENDS, GONE), f.lead("t_d").over(order))
    each = fresh.select(
        *("run", "host", "vid", "kind", "start", "body"),
        end.when(following.isNotNull(), f.lead("start").over(order)).alias("end"),
        f.lead("segment").over(order).alias("ended_in"),
    )
    last = f.when(f.col("end").isNotNull(), f.greatest("start", "end"))
    return each.where(begins).select(
        *("run", "host", "vid", f.col("start").alias("t_r"), last.alias("t_d"), "body", "ended_in")
    )


def _read_here(intervals: "DataFrame", target: Archive) -> tuple[pa.Table, int]:
    """Give contexts in the archive's columns, and how many columns were left out.

    They are few, so they are read in this process.
    """
    batches = collected(intervals, FAILED).to_batches(max_chunksize=TOGETHER)
    parts = [list(_read(batch)) for batch in batches]
    into, left_out = _into(columns_of(chain(*parts)), target)
    fitting = [list(_within(part, into)) for part in parts] if left_out else parts
    rows = [to_arrow(part, into) for part in fitting]
    return pa.Table.from_batches(rows, into), left_out


def _read_there(intervals: "DataFrame", target: Archive) -> tuple["DataFrame", int]:
    """Do the same in Spark's workers; a first pass collects the attributes."""
    from pyspark.sql.pandas.types import from_arrow_schema

    learned = intervals.select("body").mapInArrow(_columns, "column string")
    found = collected(learned.select("column").distinct(), FAILED)
    into, left_out = _into(found["column"].to_pylist(), target)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            contexts = _within(_read(batch), into) if left_out else _read(batch)
            while part := list(islice(contexts, TOGETHER)):
                yield to_arrow(part, into)

    rows = intervals.mapInArrow(read, from_arrow_schema(into))
    return rows.select(*(f"`{name}`" for name in into.names)), left_out


def _into(columns: Collection[str], target: Archive) -> tuple[pa.Schema, int]:
    """Return the schema of the attributes that fit: a live context must not stop a load."""
    room = target.room(columns)
    fitting = [column for column in columns if column in room]
    return schema(fitting), len(columns) - len(fitting)


def _within(contexts: Iterable[Context], into: pa.Schema) -> Iterator[Context]:
    """Give contexts with those of their attributes that have a column."""
    room = frozenset(into.names)
    for context in contexts:
        said = context.attributes.items()
        kept = {name: value for name, value in said if column_of(name, value) in room}
        yield msgspec.structs.replace(context, attributes=kept)


def _columns(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    bodies = (body for batch in batches for body in batch.column(0).to_pylist())
    columns = list(columns_of(map(context_of, bodies)))
    yield pa.RecordBatch.from_pydict({"column": columns}, pa.schema([("column", pa.string())]))


def _read(batch: pa.RecordBatch) -> Iterator[Context]:
    for row in batch.to_pylist():
        context = context_of(row["body"])
        yield msgspec.structs.replace(context, t_r=row["t_r"], t_d=row["t_d"])
