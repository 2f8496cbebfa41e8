"""A snapshot finds the same on real Spark executors as it does here."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from roamcast.matching import FilterSet
from roamcast.model.context_arrow import to_arrow
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_executors_find_the_same_pairs(spark: Any) -> None:
    index = FilterSet()
    index.add_many(
        (f"f{n}", Filter.parse(f"n BETWEEN {n} AND {n + 9} AND (k = 'k{n % 3}' OR m IS NULL)"))
        for n in range(60)
    )
    contexts = [
        Context(f"v{row}", attributes={"n": row % 70, "k": f"k{row % 4}"}) for row in range(200)
    ]
    batch = to_arrow(contexts)
    snapshot = index.snapshot()

    def search(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from roamcast.matching import FilterSet as Loaded

        loaded = Loaded.load(snapshot)
        for part in batches:
            exact = pa.RecordBatch.from_arrays(
                [
                    column.cast(field.type)
                    for column, field in zip(part.columns, batch.schema, strict=True)
                ],
                schema=batch.schema,
            )
            pairs = loaded.match_batch(exact)
            yield pa.RecordBatch.from_pydict(
                {
                    "vid": pa.array([part.column("vid")[row].as_py() for row in pairs.rows]),
                    "id": pa.array(pairs.ids, pa.string()),
                }
            )

    frame = spark.createDataFrame(pa.Table.from_batches([batch])).repartition(2)
    found = frame.mapInArrow(search, "vid string, id string").collect()
    local = {(context.vid, name) for context in contexts for name in index.match(context)}
    assert {(row.vid, row.id) for row in found} == local
    assert len(found) == len(local) > 0
