"""What does a server keep for clients that may see the same? Queries, history, pool, streams."""

from collections.abc import Callable, Iterable

from roamcast.channels.reliable.sender import ChannelSender
from roamcast.channels.server.desk import ChannelUse, ClientState, Desk
from roamcast.channels.server.map import Matched
from roamcast.channels.server.queries import Matcher, QueryRecord, QueryTable
from roamcast.channels.spread.pool import Pool
from roamcast.channels.spread.recurring import History, QuerySetEntry
from roamcast.channels.spread.streams import TOP, Stream
from roamcast.model.records import ChannelStep


class ViewClass:
    """The queries of one view class and the channels that serve them."""

    def __init__(
        self,
        name: str,
        desk: Desk,
        matcher: Matcher,
        numbers: Callable[[], int],
        life: int = 0,
    ) -> None:
        """`life` tells classes of one name apart, because no channel's name is used again."""
        settings = desk.settings
        self.name = name
        self.table = QueryTable(name, matcher, 2 * settings.page_contexts_max)
        self.history = History(settings.history_max)
        marked = f"{name}\n##{life}" if life else name
        self.pool = Pool(marked, settings.channels_max, desk.epoch)
        self.wide_pool = Pool(marked, settings.wide_groups_max, desk.epoch, "wide")
        self.wide: dict[int, dict[int, None]] = {}
        """Wide-area stream → the queries that ride on it."""
        self.streams: dict[int, Stream] = {}
        self.single: Stream | None = None
        self.local: dict[int, int] = {}
        """Queries watched in this process → by how many (`channels.server.local`)."""
        self._desk = desk
        self._numbers = numbers

    def open_sender(self, stream: Stream | None) -> ChannelSender | None:
        """Take a channel from the stream's pool; None when all are in use."""
        wide = stream is not None and stream.wide
        channel = (self.wide_pool if wide else self.pool).take()
        if channel is None:
            return None
        desk = self._desk
        # An epoch is a moment in microseconds: no server opens channels faster than those pass.
        sender = ChannelSender(
            channel,
            incarnation=desk.epoch + self._numbers(),
            now=desk.now,
            settings=desk.settings.channel,
            scope="" if wide else desk.settings.local_scope,
        )
        desk.channels[channel] = ChannelUse(sender, self.name, stream)
        desk.watch_channel(channel)
        return sender

    def rest(self, channel: str, reason: str, *, limited: bool = False) -> None:
        """Let a channel answer heals for a while before its name is given back."""
        use = self._desk.channels[channel]
        use.lingers = True
        use.muted = limited
        self._desk.timers.set(("rest", channel), self._desk.now + self._desk.settings.linger_us)
        self._desk.out.append(
            ChannelStep(channel, "given back", use.sender.incarnation, use.sender.last, reason)
        )

    def give_back(self, channel: str) -> None:
        """The rest is over: another channel may be opened."""
        self._desk.timers.cancel(("channel", channel))
        stream = self._desk.channels.pop(channel).stream
        wide = stream is not None and stream.wide
        (self.wide_pool if wide else self.pool).give_back()

    def open_stream(self, queries: Matched, reason: str, *, wide: bool = False) -> Stream | None:
        """Make a stream with a top band, for the local clients of these queries."""
        stream = Stream(self._numbers(), self.name, queries, self._desk.epoch, wide=wide)
        sender = self.open_sender(stream)
        if sender is None:
            return None
        stream.add_band(TOP, sender, self._desk.now)
        self.streams[stream.number] = stream
        for query in queries:
            record = self.table.records[query]
            others = self.streams_of(record)
            for name in record.clients:
                if name not in record.remote:
                    self.join(stream, self._desk.clients[name], record, others)
        stream.count_audience(self._desk.now)
        self._desk.out.append(
            ChannelStep(sender.channel, "assigned", sender.incarnation, 0, reason)
        )
        return stream

    def join(
        self, stream: Stream, client: ClientState, record: QueryRecord, joined: Iterable[Stream]
    ) -> bool:
        """Count a client in; a limit nobody had gets a band.

        When no channel is free for it, the client is served alone for this query and leaves the
        streams it has joined for it: then this is False.
        """
        if not stream.join(client.name, client.ledger):
            return True
        assert client.ledger is not None
        sender = self.open_sender(stream)
        if sender is None:
            stream.leave(client.name)
            for other in joined:
                self._tell_lacking(other, client.name)
                self.leave(other, client.name)
            record.remote[client.name] = None
            return False
        effects, announce = stream.add_band(client.ledger.limit_bytes, sender, self._desk.now)
        self._desk.out += effects
        if announce is not None:
            for name in stream.listeners:
                if name != client.name:
                    self._desk.deliver(self._desk.clients[name], announce)
        return True

    def leave(self, stream: Stream, client: str) -> None:
        """Count a client out; bands whose limit nobody has any more are given back."""
        if not stream.leave(client):
            return
        for band in stream.idle_bands():
            self._desk.out += stream.remove_band(band, self._desk.now)
            self.rest(band.sender.channel, "nobody has this limit any more", limited=True)

    def close_stream(self, stream: Stream, reason: str) -> None:
        """End all channels of a stream."""
        del self.streams[stream.number]
        for name in stream.limited:
            self._tell_lacking(stream, name)
        self._desk.timers.cancel(("flush", f"{self.name}/{stream.number}"))
        for band in list(stream.bands):
            self._desk.out += stream.remove_band(band, self._desk.now)
            self.rest(band.sender.channel, reason, limited=band.limit_bytes < TOP)

    def _tell_lacking(self, stream: Stream, name: str) -> None:
        """What the bands have not told a client yet it is told alone."""
        for state in stream.lacked_by(name):
            self._desk.deliver(self._desk.clients[name], state)

    def heard_by(self, client: str, record: QueryRecord) -> list[Stream]:
        """Give the streams by which a client hears of a query; none if it is told alone."""
        if client not in record.remote:
            return self.streams_of(record)
        return [record.wide] if record.wide and client in record.riders else []

    def streams_of(self, record: QueryRecord) -> list[Stream]:
        """Give every local stream that carries updates of a query: its own, and its sets'."""
        if self.single is not None:
            return [self.single]
        own = [record.stream] if record.stream else []
        return [*own, *record.set_streams.values()]

    def note_set(self, queries: Matched) -> QuerySetEntry:
        """Count an update query set in the history; what it pushes out gives its channel back."""
        entry, discarded = self.history.note(queries)
        if discarded is not None and discarded.stream:
            self._close_set(discarded.stream, "least recently used of the history")
        return entry

    def open_set(self, entry: QuerySetEntry, reason: str) -> Stream | None:
        """Give a recurring set a channel; None when all are in use."""
        stream = self.open_stream(entry.queries, reason)
        if stream is not None:
            entry.stream = stream
            for query in entry.queries:
                self.table.records[query].set_streams[stream.number] = stream
        return stream

    def remove(self, record: QueryRecord) -> None:
        """Forget a query; no set with it can come again.

        Sets without a channel stay in the history until they are the least recently used: to look
        for them would cost every update that notes one.
        """
        for stream in list(record.set_streams.values()):
            self.history.forget(stream.queries)
            self._close_set(stream, "a query of the set is gone")
        self.table.remove(record)
        if not self.table.records:
            self.history.clear()

    def _close_set(self, stream: Stream, reason: str) -> None:
        for query in stream.queries:
            del self.table.records[query].set_streams[stream.number]
        self.close_stream(stream, reason)

    @property
    def empty(self) -> bool:
        """Whether nobody of this class asks for anything."""
        return not self.table.records
