"""Passing flows on: which events go over which link, and in which intervals.

Nothing is kept for others here. A node passes on what it hears for the first time; what a
neighbour misses, because a link broke or had no room, it sees by the interval and fetches from the
origin's log. So a queue that is full may drop flows, and says how far logs reach once it has room.
"""

from collections import deque
from collections.abc import Collection
from typing import Final, Protocol

import msgspec

from roamcast.overlay.flows.messages import BATCH_BYTES, Event, Flow, FlowChunk, FlowPage
from roamcast.overlay.flows.vector import Position
from roamcast.overlay.links.chunks import CHUNK_BYTES, chunks_of
from roamcast.overlay.tables.wants import Wants

VIEW: Final = "events"
"""The view of all events in `Wants`: what their producers show to everybody."""

BURST: Final = 6
"""Chunks to one link at once; the rest follows in the next moment, unless the link is full."""

_ENCODE: Final = msgspec.msgpack.Encoder().encode


class ForwardingRule(Protocol):
    """The decision whether to match for a link; any mixture is correct (CBM)."""

    def links(self, event: Event, came_from: str | None, known: Collection[str]) -> set[str]:
        """Name the links over which an event goes on."""
        ...


class Matching:
    """Match each event against what is wanted beyond each link: an active filter."""

    def __init__(self, wants: Wants) -> None:
        self._wants = wants

    def links(self, event: Event, came_from: str | None, known: Collection[str]) -> set[str]:
        """Name the links beyond which somebody wants the event."""
        return set(self._wants.beyond((VIEW, event.context), came_from)).intersection(known)


class Everything:
    """Forward everything: a passive filter."""

    def links(self, event: Event, came_from: str | None, known: Collection[str]) -> set[str]:
        """Name all links but the one it came by."""
        del event
        return {link for link in known if link != came_from}


class RelayLink:
    """What one neighbour was told of each origin, and what waits to be sent to it."""

    def __init__(self) -> None:
        self.chain: dict[str, Position] = {}
        """Origins → up to where the neighbour was told in one chain."""
        self.passed: dict[str, Position] = {}
        """Origins → up to where events were looked at for it."""
        self.untold: dict[str, None] = {}
        """Origins of which the neighbour was not yet told as far as that."""
        self.queue: deque[list[FlowChunk]] = deque()
        self.bytes = 0
        self.full = False
        self.dropped = False
        """Something found no room: say how far logs reach once there is some."""

    def push(self, content: Flow | FlowPage, bytes_max: int) -> bool:
        """Queue a flow or a page; return whether there was room."""
        chunks = [
            FlowChunk(number, chunk, last)
            for number, (chunk, last) in enumerate(chunks_of(_ENCODE(content)))
        ]
        size = sum(len(one.chunk) for one in chunks)
        if self.queue and self.bytes + size > bytes_max:
            self.dropped = True
            return False
        self.queue.append(chunks)
        self.bytes += size
        return True

    def pop(self) -> list[FlowChunk]:
        """Give the next chunks to send."""
        out: list[FlowChunk] = []
        while self.queue and len(out) < BURST and not self.full:
            chunks = self.queue[0]
            out.append(chunks.pop(0))
            self.bytes -= len(out[-1].chunk)
            if not chunks:
                self.queue.popleft()
        return out

    def empties(self) -> list[Flow]:
        """Give the intervals in which there was nothing for the neighbour."""
        found = []
        for origin in self.untold:
            after, upto = self.chain[origin], self.passed[origin]
            found.append(Flow(origin, upto.epoch, after.number, upto.number))
            self.chain[origin] = upto
        self.untold.clear()
        return found

    def forget(self, origin: str) -> None:
        """Begin a new chain: the neighbour itself lies towards the origin."""
        for held in (self.chain, self.passed, self.untold):
            held.pop(origin, None)


class Relay:
    """How far logs reach, as far as this node knows, and what goes over its links."""

    def __init__(self, forwarding: ForwardingRule, *, queue_bytes_max: int) -> None:
        self.known: dict[str, Position] = {}
        self.links: dict[str, RelayLink] = {}
        self.forwarding = forwarding
        self._queue_bytes_max = queue_bytes_max

    def begin(self, link: str) -> None:
        """Use a link from now on; nothing that was sent before counts."""
        self.links[link] = RelayLink()

    def drop(self, link: str) -> None:
        """Stop using a link."""
        self.links.pop(link, None)

    def push(self, link: str, content: Flow | FlowPage) -> bool:
        """Queue something for a link, if it is in use and has room."""
        found = self.links.get(link)
        return found is not None and found.push(content, self._queue_bytes_max)

    def passes(self, flow: Flow, came_from: str | None) -> None:
        """Pass on what is new of a flow."""
        origin = flow.origin
        after, upto = Position(flow.epoch, flow.after), Position(flow.epoch, flow.upto)
        before = self.known.get(origin)
        if came_from is not None and came_from in self.links:  # what it says needs no repeating
            self.links[came_from].forget(origin)
        if before is not None and upto <= before:
            return
        self.known[origin] = upto
        chained = before is not None and after <= before
        fresh = [
            (number, event)
            for number, event in flow.events
            if before is None or Position(flow.epoch, number) > before
        ]
        wanted = self._sorted_out(fresh, came_from)
        for name, link in self.links.items():
            if name == came_from:
                continue
            if not (chained and link.passed.get(origin) == before):
                link.chain[origin] = after  # a gap: the neighbour sees it, and fetches
            link.passed[origin] = upto
            link.untold[origin] = None
            if name in wanted:
                self._send(name, flow, wanted[name])

    def _sorted_out(
        self, fresh: list[tuple[int, Event]], came_from: str | None
    ) -> dict[str, list[tuple[int, Event]]]:
        wanted: dict[str, list[tuple[int, Event]]] = {}
        for one in fresh:
            for link in self.forwarding.links(one[1], came_from, self.links):
                wanted.setdefault(link, []).append(one)
        return wanted

    def _send(self, name: str, flow: Flow, events: list[tuple[int, Event]]) -> None:
        """Queue the events in batches; the last one ends where the flow does."""
        link = self.links[name]
        batch: list[tuple[int, Event]] = []
        size = 0
        for one in events:
            if batch and size + one[1].size > BATCH_BYTES:
                self._queue(link, flow, batch, one[0] - 1)
                batch, size = [], 0
            batch.append(one)
            size += one[1].size
        self._queue(link, flow, batch, flow.upto)
        link.untold.pop(flow.origin, None)

    def _queue(
        self, link: RelayLink, flow: Flow, batch: list[tuple[int, Event]], upto: int
    ) -> None:
        after = link.chain[flow.origin].number
        link.push(Flow(flow.origin, flow.epoch, after, upto, tuple(batch)), self._queue_bytes_max)
        link.chain[flow.origin] = Position(flow.epoch, upto)

    def bytes(self) -> int:
        """How much waits for the slowest link."""
        return max((link.bytes for link in self.links.values()), default=0)

    @property
    def queue_bytes_max(self) -> int:
        """The bound on what waits for one link; one content more is let in when it is empty."""
        return self._queue_bytes_max + 2 * BATCH_BYTES + 32 * CHUNK_BYTES
