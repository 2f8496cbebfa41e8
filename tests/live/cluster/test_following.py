"""Hosts that follow: they have what was acknowledged, and what they have newer comes back."""

import asyncio
import contextlib
import os
import random
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.takeover import Pair
from roamcast.channels.failover.replica_messages import (
    PAGE_BYTES_MAX,
    Follow,
    FollowerAck,
    StoreChanges,
    StoreEntry,
    StorePage,
)
from roamcast.channels.server.messages import ServerHere
from roamcast.errors import AuthError
from roamcast.live.auth.grants import SharedRevocations
from roamcast.live.auth.keys import TokenKeys
from roamcast.live.cluster import proof as peer_proof
from roamcast.live.cluster.followers import Followers, heard, pages
from roamcast.live.cluster.following import Following
from roamcast.live.cluster.replicas import Replicas
from roamcast.live.config.settings import load_settings, with_server
from roamcast.live.store.file import Entry
from roamcast.live.store.store import SqliteStore
from roamcast.model.wire import Message
from roamcast.transport.driver import wall_clock

DEADLINE_S = 60.0
SECRET = b"s" * 32
NOW = 1_794_800_000_000_000


class Cable:
    """Joins the store of a host that serves and one that stands by, as a call between them does."""

    def __init__(self, disk: SqliteStore, followers: Followers, following: Following) -> None:
        self.disk = disk
        self.followers = followers
        self.following = following
        self.cut = False
        self.offered = 0
        self._loop = asyncio.get_running_loop()
        self._merging: set[asyncio.Task[None]] = set()
        following.follow("a", self._up)

    def end(self) -> None:
        self.cut = True
        self.followers.gone("b")
        self.following.gone("a")

    def _down(self, message: Message) -> None:
        if not self.cut:
            self._loop.call_soon(self.following.told, "a", message)

    def _up(self, message: Message) -> None:
        if not self.cut:
            self._loop.call_soon(self._take, message)

    def _take(self, message: Message) -> None:
        match message:
            case Follow():
                self.followers.follow("b", self._down, self.end)
            case FollowerAck(number):
                self.followers.on_disk("b", number)
            case StoreChanges(_, entries):
                self.offered += len(entries)
                task = self._loop.create_task(self._merge(heard(entries)))
                self._merging.add(task)

    async def _merge(self, entries: list[Entry]) -> None:
        await self.disk.merge(entries)


@contextlib.asynccontextmanager
async def hosts(folder: Path, follow_s: float = DEADLINE_S) -> AsyncIterator[Cable]:
    disk = SqliteStore.open(folder / "a.db", copied=True)
    following = Following(folder / "b.db")
    following.start()
    cable = Cable(disk, Followers(disk, follow_s=follow_s), following)
    try:
        yield cable
    finally:
        cable.end()
        await following.stop()
        await disk.close()


async def current(cable: Cable) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not cable.followers.current:
            await asyncio.sleep(0.001)


def entries(path: Path) -> list[Entry]:
    async def body() -> list[Entry]:
        store = SqliteStore.open(path, copied=True)
        found = store.page("")
        await store.close()
        return found

    return asyncio.run(body())


@pytest.mark.parametrize("seed", range(2))
def test_what_is_acknowledged_is_on_the_other_disk_and_what_that_has_newer_comes_back(
    seed: int,
) -> None:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        async def life() -> None:
            async with hosts(folder) as cable:
                known = set(range(200))
                for _ in range(3):
                    await current(cable)
                    for _ in range(40):
                        key = draw.choice(sorted(known))
                        value = None if draw.random() < 0.3 else draw.randbytes(3_000)
                        await cable.disk.write([(f"object/{key}", value), ("rules/x", b"r")])
                        assert cable.followers.behind == 0
                    copy = cable.following._disk
                    assert copy is not None
                    assert copy.page("") == cable.disk.page("")
                    cable.end()  # and both go on alone
                    for one in (cable.disk, copy):
                        await one.write([(f"object/{draw.randrange(200)}", draw.randbytes(9))])
                    cable = Cable(cable.disk, cable.followers, cable.following)
                    await current(cable)
                    assert cable.offered >= 1
                await asyncio.gather(*cable._merging)
                cable.end()

        for _ in range(2):  # the second life opens what the first one left
            asyncio.run(life())
            assert entries(folder / "a.db") == entries(folder / "b.db")
            assert any(entry.value is None for entry in entries(folder / "b.db"))


def test_a_host_that_does_not_write_is_left_behind_and_nobody_waits_for_it_again(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with hosts(tmp_path, follow_s=0.05) as cable:
            await current(cable)
            cable.cut = True  # its answers do not come any more
            async with asyncio.timeout(DEADLINE_S):
                await cable.disk.write([("k", b"v")])
            assert cable.followers.counts["left behind"] == 1
            assert (cable.followers.current, cable.followers.behind) == (0, 0)
            await cable.disk.write([("k", b"w")])
            again = Cable(cable.disk, cable.followers, cable.following)
            await current(again)
            copy = again.following._disk
            assert copy is not None
            assert copy.load("") == {"k": b"w"}
            again.end()

    asyncio.run(body())


def test_what_a_host_told_before_it_was_gone_is_written_though_it_still_waited(
    tmp_path: Path,
) -> None:
    answers: list[Message] = []

    async def body() -> None:
        following = Following(tmp_path / "b.db")
        following.start()
        following.follow("a", answers.append)
        await asyncio.sleep(0)
        following.told("a", StorePage(1, "", "k", (StoreEntry("k", b"v", 1),)))
        for number in range(2, 50):
            following.told("a", StoreChanges(number, (StoreEntry(f"k{number}", b"v", number),)))
        following.gone("a")
        following.told("a", StoreChanges(50, (StoreEntry("late", b"v", 50),)))
        await following.stop()

    asyncio.run(body())
    found = {entry.key for entry in entries(tmp_path / "b.db")}
    assert found == {"k", *(f"k{number}" for number in range(2, 50))}
    assert answers == [Follow()]


class Handing:
    """A service that hands over while a write is on its way to its disk."""

    def __init__(self) -> None:
        self.given: list[object] = []
        self.paused = False
        self.safe = asyncio.Event()

    def give(self, given: object) -> None:
        self.given.append(given)

    def adopt(self, entries: object) -> None:
        raise AssertionError(entries)

    def pause(self, paused: bool) -> None:
        self.paused = paused

    async def settled(self) -> None:
        assert self.paused
        await self.safe.wait()


def test_a_server_hands_over_what_it_has_taken_though_that_still_waits_for_its_disk(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        settings = with_server(load_settings(Pair(tmp_path).settings), name="a")
        disk, serving = SqliteStore.open(tmp_path / "a.db", copied=True), Handing()
        peers = Replicas(
            settings, epoch=1, key_id=str, disk=disk, serving=serving, clock=wall_clock()
        )
        told: list[Message] = []
        peers._links["b"].send = told.append  # type: ignore[method-assign]
        handing = asyncio.ensure_future(peers._hand("b", ServerHere(2, 0)))
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert told == []
        await disk.write([("object/x", b"v")])
        serving.safe.set()
        async with asyncio.timeout(DEADLINE_S):
            while not told:
                await asyncio.sleep(0.001)
        assert isinstance(told[0], StoreChanges)
        assert [entry.key for entry in heard(told[0].entries)] == ["object/x"]
        peers._hear("b", FollowerAck(told[0].number))
        await handing
        assert len(serving.given) == 1
        await disk.close()

    asyncio.run(body())


def test_a_token_that_one_host_revoked_is_refused_by_the_one_that_follows(tmp_path: Path) -> None:
    async def body() -> None:
        clock = wall_clock()
        first = TokenKeys.open(tmp_path / "a")
        token = first.issue("ada", ["read"], lifetime_s=100, now=clock())
        other = first.issue("bob", ["read"], lifetime_s=100, now=clock())
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "keys.json").write_bytes((tmp_path / "a" / "keys.json").read_bytes())
        (tmp_path / "b" / "keys.json").chmod(0o600)
        second = TokenKeys.open(tmp_path / "b")
        one, two = (SqliteStore.open(tmp_path / name / "s.db", copied=True) for name in "ab")
        revoked = [SharedRevocations(first, one, clock), SharedRevocations(second, two, clock)]
        first.revoke(token, clock())
        first.check(other, clock())  # it reads the file anew
        for _ in range(2):
            revoked[0].look()
        await one.write([("all before", b"")])
        entries = one.page("revoked/", "revoked0")
        assert len(entries) == 1
        second.check(token, clock())
        revoked[1].adopt(await two.merge(entries))
        with pytest.raises(AuthError, match="revoked"):
            second.check(token, clock())
        again = TokenKeys.open(tmp_path / "b")
        SharedRevocations(again, two, clock)
        with pytest.raises(AuthError, match="revoked"):
            again.check(token, clock())
        again.check(other, clock())
        SharedRevocations(again, two, lambda: clock() + 200_000_000)  # expired: forgotten
        await two.write([("all before", b"")])
        assert list(two.load("")) == ["all before"]
        for store in (one, two):
            await store.close()

    asyncio.run(body())


def test_entries_are_parted_into_what_a_message_holds() -> None:
    large = [Entry(f"k{number}", b"v" * (PAGE_BYTES_MAX // 3), 1) for number in range(7)]
    found = pages(large)
    assert [len(page) for page in found] == [2, 2, 2, 1]
    assert heard([one for page in found for one in page]) == large
    assert pages([]) == []
    assert pages([Entry("k", b"v" * PAGE_BYTES_MAX * 3, 1)]) == [
        (StoreEntry("k", b"v" * PAGE_BYTES_MAX * 3, 1),)
    ]


def test_a_host_proves_that_it_knows_the_secret_and_who_it_is() -> None:
    nonce = os.urandom(peer_proof.NONCE_BYTES)
    said = peer_proof.call(SECRET, "b", "watchdog", "a", now=NOW, nonce=nonce)
    assert SECRET.hex() not in said
    caller = peer_proof.check_call(SECRET, said, "a", ("a", "b"), NOW)
    assert caller == ("b", "watchdog", nonce)
    proof = peer_proof.answer(SECRET, nonce, "a")
    assert peer_proof.check_answer(SECRET, nonce, "a", proof)
    assert not peer_proof.check_answer(SECRET, nonce, "b", proof)
    assert not peer_proof.check_answer(SECRET, os.urandom(16), "a", proof)
    assert not peer_proof.check_answer(b"x" * 32, nonce, "a", proof)
    hour = 3_600_000_001
    for wrong, to, known, now, why in (
        (said, "c", ("a", "b", "c"), NOW, "another secret"),  # called another host
        (said.replace("watchdog", "server"), "a", ("a", "b"), NOW, "another secret"),
        (said, "a", ("a", "c"), NOW, "none of the other hosts"),
        (said, "a", ("a", "b"), NOW + hour, "more than an hour"),
        (said, "a", ("a", "b"), NOW - hour, "more than an hour"),
        ("Bearer x", "a", ("a", "b"), NOW, "only hosts"),
        ("", "a", ("a", "b"), NOW, "only hosts"),
        ("Roamcast-Host ä", "a", ("a", "b"), NOW, "only hosts"),
    ):
        with pytest.raises(AuthError, match=why):
            peer_proof.check_call(SECRET, wrong, to, known, now)
    itself = peer_proof.call(SECRET, "a", "server", "a", now=NOW, nonce=nonce)
    with pytest.raises(AuthError, match="none of the other hosts"):
        peer_proof.check_call(SECRET, itself, "a", ("a", "b"), NOW)
