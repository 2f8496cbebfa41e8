"""What does a subscriber get at once, and how does it leave again? (AMS, subscriptions.)

The answer lists the queries it was taken apart into, the channels they ride on, and the current set
as of one update: a few objects by unicast at once, many by a carousel, or in pages to a client that
can ride on none; to a client with a limit as many as an answer holds, with the count of all.
"""

from functools import lru_cache, partial
from itertools import islice
from typing import Final

from roamcast.channels.server.carousel import Carousel
from roamcast.channels.server.contexts import MapContexts
from roamcast.channels.server.desk import ClientState, Desk, Subscription
from roamcast.channels.server.messages import Announce, Band, Closing, Opening, State
from roamcast.channels.server.paging import Pager
from roamcast.channels.server.queries import QueryRecord, check_room, take_apart
from roamcast.channels.server.settings import Mode
from roamcast.channels.server.view_class import ViewClass
from roamcast.channels.spread.dissemination import Dissemination
from roamcast.errors import InputError, LimitError
from roamcast.model.filters import Filter
from roamcast.model.records import ChannelStep, QueryStep

FILTERS_REMEMBERED: Final = 1_024


class Subscriptions:
    """Everybody's subscriptions, and the carousels that carry large current sets."""

    def __init__(self, desk: Desk, contexts: MapContexts, dissemination: Dissemination) -> None:
        self.records = 0
        self.carousels: dict[int, Carousel] = {}
        self._desk = desk
        self._contexts = contexts
        self._dissemination = dissemination
        desk.turn_page = self._turn_page

    def subscribe(self, client: ClientState, name: str, text: str) -> None:
        """Place a standing query and list its current set."""
        settings = self._desk.settings
        wanted = _parsed(text)
        if name in client.subscriptions:
            self.withdraw(client, name)
        if len(client.subscriptions) >= self.most(client):
            raise LimitError(f"a client has at most {self.most(client)} subscriptions")
        view = self._dissemination.view_class(client.view_class)
        parts = take_apart(wanted, settings.parts_max)
        check_room(self.records, len(parts), settings.queries_max)
        client.outbox.reopen()
        queries = []
        for part in parts:
            record = view.table.known(part.text)
            if record is None:
                number = self._dissemination.take_number()
                found = self._contexts.satisfying(view, part, number)
                record = view.table.add(number, part, found)
                self.records += 1
            queries.append(record.number)
            self._dissemination.enlist(view, record, client)
            if record.clients[client.name] == 1:
                self._note(record, client.name, "placed", remote=client.name in record.remote)
        client.subscriptions[name] = Subscription(wanted, tuple(queries))
        self._list(client, view, name)

    def most(self, client: ClientState) -> int:
        """How many subscriptions a client may have: a relay those of its clients."""
        settings = self._desk.settings
        return settings.subscriptions_max * (settings.relay_clients_max if client.relay else 1)

    def withdraw(self, client: ClientState, name: str) -> None:
        """End a standing query; the last client's leaving ends its record."""
        subscription = client.subscriptions.pop(name, None)
        if subscription is None:
            return
        client.outbox.pagers.pop(name, None)
        view = self._dissemination.classes[client.view_class]
        for query in subscription.queries:
            record = view.table.records[query]
            remote = client.name in record.remote
            self._dissemination.discharge(view, record, client.name)
            if client.name not in record.clients:
                self._note(record, client.name, "withdrawn", remote=remote)
            if not record.clients:
                self._end_carousel(query, "nobody asks any more")
            if query not in view.table.records:
                self.records -= 1

    def _note(self, record: QueryRecord, client: str, step: str, *, remote: bool) -> None:
        """Write down who asks for what: plans are made of it."""
        desk = self._desk
        said = (str(desk.number), desk.epoch, record.filter.text, record.view_class, remote)
        desk.out.append(QueryStep(record.number, step, client, *said))

    def withdraw_all(self, client: ClientState) -> None:
        """End everything a client asked for."""
        for name in list(client.subscriptions):
            self.withdraw(client, name)

    def refresh(self, client: ClientState, name: str) -> None:
        """List a current set again for a client that has lost something for good."""
        if name not in client.subscriptions:
            raise InputError(f"there is no subscription {name!r}")
        self._list(client, self._dissemination.classes[client.view_class], name)

    def _list(self, client: ClientState, view: ViewClass, name: str) -> None:
        """Answer with the current set as of now."""
        desk, settings = self._desk, self._desk.settings
        records = [view.table.records[query] for query in client.subscriptions[name].queries]
        count, total = max(one.count for one in records), sum(one.count for one in records)
        bands: tuple[Band, ...] = ()
        complete = self.whole(client, name)
        states: list[State] = []
        large = count > settings.page_contexts_max or total > 2 * settings.page_contexts_max
        if large:
            bands = self._ride(client, view, records)
        # What fits into an answer may still be more than waits well beside other answers.
        paged = not bands and client.ledger is None and (large or total > client.outbox.room // 4)
        if not bands and not paged:
            states = self._states(view, records)
            count = max(count, len(states))
            complete = complete and not large
        streams = tuple(
            stream.announcement(record.number)
            for record in records
            for stream in view.heard_by(client.name, record)
        )
        apart: tuple[Announce, ...] = ()
        if client.ledger is not None:
            # One by one: together they may be more than a client with a limit can ever be sent.
            apart, streams = _within(streams, client.ledger.limit_bytes), ()
        queries = client.subscriptions[name].queries
        desk.deliver(client, Opening(name, desk.number, count, queries, streams, bands))
        for announce in apart:
            desk.deliver(client, announce, listing=name)
        client.outbox.pagers.pop(name, None)
        if paged:
            client.outbox.list_later(Pager(name, desk.number, queries, complete))
            reason = f"{total} for {client.name}, who rides on no carousel"
            desk.out.append(ChannelStep("", "listed in pages", 0, desk.number, reason))
        elif not bands:
            for state in states:
                desk.deliver(client, state, listing=name)
            desk.deliver(client, Closing(name, desk.number, complete))

    def _turn_page(
        self, view_class: str, pager: Pager, room_bytes: int, states_max: int
    ) -> tuple[list[State], bool]:
        """Give the next states of a current set that is listed in pages."""
        view = self._dissemination.classes[view_class]
        state_of = partial(self._contexts.state_of_any, view, pager.queries)
        return pager.page(self._contexts.map.seats, state_of, room_bytes, states_max)

    def whole(self, client: ClientState, name: str) -> bool:
        """Whether we know all that a subscription could list; a relay may not."""
        del client, name
        return True

    def _states(self, view: ViewClass, records: list[QueryRecord]) -> list[State]:
        """Give the states of the objects that satisfy any of the records, up to a page of each."""
        states: dict[str, State] = {}
        for record in records:
            if record.members is None and record.count <= self._desk.settings.page_contexts_max:
                record.members = dict.fromkeys(self._members(view, record, record.count))
            vids = record.members
            if vids is None:
                page = self._desk.settings.page_contexts_max
                vids = dict.fromkeys(self._members(view, record, page))
            for vid in vids:
                if vid not in states:
                    state = self._contexts.state_of(view, record, vid)
                    assert state is not None
                    states[vid] = state
        return list(states.values())

    def _members(self, view: ViewClass, record: QueryRecord, most: int) -> list[str]:
        """Look for the members of a query that had too many to be kept."""
        there = (
            vid
            for vid in self._contexts.candidates(record.filter)
            if self._contexts.state_of(view, record, vid) is not None
        )
        return list(islice(there, most))

    def _ride(
        self, client: ClientState, view: ViewClass, records: list[QueryRecord]
    ) -> tuple[Band, ...]:
        """Let a client ride on the carousels of its queries; none if it cannot listen to one."""
        if client.ledger is not None or client.remote or self._desk.settings.mode is Mode.UNICAST:
            return ()
        bands = []
        for record in records:
            carousel = self.carousels.get(record.number)
            if carousel is None:
                sender = view.open_sender(None)
                if sender is None:
                    return ()
                carousel = self.carousels[record.number] = Carousel(view, record, sender)
                self._desk.timers.set(("carousel", str(record.number)), self._desk.now + 1)
            bands.append(carousel.ride(client.name))
        return tuple(bands)

    def turn(self, query: int) -> None:
        """Send the next page of a carousel."""
        carousel = self.carousels[query]
        wait = carousel.turn(
            self._desk,
            lambda: self._contexts.candidates(carousel.record.filter),
            self._contexts.state_of,
        )
        if wait is None:
            self._end_carousel(query, "everybody has it")
        else:
            self._desk.timers.set(("carousel", str(query)), self._desk.now + wait)

    def _end_carousel(self, query: int, reason: str) -> None:
        carousel = self.carousels.pop(query, None)
        if carousel is None:
            return
        self._desk.timers.cancel(("carousel", str(query)))
        self._desk.out += carousel.end(self._desk)
        carousel.view.rest(carousel.sender.channel, reason)


@lru_cache(FILTERS_REMEMBERED)
def _parsed(text: str) -> Filter:
    """Read a filter; a crowd asks for the same ones."""
    return Filter.parse(text)


def _within(streams: tuple[Announce, ...], limit_bytes: int) -> tuple[Announce, ...]:
    """Leave out the bands a client with a limit does not hear: bytes count."""
    return tuple(
        Announce(
            one.query,
            one.stream,
            one.version,
            tuple(band for band in one.bands if 0 < band.limit_bytes <= limit_bytes),
        )
        for one in streams
    )
