"""Parquet read by columns: each row is what `check_row` says of it, whatever types it came in."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.model.contexts import DEPTH_MAX, PATH_LENGTH_MAX
from roamcast.model.time import EARLIEST, LATEST
from roamcast.pipeline.ingest import columns, rows
from roamcast.pipeline.ingest.check_row import NOT_UTF8, checked_row
from roamcast.pipeline.ingest.columns import checked_columns, read_columns
from roamcast.pipeline.ingest.files import FIELDS, Reading, number_of
from roamcast.pipeline.ingest.parquet import flat

NOW = 1_800_000_000_000_000
GOOD_TIME = "2026-01-01T00:00:00Z"
READINGS = [
    Reading(),
    Reading(zone="-01:30", constants={"place": "a/1", "source": "gps"}),
    Reading(constants={"lon": "1.5", "lat": "2d", "person": "ann", "time": GOOD_TIME}),
    Reading(constants={"attributes": "{}", "lon": "x"}),
]
Row = dict[str, str | None]


def texts(usual: list[str], *odd: str) -> st.SearchStrategy[str | None]:
    return st.sampled_from(usual * 3) | st.sampled_from([*odd, None]) | st.text(max_size=4)


row = st.fixed_dictionaries(
    {
        "person": texts(["ann", "bob", "x y"], "é", "{", "[1]", "\x7f", "z" * 256, "z" * 257, "\n"),
        "source": texts(["badge", "gps"], "GPS", "smell"),
        "time": texts(
            [GOOD_TIME, "2026-01-01 00:00:00.25+05:30"],
            *("2026-02-29T00:00:00Z", "2024-02-29T00:00:00z", "2026-04-31T00:00:00Z", "9999-01-01"),
            *("2026-01-01T00:00:00", "0000-06-01T00:00:00Z", "0999-01-01T00:00:00Z"),
            *(
                "2026-01-01T00:00:00.1234567Z",
                "2026-01-01T00:00:00.1200000Z",
                "2099-01-01T00:00:00Z",
            ),
            *("2026-01-01T24:00:00Z", "2026-01-01T00:00:00+18:01", "2026-01-01T00:00:00Z\n"),
        ),
        "place": texts(
            ["a/1", "b"],
            *("/a", "a/", "a//b", "é/1", "[x", "a\x1fb", "a" * PATH_LENGTH_MAX),
            *(
                "a" * (PATH_LENGTH_MAX + 1),
                "/".join("a" * DEPTH_MAX),
                "/".join("a" * (DEPTH_MAX + 1)),
            ),
        ),
        "lon": texts(["1.5", "-180"], "180.1", "nan", "inf", "1e400", " 2d ", "0x1", "true"),
        "lat": texts(["1.5", "90"], "90.1", "NaN", "-Infinity"),
        "attributes": texts(["{}", '{"a":1}'], "x" * 65_536, "é" * 65_536, "x" * 65_537),
    }
)


def told(table: pa.Table) -> list[str]:
    names = [
        "reason",
        "person",
        "source",
        "time",
        "place",
        "lon",
        "lat",
        "attributes",
        "raw",
        "rank",
    ]
    assert table.schema == rows.TAKEN
    return sorted(repr([one[name] for name in names]) for one in table.to_pylist())


def wanted(given: list[Row], reading: Reading) -> list[str]:
    found = []
    for one in given:
        raw = ",".join(text for name in FIELDS if (text := one.get(name)) is not None)
        found.append(checked_row((one, None, None, raw), reading, NOW))
    return told(pa.Table.from_pylist(found, schema=rows.TAKEN))


@given(
    st.lists(row, max_size=12),
    st.sampled_from(READINGS),
    st.sampled_from([pa.string(), pa.large_string(), rows.WORDS]),
)
@settings(max_examples=150)
def test_columns_say_of_each_row_what_is_said_of_it_alone(
    given: list[Row], reading: Reading, kind: Any
) -> None:
    stored = {name: pa.array([one[name] for one in given], kind) for name in FIELDS}
    table = checked_columns(stored, len(given), reading, NOW)
    assert told(table) == wanted(given, reading)
    assert set(table["fresh"].to_pylist()) <= {True}


def test_usual_rows_are_never_looked_at_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "checked_row", None)
    usual = {"person": "ann", "source": "badge", "time": GOOD_TIME, "place": "a/1"}
    stored = {name: pa.array([text]) for name, text in usual.items()}
    points = {"lon": pa.array([1.0]), "lat": pa.array([2.0])}
    for some in (stored, stored | points, stored | points | {"place": pa.nulls(1, pa.string())}):
        assert checked_columns(some, 1, Reading(), NOW)["reason"].to_pylist() == [None]


NUMBERS: list[tuple[Any, list[Any]]] = [
    (pa.int8(), [5, 0, None, -100]),
    (pa.int64(), [2**53 + 1, -(2**63), 90, None]),
    (pa.uint64(), [2**64 - 1, 7, None, 90]),
    (pa.float64(), [0.1, 116.123456789, math.nan, math.inf, -0.0, 5e-324, None, -180.0]),
]


@pytest.mark.parametrize(("kind", "values"), NUMBERS)
def test_numbers_of_every_type_are_the_texts_of_their_digits(kind: Any, values: list[Any]) -> None:
    def text(value: Any) -> str | None:
        return None if value is None else columns._text(value)

    count = len(values)
    given: list[Row] = [
        {"person": f"p{n}", "source": "gps", "time": GOOD_TIME, "lon": text(v), "lat": text(w)}
        for n, (v, w) in enumerate(zip(values, reversed(values), strict=True))
    ]
    stored = {name: pa.array([one[name] for one in given]) for name in ("person", "source", "time")}
    points = {"lon": pa.array(values, kind), "lat": pa.array(values[::-1], kind)}
    for reading in READINGS:
        table = checked_columns(stored | points, count, reading, NOW)
        assert told(table) == wanted(given, reading)
    if not pa.types.is_floating(kind):
        people = {**stored, "person": pa.array(values, kind), "place": pa.array(["a"] * count)}
        table = checked_columns(people, count, Reading(), NOW)
        named = [one["person"] for one in table.to_pylist() if one["reason"] is None]
        assert sorted(named) == sorted(str(value) for value in values if value is not None)


def test_half_a_double_means_the_digits_that_it_is_written_with() -> None:
    given = pa.array([0.1, 116.12345, None, math.nan, 1e30, 5e-40], pa.float32())
    found = flat(given).to_pylist()
    assert found[:3] == [0.1, 116.12345, None]
    assert math.isnan(found[3])
    assert found[4:] == [1e30, 5e-40]


@given(
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2 * 10**15), max_size=9),
    st.sampled_from(["s", "ms", "us", "ns"]),
    st.sampled_from([None, "UTC"]),
    st.sampled_from([None, "+02:00", "-01:30"]),
)
def test_moments_of_every_unit_are_micros_of_the_zone(
    given: list[int | None], unit: str, named: str | None, zone: str | None
) -> None:
    def moment(stored: int) -> int | None:
        if named is None and zone is None:
            return None
        micros = (
            math.floor(stored * {"s": 10**6, "ms": 10**3, "us": 1}[unit])
            if unit != "ns"
            else stored // 1_000
        )
        east = 0 if named or zone is None else {"+02:00": 120, "-01:30": -90}[zone]
        return micros - east * 60_000_000

    times = pa.array(given, pa.int64()).cast(pa.timestamp(unit, named))
    found = columns._stamps(times, zone).to_pylist()
    for stored, one in zip(given, found, strict=True):
        want = None if stored is None else moment(stored)
        if want is not None and not EARLIEST <= want <= LATEST:
            assert one is not None
            assert not EARLIEST <= one <= LATEST, "outside all years it is somewhere outside"
        else:
            assert one == want


def test_bytes_that_are_no_text_are_told_in_every_column() -> None:
    broken = pa.array([b"M\xfcller", b"ok", b"\xff", None], pa.binary()).view(pa.string())
    sound = {"person": ["a", "b", "c", "d"], "source": ["gps"] * 4, "time": [GOOD_TIME] * 4}
    for field in FIELDS:
        stored = {name: pa.array(values) for name, values in sound.items()}
        stored |= {"place": pa.array(["x"] * 4), field: broken}
        for one in (broken, broken.dictionary_encode()):
            table = checked_columns(stored | {field: one}, 4, Reading(), NOW)
            reasons = table["reason"].to_pylist()
            assert reasons.count(NOT_UTF8) == 2, field
            letters = [text for text in table["raw"].to_pylist() if text and "\ufffd" in text]
            assert len(letters) == 2


OBJECTS: list[tuple[Any, Any, str | None]] = [
    (pa.struct([("a", pa.float64()), ("b", pa.int64())]), {"a": 1.5, "b": None}, '{"a":1.5}'),
    (pa.struct([("a", pa.float64())]), {"a": math.nan}, '{"a":"NaN"}'),
    (pa.struct([("a", pa.float32())]), {"a": -math.inf}, '{"a":"-Infinity"}'),
    (pa.struct([("a", pa.float32())]), {"a": 0.1}, '{"a":0.1}'),
    (pa.struct([("a", pa.uint64()), ("b", pa.bool_())]), {"a": 2**64 - 1, "b": True},
     '{"a":18446744073709551615,"b":true}'),
    (pa.struct([("a", pa.string())]), {"a": 'é"\n'}, '{"a":"é\\"\\n"}'),
    (pa.struct([("a", pa.string())]), {"a": None}, "{}"),
    (pa.struct([("a", pa.string())]), None, None),
    (pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", None)], '{"a":1,"b":null}'),
    (pa.map_(pa.string(), pa.struct([("timestamp", pa.large_string())])),
     [("a", {"timestamp": GOOD_TIME})], '{"a":{"timestamp":"2026-01-01T00:00:00Z"}}'),
    (pa.struct([("l", pa.list_(pa.int8()))]), {"l": [1, None]}, '{"l":[1,null]}'),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "text"), OBJECTS)
def test_objects_are_the_json_that_a_source_would_write(
    tmp_path: Path, kind: Any, value: Any, text: str | None
) -> None:
    assert flat(pa.array([value], kind)).to_pylist() == [text]
    stored = {"person": ["ann"], "source": ["gps"], "time": [GOOD_TIME], "place": ["a"]}
    pq.write_table(
        pa.table(stored | {"attributes": pa.array([value], kind)}), tmp_path / "x.parquet"
    )
    (table,) = read_columns(str(tmp_path / "x.parquet"), Reading(), NOW)
    assert table["attributes"].to_pylist() == [text]


def test_moments_in_objects_are_cut_to_milliseconds_whatever_their_year() -> None:
    kind = pa.struct([("t", pa.timestamp("us", "UTC"))])
    stored = [0, 1_700_000_000_123_456, -1, 2**62]
    given = pa.array([{"t": n} for n in stored], pa.struct([("t", pa.int64())])).cast(kind)
    found = flat(given).to_pylist()
    assert found[:3] == [
        '{"t":"1970-01-01T00:00:00.000Z"}',
        '{"t":"2023-11-14T22:13:20.123Z"}',
        '{"t":"1969-12-31T23:59:59.999Z"}',
    ]
    assert found[3].startswith('{"t":"148108-')


def test_bytes_in_objects_that_are_no_text_make_the_row_a_letter() -> None:
    kind = pa.struct([("a", pa.string())])
    inner = pa.array([b"\xff", b"ok"], pa.binary()).view(pa.string())
    said = pa.StructArray.from_arrays([inner], fields=list(kind))
    fixed = {
        "person": ["a", "b"],
        "source": ["gps"] * 2,
        "time": [GOOD_TIME] * 2,
        "place": ["x"] * 2,
    }
    stored = {name: pa.array(values) for name, values in fixed.items()}
    table = checked_columns(stored | {"attributes": said}, 2, Reading(), NOW)
    assert sorted(map(str, table["reason"].to_pylist())) == ["None", NOT_UTF8]


def stored_file(path: Path, count: int, **more: Any) -> Path:
    people = [f"p{n % 7}" if n % 5 else None for n in range(count)]
    times = pa.array([NOW - n for n in range(count)], pa.timestamp("us", "UTC"))
    fixed = {"person": people, "source": ["gps"] * count, "time": times, "place": ["a"] * count}
    pq.write_table(pa.table(fixed), path, **more)
    return path


def test_a_file_is_the_same_rows_however_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(stored_file(tmp_path / "x.parquet", 100, row_group_size=30))
    whole = pa.concat_tables(read_columns(path, Reading(), NOW))
    assert whole.num_rows == 100
    assert set(whole["file"].to_pylist()) == {number_of(path)}
    assert whole["rank"].to_pylist().count(rows.RANK_DEAD) == 20
    monkeypatch.setattr(columns, "CHUNK_ROWS", 17)
    parts = [part for n in range(4) for part in read_columns(path, Reading(), NOW, [n])]
    assert max(part.num_rows for part in parts) <= 17
    assert told(pa.concat_tables(parts)) == told(whole)


def test_a_constant_that_rows_say_as_well_is_one_text() -> None:
    stored = {"person": pa.array(["a", "b"]), "place": pa.array(["x", None])}
    reading = Reading(constants={"place": "x", "source": "gps", "time": GOOD_TIME})
    table = checked_columns(stored, 2, reading, NOW)
    assert table["place"].to_pylist() == ["x", "x"]


def test_damage_is_one_line_with_the_files_name(tmp_path: Path) -> None:
    path = stored_file(tmp_path / "x.parquet", 5_000, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[10:4_000] = np.random.default_rng(1).bytes(3_990)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"x\.parquet.*cut or damaged"):
        list(read_columns(str(path), Reading(), NOW))


def _float(table: dict[str, Any]) -> None:
    table["time"] = pa.array([1.5])


def _list(table: dict[str, Any]) -> None:
    table["attributes"] = pa.array([[1]])


def _binary(table: dict[str, Any]) -> None:
    table["person"] = pa.array([b"a"])


def _nested_time(table: dict[str, Any]) -> None:
    table["attributes"] = pa.array([{"a": 1}], pa.struct([("a", pa.time64("us"))]))


@pytest.mark.parametrize("spoil", [_float, _list, _binary, _nested_time])
def test_a_column_that_cannot_hold_its_field_is_told_before_any_row(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], None]
) -> None:
    table: dict[str, Any] = {"person": ["a"], "source": ["gps"], "time": ["x"], "place": ["a"]}
    spoil(table)
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="cannot be of type"):
        list(read_columns(str(tmp_path / "x.parquet"), Reading(), NOW))
