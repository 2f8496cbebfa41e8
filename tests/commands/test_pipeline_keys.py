"""`roamcast pipeline keys`: old epochs still resolve, until their key is destroyed."""

import json
import os
from pathlib import Path
from secrets import token_bytes
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from roamcast.cli import build
from roamcast.errors import InputError, MissingError
from roamcast.identity.pseudonyms import REGISTER, new_handles, resolve, seal
from roamcast.pipeline.ingest.state import BusyError, opened

PEOPLE = ["ann", "bob"]


def keys(archive: Path, *more: object) -> dict[str, Any]:
    words = ["pipeline", "keys", "--archive", str(archive), "--json", *map(str, more)]
    done = CliRunner().invoke(build(), words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "archive"
    with opened(tmp_path / "archive.private", folder, "tn.example.org", token_bytes):
        return folder


def test_vids_of_every_epoch_resolve_until_its_key_is_destroyed(
    archive: Path, tmp_path: Path
) -> None:
    handles = new_handles(len(PEOPLE), token_bytes)
    register = pa.table([pa.array(PEOPLE), handles], schema=REGISTER)
    vids: dict[int, pa.Array] = {}
    for epoch in (1, 2, 3):
        with opened(tmp_path / "archive.private", archive, "localhost", token_bytes) as state:
            assert state.keys.current == epoch
            vids[epoch] = seal(handles, state.keys, token_bytes)
        found = keys(archive, "--rotate")
        assert found["current"] == epoch + 1
        assert found["node"] == "tn.example.org"
    assert keys(archive, "--destroy", 2) == {
        "node": "tn.example.org",
        "current": 4,
        "open": [1, 3, 4],
        "destroyed": [2],
    }
    with opened(tmp_path / "archive.private", archive, "localhost", token_bytes) as state:
        for epoch in (1, 3):
            assert resolve(vids[epoch], state.keys, register).to_pylist() == PEOPLE
        assert resolve(vids[2], state.keys, register).to_pylist() == [None, None]


def test_the_key_that_seals_is_not_destroyed(archive: Path) -> None:
    with pytest.raises(InputError, match="rotate first"):
        keys(archive, "--destroy", 1)
    with pytest.raises(InputError, match="no key of epoch 9"):
        keys(archive, "--destroy", 9)
    assert keys(archive)["open"] == [1]


def test_a_destroyed_key_is_gone_from_the_disk_before_anybody_is_told(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys(archive, "--rotate")
    synced: list[Path] = []
    real = os.fsync

    def sync(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink())
        real(handle)

    monkeypatch.setattr(os, "fsync", sync)
    assert keys(archive, "--destroy", 1)["destroyed"] == [1]
    private = tmp_path / "archive.private"
    assert synced == [private / ".keys.json.new", private]


def test_nothing_rotates_while_an_ingest_runs(archive: Path, tmp_path: Path) -> None:
    with (
        opened(tmp_path / "archive.private", archive, "localhost", token_bytes),
        pytest.raises(BusyError),
    ):
        keys(archive, "--rotate")
    assert keys(archive)["current"] == 1


def test_without_a_trusted_node_there_is_nothing_to_rotate(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no trusted node"):
        keys(tmp_path / "other", "--rotate")
