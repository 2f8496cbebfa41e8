"""A relay's sockets by hand: who is served, who is shown nothing for now, who is passed through."""

import asyncio
from typing import Any, cast

import pytest

from roamcast.channels.client.link_messages import (
    LINK_PROTOCOL,
    Goodbye,
    Grouped,
    LinkWelcome,
    settings_bytes,
)
from roamcast.channels.relay.admission import AWAY, CHANGED
from roamcast.channels.relay.guests import (
    GuestLinkEnded,
)
from roamcast.channels.server.messages import Answer, Batch, Receipt, ServerHere
from roamcast.channels.server.settings import MapSettings
from roamcast.live.config.settings import Limits, Settings
from roamcast.live.links.sockets import WebSocket
from roamcast.live.relay.guest import Guest
from roamcast.live.relay.relay import NAME, LiveRelay
from roamcast.live.relay.tunnel import UNREADABLE_MAX, Tunnel
from roamcast.model.addresses import Client
from roamcast.model.machine import Send
from roamcast.model.wire import Message
from roamcast.transport.address import ServiceAddress
from tests.live.links.test_links import FakeSocket

OURS, THEIRS = b"our view class..", b"another class..."


class Socket(FakeSocket):
    """A connection that takes real frames, and lasts until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self._over = asyncio.Event()

    def write(self, framed: bytes) -> None:
        size = framed[1] & 0x7F
        super().write(framed[{126: 4, 127: 10}.get(size, 2) :])

    def close(self, code: int, reason: str) -> None:
        super().close(code, reason)
        self._over.set()

    async def serve(self, endpoint: Any, **marks: int) -> None:
        assert set(marks) == {"high_bytes", "low_bytes"}
        self.endpoint = endpoint
        await self._over.wait()


class FakeLink:
    """A client's own link to the service."""

    def __init__(self) -> None:
        self.key = "no token"
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)


def welcome(client: str, epoch: int, view: bytes, settings: MapSettings) -> LinkWelcome:
    return LinkWelcome(client, "roamcast", epoch, settings_bytes(settings), now=1, view=view)


class Scene:
    """A relay whose service says what the test says."""

    def __init__(self, settings: MapSettings | None = None) -> None:
        self.settings = settings or MapSettings()
        address = ServiceAddress("http://127.0.0.1:1", "x")
        self.relay = LiveRelay(address, Settings(), draw=lambda: 0.5)
        self.says(7, OURS)
        self.tasks: list[asyncio.Task[None]] = []

    def says(self, epoch: int, view: bytes) -> None:
        """Let the service welcome the relay's own link."""
        self.relay._on_welcome(welcome("operator#relay", epoch, view, self.settings))

    def guest(self, name: str, view: bytes = OURS, epoch: int = 7) -> Guest:
        guest = Guest(
            next(self.relay._next_guest),
            self.relay._give,
            ServiceAddress("http://127.0.0.1:1", "x"),
            "d",
            draw=lambda: 0.5,
            open_s=1,
            tls=None,
        )
        guest.link = cast("Any", FakeLink())
        guest.welcome = welcome(name, epoch, view, self.settings)
        return guest

    async def serve(self, guest: Guest) -> Socket:
        socket = Socket()
        serving = self.relay.serve(cast("WebSocket", socket), guest)
        self.tasks.append(asyncio.create_task(serving))
        while not socket.messages:
            await asyncio.sleep(0)
        return socket

    def sends(self, name: str) -> None:
        """Let the map's machine send something to a client, past what decides who may see it."""
        messages = (Batch(1, 1, 1, b"seen", 1), Answer(1, 1, 1, 1))
        machine, now = self.relay.machine, self.relay.clock.now()
        for effect in machine._carry([Send(Client(name), one) for one in messages], now):
            self.relay._carry(effect)

    def passed(self) -> list[str]:
        return [one.name for one in self.relay.guests.values() if one.tunnel is not None]

    async def close(self) -> None:
        await self.relay.goodbye()
        await self.relay.stop()
        await asyncio.gather(*self.tasks)


def kinds(socket: Socket) -> list[str]:
    return [type(message).__name__ for message in socket.messages]


def test_a_client_of_the_same_class_is_served_by_the_machine_and_others_are_passed_through() -> (
    None
):
    async def act() -> None:
        scene = Scene()
        ours = await scene.serve(scene.guest("ada#1"))
        theirs = scene.guest("bob#1", THEIRS)
        passed = await scene.serve(theirs)
        assert [one.server for one in ours.messages if isinstance(one, LinkWelcome)] == [NAME]
        assert passed.messages == [theirs.welcome]
        assert list(scene.relay.machine.served) == ["ada#1"]
        assert scene.passed() == ["bob#1"]
        await scene.close()
        for socket in (ours, passed):
            assert socket.goodbye() == AWAY

    asyncio.run(act())


def test_what_shows_anything_waits_until_the_service_says_who_may_see_it() -> None:
    async def act() -> None:
        scene = Scene()
        guest = scene.guest("ada#1")
        socket = await scene.serve(guest)
        scene.sends("ada#1")
        assert kinds(socket) == ["LinkWelcome", "Batch", "Answer"]
        guest._on_close()
        scene.sends("ada#1")
        scene.says(8, b"the same renamed")  # a restarted service has other tags for the same
        scene.sends("ada#1")
        assert kinds(socket) == ["LinkWelcome", "Batch", "Answer", "Answer", "Answer"]
        guest._on_welcome(welcome("ada#1", 8, b"the same renamed", scene.settings))
        scene.sends("ada#1")
        assert kinds(socket)[-2:] == ["Batch", "Answer"]
        await scene.close()

    asyncio.run(act())


@pytest.mark.parametrize("whose", ["client", "relay"])
def test_when_the_class_of_either_changes_the_client_must_come_again(whose: str) -> None:
    async def act() -> None:
        scene = Scene()
        guest = scene.guest("ada#1")
        socket = await scene.serve(guest)
        if whose == "client":
            guest._on_welcome(welcome("ada#1", 7, THEIRS, scene.settings))
        else:
            scene.says(7, THEIRS)
        assert socket.goodbye() == CHANGED
        said = socket.messages[-1]
        assert isinstance(said, Goodbye)
        assert said.retry_us > 0
        scene.sends("ada#1")
        assert "Batch" not in kinds(socket)
        await scene.close()

    asyncio.run(act())


def test_who_finds_no_room_in_the_machine_is_passed_through() -> None:
    async def act() -> None:
        scene = Scene(MapSettings(relay_clients_max=2))
        for name in ("a#1", "b#1", "c#1", "b#1"):
            await scene.serve(scene.guest(name))
        assert list(scene.relay.machine.served) == ["a#1", "b#1"]
        assert scene.passed() == ["c#1"]
        await scene.close()

    asyncio.run(act())


def test_a_clients_link_ends_with_its_own_link_to_the_service() -> None:
    async def act() -> None:
        scene = Scene()
        for name, view in (("ada#1", OURS), ("bob#1", THEIRS)):
            guest = scene.guest(name, view)
            socket = await scene.serve(guest)
            guest._report(GuestLinkEnded(guest.number, "this token was revoked: make another"))
            assert socket.goodbye() == "this token was revoked: make another"
        again = scene.guest("cleo#1", THEIRS)
        socket = await scene.serve(again)
        again._on_welcome(welcome("cleo#1", 8, THEIRS, scene.settings))
        assert "connect again" in socket.goodbye()
        await scene.close()

    asyncio.run(act())


class Passing:
    """A tunnel by hand."""

    def __init__(self, **limits: Any) -> None:
        self.socket = Socket()
        self.counted: list[str] = []
        self.scene = Scene()
        self.guest = self.scene.guest("ada#1", THEIRS)
        self.sent = cast("FakeLink", self.guest.link).sent
        self.now = 0
        assert self.guest.welcome is not None
        self.tunnel = Tunnel(
            self.socket,
            self.guest.welcome,
            send_up=self.guest.link.send,
            limits=Limits(**limits),
            clock=lambda: self.now,
            count=self.counted.append,
        )
        self.guest.tunnel = self.tunnel


def test_a_tunnel_carries_messages_both_ways_as_they_are() -> None:
    async def act() -> None:
        passing = Passing()
        receipt = Receipt(1, 2, 3)
        passing.tunnel.received(LINK_PROTOCOL.encode(receipt))
        assert passing.sent == [receipt]
        here = ServerHere(7, 1)
        passing.guest._on_message("well known", here)
        passing.guest._on_message("", Answer(7, 1, 1, 1))
        renewed = welcome("ada#1", 7, THEIRS, MapSettings())
        passing.guest._on_renewal(renewed)
        grouped = Grouped("well known", LINK_PROTOCOL.encode(here))
        assert passing.socket.messages[1:] == [grouped, Answer(7, 1, 1, 1), renewed]
        await passing.scene.close()

    asyncio.run(act())


def test_a_tunnel_has_the_limits_of_a_link() -> None:
    async def act() -> None:
        passing = Passing(socket_high_bytes=2_000, frames_per_s=1, frames_burst=3)
        passing.socket.waiting_bytes = 2_000
        passing.guest._on_message("", Answer(7, 1, 1, 1))
        passing.socket.waiting_bytes = 2_001
        passing.guest._on_message("", Answer(7, 1, 1, 2))
        assert len(passing.socket.messages) == 2
        assert passing.counted == ["passed over"]
        for _ in range(3):
            passing.tunnel.received(LINK_PROTOCOL.encode(Receipt(1, 2, 3)))
        assert passing.socket.held_s == 0
        passing.tunnel.received(LINK_PROTOCOL.encode(Receipt(1, 2, 3)))
        assert passing.socket.held_s > 0
        for wrong in ("a text", bytes(passing.tunnel._limits.frame_bytes_max + 1)):
            other = Passing()
            other.tunnel.received(wrong)
            assert "short binary messages" in other.socket.goodbye()
            await other.scene.close()
        nonsense = Passing()
        for _ in range(UNREADABLE_MAX):
            assert nonsense.socket.closed is None
            nonsense.tunnel.received(b"nonsense")
        assert nonsense.socket.goodbye().startswith("unreadable")
        for one in (passing, nonsense):
            await one.scene.close()

    asyncio.run(act())
