"""A client hears its groups by the best way that works, and moves them when one falls silent."""

import asyncio

import pytest

from roamcast.channels.client.link_messages import LINK_PROTOCOL, LinkWelcome, Tune
from roamcast.channels.server.messages import WELL_KNOWN, ServerHere
from roamcast.errors import GroupsUnavailable
from roamcast.model.wire import Message
from roamcast.transport import groups, ways
from roamcast.transport.groups import PROBE, ChosenGroups, Deliver, chosen_groups, probe_frame

SECOND = 1_000_000


class FakeWay:
    """A way whose probes the test sends itself."""

    def __init__(self, deliver: Deliver, broken: str = "") -> None:
        self.deliver = deliver
        self.listening: list[str] = []
        self.closed = False
        self._broken = broken

    async def start(self) -> None:
        if self._broken:
            raise GroupsUnavailable(self._broken)

    def listen(self, group: str) -> None:
        self.listening.append(group)

    def ignore(self, group: str) -> None:
        self.listening.remove(group)

    def send(self, group: str, frame: bytes, key_class: str = "") -> None:
        raise AssertionError((group, frame, key_class))

    async def close(self) -> None:
        self.closed = True


class Scene:
    """A chooser between two ways, with a clock of its own."""

    def __init__(self, broken: str = "") -> None:
        self.now = SECOND
        self.ways: dict[str, FakeWay] = {}
        self.tuned: list[str] = []
        self.delivered: list[tuple[str, bytes]] = []
        self.groups = ChosenGroups(
            [
                ("udp", lambda deliver: self._make("udp", deliver, broken)),
                ("nats", lambda deliver: self._make("nats", deliver, "")),
            ],
            tune=self._tune,
            deliver=lambda group, frame: self.delivered.append((group, frame)),
            clock=lambda: self.now,
        )

    def _make(self, name: str, deliver: Deliver, broken: str) -> FakeWay:
        self.ways[name] = FakeWay(deliver, broken)
        return self.ways[name]

    def _tune(self, tune: Tune) -> None:
        if tune.on:
            self.tuned.append(tune.group)
        else:
            self.tuned.remove(tune.group)

    def probe(self, name: str, interval_us: int = SECOND) -> None:
        self.ways[name].deliver(PROBE, probe_frame(interval_us))

    def pass_time(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)
        self.groups._choose()


async def started(broken: str = "") -> Scene:
    scene = Scene(broken)
    await scene.groups.start()
    return scene


def test_a_client_begins_with_its_socket_and_moves_when_a_probe_comes() -> None:
    async def act() -> None:
        scene = await started()
        for group in (WELL_KNOWN, "a", "b"):
            scene.groups.listen(group)
        assert scene.groups.using == "socket"
        assert scene.tuned == [WELL_KNOWN, "a", "b"]
        scene.probe("nats")
        assert scene.groups.using == "nats"
        assert scene.tuned == [WELL_KNOWN]
        assert scene.ways["nats"].listening == [PROBE, "a", "b"]
        scene.probe("udp")  # the better one
        assert scene.groups.using == "udp"
        assert scene.ways["nats"].listening == [PROBE]
        scene.groups.listen("c")
        scene.groups.ignore("a")
        scene.groups.ignore("never listened to")
        assert scene.ways["udp"].listening == [PROBE, "b", "c"]
        scene.ways["udp"].deliver("b", b"said")
        assert scene.delivered == [("b", b"said")]
        await scene.groups.close()
        assert all(way.closed for way in scene.ways.values())

    asyncio.run(act())


def test_a_way_that_falls_silent_is_left_and_taken_again_when_it_speaks() -> None:
    async def act() -> None:
        scene = await started()
        scene.groups.listen("a")
        scene.probe("udp")
        scene.pass_time(3.4)
        assert scene.groups.using == "udp"
        scene.pass_time(0.2)
        assert scene.groups.using == "socket"
        assert scene.tuned == ["a"]
        assert scene.ways["udp"].listening == [PROBE]
        scene.probe("udp")
        assert scene.groups.using == "udp"
        assert scene.tuned == []
        scene.pass_time(3)
        scene.ways["udp"].deliver("a", b"anything shows that it lives")
        scene.pass_time(3)
        assert scene.groups.using == "udp"
        scene.probe("nats", 10 * SECOND)
        scene.pass_time(2)
        assert scene.groups.using == "nats"  # its next probe is not due yet
        assert scene.groups.moves == 4
        await scene.groups.close()

    asyncio.run(act())


def test_a_way_that_this_machine_lacks_is_left_out_with_its_reason() -> None:
    async def act() -> None:
        scene = await started("no such interface")
        assert scene.groups.refusals == {"udp": "no such interface"}
        scene.probe("nats")
        assert scene.groups.using == "nats"
        await scene.groups.close()

    asyncio.run(act())


def test_what_is_no_probe_moves_nothing() -> None:
    async def act() -> None:
        scene = await started()
        scene.groups.listen("a")
        for frame in (b"", b"1234567", b"123456789"):
            scene.ways["udp"].deliver(PROBE, frame)
        assert scene.groups.using == "socket"
        await scene.groups.close()

    asyncio.run(act())


def test_silence_is_noticed_without_any_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act() -> None:
        monkeypatch.setattr(groups, "LOOK_S", 0.001)
        scene = await started()
        scene.groups.listen("a")
        scene.probe("udp")
        scene.now += 4 * SECOND
        async with asyncio.timeout(30):
            while scene.groups.using != "socket":
                await asyncio.sleep(0.001)
        await scene.groups.close()

    asyncio.run(act())


@pytest.mark.parametrize(
    ("welcome", "ways"),
    [
        (LinkWelcome("c", "s", 1, b""), []),
        (LinkWelcome("c", "s", 1, b"", udp="239.192.0.0/24:5007"), []),  # without a key
        (LinkWelcome("c", "s", 1, b"", udp="239.192.0.0/24:5007", key=bytes(31)), []),
        (LinkWelcome("c", "s", 1, b"", udp="239.192.0.0/24:5007", key=bytes(32)), ["udp"]),
        (LinkWelcome("c", "s", 1, b"", udp="worded newly", key=bytes(32)), []),
        (
            LinkWelcome("c", "s", 1, b"", "239.192.0.0/24:5007", "nats://h:1", "p", bytes(32)),
            ["udp", "nats"],
        ),
    ],
)
def test_the_ways_follow_from_the_servers_welcome(welcome: LinkWelcome, ways: list[str]) -> None:
    async def act() -> list[str]:
        groups = chosen_groups(
            welcome, tune=lambda _: None, deliver=lambda *_: None, clock=lambda: 1, mark=b"mark"
        )
        return [way.name for way in groups._ways]

    assert asyncio.run(act()) == ways


def test_what_comes_by_the_groups_of_an_earlier_link_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[FakeWay] = []

    def chosen(welcome: LinkWelcome, *, deliver: Deliver, **_: object) -> FakeWay:
        made.append(FakeWay(deliver))
        return made[-1]

    async def scene() -> list[Message]:
        heard: list[Message] = []
        own = ways.Ways(
            send=lambda _: None, on_message=lambda _, one: heard.append(one), clock=lambda: 0
        )
        for epoch in (1, 2):
            own.renew(LinkWelcome("c", "s", epoch, b""))
        for epoch, way in enumerate(made, 1):
            way.deliver(WELL_KNOWN, LINK_PROTOCOL.encode(ServerHere(epoch, 0)))
        await own.close()
        return heard

    monkeypatch.setattr(ways, "chosen_groups", chosen)
    assert asyncio.run(scene()) == [ServerHere(2, 0)]
