"""The client's copy of the map: the contexts that its subscriptions show, each in its latest state.

States come by several channels and by unicast, some twice, some late. Of each context the state
with the highest (epoch, number) stays, so nothing is shown twice and nothing goes back. A context
that left is remembered for a while, because an older state of it may still be on its way.
"""

from collections.abc import Iterable

import msgspec

from roamcast.channels.server.messages import State
from roamcast.model.contexts import Context, context_of
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect

Number = tuple[int, int]
"""(epoch, update number)."""


class Appeared(Effect, frozen=True):
    """A context satisfies the subscription; it did not before."""

    subscription: str
    context: Context
    epoch: int
    number: int


class Changed(Effect, frozen=True):
    """A context that satisfies the subscription has a new state."""

    subscription: str
    context: Context
    epoch: int
    number: int


class Left(Effect, frozen=True):
    """A context no longer satisfies the subscription."""

    subscription: str
    vid: str


class Known(msgspec.Struct):
    """The latest state received of a context, and in how many subscriptions it is shown."""

    number: Number
    context: Context | None
    shown: int = 0
    received_us: int = 0


class CopyView(msgspec.Struct):
    """One subscription's contexts: vid → the number of the state shown.

    `as_of`: the update its current set was last listed for. A state that comes later and is not
    newer than that belongs to a context that has left since: its departure may have been lost
    together with what made the listing necessary.
    """

    filter: Filter
    shown: dict[str, Number]
    as_of: Number = (0, 0)


class MapCopy:
    """Contexts by vid, and what each subscription shows of them."""

    def __init__(self) -> None:
        self.known: dict[str, Known] = {}
        self.views: dict[str, CopyView] = {}
        self.tombstones = 0
        self.duplicates = 0
        self.foreign = 0
        """States that concern no subscription: shared groups carry what others subscribed to."""
        self.floor: Number = (0, 0)
        """The highest number of a state that was forgotten."""

    def open(self, subscription: str, wanted: Filter) -> None:
        """Begin a subscription's view."""
        self.views[subscription] = CopyView(wanted, {})

    def close(self, subscription: str) -> None:
        """End a subscription's view."""
        view = self.views.pop(subscription)
        for vid in view.shown:
            self._unshow(vid)

    def learn(
        self, epoch: int, state: State, now: int, as_of: int = 0, *, listed: bool = False
    ) -> list[Effect]:
        """Take a state; give what changes for the user: nothing if the state is not newer.

        `listed`: it is part of a current set that was asked for, and was present `as_of` then.
        """
        number = (epoch, state.number)
        known = self.known.get(state.vid)
        context = context_of(state.body) if state.body else None
        if known is not None and number <= known.number:
            # Each view class numbers its states, by time (0090). A client that has been moved to
            # another class knows the old one's; a current set that it asked for since is of the
            # new, whatever the number of its last change.
            present = listed and (epoch, as_of) >= known.number
            if not present or context == known.context:
                self.duplicates += 1
                return []
            number = (epoch, as_of)
        if known is None:
            known = self.known[state.vid] = Known(number, context)
            self.tombstones += 1
        known.number, known.context, known.received_us = number, context, now
        effects: list[Effect] = []
        for name, view in self.views.items():
            if number > view.as_of or state.vid in view.shown:
                self._show(name, view, state.vid, known, effects)
        self.foreign += not effects
        return effects

    def _show(
        self, name: str, view: CopyView, vid: str, known: Known, effects: list[Effect]
    ) -> None:
        """Bring one subscription up to a context's latest state."""
        context, number = known.context, known.number
        there = vid in view.shown
        if context is not None and view.filter.matches(context):
            if not there:
                self.tombstones -= known.shown == 0
                known.shown += 1
            kind = Changed if there else Appeared
            view.shown[vid] = number
            effects.append(kind(name, context, *number))
        elif there:
            del view.shown[vid]
            self._unshow(vid)
            effects.append(Left(name, vid))

    def show_known(self, subscription: str, vids: Iterable[str]) -> list[Effect]:
        """Show contexts of a current set that were known before the subscription was placed."""
        effects: list[Effect] = []
        view = self.views[subscription]
        for vid in vids:
            known = self.known.get(vid)
            if known is not None and vid not in view.shown:
                self._show(subscription, view, vid, known, effects)
        return effects

    def retain(self, subscription: str, listed: set[str], as_of: Number) -> list[Effect]:
        """Retain what a whole current set lists; whatever is not in it and not newer has left."""
        view = self.views[subscription]
        view.as_of = max(view.as_of, as_of)
        gone = [vid for vid, number in view.shown.items() if vid not in listed and number <= as_of]
        effects: list[Effect] = []
        for vid in gone:
            del view.shown[vid]
            self._unshow(vid)
            effects.append(Left(subscription, vid))
        return effects

    def _unshow(self, vid: str) -> None:
        known = self.known[vid]
        known.shown -= 1
        if not known.shown:
            self.tombstones += 1

    def prune(self, older_us: int, most: int) -> None:
        """Forget contexts that no view shows: those received before a time, or beyond a number."""
        if not self.tombstones:
            return
        hidden = [vid for vid, known in self.known.items() if not known.shown]
        hidden.sort(key=lambda vid: self.known[vid].received_us)
        for position, vid in enumerate(hidden):
            known = self.known[vid]
            if known.received_us >= older_us and len(hidden) - position <= most:
                break
            self.floor = max(self.floor, known.number)
            del self.known[vid]
            self.tombstones -= 1

    def forgotten(self, epoch: int, state: State) -> bool:
        """Whether a state of an unknown context could be older than one that was forgotten."""
        return state.vid not in self.known and (epoch, state.number) <= self.floor

    def shown(self, subscription: str) -> dict[str, Context]:
        """Give what a subscription shows now, by vid."""
        found = {}
        for vid in self.views[subscription].shown:
            context = self.known[vid].context
            assert context is not None
            found[vid] = context
        return found
