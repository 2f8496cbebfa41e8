"""`Wants`: a covering set of the filters beyond each link, asked with a context.

A broker forwards a filter only where no forwarded filter covers it (CBM's subsumption, JIT's
routing table). Covering holds within one view: rules that coarsen a place would otherwise lose
matches, because a wide filter of one view may not hold of what another one shows.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final

import msgspec

from roamcast.errors import InputError, LimitError
from roamcast.matching.cover_index import CoverIndex
from roamcast.matching.filter_set import FilterSet
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter, recent
from roamcast.model.parts import Occupancy
from roamcast.model.wire import NAME_LENGTH_MAX
from roamcast.overlay.tables.hearing import Changes, TableBounds
from roamcast.overlay.tables.link_table import SharedTable
from roamcast.overlay.tables.sending import Value
from roamcast.overlay.tables.table import ENTRY_BYTES_MAX, TableEntry

FILTERS_MAX: Final = 262_144
"""Different filters of a table, this broker's own and all that were heard."""

SUBSCRIPTIONS_MAX: Final = 1_000_000
VIEWS_MAX: Final = 1_024
BYTES_MAX: Final = 128 * 1024 * 1024
BURST: Final = 256
"""Filters that find a new place in one step after a filter that covered them has gone."""

_EVERYTHING: Final = Filter.parse("true")


class Want(msgspec.Struct, frozen=True, array_like=True):
    """A filter of a view, by its canonical text."""

    view: str
    text: str


_decode = msgspec.msgpack.Decoder(Want).decode


class Wants(SharedTable[Want]):
    """Who wants what beyond each link. A key is the digest of its view and filter."""

    name = "wants"
    busy_alone = True
    bounds = TableBounds(FILTERS_MAX, BYTES_MAX)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._views: dict[str, CoverIndex] = {}
        self._asked: dict[str, FilterSet] = {}
        self._wants: dict[str, Want] = {}
        self._hearers: dict[str, set[str]] = {}
        self._local: dict[str, str] = {}
        self._askers: dict[str, int] = {}
        self._settling: dict[str, None] = {}
        self._asked_changes: dict[str, int] = {}
        """Views that neighbours ask for → the number of the last change of that."""
        self._changes = 0

    def subscribe(self, who: str, view: str, wanted: Filter) -> None:
        """Take a subscription of this broker's own clients under a new id."""
        if who in self._local:
            raise InputError(f"the subscription {who!r} is there already")
        if len(self._local) >= SUBSCRIPTIONS_MAX:
            raise LimitError(f"a broker exceeds the limit of {SUBSCRIPTIONS_MAX} subscriptions")
        want = Want(view, wanted.text)
        if len(_encode(want)) > ENTRY_BYTES_MAX:  # too long to be sent: ask for everything
            want, wanted = Want(view, _EVERYTHING.text), _EVERYTHING
        key = self._admitted(want)
        self._local[who] = key
        self._askers[key] = self._askers.get(key, 0) + 1
        if self._askers[key] == 1:
            self._add(key, want, wanted, None)

    def unsubscribe(self, who: str) -> None:
        """Take a subscription away; what its filter covered is offered instead."""
        key = self._local.pop(who, None)
        if key is None:
            raise InputError(f"there is no subscription {who!r}")
        self._askers[key] -= 1
        if not self._askers[key]:
            del self._askers[key]
            self._discard(key, None)

    def beyond(self, thing: tuple[str, Context], came_from: str | None) -> list[str]:
        """Name the links behind which somebody wants a context, as a view shows it."""
        view, context = thing
        found = self._unknown(came_from)
        asked = self._asked.get(view)
        if asked is not None:
            found = found.union(*(self._hearers[key] for key in asked.match(context)))
        return sorted(found - {came_from})

    def asked(self, view: str) -> dict[str, Filter]:
        """Give the filters of a view that neighbours ask for, by their text."""
        index = self._views.get(view)
        if index is None:
            return {}
        found = (index.filter(key) for key in self._hearers if self._wants[key].view == view)
        return {wanted.text: wanted for wanted in found}

    def asked_version(self, view: str) -> tuple[int, int]:
        """Give what differs whenever neighbours ask for something else in a view."""
        known = 0
        for link in self._links.values():  # asked after every input of the broker
            known += link.hearing.version is not None
        return self._asked_changes.get(view, 0), known

    def advance(self, now: int) -> None:
        """Let time pass: find a new place for more filters whose cover has gone."""
        super().advance(now)
        for view in list(self._settling):
            self._moved(view, self._views[view].settle(BURST))

    def deadline(self) -> int | None:
        """Give the time of the next step."""
        return self._now + 1 if self._settling else super().deadline()

    def settled(self, link: str) -> bool:
        """Whether a link has confirmed everything, and nothing is about to change."""
        return not self._settling and super().settled(link)

    def occupancy(self) -> Occupancy:
        """Give how much is held of what, and the bound of each."""
        return super().occupancy() | {
            "wants.filters": (len(self._wants), 2 * FILTERS_MAX),
            "wants.local": (len(self._local), SUBSCRIPTIONS_MAX),
            "wants.views": (len(self._views), VIEWS_MAX),
        }

    def _admitted(self, want: Want) -> str:
        """Give a want's key; LimitError if there is no room for it."""
        key = _key(want)
        if key not in self._wants and len(self._wants) >= FILTERS_MAX:
            raise LimitError(f"a table exceeds the limit of {FILTERS_MAX} filters")
        if want.view not in self._views and len(self._views) >= VIEWS_MAX:
            raise LimitError(f"a table exceeds the limit of {VIEWS_MAX} views")
        return key

    def _read(self, entry: TableEntry) -> Want:
        try:
            want = _decode(entry.value)
        except msgspec.DecodeError as error:
            raise InputError(f"a want is malformed: {error}") from None
        if not 0 < len(want.view) <= NAME_LENGTH_MAX:
            raise InputError(f"a view's name has 1 to {NAME_LENGTH_MAX} characters")
        if self._admitted(want) != entry.key:
            raise InputError("a want's key is not the digest of its view and filter")
        if entry.key not in self._wants and recent.read(want.text).text != want.text:
            raise InputError("a want's filter is not in its canonical text")
        return want

    def _keys(self, link: str) -> Iterable[str]:
        return (key for key in self._wants if self._wanted(link, key) is not None)

    def _wanted(self, link: str, key: str) -> Value:
        """Give the want if somebody but the link asks, and nothing that they ask covers it."""
        want = self._wants.get(key)
        if want is None or not self._held_for(link, key):
            return None
        index = self._views[want.view]
        above = index.above(key)
        while above is not None:
            if self._held_for(link, above):
                return None
            above = index.above(above)
        return _encode(want)

    def _changed(self, link: str, changes: Changes[Want]) -> None:
        for key, (_, new) in changes.items():
            if new is not None:
                self._add(key, new, None, link)
        for key, (_, new) in changes.items():
            if new is None:
                self._discard(key, link)

    def _add(self, key: str, want: Want, wanted: Filter | None, source: str | None) -> None:
        index = self._views.get(want.view)
        if index is None:  # an index costs much to make
            index = self._views[want.view] = CoverIndex()
        if key in index and not index.is_ghost(key):
            self._touch(key)
            self._hold(key, source)
            self._touch(key)
        else:
            self._holders[key] = {source}  # the last asker of a ghost asks no more
            self._wants[key] = want
            self._moved(want.view, index.add(key, wanted or recent.read(want.text)))
        if source is not None:
            hearers = self._hearers.setdefault(key, set())
            if not hearers:
                if want.view not in self._asked:
                    self._asked[want.view] = FilterSet()
                self._asked[want.view].add(key, index.filter(key))
            hearers.add(source)
            self._note_change(want.view)

    def _discard(self, key: str, source: str | None) -> None:
        view = self._wants[key].view
        if source is not None:
            self._note_change(view)
            self._hearers[key].discard(source)
            if not self._hearers[key]:
                del self._hearers[key]
                self._asked[view].remove(key)
        self._touch(key)
        if len(self._holders[key]) > 1:
            self._release(key, source)
            self._touch(key)
        else:  # the holder stays noted until everything below has found a new place
            self._moved(view, [key, *self._views[view].remove(key, BURST)])

    def _note_change(self, view: str) -> None:
        # Numbers of all views: one that comes again has none of its former ones.
        self._changes += 1
        self._asked_changes[view] = self._changes

    def _moved(self, view: str, keys: list[str]) -> None:
        """Look again at filters that lie elsewhere now; forget those that are gone."""
        index = self._views[view]
        for key in keys:
            if key in index:
                self._touch(key)
            elif key in self._wants:
                del self._wants[key], self._holders[key]
                self._mark(key, None)
        if index.ghosts:
            self._settling[view] = None
            return
        self._settling.pop(view, None)
        if not len(index):
            del self._views[view]
            self._asked.pop(view, None)
            self._asked_changes.pop(view, None)

    def _touch(self, key: str) -> None:
        """Look at a filter again for all links, and below it where only one link asks for it.

        That link needs what lies below the filter, for it is not told of its own.
        """
        todo = [key]
        while todo:
            key = todo.pop()
            self._mark(key, None)
            if len(self._holders[key]) == 1 and None not in self._holders[key]:
                todo += self._views[self._wants[key].view].below(key)


def _encode(want: Want) -> bytes:
    return msgspec.msgpack.encode(want)


def _key(want: Want) -> str:
    return blake2b(_encode(want), digest_size=16).hexdigest()
