"""How long does the real map server take? A driver that feeds it and a queue that follows.

The server runs here as it runs anywhere; each request's processor time is measured, with the
encoding of everything it sends and a datagram's way into the kernel for each transmission, measured
at the start on loopback. Delays then come from one queue at one core: nothing about the broker is
assumed.
"""

import random
import socket
from collections.abc import Callable, Sequence
from time import process_time

import msgspec
import numpy as np

from roamcast.channels.map_messages import (
    MAP_PROTOCOL,
    Batch,
    Cancel,
    Hello,
    Operation,
    Put,
    Receipt,
    Request,
    Subscribe,
    body_of,
)
from roamcast.channels.map_settings import MapSettings
from roamcast.channels.messages import Data
from roamcast.channels.server import MapServer
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect, Multicast, Received, Send
from roamcast.sim.movement.workloads import located_object

MEETING_S = 240.0
"""People converge "over a specified period of time, typically about 3 to 5 minutes"."""

HEARTBEAT_US = 60_000_000
ROOM = "lab/0/auditorium"
PEOPLE_MAX = 1 << 23
DELAY_S_MAX = 1.0
"""A meeting is carried while updates take less than this on average; the paper's figure 3 ends
where delays leave its scale of a few seconds."""


class Driver:
    """A map server, people as far as the server can tell, and what everything costs."""

    def __init__(self, settings: MapSettings) -> None:
        self.now = 1
        # People say that they are here once a minute, and only when the driver lets them.
        patient = msgspec.structs.replace(
            settings, heartbeat_us=HEARTBEAT_US, client_timeout_us=1 << 60
        )
        self.server = MapServer("server", epoch=1, now=1, settings=patient)
        self.transmissions = 0
        self.update_transmissions = 0
        self.page_bytes = 0
        self.bytes_sent = 0
        self.bytes_unicast = 0
        self.send_s = datagram_s()
        self._numbers: dict[str, int] = {}
        self._encode = MAP_PROTOCOL.encode

    def request(self, client: str, *operations: Operation) -> float:
        """Take a client's operations; give the seconds the server was busy."""
        request = self.next_request(client, *operations)
        started = process_time()
        before = self.transmissions
        self._take(self.server.receive(Received(client, request), self.now))
        return process_time() - started + (self.transmissions - before) * self.send_s

    def next_request(self, client: str, *operations: Operation) -> Request:
        """Number a client's operations; its first ones begin its session."""
        number = self._numbers.get(client, 0)
        said = operations if number else (Hello(), *operations)
        self._numbers[client] = number + len(said)
        return Request(1, 1, number + 1, said)

    def advance(self, now: int) -> float:
        """Let time pass; give the seconds the server was busy."""
        self.now = now
        started = process_time()
        before = self.transmissions
        deadline = self.server.deadline()
        while deadline is not None and deadline <= now:
            self._take(self.server.advance(deadline))
            deadline = self.server.deadline()
        return process_time() - started + (self.transmissions - before) * self.send_s

    def _take(self, effects: Sequence[Effect]) -> None:
        waiting = [effects]
        while waiting:
            for effect in waiting.pop():
                if isinstance(effect, Send):
                    size = len(self._encode(effect.message))
                    self.transmissions += 1
                    self.bytes_sent += size
                    self.bytes_unicast += size
                    if isinstance(effect.message, Batch):
                        batch = effect.message
                        receipt = Receipt(batch.epoch, batch.session, batch.number)
                        given = Received(effect.to, receipt)
                        waiting.append(self.server.receive(given, self.now))
                elif isinstance(effect, Multicast):
                    size = len(self._encode(effect.message))
                    self.transmissions += 1
                    self.bytes_sent += size
                    if isinstance(effect.message, Data):
                        use = self.server.desk.channels.get(effect.group)
                        if use is not None and use.stream is not None:
                            self.update_transmissions += 1
                        else:
                            self.page_bytes += size


def datagram_s(count: int = 2_000, size: int = 500) -> float:
    """Measure what one datagram costs its sender, on loopback."""
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


def person(number: int, place: str, now: int) -> Put:
    """An object of AMS's size, 400 to 500 bytes, at a place."""
    context = Context(f"p{number:06d}", place, None, located_object(number), now)
    return Put(body_of(context), now)


def watching(place: str) -> str:
    """The standard query: everything at a place."""
    return f"place = '{place}'"


def arrival(driver: Driver, number: int, query: str) -> float:
    """One person enters the meeting: published there, asking there and no more where it was."""
    return driver.request(f"c{number}", person(number, ROOM, driver.now), Subscribe("here", query))


def move_s(settings: MapSettings, people: int, queries: Sequence[str], samples: int) -> float:
    """Measure one update of a meeting of so many people: the mean over some arrivals."""
    driver = Driver(settings)
    for number in range(people):
        driver.request(f"c{number}", Subscribe("here", queries[number % len(queries)]))
    driver.advance(driver.now + 1)
    busy = []
    for number in range(samples + 3):
        driver.now += 1_000
        spent = driver.request(f"c{number % people}", person(number, ROOM, driver.now))
        driver.request(f"c{number % people}", Cancel(f"p{number:06d}"))
        if number >= 3:  # the first arrivals earn the channels
            busy.append(spent)
    return float(np.median(busy))


def mean_delay_s(service_s: float, people: int, generator: random.Random) -> float:
    """Follow one queue at one core: so many arrivals at random moments within the meeting."""
    moments = np.sort(np.random.default_rng(generator.getrandbits(32)).random(people)) * MEETING_S
    steps = np.arange(people)
    # Whoever finds the core free starts at once: the end of service k is the latest of all such.
    ends = (steps + 1) * service_s + np.maximum.accumulate(moments - steps * service_s)
    return float((ends - moments).mean())


def largest_meeting(service_s: Callable[[int], float]) -> int:
    """Find the largest meeting whose mean delay stays under the bar, by the time of an update."""

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
    """Give the straight line through measured times: unicast costs as much again per person."""
    slope, start = (float(part) for part in np.polyfit(sizes, seconds, 1))
    return lambda people: max(start, 0.0) + max(slope, 0.0) * people


def level(seconds: Sequence[float]) -> Callable[[int], float]:
    """Give the median of measured times: by channel, the size of the meeting does not matter."""
    return lambda _: float(np.median(seconds))
