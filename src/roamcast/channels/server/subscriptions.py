"""Subscriptions: what a subscriber gets at once, and how it leaves again (AMS, subscriptions).

The answer lists the queries that the subscription was taken apart into, the channels they ride on,
and the current set as of one update. A few contexts come by unicast at once. Many come by a
carousel, or in pages to a client that can ride on none. A client with a limit gets as many as an
answer holds, with the count of all. `LocalQueries` are the subscriptions of this process itself.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from roamcast.channels.reliable.sender import ChannelSender
from roamcast.channels.server.current_sets import CurrentSets
from roamcast.channels.server.desk import ClientState, Desk, Subscription
from roamcast.channels.server.messages import (
    Announce,
    Band,
    Closing,
    Last,
    Opening,
    Page,
    Parcel,
    State,
    payload_of,
)
from roamcast.channels.server.outbox import Pager
from roamcast.channels.server.queries import LocalUpdate, QueryRecord, check_room, take_apart
from roamcast.channels.server.settings import Mode
from roamcast.channels.server.standing import Standing
from roamcast.channels.server.view_class import ViewClass
from roamcast.channels.spread.dissemination import Dissemination
from roamcast.errors import InputError, LimitError
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter, recent
from roamcast.model.machine import Effect
from roamcast.model.parts import Timer
from roamcast.model.records import ChannelStep, QueryStep

if TYPE_CHECKING:
    from roamcast.channels.server.map_server import MapServer


class CarouselDue(Timer, frozen=True):
    """A carousel's next page may leave."""

    query: int


class Carousel:
    """One query's current set, carried round on a channel of its own (0063).

    Pages go out in the order of vids, at a bounded pace, while somebody needs them. A client that
    has received all vids from where it came in has the whole set, because changes come by the
    query's own channel as always. What enters during a cycle is inserted where it belongs, because
    a client that rides on later learns of it in no other way.
    """

    def __init__(self, view: ViewClass, record: QueryRecord, sender: ChannelSender) -> None:
        self.view = view
        self.record = record
        self.sender = sender
        self.cycle = 0
        self.riders: dict[str, int] = {}
        self.bytes = 0
        self._vids: list[str] = []
        self._at = 0
        self._low = ""
        record.fresh = []

    def ride(self, client: str) -> Band:
        """Let a client on; it has everything when the next cycle ends, or before."""
        self.riders[client] = self.cycle
        return Band(0, self.sender.channel, self.sender.incarnation, self.sender.last + 1)

    def turn(self, desk: Desk, current: CurrentSets) -> int | None:
        """Send the next page; give the microseconds until the following one, None at the end."""
        if self._at >= len(self._vids) and self._low == "":
            self.cycle += 1
            self._vids = sorted(current.candidates(self.record.filter))
            self._at = 0
        else:
            self._insert_entered()
        self.record.fresh = []
        page: list[State] = []
        size = 0
        while self._at < len(self._vids) and size < desk.settings.page_bytes_max:
            state = current.state_of(self.view, self.record, self._vids[self._at])
            self._at += 1
            if state is not None:
                page.append(state)
                size += len(state.body) + len(state.vid) + 16
        ends = self._at >= len(self._vids)
        high = "" if ends else self._vids[self._at - 1]
        parcel = Parcel(
            desk.epoch,
            (Page(self.record.number, self.view.as_of(), self._low, high, tuple(page)),),
        )
        self._low = high
        payload = payload_of(parcel)
        self.bytes += len(payload)
        desk.out.append(self.sender.publish(payload, desk.now))
        if ends:
            self.riders = {
                name: cycle for name, cycle in self.riders.items() if cycle >= self.cycle
            }
            if not self.riders:
                return None
        return max(1_000, len(payload) * 1_000_000 // desk.settings.carousel_bytes_per_s)

    def _insert_entered(self) -> None:
        """Insert the vids that entered since the last page into the rest of this cycle."""
        for vid in self.record.fresh or ():
            if vid > self._low:
                at = bisect_left(self._vids, vid, self._at)
                if at == len(self._vids) or self._vids[at] != vid:
                    self._vids.insert(at, vid)

    def end(self, desk: Desk) -> list[Effect]:
        """Give the channel's last message."""
        self.record.fresh = None
        payload = payload_of(Parcel(desk.epoch, (Last(),)))
        return [self.sender.publish(payload, desk.now)]


class Subscriptions:
    """The subscriptions of all clients, and the carousels that carry large current sets."""

    def __init__(self, desk: Desk, current: CurrentSets, dissemination: Dissemination) -> None:
        self.records = 0
        """How many queries there are, over all view classes."""
        self.standing = Standing(desk.settings.standing_steps_max)
        self.charge: Callable[[str, Filter, int], None] = lambda _client, _wanted, _shares: None
        """Charges a client for a current set, a relay for its share; raises what is too dear."""
        self.carousels: dict[int, Carousel] = {}
        self._desk = desk
        self._current = current
        self._dissemination = dissemination
        desk.turn_page = self._turn_page
        desk.timers.handle(CarouselDue, self._carousel_due)

    def subscribe(self, client: ClientState, name: str, text: str) -> None:
        """Place a subscription and list its current set."""
        settings = self._desk.settings
        wanted = recent.read(text)
        if name in client.subscriptions:
            self.withdraw(client, name)
        if len(client.subscriptions) >= self.most(client):
            raise LimitError(f"a client has at most {self.most(client)} subscriptions")
        times = settings.relay_clients_max if client.relay else 1
        self.standing.check(client.name, wanted, times)
        self.charge(client.name, wanted, times)
        view = self._dissemination.view_class(client.view_class)
        parts = take_apart(wanted, settings.parts_max)
        check_room(self.records, len(parts), settings.queries_max)
        client.outbox.reopen()
        queries = []
        for part in parts:
            record = view.table.known(part.text) or self.add_query(view, part)
            queries.append(record.number)
            self._dissemination.enlist(view, record, client)
            if record.clients[client.name] == 1:
                self._note(record, client.name, "placed", remote=client.name in record.remote)
        self.standing.add(client.name, wanted)
        client.subscriptions[name] = Subscription(wanted, tuple(queries))
        self._list(client, view, name)

    def add_query(self, view: ViewClass, wanted: Filter) -> QueryRecord:
        """Make the record of a query that nobody has placed yet; the caller checks the room."""
        number = self._dissemination.take_number()
        found = self._current.satisfying(view, wanted, number)
        self.records += 1
        return view.table.add(number, wanted, found)

    def most(self, client: ClientState) -> int:
        """How many subscriptions a client may have: a relay those of its clients."""
        settings = self._desk.settings
        return settings.subscriptions_max * (settings.relay_clients_max if client.relay else 1)

    def withdraw(self, client: ClientState, name: str) -> None:
        """End a subscription; a query ends with its last subscriber."""
        subscription = client.subscriptions.pop(name, None)
        if subscription is None:
            return
        self.standing.give_back(client.name, subscription.filter)
        client.outbox.pagers.pop(name, None)
        view = self._dissemination.classes[client.view_class]
        for query in subscription.queries:
            record = view.table.records[query]
            remote = client.name in record.remote
            self._dissemination.discharge(view, record, client.name)
            if client.name not in record.clients:
                self._note(record, client.name, "withdrawn", remote=remote)
            if not record.clients:
                self._end_carousel(query, "nobody subscribes any more")
            if query not in view.table.records:
                self.records -= 1

    def _note(self, record: QueryRecord, client: str, step: str, *, remote: bool) -> None:
        """Record who subscribes to what: channel plans are made from it (0045)."""
        desk, text = self._desk, record.filter.text
        after = str(desk.number)
        desk.out.append(
            QueryStep(
                record.number, step, client, after, desk.epoch, text, record.view_class, remote
            )
        )

    def withdraw_all(self, client: ClientState) -> None:
        """End all subscriptions of a client."""
        for name in list(client.subscriptions):
            self.withdraw(client, name)

    def refresh(self, client: ClientState, name: str) -> None:
        """List a current set again for a client that has lost something for good."""
        if name not in client.subscriptions:
            raise InputError(f"there is no subscription {name!r}")
        shares = self._desk.settings.relay_clients_max if client.relay else 1
        self.charge(client.name, client.subscriptions[name].filter, shares)
        self._list(client, self._dissemination.classes[client.view_class], name)

    def _list(self, client: ClientState, view: ViewClass, name: str) -> None:
        """Answer with the current set as of now."""
        desk, settings, as_of = self._desk, self._desk.settings, view.as_of()
        records = [view.table.records[query] for query in client.subscriptions[name].queries]
        counts = [record.count for record in records]
        count, total = max(counts), sum(counts)
        bands: tuple[Band, ...] = ()
        complete = self.whole(client, name)
        states: list[State] = []
        large = count > settings.page_contexts_max or total > 2 * settings.page_contexts_max
        if large:
            bands = self._ride(client, view, records)
        # What fits into an answer may still fill too much of a queue that holds other answers.
        paged = not bands and client.ledger is None and (large or total > client.outbox.room // 4)
        if not bands and not paged:
            states = self._states(view, records)
            count = max(count, len(states))
            complete = complete and not large
        streams = tuple(
            stream.announcement(record.number)
            for record in records
            for stream in view.streams_to(client.name, record)
        )
        apart: tuple[Announce, ...] = ()
        if client.ledger is not None:
            # One by one: together they may exceed what a limit ever allows in one batch.
            apart, streams = _within(streams, client.ledger.limit_bytes), ()
        queries = client.subscriptions[name].queries
        desk.deliver(client, Opening(name, as_of, count, queries, streams, bands))
        for announce in apart:
            desk.deliver(client, announce, listing=name)
        client.outbox.pagers.pop(name, None)
        if paged:
            client.outbox.list_later(Pager(name, as_of, queries, complete))
            reason = f"{total} for a client that rides on no carousel"
            desk.out.append(ChannelStep("", "listed in pages", 0, desk.number, reason))
        elif not bands:
            for state in states:
                desk.deliver(client, state, listing=name)
            desk.deliver(client, Closing(name, as_of, complete))

    def _turn_page(
        self, view_class: str, pager: Pager, room_bytes: int, states_max: int
    ) -> tuple[list[State], bool]:
        """Give the next states of a current set that is listed in pages."""
        view = self._dissemination.classes[view_class]
        state_of = partial(self._current.state_of_any, view, pager.queries)
        return pager.page(self._current.map.seats, state_of, room_bytes, states_max)

    def whole(self, client: ClientState, name: str) -> bool:
        """Whether everything that a subscription could list is known; a relay may lack some."""
        del client, name
        return True

    def _states(self, view: ViewClass, records: list[QueryRecord]) -> list[State]:
        """Give the states of contexts that satisfy any of the records, up to a page of each."""
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
                    state = self._current.state_of(view, record, vid)
                    assert state is not None
                    states[vid] = state
        return list(states.values())

    def _members(self, view: ViewClass, record: QueryRecord, most: int) -> list[str]:
        """Look up the members of a query that had too many to be listed in its record."""
        found = (
            vid
            for vid in self._current.candidates(record.filter)
            if self._current.state_of(view, record, vid) is not None
        )
        return list(islice(found, most))

    def _ride(
        self, client: ClientState, view: ViewClass, records: list[QueryRecord]
    ) -> tuple[Band, ...]:
        """Let a client ride on the carousels of its queries; () if it cannot listen to them."""
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
                self._desk.timers.set(CarouselDue(record.number), self._desk.now + 1)
            bands.append(carousel.ride(client.name))
        return tuple(bands)

    def _carousel_due(self, timer: CarouselDue) -> None:
        """Send the next page of a carousel."""
        wait_us = self.carousels[timer.query].turn(self._desk, self._current)
        if wait_us is None:
            self._end_carousel(timer.query, "everybody has it")
        else:
            self._desk.timers.set(timer, self._desk.now + wait_us)

    def _end_carousel(self, query: int, reason: str) -> None:
        carousel = self.carousels.pop(query, None)
        if carousel is None:
            return
        self._desk.timers.cancel(CarouselDue(query))
        self._desk.out += carousel.end(self._desk)
        carousel.view.rest(carousel.sender.channel, reason)


class LocalQueries:
    """The queries that this process itself has placed at its map server, for its last hop.

    0076: sessions (WebSocket, SSE) end in the server's own process, where nothing is lost or
    reordered, so they need no batches, receipts or channels. A query is placed in the view class of
    whoever looks; it has a current set, and then a `LocalUpdate` for every update that touches it.
    """

    def __init__(self, server: "MapServer") -> None:
        self._server = server
        self.standing = server.subscriptions.standing

    def place(self, view_class: str, wanted: Filter, alone: str = "") -> int:
        """Place a query; give its number, the same for equal filters.

        `alone`: the viewer of the class who placed it, if rules may name them.
        """
        server = self._server
        view = server.dissemination.view_class(view_class)
        record = view.table.known(wanted.text)
        if record is None:
            check_room(server.subscriptions.records, 1, server.settings.queries_max)
            record = server.subscriptions.add_query(view, wanted)
        view.local[record.number] = view.local.get(record.number, 0) + 1
        if alone:
            server.contexts.apart.watch(view, alone, wanted, record.number)
        return record.number

    def drop(self, view_class: str, number: int, alone: str = "") -> None:
        """End a query that was placed; one that was placed several times has others left."""
        view = self._server.dissemination.classes[view_class]
        if alone:
            self._server.contexts.apart.unwatch(view, alone, number)
        view.local[number] -= 1
        if view.local[number]:
            return
        del view.local[number]
        if self._server.dissemination.let_go(view, view.table.records[number]):
            self._server.subscriptions.records -= 1

    def at(self, now: int) -> None:
        """Look at the map at this time from now on: rules may show otherwise than before."""
        self._server.desk.now = now

    def as_of(self, view_class: str) -> int:
        """Give a view class's number for the present."""
        return self._server.dissemination.classes[view_class].as_of()

    def listing(self, view_class: str, number: int, alone: str = "") -> list[str]:
        """Name the contexts that satisfy a query now, for a viewer of a class, by vid."""
        server = self._server
        # What is on its way to sessions counts as told.
        assert not any(type(effect) is LocalUpdate for effect in server.desk.out)
        view = server.dissemination.classes[view_class]
        record = view.table.records[number]
        unnoted = server.contexts.notes.unnoted.get((number, ""))
        if record.members is not None:
            vids = sorted(record.members)
        elif unnoted is not None and len(unnoted.contexts) == record.count:
            vids = list(unnoted.contexts)
        else:
            vids = [seen.vid for seen in server.current.found(view, record.filter)]
        return server.contexts.apart.listed_for(view, number, vids, alone) if alone else vids

    def state(self, view_class: str, number: int, vid: str, alone: str = "") -> State | None:
        """Give a context's present state if it satisfies a query, for a viewer of a class."""
        view = self._server.dissemination.classes[view_class]
        return self._server.current.state_of(view, view.table.records[number], vid, alone)

    def decoded(self, view_class: str, state: State, alone: str = "") -> Context | None:
        """Give a state that `state` gave, decoded, if that is at hand."""
        view = self._server.dissemination.classes[view_class]
        return self._server.current.decoded(view, state, alone)

    def apart(self, view_class: str, vid: str) -> list[str]:
        """Name the viewers of a class for whom a context lies apart."""
        contexts = self._server.contexts
        known = contexts.map.contexts.get(vid)
        viewers = [] if known is None else contexts.apart.named.of(known.names)
        return [one.alone for one in viewers if one.view.name == view_class]

    def time_of(self, number: int) -> int:
        """Say when an update was, by its number in a view class."""
        return self._server.desk.started + number

    def current(self, view_class: str, number: int) -> list[State]:
        """Give the state of every context that satisfies a query now, by vid."""
        server = self._server
        # What is on its way to sessions counts as told.
        assert not any(type(effect) is LocalUpdate for effect in server.desk.out)
        view = server.dissemination.classes[view_class]
        record = view.table.records[number]
        vids = record.members
        if vids is None:
            vids = dict.fromkeys(server.current.candidates(record.filter))
        states = (server.current.state_of(view, record, vid) for vid in sorted(vids))
        return [state for state in states if state is not None]


def _within(streams: tuple[Announce, ...], limit_bytes: int) -> tuple[Announce, ...]:
    """Leave out the bands that a client with a limit does not listen to: bytes count."""
    return tuple(
        Announce(
            announce.query,
            announce.stream,
            announce.version,
            tuple(band for band in announce.bands if 0 < band.limit_bytes <= limit_bytes),
        )
        for announce in streams
    )
