"""Times in archives: rounded by default on every way in, and an exact archive can be rewritten."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from roamcast.errors import InputError, LimitError
from roamcast.identity.blurring import rounded
from roamcast.identity.live_blur import GRID_S
from roamcast.model.filters import Filter
from roamcast.model.time import LATEST, MICROSECONDS, format_instant
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.archive.care import compact
from roamcast.pipeline.archive.files import read_file
from roamcast.pipeline.archive.layout import ArchiveSettings
from roamcast.pipeline.archive.retention import blur
from roamcast.pipeline.archive.table import Archive, settings_for
from roamcast.pipeline.lookup.run import Lookup
from tests.pipeline.conftest import EXACT
from tests.strategies_pipeline import contexts

BLURRED = ArchiveSettings()


def times(archive: Path) -> dict[str, tuple[int, int]]:
    opened = Archive.open(archive)
    parts = [
        read_file(opened.storage, path, ("vid", "t_r", "t_d"))
        for path in opened.files()["path"].to_pylist()
    ]
    return as_times(pa.concat_tables(parts))


def as_times(table: pa.Table) -> dict[str, tuple[int, int]]:
    begin = table["t_r"].cast(pa.int64()).to_pylist()
    end = pc.fill_null(table["t_d"].cast(pa.int64()), LATEST).to_pylist()
    return dict(zip(table["vid"].to_pylist(), zip(begin, end, strict=True), strict=True))


def expected(table: pa.Table, grid_s: int) -> dict[str, tuple[int, int]]:
    exact = as_times(table)
    begin, end = (np.array([row[side] for row in exact.values()]) for side in (0, 1))
    lower, upper = rounded(pa.array(list(exact)), begin, end, grid_s)
    return dict(zip(exact, zip(lower.tolist(), upper.tolist(), strict=True), strict=True))


def test_a_new_archive_rounds_times_unless_it_is_told_not_to(tmp_path: Path) -> None:
    assert BLURRED.grid_s == GRID_S > 0
    table = contexts(1, 300)
    append(table, tmp_path / "a", settings=BLURRED)
    assert times(tmp_path / "a") == expected(table, GRID_S)
    append(table, tmp_path / "b", settings=EXACT)
    assert times(tmp_path / "b") == as_times(table)


def test_whoever_was_there_is_found_in_rounded_times(tmp_path: Path) -> None:
    table = contexts(2, 200)
    append(table, tmp_path / "exact", settings=EXACT)
    append(table, tmp_path / "rounded", settings=BLURRED)
    begin = min(row[0] for row in as_times(table).values())
    hour = 3_600 * MICROSECONDS
    wanted = {
        f"m{number}": Filter.parse(
            "overlaps(time, INTERVAL("
            f"'{format_instant(begin + number * hour)}', "
            f"'{format_instant(begin + (number + 2) * hour)}'))"
        )
        for number in range(0, 48, 7)
    }
    for name, vids in Lookup(tmp_path / "exact").ask(wanted).items():
        assert set(vids) <= set(Lookup(tmp_path / "rounded").ask(wanted)[name])


def test_an_exact_archive_is_rewritten_and_its_old_files_are_gone(tmp_path: Path) -> None:
    table = contexts(3, 400)
    for start in range(0, 320, 80):
        append(table.slice(start, 80), tmp_path / "a", settings=EXACT)
    before = set(Archive.open(tmp_path / "a").storage.files())
    done = blur(tmp_path / "a", 600)
    assert done.rows == 320
    assert done.files_deleted == len(before)
    opened = Archive.open(tmp_path / "a")
    assert opened.settings == ArchiveSettings(grid_s=600)
    assert times(tmp_path / "a") == expected(table.slice(0, 320), 600)
    assert not before & set(opened.storage.files())
    # what comes later is rounded, a repetition and a compaction change nothing
    append(table.slice(320), tmp_path / "a")
    after = times(tmp_path / "a")
    assert after == expected(table, 600)
    assert blur(tmp_path / "a", 600).rows == 0
    compact(tmp_path / "a")
    assert times(tmp_path / "a") == after


def test_rounded_times_cannot_be_made_finer(tmp_path: Path) -> None:
    append(contexts(1, 10), tmp_path / "a", settings=BLURRED)
    with pytest.raises(InputError, match="cannot be made finer"):
        blur(tmp_path / "a", GRID_S - 1)
    assert Archive.open(tmp_path / "a").settings == BLURRED


def test_files_that_were_written_before_a_blur_are_refused_after_it(tmp_path: Path) -> None:
    late = Archive.make(tmp_path / "a", EXACT)
    blur(tmp_path / "a", GRID_S)
    with pytest.raises(InputError, match="have changed meanwhile"):
        late.append([], ("app", 1))
    late.refresh()
    with pytest.raises(InputError, match="have changed meanwhile"):
        late.append([], ("app", 1))


def test_settings_that_are_not_said_are_the_archives(tmp_path: Path) -> None:
    assert settings_for(tmp_path / "a", resolution=None, grid_s=None) is None
    Archive.make(tmp_path / "a", ArchiveSettings(6, 60))
    assert settings_for(tmp_path / "a", resolution=6, grid_s=None) == ArchiveSettings(6, 60)
    assert settings_for(tmp_path / "b", resolution=None, grid_s=7) == ArchiveSettings(4, 7)
    for wrong in (-1, 86_401):
        with pytest.raises(LimitError, match="a step of 0 to 86400 s"):
            Archive.make(tmp_path / "c", ArchiveSettings(grid_s=wrong))
    Archive.make(tmp_path / "c", ArchiveSettings(grid_s=86_400))


def test_places_are_coarsened_where_few_are_and_the_old_files_are_gone(tmp_path: Path) -> None:
    table = contexts(3, 400)
    append(table, tmp_path / "a", settings=BLURRED)
    before = table.num_rows
    done = blur(tmp_path / "a", GRID_S, crowd_min=400)
    assert done.files_deleted > 0
    opened = Archive.open(tmp_path / "a")
    parts = [read_file(opened.storage, path) for path in opened.files()["path"].to_pylist()]
    whole = pa.concat_tables(parts, promote_options="default")
    assert whole.num_rows == before
    assert not [one for one in whole["place"].to_pylist() if one is not None and "/" in one]
    assert blur(tmp_path / "a", GRID_S, crowd_min=400).files_replaced == 0
    with pytest.raises(LimitError):
        blur(tmp_path / "a", GRID_S, crowd_min=10_001)
