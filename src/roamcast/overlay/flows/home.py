"""A home: it reads all logs for its consumers, and gives each its events with their intervals.

One reader serves all consumers that are up to date. One that is behind, because it comes with a
vector of its own, has a reader of its own until it has caught up.
"""

from collections.abc import Iterable
from typing import Final

from roamcast.errors import InputError, LimitError
from roamcast.matching.filter_set import FilterSet
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, earliest
from roamcast.model.parts import Occupancy, Timers
from roamcast.model.wire import NAME_LENGTH_MAX
from roamcast.overlay.flows.buffer import Buffer
from roamcast.overlay.flows.events import (
    EventsDelivered,
    EventsLost,
    EventsStanding,
    VirtualStanding,
)
from roamcast.overlay.flows.messages import (
    CONTENT_BYTES_MAX,
    FILTERS_BYTES_MAX,
    FILTERS_MAX,
    Event,
    Events,
    Flow,
    FlowFetch,
    FlowPage,
)
from roamcast.overlay.flows.reader import LogInterval, LogReader
from roamcast.overlay.flows.relay import VIEW
from roamcast.overlay.flows.settings import FlowSettings
from roamcast.overlay.flows.vector import ORIGINS_MAX, Position, Vector, pairs
from roamcast.overlay.tables.wants import Wants

HOME: Final = 0
"""The reader of all consumers that are up to date."""

MATCHED_MAX: Final = 64
"""Contexts whose consumers are remembered."""

TOO_SHORT: Final = "the log no longer reaches back so far"
TOO_FAR: Final = "the vector lies beyond the end of the log"
NEW_LOG: Final = "the origin has begun a new log"


class _Consumer:
    """One consumer, its filter, and how far it was told."""

    def __init__(self, name: str, wanted: Filter, asked: Vector) -> None:
        self.name = name
        self.wanted = wanted
        self.asked = asked
        self.stands = False
        self.vector: dict[str, Position] = {}
        self.reader: int | None = None
        """Its own reader while it is behind."""
        self.buffer: Buffer | None = None
        """What is held for it while it is not there."""


class Home:
    """The consumers of one node."""

    def __init__(self, node: str, wants: Wants, settings: FlowSettings) -> None:
        self.node = node
        self.consumers: dict[str, _Consumer] = {}
        self.waiting: dict[str, None] = {}
        """Consumers whose routes do not stand yet."""
        self.ahead: dict[str, None] = {}
        """Consumers that have come further than is known here: a wave says if logs reach so far."""
        self._wants = wants
        self._settings = settings
        self._set = FilterSet()
        self._matched: dict[bytes, list[str]] = {}
        """Contexts that were matched a moment ago → who wants them."""
        self._given_up: dict[str, None] = {}
        """Origins that events were held for in vain; nobody waits for them until they speak."""
        self._readers: dict[int, LogReader] = {HOME: self._reader()}
        self._owners: dict[int, str] = {}
        self._number = HOME
        self._texts: dict[str, dict[str, None]] = {}
        """Filters that stand → the consumers that have them."""
        self._fetching: Timers[tuple[int, str]] = Timers()
        self._asked: dict[tuple[int, str], Position] = {}
        """Fetches under way → the position after which they read."""
        self._untold: dict[str, None] = {}
        """Consumers who have not been told as far as their reader has come."""

    def _reader(self) -> LogReader:
        settings = self._settings
        return LogReader(
            bytes_max=settings.reader_bytes_max, hold_us=settings.hold_us, given_up=self._given_up
        )

    @property
    def vector(self) -> dict[str, Position]:
        """How far consumers that are up to date have come."""
        return self._readers[HOME].vector

    @property
    def idle(self) -> bool:
        """Whether nothing is held, fetched or waited for."""
        readers = self._readers.values()
        waits = self.waiting or self.ahead or self._asked
        return not waits and not any(one.bytes for one in readers)

    def behind(self) -> list[str]:
        """Name the consumers that have a reader of their own."""
        return list(self._owners.values())

    # --- consumers

    def wants(self, event: Event) -> bool:
        """Return whether some consumer here wants an event."""
        return bool(self._matches(event))

    def _matches(self, event: Event) -> list[str]:
        """Name the consumers that want an event; asked twice of most of them, soon after."""
        found = self._matched.get(event.body)
        if found is None:
            if len(self._matched) >= MATCHED_MAX:
                self._matched.clear()
            found = self._matched[event.body] = self._set.match(event.context)
        return found

    def subscribe(
        self, name: str, wanted: Filter, vector: Vector, buffered: bool, now: int
    ) -> list[Effect]:
        """Take a consumer; it stands at once if its filter does already."""
        if len(vector) > ORIGINS_MAX:
            raise LimitError(f"a vector has at most {ORIGINS_MAX} origins")
        if not 0 < len(name) <= NAME_LENGTH_MAX:
            raise InputError(f"a consumer's name has 1 to {NAME_LENGTH_MAX} characters")
        consumers_max = self._settings.consumers_max
        old = self.consumers.get(name)
        if old is None and len(self.consumers) >= consumers_max:
            raise LimitError(f"a node has at most {consumers_max} consumers of events")
        if old is not None and old.stands and old.wanted == wanted:
            if buffered:
                self._buffer(old)
                return [VirtualStanding(name, pairs(old.vector))]
            if old.buffer is not None and old.buffer.holds(vector):
                return self._wake(old, vector, now)
        standing = wanted.text in self._texts
        if old is not None:
            del self.consumers[name]
            self._forget(old)
        self._wants.subscribe(name, VIEW, wanted)
        consumer = self.consumers[name] = _Consumer(name, wanted, dict(vector))
        if buffered:
            self._buffer(consumer)
        if standing:
            effects = self._stand(consumer, self.vector, {})
            self._look_ahead(consumer)
            return effects
        self.waiting[name] = None
        return []

    def _buffer(self, consumer: _Consumer) -> None:
        """Hold what comes for a consumer that is not there."""
        if consumer.buffer is None:
            settings = self._settings
            consumer.buffer = Buffer(
                consumer.vector, bytes_max=settings.buffer_bytes_max, age_us=settings.buffer_age_us
            )

    def _wake(self, consumer: _Consumer, vector: Vector, now: int) -> list[Effect]:
        """Give a consumer that has come what was held for it: no gap (JIT 3.1)."""
        assert consumer.buffer is not None
        held, start = consumer.buffer.deliveries(), consumer.buffer.start
        consumer.buffer = None
        before, consumer.vector = consumer.vector, {**start, **vector}
        effects: list[Effect] = [EventsStanding(consumer.name, pairs(consumer.vector))]
        for one in held:
            after = consumer.vector[one.origin]
            if one.upto > after:
                rest = LogInterval(start[one.origin], one.upto, one.events).beyond(after)
                effects += self._tell(consumer, one.origin, one.upto, rest.events, now)
        self._untold[consumer.name] = None
        if any(at > before.get(origin, at) for origin, at in vector.items()):
            # Its old home had come further than this one: read on from there.
            for origin, at in before.items():
                if consumer.vector[origin] < at:
                    effects += self._hand(consumer, origin, at, (), now)
            self._end_reader(consumer)
            self._own_reader(consumer, self.vector)
            self._look_ahead(consumer)
        return effects

    def _look_ahead(self, consumer: _Consumer) -> None:
        """Note whether a consumer claims more than is known of logs here."""
        streams = self._readers[HOME].streams
        vector = consumer.vector.items()
        ahead = any(origin in streams and at > streams[origin].known for origin, at in vector)
        if ahead:
            self.ahead[consumer.name] = None
        else:
            self.ahead.pop(consumer.name, None)

    def look_ahead(self) -> bool:
        """Return whether somebody has come further than is known by now."""
        for name in [*self.ahead]:
            self._look_ahead(self.consumers[name])
        return bool(self.ahead)

    def unsubscribe(self, name: str) -> bool:
        """Forget a consumer; return whether there was one."""
        consumer = self.consumers.pop(name, None)
        if consumer is None:
            return False
        self._forget(consumer)
        if not self.consumers:
            self._readers = {HOME: self._reader()}
            self._fetching, self._asked = Timers(), {}
        return True

    def _forget(self, consumer: _Consumer) -> None:
        name, text = consumer.name, consumer.wanted.text
        self._wants.unsubscribe(name)
        self._end_reader(consumer)
        self.waiting.pop(name, None)
        self.ahead.pop(name, None)
        self._untold.pop(name, None)
        if consumer.stands:
            self._set.remove(name)
            self._matched.clear()
            del self._texts[text][name]
            if not self._texts[text]:
                del self._texts[text]

    # --- standing

    def doubt(self, now: int) -> None:
        """Trust no flow until a new wave was answered, and wait for no answer on an old way."""
        self._readers[HOME].doubt()
        for key in self._asked:
            self._fetching.sooner(key, now + self._settings.doubt_us)

    def stood(self, start: Vector, known: Vector, names: Iterable[str]) -> list[Effect]:
        """Take a wave's answer: flows behind it count, and these consumers stand.

        `known`: how far logs reach by now; a flow may have come while nobody read it.
        """
        home = self._readers[HOME]
        fresh = [origin for origin in start if origin not in home.streams]
        for origin, position in start.items():
            if origin in fresh:
                home.begin(origin, position)
            if home.streams[origin].proven is None:
                home.prove(origin, position)
            home.reaches(origin, max(position, known.get(origin, position)))
        effects: list[Effect] = []
        for consumer in self.consumers.values():
            if consumer.stands:
                effects += self._widen(consumer, start, fresh)
        for name in names:
            found = self.consumers.get(name)
            if found is not None and not found.stands:
                effects += self._stand(found, start, start)
            elif found is not None and name in self.ahead:
                effects += self._set_right(found, start)
        return effects

    def _set_right(self, consumer: _Consumer, start: Vector) -> list[Effect]:
        """Take a consumer back to where logs end, if a wave that began after it came knows no more.

        What is known after it counts: its start may be older. Of an origin that it did not reach it
        says nothing.
        """
        del self.ahead[consumer.name]
        streams = self._readers[HOME].streams
        ends = {origin: streams[origin].known for origin in start}
        effects = self._cut_back(consumer, consumer.vector, ends)
        if effects:
            self._end_reader(consumer)
            self._own_reader(consumer, self.vector)
        return effects

    @staticmethod
    def _cut_back(consumer: _Consumer, asked: Vector, ends: Vector) -> list[Effect]:
        effects: list[Effect] = []
        for origin, position in ends.items():
            at = asked.get(origin)
            if at is not None and at > position:
                # Nobody who was served honestly can be there.
                consumer.vector[origin] = position
                effects.append(EventsLost(consumer.name, origin, at, position, TOO_FAR))
        return effects

    def _stand(self, consumer: _Consumer, start: Vector, ends: Vector) -> list[Effect]:
        """Serve a consumer; `ends`: where logs end for certain, as a wave says."""
        consumer.stands = True
        self.waiting.pop(consumer.name, None)
        self._set.add(consumer.name, consumer.wanted)
        self._matched.clear()
        self._texts.setdefault(consumer.wanted.text, {})[consumer.name] = None
        consumer.vector = {**start, **consumer.asked}
        effects = self._cut_back(consumer, consumer.asked, ends)
        self._own_reader(consumer, start)
        if consumer.buffer is not None:
            consumer.buffer = None
            self._buffer(consumer)
        return [self._says_standing(consumer), *effects]

    def _says_standing(self, consumer: _Consumer) -> Effect:
        kind = EventsStanding if consumer.buffer is None else VirtualStanding
        return kind(consumer.name, pairs(consumer.vector))

    def _widen(self, consumer: _Consumer, start: Vector, fresh: list[str]) -> list[Effect]:
        """Let a consumer have the events of origins that are new here."""
        served = [origin for origin in fresh if origin in consumer.vector]
        more = {one: at for one, at in start.items() if one not in consumer.vector}
        consumer.vector |= more
        if consumer.buffer is not None:
            consumer.buffer.start |= more
        if consumer.reader is not None:
            reader = self._readers[consumer.reader]
            for origin, position in start.items():
                if origin not in reader.streams:
                    reader.begin(origin, consumer.vector[origin])
                if reader.streams[origin].proven is None:
                    reader.prove(origin, position)
        elif served:  # elsewhere, before: it has to catch up
            self._own_reader(consumer, self.vector)
        return [self._says_standing(consumer)] if more else []

    def _own_reader(self, consumer: _Consumer, start: Vector) -> None:
        self._number += 1
        reader = self._readers[self._number] = self._reader()
        self._owners[self._number] = consumer.name
        consumer.reader = self._number
        for origin, position in consumer.vector.items():
            reader.begin(origin, position)
            if origin in start:
                reader.prove(origin, start[origin])
        for origin, position in self.vector.items():  # the home may have come further meanwhile
            reader.reaches(origin, position)

    def _end_reader(self, consumer: _Consumer) -> None:
        if consumer.reader is None:
            return
        for key in [key for key in self._asked if key[0] == consumer.reader]:
            del self._asked[key]
        for origin in self._readers[consumer.reader].streams:
            self._fetching.cancel((consumer.reader, origin))
        del self._readers[consumer.reader], self._owners[consumer.reader]
        consumer.reader = None

    # --- what comes

    def flow(self, flow: Flow) -> None:
        """Take a flow that came by a link, or from this node's own log."""
        interval = LogInterval(
            Position(flow.epoch, flow.after), Position(flow.epoch, flow.upto), flow.events
        )
        if interval.after == interval.upto:
            self._readers[HOME].reaches(flow.origin, interval.upto)
        else:
            self._readers[HOME].take(flow.origin, interval)

    def page(self, page: FlowPage) -> list[Effect]:
        """Take what an origin's log answered."""
        flow = page.flow
        key = (page.reader, flow.origin)
        reader = self._readers.get(page.reader)
        if reader is None or self._asked.get(key) != page.asked:
            return []
        del self._asked[key]
        self._fetching.cancel(key)
        reader.look[flow.origin] = None
        effects: list[Effect] = []
        after = Position(flow.epoch, flow.after)
        if after > page.asked:
            lost = reader.skip(flow.origin, after)
            if lost is not None:
                reason = TOO_SHORT if lost.after.epoch == flow.epoch else NEW_LOG
                effects = self._lose(page.reader, flow.origin, lost, reason)
        upto = Position(flow.epoch, flow.upto)
        reader.take(flow.origin, LogInterval(after, upto, flow.events), proven=True)
        return effects

    def _lose(self, reader: int, origin: str, lost: LogInterval, reason: str) -> list[Effect]:
        effects: list[Effect] = []
        for consumer in self._read_by(reader):
            if consumer.vector[origin] < lost.upto:
                after, consumer.vector[origin] = consumer.vector[origin], lost.upto
                if consumer.buffer is not None:
                    consumer.buffer.lost(origin, lost.upto)
                else:
                    effects.append(EventsLost(consumer.name, origin, after, lost.upto, reason))
        if reader == HOME:
            for name in self._owners.values():
                own = self._readers[self.consumers[name].reader or HOME]
                own.reaches(origin, lost.upto)
        return effects

    def _read_by(self, reader: int) -> list[_Consumer]:
        if reader != HOME:
            return [self.consumers[self._owners[reader]]]
        return [one for one in self.consumers.values() if one.stands and one.reader is None]

    # --- what goes

    def release(self, now: int) -> list[Effect]:
        """Give consumers what is complete and in order."""
        effects: list[Effect] = []
        for origin, interval in self._readers[HOME].release(now):
            effects += self._deliver(origin, interval, now)
        for number, name in list(self._owners.items()):
            consumer = self.consumers[name]
            for origin, interval in self._readers[number].release(now):
                effects += self._tell(consumer, origin, interval.upto, interval.events, now)
            if self._caught_up(self._readers[number]):
                self._end_reader(consumer)
        return effects

    def _deliver(self, origin: str, interval: LogInterval, now: int) -> list[Effect]:
        events: dict[str, list[tuple[int, Event]]] = {}
        for one in interval.events:
            for name in self._matches(one[1]):
                events.setdefault(name, []).append(one)
        effects: list[Effect] = []
        for consumer in self.consumers.values():
            if not consumer.stands:
                continue
            own = tuple(events.get(consumer.name, ()))
            if consumer.reader is None:
                effects += self._tell(consumer, origin, interval.upto, own, now)
            else:
                part = LogInterval(interval.after, interval.upto, own)
                self._readers[consumer.reader].take(origin, part)
        return effects

    def _tell(
        self, consumer: _Consumer, origin: str, upto: Position, events: Events, now: int
    ) -> list[Effect]:
        if not events:
            self._untold[consumer.name] = None
            return []
        return self._hand(consumer, origin, upto, events, now)

    def _hand(
        self, consumer: _Consumer, origin: str, upto: Position, events: Events, now: int
    ) -> list[Effect]:
        """Give a consumer an interval, or hold it."""
        after, consumer.vector[origin] = consumer.vector[origin], upto
        if consumer.buffer is not None:
            consumer.buffer.add(origin, after, upto, events, now)
            return []
        return [EventsDelivered(consumer.name, origin, after, upto, events)]

    def _caught_up(self, reader: LogReader) -> bool:
        home = self._readers[HOME].streams
        return not reader.bytes and all(
            origin in reader.streams and reader.streams[origin].cursor == stream.cursor
            for origin, stream in home.items()
        )

    def tell_empty(self, now: int) -> list[Effect]:
        """Tell consumers how far they have come although there was nothing for them."""
        effects: list[Effect] = []
        for name in self._untold:
            consumer = self.consumers[name]
            vector = self._readers[consumer.reader or HOME].vector
            for origin, upto in vector.items():
                if consumer.vector[origin] < upto:
                    effects += self._hand(consumer, origin, upto, (), now)
        self._untold.clear()
        return effects

    @property
    def has_untold(self) -> bool:
        """Whether some consumer is to be told of empty intervals."""
        return bool(self._untold)

    # --- what is missing

    def fetches(self, now: int) -> list[FlowFetch]:
        """Give the fetches that are due."""
        for number, reader in self._readers.items():
            for origin in list(reader.look):
                del reader.look[origin]
                key = (number, origin)
                if reader.missing(origin) is None:
                    self._fetching.cancel(key)
                    self._asked.pop(key, None)
                elif key not in self._asked:
                    self._fetching.sooner(key, now + self._patience(number, origin))
        found = []
        for number, origin in list(self._fetching.due(now)):
            missing = self._readers[number].missing(origin)
            if missing is not None:
                self._asked[number, origin] = missing[0]
                self._fetching.set((number, origin), now + self._settings.fetch_us)
                upto = missing[1].number
                filters = self._filters(number)
                found.append(FlowFetch(origin, self.node, number, missing[0], upto, filters))
        return found

    def _patience(self, number: int, origin: str) -> int:
        if number != HOME:
            return 0
        stream = self._readers[HOME].streams[origin]
        if stream.proven is None:
            return self._settings.doubt_us
        # What lies before that counts only from the log: nothing on its way is waited for.
        return 0 if stream.taken < stream.proven else self._settings.patience_us

    def _filters(self, number: int) -> tuple[str, ...]:
        if number != HOME:
            texts = {self.consumers[self._owners[number]].wanted.text}
        else:
            texts = {consumer.wanted.text for consumer in self.consumers.values()}
        if len(texts) > FILTERS_MAX or sum(map(len, texts)) > FILTERS_BYTES_MAX:
            return ()
        return tuple(sorted(texts))

    def deadline(self) -> int | None:
        """When something is to be fetched, or has waited long enough."""
        return earliest(
            self._fetching.deadline(), *(one.deadline() for one in self._readers.values())
        )

    def occupancy(self) -> Occupancy:
        """How much is held of what, and the bound of each."""
        settings = self._settings
        most = max(reader.bytes for reader in self._readers.values())
        buffers = (one.buffer.bytes for one in self.consumers.values() if one.buffer is not None)
        held = max(buffers, default=0)
        # One content more of each origin may wait for what it needs.
        origins = max(len(reader.streams) for reader in self._readers.values())
        bound = settings.reader_bytes_max + (1 + origins) * CONTENT_BYTES_MAX
        return {
            "consumers": (len(self.consumers), settings.consumers_max),
            "bytes of one buffer": (held, settings.buffer_bytes_max),
            "bytes of one reader": (most, bound),
            "origins given up": (len(self._given_up), ORIGINS_MAX),
        }
