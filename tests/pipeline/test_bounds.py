"""One rule says which files and row groups can match; what is unknown is never ruled out."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roamcast.model.context_arrow import to_arrow
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.pipeline.archive import density
from roamcast.pipeline.archive import files as archive_files
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.archive.bounds import Bounds, FileBounds, GroupBounds
from roamcast.pipeline.archive.files import check_columns, read_file
from roamcast.pipeline.archive.retention import retain
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.lookup.plan import Needs
from tests.strategies import some_context, some_filter

ASKED = [
    "true",
    "s_intersects(geometry, BBOX(-1, -1, 1, 1))",
    "within(place, 'a')",
    "age > 5",
    "before(time, TIMESTAMP('1970-01-01T00:00:01Z'))",
    "seen > TIMESTAMP('1970-01-01T00:00:01Z')",
    "flag = true",
]
NEEDS = Needs([Filter.parse(text) for text in ASKED])
ALL = np.arange(NEEDS.count)


def unknown_files(count: int) -> FileBounds:
    """A log of another writer: paths and numbers of rows, no statistics."""
    return FileBounds(
        pa.table({"path": [f"{n}" for n in range(count)], "num_records": [5] * count})
    )


def footer(path: Path) -> GroupBounds:
    metadata = pq.read_metadata(path)
    return GroupBounds(metadata, check_columns(str(path), metadata.schema.to_arrow_schema()))


def test_a_log_without_statistics_rules_nothing_out() -> None:
    bounds = unknown_files(3)
    assert bounds.possible(NEEDS, ALL).all()
    assert bounds.ended_before(-(2**62)).all()


def test_a_footer_without_our_bounds_rules_out_only_what_has_no_column(tmp_path: Path) -> None:
    contexts = [Context("v", None, (0.0, 0.0), {"age": 9}, 0, 5)]
    pq.write_table(
        pa.Table.from_batches([to_arrow(contexts)]), tmp_path / "x.parquet", write_statistics=False
    )
    found = footer(tmp_path / "x.parquet").possible(NEEDS, ALL)[:, 0]
    assert dict(zip(ASKED, found.tolist(), strict=True)) == {
        text: not text.startswith(("seen", "flag")) for text in ASKED
    }


@pytest.mark.parametrize("point", [None, (0.0, 0.0), (50.0, 50.0)])
def test_a_box_excludes_files_and_groups_alike(
    tmp_path: Path, point: tuple[float, float] | None
) -> None:
    append(to_arrow([Context("v", "a", point, {}, 0, 5)]), tmp_path / "a")
    archive = Archive.open(tmp_path / "a")
    log = FileBounds(archive.files())
    (path,) = archive.files()["path"].to_pylist()
    groups = footer(tmp_path / "a" / path)
    box = np.array([1])
    expected = point == (0.0, 0.0)
    for bounds in (log, groups):
        assert bounds.possible(NEEDS, box).tolist() == [[expected]]
        assert bounds.pointless.tolist() == [point is None]
        for known in (*bounds.longitudes, *bounds.latitudes):
            assert not np.isnan(known).any(), "NaN never reaches the rule"


@pytest.mark.slow
def test_no_part_that_holds_a_match_is_ever_ruled_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_files, "GROUP_ROWS", 4)
    monkeypatch.setattr(density, "DENSE_ROWS", 1)  # by day and cell, however few
    draw = random.Random(7)
    contexts = [some_context(draw, f"v{number}") for number in range(120)]
    append(to_arrow(contexts), tmp_path / "a")
    archive = Archive.open(tmp_path / "a")
    log = FileBounds(archive.files())
    by_vid = {context.vid: context for context in contexts}
    parts: list[tuple[Bounds, int, list[str]]] = []
    for at, path in enumerate(archive.files()["path"].to_pylist()):
        vids = read_file(archive.storage, path, ["vid"])["vid"].to_pylist()
        groups = footer(tmp_path / "a" / path)
        parts.append((log, at, vids))
        parts += [(groups, g, vids[4 * g : 4 * g + 4]) for g in range(groups.parts)]
    excluded = 0
    for wanted in [Filter.parse(some_filter(draw)) for _ in range(60)]:
        needs = Needs([wanted])
        each = np.arange(needs.count)
        for bounds, number, inside in parts:
            possible = needs.count and bounds.possible(needs, each)[:, number].any()
            excluded += not possible
            assert possible or not any(wanted.matches(by_vid[vid]) for vid in inside), wanted
    assert excluded > 1_000, "the rule excludes something"


def test_retention_looks_into_files_without_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing minimum of t_d once read as "nothing ended here", and the rows stayed for ever."""
    monkeypatch.setattr(archive_files, "_statistics", lambda rows: _only_counted(len(rows)))
    append(to_arrow([Context("v", "a", None, {}, 0, 5)]), tmp_path / "a")
    assert retain(tmp_path / "a", drop_before=100).rows_dropped == 1


def _only_counted(rows: int) -> dict[str, object]:
    return {"numRecords": rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
