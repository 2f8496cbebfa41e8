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
from roamcast.overlay.handoff.messages import Attachment
from roamcast.overlay.homes.trail import HomeTrail

WAITING_MAX: Final = 1_000
"""Events that wait for a reader; then the socket is not read, and the broker waits."""

GAPS_MAX: Final = 100
CONFIRM_FRAMES: Final = 32
"""After so many frames a broker is told what its modulators need not remember any more."""


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
    events_max: int | None
    """None if it is not known, as the log's node was restarted meanwhile."""
    reason: str


class BrokerChange(msgspec.Struct, frozen=True):
    """One change of broker."""

    from_url: str
    to_url: str
    why: str
    gap_s: float
    """How long no broker served; 0 if the new one stood before the old one ended."""


class Modulated:
    """What a subscription's modulators are, what moves with them, and who served it so far."""

    def __init__(
        self, modulators: Sequence[Modulator], *, keeps_state: bool, keeps_events: bool, start: int
    ) -> None:
        self.modulators = tuple(modulators)
        self.keeps_state = keeps_state
        self.keeps_events = keeps_events
        self.trail = HomeTrail(start)
        self._unconfirmed = 0

    def goes_to(self, node: str) -> dict[str, Any]:
        """Give what is said to the broker that is to serve it next."""
        served = self.trail.served
        trail = [one for one in self.trail.goes_to(node) if one]
        return {
            "attachment": self.trail.attachment,
            "modulators": self.modulators,
            "keeps_state": self.keeps_state,
            "keeps_events": self.keeps_events,
            "served": served,
            "trail": trail,
        }

    def stands(self, node: str, served: tuple[int, int] | None) -> None:
        """A broker answers for it from now on."""
        if served is not None and Attachment(*served) == self.trail.attachment:
            self.trail.served_by(node)

    def confirms(self) -> bool:
        """Count a frame of events; say whether the broker should hear how far one has come."""
        self._unconfirmed = (self._unconfirmed + 1) % CONFIRM_FRAMES
        return self.keeps_state and not self._unconfirmed


class EventStream:
    """The events of one subscription: `async for event in stream`."""

    def __init__(
        self,
        name: str,
        where: str,
        expires_s: float,
        end: Callable[["EventStream"], Awaitable[None]],
        modulated: Modulated | None = None,
    ) -> None:
        """`end` ends the subscription."""
        self.modulated = modulated
        self.name = name
        self.where = where
        self.expires_s = expires_s
        self.resumed = True
        """Whether everything came so far; False once a log was too short: see `gaps`."""
        self.gaps: deque[EventGap] = deque(maxlen=GAPS_MAX)
        self.begun_anew: deque[str] = deque(maxlen=GAPS_MAX)
        """Why modulators began anew though they should have gone on, each time."""
        self.broker_of: Callable[[], str] = str
        self.cursor = ConsumerCursor()
        self.standing = asyncio.Event()
        self.failed: RoamcastError | None = None
        """Why nothing more comes."""
        self._end = end
        self._events: asyncio.Queue[ReceivedEvent | RoamcastError | None] = asyncio.Queue(
            WAITING_MAX
        )

    @property
    def vector(self) -> Vector:
        """How far it has come in the log of each node."""
        return dict(self.cursor.vector)

    @property
    def late(self) -> int:
        """How many events came after a later one of their producer.

        The node that they were published at was out of reach for longer than a broker waits.
        """
        return self.cursor.late

    @property
    def broker(self) -> str:
        """The address of the broker that serves it."""
        return self.broker_of()

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
        self.failed = error
        while self._events.full():  # what is not read by now will not be
            self._events.get_nowait()
        self._events.put_nowait(error)
