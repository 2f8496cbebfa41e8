"""Plain pages give what pyarrow gives, and nothing where they are not plain."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roamcast.pipeline.lookup.pages import PlainPages

ROWS, GROUP = 1_000, 300


def columns() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    texts = ["", "é€", "v" * 70, *(f"v{n:05d}@node" for n in range(ROWS - 3))]
    return {
        "number": rng.normal(0, 1e9, ROWS),
        "moment": pa.array(rng.integers(-(2**62), 2**62, ROWS)).cast(pa.timestamp("us", "UTC")),
        "text": texts,
        "gaps": pa.array(rng.random(ROWS), mask=np.arange(ROWS) // GROUP == 1),
        "small": rng.integers(0, 9, ROWS).astype(np.int32),
    }


def written(folder: Path, **how: Any) -> tuple[pa.Buffer, PlainPages, pa.Table]:
    table = pa.table(columns())
    path = folder / "file.parquet"
    pq.write_table(table, path, row_group_size=GROUP, **{"use_dictionary": False} | how)
    with pa.memory_map(str(path)) as source:
        raw = source.read_buffer(source.size())
    return raw, PlainPages(pq.read_metadata(path)), table


def test_plain_pages_are_what_was_written(tmp_path: Path) -> None:
    raw, pages, table = written(tmp_path)
    groups = np.array([0, 2, 3])
    rows = np.concatenate([np.arange(300), np.arange(600, 1_000)])
    for name in ("number", "moment"):
        found = pages.numbers(raw, name, groups)
        want = table[name].cast(pa.int64()) if name == "moment" else table[name]
        assert found is not None
        assert np.array_equal(found, np.asarray(want)[rows])
    at = np.array([699, 0, 0, 2, 1, 300, 299])
    texts = pages.texts(raw, "text", groups, at)
    assert texts is not None
    texts.validate(full=True)
    assert texts.to_pylist() == [table["text"][int(rows[n])].as_py() for n in at]
    assert pages.texts(raw, "text", groups, at[:0]).to_pylist() == []


def test_a_row_group_with_a_null_is_left_to_pyarrow(tmp_path: Path) -> None:
    raw, pages, table = written(tmp_path)
    assert pages.numbers(raw, "gaps", np.array([0, 1])) is None
    found = pages.numbers(raw, "gaps", np.array([0, 2]))
    assert found is not None
    assert found[-1] == table["gaps"][899].as_py()


@pytest.mark.parametrize(
    "how",
    [
        {"use_dictionary": True},
        {"compression": "zstd"},
        {"data_page_version": "2.0"},
        {"write_statistics": False},
        {"use_byte_stream_split": ["number"]},
    ],
    ids=lambda how: next(iter(how)),
)
def test_other_writers_pages_are_left_to_pyarrow(tmp_path: Path, how: dict[str, Any]) -> None:
    raw, pages, _ = written(tmp_path, **how)
    assert pages.numbers(raw, "number", np.array([0])) is None
    if "use_byte_stream_split" not in how:
        assert pages.texts(raw, "text", np.array([0]), np.array([0])) is None


def test_several_pages_of_a_row_group_are_left_to_pyarrow(tmp_path: Path) -> None:
    raw, pages, _ = written(tmp_path, data_page_size=512, write_batch_size=16)
    assert pages.numbers(raw, "number", np.array([0])) is None
    assert pages.numbers(raw, "small", np.array([0])) is None  # nor are numbers of other widths


def test_damage_never_gives_a_value_beyond_the_page(tmp_path: Path) -> None:
    """Bytes anywhere in the file are changed: the answer is None, or as long as it must be."""
    raw, pages, _ = written(tmp_path)
    metadata, rng = pages._metadata, np.random.default_rng(6)
    at = np.arange(GROUP)
    for _ in range(300):
        broken = np.frombuffer(raw, np.uint8).copy()
        broken[rng.integers(0, len(broken), 40)] = rng.integers(0, 256, 40)
        fresh, buffer = PlainPages(metadata), pa.py_buffer(broken)
        numbers = fresh.numbers(buffer, "number", np.array([0]))
        assert numbers is None or len(numbers) == GROUP
        texts = fresh.texts(buffer, "text", np.array([0]), at)
        assert texts is None or len(texts) == GROUP
    short = raw.slice(0, 2_000)
    assert PlainPages(metadata).numbers(short, "number", np.array([0, 1, 2, 3])) is None
