"""What programs read of events: a stream for each subscription, its gaps, and changes of broker."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from roamcast.errors import RoamcastError
from roamcast.model.contexts import Context
from roamcast.overlay.flows.cursor import ConsumerCursor
from roamcast.overlay.flows.vector import Vector

WAITING_MAX: Final = 1_000
"""Events that wait for a reader; then the socket is not read, and the broker waits."""

GAPS_MAX: Final = 100


Modulator = Mapping[str, Any]
"""What a broker does to each event of a subscription first (docs/modulators.md)."""


class ReceivedEvent(msgspec.Struct, frozen=True):
    """One event."""

    context: Context
    data: bytes
    producer: str
    """A digest; the same for one life of its producer."""
    number: int
    origin: str
    """The node that it was published at."""


class EventGap(msgspec.Struct, frozen=True):
    """Events that a log no longer had."""

    origin: str
    events_max: int
    reason: str


class BrokerChange(msgspec.Struct, frozen=True):
    """One change of broker."""

    from_url: str
    to_url: str
    why: str
    gap_s: float
    """How long no broker served; 0 if the new one stood before the old one ended."""


class EventStream:
    """The events of one subscription: `async for event in stream`."""

    def __init__(
        self,
        name: str,
        where: str,
        expires_s: float,
        end: Callable[["EventStream"], Awaitable[None]],
        modulators: Sequence[Modulator] = (),
    ) -> None:
        """`end` ends the subscription."""
        self.modulators = tuple(modulators)
        self.name = name
        self.where = where
        self.expires_s = expires_s
        self.resumed = True
        """Whether everything came so far; False once a log was too short: see `gaps`."""
        self.gaps: deque[EventGap] = deque(maxlen=GAPS_MAX)
        self.cursor = ConsumerCursor()
        self.standing = asyncio.Event()
        self._end = end
        self._events: asyncio.Queue[ReceivedEvent | RoamcastError | None] = asyncio.Queue(
            WAITING_MAX
        )

    @property
    def vector(self) -> Vector:
        """How far it has come in the log of each node."""
        return dict(self.cursor.vector)

    def __aiter__(self) -> "EventStream":
        return self

    async def __anext__(self) -> ReceivedEvent:
        found = await self._events.get()
        if isinstance(found, ReceivedEvent):
            return found
        self._events.put_nowait(found)  # the end stays
        if found is None:
            raise StopAsyncIteration
        raise found

    async def close(self) -> None:
        """End the subscription."""
        await self._end(self)

    async def put(self, event: ReceivedEvent) -> None:
        """Let the reader have an event, and wait while too many wait for it."""
        await self._events.put(event)

    def end(self, error: RoamcastError | None = None) -> None:
        """Nothing more comes."""
        while self._events.full():  # what is not read by now will not be
            self._events.get_nowait()
        self._events.put_nowait(error)
