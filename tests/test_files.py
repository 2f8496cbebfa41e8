"""Files that survive a crash: whole or absent, owner-only from the first byte, synced in order."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from roamcast import files


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_write_replaces_the_file_whole_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    files.write_whole(path, b"old")
    files.write_whole(path, b"new and longer")
    assert path.read_bytes() == b"new and longer"
    assert list(tmp_path.iterdir()) == [path]


def test_the_bytes_are_synced_before_the_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    seen: list[tuple[bool, bool]] = []

    def fsync(handle: int) -> None:
        seen.append((stat.S_ISDIR(os.fstat(handle).st_mode), path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    files.write_whole(path, b"x")
    assert seen == [(False, False), (True, True)]


def test_a_write_that_fails_half_way_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    files.write_whole(path, b"old")

    def torn(file: IO[bytes]) -> None:
        file.write(b"ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        files.write_with(path, torn)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_secret_is_never_readable_by_others_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    seen: list[int] = []
    before = os.umask(0)
    try:
        # what somebody left beside with a wider mode must not lend it to the secret
        left_over = tmp_path / ".keys.json.new"
        left_over.touch(mode=0o666)

        def look(file: IO[bytes]) -> None:
            seen.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))
            file.write(b"secret")

        files.write_with(path, look, mode=files.OWNER_ONLY)
    finally:
        os.umask(before)
    assert seen == [0o600]
    assert mode(path) == 0o600
    path.chmod(0o644)
    files.write_whole(path, b"again", mode=files.OWNER_ONLY)
    assert mode(path) == 0o600


def test_other_files_have_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write_whole(tmp_path / "plain", b"x")
    finally:
        os.umask(before)
    assert mode(tmp_path / "plain") == 0o640


KILLED = """
import os, signal, sys
from pathlib import Path
from roamcast import files

def half(file):
    file.write(b"ne")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

files.write_with(Path(sys.argv[1]), half, mode=files.OWNER_ONLY)
"""


@pytest.mark.process
def test_a_writer_killed_half_way_leaves_the_old_file_and_the_next_write_cleans_up(
    tmp_path: Path,
) -> None:
    path = tmp_path / "keys.json"
    files.write_whole(path, b"old", mode=files.OWNER_ONLY)
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    (left_over,) = set(tmp_path.iterdir()) - {path}
    assert left_over.name == ".keys.json.new"
    assert left_over.read_bytes() == b"ne"
    assert mode(left_over) == 0o600
    files.write_whole(path, b"new", mode=files.OWNER_ONLY)
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_folder_is_for_its_owner_and_its_name_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync", synced.append)
    folder = tmp_path / "a" / "b"
    files.make_private_folder(folder)
    assert mode(folder) == 0o700
    assert synced == [tmp_path, tmp_path / "a"]
    files.make_private_folder(folder)
    assert synced == [tmp_path, tmp_path / "a"], "what is there is left alone"


def test_named_files_are_synced_with_every_folder_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "root" / "day=1").mkdir(parents=True)
    (tmp_path / "root" / "day=1" / "x.parquet").touch()
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync", synced.append)
    root = tmp_path / "root"
    files.sync_named(root, ["day=1/x.parquet", "day=2/gone.parquet"])
    assert synced == [root / "day=1" / "x.parquet", tmp_path, root, root / "day=1"]


def test_what_was_begun_and_not_taken_is_removed(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / ".begun.parquet").touch()
    (tmp_path / "rows" / "taken.parquet").touch()
    files.remove_hidden(tmp_path)
    assert [path.name for path in (tmp_path / "rows").iterdir()] == ["taken.parquet"]
    files.remove_tree(tmp_path / "rows")
    files.remove_tree(tmp_path / "rows")
    files.remove_hidden(tmp_path / "rows")
    assert list(tmp_path.iterdir()) == []
