"""Hosts that follow: they have what was acknowledged, and what they have newer comes back.

The machines are those of a service and of a host that stands by, with real stores and disk drivers;
between them is a call without a network. What they say to each other is tested with the machines.
"""

import asyncio
import contextlib
import os
import random
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from bench.takeover import Pair
from roamcast.channels.failover.epochs import epoch_at
from roamcast.channels.failover.following import Following
from roamcast.channels.failover.replica_messages import (
    PAGE_BYTES_MAX,
    REPLICA_PROTOCOL,
    Follow,
    OfferTaken,
    ReplicaHere,
    StoreChanges,
    StoreOffer,
    StorePage,
    pages,
)
from roamcast.channels.failover.replication import ReplicaGone
from roamcast.channels.past.part import FirstStep
from roamcast.channels.server.messages import ServerHere
from roamcast.channels.sessions.publications import PREFIX, StoredPublication
from roamcast.errors import AuthError, StoreError
from roamcast.identity.rules import Viewer
from roamcast.live.auth.admission import TokenKeys
from roamcast.live.cluster import proof as peer_proof
from roamcast.live.cluster.replicas import WAITING_BYTES_MAX, ReplicaCall
from roamcast.live.config.settings import Settings, load_settings, with_server
from roamcast.live.observe.metrics import Metrics
from roamcast.live.service.service import Service
from roamcast.live.store.store import DiskDriver, SqliteStore
from roamcast.model.addresses import Replica
from roamcast.model.contexts import Context, body_of
from roamcast.model.machine import (
    Entry,
    Input,
    Merge,
    PageRead,
    ReadPage,
    Received,
    Send,
    Stored,
    StoreFailed,
)
from roamcast.model.machine import Store as StoreEffect
from roamcast.model.wire import Message, Unreadable
from roamcast.transport.driver import Carriers, Driver, wall_clock
from tests.live.calls import DEADLINE_S, CallSocket, followed

SECRET = b"s" * 32
NOW = 1_794_800_000_000_000
VIDS = 200
NOTE = "n" * 3_000
"""So long that a copy takes several pages."""

ADA = Viewer("ada")


class StandBy:
    """A host that stands by: its copy, its disk, and its calls to the service of host a."""

    def __init__(self, path: Path) -> None:
        self.store = SqliteStore.open(path, copied=True)
        self.sent: list[Message] = []
        self.deaf = False
        """Whether its answers are lost."""
        self.driver = Driver(Following("b", replicas=("a", "b")), clock=wall_clock())
        self._disk = DiskDriver(self.store, self.driver.give)
        carry = {Send: self._send, Merge: self._disk.carry, ReadPage: self._disk.carry}
        self.driver.carry = Carriers(carry)
        self.driver.start()
        self._call: StandByCall | None = None

    def call(self, service: Service) -> "StandByCall":
        """Call the service; it welcomes, and the copy begins."""
        self.deaf = False
        self._call = StandByCall(service, self)
        return self._call

    def lose(self) -> None:
        """Let the call break."""
        call, self._call = self._call, None
        if call is not None:
            call.service.replicas.disconnected(call.call)
            self.driver.give(ReplicaGone(Replica("a")))

    def hear(self, message: Message) -> None:
        """Take what the service says."""
        if isinstance(message, ReplicaHere):  # as the keeper does
            message = ServerHere(message.epoch, 0)
        self.driver.give(Received("a", message))

    def _send(self, effect: Send) -> None:
        self.sent.append(effect.message)
        if self._call is not None and not self.deaf:
            self._call.up(effect.message)

    async def close(self) -> None:
        """Let go of the store, as before a service starts on it."""
        self.lose()
        self.driver.close()
        self._disk.stop()
        await self.store.close()


class StandByCall(CallSocket):
    """A call whose other end is a host that stands by."""

    def __init__(self, service: Service, host: StandBy) -> None:
        self.service = service
        self._host = host
        super().__init__(service, "b")

    def up(self, message: Message) -> None:
        self._loop.call_soon(self.say, message)

    def write(self, framed: bytes) -> None:
        size = {126: 2, 127: 8}.get(framed[1], 0)
        message = REPLICA_PROTOCOL.decode(framed[2 + size :])
        assert not isinstance(message, Unreadable)
        self.messages.append(message)
        self._loop.call_soon(self._down, message)

    def _down(self, message: Message) -> None:
        if self._host._call is self:
            self._host.hear(message)

    def close(self, code: int, reason: str) -> None:
        super().close(code, reason)
        self._loop.call_soon(self._host.lose)


def host_a(folder: Path, extra: str = "") -> Settings:
    """Give the settings of the first of two hosts."""
    return with_server(load_settings(Pair(folder, extra).settings), name="a")


@contextlib.asynccontextmanager
async def serving(settings: Settings, folder: Path, file: str = "a.db") -> AsyncIterator[Service]:
    """Run a service without a port, whose disk other hosts copy."""
    disk = SqliteStore.open(folder / file, copied=True)
    keys = TokenKeys.open(folder)
    service = Service(settings, disk=disk, keys=keys, metrics=Metrics())
    service.driver.start()
    try:
        yield service
    finally:
        await service.goodbye()
        await service.stop()


@contextlib.asynccontextmanager
async def standing_by(path: Path) -> AsyncIterator[StandBy]:
    host = StandBy(path)
    try:
        yield host
    finally:
        await host.close()


def context(service: Service, vid: str, place: str = "hq/1", note: str = "") -> Context:
    return Context(vid, place, None, {"note": note} if note else {}, service.clock())


def entries(path: Path) -> list[Entry]:
    async def body() -> list[Entry]:
        store = SqliteStore.open(path, copied=True)
        found = store.page("")
        await store.close()
        return found

    return asyncio.run(body())


async def until_equal(one: SqliteStore, other: SqliteStore) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while one.page("") != other.page(""):
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("seed", range(2))
def test_what_is_acknowledged_is_on_the_other_disk_and_what_that_has_newer_comes_back(
    seed: int,
) -> None:
    draw = random.Random(seed)

    async def change(service: Service, copy: SqliteStore) -> None:
        """Ask for one change; when it is acknowledged, the other disk has it."""
        vid = f"v{draw.randrange(VIDS)}"
        there = service.broker.get(ADA, vid, service.clock()) is not None
        if there and draw.random() < 0.5:
            await service.unpublish("ada", vid)
            body = b""  # a claim: the vid stays ada's (0090)
        else:
            made = context(service, vid, f"hq/{draw.randrange(1_000)}", NOTE)
            await service.publish("ada", made)
            body = body_of(made)
        stored = msgspec.msgpack.decode(copy.load(PREFIX)[PREFIX + vid], type=StoredPublication)
        assert stored.body == body

    async def alone(host: StandBy, number: int) -> Context:
        """Let the host that stands by have something newer, as if it had served meanwhile."""
        now = wall_clock()()
        made = Context(f"b{number}", "hq/9", None, {}, now)
        first = FirstStep(now, now, "")
        publication = StoredPublication("ada", now, now + 3_600_000_000, "", body_of(made), first)
        value = msgspec.msgpack.encode(publication)
        await host.store.write(((PREFIX + made.vid, value),), stamp=now)
        return made

    async def life(settings: Settings, folder: Path) -> None:
        async with serving(settings, folder) as service, standing_by(folder / "b.db") as host:
            for number in range(3):
                host.call(service)
                await followed(service)
                for _ in range(40):
                    await change(service, host.store)
                await asyncio.gather(*(change_only(service, draw) for _ in range(20)))
                assert host.store.page("") == service._disk.page("")
                host.lose()  # and both go on alone
                await followed(service, 0)
                newer = await alone(host, number)
                await service.publish("ada", context(service, f"a{number}"))
                call = host.call(service)
                await followed(service)
                copied = [one for one in call.messages if isinstance(one, StorePage)]
                assert sum(bool(page.entries) for page in copied) > 1, "one page copies it all"
                await until_equal(service._disk, host.store)
                assert service.broker.get(ADA, newer.vid, service.clock()) == newer
                assert PREFIX + f"a{number}" in host.store.load(PREFIX)
                host.lose()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = host_a(folder)
        for _ in range(2):  # the second life opens what the first one left
            asyncio.run(life(settings, folder))
            assert entries(folder / "a.db") == entries(folder / "b.db")
            found = entries(folder / "b.db")
            values = [one.value for one in found if one.value and one.key.startswith(PREFIX)]
            stored = [msgspec.msgpack.decode(value, type=StoredPublication) for value in values]
            assert any(not one.body for one in stored), "nothing has left the map"


async def change_only(service: Service, draw: random.Random) -> None:
    """Publish something while others do."""
    await service.publish("ada", context(service, f"v{draw.randrange(VIDS)}", note=NOTE))


def test_a_host_that_does_not_write_is_left_behind_and_nobody_waits_for_it_again(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        settings = host_a(tmp_path, "follow_s = 0.05")
        async with serving(settings, tmp_path) as service, standing_by(tmp_path / "b.db") as host:
            call = host.call(service)
            await followed(service)
            host.deaf = True  # its answers do not come any more
            async with asyncio.timeout(DEADLINE_S):
                await service.publish("ada", context(service, "k", "hq/1"))
            assert "confirm" in call.closed
            assert b'roamcast_followers_total{what="left behind"} 1.0' in service.measured()[0]
            held = service.broker.held()
            assert (held["followers"], held["entries behind"]) == (0, 0)
            last = context(service, "k", "hq/2")
            await service.publish("ada", last)
            host.call(service)
            await followed(service)
            (value,) = host.store.load(PREFIX).values()
            assert msgspec.msgpack.decode(value, type=StoredPublication).body == body_of(last)

    asyncio.run(body())


def test_what_a_host_sent_before_its_call_broke_is_written_and_no_more_answered(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with standing_by(tmp_path / "b.db") as host:
            epoch = epoch_at(host.driver.clock(), 0, 0)
            host.hear(ServerHere(epoch, 0))
            host.hear(StorePage(epoch, 1, "", "k", (Entry("k", b"v", 1),)))
            host.driver.give(ReplicaGone(Replica("a")))
            host.hear(StoreChanges(epoch, 2, (Entry("late", b"v", 2),)))
        assert host.sent == [Follow(epoch)]

    asyncio.run(body())
    assert {entry.key for entry in entries(tmp_path / "b.db")} == {"k"}


def test_a_server_hands_over_what_it_has_taken_though_that_still_waits_for_its_disk(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with serving(host_a(tmp_path), tmp_path) as service:
            sent: list[Message] = []
            service.replicas._links["b"].send = sent.append  # type: ignore[method-assign]
            over = asyncio.Event()
            service.on_over = over.set
            newer = ServerHere(epoch_at(service.clock(), 1, service.broker.epoch), 0)
            with service._disk._using:  # the disk is busy
                taken = asyncio.ensure_future(
                    service.publish("ada", context(service, "x"), lifetime_us=3_600_000_000)
                )
                await asyncio.sleep(0)
                service.driver.give(Received("b", newer))
                with pytest.raises(StoreError, match="hands over"):
                    await service.publish("ada", context(service, "y"))
                for _ in range(100):
                    await asyncio.sleep(0.001)
                assert not taken.done()
                assert sent == []
            async with asyncio.timeout(DEADLINE_S):
                assert await taken
                while not sent:
                    await asyncio.sleep(0.001)
                offer = sent[0]
                assert isinstance(offer, StoreOffer)
                keys = [entry.key for entry in offer.entries]
                assert [key for key in keys if key.startswith(PREFIX)] == [PREFIX + "x"]
                assert not over.is_set()  # nothing of the map before the store is safe
                service.driver.give(Received("b", OfferTaken(offer.number)))
                await over.wait()  # the map has nothing that is not in the store
            assert sent == [offer]

    asyncio.run(body())


def test_a_token_that_one_host_revoked_is_refused_by_the_one_that_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = wall_clock()
    settings = host_a(tmp_path)  # with the key files of both hosts
    one, two = tmp_path / "a", tmp_path / "b"
    first = TokenKeys.open(one)
    token = first.issue("ada", ["read"], lifetime_s=100, now=clock())
    other = first.issue("bob", ["read"], lifetime_s=100, now=clock())

    async def revoke() -> None:
        async with serving(settings, one) as service, standing_by(two / "a.db") as host:
            host.call(service)
            await followed(service)
            first.revoke(token, clock())
            service.keys.check(other, clock())  # it reads the file anew
            for _ in range(2):
                service._look()
            async with asyncio.timeout(DEADLINE_S):
                while not host.store.load("revoked/"):
                    await asyncio.sleep(0.001)
            assert len(service._disk.page("revoked/", "revoked0")) == 1

    async def take_over() -> None:
        async with serving(with_server(settings, name="b"), two) as service:
            with pytest.raises(AuthError, match="revoked"):
                service.keys.check(token, clock())
            service.keys.check(other, clock())

    async def hear_of_it() -> None:
        found = [entry for entry in entries_of if entry.key.startswith("revoked/")]
        async with serving(with_server(settings, name="b"), two, "new.db") as service:
            call = CallSocket(service, "a", "server")
            service.keys.check(token, clock())
            call.say(StoreOffer(1, tuple(found), serving=True))
            async with asyncio.timeout(DEADLINE_S):
                while OfferTaken(1) not in call.messages:
                    await asyncio.sleep(0.001)
            with pytest.raises(AuthError, match="revoked"):
                service.keys.check(token, clock())

    async def forget() -> None:
        async with serving(with_server(settings, name="b"), two) as service:
            async with asyncio.timeout(DEADLINE_S):
                while service._disk.load("revoked/"):
                    await asyncio.sleep(0.001)

    asyncio.run(revoke())
    entries_of = entries(two / "a.db")
    asyncio.run(take_over())
    asyncio.run(hear_of_it())
    later = wall_clock()
    monkeypatch.setattr(
        "roamcast.live.service.service.wall_clock", lambda: lambda: later() + 200_000_000
    )
    asyncio.run(forget())  # it would have expired


def test_what_the_disk_does_not_do_is_answered_too(tmp_path: Path) -> None:
    async def body() -> None:
        answers: list[Input] = []
        store = SqliteStore.open(tmp_path / "s.db", copied=True)
        driver = DiskDriver(store, answers.append)
        one = Entry("k", b"v", 1)
        await store.write(((one.key, one.value),), one.stamp)
        driver.carry(ReadPage(1, ""))
        while not answers:
            await asyncio.sleep(0.001)
        assert answers.pop() == PageRead(1, (one,))
        await store.close()
        driver.carry(ReadPage(2, ""))
        driver.carry(StoreEffect(3, (("k", b"w"),)))
        driver.carry(Merge(4, (one,)))
        assert answers == []  # never before the machine's other effects are carried
        async with asyncio.timeout(DEADLINE_S):
            while len(answers) < 3:
                await asyncio.sleep(0.001)
        found = {answer.token: answer for answer in answers if isinstance(answer, StoreFailed)}
        assert sorted(found) == [2, 3, 4]
        assert "closed" in found[2].reason
        assert not [answer for answer in answers if isinstance(answer, Stored)]
        driver.stop()
        driver.carry(ReadPage(5, ""))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert len(answers) == 3

    asyncio.run(body())


def test_entries_are_parted_into_what_a_message_holds() -> None:
    large = [Entry(f"k{number}", b"v" * (PAGE_BYTES_MAX // 3), 1) for number in range(7)]
    found = pages(large)
    assert [len(page) for page in found] == [2, 2, 2, 1]
    assert [entry for page in found for entry in page] == large
    assert pages([]) == []
    huge = Entry("k", b"v" * PAGE_BYTES_MAX * 3, 1)
    assert pages([huge]) == [(huge,)]


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
    for now in (NOW - peer_proof.SKEW_US_MAX, NOW + peer_proof.SKEW_US_MAX):
        assert peer_proof.check_call(SECRET, said, "a", ("a", "b"), now) == caller
    hour = peer_proof.SKEW_US_MAX + 1
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


def test_a_host_that_reads_too_slowly_must_call_again() -> None:
    class Slow:
        def __init__(self) -> None:
            self.waiting_bytes = WAITING_BYTES_MAX
            self.frames: list[bytes] = []
            self.closed: list[str] = []

        def write(self, framed: bytes) -> None:
            self.frames.append(framed)

        def close(self, code: int, reason: str) -> None:
            self.closed.append(reason)

    socket = Slow()
    caller = peer_proof.Caller("b", "server", b"")
    call = ReplicaCall(caller, socket, lambda _call, _data: None)  # type: ignore[arg-type]
    call.send(ServerHere(1, 0))
    assert (len(socket.frames), socket.closed) == (1, [])
    socket.waiting_bytes += 1
    call.send(ServerHere(1, 0))
    assert (len(socket.frames), socket.closed) == (1, ["too slow: call again"])
