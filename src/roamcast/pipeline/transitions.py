"""Transition counts by Spark: from which place people went on to which.

A walk is the life of one vid, over all archives and journals that are given: with those of several
nodes, crossings from node to node are counted, too. Journals of one day and an archive that was fed
from the same brokers count the same walks twice: give one or the other.
"""

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from roamcast.errors import InputError, LimitError
from roamcast.model.records import ContextChanged, ContextOpened, kind_of
from roamcast.model.transitions import PLACES_MAX, Transitions
from roamcast.pipeline.analysis.reading import contexts
from roamcast.pipeline.journals.read import FAILED, read_journals, segments
from roamcast.pipeline.spark.errors import collected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_MAX = 10_000_000
"""Pairs of places that are brought here."""


def visits(spark: "SparkSession", sources: Sequence[Path]) -> "DataFrame":
    """Give vid, place and time of every visit in these archives and journals."""
    from pyspark.sql import functions as f

    found: list[DataFrame] = []
    journals: list[Path] = []
    for source in sources:
        if (source / "_delta_log").is_dir():
            rows = contexts(spark, source, columns=("vid", "place", "t_r"))
            found.append(rows.select("vid", "place", f.unix_micros("t_r").alias("at")))
        else:
            journals.append(source)
    if journals:
        journal = read_journals(spark, segments(journals))
        begun = f.col("kind").isin(kind_of(ContextOpened), kind_of(ContextChanged))
        found.append(journal.where(begun).select("vid", "place", f.col("time_us").alias("at")))
    if not found:
        raise InputError("give an archive, or folders of journals")
    return reduce(lambda one, other: one.unionByName(other), found)


def counted(walks: "DataFrame", k: int) -> "DataFrame":
    """Count who went on from where to where; what fewer than k walks have is left out."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    walk = Window.partitionBy("vid").orderBy("at")
    placed = walks.where((f.col("place") != "") & f.col("place").isNotNull())
    moves = placed.select(
        "vid", f.lag("place").over(walk).alias("origin"), f.col("place").alias("destination")
    ).where(f.col("origin") != f.col("destination"))
    found = moves.groupBy("origin", "destination").agg(
        f.count("*").alias("count"), f.count_distinct("vid").alias("walks")
    )
    return found.where(f.col("walks") >= k).drop("walks")


def transitions(spark: "SparkSession", sources: Sequence[Path], *, k: int) -> Transitions:
    """Count, and bring the counts here."""
    table = collected(counted(visits(spark, sources), k).limit(ROWS_MAX + 1), FAILED)
    counts: dict[str, dict[str, int]] = {}
    for row in table.sort_by([("origin", "ascending"), ("destination", "ascending")]).to_pylist():
        counts.setdefault(row["origin"], {})[row["destination"]] = row["count"]
    if table.num_rows > ROWS_MAX or len(counts) > PLACES_MAX:
        raise LimitError(f"more than {PLACES_MAX:,} places or {ROWS_MAX:,} pairs: raise --k")
    return Transitions(k, counts)
