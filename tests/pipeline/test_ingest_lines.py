"""Lines of JSON and CSV: each is what `check_row` says of it alone, however a file is divided."""

import csv
import gzip
import io
import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.identity.sightings import LINE_LENGTH_MAX
from roamcast.pipeline.ingest import columns, rows
from roamcast.pipeline.ingest import lines as ingest_lines
from roamcast.pipeline.ingest.check_row import NOT_UTF8, checked_row
from roamcast.pipeline.ingest.files import FIELDS, Header, Reading, number_of
from roamcast.pipeline.ingest.lines import (
    CsvLines,
    JsonLines,
    Parser,
    checked_lines,
    chunks,
    fields_of,
    read_lines,
)
from tests.pipeline.test_ingest_columns import GOOD_TIME, NOW, READINGS, told
from tests.pipeline.test_ingest_columns import row as row_of_texts

USUAL = {"person": "ann", "source": "badge", "time": GOOD_TIME, "place": "a/1"}
HEADER = Header(",".join(FIELDS), FIELDS)
BROKEN = [
    *(b"null", b"[]", b'"x"', b"5", b"{", b"}", b"{}{}", b'{"a":1} {"a":2}', b"{'person':1}"),
    *(b"[" * 5_000, b'{"person":' * 2_000, b'{"lon":NaN}', b"\x00", b'{"person":"\xff"}'),
    *(b'{"x":"\xff"}', b'{"person":"\\ud800"}', b'{"person":5.0,"person":6}', b'{"a":"}{"}'),
    *(b'{"lon":' + b"9" * 400 + b"}", b'{"person":-0}', b'{"lon":" 1.5 ","lat":"2d"}', b'"open'),
    *(b'"a"b,c', b"," * 6, b"\x00,\x00", b'"a\xff",', b'{"per\\u0073on":"x"}'),
]
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([[], {}, {"a": 1}, {"a": None}, "{}", GOOD_TIME, "a/1", "ann", "gps", 0, 8.5]),
    st.text(max_size=3),
)  # fmt: skip
objects = row_of_texts | st.fixed_dictionaries(
    {}, optional=dict.fromkeys(FIELDS, VALUES) | {"more": VALUES}
)


def said_alone(parser: Parser, lines: list[bytes], reading: Reading) -> list[str]:
    found = [checked_row(ingest_lines._given(parser, line), reading, NOW) for line in lines]
    return told(pa.Table.from_pylist(found, schema=rows.TAKEN))


def same(parser: Parser, lines: list[bytes], reading: Reading) -> None:
    table = checked_lines(parser, lines, reading, NOW)
    assert told(table) == said_alone(parser, lines, reading)


@given(
    st.lists(objects.map(lambda one: json.dumps(one).encode()) | st.sampled_from(BROKEN),
             min_size=1, max_size=12),
    st.sampled_from([*READINGS, Reading(columns={"person": 'a"b', "place": "source"})]),
)  # fmt: skip
def test_objects_by_columns_say_what_each_says_alone(lines: list[bytes], reading: Reading) -> None:
    same(JsonLines(reading), lines, reading)


def table_line(texts: list[str | None]) -> bytes:
    sink = io.StringIO()
    csv.writer(sink, lineterminator="").writerow(texts)
    return sink.getvalue().encode()


@given(
    st.lists(
        row_of_texts.map(lambda one: table_line([one[field] for field in FIELDS]))
        | st.sampled_from(BROKEN),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(READINGS),
)
def test_fields_by_columns_say_what_each_line_says_alone(
    lines: list[bytes], reading: Reading
) -> None:
    same(CsvLines(HEADER, reading), lines, reading)


@pytest.mark.parametrize("person", ["ann", 5, 10**30])
def test_usual_lines_are_never_looked_at_alone(
    monkeypatch: pytest.MonkeyPatch, person: Any
) -> None:
    monkeypatch.setattr(columns, "checked_row", None)
    points = {"lon": 1.5, "lat": 2}
    for some in (USUAL, USUAL | points, points | USUAL | {"place": None, "attributes": {"a": 1}}):
        usual = {**points, **some, "person": person}
        line = json.dumps(usual).encode()
        (found,) = checked_lines(JsonLines(Reading()), [line], Reading(), NOW).to_pylist()
        assert (found["person"], found["reason"]) == (str(person), None)
        texts = [None if one is None else str(one) for one in map(usual.get, FIELDS[:6])]
        line = table_line([*texts, json.dumps({"a": "b,c"})])
        (found,) = checked_lines(CsvLines(HEADER, Reading()), [line], Reading(), NOW).to_pylist()
        assert (found["attributes"], found["reason"]) == ('{"a": "b,c"}', None)


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n")), min_size=1),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_what_was_written_as_a_line_of_a_table_is_read(texts: list[str], quoting: Any) -> None:
    sink = io.StringIO()
    csv.writer(sink, quoting=quoting, lineterminator="").writerow(texts)
    assert fields_of(sink.getvalue()) == texts


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("", [""]),
        (",", ["", ""]),
        ('"",x', ["", "x"]),
        ('"a""b",c', ['a"b', "c"]),
        ('"a" \t,b', ["a", "b"]),
        ('a"b,c', ['a"b', "c"]),
        (' "a",b', [' "a"', "b"]),
        ('"a"b,c', []),
        ('x,"open', []),
        ('"ann,"gps",x', []),
        ('"' * 100_001, []),
        ('"' * 100_000, ['"' * 49_999]),
    ],
)
def test_quotes_surround_a_field_or_are_part_of_its_text(line: str, fields: list[str]) -> None:
    assert fields_of(line) == fields


pieces = st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b" ", b"bc", b"\xef\xbb\xbf"]))


@given(pieces.map(b"".join), st.lists(st.integers(0, 60), max_size=4), st.integers(1, 9))
@example(b"a\r\nb\rc", [2], 1)
def test_a_file_is_the_same_lines_wherever_it_is_cut(
    data: bytes, cuts: list[int], together: int
) -> None:
    want = [line for line in data.removeprefix(b"\xef\xbb\xbf").splitlines() if line.strip()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest_lines, "CHUNK_BYTES", max(together, 3))  # a mark of order is whole
        patch.setattr(ingest_lines, "_SEEK_BYTES", together)
        assert [line for some in chunks(io.BytesIO(data)) for line in some] == want
        ends = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        found = [
            line
            for first, end in itertools.pairwise(ends)
            for some in chunks(io.BytesIO(data), first, end)
            for line in some
        ]
        assert found == want


def test_a_line_without_an_end_is_a_letter_of_bounded_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_lines, "CHUNK_BYTES", 65_536)
    path = tmp_path / "x.jsonl"
    good = json.dumps(USUAL).encode()
    path.write_bytes(good + b"\n" + b"x" * (6 * LINE_LENGTH_MAX) + b"\n" + good)
    with path.open("rb") as file:
        longest = max(len(line) for some in chunks(file) for line in some)
    assert longest <= ingest_lines.LINE_BYTES_MAX + 2 * 65_536
    table = pa.concat_tables(read_lines(str(path), Reading(), NOW))
    assert table["reason"].to_pylist() == [None, "the line is too long", None]


def test_a_line_may_have_as_many_letters_as_the_limit_says() -> None:
    room = LINE_LENGTH_MAX - len(json.dumps(USUAL | {"more": ""}))
    for more, reason in ((room, None), (room + 1, "the line is too long")):
        line = json.dumps(USUAL | {"more": "é" * more}, ensure_ascii=False).encode()
        table = checked_lines(JsonLines(Reading()), [line], Reading(), NOW)
        assert table["reason"].to_pylist() == [reason]


def test_rows_of_a_file_are_read_with_what_is_wrong_with_them(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    good = json.dumps(USUAL).encode()
    path.write_bytes(
        b"\xef\xbb\xbf" + good + b"\r\n \t\r" + b'{"person": "\xff"}\n' + b"{}{}\n{}\nnull"
    )
    table = pa.concat_tables(read_lines(str(path), Reading(), NOW))
    assert table["reason"].to_pylist() == [
        None, NOT_UTF8, "not JSON", "person is missing", "not JSON"
    ]  # fmt: skip
    assert table["raw"].to_pylist()[1] == '{"person": "�"}'
    assert set(table["file"].to_pylist()) == {number_of(str(path))}


def test_a_header_is_no_row_wherever_it_stands(tmp_path: Path) -> None:
    header, line = b"uid,time,place,note\n", f"7,{GOOD_TIME},a/1,\n".encode()
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf\n" + header + line + header + line + b"7,8\n"))
    reading = Reading(columns={"person": "uid"}, constants={"source": "gps"})
    table = pa.concat_tables(read_lines(str(path), reading, NOW))
    assert table["person"].to_pylist()[:2] == ["7", "7"]
    assert table["reason"].to_pylist() == [None, None, "not a row of its table"]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"x\.csv\.gz"):
        list(read_lines(str(path), reading, NOW))
