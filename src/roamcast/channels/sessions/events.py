"""What the hub is asked, and what it answers: its inputs and effects."""

from typing import Literal

from roamcast.channels.server.messages import State
from roamcast.errors import RoamcastError
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Input

Format = Literal["json", "sse"]


class Frame(Effect, frozen=True, gc=False):
    """Write these bytes to each of these sessions; `events` says how many updates are in them.

    of_map: they are changes of contexts on the map, not published events.
    """

    sessions: tuple[str, ...]
    data: bytes
    form: Format
    events: int = 0
    of_map: bool = True


class CutOff(Effect, frozen=True, gc=False):
    """Close a session, and say why."""

    session: str
    reason: str


class SubscribeSession(Input, frozen=True):
    """Place a session's subscription under a name; the same name again replaces it.

    `everywhere`: also what is on other nodes' maps, where this broker has neighbours.
    """

    ticket: int
    session: str
    subscription: str
    filter: Filter
    everywhere: bool = False


class SubscribeSessionMany(Input, frozen=True):
    """Place some subscriptions of a session, each as if alone; answered by `SubscribedMany`."""

    ticket: int
    session: str
    filters: tuple[tuple[str, Filter], ...]
    """By their names."""
    everywhere: bool = False


class SubscribedMany(Effect, frozen=True):
    """Subscriptions are placed, but for those that were refused; the frames that answer them."""

    ticket: int
    frames: tuple[bytes, ...]
    refused: tuple[tuple[str, RoamcastError], ...]


class UnsubscribeSession(Input, frozen=True):
    """End a session's subscription."""

    ticket: int
    session: str
    subscription: str


class LimitSession(Input, frozen=True):
    """Hold a session to this many bytes in any second; 0 lifts the limit."""

    ticket: int
    session: str
    limit_bytes: int


class SessionSlow(Input, frozen=True):
    """A session's connection takes no more for now."""

    session: str


class SessionDrained(Input, frozen=True):
    """A session's connection takes more again."""

    session: str


class RemoteUpdate(Effect, frozen=True, gc=False):
    """Another node's context has changed: the filters that it matched before, and does now."""

    state: State
    before: frozenset[str]
    after: frozenset[str]
    context: Context | None = None
