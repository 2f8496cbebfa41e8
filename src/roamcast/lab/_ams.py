"""Measurement of the real map server in AMS's meetings, and a queue that turns times into delays.

The server runs here as it runs anywhere. Each request's processor time is measured, including the
encoding of everything it sends, plus the cost of a datagram for each transmission, measured first
on loopback. Delays follow from one queue at one core; nothing about the broker is assumed.
"""

import random
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import process_time

import msgspec
import numpy as np

from roamcast.channels.client.map_client import MapClient, SubscribeFilter
from roamcast.channels.client.publications import PublishContext
from roamcast.channels.client.watching import Current
from roamcast.channels.reliable.messages import Data
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.messages import (
    MAP_PROTOCOL,
    Batch,
    Hello,
    Operation,
    Publish,
    Receipt,
    Request,
    Subscribe,
    Unpublish,
)
from roamcast.channels.server.settings import MapSettings
from roamcast.matching import FilterSet
from roamcast.model.contexts import Context, body_of
from roamcast.model.machine import Effect, Ignore, Listen, Multicast, Received, Send
from roamcast.model.wire import Message
from roamcast.sim.movement.workloads import located_context

MEETING_S = 240.0
"""People converge "over a specified period of time, typically about 3 to 5 minutes"."""

HEARTBEAT_US = 60_000_000
NEVER = 1 << 62
ROOM = "lab/0/auditorium"
PEOPLE_MAX = 1 << 23
WARM_UP = 3
DELAY_S_MAX = 1.0
"""A meeting is sustained while updates take less than this on average. The paper's figure 3 ends
where delays leave its scale of a few seconds."""


class MeetingGuest:
    """A real client in the crowd; counts what reaches it and what it shows its user."""

    def __init__(self, machine: MapClient, now: int) -> None:
        self.machine = machine
        self.came_us = now
        self.complete_us: int | None = None
        self.bytes = 0
        self.listing_bytes = 0
        """Bytes of these for the current set: its pages, and unicast before it was complete."""


class ServerDriver:
    """A map server, simulated people, and the measured costs.

    A few of the people may be real clients, so that what a client receives and shows is not assumed
    either; their own processor time does not count as the server's.
    """

    def __init__(self, settings: MapSettings) -> None:
        self.now = 1
        # People send a heartbeat once a minute, and only when the driver lets them.
        self.settings = msgspec.structs.replace(
            settings, heartbeat_us=HEARTBEAT_US, client_timeout_us=1 << 60
        )
        self.server = MapServer("server", epoch=1, now=1, settings=self.settings)
        FilterSet().warm_up()  # as a service does before it is ready
        self.transmissions = 0
        self.update_transmissions = 0
        self.page_bytes = 0
        self.bytes_sent = 0
        self.bytes_unicast = 0
        self.send_s = datagram_s()
        self.guests: dict[str, MeetingGuest] = {}
        self._numbers: dict[str, int] = {}
        self._encode = MAP_PROTOCOL.encode
        self._listeners: dict[str, dict[str, MeetingGuest]] = {}
        self._post: deque[tuple[MeetingGuest, Message, str, bool]] = deque()

    def request(self, client: str, *operations: Operation) -> float:
        """Serve a client's operations; return the seconds the server was busy."""
        return self._serve(client, self.next_request(client, *operations))

    def next_request(self, client: str, *operations: Operation) -> Request:
        """Return a client's operations as its next request; the first begins its session."""
        number = self._numbers.get(client, 0)
        said = operations if number else (Hello(), *operations)
        self._numbers[client] = number + len(said)
        return Request(1, 1, number + 1, said)

    def advance(self, now: int) -> float:
        """Advance the server to `now`; return the seconds it was busy."""
        busy = 0.0
        while True:
            server_at = self.server.deadline()
            guests_at = min((self._guest_at(one) for one in self.guests.values()), default=NEVER)
            at = min(NEVER if server_at is None else server_at, guests_at)
            if at > now:
                break
            self.now = max(self.now, at)
            if at == server_at:
                busy += self._timed(lambda: self.server.advance(self.now))
            for guest in [one for one in self.guests.values() if self._guest_at(one) <= self.now]:
                busy += self._act(guest, guest.machine.advance(self.now))
            busy += self._deliver()
        self.now = now
        return busy

    def admit(self, name: str, context: Context, query: str) -> float:
        """Add a real client, which publishes and subscribes; return the server's seconds."""
        machine = MapClient(
            name,
            server="server",
            now=self.now,
            settings=self.settings,
            draw=random.Random(name).random,
        )
        guest = self.guests[name] = MeetingGuest(machine, self.now)
        machine.receive(PublishContext(context), self.now)
        machine.receive(SubscribeFilter("here", query), self.now)
        return self._act(guest, machine.advance(self.now)) + self._deliver()

    @staticmethod
    def _guest_at(guest: MeetingGuest) -> int:
        at = guest.machine.deadline()
        return NEVER if at is None else at

    def _serve(self, client: str, message: Message) -> float:
        given = Received(client, message)
        return self._timed(lambda: self.server.receive(given, self.now)) + self._deliver()

    def _timed(self, act: Callable[[], Sequence[Effect]]) -> float:
        """Return the seconds of the server's work, with encoding and sending its effects."""
        started = process_time()
        before = self.transmissions
        self._take(act())
        return process_time() - started + (self.transmissions - before) * self.send_s

    def _deliver(self) -> float:
        """Deliver messages to guests; return the seconds that their answers cost the server."""
        busy = 0.0
        while self._post:
            guest, message, group, page = self._post.popleft()
            size = len(self._encode(message))
            guest.bytes += size
            if page or (not group and guest.complete_us is None):
                guest.listing_bytes += size
            given = Received("server", message, group)
            busy += self._act(guest, guest.machine.receive(given, self.now))
        return busy

    def _act(self, guest: MeetingGuest, effects: Sequence[Effect]) -> float:
        busy = 0.0
        for effect in effects:
            if isinstance(effect, Listen):
                self._listeners.setdefault(effect.group, {})[guest.machine.name] = guest
            elif isinstance(effect, Ignore):
                self._listeners[effect.group].pop(guest.machine.name, None)
            elif isinstance(effect, Current):
                guest.complete_us = self.now
            elif isinstance(effect, Send):
                given = Received(guest.machine.name, effect.message)
                busy += self._timed(partial(self.server.receive, given, self.now))
        return busy

    def _take(self, effects: Sequence[Effect]) -> None:
        waiting = [effects]
        while waiting:
            for effect in waiting.pop():
                if isinstance(effect, Send):
                    size = len(self._encode(effect.message))
                    self.transmissions += 1
                    self.bytes_sent += size
                    self.bytes_unicast += size
                    guest = self.guests.get(effect.to.name)
                    if guest is not None:
                        self._post.append((guest, effect.message, "", False))
                    elif isinstance(effect.message, Batch):
                        batch = effect.message
                        receipt = Receipt(batch.epoch, batch.session, batch.number)
                        given = Received(effect.to.name, receipt)
                        waiting.append(self.server.receive(given, self.now))
                elif isinstance(effect, Multicast):
                    self._multicast(effect)

    def _multicast(self, effect: Multicast) -> None:
        size = len(self._encode(effect.message))
        self.transmissions += 1
        self.bytes_sent += size
        page = False
        if isinstance(effect.message, Data):
            use = self.server.desk.channels.get(effect.group)
            if use is not None and use.stream is not None:
                self.update_transmissions += 1
            else:
                page = True
                self.page_bytes += size
        for guest in self._listeners.get(effect.group, {}).values():
            self._post.append((guest, effect.message, effect.group, page))


def datagram_s(count: int = 2_000, size: int = 500) -> float:
    """Return the measured cost of sending one datagram on loopback, in seconds."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        address = receiver.getsockname()
        payload = bytes(size)
        sender.sendto(payload, address)
        started = process_time()
        for _ in range(count):
            sender.sendto(payload, address)
        return (process_time() - started) / count


def person(number: int, place: str, now: int) -> Publish:
    """Return a publication of AMS's size, 400 to 500 bytes, at a place."""
    return Publish(body_of(located(number, place, now)), now)


def located(number: int, place: str, now: int) -> Context:
    """Return the same as a context."""
    return Context(f"p{number:06d}", place, None, located_context(number), now)


def watching(place: str) -> str:
    """Return the standard query: everything at a place."""
    return f"place = '{place}'"


def arrival(driver: ServerDriver, number: int, query: str) -> float:
    """Move one person into the meeting: publish and subscribe there, unsubscribe elsewhere."""
    return driver.request(f"c{number}", person(number, ROOM, driver.now), Subscribe("here", query))


def move_s(settings: MapSettings, people: int, queries: Sequence[str], samples: int) -> float:
    """Return the time of one update in a meeting of so many people: the median of arrivals."""
    return measured_moves(settings, people, queries, range(samples + WARM_UP))[0]


def measured_moves(
    settings: MapSettings, people: int, queries: Sequence[str], arriving: Sequence[int]
) -> tuple[float, float]:
    """Return the median seconds of an update and its mean transmissions, over some who arrive."""
    driver = ServerDriver(settings)
    for number in range(people):
        driver.request(f"c{number}", Subscribe("here", queries[number % len(queries)]))
    driver.advance(driver.now + 1)
    busy, sent = [], []
    for at, number in enumerate(arriving):
        driver.now += 1_000
        before = driver.transmissions
        spent = driver.request(f"c{number % people}", person(number, ROOM, driver.now))
        transmissions = driver.transmissions - before - 1  # without the reply
        driver.request(f"c{number % people}", Unpublish(f"p{number:06d}"))
        if at >= WARM_UP:  # channels are assigned during the first arrivals
            busy.append(spent)
            sent.append(transmissions)
    return float(np.median(busy)), float(np.mean(sent))


def mean_delay_s(service_s: float, people: int, generator: random.Random) -> float:
    """Simulate one queue at one core, with random arrivals within the meeting."""
    moments = np.sort(np.random.default_rng(generator.getrandbits(32)).random(people)) * MEETING_S
    steps = np.arange(people)
    # A request starts at once if the core is free, so service k ends at the maximum of these.
    ends = (steps + 1) * service_s + np.maximum.accumulate(moments - steps * service_s)
    return float((ends - moments).mean())


def largest_meeting(service_s: Callable[[int], float]) -> int:
    """Return the largest meeting whose mean delay is below the bar, from the time of an update."""

    def holds(people: int) -> bool:
        return mean_delay_s(service_s(people), people, random.Random(7)) <= DELAY_S_MAX

    low, high = 1, 2
    while holds(high) and high < PEOPLE_MAX:
        low, high = high, high * 2
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def line(sizes: Sequence[int], seconds: Sequence[float]) -> Callable[[int], float]:
    """Fit a line through measured times: unicast costs are linear in the number of people."""
    slope, start = (float(part) for part in np.polyfit(sizes, seconds, 1))
    return lambda people: max(start, 0.0) + max(slope, 0.0) * people


def level(seconds: Sequence[float]) -> Callable[[int], float]:
    """Return the median of measured times: with channels, the meeting's size does not matter."""
    return lambda _: float(np.median(seconds))
