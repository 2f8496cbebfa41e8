"""The service's end of a link: who hears what, who is passed over, who is cut off, and why."""

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.channels.client.link_messages import (
    GROUP_FRAME_BYTES_MAX,
    LINK_PROTOCOL,
    Goodbye,
    Grouped,
    LinkWelcome,
    Tune,
    settings_of,
)
from roamcast.channels.reliable.messages import Data, HealRequest, Join, Snapshot
from roamcast.channels.server.messages import (
    WELL_KNOWN,
    Answer,
    Hello,
    Publish,
    Receipt,
    Refresh,
    Request,
    ServerHere,
    Subscribe,
    Unpublish,
    Unsubscribe,
)
from roamcast.channels.server.settings import MapSettings
from roamcast.errors import InputError, LimitError, SettingsError
from roamcast.live.config.settings import Channels, Limits
from roamcast.live.links import keys as link_keys
from roamcast.live.links import links as module
from roamcast.live.links.groups import groups_of
from roamcast.live.links.link import ALL_SCOPES, RELAY, ClientLink
from roamcast.live.links.links import Links
from roamcast.model.addresses import Client
from roamcast.model.machine import Multicast, Received, Send
from roamcast.model.records import Drop, Record, Transmission
from roamcast.model.wire import Message, Unreadable
from roamcast.transport.groups import PROBE, Groups, probe_frame
from roamcast.transport.groups_nats import NatsGroups
from roamcast.transport.groups_udp import UdpGroups
from roamcast.transport.sealing import class_key, seal_of_client, seals_of_classes

SECOND = 1_000_000
SECRET = bytes(range(32))
CLASS_OF = {"map/all/1": "", "map/all/2": "", "map/guest/1": "guest"}


class FakeSocket:
    """A connection that takes everything, or nothing."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.waiting_bytes = 0
        self.closed: tuple[int, str] | None = None
        self.held_s = 0.0
        self.frames: list[bytes] = []

    def write(self, framed: bytes) -> None:
        self.frames.append(framed)
        message = LINK_PROTOCOL.decode(framed.removeprefix(b"framed:"))
        assert not isinstance(message, Unreadable)
        self.messages.append(message)

    def hold(self, seconds: float) -> None:
        self.held_s += seconds

    def close(self, code: int, reason: str) -> None:
        assert self.closed is None
        self.closed = (code, reason)

    def goodbye(self) -> str:
        said = self.messages[-1]
        assert isinstance(said, Goodbye)
        assert self.closed is not None
        return said.reason


class FakeGroups:
    """Groups that remember what was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, str]] = []
        self.state = "new"

    async def start(self) -> None:
        self.state = "started"

    def listen(self, group: str) -> None:
        raise AssertionError(group)

    def ignore(self, group: str) -> None:
        raise AssertionError(group)

    def send(self, group: str, frame: bytes, key_class: str = "") -> None:
        self.sent.append((group, frame, key_class))

    async def close(self) -> None:
        self.state = "closed"


class Scene:
    """Links between fake sockets and a map server that only listens."""

    def __init__(self, limits: Limits | None = None, groups: tuple[Groups, ...] = ()) -> None:
        self.now = 1_700_000_000 * SECOND
        self.given: list[Received] = []
        self.classes: dict[str, str] = {}
        self.noted: list[Record] = []
        self.links = Links(
            server="server",
            epoch=7,
            settings=MapSettings(subscribers_min=3),
            limits=limits or Limits(),
            secret=SECRET,
            give=self.given.append,
            class_of=CLASS_OF.get,
            class_of_client=self.classes.get,
            clock=lambda: self.now,
            frame_of=lambda payload: b"framed:" + payload,
            groups=groups,
            udp="239.192.0.0/24:5007",
            nats="nats://127.0.0.1:4222",
            prefix="roamcast",
            note=self.noted.append,
        )

    def join(
        self, name: str, view_class: str = "", scopes: Collection[str] = ALL_SCOPES
    ) -> tuple[FakeSocket, Callable[[Message], None]]:
        socket = FakeSocket()
        link = self.links.connect(socket, name, view_class, scopes)

        def say(message: Message) -> None:
            link.received(LINK_PROTOCOL.encode(message))

        return socket, say

    def link(self, name: str) -> ClientLink:
        return self.links.links[name]


def key_name(scene: Scene, view_class: str) -> str:
    name = scene.links._keys.name(view_class)
    assert name is not None
    return name


def data(group: str, number: int = 1, size: int = 1) -> Multicast:
    return Multicast(group, Data(group, 9, number, bytes(size)))


def grouped(effect: Multicast) -> Grouped:
    return Grouped(effect.group, LINK_PROTOCOL.encode(effect.message))


def test_a_client_is_welcomed_with_all_it_needs() -> None:
    scene = Scene()
    socket, _ = scene.join("ada#1", "guest")
    welcome = socket.messages[0]
    assert isinstance(welcome, LinkWelcome)
    assert settings_of(welcome.settings) == MapSettings(subscribers_min=3)
    assert (welcome.client, welcome.server, welcome.epoch) == ("ada#1", "server", 7)
    assert (welcome.udp, welcome.nats) == ("239.192.0.0/24:5007", "nats://127.0.0.1:4222")
    assert (welcome.prefix, welcome.now) == ("roamcast", scene.now)
    sealed = seals_of_classes(SECRET, b"mark")(key_name(scene, "guest")).seal(
        "map/guest/1", b"seen"
    )
    opened = seal_of_client(welcome.key, b"else")("").open("map/guest/1", sealed)
    assert opened == b"seen"
    other, _ = scene.join("bob#1")
    assert isinstance(other.messages[0], LinkWelcome)
    assert other.messages[0].key != welcome.key


def test_a_group_message_is_framed_once_for_all_sockets_tuned_to_it() -> None:
    scene = Scene()
    one, say = scene.join("one")
    two, also_say = scene.join("two")
    silent, _ = scene.join("silent")
    for tell in (say, also_say):
        tell(Tune(WELL_KNOWN, True))
        tell(Tune("map/all/1", True))
    for effect in (data("map/all/1"), data("map/all/2"), Multicast(WELL_KNOWN, ServerHere(7, 1))):
        scene.links.multicast(effect)
        if effect.group != "map/all/2":
            assert one.messages[-1] == two.messages[-1] == grouped(effect)
            assert one.frames[-1] is two.frames[-1]
    assert len(one.messages) == len(two.messages) == 3
    assert len(silent.messages) == 1
    say(Tune("map/all/1", False))
    say(Tune("map/all/1", False))
    scene.links.multicast(data("map/all/1", 2))
    assert len(one.messages) == 3
    assert two.messages[-1] == grouped(data("map/all/1", 2))


def test_another_view_classs_channel_is_neither_sent_nor_healed() -> None:
    scene = Scene()
    socket, say = scene.join("staff")
    for message in (
        Tune("map/guest/1", True),
        Tune("no such channel", True),
        HealRequest("map/guest/1", 9, (1,), True),
        Join("map/guest/1", 0, 1),
        Join("no such channel", 0, 1),
    ):
        say(message)
    scene.links.multicast(data("map/guest/1"))
    assert len(socket.messages) == 1
    assert scene.given == []
    assert scene.links.counts["another class"] == 3
    assert scene.links.counts["no such channel"] == 2
    say(Join("map/all/1", 0, 1))
    say(HealRequest("map/all/1", 9, (1,)))
    assert len(scene.given) == 2


def test_only_what_clients_say_reaches_the_server() -> None:
    scene = Scene()
    _, say = scene.join("ada#1")
    request = Request(7, 1, 1, (Hello(), Publish(b"x", 1), Subscribe("s", "true")))
    receipt = Receipt(7, 1, 1)
    for message in (
        request,
        receipt,
        Data("map/all/1", 9, 1, b"forged"),
        Snapshot("map/all/1", 9, 1, b"forged"),
        ServerHere(8, 0),
        Answer(7, 1, 1, 1),
        Grouped("map/all/1", b"forged"),
        Goodbye("forged"),
    ):
        say(message)
    assert scene.given == [Received("ada#1", request), Received("ada#1", receipt)]
    assert scene.links.counts["not for a server"] == 6


@pytest.mark.parametrize(
    ("operation", "scope"),
    [
        (Publish(b"x", 1), "publish"),
        (Unpublish("v"), "publish"),
        (Subscribe("s", "true"), "subscribe"),
        (Refresh("s"), "subscribe"),
    ],
)
def test_what_the_token_does_not_allow_ends_the_link_with_the_scopes_name(
    operation: Publish | Unpublish | Subscribe | Refresh, scope: str
) -> None:
    scene = Scene()
    socket, say = scene.join("ada#1", scopes=ALL_SCOPES - {scope})
    say(Request(7, 1, 1, (Hello(), Unsubscribe("s"))))
    assert len(scene.given) == 1
    say(Request(7, 1, 3, (Unsubscribe("s"), operation)))
    assert len(scene.given) == 1
    assert socket.goodbye() == f"scope: your token does not allow to {scope}"
    assert scene.links.links == {}


def test_who_may_stand_for_others_says_so_and_nobody_else() -> None:
    scene = Scene()
    socket, claim = scene.join("eve#1")
    claim(Request(7, 1, 1, (Hello(relay=True),)))
    assert "channels.relays" in socket.goodbye()
    assert scene.given == []
    _, say = scene.join("relay#1", scopes=ALL_SCOPES | {RELAY})
    say(Request(7, 1, 1, (Hello(relay=True), Subscribe("s", "true"))))
    assert len(scene.given) == 1


def test_all_who_may_see_the_same_are_told_one_tag_and_keep_it_when_their_key_changes() -> None:
    async def act() -> None:
        scene = Scene(groups=(FakeGroups(),))
        names = {"one": "", "two": "", "guest": "guest", "gone": ""}
        sockets = {name: scene.join(name, view_class)[0] for name, view_class in names.items()}

        def welcome_of(name: str) -> LinkWelcome:
            return next(one for one in sockets[name].messages[::-1] if isinstance(one, LinkWelcome))

        tags = {name: welcome_of(name).view for name in names}
        assert tags["one"] == tags["two"] != tags["guest"]
        scene.links.expel("gone", "revoked: go")
        await scene.links.start()
        assert key_of(sockets["one"]) == welcome_of("two").key
        assert len([m for m in sockets["one"].messages if isinstance(m, LinkWelcome)]) == 2
        assert welcome_of("one").view == tags["one"]
        await scene.links.close()

    asyncio.run(act())


def test_the_journal_hears_what_left_to_whom_and_what_a_slow_socket_missed() -> None:
    scene = Scene()
    _, say = scene.join("one")
    two, also_say = scene.join("two")
    slow, still_say = scene.join("slow")
    for tell in (say, also_say, still_say):
        tell(Tune("map/all/1", True))
    scene.noted.clear()
    slow.waiting_bytes = scene.links.limits.socket_high_bytes + 1
    effect = data("map/all/1")
    size = len(LINK_PROTOCOL.encode(effect.message))
    scene.links.multicast(effect)
    scene.links.multicast(data("map/all/2"))  # nobody listens, so nothing leaves
    answer = Answer(7, 1, 1, 1)
    for name in ("two", "slow", "nobody"):
        scene.links.send(Send(Client(name), answer))
    told = len(LINK_PROTOCOL.encode(answer))
    assert two.messages[-1] == answer
    assert scene.noted == [
        Transmission("channel.data", size, "map/all/1", "", 2),
        Transmission("map.answer", told, "", "two", 1),
        Drop("slow socket", "map.answer", told, "slow"),
    ]


def test_a_send_goes_to_its_client_and_to_nobody_when_that_is_gone() -> None:
    scene = Scene()
    socket, _ = scene.join("one")
    other, _ = scene.join("two")
    scene.links.send(Send(Client("one"), Answer(7, 1, 1, 1)))
    assert socket.messages[-1] == Answer(7, 1, 1, 1)
    assert len(other.messages) == 1
    scene.links.disconnected(scene.link("one"))
    scene.links.send(Send(Client("one"), Answer(7, 1, 2, 1)))
    assert scene.links.counts["no such link"] == 1


def test_a_second_connection_of_the_same_device_replaces_the_first() -> None:
    scene = Scene()
    first, say = scene.join("one")
    say(Tune("map/all/1", True))
    old = scene.link("one")
    second, _ = scene.join("one")
    assert first.goodbye().startswith("replaced")
    scene.links.disconnected(old)  # the old connection ends after the new one began
    say(Tune("map/all/1", True))  # and says something meanwhile
    scene.links.multicast(data("map/all/1"))
    scene.links.send(Send(Client("one"), Answer(7, 1, 1, 1)))
    assert [type(message) for message in second.messages] == [LinkWelcome, Answer]


@pytest.mark.limit("limits.socket_low_bytes", "limits.socket_high_bytes")
def test_a_slow_socket_is_passed_over_until_it_has_drained() -> None:
    limits = Limits(socket_high_bytes=2_000, socket_low_bytes=1_000, socket_bytes_max=10_000)
    scene = Scene(limits)
    slow, say = scene.join("slow")
    quick, also_say = scene.join("quick")
    say(Tune("map/all/1", True))
    also_say(Tune("map/all/1", True))
    for number, (waiting, heard) in enumerate(
        [
            (2_000, True),
            (2_001, False),
            (1_500, False),
            (1_001, False),
            (1_000, True),
            (2_000, True),
        ]
    ):
        slow.waiting_bytes = waiting
        before = len(slow.messages)
        scene.links.multicast(data("map/all/1", number + 1))
        assert (len(slow.messages) > before) is heard, number
        assert quick.messages[-1] == grouped(data("map/all/1", number + 1))
    slow.waiting_bytes = 2_001
    scene.links.send(Send(Client("slow"), Answer(7, 1, 1, 1)))
    assert slow.messages[-1] != Answer(7, 1, 1, 1)  # the machines repeat what was not answered
    assert slow.closed is None


@pytest.mark.limit("limits.socket_bytes_max")
def test_who_stays_slow_or_lets_too_much_wait_is_cut_off_with_a_reason() -> None:
    async def act() -> None:
        limits = Limits(
            socket_high_bytes=2_000, socket_low_bytes=1_000, socket_bytes_max=10_000, slow_s_max=5
        )
        scene = Scene(limits)
        sockets = {}
        for name in ("stuck", "drained", "flooded"):
            sockets[name], say = scene.join(name)
            say(Tune("map/all/1", True))
            sockets[name].waiting_bytes = 2_001
        scene.links.multicast(data("map/all/1"))
        sockets["flooded"].waiting_bytes = 10_001
        scene.links.multicast(data("map/all/1", 2))
        assert sockets["flooded"].goodbye().startswith("too slow")
        sockets["drained"].waiting_bytes = 0
        await scene.links.start()
        scene.now += int(5.1 * SECOND)
        scene.links._tick()
        assert sockets["stuck"].goodbye().startswith("too slow")
        assert sockets["stuck"].closed == (module.TRY_AGAIN, sockets["stuck"].goodbye())
        assert sockets["drained"].closed is None
        scene.links.multicast(data("map/all/1", 3))
        assert sockets["drained"].messages[-1] == grouped(data("map/all/1", 3))
        await scene.links.close()
        assert "going down" in sockets["drained"].goodbye()

    asyncio.run(act())


def test_who_sends_too_often_is_read_more_slowly_and_then_cut_off() -> None:
    scene = Scene(Limits(frames_per_s=10, frames_burst=20))
    socket, say = scene.join("eager")
    for _ in range(20):
        say(Receipt(7, 1, 1))
    assert socket.held_s == 0
    say(Receipt(7, 1, 1))
    assert socket.held_s == pytest.approx(0.1, rel=1e-4)
    assert len(scene.given) == 21
    scene.now += 10 * SECOND
    for _ in range(20):
        say(Receipt(7, 1, 1))
    assert socket.held_s == pytest.approx(0.1, rel=1e-4)
    for _ in range(20):
        say(Receipt(7, 1, 1))
    assert socket.closed is None
    say(Receipt(7, 1, 1))
    assert socket.goodbye() == "too many messages: at most 10 a second"
    say(Receipt(7, 1, 1))
    assert len(scene.given) == 61


def test_too_large_text_and_newer_messages_end_a_link_at_once() -> None:
    scene = Scene(Limits(frame_bytes_max=1_024))
    cases: list[tuple[bytes | str, str]] = [
        (bytes(1_025), "too large: a message has at most 1024 bytes"),
        ("text", "text: this link speaks binary messages (roamcast.link.v1)"),
        (b"\x02\x90", "newer: version 2, ours is 1; use an older client"),
    ]
    for frame, reason in cases:
        socket, _ = scene.join("one")
        scene.link("one").received(frame)
        assert socket.goodbye() == reason


def test_the_largest_frame_is_read() -> None:
    scene = Scene(Limits(frame_bytes_max=1_024))
    _, say = scene.join("one")
    size = 1_024 - len(LINK_PROTOCOL.encode(Request(7, 1, 1, (Publish(bytes(900), 1),)))) + 900
    say(Request(7, 1, 1, (Publish(bytes(size), 1),)))
    assert len(scene.given) == 1


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_no_bytes_harm_the_service_or_another_client(frames: list[bytes]) -> None:
    scene = Scene()
    other, _ = scene.join("other")
    socket, _ = scene.join("odd")
    link = scene.link("odd")
    for frame in frames:
        link.received(frame)
    assert scene.given == []
    if len(frames) >= module.UNREADABLE_MAX:
        assert socket.closed is not None
    scene.links.send(Send(Client("other"), Answer(7, 1, 1, 1)))
    assert other.messages[-1] == Answer(7, 1, 1, 1)


def test_who_may_see_something_else_now_is_parted_and_may_come_again_at_once() -> None:
    scene = Scene()
    socket, say = scene.join("eve")
    other, _ = scene.join("other")
    say(Tune("map/all/1", True))
    scene.classes.update(eve="", other="")
    scene.links.part_changed()
    assert socket.closed is None
    scene.classes["eve"] = "named"
    scene.links.part_changed()
    said = socket.messages[-1]
    assert said == Goodbye("rules: what you may see has changed, connect again", 1)
    scene.links.multicast(data("map/all/1"))
    assert socket.messages[-1] is said
    assert other.closed is None


def key_of(socket: FakeSocket) -> bytes:
    """The last key a client was told."""
    return [one for one in socket.messages if isinstance(one, LinkWelcome)][-1].key


def test_who_lost_a_right_opens_nothing_that_is_said_to_its_class_later() -> None:
    async def act() -> None:
        way = FakeGroups()
        scene = Scene(groups=(way,))
        lost, stays, guest = (
            scene.join(name, view_class)[0]
            for name, view_class in (("lost", ""), ("stays", ""), ("guest", "guest"))
        )
        old, unconcerned = key_of(stays), key_of(guest)
        assert key_of(lost) == old
        scene.links.expel("lost", "revoked: ask for another token")
        assert lost.goodbye() == "revoked: ask for another token"
        await scene.links.start()
        assert key_of(stays) != old
        assert key_of(guest) == unconcerned
        way.sent.clear()
        scene.links.multicast(data("map/all/1"))
        key_class = way.sent[0][2]
        assert class_key(SECRET, key_class) == key_of(stays)
        scene.links._tick()
        assert scene.links.counts["keys renewed"] == 1
        await scene.links.close()

    asyncio.run(act())


def test_a_class_that_somebody_left_gets_another_key_after_a_while_and_one_it_never_had() -> None:
    async def act() -> None:
        scene = Scene(groups=(FakeGroups(),))
        scene.join("gone")
        stays, _ = scene.join("stays")
        keys = [key_of(stays)]
        scene.links.disconnected(scene.link("gone"))
        await scene.links.start()
        assert key_of(stays) == keys[0]
        scene.now += module.KEY_US_MAX
        scene.links._tick()
        keys.append(key_of(stays))
        scene.links.disconnected(scene.link("stays"))  # the last of its class
        assert scene.links._keys.name("") is None
        again, _ = scene.join("again")
        keys.append(key_of(again))
        assert len(set(keys)) == 3
        await scene.links.close()

    asyncio.run(act())


def test_one_link_more_than_the_limit_is_refused() -> None:
    scene = Scene(Limits(connections_max=2))
    for name in ("one", "two", "two"):
        scene.join(name)
    with pytest.raises(LimitError, match="at most 2 links"):
        scene.join("three")


def test_one_group_more_than_a_link_may_tune_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUPS_PER_LINK_MAX", 1)
    scene = Scene()
    socket, say = scene.join("one")
    say(Tune("map/all/1", True))
    say(Tune("map/all/2", True))
    scene.links.multicast(data("map/all/2"))
    assert len(socket.messages) == 1
    assert scene.links.counts["too many groups"] == 1


def test_groups_go_once_by_every_way_sealed_for_their_class() -> None:
    ways = (FakeGroups(), FakeGroups())
    scene = Scene(groups=ways)
    scene.join("one")
    effect = data("map/all/1")
    scene.links.multicast(effect)
    scene.links.multicast(Multicast(WELL_KNOWN, ServerHere(7, 1)))  # by sockets only
    scene.links.multicast(data("map/guest/1"))  # nobody of that class is here
    scene.links.multicast(data("no such channel"))
    for way in ways:
        key_class = key_name(scene, "")
        assert way.sent == [("map/all/1", LINK_PROTOCOL.encode(effect.message), key_class)]


def test_a_message_larger_than_a_datagram_is_not_sent_to_a_group() -> None:
    way = FakeGroups()
    scene = Scene(groups=(way,))
    socket, say = scene.join("one")
    say(Tune("map/all/1", True))
    snapshot = Snapshot("map/all/1", 9, 1, bytes(GROUP_FRAME_BYTES_MAX))
    scene.links.multicast(Multicast("map/all/1", snapshot))
    assert way.sent == []
    assert len(socket.messages) == 1
    assert scene.links.counts["too large"] == 1


def test_every_class_with_links_is_probed_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act() -> None:
        monkeypatch.setattr(link_keys, "PROBED_CLASSES_MAX", 2)
        way = FakeGroups()
        scene = Scene(groups=(way,))
        for name, view_class in (("a", ""), ("b", "guest"), ("c", "guest"), ("d", "late")):
            scene.join(name, view_class)
        await scene.links.start()
        assert way.state == "started"
        keys = {one: key_name(scene, one) for one in ("", "guest", "late")}
        assert way.sent == [(PROBE, probe_frame(SECOND), keys[one]) for one in ("", "guest")]
        way.sent.clear()
        scene.links.disconnected(scene.link("a"))
        scene.links._tick()
        assert [key for _, _, key in way.sent] == [keys["guest"], keys["late"]]
        await scene.links.close()
        assert way.state == "closed"

    asyncio.run(act())


def test_the_settings_name_the_ways(tmp_path: Path) -> None:
    def made(channels: Channels) -> list[Groups]:
        return groups_of(channels, prefix="roamcast", secret=SECRET, mark=b"mark")

    async def act() -> None:
        assert made(Channels()) == []
        password = tmp_path / "password"
        password.write_text("secret\n")
        both = made(
            Channels(
                udp="239.192.0.0/24:5007",
                nats="nats://127.0.0.1:4222",
                nats_user="roamcast",
                nats_password_file=str(password),
            )
        )
        assert [type(one) for one in both] == [UdpGroups, NatsGroups]
        nats = both[1]
        assert isinstance(nats, NatsGroups)
        assert nats._login == {"user": "roamcast", "password": "secret"}

    asyncio.run(act())
    with pytest.raises(InputError, match="other protocols"):
        made(Channels(udp="239.255.255.0/24:5007"))
    missing = Channels(nats="nats://127.0.0.1:4222", nats_password_file=str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="nats_password_file cannot be read"):
        made(missing)
