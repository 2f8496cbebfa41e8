"""What does a user who is slow to read get? Of each object the latest state, and nothing twice.

Between a map client, which is told of every state, and an `async for` that may take its time stands
one inbox for each standing query. It knows what is there now and what the user was told last; a
change is the difference between the two at the moment the user asks. So whatever the network, a
restarted server or a second listing repeats, the user sees each object appear once, and a user who
sleeps wakes to the present. What waits is bounded by the objects themselves.
"""

from typing import Final, Literal

import msgspec

from roamcast.errors import LimitError
from roamcast.model.contexts import Context

Kind = Literal["appeared", "changed", "left", "current"]

CONTEXTS_MAX: Final = 1_000_000
"""As many as a map service holds by default."""

_CURRENT: Final = ""
"""The key of the mark behind the current set; no vid is empty."""


class Change(msgspec.Struct, frozen=True):
    """An object appeared, changed or left; or the current set has been told, once for each query.

    `context` is the object's state, for one that left its last; none for `current`, which tells how
    many objects there were and whether a bandwidth limit left some out.
    """

    kind: Kind
    context: Context | None = None
    count: int = 0
    complete: bool = True

    @property
    def vid(self) -> str:
        """The object's vid, empty for `current`."""
        return "" if self.context is None else self.context.vid


class Inbox:
    """The objects of one standing query, and what its user has been told of them."""

    def __init__(self, contexts_max: int = CONTEXTS_MAX) -> None:
        self.shown: dict[str, Context] = {}
        self._told: dict[str, Context] = {}
        self._waiting: dict[str, None] = {}
        self._current: Change | None = None
        self._contexts_max = contexts_max

    def __len__(self) -> int:
        """How much waits for the user."""
        return len(self._waiting)

    def show(self, context: Context) -> None:
        """An object appeared or has a new state."""
        vid = context.vid
        if vid not in self.shown and len(self.shown) >= self._contexts_max:
            raise LimitError(
                f"a standing query follows at most {self._contexts_max} objects; narrow its filter"
            )
        self.shown[vid] = context
        self._note(vid)

    def hide(self, vid: str) -> None:
        """An object left."""
        self.shown.pop(vid, None)
        self._note(vid)

    def current(self, count: int, *, complete: bool) -> None:
        """Everything that is there has been shown; the user is told once."""
        if self._current is None:
            self._current = Change("current", None, count, complete)
            self._waiting[_CURRENT] = None

    def take(self) -> Change | None:
        """Give the next change, none if the user knows everything."""
        while self._waiting:
            vid = next(iter(self._waiting))
            del self._waiting[vid]
            if vid == _CURRENT:
                return self._current
            now, before = self.shown.get(vid), self._told.get(vid)
            if now is not None:
                self._told[vid] = now
                if before is None:
                    return Change("appeared", now)
                if not _same(now, before):
                    return Change("changed", now)
            elif before is not None:
                del self._told[vid]
                return Change("left", before)
        return None

    def _note(self, vid: str) -> None:
        """Queue an object; one that came and went before the user looked is no news."""
        if vid in self.shown or vid in self._told:
            self._waiting.setdefault(vid)
        else:
            self._waiting.pop(vid, None)


def _same(one: Context, other: Context) -> bool:
    """Whether nothing changed but since when: a device that registers again is no news."""
    return (
        one.place == other.place
        and one.point == other.point
        and one.attributes == other.attributes
        and one.t_d == other.t_d
    )
