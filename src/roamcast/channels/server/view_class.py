"""View classes: clients that may see the same share queries, history, channels and streams.

The history H counts which sets of queries updates satisfy together (AMS, recurring update query
sets), because a set that recurs is worth a channel.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from roamcast.channels.reliable.sender import ChannelSender
from roamcast.channels.server.desk import ChannelDue, ChannelUse, ClientState, Desk
from roamcast.channels.server.queries import Matched, QueryRecord, QueryTable, SharedQueries
from roamcast.channels.spread.streams import TOP, Pool, Stream
from roamcast.model.parts import Timer
from roamcast.model.records import ChannelStep


class RestOver(Timer, frozen=True):
    """A channel that was given back has answered heals for long enough."""

    channel: str


class BandsDue(Timer, frozen=True):
    """A stream may have room for what its lower bands lack."""

    view_class: str
    stream: int


class QuerySetEntry(msgspec.Struct):
    """An element of H: a set in ascending order, how often it recurred, its stream."""

    queries: Matched
    count: int = 0
    stream: Stream | None = None
    name: str = ""
    """Its hash in the journal, made when it is first needed."""


class History:
    """H: at most m update query sets; the least recently used is discarded.

    A set that has recurred q times earns a channel: steps 1 to 4d of the paper, with 4d read as
    "count at least q and no channel yet". With q = 1, or when no channel was free at that moment,
    the paper's "exactly q" falls into no case.
    """

    def __init__(self, sets_max: int) -> None:
        assert sets_max > 0
        self._sets_max = sets_max
        self._entries: OrderedDict[Matched, QuerySetEntry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, queries: Matched) -> tuple[QuerySetEntry, QuerySetEntry | None]:
        """Count an occurrence (steps 2 to 4a); give the element, and what it pushed out."""
        entry = self._entries.get(queries)
        discarded = None
        if entry is None:
            entry = self._entries[queries] = QuerySetEntry(queries)
            if len(self._entries) > self._sets_max:
                _, discarded = self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(queries)
        entry.count += 1
        return entry, discarded

    def forget(self, queries: Matched) -> None:
        """Drop a set that cannot recur, because one of its queries is gone."""
        del self._entries[queries]

    def clear(self) -> None:
        """Drop everything: nobody subscribes any more."""
        self._entries.clear()


class ViewClass:
    """The queries of one view class and the channels that serve them."""

    def __init__(
        self,
        name: str,
        desk: Desk,
        shared: SharedQueries,
        numbers: Callable[[], int],
        life: int = 0,
    ) -> None:
        """`life` tells classes of one name apart, because a channel's name is used once (0069)."""
        settings = desk.settings
        self.name = name
        self.opened = desk.now - desk.started
        """The number of every state that has not changed since the class was opened."""
        self.number = self.opened
        """The highest number given out in this class."""
        self.table = QueryTable(name, shared, 2 * settings.page_contexts_max)
        self.history = History(settings.history_max)
        marked = f"{name}\n##{life}" if life else name
        self.pool = Pool(marked, settings.channels_max, desk.epoch)
        self.wide_pool = Pool(marked, settings.wide_groups_max, desk.epoch, "wide")
        self.wide: dict[int, dict[int, None]] = {}
        """Wide-area stream → the queries that ride on it."""
        self.streams: dict[int, Stream] = {}
        self.single: Stream | None = None
        self.local: dict[int, int] = {}
        """Queries placed in this process → how often (`LocalQueries`)."""
        self._desk = desk
        self._numbers = numbers

    def as_of(self) -> int:
        """Give a number for the present: no earlier update has a higher one, all later ones do.

        It is a time like all numbers, so that a client which comes from another class can compare.
        """
        self.number = max(self.number, self._desk.now - self._desk.started)
        return self.number

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held of what, and the bound of each."""
        settings = self._desk.settings
        lacking = max((len(stream.lacking) for stream in self.streams.values()), default=0)
        return {
            "channels": (self.pool.used, self.pool.channels_max),
            "wide-area groups": (self.wide_pool.used, self.wide_pool.channels_max),
            "wide-area streams": (len(self.wide), self.wide_pool.channels_max),
            "streams": (len(self.streams), self.pool.channels_max + self.wide_pool.channels_max),
            "history": (len(self.history), settings.history_max),
            "local queries": (len(self.local), settings.queries_max),
            "states held back by bands": (lacking, settings.contexts_max),
            # Who has left is nobody's listener: what is charged to it would be lost.
            "listeners of a stream": (
                max((len(stream.listeners) for stream in self.streams.values()), default=0),
                len(self._desk.clients),
            ),
            "limited listeners": (
                max((len(stream.limited) for stream in self.streams.values()), default=0),
                len(self._desk.clients),
            ),
            "clients of a query": (
                max((len(record.clients) for record in self.table.records.values()), default=0),
                len(self._desk.clients),
            ),
            **self.table.occupancy(),
        }

    def open_sender(self, stream: Stream | None) -> ChannelSender | None:
        """Take a channel from the stream's pool; None when all are in use."""
        wide = stream is not None and stream.wide
        channel = (self.wide_pool if wide else self.pool).take()
        if channel is None:
            return None
        desk = self._desk
        # Incarnations must grow from epoch to epoch. An epoch is a time in microseconds, and no
        # server opens channels faster than those pass.
        sender = ChannelSender(
            channel,
            incarnation=desk.epoch + self._numbers(),
            now=desk.now,
            settings=desk.settings.channel,
            scope="" if wide else desk.settings.local_scope,
        )
        use = ChannelUse(sender, self.name, ChannelDue(channel), stream)
        desk.channels[channel] = use
        desk.watch_channel(use)
        return sender

    def rest(self, channel: str, reason: str, *, limited: bool = False) -> None:
        """Let a channel answer heals for a while before it is free for another use."""
        use = self._desk.channels[channel]
        use.lingers = True
        use.muted = limited
        self._desk.timers.set(RestOver(channel), self._desk.now + self._desk.settings.linger_us)
        self._desk.out.append(
            ChannelStep(channel, "given back", use.sender.incarnation, use.sender.last, reason)
        )

    def give_back(self, channel: str) -> None:
        """Free a channel that has rested, so that another may be opened."""
        use = self._desk.channels.pop(channel)
        self._desk.timers.cancel(use.timer)
        stream = use.stream
        wide = stream is not None and stream.wide
        (self.wide_pool if wide else self.pool).give_back()

    def open_stream(self, queries: Matched, reason: str, *, wide: bool = False) -> Stream | None:
        """Make a stream with a top band for the local clients of these queries; None if all
        channels are in use."""
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
        """Count a client in; a limit that no listener has yet gets a band of its own.

        False if no channel is free for that: then the client gets this query by unicast, and leaves
        the streams it has joined for it.
        """
        if not stream.join(client.name, client.ledger):
            return True
        assert client.ledger is not None
        sender = self.open_sender(stream)
        if sender is None:
            stream.leave(client.name)
            for other in joined:
                self._send_lacking(other, client.name)
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
        """Count a client out; bands whose limit no listener has any more are given back."""
        if not stream.leave(client):
            return
        for band in stream.idle_bands():
            self._desk.out += stream.remove_band(band, self._desk.now)
            self.rest(band.sender.channel, "nobody has this limit any more", limited=True)

    def close_stream(self, stream: Stream, reason: str) -> None:
        """End all channels of a stream."""
        del self.streams[stream.number]
        for name in stream.limited:
            self._send_lacking(stream, name)
        self._desk.timers.cancel(BandsDue(self.name, stream.number))
        for band in list(stream.bands):
            self._desk.out += stream.remove_band(band, self._desk.now)
            self.rest(band.sender.channel, reason, limited=band.limit_bytes < TOP)

    def _send_lacking(self, stream: Stream, name: str) -> None:
        """Send a client by unicast what the bands still lack for it."""
        for state in stream.lacked_by(name):
            self._desk.deliver(self._desk.clients[name], state)

    def streams_to(self, client: str, record: QueryRecord) -> list[Stream]:
        """Give the streams by which a client gets updates of a query; none if by unicast."""
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
        """Give a recurring set a channel; None if all are in use."""
        stream = self.open_stream(entry.queries, reason)
        if stream is not None:
            entry.stream = stream
            for query in entry.queries:
                self.table.records[query].set_streams[stream.number] = stream
        return stream

    def remove(self, record: QueryRecord) -> None:
        """Forget a query, and the channels of recurring sets with it.

        Such sets without a channel stay in the history until they are the least recently used: an
        index to find them by would cost every update.
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
        """Whether nobody of this class subscribes to anything."""
        return not self.table.records
