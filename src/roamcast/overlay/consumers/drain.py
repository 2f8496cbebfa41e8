"""Draining a node: everybody is handed over ahead of time, and newcomers go elsewhere.

For each session the next node prepares its consumers; when they stand there, or after some
patience, the session is told where to go. A consumer counts as moved when its new home says so.
Who reads server-sent events is told and hung up on: nobody holds anything for them, they go on
elsewhere from their last id. Nobody waits for those who sleep: they come back by their vector.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from roamcast.channels.sessions.events import CutOff, Frame
from roamcast.channels.sessions.hub import Hub
from roamcast.channels.sessions.messages import ConsumerElsewhere
from roamcast.errors import ConflictError, InputError, UnreachableError
from roamcast.model.events import Acknowledged, Failed, SessionClosed
from roamcast.model.machine import Effect, Input
from roamcast.model.parts import Forward, Occupancy, Part, PartTimers, Timer
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.consumers.attended import Attended
from roamcast.overlay.handoff.events import ConsumerGone, PrepareNext

PATIENCE_US: Final = 2_000_000
"""How long a session waits for the next node to prepare; then it goes by its vector."""

LOOK_US: Final = 20_000
LOST_US: Final = 30_000_000
"""A consumer of which no other node has spoken so long after it was told counts as lost."""

_encode = msgspec.json.Encoder().encode


class DrainNode(Input, frozen=True):
    """Hand everybody over to these nodes, so many sessions a second; answered at once."""

    ticket: int
    to: tuple[str, ...] = ()
    """None: all that are in reach."""
    rate: float = 100.0


class UndrainNode(Input, frozen=True):
    """Take newcomers again, and hand nobody over any more."""

    ticket: int


class DrainView(msgspec.Struct, frozen=True):
    """How far a drain has come."""

    draining: bool
    sessions: Annotated[int, Meta(ge=0, description="sessions that are still here")] = 0
    consumers: Annotated[
        int, Meta(ge=0, description="subscriptions of events still here, but for those asleep")
    ] = 0
    moved: Annotated[int, Meta(ge=0, description="subscriptions that others serve now")] = 0
    lost: Annotated[
        int, Meta(ge=0, description="subscriptions that were told and no other node has seen")
    ] = 0
    streams: Annotated[
        int, Meta(ge=0, description="streams of events that were told where to go, and ended")
    ] = 0


class DrainNextDue(Timer, frozen=True):
    """The next session is prepared for."""


class DrainLookDue(Timer, frozen=True):
    """Whether the next node is ready for a session."""

    session: str


class DrainLostDue(Timer, frozen=True):
    """A consumer that was told to go did not say that it went."""

    consumer: str


class Drain(Part):
    """The drain of one node."""

    part: ClassVar[str] = "drain"
    inputs: ClassVar = (DrainNode, UndrainNode, ConsumerGone, SessionClosed)

    def __init__(
        self,
        hub: Hub,
        *,
        consumers_of: Callable[[str], Collection[str]],
        consumers: Mapping[str, Attended],
        prepared: Callable[[str, str], bool],
        nodes: Callable[[], dict[str, str]],
    ) -> None:
        """`nodes`: the other nodes in reach, and where people reach each."""
        self.timers: PartTimers = PartTimers(
            {
                DrainNextDue: lambda _, now: self._prepare(now),
                DrainLookDue: lambda timer, now: self._look(timer.session, now),
                DrainLostDue: self._lost_due,
            }
        )
        self.to: tuple[str, ...] = ()
        """Where everybody goes; empty: nobody has to."""
        self._hub = hub
        self._consumers_of = consumers_of
        self._consumers = consumers
        self._prepared = prepared
        self._nodes = nodes
        self._rate = 1.0
        self._turn = 0
        self._waiting: deque[str] = deque()
        self._next: dict[str, tuple[str, int]] = {}
        """Sessions that are prepared for → the node, and when patience ends."""
        self._leaving: dict[str, str] = {}
        """Consumers that were told to go → where to."""
        self._moved = self._lost = self._streams = 0

    def check_newcomer(self) -> None:
        """Refuse whoever comes while the node is drained, and say where to go."""
        if self.to:
            url = self._nodes().get(self.to[0], "")
            raise UnreachableError(f"this node is being drained: connect to {url or self.to[0]}")

    def view(self) -> DrainView:
        """Say how far it has come."""
        sessions = sum(one.form == "json" for one in self._hub.sessions.values())
        consumers = sum(
            one.state != "asleep" or name in self._leaving for name, one in self._consumers.items()
        )
        return DrainView(bool(self.to), sessions, consumers, self._moved, self._lost, self._streams)

    def occupancy(self) -> Occupancy:
        """How much is held of what, and the bound of each."""
        most = self._hub.settings.sessions_max
        return {"sessions to tell": (len(self._waiting) + len(self._next), most)}

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Begin or end a drain, and count who is gone."""
        match given:
            case DrainNode(ticket):
                try:
                    self._begin(given, now)
                except (ConflictError, InputError) as error:
                    return [Failed(ticket, error)]
                return [Acknowledged(ticket)]
            case UndrainNode(ticket):
                self.to = ()
                self._waiting.clear()
                self._next.clear()
                self._leaving.clear()
                self.timers.clear()
                return [Acknowledged(ticket)]
            case ConsumerGone(consumer, to):
                if self._leaving.pop(consumer, None) is not None or (self.to and to):
                    self._moved += bool(to)
                    self.timers.cancel(DrainLostDue(consumer))
            case SessionClosed(session):
                self._next.pop(session, None)
        return []

    def _begin(self, given: DrainNode, now: int) -> None:
        reach = self._nodes()
        to = given.to or tuple(sorted(reach))
        strangers = [node for node in to if node not in reach]
        if strangers:
            raise ConflictError(f"there is no other node {strangers[0]!r} in reach")
        if not to:
            raise ConflictError("there is no other node in reach to hand anybody over to")
        if not given.rate > 0:
            raise InputError("the rate is more than 0 sessions a second")
        self.to, self._rate = to, given.rate
        self._moved = self._lost = self._streams = 0
        self._leaving.clear()
        self._next.clear()
        sessions = self._hub.sessions.items()
        self._waiting = deque(
            name for name, one in sessions if one.form == "json" or self._consumers_of(name)
        )
        self.timers.set(DrainNextDue(), now)

    def advance(self, now: int) -> Sequence[Effect]:
        """Prepare for the next session, tell those that are prepared for, give up on the lost."""
        return self.timers.fire(now)

    def _lost_due(self, timer: DrainLostDue, now: int) -> Sequence[Effect]:
        del now
        if self._leaving.pop(timer.consumer, None) is not None:
            self._lost += timer.consumer in self._consumers  # else it has ended by itself
        return ()

    def _prepare(self, now: int) -> list[Effect]:
        while self._waiting and self._waiting[0] not in self._hub.sessions:
            self._waiting.popleft()
        if not self._waiting or not self.to:
            return []
        session = self._waiting.popleft()
        node = self.to[self._turn % len(self.to)]
        self._turn += 1
        self.timers.set(DrainNextDue(), now + max(1, int(MICROSECONDS / self._rate)))
        if self._hub.sessions[session].form == "sse":
            return self._end_stream(session, node)
        self._next[session] = node, now + PATIENCE_US
        self.timers.set(DrainLookDue(session), now + LOOK_US)
        return [Forward(PrepareNext(name, node)) for name in self._consumers_of(session)]

    def _end_stream(self, session: str, node: str) -> list[Effect]:
        """Tell who reads a stream where to go on."""
        self._streams += 1
        url = self._nodes().get(node, "")
        frame = b"event: moved\ndata: " + _encode(ConsumerElsewhere("", node, url)) + b"\n\n"
        over = CutOff(session, f"drained: go on at {url or node} from your last id")
        closed = self._hub.close(session)
        return [Frame((session,), frame, "sse"), *closed, over, SessionClosed(session)]

    def _look(self, session: str, now: int) -> list[Effect]:
        known = self._next.get(session)
        if known is None or session not in self._hub.sessions:
            return []
        node, until = known
        consumers = list(self._consumers_of(session))
        if now < until and not all(self._prepared(name, node) for name in consumers):
            self.timers.set(DrainLookDue(session), now + LOOK_US)
            return []
        del self._next[session]
        for name in consumers:
            self._leaving[name] = node
            self.timers.set(DrainLostDue(name), now + LOST_US)
        frame = _encode(ConsumerElsewhere("", node, self._nodes().get(node, "")))
        return [Frame((session,), frame, "json")]
