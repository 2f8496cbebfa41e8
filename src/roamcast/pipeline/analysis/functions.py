"""The filter language for SQL: `place_within`, the temporal predicates, and `cql2_match`.

The predicates are written as SQL expressions from the same table of formulas that the reference
evaluator reads (`model.filters.temporal`), so Spark's optimizer sees through them and no Python
runs. A context that lasts has an end later than every moment. `cql2_match` evaluates any filter
over whole rows with the matching kernel, a batch at a time.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from roamcast.model.filters.temporal import FORMULAS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILTERS_TOGETHER = 256
"""Filters of `cql2_match` that a worker has compiled at a time; a query rarely has two."""

# Spark's latest timestamp: no context's t_d lies after it, and no interval's end does.
_FOREVER = "TIMESTAMP '294247-01-10 04:00:54.775807 UTC'"
_BOUNDS = {
    "a": "a",
    "b": "b",
    "a-z": "timestampadd(MICROSECOND, -cast(z * 1000000 AS BIGINT), a)",
    "a+z": "timestampadd(MICROSECOND, cast(z * 1000000 AS BIGINT), a)",
    "b-z": "timestampadd(MICROSECOND, -cast(z * 1000000 AS BIGINT), b)",
    "b+z": "timestampadd(MICROSECOND, cast(z * 1000000 AS BIGINT), b)",
}


def statements() -> list[str]:
    """Give the statements that define the functions which are SQL expressions."""
    within = (
        "CREATE OR REPLACE TEMPORARY FUNCTION place_within(place STRING, region STRING) "
        "RETURNS BOOLEAN RETURN place = region OR startswith(place, concat(region, '/'))"
    )
    found = [within]
    for name, formula in FORMULAS.items():
        tolerance = ", z DOUBLE DEFAULT 0" if name == "equals" else ""
        found.append(
            f"CREATE OR REPLACE TEMPORARY FUNCTION time_{name}"
            f"(t_r TIMESTAMP, t_d TIMESTAMP, a TIMESTAMP, b TIMESTAMP{tolerance}) "
            f"RETURNS BOOLEAN RETURN {_written(formula)}"
        )
    return found


def _written(formula: list[list[tuple[Any, Any, str]]]) -> str:
    ends = {"t_r": "t_r", "t_d": f"coalesce(t_d, {_FOREVER})"}
    ways = [
        " AND ".join(f"{ends[end]} {sign} {_BOUNDS[bound]}" for end, sign, bound in together)
        for together in formula
    ]
    return " OR ".join(f"({way})" for way in ways)


def define_functions(spark: "SparkSession") -> None:
    """Give a session all functions."""
    from pyspark.sql.pandas.functions import arrow_udf

    for statement in statements():
        spark.sql(statement)
    make: Any = arrow_udf  # its overloads name no iterator of several columns
    spark.udf.register("cql2_match", make(_match, "boolean"))


def _match(parts: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
    """Evaluate a filter over contexts; the second argument is `struct(*)` of the contexts."""
    yield from (matched(texts, contexts) for texts, contexts in parts)


_match.__annotations__ = {
    "parts": Iterator[tuple[pa.Array, pa.Array]],
    "return": Iterator[pa.Array],
}


def matched(texts: pa.Array, contexts: pa.StructArray) -> pa.Array:
    """Say for each row whether its context satisfies its filter; null without a filter."""
    import numpy as np

    from roamcast.matching import FilterSet
    from roamcast.model.context_arrow import check_columns
    from roamcast.model.filters import Filter
    from roamcast.pipeline.archive.layout import PARTITIONS

    batch = pa.RecordBatch.from_struct_array(contexts)
    # struct(*) of `contexts` has the partitions of the files as well, which no filter speaks of
    own = [name for name in batch.schema.names if name not in PARTITIONS]
    batch = batch.select(own)
    check_columns(batch.schema)
    answer = np.zeros(len(texts), bool)
    coded = texts.dictionary_encode()
    rows_of = np.asarray(coded.indices.fill_null(-1))
    distinct = coded.dictionary.to_pylist()
    for first in range(0, len(distinct), FILTERS_TOGETHER):
        filters = FilterSet()
        some = distinct[first : first + FILTERS_TOGETHER]
        filters.add_many((str(first + at), Filter.parse(text)) for at, text in enumerate(some))
        pairs = filters.match_batch(batch)
        asked = pairs.ids.astype(np.int64) == rows_of[pairs.rows]
        answer[pairs.rows[asked]] = True
    return pa.array(answer, mask=rows_of < 0)
