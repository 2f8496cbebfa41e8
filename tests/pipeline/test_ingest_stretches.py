"""Stretches of Parquet files: every row is read by one task, and a task reads not too much."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import InputError, MissingError
from roamcast.pipeline.ingest import rows
from roamcast.pipeline.ingest import stretches as ingest_stretches
from roamcast.pipeline.ingest.files import Reading, listed
from roamcast.pipeline.ingest.layers import Layers
from roamcast.pipeline.ingest.stretches import (
    FILE_ROWS,
    TASK_ROWS,
    ReadStretches,
    Stretch,
    stretches,
    tasks_of,
)

NOW = 1_800_000_000_000_000
NAMES = ("task", "path", "first", "count", "kind", "layer")


def written(path: Path, people: list[str], **more: Any) -> str:
    count = len(people)
    fixed = {"person": people, "source": ["gps"] * count, "place": ["a"] * count}
    times = pa.array(np.full(count, NOW), pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({**fixed, "time": times}), path, **more)
    return str(path)


def layer(folder: Path, people: list[str]) -> Path:
    (folder / f"kind={rows.PERSON}").mkdir(parents=True)
    columns = {"person": people, "handle": [b"0123456789"] * len(people)}
    numbers = {name: np.zeros(len(people), np.int64) for name in ("time", "file")}
    pq.write_table(pa.table(columns | numbers), folder / f"kind={rows.PERSON}" / "1.parquet")
    return folder


def read(found: list[Stretch]) -> pa.Table:
    """Read stretches as Spark's tasks do, each task by itself."""
    told = [dict(zip(NAMES, one, strict=True)) for one in tasks_of(found)]
    parts = [rows.TAKEN.empty_table()]
    for task in sorted({one["task"] for one in told}):
        own = pa.RecordBatch.from_pylist([one for one in told if one["task"] == task])
        parts += ReadStretches(Reading(), NOW)([own])
    return pa.concat_tables(parts)


def test_every_row_of_files_and_layers_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_stretches, "TASK_ROWS", 25)
    monkeypatch.setattr(ingest_stretches, "FILE_ROWS", 5)
    first = written(tmp_path / "1.parquet", [f"a{n}" for n in range(95)], row_group_size=10)
    second = written(tmp_path / "2.parquet", ["b0", "b1"])
    empty = written(tmp_path / "3.parquet", [])
    layers = Layers([layer(tmp_path / "x", ["a1", "c"]), layer(tmp_path / "y", ["a1"])])
    files = listed([Path(path) for path in (first, second, empty)], Reading())
    found = stretches(files, Reading(), layers)
    assert [one.rows for one in found] == [30, 30, 30, 5, 2, 2, 1]
    table = read(found)
    seen = table.filter(pa.array(table["fresh"].to_pylist()))
    assert sorted(seen["person"].to_pylist()) == sorted([f"a{n}" for n in range(95)] + ["b0", "b1"])
    known = [one for one in table.to_pylist() if not one["fresh"]]
    assert [(one["person"], one["layer"], one["rank"]) for one in known] == [
        ("a1", 0, rows.RANK_PERSON),
        ("c", 0, rows.RANK_PERSON),
        ("a1", 1, rows.RANK_PERSON),
    ]
    assert stretches([], Reading(), Layers([])) == []


def test_every_line_of_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_stretches, "TASK_ROWS", 25)
    told = [f'{{"person":"p{n}","source":"gps","time":"2026-01-01T00:00:00Z","place":"a"}}\n'
            for n in range(200)]  # fmt: skip
    (tmp_path / "1.jsonl").write_text("".join(told[:150]))
    (tmp_path / "2.jsonl.gz").write_bytes(gzip.compress("".join(told[150:]).encode()))
    (tmp_path / "3.jsonl").write_text("")
    found = stretches(listed([tmp_path], Reading()), Reading(), Layers([]))
    assert len(found) == 8
    assert sorted(read(found)["person"].to_pylist()) == sorted(f"p{n}" for n in range(200))


@given(st.lists(st.integers(1, 2 * TASK_ROWS), max_size=50))
def test_a_task_is_begun_when_the_last_one_is_full(sizes: list[int]) -> None:
    told = tasks_of([Stretch(str(n), 0, 1, size) for n, size in enumerate(sizes)])
    tasks = [one[0] for one in told]
    assert tasks == sorted(tasks)
    assert set(tasks) == set(range(len(set(tasks))))
    for task in set(tasks):
        own = [size + FILE_ROWS for one, size in zip(told, sizes, strict=True) if one[0] == task]
        assert sum(own[:-1]) < TASK_ROWS


def test_many_small_files_are_divided_by_what_it_takes_to_open_them() -> None:
    told = tasks_of([Stretch(str(n), 0, 1, 1) for n in range(1_200)])
    assert told[-1][0] == 2


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no PAR1")
    with pytest.raises(InputError, match=r"x\.parquet.*not a readable Parquet file"):
        stretches(listed([tmp_path], Reading()), Reading(), Layers([]))


def test_a_worker_that_does_not_see_a_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"does not see .*gone\.parquet"):
        read([Stretch(str(tmp_path / "gone.parquet"), 0, 1, 1)])
