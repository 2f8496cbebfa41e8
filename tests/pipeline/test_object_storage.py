"""An archive in an object store: a real S3 endpoint on loopback, found by the environment."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from threading import Barrier, Thread
from urllib.request import Request, urlopen
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError

from roamcast.errors import RoamcastError
from roamcast.pipeline.archive.append import Appended, append
from roamcast.pipeline.archive.care import compact, vacuum
from roamcast.pipeline.archive.files import read_file
from roamcast.pipeline.archive.retention import erase, retain
from roamcast.pipeline.archive.storage import GoneError, Storage
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.lookup.run import Lookup
from tests.pipeline.test_archive import fail_after_commit
from tests.strategies_pipeline import BEGIN, DAY, contexts, expected, messages

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("moto", "flask", "flask_cors")),
        reason="needs moto[s3], flask and flask-cors",
    ),
]
BUCKET = "contexts"
TABLE = contexts(51, 90, days=1)
ASKED = messages(52, 33)


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """The address of an empty bucket; the environment leads there."""
    command = [sys.executable, "-m", "tests.pipeline.s3_server"]
    root = Path(__file__).parents[2]
    with (
        pytest.MonkeyPatch.context() as patch,
        subprocess.Popen(
            command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as server,
    ):
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        patch.setenv("AWS_ENDPOINT_URL", url)
        patch.setenv("AWS_ALLOW_HTTP", "true")
        patch.setenv("AWS_REGION", "us-east-1")
        patch.setenv("AWS_ACCESS_KEY_ID", "anybody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        with urlopen(Request(f"{url}/{BUCKET}", method="PUT"), timeout=60):
            pass
        try:
            yield f"s3://{BUCKET}"
        finally:
            server.kill()


@pytest.fixture
def archive(store: str) -> str:
    return f"{store}/{uuid4().hex}"


def test_an_archive_lives_its_whole_life_there(archive: str) -> None:
    for start in (0, 45):
        append(TABLE.slice(start, 45), archive)
    want = expected(TABLE, ASKED)
    assert Lookup(archive).ask(ASKED) == want
    joined = compact(archive)
    assert joined.files_replaced > joined.files_written > 0
    assert Lookup(archive).ask(ASKED) == want
    assert len(vacuum(archive, hours=0)) == joined.files_replaced

    kept = TABLE.slice(7)
    gone = erase(archive, TABLE["vid"][:7].to_pylist())
    assert (gone.rows_erased, gone.files_left) == (7, 0)
    assert Lookup(archive).ask(ASKED) == expected(kept, ASKED)

    before = BEGIN + DAY
    ended = [end is not None and end < before for end in kept["t_d"].cast(pa.int64()).to_pylist()]
    assert retain(archive, drop_before=before).rows_dropped == sum(ended) > 0
    still = kept.filter(pa.array([not one for one in ended]))
    assert Lookup(archive).ask(ASKED) == expected(still, ASKED)


def test_a_batch_that_is_tried_twice_lands_once(archive: str) -> None:
    assert append(TABLE, archive, transaction=("app", 1)).committed
    assert not append(TABLE, archive, transaction=("app", 1)).committed
    assert Lookup(archive).ask(ASKED) == expected(TABLE, ASKED)


def test_what_fails_after_its_commit_has_landed_there_too(
    archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(TABLE.slice(0, 45), archive)
    lost = CommitFailedError("the answer to a put was lost, and the next one said: it is there")
    for where, error in (("commit", lost), ("refresh", OSError("the store does not answer"))):
        with monkeypatch.context() as patch:
            told = fail_after_commit(patch, where, error)
            batch = ("app", {"commit": 1, "refresh": 2}[where])
            part = TABLE.slice(45 + 20 * (batch[1] - 1), 20)
            assert append(part, archive, transaction=batch).committed
            assert told[-1] == where
        assert not append(part, archive, transaction=batch).committed
    assert Lookup(archive).ask(ASKED) == expected(TABLE.slice(0, 85), ASKED)


def test_writers_at_once_all_land(archive: str) -> None:
    """Commits are conditional puts: who comes second looks again, and nobody's commit is lost."""
    append(TABLE.slice(0, 1), archive)
    begin = Barrier(3)
    landed: list[Appended] = []

    def write(number: int) -> None:
        begin.wait()
        landed.extend(
            append(TABLE.slice(1 + 2 * start, 2), archive) for start in range(number, 12, 3)
        )

    writers = [Thread(target=write, args=(number,)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [one.committed for one in landed] == [True] * 12
    assert Lookup(archive).ask(ASKED) == expected(TABLE.slice(0, 25), ASKED)


def test_two_that_rewrite_the_same_snapshot_cannot_both_land(archive: str) -> None:
    append(TABLE.slice(0, 9), archive)
    first, second = Archive.open(archive), Archive.open(archive)
    files = first.files().to_pylist()
    first.replace(files[:1], [], BEGIN, changed=True)
    with pytest.raises(CommitFailedError):
        second.replace(files[1:2], [], BEGIN, changed=True)


def test_it_travels_to_workers_by_its_address(archive: str) -> None:
    append(TABLE.slice(0, 9), archive)
    there: Storage = pickle.loads(pickle.dumps(Storage(archive)))
    paths = Archive.open(archive).files()["path"].to_pylist()
    assert there.files() == sorted(paths)
    assert sum(read_file(there, path).num_rows for path in paths) == 9


def test_what_is_wrong_with_a_store_is_told_in_one_line(archive: str) -> None:
    with pytest.raises(RoamcastError, match="cannot make an archive at s3://no-such") as told:
        append(TABLE, "s3://no-such-bucket/archive")
    assert len(str(told.value).splitlines()) == 1
    assert "\x1b" not in str(told.value)
    with pytest.raises(RoamcastError, match="nowhere://x"):
        append(TABLE, "nowhere://x")
    with pytest.raises(GoneError, match="no longer in the archive"):
        Storage(archive).open("nothing.parquet")
