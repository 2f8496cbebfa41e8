"""The wide row: texts as dictionaries are numbered, chosen and completed as plain texts are."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from roamcast.pipeline.ingest import rows

words = st.lists(st.none() | st.sampled_from(["a", "b", "c", "é", ""]), max_size=12)


@given(st.lists(st.tuples(words, st.booleans()), min_size=1, max_size=4))
def test_texts_have_one_number_in_all_parts_and_none_is_0(
    told: list[tuple[list[str | None], bool]],
) -> None:
    parts = [pa.array(texts, rows.WORDS if coded else pa.string()) for texts, coded in told]
    numbers, texts = rows.numbered(parts)
    for (wanted, _), found in zip(told, numbers, strict=True):
        assert texts.take(pa.array(found)).to_pylist() == wanted
        assert [number == 0 for number in found] == [text is None for text in wanted]
    assert len(set(texts.to_pylist())) == len(texts)


@given(words, st.sampled_from([pa.string(), pa.large_string(), rows.WORDS]))
def test_any_texts_become_a_dictionary_of_the_same(
    texts: list[str | None], kind: pa.DataType
) -> None:
    column = pa.array(texts, kind)
    assert rows.is_text(column)
    assert rows.coded(column).type == rows.WORDS
    assert rows.coded(column).to_pylist() == texts


def test_numbers_are_the_texts_of_their_digits() -> None:
    assert rows.coded(pa.array([5, None, 2**64 - 1], pa.uint64())).to_pylist() == [
        "5", None, "18446744073709551615"
    ]  # fmt: skip
    assert not rows.is_text(pa.array([5]))


def test_rows_get_the_columns_that_they_lack_and_lose_what_is_no_column() -> None:
    table = rows.taken(pa.table({"person": ["ann"], "time": [5], "more": [1]}))
    assert table.schema == rows.TAKEN
    (row,) = table.to_pylist()
    assert {name: value for name, value in row.items() if value is not None} == {
        "person": "ann",
        "time": 5,
    }


@given(words, st.lists(st.integers(0, 11), max_size=20))
def test_chosen_rows_are_those_that_were_asked_for(
    texts: list[str | None], order: list[int]
) -> None:
    table = rows.taken(
        pa.table({"person": pa.array(texts, pa.string()), "lon": [1.0] * len(texts)})
    )
    inside = np.array([at for at in order if at < len(texts)], dtype=np.int64)
    found = rows.chosen(table, inside)
    assert found.schema == table.schema
    assert found.to_pylist() == table.take(pa.array(inside)).to_pylist()


def test_no_point_is_not_a_number() -> None:
    found = rows.degrees(pa.chunked_array([[1.5, None], [-2.0]]))
    assert np.isnan(found).tolist() == [False, True, False]
    assert found[[0, 2]].tolist() == [1.5, -2.0]
