"""A tree of tables joined by channels that lose, double and reorder what they carry."""

import random
from typing import Any, Generic, TypeVar

import msgspec

from roamcast.errors import InputError
from roamcast.overlay.tables.link_table import LinkTable
from roamcast.overlay.tables.table import Offer

T = TypeVar("T", bound=LinkTable[Any])

ROUNDS_MAX = 500
_decoder = msgspec.msgpack.Decoder(Offer)


class Confirm(msgspec.Struct, frozen=True):
    version: int


class Net(Generic[T]):
    """Tables by name, and the frames under way on each directed link."""

    def __init__(self, tables: dict[str, T], edges: list[tuple[str, str]]) -> None:
        self.tables = tables
        self.edges = edges
        self.now = 0
        self.refused = 0
        self.flying: dict[tuple[str, str], list[bytes | Confirm]] = {}
        for one, two in edges:
            for pair in ((one, two), (two, one)):
                self.flying[pair] = []
                tables[pair[0]].reset(pair[1])

    def send(self, source: str, target: str) -> None:
        """Put all pages that are ready on the link, as bytes: what is sent can be decoded."""
        while (offer := self.tables[source].offer(target)) is not None:
            self.flying[source, target].append(msgspec.msgpack.encode(offer))

    def carry(self, draw: random.Random, source: str, target: str) -> None:
        """Deliver one frame of a link, in any order; it may be lost, or stay to come again."""
        frames = self.flying[source, target]
        if not frames:
            return
        at = draw.randrange(len(frames))
        frame = frames[at] if draw.random() < 0.2 else frames.pop(at)
        if draw.random() < 0.8:
            self.deliver(source, target, frame)

    def deliver(self, source: str, target: str, frame: bytes | Confirm) -> None:
        table = self.tables[target]
        if isinstance(frame, Confirm):
            table.confirmed(source, frame.version)
            return
        offer = _decoder.decode(frame)
        try:
            table.take(source, offer)
        except InputError:
            self.refused += 1
            return
        link = table._links[source].hearing
        if link.version == offer.version:
            self.flying[target, source].append(Confirm(offer.version))

    def advance(self, by: int) -> None:
        self.now += by
        for table in self.tables.values():
            table.advance(self.now)

    def heal(self) -> None:
        """Lose what is under way, begin every link again, and run until nothing is left to do."""
        for (source, target), frames in self.flying.items():
            frames.clear()
            self.tables[source].reset(target)
        for _ in range(ROUNDS_MAX):
            self.settle()
            times = [t for table in self.tables.values() if (t := table.deadline()) is not None]
            if not times:
                return
            self.advance(max(0, min(times) - self.now))
        raise AssertionError("the tables never come to rest")

    def settle(self) -> None:
        """Carry everything, once and in order, until nothing is under way."""
        for _ in range(ROUNDS_MAX):
            for source, target in self.flying:
                self.send(source, target)
            if not any(self.flying.values()):
                return
            for (source, target), frames in self.flying.items():
                taken, self.flying[source, target] = list(frames), []
                for frame in taken:
                    self.deliver(source, target, frame)
        raise AssertionError("the tables never agree")

    def side(self, at: str, link: str) -> set[str]:
        """Name the nodes that lie beyond a link."""
        found, todo = {link}, [link]
        while todo:
            node = todo.pop()
            for one, two in self.edges:
                for a, b in ((one, two), (two, one)):
                    if a == node and b != at and b not in found:
                        found.add(b)
                        todo.append(b)
        return found
