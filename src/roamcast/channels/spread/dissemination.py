"""How few transmissions tell everyone of an update? (AMS, disseminating active map information.)

For each view class: the update query set u_q of the object's old and new state; if it recurs and
has a channel, one message; else for each query its channel or its clients one by one.
"""

from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b

from roamcast.channels.server.desk import ClientState, Desk
from roamcast.channels.server.map import Matched
from roamcast.channels.server.messages import Announce, Parcel, State, payload_of
from roamcast.channels.server.queries import Matcher, QueryChange, QueryRecord
from roamcast.channels.server.settings import Mode
from roamcast.channels.server.view_class import ViewClass
from roamcast.channels.spread.recurring import QuerySetEntry
from roamcast.channels.spread.scopes import Scopes
from roamcast.channels.spread.streams import Stream
from roamcast.model.records import QuerySet


class Dissemination:
    """The view classes and the way of each update through them."""

    def __init__(self, desk: Desk, make_matcher: Callable[[], Matcher]) -> None:
        self.classes: dict[str, ViewClass] = {}
        self._desk = desk
        self._make_matcher = make_matcher
        self._next_number = 0
        self._forgotten = 0
        self._scopes = Scopes(desk)
        settings = desk.settings
        # A set of one query is that query's own business, as long as queries get channels.
        self._set_min = 2 if settings.query_channels else 1
        if settings.mode is not Mode.MANY or not settings.query_sets:
            self._set_min = settings.queries_max + 1

    def take_number(self) -> int:
        """Give a number for a query, a stream or a channel's incarnation."""
        self._next_number += 1
        return self._next_number

    def view_class(self, name: str) -> ViewClass:
        """Give a view class, made when its first client asks."""
        known = self.classes.get(name)
        if known is None:
            known = ViewClass(
                name, self._desk, self._make_matcher(), self.take_number, self._forgotten
            )
            self.classes[name] = known
            if self._desk.settings.mode is Mode.SINGLE:
                known.single = known.open_stream((), "the single channel")
        return known

    def forget_empty(self, used: Collection[str]) -> list[str]:
        """Forget view classes of which nothing is left, but for those in use; name them."""
        held = {use.view_class for use in self._desk.channels.values()}
        gone = [
            name
            for name, view in self.classes.items()
            if view.empty and name not in used and name not in held
        ]
        for name in gone:
            del self.classes[name]
        self._forgotten += len(gone)
        return gone

    def enlist(self, view: ViewClass, record: QueryRecord, client: ClientState) -> None:
        """Count a subscriber in; the q-th one earns the query a channel (AMS 8)."""
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
            # The newcomer's answer lists the channel; a client alone needs none.
            if name != newcomer.name and name not in record.remote:
                self._desk.deliver(self._desk.clients[name], announce)

    def discharge(self, view: ViewClass, record: QueryRecord, client: str) -> None:
        """Count a subscriber out; with few left the channel is given back, with none the query."""
        record.clients[client] -= 1
        if record.clients[client]:
            return
        del record.clients[client]
        alone = client in record.remote
        self._scopes.discharge(view, record, client)
        record.remote.pop(client, None)
        if not alone:
            for stream in view.streams_of(record):
                view.leave(stream, client)
        if record.stream and record.local < max(1, self._desk.settings.subscribers_keep):
            reason = f"{record.local} subscribers are left"
            view.close_stream(record.stream, reason)
            record.stream = None
        self.let_go(view, record)

    def let_go(self, view: ViewClass, record: QueryRecord) -> bool:
        """Forget a query that neither a client nor this process asks for any more."""
        if record.clients or record.number in view.local:
            return False
        view.remove(record)
        return True

    def spread(self, view: ViewClass, update: QueryChange, state: State) -> None:
        """Tell everyone who asked of one object's new state."""
        payload = payload_of(Parcel(self._desk.epoch, (state,)))
        queries, records = update.queries, update.records
        if view.single is not None:
            self._publish(view, view.single, state, payload)
            self._tell_alone(records, state, by_channel=True)
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
            self._tell_alone(records, state, by_channel=True)
        else:
            earned = None
            if entry.count >= self._desk.settings.subscribers_min and view.pool.free:
                earned = self._earn_set_channel(view, records, entry)
            self._spread_queries(view, records, state, payload, earned)
        if self._desk.journal:
            self._explain_set(entry, state)

    def _explain_set(self, entry: QuerySetEntry, state: State) -> None:
        channel = ""
        if entry.stream:
            channel = entry.stream.bands[-1].sender.channel
        if not entry.name:
            entry.name = blake2b(repr(entry.queries).encode(), digest_size=8).hexdigest()
        self._desk.out.append(
            QuerySet(str(state.number), entry.name, len(entry.queries), entry.count, channel)
        )

    def _earn_set_channel(
        self, view: ViewClass, records: Sequence[QueryRecord], entry: QuerySetEntry
    ) -> Stream | None:
        """Give a set its channel at the q-th recurrence, if one transmission saves others."""
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
        """The multiple-messages-per-query algorithm; a channel just earned is announced by it."""
        desk = self._desk
        alone = False
        for record in records:
            stream = record.stream
            if stream is None or record.remote:
                alone = True
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
        if alone:
            self._tell_alone(records, state, by_channel=False)

    def _tell_alone(
        self, records: Sequence[QueryRecord], state: State, *, by_channel: bool
    ) -> None:
        """Tell clients one by one: all of queries without a channel, and remote ones anyway,
        unless they ride on a wide-area group.

        `by_channel`: one channel has reached everyone who is not remote. A client that hears the
        update by another query's channel is told all the same: it may be leaving that one now.
        """
        told: set[str] = set()
        for record in records:
            alone = record.remote if by_channel or record.stream else record.clients
            for name in alone:
                if name not in told and name not in record.riders:
                    told.add(name)
                    self._desk.deliver(self._desk.clients[name], state)

    def _publish(self, view: ViewClass, stream: Stream, state: State, payload: bytes) -> None:
        if stream.shared is not None:
            self._desk.out.append(stream.shared.publish(payload, self._desk.now))
        else:
            self._place(view, stream, state)

    def _place(self, view: ViewClass, stream: Stream, state: State) -> None:
        """Send an update where some have limits: in its bands, now or as soon as they allow."""
        self._desk.out += stream.place(state, self._desk.now)
        if stream.lacking:
            self._flush_later(view, stream)

    def _publish_announcing(
        self, view: ViewClass, stream: Stream, state: State, announce: Announce
    ) -> None:
        """Send an update together with the announcement, or both apart where bands decide."""
        desk = self._desk
        if not stream.limited:
            payload = payload_of(Parcel(desk.epoch, (state, announce)))
            self._publish(view, stream, state, payload)
            return
        told = stream.tell((announce,), desk.now)
        if told is None:
            for name in stream.listeners:
                desk.deliver(desk.clients[name], announce)
        else:
            desk.out += told
        self._publish(view, stream, state, b"")

    def _flush_later(self, view: ViewClass, stream: Stream) -> None:
        at = self._desk.now + self._desk.settings.flush_us
        self._desk.timers.sooner(("flush", f"{view.name}/{stream.number}"), at)

    def flush(self, key: str) -> None:
        """Send what lower bands lack, and come again while there is something."""
        name, _, number = key.rpartition("/")
        view = self.classes[name]
        stream = view.streams[int(number)]
        self._desk.out += stream.flush(self._desk.now)
        if stream.lacking:
            self._flush_later(view, stream)
