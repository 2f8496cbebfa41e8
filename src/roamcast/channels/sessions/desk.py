"""The state that all parts of the hub share: sessions, their queries, timers, outgoing effects."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from roamcast.channels.sessions.changes import ContextEvent
from roamcast.channels.sessions.events import Format, Frame
from roamcast.channels.sessions.settings import HubSettings
from roamcast.channels.spread.streams import Ledger
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect
from roamcast.model.parts import Timers

if TYPE_CHECKING:
    from roamcast.channels.sessions.hub import EventWriter

Key = tuple[str, int, Format]
"""(view class, query number, format): who shares frames."""


class QueryTimer(msgspec.Struct, frozen=True):
    """The next frame of a query may leave."""

    key: Key


class BranchTimer(msgspec.Struct, frozen=True):
    """The next frame of a query may leave to a session that others have parted from."""

    key: Key
    session: str


class AloneTimer(msgspec.Struct, frozen=True):
    """A session that is served alone may be sent more."""

    session: str


class SlowTimer(msgspec.Struct, frozen=True):
    """A session has taken nothing for too long."""

    session: str


class ExcessTimer(msgspec.Struct, frozen=True):
    """A session with too many subscriptions to one object is over."""

    session: str


HubTimer = QueryTimer | BranchTimer | AloneTimer | SlowTimer | ExcessTimer


class Branch(msgspec.Struct):
    """What waits of a query for one session, and until when, where others wait for something else.

    An update that was for some of a query's sessions alone has parted it from the others (0320).
    """

    events: dict[str, ContextEvent]
    ready_us: int


class SharedQuery(msgspec.Struct):
    """A query and the sessions that subscribe to it: those that share frames, and the others."""

    key: Key
    number: int
    """How frames call it."""
    shared: dict[str, None]
    alone: dict[str, None]
    events: dict[str, ContextEvent]
    ready_us: int = 0
    listed: tuple[str, ...] | None = None
    """The shared sessions as the frame names them; None when they have changed."""
    branches: dict[str, Branch] = {}
    """Sessions that will share frames again."""


class Untold(msgspec.Struct):
    """What a session has not been told of a query's current set.

    States are looked up when their turn comes: what changes before that waits for it.
    """

    vids: dict[str, int]
    """The contexts still to be told → the number of the state to be told."""
    present: int
    """The number of the moment that the set is of."""
    at_us: int
    settled: int
    """States with later numbers are later than `vids` knows."""


class HubSession(msgspec.Struct):
    """One open session: its subscriptions by the names it gave them, and what it still lacks."""

    name: str
    view_class: str
    form: Format
    viewer: str
    """Its viewer among the view classes, by whose name rules may show it more or less."""
    subscriptions: dict[str, tuple[Key, Filter]]
    uses: dict[Key, int]
    queue: dict[tuple[Key, str], ContextEvent]
    to_complete: dict[Key, Untold]
    """Queries whose current set is not wholly sent."""
    apart: dict[Key, None]
    """Queries whose frames it does not share now."""
    slow_since: int | None = None
    ledger: Ledger | None = None
    ready_us: int = 0
    """Until then others have their turn."""

    @property
    def alone(self) -> bool:
        """Whether it can not share frames now."""
        waits = bool(self.queue or self.to_complete)
        return waits or self.slow_since is not None or self.ledger is not None


class HubDesk:
    """The shared state of one hub; `out` has the effects of the current input so far."""

    def __init__(self, settings: HubSettings, writer: "EventWriter") -> None:
        self.settings = settings
        self.writer = writer
        self.sessions: dict[str, HubSession] = {}
        self.queries: dict[Key, SharedQuery] = {}
        self.viewers: dict[str, dict[str, None]] = {}
        """Viewers with a name → their sessions."""
        self.timers: Timers[HubTimer] = Timers()
        self.out: list[Effect] = []

    def concerned(self, among: Mapping[str, Any], only: str, without: frozenset[str]) -> list[str]:
        """Name the sessions among some that an event is for, which is for some viewers."""
        if only:  # many may be told alone, one after the other: walk through none but its own
            return [name for name in self.viewers.get(only, ()) if name in among]
        if not without:
            return [*among]
        return [name for name in among if self.sessions[name].viewer not in without]

    def send(self, session: HubSession, frame: bytes, now: int) -> None:
        """Send one session a frame; its limit counts the bytes."""
        if session.ledger is not None:
            session.ledger.charge(now, len(frame))
        self.out.append(Frame((session.name,), frame, session.form))
