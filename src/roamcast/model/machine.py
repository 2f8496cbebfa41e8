"""The contract between a machine and its driver: inputs go in with the time, effects come out.

A machine is sans-IO: `receive(input, now)` and `advance(now)` return effects, `deadline()` says
when `advance` is next worth calling. Time is integer microseconds, in the simulator as in the live
service. Randomness comes in as a `Draw`, ids as arguments. docs/machines.md is the whole contract.
"""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Annotated, Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Meta

from roamcast.model.addresses import Address
from roamcast.model.wire import Message

KEY_LENGTH_MAX: Final = 1_024
VALUE_BYTES_MAX: Final = 512 * 1024
"""An entry travels between replicas in one message, so a value is bounded by the frame."""

KEY_LAST: Final = "\U0010ffff"
"""Sorts after every key."""

KEY: Final = re.compile(f"[^\0{KEY_LAST}]{{1,{KEY_LENGTH_MAX}}}", re.DOTALL)
"""What a store can have as a key."""

Writes = tuple[tuple[str, bytes | None], ...]
"""Keys with their new values, None to delete one."""

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


ENTRY_BYTES: Final = 16
"""About what an entry takes in a message beside its key and its value."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One key of a store with its value, None once it is deleted, and the stamp of the write.

    Of two copies of a key the one with the higher rank is right, on every host (decision 0078).
    """

    key: Annotated[str, Meta(max_length=KEY_LENGTH_MAX)]
    value: Annotated[bytes, Meta(max_length=VALUE_BYTES_MAX)] | None
    stamp: Annotated[int, Meta(ge=0, le=2**63 - 1)]

    @property
    def rank(self) -> tuple[int, bytes]:
        """What is compared; among equal stamps the larger bytes, so that all hosts agree."""
        return self.stamp, self.value or b""

    @property
    def size(self) -> int:
        """About how many bytes it takes in a message."""
        return len(self.key) + len(self.value or b"") + ENTRY_BYTES


class Stored(Input, frozen=True, gc=False):
    """The writes of the `Store` with this token are on disk and survive a crash."""

    token: int


class StoreFailed(Input, frozen=True, gc=False):
    """What was asked of the disk with this token was not done, and nothing has changed."""

    token: int
    reason: str


class Merged(Input, frozen=True, gc=False):
    """The entries of the `Merge` with this token are on disk; `newer` are those that won."""

    token: int
    newer: tuple[Entry, ...]


class PageRead(Input, frozen=True, gc=False):
    """What the `ReadPage` with this token found, in the order of the keys."""

    token: int
    entries: tuple[Entry, ...]


class Ended(Input, frozen=True, gc=False):
    """A part of this host that a `Start` with this epoch had begun is gone."""

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
    """Write keys (None deletes one), all or none; `Stored` or `StoreFailed` follows.

    `stamp` orders copies of a key on several hosts; 0 where there is only one.
    """

    token: int
    writes: Writes
    stamp: int = 0


class Merge(Effect, frozen=True, gc=False):
    """Write entries of another host where they rank higher; `Merged` or `StoreFailed` follows."""

    token: int
    entries: tuple[Entry, ...]


class ReadPage(Effect, frozen=True, gc=False):
    """Read entries, deleted ones too, with keys in (after, until]; `PageRead` follows.

    An empty `until` is the end of the store. With `bytes_max` the page ends before it would exceed
    that, after at least one entry.
    """

    token: int
    after: str
    until: str = ""
    bytes_max: int | None = None


class Start(Effect, frozen=True, gc=False):
    """Begin a part of this host, as a process or as a machine inside another.

    Its epoch tells its lives apart. When it ends, an `Ended` with the epoch follows.
    """

    part: str
    epoch: int


class Stop(Effect, frozen=True, gc=False):
    """End a part of this host at once; an `Ended` follows when it is gone, if it was there."""

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
    first = None
    for time in times:  # a generator would take twice as long, and every machine asks all the time
        if time is not None and (first is None or time < first):
            first = time
    return first
