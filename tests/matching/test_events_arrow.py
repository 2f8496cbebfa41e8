"""A batch is read as its contexts would be, or refused as they would be."""

import pyarrow as pa
import pytest

from roamcast.errors import ContextError
from roamcast.matching import FilterSet
from roamcast.model.context_arrow import to_arrow
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter


@pytest.fixture
def index() -> FilterSet:
    made = FilterSet()
    made.add("f", Filter.parse("n > 1 AND w = 'x'"))
    made.add("box", Filter.parse("S_INTERSECTS(geometry, BBOX(0,0,1,1))"))
    return made


def with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.Table:
    table = pa.Table.from_batches([batch])
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)


def test_an_empty_batch_has_no_pairs(index: FilterSet) -> None:
    pairs = index.match_batch(to_arrow([]))
    assert len(pairs.rows) == len(pairs.ids) == 0
    assert FilterSet().match_batch(to_arrow([Context("v")])).rows.tolist() == []


def test_a_table_of_several_chunks_counts_its_rows_through(index: FilterSet) -> None:
    contexts = [Context("v", attributes={"n": row, "w": "x"}) for row in range(4)]
    schema = to_arrow(contexts).schema
    table = pa.Table.from_batches([to_arrow(contexts[:1], schema), to_arrow(contexts[1:], schema)])
    assert index.match_batch(table).rows.tolist() == [2, 3]


def test_more_rows_than_are_searched_together_count_through(index: FilterSet) -> None:
    contexts = [Context("v", attributes={"n": 2, "w": "x"}) for _ in range(1025)]
    assert index.match_batch(to_arrow(contexts)).rows.tolist() == list(range(1025))


@pytest.mark.parametrize(
    ("name", "column", "problem"),
    [
        ("t_r", pa.array([1]), "column 't_r' is int64, not timestamp"),
        ("integer:n", pa.array([1.5]), "column 'integer:n' is double, not int64"),
        ("colour", pa.array(["red"]), "not an attribute column"),
        ("float:n", pa.array([1.5]), "two values"),
        ("float:m", pa.array([float("nan")]), "not finite"),
        ("lon", pa.array([None], pa.float64()), "without a latitude"),
    ],
)
def test_what_is_no_context_is_refused(
    index: FilterSet, name: str, column: pa.Array, problem: str
) -> None:
    index.add("m", Filter.parse("m > 1"))
    batch = to_arrow([Context("v", None, (0.5, 0.5), {"n": 2, "w": "x"})])
    with pytest.raises(ContextError, match=problem):
        index.match_batch(with_column(batch, name, column))
