"""How does a driver talk to a machine? Inputs go in with the time, effects come out.

A machine is sans-IO: `receive(input, now)` and `advance(now)` return effects, `deadline()` says
when `advance` is next worth calling. Time is integer microseconds, in the simulator as in the live
service. Randomness comes in as a `Draw`, ids as arguments. docs/machines.md is the whole contract.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from roamcast.model.addresses import Address
from roamcast.model.wire import Message

Draw = Callable[[], float]
"""A uniform draw from [0, 1); the driver passes a seeded generator's `random`."""


class Input(msgspec.Struct, frozen=True, tag=True):
    """Something that happened to a machine."""


class Effect(msgspec.Struct, frozen=True, tag=True):
    """Something a machine wants done; the driver does it and holds no policy."""


class Received(Input, frozen=True, gc=False):
    """A wire message arrived; `group` names the multicast group it came by, "" for unicast."""

    sender: str
    message: Message
    group: str = ""


class Stored(Input, frozen=True, gc=False):
    """The writes of the `Store` with this token are on disk and survive a crash."""

    token: int


class Ended(Input, frozen=True, gc=False):
    """A part of this host that a `Start` with this epoch had begun has come to its end."""

    part: str
    epoch: int


class Send(Effect, frozen=True, gc=False):
    """Send a message to one machine; it may be lost, doubled or overtaken."""

    to: Address
    message: Message


class Multicast(Effect, frozen=True, gc=False):
    """Send a message once to every member of a group within a scope, "" for everywhere.

    A scope is a site such as `campus`: the group can be used again beyond it (AMS, local-scope
    groups), so a message never leaves it.
    """

    group: str
    message: Message
    scope: str = ""


class Listen(Effect, frozen=True, gc=False):
    """Become a member of a multicast group."""

    group: str


class Ignore(Effect, frozen=True, gc=False):
    """Leave a multicast group."""

    group: str


class Store(Effect, frozen=True, gc=False):
    """Write keys (None deletes one), in order; a `Stored` with the token follows when synced."""

    token: int
    writes: tuple[tuple[str, bytes | None], ...]


class Start(Effect, frozen=True, gc=False):
    """Begin a part of this host, as a process or as a machine inside another.

    Its epoch tells its lives apart. When it ends by itself, an `Ended` with the epoch follows.
    """

    part: str
    epoch: int


class Stop(Effect, frozen=True, gc=False):
    """End a part of this host at once; no `Ended` follows, and one that had ended is nothing."""

    part: str


class Machine(Protocol):
    """What channels, overlay, identity and broker are made of."""

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take one input."""

    def advance(self, now: int) -> Sequence[Effect]:
        """Do what time demands; before the deadline this does nothing, after it, it moves on."""

    def deadline(self) -> int | None:
        """When to call `advance`, or None while only inputs matter."""


State = TypeVar("State", bound=Hashable)
Event = TypeVar("Event", bound=Hashable)


def step(table: Mapping[tuple[State, Event], State], state: State, event: Event) -> State:
    """Look the next state up; what is not in the table is our own mistake."""
    following = table.get((state, event))
    assert following is not None, f"{event} cannot happen in state {state}"
    return following


def earliest(*times: int | None) -> int | None:
    """Give the first of several deadlines, None among none."""
    return min((time for time in times if time is not None), default=None)
