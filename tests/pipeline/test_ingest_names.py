"""Files of every name, behind links and of every age: once and watched alike."""

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roamcast.errors import InputError, LimitError
from roamcast.pipeline.ingest.dead_letters import dead_letters
from roamcast.pipeline.ingest.files import (
    HEADER_LENGTH_MAX,
    Reading,
    csv_header,
    damage,
    files_inside,
    listed,
)
from roamcast.pipeline.ingest.run import IngestSettings, ingest_once
from roamcast.pipeline.ingest.trusted import people_behind
from roamcast.pipeline.ingest.watch import ingest_watch, wait
from tests.pipeline.test_spark_ingest import clock, line, open_state, table_of

NAMES = (
    "a[1].jsonl",
    "a1.jsonl",
    "b{x}.csv",
    "c*?.parquet",
    "with space.jsonl",
    "a%20b.jsonl",
    "a b.jsonl",
    "co:lon.jsonl",
    "co:lon.csv",
    "q:r.parquet",
    "back\\slash.jsonl",
    "größe\u00a0#1.jsonl",
    "+&=;,'()!~@$^`|<>\".jsonl",
    "[d]/e.jsonl",
    "x:y/z.jsonl",
    "both:[1].jsonl",
)
DAY_S = 86_400


def write(path: Path, person: str) -> None:
    """Write one sighting of the person and one row that is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    at = "2026-01-01T00:00:00Z"
    if path.suffix == ".csv":
        path.write_text(f"person,source,time,place\n{person},gps,{at},a/1\n{person},gps,,a/1\n")
    elif path.suffix == ".parquet":
        columns = {"person": [person] * 2, "source": ["gps"] * 2, "place": ["a/1"] * 2}
        pq.write_table(pa.table({**columns, "time": [at, None]}), path)
    else:
        path.write_text(line(person=person) + "\n{\n")


def found(state: Any) -> tuple[list[str], list[str]]:
    """Give the people in the archive, and the files of dead letters."""
    vids = table_of(Path(state.archive))["vid"].combine_chunks()
    people = people_behind(state, vids).to_pylist()
    return sorted(people), sorted(dead_letters(state)["file"].to_pylist())


def watch(spark: Any, state: Any, folder: Path) -> None:
    with ingest_watch(spark, state, folder, IngestSettings(), clock, until_idle=True) as query:
        wait(query)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of all names, and links to files and folders that lie elsewhere, or here."""
    made = tmp_path / "in 1"
    for number, name in enumerate(NAMES):
        write(made / name, f"p{number}")
    elsewhere = tmp_path / "else where"
    write(elsewhere / "deep" / "far.jsonl", "far")
    write(elsewhere / "blob-17", "blob")
    (made / "linked").symlink_to(elsewhere / "deep")
    (made / "twice").symlink_to(elsewhere / "deep")
    (made / "again.jsonl").symlink_to(made / "a1.jsonl")
    (made / "named.jsonl").symlink_to(elsewhere / "blob-17")
    (made / "dangling.jsonl").symlink_to(elsewhere / "nothing")
    for name in ("_hidden.jsonl", "_a=b.jsonl", "_metadata.jsonl", ".git/x.jsonl"):
        write(made / name, "hidden")
    return made


@pytest.mark.spark
def test_once_and_watched_files_of_all_names_and_behind_links_give_the_same(
    spark: Any, tmp_path: Path, folder: Path
) -> None:
    everybody = sorted([*(f"p{number}" for number in range(len(NAMES))), "far", "blob"])
    own = [folder / name for name in (*NAMES, "named.jsonl")]
    files = sorted(map(str, [*own, tmp_path / "else where" / "deep" / "far.jsonl"]))
    with open_state(tmp_path, "o{n}ce") as state:
        ingest_once(spark, state, [folder], IngestSettings(), clock)
        assert found(state) == (everybody, files)

    with open_state(tmp_path, "w[a]tched") as state:
        watch(spark, state, folder)
        write(folder / "old.jsonl", "old")
        then = time.time() - 30 * DAY_S
        os.utime(folder / "old.jsonl", (then, then))
        packed = gzip.compress((line(person="lost") + "\n").encode() * 2_000)
        (folder / "cut.jsonl.gz").write_bytes(packed[:-100])
        watch(spark, state, folder)
        ingest_once(spark, state, [folder / "old.jsonl"], IngestSettings(), clock)  # only closes
        more = [str(folder / name) for name in ("old.jsonl", "cut.jsonl.gz")]
        assert found(state) == (sorted([*everybody, "old"]), sorted([*files, *more]))


def test_a_link_that_leads_back_ends_a_list_and_refuses_a_watch(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    (tmp_path / "a" / "b" / "x.jsonl").write_text("")
    (tmp_path / "a" / "b" / "back").symlink_to(tmp_path / "c")
    assert [file.path for file in listed([tmp_path], Reading())] == [
        str(tmp_path / "a" / "b" / "x.jsonl")
    ]
    assert len(list(files_inside(tmp_path, loops=False))) == 1, "two ways are no loop"
    (tmp_path / "c" / "round").symlink_to(tmp_path / "a")
    assert len(listed([tmp_path / "a"], Reading())) == 1
    with pytest.raises(InputError, match="leads back"):
        list(files_inside(tmp_path / "a", loops=False))
    with (
        open_state(tmp_path) as state,
        pytest.raises(InputError, match="leads back"),
        ingest_watch(None, state, tmp_path / "a", IngestSettings(), clock),  # type: ignore[arg-type]
    ):
        pass


def test_a_file_that_spark_would_leave_out_without_a_word_is_refused(tmp_path: Path) -> None:
    for name in (".a.jsonl", "_a.jsonl"):
        (tmp_path / name).write_text(line())
        with pytest.raises(InputError, match="rename it"):
            listed([tmp_path / name], Reading())
        (tmp_path / "seen.jsonl").symlink_to(tmp_path / name)
        (file,) = listed([tmp_path / "seen.jsonl"], Reading())
        assert file.path == str(tmp_path / "seen.jsonl")
        (tmp_path / "seen.jsonl").unlink()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")).write_text(line())
    with pytest.raises(InputError, match="not UTF-8") as told:
        listed([tmp_path], Reading())
    json.dumps(str(told.value)).encode()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "does not begin with a header"),
        (b"\n \r\n\t\n", "does not begin with a header"),
        (b"person,m\xfc\n", "header is not UTF-8"),
        (b"a,a\n", "twice"),
        (b"x" * (HEADER_LENGTH_MAX + 1), "header is longer"),
        (b"," * 20_000 + b"\n", "twice"),
        (b",".join(b"%d" % n for n in range(20_001)), "more than 20000 columns"),
    ],
)
def test_a_table_without_a_header_of_its_own_is_told(
    tmp_path: Path, text: bytes, problem: str
) -> None:
    for path, bytes_ in ((tmp_path / "a.csv", text), (tmp_path / "a.csv.gz", gzip.compress(text))):
        path.write_bytes(bytes_)
        if len(text) > HEADER_LENGTH_MAX and b"," in text:
            problem = "header is longer"
        with pytest.raises((InputError, LimitError), match=problem):
            csv_header(str(path))


def test_a_header_is_the_first_line_with_text_whatever_bytes_follow(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for end in (b"\n", b"\r\n", b"\r"):
        path.write_bytes(b"\xef\xbb\xbf" + end + b" " + end + b'"a",b c' + end + b"M\xfcller,1")
        assert csv_header(str(path)).names == ("a", "b c")
    path.write_bytes(b"x" * HEADER_LENGTH_MAX)
    assert len(csv_header(str(path)).line) == HEADER_LENGTH_MAX


def test_damage_is_found_by_reading_to_the_end(tmp_path: Path) -> None:
    columns = {"person": [f"p{number}" for number in range(10_000)]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", compression="zstd")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"x" * 100_000))
    (tmp_path / "a.jsonl").write_text("x")
    for name in ("a.parquet", "a.jsonl.gz", "a.jsonl"):
        assert damage(str(tmp_path / name), Reading()) is None
    text = bytearray((tmp_path / "a.parquet").read_bytes())
    text[100:2_000] = bytes(1_900)
    (tmp_path / "a.parquet").write_bytes(text)
    text = bytearray((tmp_path / "a.jsonl.gz").read_bytes())
    text[-8] ^= 1
    (tmp_path / "a.jsonl.gz").write_bytes(text)
    (tmp_path / "a.jsonl").unlink()
    for name in ("a.parquet", "a.jsonl.gz", "a.jsonl"):
        assert "cut or damaged" in str(damage(str(tmp_path / name), Reading()))
