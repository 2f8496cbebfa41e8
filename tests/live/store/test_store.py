"""The store: acknowledged means on disk, through kill -9, full disks and floods."""

import asyncio
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import InputError, LimitError, StoreError
from roamcast.live.store.file import connect, prune
from roamcast.live.store.store import SqliteStore
from roamcast.model.machine import KEY_LENGTH_MAX, Entry, Writes


def with_store(
    path: Path, use: Callable[[SqliteStore], Coroutine[Any, Any, Any]], **said: Any
) -> Any:
    async def body() -> Any:
        store = SqliteStore.open(path, **said)
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(body())


def loaded(path: Path, prefix: str = "") -> dict[str, bytes]:
    async def use(store: SqliteStore) -> dict[str, bytes]:
        return store.load(prefix)

    return with_store(path, use)  # type: ignore[no-any-return]


NAMES = st.sampled_from(["a", "ab", "a/b", "a/\U0010fffe", "b", "é", "%", "_"])


@settings(max_examples=15)
@given(
    st.lists(st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=9)), max_size=4).map(tuple))
)
def test_the_store_is_a_dictionary_that_lasts(batches: list[Writes]) -> None:
    import tempfile

    expected: dict[str, bytes] = {}
    for key, value in (write for batch in batches for write in batch):
        expected.pop(key, None)
        if value is not None:
            expected[key] = value

    async def use(store: SqliteStore) -> None:
        await asyncio.gather(*(store.write(batch) for batch in batches))
        assert store.load("") == expected

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        with_store(path, use, commit_writes_max=3)
        for prefix in ("", "a", "a/", "c"):
            found = loaded(path, prefix)
            assert found == {k: v for k, v in expected.items() if k.startswith(prefix)}
            assert list(found) == sorted(found, key=str.encode)


@pytest.mark.limit("durability.commit_writes_max")
def test_a_transaction_has_at_most_so_many_writes(tmp_path: Path) -> None:
    commits: list[int] = []

    async def use(store: SqliteStore) -> None:
        with store._using:  # the disk is busy, so the others gather
            writes = [store.write(((str(n), b"x"),)) for n in range(31)]
        await asyncio.gather(*writes)

    with_store(
        tmp_path / "s.db",
        use,
        commit_writes_max=10,
        committed=lambda _seconds, writes: commits.append(writes),
    )
    assert sum(commits) == 31
    assert max(commits) == 10


def test_whoever_waits_together_is_committed_together(tmp_path: Path) -> None:
    commits: list[int] = []

    async def use(store: SqliteStore) -> None:
        with store._using:  # the disk is busy, so the others gather
            first = store.write((("0", b"0"),))
            rest = [store.write(((str(n), b"x"),)) for n in range(1, 1_000)]
            assert store.writes_waiting == 1_000
            assert not any(future.done() for future in (first, *rest))
        await asyncio.gather(first, *rest)
        assert store.writes_waiting == 0

    with_store(tmp_path / "s.db", use, committed=lambda _seconds, writes: commits.append(writes))
    assert sum(commits) == 1_000
    assert len(commits) <= 2


@pytest.mark.limit("durability.writes_waiting_max", "durability.bytes_waiting_max")
def test_what_waits_is_bounded_in_writes_and_bytes(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        with store._using:
            store.write((("first", b""),))
            while store._waiting:  # the writer has taken it and waits for the disk
                await asyncio.sleep(0)
            kept = [store.write(((f"k{n}", b"v" * 8),)) for n in range(9)]
            with pytest.raises(LimitError, match="10 writes wait for the disk"):
                store.write((("one more", b""),))
        await asyncio.gather(*kept)
        await store.write((("and again", b""),))

    with_store(tmp_path / "a.db", use, writes_waiting_max=10)

    async def use_bytes(store: SqliteStore) -> None:
        with store._using:
            kept = store.write((("k", b"v" * 99),))
            while store._waiting:
                await asyncio.sleep(0)
            large = store.write((("l", b"v" * 1_000),))  # alone in the queue, so it is taken
            with pytest.raises(LimitError, match="100 bytes wait"):
                store.write((("m", b""),))
        await asyncio.gather(kept, large)

    with_store(tmp_path / "b.db", use_bytes, bytes_waiting_max=100)


def test_a_key_of_the_greatest_length_is_stored(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        await store.write((("k" * KEY_LENGTH_MAX, b"v"),))

    with_store(tmp_path / "s.db", use)
    assert loaded(tmp_path / "s.db") == {"k" * KEY_LENGTH_MAX: b"v"}


def test_a_full_disk_refuses_clearly_and_the_store_recovers(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        await store.write((("small", b"1"),))
        with store._using:
            pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
            store._connection.execute(f"PRAGMA max_page_count = {pages}")
        refused = [store.write(((f"k{n}", b"v" * 10_000),)) for n in range(3)]
        for future in refused:
            with pytest.raises(StoreError, match=r"the disk refused to keep this: .*full"):
                await future
        assert "full" in str(store.problem)
        assert store.load("") == {"small": b"1"}
        with store._using:
            store._connection.execute("PRAGMA max_page_count = 1000000")
        await store.write((("later", b"2"),))
        assert store.problem is None

    with_store(tmp_path / "s.db", use)
    assert loaded(tmp_path / "s.db") == {"small": b"1", "later": b"2"}


def test_a_waiter_that_left_does_not_disturb_the_others(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        with store._using:
            gone, stays = store.write((("a", b"1"),)), store.write((("b", b"2"),))
            gone.cancel()
        await stays

    with_store(tmp_path / "s.db", use)
    assert loaded(tmp_path / "s.db") == {"a": b"1", "b": b"2"}


def test_closing_writes_what_waits_and_refuses_what_comes_after(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        waiting = store.write((("k", b"v"),))
        await store.close()
        assert waiting.done()
        with pytest.raises(StoreError, match="closed"):
            store.write((("late", b"v"),))

    with_store(tmp_path / "s.db", use)
    assert loaded(tmp_path / "s.db") == {"k": b"v"}


def test_a_second_service_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    async def use(_store: SqliteStore) -> None:
        with pytest.raises(InputError, match="another service uses this data folder"):
            SqliteStore.open(tmp_path / "s.db")

    with_store(tmp_path / "s.db", use)
    assert loaded(tmp_path / "s.db") == {}


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        await store.write((("k", b"v"),))
        for path in (tmp_path / "new").iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600

    with_store(tmp_path / "new" / "s.db", use)


def test_foreign_and_newer_files_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database" * 1_000)
    with pytest.raises(InputError, match=r"text\.db: not a store of ours"):
        connect(tmp_path / "text.db")
    newer = sqlite3.connect(tmp_path / "newer.db")
    newer.execute("PRAGMA user_version = 4")
    newer.close()
    with pytest.raises(InputError, match="newer Roamcast"):
        connect(tmp_path / "newer.db")
    with pytest.raises(InputError, match="cannot open the store"):
        connect(tmp_path)


def test_the_file_is_in_wal_mode_and_synced_at_every_commit(tmp_path: Path) -> None:
    connection = connect(tmp_path / "s.db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    connection.close()


def test_a_store_of_the_first_version_keeps_its_values(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "s.db")
    old.execute("CREATE TABLE pairs (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
    old.execute("INSERT INTO pairs VALUES ('k', x'01')")
    old.execute("PRAGMA user_version = 1")
    old.commit()
    old.close()
    assert loaded(tmp_path / "s.db") == {"k": b"\x01"}
    assert loaded(tmp_path / "s.db") == {"k": b"\x01"}


ENTRIES = st.builds(
    Entry, st.sampled_from("abc"), st.none() | st.binary(max_size=2), st.integers(1, 50)
)


@settings(max_examples=15)
@given(st.lists(st.lists(ENTRIES, min_size=1, max_size=4), max_size=6), st.randoms())
def test_stores_that_are_merged_in_any_order_hold_the_latest_of_each_name(
    batches: list[list[Entry]], draw: random.Random
) -> None:
    import tempfile

    # No two writes have one stamp: it is the clock, and later than all that the host has seen.
    unique = {entry.stamp: entry for batch in batches for entry in batch}
    batches = [[entry for entry in batch if unique[entry.stamp] is entry] for batch in batches]
    batches = [batch for batch in batches if batch]
    latest: dict[str, Entry] = {}
    for entry in unique.values():
        latest[entry.key] = max(entry, latest.get(entry.key, entry), key=lambda one: one.stamp)
    expected = [latest[key] for key in sorted(latest)]

    async def use(store: SqliteStore) -> None:
        order = [*batches, *batches]
        draw.shuffle(order)
        newer = await asyncio.gather(*(store.merge(batch) for batch in order))
        assert sum(map(len, newer)) <= len(unique)
        assert store.page("") == expected
        there = {key: one.value for key, one in latest.items() if one.value is not None}
        assert store.load("") == there
        pages: list[Entry] = []
        while page := store.page(pages[-1].key if pages else "", bytes_max=1):
            assert len(page) == 1
            pages += page
        assert pages == expected
        await store.write((("a", b"after all"),), stamp=100)
        assert store.page("", "a") == [Entry("a", b"after all", 100)]

    async def again(store: SqliteStore) -> int:
        return store.stamp

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        assert with_store(path, again, copied=True) == 0
        with_store(path, use, copied=True)
        assert with_store(path, again, copied=True) == 100


def test_what_was_forgotten_is_remembered_for_a_bounded_time_and_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from roamcast.live.store import file as store_file

    monkeypatch.setattr(store_file, "GONE_MAX", 10)
    week = store_file.GONE_US_MAX
    connection = connect(tmp_path / "s.db")

    def forgotten() -> list[int]:
        rows = connection.execute("SELECT stamp FROM entries WHERE value IS NULL ORDER BY stamp")
        return [row[0] for row in rows]

    connection.executemany(
        "INSERT INTO entries VALUES (?, NULL, ?)", [(f"k{n}", n) for n in range(10)]
    )
    assert prune(connection, week + 3) == 7
    assert forgotten() == list(range(3, 10))
    connection.executemany(
        "INSERT INTO entries VALUES (?, NULL, ?)", [(f"k{n}", n) for n in range(10, 14)]
    )
    assert prune(connection, week) == 5
    assert forgotten() == list(range(9, 14))
    connection.close()


CHILD = """
import asyncio, sys
from pathlib import Path
from roamcast.live.store.store import SqliteStore

async def one(store, writer):
    number = 0
    while True:
        await store.write(((f"{writer}/{number}", b"v" * 100), (f"{writer}/last", b"%d" % number)))
        sys.stdout.write(f"{writer}/{number}\\n")
        sys.stdout.flush()
        number += 1

async def main():
    store = SqliteStore.open(Path(sys.argv[1]))
    await asyncio.gather(*(one(store, writer) for writer in range(20)))

asyncio.run(main())
"""


@pytest.mark.process
@pytest.mark.parametrize("seed", range(3))
def test_everything_acknowledged_survives_kill_9(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    acknowledged: list[str] = []
    for _ in range(2):  # the second child opens what the first one left
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        wanted = len(acknowledged) + random.Random(seed).randrange(50, 1_500)
        while len(acknowledged) < wanted:
            acknowledged.append(child.stdout.readline().strip())
        os.kill(child.pid, signal.SIGKILL)
        acknowledged += [line.strip() for line in child.stdout if line.endswith("\n")]
        child.wait()
        child.stdout.close()
        kept = loaded(path)
        assert all(kept.get(key) == b"v" * 100 for key in acknowledged)
        for writer in range(20):  # a write is whole or absent
            number = kept.get(f"{writer}/last")
            assert number is None or f"{writer}/{int(number)}" in kept
