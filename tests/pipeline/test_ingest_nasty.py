"""No row stops an ingest: it becomes a context, or a dead letter with its reason."""

import gzip
import json
import random
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roamcast.cli import build
from roamcast.errors import InputError, RoamcastError
from roamcast.identity.sightings import decode
from roamcast.model.time import EARLIEST, parse_instant
from roamcast.pipeline.ingest import rows
from roamcast.pipeline.ingest.dead_letters import counted, dead_letters, readable
from roamcast.pipeline.ingest.files import FIELDS, Reading, listed
from roamcast.pipeline.ingest.read import read_file
from roamcast.pipeline.ingest.run import IngestSettings
from roamcast.pipeline.ingest.scan import Spoken
from roamcast.pipeline.ingest.trusted import people_behind
from tests.pipeline.test_spark_ingest import NOW, line, once, open_state, table_of

pytestmark = pytest.mark.spark

LATEST = NOW + round(IngestSettings().future_s * 1_000_000)
GOOD_TIME = "2026-01-01T00:00:00Z"
MANY = {f"n{number}": number for number in range(256)}
DEEP: Any = 5
for _ in range(500):
    DEEP = [DEEP]

PEOPLE = ["{:x>256}", "{:0>257}", "é{}😀", "{}\x00", "{}\x1f", "{}\u2028", "{}\n", "", None, {}, []]
"""Each with a number in it, so that no two rows are of one person."""
TIMES = [
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+01:00",
    "0000-06-01T00:00:00Z",
    "1582-10-10T00:00:00-18:00",
    "9999-12-31T23:59:59.999999-01:00",
    "2099-01-01T00:00:00Z",
    "2026-01-01T00:00:00.1234567Z",
    "2026-01-01T00:00:00.123456000Z",
    "2026-01-01T00:00:60Z",
    "2026-01-01T24:00:00Z",
    "2026-01-01T00:00:00Z\n",
    "2026-01-01T00:00:00",
    "-0005-01-01T00:00:00Z",
    "",
    None,
    5,
    [],
]
PLACES = [
    "é" * 1_024,
    "é" * 1_025,
    "/".join("a" * 32),
    "/".join("a" * 33),
    "a//b",
    "/a",
    "a/",
    "a\x00b",
    "a\x1fb",
    "a\n",
    "\u00a0",
    " ",
    "",
    None,
    {"a": 1},
]
POINTS = [
    {"lon": 180, "lat": -90},
    {"lon": -0.0, "lat": 90.0},
    {"lon": 180.0000001, "lat": 0},
    {"lon": 0, "lat": -91},
    {"lon": float("nan"), "lat": 0},
    {"lon": 0, "lat": float("inf")},
    {"lon": 10**400, "lat": 0},
    {"lon": 1e308, "lat": -1e308},
    {"lon": 5e-324, "lat": 0},
    {"lon": "x", "lat": 0},
    {"lon": True, "lat": 0},
    {"lon": [1], "lat": 0},
    {"lon": 1},
    {"lat": 1},
]
SAID = [
    {},
    MANY,
    {**MANY, "more": 1},
    {"a": 2**63 - 1},
    {"a": -(2**63)},
    {"a": 2**63},
    {"a": 10**400},
    {"a": 1e308},
    {"a": float("nan")},
    {"a": float("-inf")},
    {"a": None},
    {"a": [1]},
    {"a": {"b": 1}},
    {"a": DEEP},
    {"a": {"timestamp": "0001-01-01T00:00:00Z"}},
    {"a": {"timestamp": "0001-01-01T00:00:00+01:00"}},
    {"a": {"timestamp": "9999-12-31T23:59:59-01:00"}},
    {"a": "\x00\x1f\x7f"},
    {"a": "é" * 60_000},
    {"a": "x" * 65_537},
    {"a" * 128: 1},
    {"a" * 129: 1},
    {"": 1},
    {"\x00": 1},
    {"\x1f": 1},
    {"vid": 1},
    {"t_r": "x"},
    "text",
    5,
    [],
]


def nasty(seed: int, count: int, name: str = "p{}") -> list[dict[str, Any]]:
    """Rows of which about one in three is a sighting; each of a person of its own."""
    draw = random.Random(seed)

    def one(usual: Any, odd: list[Any]) -> Any:
        return usual if draw.random() < 0.8 else draw.choice(odd)

    found = []
    for number in range(count):
        person = one(name, PEOPLE)
        row = {
            "person": person.format(number) if isinstance(person, str) else person,
            "source": one("badge", ["gps", "smell", None, 5]),
            "time": one(GOOD_TIME, TIMES),
            "place": one("a/1", PLACES),
            "attributes": one(None, SAID),
            **one({}, POINTS),
        }
        found.append({name: value for name, value in row.items() if value is not None})
    return found


def is_sighting(text: str) -> bool:
    """Ask the live checks; only they do not know what is the future."""
    try:
        return decode(text).time <= LATEST
    except InputError:
        return False


def csv_text(row: dict[str, Any]) -> str:
    values = []
    for name in ("person", "source", "time", "place", "lon", "lat", "attributes"):
        value = row.get(name)
        text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
        values.append('"' + text.replace("\n", " ").replace('"', '""') + '"')
    return ",".join(values)


def stamps(unit: str) -> pa.Array:
    """Moments at all limits, in the unit, the last one good."""
    scale = {"ms": 1 / 1_000, "us": 1, "ns": 1_000}[unit]
    near = [round(moment * scale) for moment in (EARLIEST, EARLIEST - 1_000, LATEST, NOW + 10**10)]
    least, most = -(2**63), 2**63 - 1
    inside = [moment for moment in near if least <= moment <= most]
    values = [least, least + 1, most, None, *inside, round(NOW * scale)]
    return pa.array(values, pa.int64()).cast(pa.timestamp(unit, "UTC"))


def test_rows_of_all_kinds_are_contexts_or_dead_letters_as_the_live_checks_say(
    spark: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    rows = nasty(7, 800)
    lines = [json.dumps(row) for row in rows]
    lines += ["[" * 5_000, '{"person":' * 2_000, "1" * 5_000, "{}", "null", '"x"', "{'person':1}"]
    lines += ['{"person":"ann","lon":NaN}', '{"lon":' + "9" * 5_000 + "}", "\x00", "}"]
    (folder / "1.jsonl").write_text("\n".join(lines))
    alive = sum(map(is_sighting, lines))
    assert 200 < alive < len(lines) - 200
    header = "person,source,time,place,lon,lat,attributes"
    table = [csv_text(row) for row in nasty(8, 300, "c{}")]
    table += ["," * 30_000, '"open', "\x00,\x00", "x" * 1_000_001, ",,,,,,", "ann"]
    (folder / "2.csv").write_text("\n".join([header, *table]))
    moments = {unit: stamps(unit) for unit in ("ms", "us", "ns")}
    for unit, times in moments.items():
        parquet = {"person": [f"{unit}{n}" for n in range(len(times))], "time": times}
        parquet |= {"source": ["gps"] * len(times), "place": ["a/1"] * len(times)}
        pq.write_table(pa.table(parquet), folder / f"3{unit}.parquet")
    said = pa.array([{"a": float("nan"), "b": 2**63 - 1}, None, {"a": 1.5, "b": None}])
    degrees = {"lon": [float("nan"), float("inf"), 1.0], "lat": [0.0, -float("inf"), 1.0]}
    texts = pa.array([b"\xff", b"M\xfcller", b"ok"], pa.binary()).view(pa.string())
    fixed = {"person": texts, "source": ["gps"] * 3, "time": [GOOD_TIME] * 3}
    pq.write_table(pa.table({**fixed, **degrees, "attributes": said}), folder / "4.parquet")

    batch = once(spark, tmp_path, folder)
    known = len(lines) + len(table) + sum(map(len, moments.values())) + 3
    assert batch.counts["sightings"] == known
    assert batch.counts["contexts"] + batch.counts["malformed"] == known
    with open_state(tmp_path) as state:
        letters = dead_letters(state).to_pylist()
        vids = table_of(tmp_path / "archive")["vid"].combine_chunks()
        people = set(people_behind(state, vids).to_pylist())
    assert len(letters) == batch.counts["malformed"]
    assert all(letter["reason"] for letter in letters)
    own = [letter for letter in letters if letter["file"].endswith("1.jsonl")]
    assert len(own) == len(lines) - alive
    assert people >= {json.loads(text)["person"] for text in lines if is_sighting(text)}
    for unit, times in moments.items():
        scale = {"ms": 1_000, "us": 1, "ns": 1 / 1_000}[unit]
        values = times.cast(pa.int64()).to_pylist()
        good = {
            f"{unit}{number}"
            for number, value in enumerate(values)
            if value is not None and EARLIEST <= value * scale <= LATEST
        }
        assert {person for person in people if person.startswith(unit)} == good
    assert "ok" in people
    assert sum(letter["reason"] == "not UTF-8" for letter in letters) == 2
    assert "time lies outside the years 1 to 9999" in {letter["reason"] for letter in letters}


def test_parquet_means_what_lines_of_json_mean(tmp_path: Path) -> None:
    def text(value: Any) -> str | None:
        if value is None or isinstance(value, str):
            return value
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    no_json = ("NaN", "Infinity")
    lines = [row for row in nasty(12, 1_500) if not any(w in str(text(row)) for w in no_json)]
    (tmp_path / "1.jsonl").write_text("\n".join(json.dumps(row) for row in lines))
    columns = {field: [text(row.get(field)) for row in lines] for field in FIELDS}
    for kind in (pa.string(), rows.WORDS):
        table = pa.table({field: pa.array(texts, kind) for field, texts in columns.items()})
        pq.write_table(table, tmp_path / f"{kind.id}.parquet", row_group_size=400)
    for reading in (Reading(), Reading(zone="-01:30", constants={"place": "b/2"})):
        there, first, second = (
            told(read_file(file, reading, LATEST)) for file in listed([tmp_path], reading)
        )
        assert len(there) == len(lines) > 1_400
        assert first == second == there


def told(tables: Iterable[pa.Table]) -> list[str]:
    """Give rows without the numbers of their files; of dead ones the reason."""
    names = ("person", "source", "time", "place", "lon", "lat")
    spoken = Spoken([1, 1, 1, 1])
    found = []
    for row in pa.concat_tables(tables).to_pylist():
        said = None if row["attributes"] is None else spoken.canonical(row["attributes"])
        fields = [*(row[name] for name in names), said]
        found.append(row["reason"] or repr(fields))
    return sorted(found)


def test_wall_times_of_parquet_in_every_unit_are_moments_of_the_zone(
    spark: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    wall = datetime(2026, 1, 1, 2)  # noqa: DTZ001 - it is what a wall clock says
    for unit in ("s", "ms", "us", "ns", "int96"):
        kind = pa.timestamp("ns" if unit == "int96" else unit)
        least = [] if unit in {"s", "int96"} else [-(2**63), 2**63 - 1]
        times = pa.array([wall], kind)
        if least:
            times = pa.concat_arrays([times, pa.array(least, pa.int64()).cast(kind)])
        count = len(times)
        columns = {"person": [f"{unit}{n}" for n in range(count)], "time": times}
        columns |= {"source": ["gps"] * count, "place": ["a/1"] * count}
        columns |= {"unused": pa.array([None] * count, pa.time64("ns"))}
        old = unit == "int96"
        pq.write_table(
            pa.table(columns), folder / f"{unit}.parquet", use_deprecated_int96_timestamps=old
        )
    reading = Reading(zone="+02:00")
    batch = once(spark, tmp_path, folder, reading=reading)
    assert (batch.counts["contexts"], batch.counts["malformed"]) == (5 + 1, 5)
    found = sorted(table_of(tmp_path / "archive")["t_r"].to_pylist())
    assert found[1:] == 5 * [datetime(2026, 1, 1, tzinfo=UTC)]
    assert found[0].year == 1677, "the least nanosecond is a moment, too"


def test_bytes_that_are_no_utf8_and_odd_line_ends_are_read_right_or_told(
    spark: Any, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    bom = b"\xef\xbb\xbf"
    texts = [line(person=f"j{n}").encode() for n in range(4)]
    latin = line(person="Müller").replace("\\u00fc", "ü").encode("latin-1")
    (folder / "bom.jsonl").write_bytes(bom + b"\r\n".join([*texts[:2], latin, b"\t", b""]))
    (folder / "mac.jsonl").write_bytes(texts[2] + b"\r" + texts[3] + b"\t\r\r")
    header = b"person,source,time,place\r\n"
    row = b"%b,badge,2026-01-01T00:00:00Z,a/1\r\n"
    rows = [row % name for name in (b"c0", "cü1".encode(), b"c\xfc2")]
    (folder / "bom.csv").write_bytes(bom + b"\r\n \n" + header + b"".join(rows) + b"\r\n\n")
    (folder / "packed.csv.gz").write_bytes(gzip.compress(bom + header + row % b"c3"))
    (folder / "empty.jsonl").write_bytes(b"")
    (folder / "blank.jsonl").write_bytes(b"\n \r\n\t\n")
    (folder / "empty.jsonl.gz").write_bytes(gzip.compress(b""))
    (folder / "header.csv").write_bytes(header)
    batch = once(spark, tmp_path, folder)
    assert (batch.counts["sightings"], batch.counts["contexts"]) == (9, 7)
    with open_state(tmp_path) as state:
        assert counted(state) == {"not UTF-8": 2}
        vids = table_of(tmp_path / "archive")["vid"].combine_chunks()
        people = set(people_behind(state, vids).to_pylist())
    assert people == {"j0", "j1", "j2", "j3", "c0", "cü1", "c3"}
    build()(
        ["pipeline", "dead-letters", "--archive", str(tmp_path / "archive"), "--json"],
        standalone_mode=False,
    )
    told = [json.loads(text) for text in capsysbinary.readouterr().out.splitlines()]
    assert {letter["file"] for letter in told} == {
        str(folder / "bom.jsonl"),
        str(folder / "bom.csv"),
    }
    assert all("�" in letter["raw"] for letter in told)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cut.jsonl.gz", gzip.compress(b"{}\n" * 100_000)[:-100]),
        ("false.jsonl.gz", line().encode()),
    ],
)
def test_a_packed_file_that_is_cut_or_none_is_one_line_with_its_name(
    spark: Any, tmp_path: Path, name: str, text: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(text)
    with pytest.raises(RoamcastError, match=name) as told:
        once(spark, tmp_path, path)
    assert "\n" not in str(told.value)
    with open_state(tmp_path) as state:
        assert state.last.number == 0


def test_the_live_checks_know_the_bounds_of_time_that_rows_are_held_to() -> None:
    assert parse_instant("0001-01-01T00:00:00Z") == EARLIEST
    with pytest.raises(InputError, match="years 1 to 9999"):
        parse_instant("0001-01-01T00:00:00+00:01")


def test_dead_letters_of_older_batches_keep_their_bytes_and_can_be_read() -> None:
    kept = pa.chunked_array([pa.array([b"M\xfcller", None, b"ok"], pa.binary()).view(pa.string())])
    assert readable(kept).to_pylist() == ["M�ller", None, "ok"]
    assert readable(kept[1:]).to_pylist() == [None, "ok"]
