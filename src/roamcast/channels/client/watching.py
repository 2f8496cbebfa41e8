"""What a client does with parcels: items in, changes of its user's views out.

It holds the copy of the map (what is shown), the tuner (what is listened to) and, for each
subscription, how far its current set has been listed. What cannot be healed is refreshed at a drawn
moment.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from roamcast.channels.client.copy import MapCopy
from roamcast.channels.client.tuner import Tuner
from roamcast.channels.server.messages import (
    BANDS_MAX,
    Announce,
    Closing,
    Dropped,
    Last,
    Opening,
    Page,
    Parcel,
    Refused,
    RefusedKind,
    State,
    Superseded,
)
from roamcast.channels.server.settings import MapSettings
from roamcast.model.filters import Filter
from roamcast.model.machine import Draw, Effect, earliest

LOOK_US: Final = 500_000
"""Interval of looking for silent channels and old departures."""


class Current(Effect, frozen=True, gc=False):
    """The subscription's current set has been shown; incomplete where a limit allows no more."""

    subscription: str
    count: int
    complete: bool


class Pending(Effect, frozen=True, gc=False):
    """How many updates are still pending for this client: 0 means that its view is complete."""

    count: int


class Refusal(Effect, frozen=True, gc=False):
    """The server refused something, and why."""

    kind: RefusedKind
    name: str
    """The vid or the subscription."""
    reason: str


class Cut(Effect, frozen=True, gc=False):
    """The server gave up on all subscriptions, and why; the user may subscribe again."""

    reason: str


class Overtaken(Effect, frozen=True, gc=False):
    """Somebody else published a context of this client's later, or removed it.

    `own`: it was the client itself, by a clock that was ahead of its present one.
    """

    vid: str
    stamp: int
    own: bool = False


class Coverage(msgspec.Struct):
    """How far a carousel has been received: from where, past its end or not, all of it."""

    channel: str
    start: str | None = None
    wrapped: bool = False
    whole: bool = False

    def add(self, page: Page) -> None:
        """Count a page in; pages come in order and without gaps."""
        if self.start is None:
            self.start = page.low
        elif page.low == "":
            self.wrapped = True
        at_end = page.high == ""
        if at_end and (self.start == "" or self.wrapped):
            self.whole = True
        if self.wrapped and page.high >= self.start:
            self.whole = True


class Listing(msgspec.Struct):
    """A current set on its way: as of which update, what it lists, which carousels it needs."""

    as_of: int
    count: int
    listed: set[str]
    carousels: dict[int, Coverage]


class Watching:
    """All subscriptions of one client: its copy of the map, its channels, its listings."""

    def __init__(self, settings: MapSettings, draw: Draw, limit_bytes: int) -> None:
        self.copy = MapCopy()
        self.tuner = Tuner(settings, draw, limit_bytes)
        self.queries: dict[str, tuple[int, ...]] = {}
        self.listings: dict[str, Listing] = {}
        self.refresh_at: dict[str, int] = {}
        self.pending: dict[int, int] = {}
        self._settings = settings
        self._draw = draw
        self._limit = limit_bytes
        self._look_at: int | None = None

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held of what, and the bound of each."""
        settings, subscribed = self._settings, len(self.copy.views)
        streams = len(self.tuner.streams)
        carousels = sum(len(listing.carousels) for listing in self.listings.values())
        return {
            "tombstones": (
                self.copy.tombstones,
                settings.contexts_max + 2 * settings.tombstones_max,
            ),
            "contexts known": (
                len(self.copy.known),
                2 * (settings.contexts_max + settings.tombstones_max),
            ),
            "subscriptions with queries": (len(self.queries), subscribed),
            "listings": (len(self.listings), subscribed),
            "refreshes": (len(self.refresh_at), subscribed),
            # Counts of streams that were left go with the next parcel, so that its user is told.
            "pending counts": (
                len(self.pending),
                settings.channels_max + settings.wide_groups_max + 1,
            ),
            "streams": (streams, 2 * (settings.channels_max + settings.wide_groups_max) + 1),
            "channels": (len(self.tuner.channels), streams * (BANDS_MAX + 1) + carousels),
            **self.tuner.occupancy(),
        }

    def watch(self, name: str, wanted: Filter) -> list[Effect]:
        """Begin a subscription, or replace it by another filter."""
        effects = self.unwatch(name)
        self.copy.open(name, wanted)
        return effects

    def unwatch(self, name: str) -> list[Effect]:
        """End a subscription."""
        effects: list[Effect] = []
        if name not in self.copy.views:
            return effects
        self.copy.close(name)
        effects += self._end_listing(name)
        self.refresh_at.pop(name, None)
        effects += self._unlink(self.queries.pop(name, ()))
        before = sum(self.pending.values())
        # No parcel of a stream that we left will say that nothing is pending any more.
        self._forget_pending()
        total = sum(self.pending.values())
        return [*effects, Pending(total)] if total != before else effects

    def _unlink(self, queries: Iterable[int]) -> list[Effect]:
        """Leave the streams of queries that no subscription has any more."""
        effects: list[Effect] = []
        for query in queries:
            if not any(query in others for others in self.queries.values()):
                effects += self.tuner.unlink(query)
        return effects

    def restart(self) -> list[Effect]:
        """Forget the channels of a session that is over; views stay until they are listed anew."""
        self.queries.clear()
        self.listings.clear()
        self.refresh_at.clear()
        ends: list[Effect] = [Pending(0)] if any(self.pending.values()) else []
        self.pending.clear()
        return [*ends, *self.tuner.drop_all()]

    def take(self, parcel: Parcel, channel: str, source: str, now: int) -> list[Effect]:
        """Take a parcel that came by a channel, "" for unicast."""
        effects: list[Effect] = []
        for item in parcel.items:
            match item:
                case State():
                    made = parcel.as_of if not channel else 0
                    effects += self._learn(parcel.epoch, item, now, made, listed=not channel)
                case Announce():
                    effects += self._announced(item, source, now)
                case Opening():
                    effects += self._open(item, source, now)
                case Closing(name, as_of, complete):
                    effects += self._close(parcel.epoch, name, as_of, complete)
                case Page():
                    effects += self._page(parcel.epoch, item, channel, now)
                case Refused(kind, name, reason):
                    effects.append(Refusal(kind, name, reason))
                case Superseded(vid, stamp, own):
                    effects.append(Overtaken(vid, stamp, own))
                case Dropped() | Last():
                    effects += self._end(item, channel)
        before = sum(self.pending.values())
        self._note_pending(parcel, channel)
        total = sum(self.pending.values())
        if total != before:
            effects.append(Pending(total))
        if self._look_at is None:
            self._look_at = now + LOOK_US
        return effects

    def _announced(self, item: Announce, source: str, now: int) -> list[Effect]:
        mine = any(item.query in queries for queries in self.queries.values())
        if mine or item.stream in self.tuner.streams:
            return self.tuner.link(item, source, now, mine=mine)
        return []

    def _end(self, item: Dropped | Last, channel: str) -> list[Effect]:
        if isinstance(item, Last):
            return self.tuner.drop(channel)
        effects: list[Effect] = []
        for name in list(self.copy.views):
            effects += self.unwatch(name)
        return [*effects, Cut(item.reason)]

    def lose(self, channel: str, now: int) -> list[Effect]:
        """Refresh what rode on a channel of which something cannot be healed."""
        tuned = self.tuner.channels.get(channel)
        if tuned is None:
            return []
        carried = self.tuner.streams.get(tuned.stream)
        queries = set() if carried is None else set(carried.queries)
        for name, listing in self.listings.items():
            if any(coverage.channel == channel for coverage in listing.carousels.values()):
                queries.update(self.queries.get(name, ()))
        self.refresh((name for name, own in self.queries.items() if queries.intersection(own)), now)
        return self.tuner.drop(channel)

    def refresh(self, names: Iterable[str], now: int) -> None:
        """Ask for current sets again, at a drawn moment: others may have lost the same."""
        for name in list(names):
            at = now + int(self._draw() * self._settings.restart_spread_us)
            self.refresh_at.setdefault(name, at)

    def to_refresh(self, now: int) -> list[str]:
        """Name the subscriptions whose moment has come."""
        due = [name for name, at in self.refresh_at.items() if at <= now]
        for name in due:
            del self.refresh_at[name]
        return due

    def look(self, now: int) -> list[Effect]:
        """Look for channels that fell silent, and forget old departures."""
        if self._look_at is None or now < self._look_at:
            return []
        self._look_at = now + LOOK_US
        effects: list[Effect] = []
        for channel in self.tuner.silent(now):
            effects += self.lose(channel, now)
        self.copy.prune(now - self._settings.tombstone_us, self._settings.tombstones_max)
        return effects

    def deadline(self) -> int | None:
        """When to look, to refresh or to ask for what is missing."""
        return earliest(
            self._look_at, self.tuner.deadline(), min(self.refresh_at.values(), default=None)
        )

    def complete(self, name: str) -> bool:
        """Whether a subscription has its current set, as far as the client knows."""
        return (
            name in self.queries
            and name not in self.listings
            and name not in self.refresh_at
            and not any(self.pending.values())
        )

    def _learn(
        self,
        epoch: int,
        state: State,
        now: int,
        as_of: int,
        *,
        listed: bool = False,
        paged: bool = False,
    ) -> list[Effect]:
        """Take a state, which was its context's present one as of an update (0: of its own).

        `listed`: it came by unicast, so it counts to every listing; `paged`: it is on a page that
        some listing waits for.
        """
        if self.copy.forgotten(epoch, state) and (epoch, as_of) < self.copy.floor:
            # It may be older than a departure that is forgotten: refresh, to be sure. A batch is
            # repeated as it was, so this may come by unicast, too.
            self.refresh(self.queries, now)
        effects = self.copy.learn(epoch, state, now, as_of, listed=listed or paged)
        if listed:
            for name, listing in self.listings.items():
                if not listing.carousels:
                    listing.listed.add(state.vid)
                    effects += self.copy.show_known(name, (state.vid,))
        most = self._settings.tombstones_max
        if self.copy.tombstones > 2 * most:  # a shared group carries others' traffic
            self.copy.prune(now - self._settings.tombstone_us, most)
        return effects

    def _open(self, opening: Opening, source: str, now: int) -> list[Effect]:
        name = opening.subscription
        if name not in self.copy.views:
            return []
        effects = self._end_listing(name)
        replaced = self.queries.get(name, ())
        self.queries[name] = opening.queries
        effects += self._unlink(replaced)
        self.refresh_at.pop(name, None)
        # A stream that is no longer listed stays until its last message, or until it falls silent:
        # it may still carry something that another subscription needs.
        for announce in opening.streams:
            effects += self.tuner.link(announce, source, now, mine=True)
        carousels = {}
        for query, band in zip(opening.queries, opening.carousel, strict=False):
            effects += self.tuner.tune(band, 0, source, now)
            carousels[query] = Coverage(band.channel)
        self.listings[name] = Listing(opening.as_of, opening.count, set(), carousels)
        return effects

    def _close(self, epoch: int, name: str, as_of: int, complete: bool) -> list[Effect]:
        listing = self.listings.get(name)
        if listing is None or listing.as_of != as_of or listing.carousels:
            return []
        del self.listings[name]
        effects = self.copy.retain(name, listing.listed, (epoch, as_of))
        return [*effects, Current(name, listing.count, complete)]

    def _page(self, epoch: int, page: Page, channel: str, now: int) -> list[Effect]:
        """Count a page to the listings that ride on its carousel.

        Not to a listing on a later carousel of the same query: this page may be older.
        """
        carousels = (listing.carousels.get(page.query) for listing in self.listings.values())
        paged = any(one is not None and one.channel == channel for one in carousels)
        effects: list[Effect] = []
        for state in page.states:
            effects += self._learn(epoch, state, now, page.as_of, paged=paged)
        for name, listing in list(self.listings.items()):
            coverage = listing.carousels.get(page.query)
            if coverage is None or coverage.whole or coverage.channel != channel:
                continue
            vids = [state.vid for state in page.states]
            listing.listed.update(vids)
            effects += self.copy.show_known(name, vids)
            if page.as_of >= listing.as_of:  # else contexts came after the cycle's vids were sorted
                coverage.add(page)
            if all(coverage.whole for coverage in listing.carousels.values()):
                effects += self.copy.retain(name, listing.listed, (epoch, listing.as_of))
                effects += self._end_listing(name)
                effects.append(Current(name, listing.count, True))
        return effects

    def _end_listing(self, name: str) -> list[Effect]:
        """End a listing, and stop listening to carousels that no other listing needs."""
        listing = self.listings.pop(name, None)
        if listing is None:
            return []
        needed = {
            coverage.channel
            for other in self.listings.values()
            for coverage in other.carousels.values()
        }
        effects: list[Effect] = []
        for coverage in listing.carousels.values():
            if coverage.channel not in needed:
                effects += self.tuner.drop(coverage.channel)
        return effects

    def _forget_pending(self) -> None:
        streams = self.tuner.streams
        for stream in [number for number in self.pending if number and number not in streams]:
            del self.pending[stream]

    def _note_pending(self, parcel: Parcel, channel: str) -> None:
        """Note the pending count of each stream the client is on (0 for unicast)."""
        self._forget_pending()
        if not parcel.pending or not self._limit:
            return
        stream, position = (0, 0) if not channel else self.tuner.band_above(channel)
        if position < len(parcel.pending):
            self.pending[stream] = parcel.pending[position]
