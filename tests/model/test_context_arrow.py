"""Contexts in Arrow and back without loss; a malformed batch is refused in one line."""

import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roamcast.errors import ContextError, InputError, LimitError
from roamcast.model import time
from roamcast.model.context_arrow import (
    FIXED,
    STAMP,
    TYPES,
    column_of,
    from_arrow,
    schema,
    schema_of,
    to_arrow,
)
from roamcast.model.contexts import DEPTH_MAX, Context
from roamcast.model.kinds import INTEGER_MAX
from tests.model.test_contexts import typed
from tests.strategies import any_context, some_context

DEEPEST = Context("v", "/".join("a" * DEPTH_MAX))
"""As deep as a place may be; the strategy once drew deeper ones, which are refused."""


@settings(max_examples=300)
@given(st.lists(any_context(), max_size=3))
@example([DEEPEST])
def test_contexts_survive_arrow(contexts: list[Context]) -> None:
    batch = to_arrow(contexts)
    batch.validate(full=True)
    again = from_arrow(batch)
    assert again == contexts
    assert [sorted(typed(each)) for each in again] == [sorted(typed(each)) for each in contexts]
    assert from_arrow(pa.Table.from_batches([batch])) == contexts
    assert from_arrow(pa.Table.from_batches([batch, batch])) == contexts * 2


@settings(max_examples=50)
@given(st.lists(any_context(), min_size=1, max_size=3))
@example([DEEPEST])
def test_contexts_survive_an_arrow_file(contexts: list[Context]) -> None:
    batch = to_arrow(contexts)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        assert from_arrow(reader.read_all()) == contexts


def test_many_pooled_contexts_survive_in_one_schema() -> None:
    draw = random.Random(2)
    contexts = [some_context(draw, f"v{number}") for number in range(500)]
    common = schema_of(contexts)
    halves = [to_arrow(contexts[:250], common), to_arrow(contexts[250:], common)]
    assert from_arrow(pa.Table.from_batches(halves)) == contexts


def test_kinds_have_columns_of_their_own() -> None:
    contexts = [
        Context("a", attributes={"x": 1}),
        Context("b", attributes={"x": 1.0}),
        Context("c", attributes={"x": True}),
        Context("d", attributes={"x": "1"}),
        Context("e", attributes={"x": datetime(1970, 1, 1, tzinfo=UTC)}),
        Context("f"),
    ]
    batch = to_arrow(contexts)
    assert batch.schema.names[len(FIXED) :] == [f"{kind}:x" for kind in sorted(TYPES)]
    again = from_arrow(batch)
    assert [typed(each) for each in again] == [
        [("x", type(value).__name__, repr(value)) for value in each.attributes.values()]
        for each in contexts
    ]
    assert [column_of("x", each.attributes["x"]) for each in contexts[:5]] == [
        "integer:x",
        "float:x",
        "boolean:x",
        "string:x",
        "timestamp:x",
    ]


def test_a_name_may_hold_a_colon() -> None:
    context = Context("v", attributes={"a:b": 1, "vid:x": "y"})
    assert column_of("a:b", 1) == "integer:a:b"
    assert from_arrow(to_arrow([context])) == [context]


def test_no_contexts_make_an_empty_batch_with_the_fixed_columns() -> None:
    batch = to_arrow([])
    assert batch.num_rows == 0
    assert batch.schema.names == [field.name for field in FIXED]
    assert from_arrow(batch) == []


def test_a_schema_without_room_is_refused() -> None:
    with pytest.raises(ContextError, match="no column 'integer:x'"):
        to_arrow([Context("v", attributes={"x": 1})], schema(["float:x"]))
    with pytest.raises(ContextError, match="not an attribute column"):
        schema(["x"])
    with pytest.raises(ContextError, match="not an attribute column"):
        schema(["number:x"])
    with pytest.raises(ContextError, match="not an attribute column"):
        schema(["integer:"])
    with pytest.raises(ContextError, match="needs a column 'vid'"):
        to_arrow([Context("v")], pa.schema([pa.field("place", pa.string())]))


GOOD = to_arrow([Context("v", "a/b", (1.0, 2.0), {"x": 1, "y": "z"}, 0, 5)])


def changed(name: str, values: pa.Array, field_name: str | None = None) -> pa.RecordBatch:
    index = GOOD.schema.names.index(name)
    arrays = list(GOOD.columns)
    arrays[index] = values
    fields = [
        pa.field(field_name or name, values.type) if i == index else pa.field(f.name, f.type)
        for i, f in enumerate(GOOD.schema)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def stamps(value: int | None) -> pa.Array:
    return pa.array([value], pa.int64()).cast(STAMP)


def broken_text() -> pa.Array:
    raw = pa.array([b"\xff\xfe"], pa.binary())
    return pa.Array.from_buffers(pa.string(), 1, raw.buffers())


REFUSED: list[tuple[Any, str]] = [
    (GOOD.drop_columns(["vid"]), "needs a column 'vid'"),
    (GOOD.drop_columns(["t_d"]), "needs a column 't_d'"),
    (changed("vid", pa.array([5])), "column 'vid' is int64, not string"),
    (changed("t_r", pa.array([5])), "column 't_r' is int64, not timestamp[us, tz=UTC]"),
    (changed("lon", pa.array([1.0], pa.float32())), "column 'lon' is float, not double"),
    (changed("integer:x", pa.array(["5"])), "column 'integer:x' is string, not int64"),
    (changed("integer:x", pa.array([5]), "x"), "'x' is not an attribute column"),
    (changed("string:y", pa.array(["5"]), "place"), "two columns 'place'"),
    (changed("vid", pa.array([None], pa.string())), "row 0 has no vid"),
    (changed("t_r", stamps(None)), "row 0 has no t_r"),
    (changed("t_r", stamps(time.EARLIEST - 1)), "t_r lies outside"),
    (changed("t_d", stamps(-1)), "t_d lies before t_r"),
    (changed("t_d", stamps(INTEGER_MAX)), "after the year 9999"),
    (changed("lon", pa.array([None], pa.float64())), "row 0 has a longitude or a latitude alone"),
    (changed("lat", pa.array([float("nan")])), "not a WGS84"),
    (changed("place", pa.array(["a//b"])), "is not a place"),
    (changed("string:y", pa.array(["5"]), "string:x"), "'x' has two values in row 0"),
    (changed("string:y", broken_text()), "not UTF-8"),
    (changed("string:y", pa.array(["x"]), "string:time"), "'time' is reserved"),
    (changed("string:y", pa.array([float("inf")]), "float:y"), "not a finite number"),
    (changed("string:y", stamps(time.LATEST + 1), "timestamp:y"), "outside the years 1 to 9999"),
    (changed("string:y", stamps(-INTEGER_MAX), "timestamp:y"), "outside the years 1 to 9999"),
]


@pytest.mark.parametrize(("batch", "says"), REFUSED, ids=range(len(REFUSED)))
def test_a_malformed_batch_is_refused_in_one_line(batch: Any, says: str) -> None:
    for form in (batch, pa.Table.from_batches([batch])):
        with pytest.raises(ContextError) as caught:
            from_arrow(form)
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)


def test_limits_hold_on_the_way_in() -> None:
    assert from_arrow(changed("vid", pa.array(["v" * 256])))[0].vid == "v" * 256
    with pytest.raises(LimitError, match="256"):
        from_arrow(changed("vid", pa.array(["v" * 257])))
    with pytest.raises(InputError, match="65536"):
        from_arrow(changed("string:y", pa.array(["y" * 65_537])))
    assert from_arrow(changed("place", pa.array([DEEPEST.place])))[0].place == DEEPEST.place
    with pytest.raises(LimitError, match="32 segments"):
        from_arrow(changed("place", pa.array([f"{DEEPEST.place}/a"])))
