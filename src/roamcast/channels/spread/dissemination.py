"""Dissemination: how few transmissions carry an update to everyone (AMS 7 to 12, and 16).

For each view class: the update query set u_q of the context's old and new state. If it recurs and
has a channel, one message; else for each query its channel, or its clients one by one. Clients
beyond the reach of local groups get unicast, or share a few wide-area groups (`Scopes`).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import blake2b

from roamcast.channels.server.desk import ClientState, Desk
from roamcast.channels.server.messages import Announce, Parcel, State, payload_of
from roamcast.channels.server.queries import (
    Matched,
    Matcher,
    QueryChange,
    QueryRecord,
    SharedQueries,
)
from roamcast.channels.server.settings import MapSettings, Mode
from roamcast.channels.server.view_class import BandsDue, QuerySetEntry, RestOver, ViewClass
from roamcast.channels.spread.streams import TOP, Stream
from roamcast.model.contexts import path_within
from roamcast.model.records import ChannelStep, QuerySet


class Dissemination:
    """The view classes, and the choice of channels for each update in each of them."""

    def __init__(self, desk: Desk, make_matcher: Callable[[], Matcher]) -> None:
        self.classes: dict[str, ViewClass] = {}
        self._desk = desk
        self.shared = SharedQueries(make_matcher())
        self._next_number = 0
        self._forgotten = 0
        self._scopes = Scopes(desk)
        desk.as_of = self._as_of
        desk.timers.handle(RestOver, self._rest_over)
        desk.timers.handle(BandsDue, self._bands_due)
        settings = desk.settings
        # A set of one query has that query's channel, as long as queries get channels at all.
        self._set_min = 2 if settings.query_channels else 1
        if settings.mode is not Mode.MANY or not settings.query_sets:
            self._set_min = settings.queries_max + 1

    def take_number(self) -> int:
        """Give a number for a query, a stream or a channel's incarnation."""
        self._next_number += 1
        return self._next_number

    def _as_of(self, view_class: str) -> int:
        known = self.classes.get(view_class)
        return 0 if known is None else known.as_of()

    def view_class(self, name: str) -> ViewClass:
        """Give a view class, made when its first client subscribes."""
        known = self.classes.get(name)
        if known is None:
            known = ViewClass(name, self._desk, self.shared, self.take_number, self._forgotten)
            self.classes[name] = known
            if self._desk.settings.mode is Mode.SINGLE:
                known.single = known.open_stream((), "the single channel")
        return known

    def forget_empty(self, used: Collection[str]) -> list[str]:
        """Forget view classes that hold nothing and are not in use; name them."""
        resting = {use.view_class for use in self._desk.channels.values()}
        gone = [
            name
            for name, view in self.classes.items()
            if view.empty and name not in used and name not in resting
        ]
        for name in gone:
            del self.classes[name]
        self._forgotten += len(gone)
        return gone

    def enlist(self, view: ViewClass, record: QueryRecord, client: ClientState) -> None:
        """Count a subscriber in; the q-th earns the query a channel (AMS 8)."""
        first = client.name not in record.clients
        record.clients[client.name] = record.clients.get(client.name, 0) + 1
        if not first:
            return
        settings = self._desk.settings
        if client.remote or settings.mode is Mode.UNICAST:
            record.remote[client.name] = None
            if client.remote:
                self._scopes.enlist(view, record, client)
            return
        if view.single is not None:
            view.join(view.single, client, record, ())
            return
        joined: list[Stream] = []
        for stream in view.streams_of(record):
            if not view.join(stream, client, record, joined):
                return
            joined.append(stream)
        if not record.stream and settings.query_channels:
            self._earn_channel(view, record, client)

    def _earn_channel(self, view: ViewClass, record: QueryRecord, newcomer: ClientState) -> None:
        settings = self._desk.settings
        if record.local < settings.subscribers_min or settings.mode is not Mode.MANY:
            return
        reason = f"{record.local} subscribers of one query"
        stream = view.open_stream((record.number,), reason)
        if stream is None:
            return
        record.stream = stream
        announce = stream.announcement(record.number)
        for name in record.clients:
            # The newcomer's answer lists the channel; remote clients do not listen to it.
            if name != newcomer.name and name not in record.remote:
                self._desk.deliver(self._desk.clients[name], announce)

    @property
    def bands(self) -> int:
        """How many channels are below the top: each for the clients of one bandwidth limit."""
        streams = (one for view in self.classes.values() for one in view.streams.values())
        return sum(band.limit_bytes != TOP for stream in streams for band in stream.bands)

    def discharge(self, view: ViewClass, record: QueryRecord, client: str) -> None:
        """Count a subscriber out; with few left the channel ends, with none the query."""
        record.clients[client] -= 1
        if record.clients[client]:
            return
        del record.clients[client]
        remote = client in record.remote
        self._scopes.discharge(view, record, client)
        record.remote.pop(client, None)
        if not remote:
            for stream in view.streams_of(record):
                view.leave(stream, client)
        if record.stream and record.local < max(1, self._desk.settings.subscribers_keep):
            reason = f"{record.local} subscribers are left"
            view.close_stream(record.stream, reason)
            record.stream = None
        self.let_go(view, record)

    def let_go(self, view: ViewClass, record: QueryRecord) -> bool:
        """Forget a query that neither a client nor this process subscribes to any more."""
        if record.clients or record.number in view.local:
            return False
        view.remove(record)
        return True

    def spread(self, view: ViewClass, update: QueryChange, state: State) -> None:
        """Send a context's new state to everyone who subscribed to it."""
        payload = payload_of(Parcel(self._desk.epoch, (state,)))
        queries, records = update.queries, update.records
        if view.single is not None:
            self._publish(view, view.single, state, payload)
            self._unicast(records, state, by_channel=True)
        elif len(queries) >= self._set_min:
            self._spread_set(view, queries, records, state, payload)
        else:
            self._spread_queries(view, records, state, payload, None)
        if view.wide:
            for stream in self._scopes.streams(records):
                self._publish(view, stream, state, payload)

    def _spread_set(
        self,
        view: ViewClass,
        queries: Matched,
        records: Sequence[QueryRecord],
        state: State,
        payload: bytes,
    ) -> None:
        """Take the paper's steps 2 to 4d."""
        entry = view.note_set(queries)
        if entry.stream:
            self._publish(view, entry.stream, state, payload)
            self._unicast(records, state, by_channel=True)
        else:
            earned = None
            if entry.count >= self._desk.settings.subscribers_min and view.pool.free:
                earned = self._earn_set_channel(view, records, entry)
            self._spread_queries(view, records, state, payload, earned)
        if self._desk.journal:
            self._explain_set(entry)

    def _explain_set(self, entry: QuerySetEntry) -> None:
        channel = ""
        if entry.stream:
            channel = entry.stream.bands[-1].sender.channel
        if not entry.name:
            entry.name = blake2b(repr(entry.queries).encode(), digest_size=8).hexdigest()
        self._desk.out.append(
            QuerySet(str(self._desk.number), entry.name, len(entry.queries), entry.count, channel)
        )

    def _earn_set_channel(
        self, view: ViewClass, records: Sequence[QueryRecord], entry: QuerySetEntry
    ) -> Stream | None:
        """Give a set its channel at the q-th recurrence, if that saves transmissions (0065)."""
        transmissions = sum(1 if record.stream else record.local for record in records)
        if transmissions < 2:
            return None
        most = self._desk.settings.streams_per_query_max - 1
        if any(len(record.set_streams) >= most for record in records):
            return None
        return view.open_set(entry, f"recurred {entry.count} times")

    def _spread_queries(
        self,
        view: ViewClass,
        records: Sequence[QueryRecord],
        state: State,
        payload: bytes,
        earned: Stream | None,
    ) -> None:
        """Send an update query by query; a set's channel just earned is announced with it."""
        desk = self._desk
        unicast = False
        for record in records:
            stream = record.stream
            if stream is None or record.remote:
                unicast = True
            if stream is None:
                continue
            if earned is not None:
                self._publish_announcing(view, stream, state, earned.announcement(record.number))
            elif stream.shared is not None:
                desk.out.append(stream.shared.publish(payload, desk.now))
            else:
                self._place(view, stream, state)
        if earned is not None:
            for record in records:
                if not record.stream:
                    announce = earned.announcement(record.number)
                    for name in record.clients:
                        if name not in record.remote:
                            desk.deliver(desk.clients[name], announce)
        if unicast:
            self._unicast(records, state, by_channel=False)

    def _unicast(self, records: Sequence[QueryRecord], state: State, *, by_channel: bool) -> None:
        """Send to clients one by one: to all of queries without a channel, and to remote ones.

        `by_channel`: one channel has reached everyone who is not remote. Clients on a wide-area
        group are left out. A client that gets the update by another query's channel is not: it may
        be leaving that one now.
        """
        reached: set[str] = set()
        for record in records:
            names = record.remote if by_channel or record.stream else record.clients
            for name in names:
                if name not in reached and name not in record.riders:
                    reached.add(name)
                    self._desk.deliver(self._desk.clients[name], state)

    def _publish(self, view: ViewClass, stream: Stream, state: State, payload: bytes) -> None:
        if stream.shared is not None:
            self._desk.out.append(stream.shared.publish(payload, self._desk.now))
        else:
            self._place(view, stream, state)

    def _place(self, view: ViewClass, stream: Stream, state: State) -> None:
        """Send an update in a stream's bands, now or as soon as its listeners' limits allow."""
        self._desk.out += stream.place(state, self._desk.now)
        if stream.lacking:
            self._flush_later(view, stream)

    def _publish_announcing(
        self, view: ViewClass, stream: Stream, state: State, announce: Announce
    ) -> None:
        """Send an update and an announcement, in one message where nobody has a limit."""
        desk = self._desk
        if not stream.limited:
            payload = payload_of(Parcel(desk.epoch, (state, announce)))
            self._publish(view, stream, state, payload)
            return
        sent = stream.announce((announce,), desk.now)
        if sent is None:
            for name in stream.listeners:
                desk.deliver(desk.clients[name], announce)
        else:
            desk.out += sent
        self._publish(view, stream, state, b"")

    def _flush_later(self, view: ViewClass, stream: Stream) -> None:
        at = self._desk.now + self._desk.settings.flush_us
        self._desk.timers.sooner(BandsDue(view.name, stream.number), at)

    def _bands_due(self, timer: BandsDue) -> None:
        """Send what lower bands lack, and come again while there is something."""
        view = self.classes[timer.view_class]
        stream = view.streams[timer.stream]
        self._desk.out += stream.flush(self._desk.now)
        if stream.lacking:
            self._flush_later(view, stream)

    def _rest_over(self, timer: RestOver) -> None:
        use = self._desk.channels[timer.channel]
        self.classes[use.view_class].give_back(timer.channel)


def is_remote(site: str, settings: MapSettings) -> bool:
    """Whether a client at this site is beyond the reach of local groups."""
    return bool(settings.local_scope) and not path_within(site, settings.local_scope)


def foreign_pairs(listeners: Collection[str], queries: int, subscribers: Collection[str]) -> int:
    """Count the pairs (client, query it did not subscribe to) that a query adds to a group.

    The group's listeners get the new query, and its subscribers get the queries already there.
    """
    both = sum(name in listeners for name in subscribers)
    return len(listeners) - both + (len(subscribers) - both) * queries


class Scopes:
    """Wide-area groups (AMS, "Local-Scope Versus Internet Multicast Groups").

    Local groups serve local clients. One or two remote clients of a query get unicast; where more
    of them subscribe to the same, their query rides on one of a small fixed number of wide-area
    groups. 0066: when none is free, queries share one, and its listeners drop what they did not
    subscribe to.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def enlist(self, view: ViewClass, record: QueryRecord, client: ClientState) -> None:
        """Count a remote subscriber in; enough of them earn their query a place on a group."""
        settings = self._desk.settings
        if not settings.wide_groups_max or settings.mode is Mode.UNICAST:
            return
        if record.wide is not None:
            self._join(view, record, record.wide, client)
            return
        remote = [name for name in record.remote if self._desk.clients[name].remote]
        if len(remote) < settings.wide_subscribers_min:
            return
        stream = self._group_for(view, record, remote)
        if stream is None:
            return
        view.wide.setdefault(stream.number, {})[record.number] = None
        record.wide = stream
        for name in remote:
            self._join(view, record, stream, self._desk.clients[name])
        for name in record.riders:
            if name != client.name:  # the newcomer's answer lists the group
                self._desk.deliver(self._desk.clients[name], stream.announcement(record.number))
        if not record.riders:  # all have limits for which no group is free
            self._unshare(view, record, stream)

    def _join(
        self, view: ViewClass, record: QueryRecord, stream: Stream, client: ClientState
    ) -> None:
        if view.join(stream, client, record, ()):
            record.riders[client.name] = None
            stream.count_audience(self._desk.now)

    def _group_for(
        self, view: ViewClass, record: QueryRecord, subscribers: Collection[str]
    ) -> Stream | None:
        """Take a free group, else the one where listeners get the least for others."""
        reason = f"{len(subscribers)} remote subscribers of one query"
        stream = view.open_stream((), reason, wide=True)
        if stream is not None or not view.wide:
            return stream
        _, _, number = min(
            (
                foreign_pairs(view.streams[number].listeners, len(queries), subscribers),
                len(queries),
                number,
            )
            for number, queries in view.wide.items()
        )
        stream = view.streams[number]
        sender = stream.bands[-1].sender
        reason = f"{reason}, and no wide-area group is free"
        self._desk.out.append(
            ChannelStep(sender.channel, "shared", sender.incarnation, record.number, reason)
        )
        return stream

    def discharge(self, view: ViewClass, record: QueryRecord, client: str) -> None:
        """Count a remote subscriber out; the last takes its query off the group.

        Not before, even if few are left: they would have to be told to leave the group, and until
        their receipts came nobody knew whether bytes on the group still count for them.
        """
        stream = record.wide
        if stream is None or client not in record.riders:
            return
        del record.riders[client]
        view.leave(stream, client)
        if not record.riders:
            self._unshare(view, record, stream)

    def _unshare(self, view: ViewClass, record: QueryRecord, stream: Stream) -> None:
        record.wide = None
        queries = view.wide[stream.number]
        del queries[record.number]
        if not queries:
            del view.wide[stream.number]
            view.close_stream(stream, "no query rides on it any more")

    def streams(self, records: Iterable[QueryRecord]) -> list[Stream]:
        """Give the groups an update goes to: each once, however many of its queries ride there."""
        found = {record.wide.number: record.wide for record in records if record.wide}
        return list(found.values())
