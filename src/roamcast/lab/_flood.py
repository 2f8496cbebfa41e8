"""OO's testbed: three stations in network namespaces share one medium, which a relay process is.

A datagram goes from station to station over the hops of the present topology. Each hop takes the
medium for the time that its bytes need, and there is one queue for all. Stations A and B run a
broker's overlay (links, flows, homes, modulators), A also publishes; station C has the consumer's
end. They are processes of their own, with memory for a disk.

`python -m roamcast.lab._flood ROLE SETTINGS` is one of them; commands come on its standard input.
"""

import heapq
import json
import os
import random
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from roamcast.model.contexts import Context
from roamcast.model.machine import Effect, Input, Received, Send, Store, Stored
from roamcast.model.parts import Router
from roamcast.model.wire import Registry, Unreadable
from roamcast.overlay.flows.cursor import ConsumerCursor
from roamcast.overlay.flows.events import (
    EventsDelivered,
    EventsLost,
    EventsStanding,
    PublishEvent,
)
from roamcast.overlay.flows.settings import FlowSettings
from roamcast.overlay.homes.events import (
    AttachModulated,
    ConfirmModulated,
    DetachModulated,
    ModulatedAttached,
    MoveClient,
    ReportBrokers,
)
from roamcast.overlay.homes.managers import HomeSettings
from roamcast.overlay.homes.relocation import Relocation
from roamcast.overlay.homes.trail import HomeTrail
from roamcast.overlay.links.messages import LINK_MESSAGES, NONCE_BYTES
from roamcast.overlay.links.proof import signer
from roamcast.overlay.links.settings import NeighbourSettings
from roamcast.overlay.modulators.events import EndModulation, Modulate, StartModulation
from roamcast.overlay.modulators.specs import WithinBox
from roamcast.overlay.modulators.workshop import Workshop
from roamcast.overlay.overlay import Overlay, OverlayNode
from roamcast.overlay.tables.wants import Wants

PORT: Final = 7_083
RCVBUF_FORCE: Final = 33
"""Linux's SO_RCVBUFFORCE, which the socket module does not name."""

STATIONS: Final = ("a", "b", "c")
TOPOLOGIES: Final = {
    "A-B-C": ("ab", "bc"),
    "A-B-C-A": ("ab", "bc", "ca"),
    "A-C-B": ("ac", "cb"),
    "B-A-C": ("ba", "ac"),
}
TILES: Final = 10
"""An array of 100 × 100 doubles travels as ten events of ten rows."""

ARRAY_BYTES: Final = 100 * 100 * 8
TILE_BYTES: Final = ARRAY_BYTES // TILES
LOOK_US: Final = 200_000
"""How often the consumer looks for brokers."""

LINGER_US: Final = 200_000
"""How long B still gets what nobody there wants any more."""

ALL_TILES: Final = WithinBox(-1, -1, TILES, 1)
ONE_TILE: Final = WithinBox(-0.5, -1, 0.5, 1)

Packet = tuple[str, str, int, bytes]
"""From, to, hops so far, content."""

_encode = msgspec.msgpack.Encoder().encode
_packet = msgspec.msgpack.Decoder(Packet).decode
_registry = Registry(LINK_MESSAGES)
Up = AttachModulated | DetachModulated | ConfirmModulated | ReportBrokers
Down = EventsStanding | EventsDelivered | EventsLost | ModulatedAttached | MoveClient
_up = msgspec.msgpack.Decoder(Up)
_down = msgspec.msgpack.Decoder(Down)


def address_of(station: str) -> str:
    """Give a station's address; its end at the medium has the one below."""
    return f"10.83.{STATIONS.index(station)}.2"


def hops_between(topology: str, first: str, other: str) -> int:
    """Count the hops of the shortest way; three stations have at most two."""
    links = TOPOLOGIES[topology]
    return 1 if first + other in links or other + first in links else 2


def now_us() -> int:
    """The time that all processes of a machine share."""
    return time.monotonic_ns() // 1_000


class Commands:
    """Lines of standard input, as JSON, without waiting."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        os.set_blocking(0, False)
        selector.register(0, selectors.EVENT_READ)
        self._rest = b""
        self.closed = False

    def read(self) -> list[dict[str, Any]]:
        """Give the commands that have come."""
        try:
            found = os.read(0, 65_536)
        except BlockingIOError:
            return []
        self.closed = not found
        *lines, self._rest = (self._rest + found).split(b"\n")
        return [json.loads(line) for line in lines]


def _socket(host: str) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, RCVBUF_FORCE, 8 * 1024 * 1024)
    made.bind((host, PORT))
    made.setblocking(False)
    return made


def _say(**found: Any) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


# --- the medium


class Medium:
    """One queue for everybody; times are computed: a late wake-up delays one packet only."""

    def __init__(self, bytes_per_s: float) -> None:
        self.topology = "A-B-C"
        self.busy_us = 0
        self._us_per_byte = 1e6 / bytes_per_s
        self._waiting: list[tuple[int, int, Packet]] = []
        self._number = 0
        self._free_us = 0
        self._now: tuple[int, Packet] | None = None
        """What is in the air, and until when."""

    def put(self, packet: Packet, at: int) -> None:
        """Queue a packet for its next hop."""
        self._number += 1
        heapq.heappush(self._waiting, (at, self._number, packet))

    def take(self, now: int) -> list[Packet]:
        """Give the packets that have arrived."""
        arrived: list[Packet] = []
        while True:
            if self._now is None and self._waiting:
                at, _, packet = heapq.heappop(self._waiting)
                took = round(self._us_per_byte * len(packet[3]))
                self._free_us = max(self._free_us, at) + took
                self.busy_us += took
                self._now = self._free_us, packet
            if self._now is None or self._now[0] > now:
                return arrived
            end, (source, to, hops, content) = self._now
            self._now = None
            packet = (source, to, hops + 1, content)
            if hops + 1 < hops_between(self.topology, source, to):
                self.put(packet, end)
            else:
                arrived.append(packet)

    def wait_s(self, now: int) -> float | None:
        """How long until the next packet arrives."""
        return None if self._now is None else max(0, self._now[0] - now) / 1e6


def run_medium(settings: dict[str, Any]) -> None:
    """Pass packets on until the standard input ends."""
    medium = Medium(settings["bytes_per_s"])
    door = _socket("")
    selector = selectors.DefaultSelector()
    selector.register(door, selectors.EVENT_READ)
    commands = Commands(selector)
    _say(ready=True)
    while not commands.closed:
        selector.select(medium.wait_s(now_us()))
        for command in commands.read():
            medium.topology = command["topology"]
            _say(busy_us=medium.busy_us)
        _drain(door, lambda content: medium.put(_packet(content), now_us()))
        for packet in medium.take(now_us()):
            door.sendto(_encode(packet), (address_of(packet[1]), PORT))


def _drain(door: socket.socket, take: Callable[[bytes], None]) -> None:
    while True:
        try:
            take(door.recv(65_535))
        except BlockingIOError:
            return


# --- stations


class Station:
    """A station's socket, timers and commands."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._door = _socket(address_of(name))
        self._medium = (address_of(name)[:-1] + "1", PORT)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ)
        self._commands = Commands(self._selector)

    def send(self, to: str, kind: bytes, content: bytes) -> None:
        """Send something, in parts that fit a datagram; the last is marked."""
        parts = [content[at : at + 40_000] for at in range(0, max(1, len(content)), 40_000)]
        for number, part in enumerate(parts):
            mark = kind.upper() if number == len(parts) - 1 else kind
            self._door.sendto(_encode((self.name, to, 0, mark + part)), self._medium)

    def run(self) -> None:
        """Serve until the standard input ends."""
        parts: dict[str, bytes] = {}

        def take(datagram: bytes) -> None:
            source, _, hops, content = _packet(datagram)
            parts[source] = parts.get(source, b"") + content[1:]
            if content[:1].isupper():
                self.came(source, content[:1].lower(), parts.pop(source), hops)

        _say(ready=True)
        while not self._commands.closed:
            due = self.due_us()
            wait = None if due is None else max(0, due - now_us()) / 1e6
            self._selector.select(wait)
            for command in self._commands.read():
                self.command(command)
            _drain(self._door, take)
            self.work()

    def came(self, source: str, kind: bytes, content: bytes, hops: int) -> None:
        """Take what another station sent."""

    def command(self, command: dict[str, Any]) -> None:
        """Take a command of the figure."""

    def due_us(self) -> int | None:
        """When to work."""

    def work(self) -> None:
        """Do what is due."""


class BrokerStation(Station):
    """A broker's overlay, and at A the producer."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        draw = random.Random(name)
        far = "b" if name == "a" else "a"
        node = OverlayNode(
            name,
            _keys(name)[0],
            {far: NeighbourSettings(_keys(far)[1], (far,))},
            draw.random,
            lambda: draw.randbytes(NONCE_BYTES),
            flows=FlowSettings(empty_us=500_000),
            wants=Wants(linger_us=LINGER_US),
            homes=HomeSettings(dwell_us=200_000, delay_us=100_000, claim_us=2_000_000),
        )
        start = now_us()
        self._node = Router(Overlay(node, epoch=start, now=start).parts)
        self._node.restore(lambda _: {}, start)
        self._workshop = Workshop()
        self._session = "c"
        self._schedule: deque[int] = deque()
        self._count = 0

    def came(self, source: str, kind: bytes, content: bytes, hops: int) -> None:
        """Take a frame of the other broker, a search, or a word of the consumer."""
        if kind == b"l":
            message = _registry.decode(content)
            if not isinstance(message, Unreadable):
                self._give(Received(source, message))
        elif kind == b"s":
            self.send(source, b"f", bytes([hops]))
        else:
            self._give(_up.decode(content))

    def command(self, command: dict[str, Any]) -> None:
        """Publish at these moments."""
        self._schedule = deque(command["publish_us"])

    def due_us(self) -> int | None:
        """When the machine or the producer is due."""
        found = [
            one for one in (self._node.deadline(), *list(self._schedule)[:1]) if one is not None
        ]
        return min(found, default=None)

    def work(self) -> None:
        """Advance the machine; publish the next array."""
        now = now_us()
        due = self._node.deadline()
        if due is not None and due <= now:
            self._perform(self._node.advance(now))
        while self._schedule and self._schedule[0] <= now:
            at = self._schedule.popleft()
            data = at.to_bytes(8, "big") + bytes(TILE_BYTES - 8)
            for tile in range(TILES):
                self._count += 1
                context = Context("flood", None, (float(tile), 0.0))
                event = PublishEvent(self._count, "presend", 1, self._count, context, data)
                self._give(event)

    def _give(self, given: Input) -> None:
        self._perform(self._node.receive(given, now_us()))

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self.send(to.name, b"l", _registry.encode(message))
                case Store(token):
                    self._give(Stored(token))
                case StartModulation() | Modulate() | EndModulation():
                    answer = self._workshop.work(effect)
                    if answer is not None:
                        self._give(answer)
                case EventsStanding() | EventsDelivered() | EventsLost():
                    self.send(self._session, b"d", _encode(effect))
                case ModulatedAttached() | MoveClient():
                    self.send(self._session, b"d", _encode(effect))


class ConsumerStation(Station):
    """The consumer's end: it searches for brokers, reports, and goes where its home says."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__("c")
        self._specs = (ONE_TILE if settings["share"] < 1 else ALL_TILES,)
        self._tiles = 1 if settings["share"] < 1 else TILES
        self._opportunistic = settings["opportunistic"]
        self._home = ""
        self._cursor = ConsumerCursor()
        self._trail = HomeTrail(1)
        self._found: dict[str, float] = {}
        self._next_us = now_us()
        self._tiles_had: dict[int, int] = {}
        self._moves: list[tuple[int, str]] = []
        self._latencies: list[tuple[int, int]] = []
        self._attach("b")

    def _attach(self, to: str) -> None:
        if self._home:
            self._tell(DetachModulated("flood", self._trail.attachment))
        self._home = to
        trail = self._trail.goes_to(to)
        self._tell(
            AttachModulated(
                1, "flood", "c", self._trail.attachment, "true", self._specs, Relocation(),
                self._cursor.pairs, self._trail.served, trail,
            )
        )  # fmt: skip

    def _tell(self, given: Up) -> None:
        self.send(self._home, b"u", _encode(given))

    def came(self, source: str, kind: bytes, content: bytes, hops: int) -> None:
        """Take an event, a word of the home, or the answer to a search."""
        if kind == b"f":
            self._found[source] = float(hops)
            return
        if source != self._home:
            return
        match _down.decode(content):
            case EventsStanding() as standing:
                self._cursor.standing(standing)
            case EventsDelivered() as delivered:
                for event in self._cursor.take(delivered).events:
                    self._had(int.from_bytes(event.data[:8], "big"))
            case EventsLost() as lost:
                self._cursor.lost(lost)
            case ModulatedAttached():
                self._trail.served_by(source)
            case MoveClient(_, to):
                self._moves.append((now_us(), to))
                self._attach(to)

    def _had(self, published_us: int) -> None:
        count = self._tiles_had.get(published_us, 0) + 1
        self._tiles_had[published_us] = count
        if count == self._tiles:
            self._latencies.append((published_us, now_us() - published_us))

    def command(self, command: dict[str, Any]) -> None:
        """Say what was measured."""
        del command
        _say(latencies=self._latencies, moves=self._moves, home=self._home)

    def due_us(self) -> int | None:
        """When to look around."""
        return self._next_us

    def work(self) -> None:
        """Report what was found; search again."""
        if now_us() < self._next_us:
            return
        self._next_us = now_us() + LOOK_US
        if self._opportunistic and self._found:
            self._tell(ReportBrokers("flood", tuple(self._found.items())))
        if self._cursor.vector:
            self._tell(ConfirmModulated("flood", self._trail.attachment, self._cursor.pairs))
        for broker in ("a", "b"):
            self.send(broker, b"s", b"")


def _keys(name: str) -> Any:
    return signer(blake2b(name.encode(), digest_size=32).digest())


def main(role: str, settings: dict[str, Any]) -> None:
    """Be one process of the testbed."""
    if role == "medium":
        run_medium(settings)
    elif role == "c":
        ConsumerStation(settings).run()
    else:
        BrokerStation(role).run()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
