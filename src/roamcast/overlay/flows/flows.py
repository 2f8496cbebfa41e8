"""Flows as a part of a broker: origin log, relay, home and waves behind one door."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from roamcast.errors import (
    FilterError,
    InputError,
    LimitError,
    RateError,
    RoamcastError,
    StoreError,
)
from roamcast.model import contexts
from roamcast.model.events import Failed
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Entry, Store, Stored, StoreFailed, Writes
from roamcast.model.parts import Occupancy, Part, Timers
from roamcast.model.records import OverlayStep
from roamcast.model.wire import NAME_LENGTH_MAX, Message
from roamcast.overlay.events import (
    CameByLink,
    CutLink,
    NeighbourDown,
    NeighbourFull,
    NeighbourReady,
    NeighbourUp,
    OverlayOpened,
    SendOnLink,
    TablesTouched,
    TreeChanged,
)
from roamcast.overlay.flows.events import (
    EventPublished,
    EventsDelivered,
    EventsLost,
    EventsStanding,
    ForModulators,
    PublishEvent,
    SubscribeEvents,
    UnsubscribeEvents,
)
from roamcast.overlay.flows.home import Home
from roamcast.overlay.flows.log import PREFIX, OriginLog
from roamcast.overlay.flows.messages import (
    BODY_BYTES_MAX,
    CONTENT_BYTES_MAX,
    DATA_BYTES_MAX,
    FLOWS_MESSAGES,
    NEEDS_MAX,
    REACH_MAX,
    Event,
    Flow,
    FlowChunk,
    FlowEmpty,
    FlowFetch,
    FlowHello,
    FlowMark,
    FlowPage,
    FlowReset,
    FlowStood,
)
from roamcast.overlay.flows.relay import Matching, Relay
from roamcast.overlay.flows.settings import FlowSettings
from roamcast.overlay.flows.vector import ORIGINS_MAX, Position, Vector, pairs
from roamcast.overlay.flows.waves import Waves
from roamcast.overlay.flows.writing import LogWriter
from roamcast.overlay.links.chunks import Assembly
from roamcast.overlay.tables.exchange import Exchange
from roamcast.overlay.tables.messages import TABLES_MESSAGES
from roamcast.overlay.tables.wants import Wants
from roamcast.overlay.topology.topology import NodeTopology

COUNT_MAX: Final = 2**63 - 1
MARK_WAVES: Final = 3
"""A mark that was not answered is forgotten after so many times the patience of its home."""

_READ: Final = msgspec.msgpack.Decoder(Flow | FlowPage)


class _Coming:
    """A flow or a page whose last chunk is not there yet."""

    def __init__(self) -> None:
        self.number = 0
        self.assembly = Assembly(CONTENT_BYTES_MAX)


class Flows(Part):
    """Every event, once and in order."""

    part: ClassVar[str] = "flows"
    inputs: ClassVar = (
        OverlayOpened, NeighbourUp, NeighbourDown, NeighbourFull, NeighbourReady, TreeChanged,
        PublishEvent, SubscribeEvents, UnsubscribeEvents,
    )  # fmt: skip
    # Waves go on once tables stand at the next node, as its receipts of them say.
    carried: ClassVar = {CameByLink: (*FLOWS_MESSAGES, *TABLES_MESSAGES)}
    prefix: ClassVar[str] = PREFIX

    def __init__(
        self,
        topology: NodeTopology,
        exchange: Exchange,
        wants: Wants,
        settings: FlowSettings,
        *,
        alone: int = 0,
    ) -> None:
        """`alone`: the epoch of a broker that is no node of an overlay, so that nobody opens it."""
        self.node = topology.node
        self.log = OriginLog(age_us_max=settings.log_age_us, bytes_max=settings.log_bytes_max)
        self.relay = Relay(Matching(wants), queue_bytes_max=settings.queue_bytes_max)
        self.home = Home(self.node, wants, settings)
        self.waves = Waves(
            self.node,
            self.relay.links,
            stands=lambda link: link in exchange.links and wants.settled(link),
            position=self._own_position,
        )
        self._topology = topology
        self._exchange = exchange
        self._settings = settings
        self._epoch = self.waves.epoch = alone
        self._open = False
        """Whether the log's epoch is on disk."""
        self._modulated: set[str] = set()
        """Consumers whose modulators come first."""
        self._early: list[PublishEvent] = []
        """Publications that came before the log was open."""
        self._writer = LogWriter(self.log, settings.gather_us)
        self._stores: dict[int, Writes] = {}
        """Store tokens → the log's head, or what was trimmed."""
        self._token = 0
        self._coming: dict[str, _Coming] = {}
        self._wave_for: tuple[str, ...] = ()
        """Consumers that stand once this home's wave is answered."""
        self._wave_wanted = False
        self.timers: Timers[str] = Timers()

    def _own_position(self) -> Vector:
        return {self.node: self.log.position} if self._open else {}

    # --- the part

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up the log; a broker on its own opens it at once, for it has no links that would."""
        del now
        self.log.restore(stored)
        return self._begin_log() if self._epoch else ()

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        """Take up what another host of this node had in the log."""
        for entry in entries:
            if entry.value is not None:
                self.log.adopt(entry.key, entry.value)
        self.timers.sooner("release", now)
        return ()

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take what users ask, what the disk answers, and what links bring."""
        match given:
            case CameByLink(node, message):
                if node not in self.relay.links:
                    return ()  # the tree does not run over it, as far as we know (0135)
                effects: list[Effect] = self._came(node, message, now)
            case PublishEvent():
                effects = self._publish(given, now)
            case SubscribeEvents():
                effects = self._subscribe(given, now)
            case UnsubscribeEvents(consumer):
                effects = self._unsubscribe(consumer)
            case Stored(token):
                effects = self._stored(token, now)
            case StoreFailed(token, reason):
                effects = self._failed(token, reason, now)
            case OverlayOpened(epoch):
                self._epoch = self.waves.epoch = epoch
                effects = self._begin_log()
            case NeighbourFull(node) | NeighbourReady(node):
                effects = []
                if node in self.relay.links:
                    self.relay.links[node].full = isinstance(given, NeighbourFull)
            case _:
                effects = self._choose(now)
        return self._addressed([*effects, *self._settle(now)])

    def advance(self, now: int) -> Sequence[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        for what in list(self.timers.due(now)):
            if what == "release":
                self._release(now)
            elif what == "write":
                effects += self._write(now)
            elif what == "empty":
                effects += self._tell_empty(now)
            elif what == "wave":
                self.waves.end()
                self._wave_wanted = True
            elif what == "trim":
                effects += self._trim(now)
            elif what == "ahead":
                self._wave_wanted |= self.home.look_ahead()
            elif what == "open":
                effects += self._begin_log()
            elif what == "marks":
                self.waves.forget(now - MARK_WAVES * self._settings.wave_us)
        return self._addressed([*effects, *self._settle(now)])

    def _addressed(self, effects: list[Effect]) -> list[Effect]:
        """Let modulators have what is theirs."""
        modulated = self._modulated
        if not modulated:
            return effects
        return [
            ForModulators(one)
            if isinstance(one, EventsStanding | EventsDelivered | EventsLost)
            and one.consumer in modulated
            else one
            for one in effects
        ]

    def occupancy(self) -> Occupancy:
        """How much is held of what, and the bound of each."""
        settings = self._settings
        coming = max((len(one.assembly) for one in self._coming.values()), default=0)
        return {
            "log bytes": (self.log.bytes, settings.log_bytes_max + 2 * DATA_BYTES_MAX),
            "unwritten events": (len(self._writer) + len(self._early), settings.unwritten_max),
            "queued bytes": (self.relay.bytes(), self.relay.queue_bytes_max),
            "origins": (len(self.relay.known), ORIGINS_MAX),
            "marks": (len(self.waves), ORIGINS_MAX),
            "coming in": (coming, CONTENT_BYTES_MAX),
            **self.home.occupancy(),
        }

    def idle(self) -> bool:
        """Whether nothing is under way, for tests and checkers."""
        queues = any(link.queue or link.untold for link in self.relay.links.values())
        busy = self._stores or self._writer or len(self.waves) or self._coming
        return not (queues or busy) and self.home.idle

    # --- what follows from every input

    def _settle(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        if self._wave_wanted and self.home.consumers and self._open:
            self._wave_wanted = False
            self._wave_for = (*self.home.waiting, *self.home.ahead)
            self.waves.begin(now)
            self.timers.set("wave", now + self._settings.wave_us)
        effects += self._pass_waves(now)
        effects += self.home.release(now)
        for fetch in self.home.fetches(now):
            effects += self._fetch(fetch)
        effects += self.home.release(now)
        effects += self._pump(now)
        if len(self.waves):
            self.timers.sooner("marks", now + MARK_WAVES * self._settings.wave_us)
        if self.home.has_untold or any(link.untold for link in self.relay.links.values()):
            self.timers.sooner("empty", now + self._settings.empty_us)
        due = self.home.deadline()
        if due is None:
            self.timers.cancel("home")
        else:
            self.timers.set("home", due)
        return effects

    def _pass_waves(self, now: int) -> list[Effect]:
        sent, start = self.waves.advance()
        effects: list[Effect] = [SendOnLink(link, message) for link, message in sent]
        if start is not None:
            self.timers.cancel("wave")
            for origin, position in start.items():
                self._reaches(origin, position, None)
            effects += self.home.stood(start, self.relay.known, self._wave_for)
            if self.home.waiting:
                self._wave_wanted = True
                self.timers.sooner("more", now)
            self._watch_ahead(now)
        return effects

    def _watch_ahead(self, now: int) -> None:
        """Ask in a moment, if what is known here has not caught up with somebody by then."""
        if self.home.ahead:
            self.timers.sooner("ahead", now + self._settings.doubt_us)

    def _pump(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for name, link in self.relay.links.items():
            effects += [SendOnLink(name, chunk) for chunk in link.pop()]
            if link.full:
                continue
            if link.queue:
                self.timers.sooner("more", now + 1)
            elif link.dropped:
                link.dropped = False
                effects += self._hello(name, ask=False)
        return effects

    # --- publishing

    def _begin_log(self) -> list[Effect]:
        writes = self.log.begin(self._epoch)
        if writes:
            return [self._store(writes)]
        self._open = True
        return self._announce()

    def _announce(self) -> list[Effect]:
        oldest = self.log.oldest_us()
        if oldest is not None:
            self.timers.sooner("trim", oldest)
        self._reaches(self.node, self.log.position, None)
        return []

    def _publish(self, given: PublishEvent, now: int) -> list[Effect]:
        try:
            event = self._checked(given)
        except RoamcastError as error:
            return [Failed(given.ticket, error)]
        if not self._open:  # in a moment
            self._early.append(given)
            return []
        known = self.log.known(event)
        if known is not None:
            if self.log.released(known):
                return [EventPublished(given.ticket, self.node, self._at(known))]
            self._writer.join(known, given.ticket)
            return []
        due = self._writer.add(event, given.ticket, now)
        if now < due:
            self.timers.set("write", due)
            return []
        return self._write(now)

    def _write(self, now: int) -> list[Effect]:
        self.timers.cancel("write")
        self._token += 1
        return [self._writer.write(self._token, now)]

    def _checked(self, given: PublishEvent) -> Event:
        if len(given.data) > DATA_BYTES_MAX:
            raise LimitError(f"an event has at most {DATA_BYTES_MAX} bytes of data")
        if not 0 < len(given.producer) <= NAME_LENGTH_MAX:
            raise InputError(f"a producer's name has 1 to {NAME_LENGTH_MAX} characters")
        if not (0 <= given.life <= COUNT_MAX and 0 <= given.number <= COUNT_MAX):
            raise InputError("a producer's life and number are not negative")
        if len(given.needs) > NEEDS_MAX:
            raise LimitError(f"an event needs something of at most {NEEDS_MAX} origins")
        if len(self._writer) + len(self._early) >= self._settings.unwritten_max:
            raise RateError("too many events wait for the disk: try again in a moment")
        body = contexts.body_of(contexts.check(given.context))
        if len(body) > BODY_BYTES_MAX:
            raise LimitError(f"an event's context has at most {BODY_BYTES_MAX} bytes")
        # What is in this log comes before the event anyway; a higher position would wait for ever.
        needs = tuple(one for one in given.needs if one[0] != self.node)
        return Event(given.producer, given.life, given.number, body, given.data, needs)

    def _at(self, number: int) -> Position:
        return Position(self.log.epoch, number)

    def _store(self, writes: Writes) -> Effect:
        self._token += 1
        self._stores[self._token] = writes
        return Store(self._token, writes)

    def _stored(self, token: int, now: int) -> list[Effect]:
        if token in self._stores:
            self.log.forgotten(self._stores.pop(token))
            if self._open:
                return []
            self.log.epoch = self._epoch
            self._open = True
            early, self._early = self._early, []
            return [*self._announce(), *(one for each in early for one in self._publish(each, now))]
        written = self._writer.written(token)
        self._release(now)
        return [EventPublished(ticket, self.node, self._at(number)) for number, ticket in written]

    def _failed(self, token: int, reason: str, now: int) -> list[Effect]:
        error = StoreError(reason)
        if self._stores.pop(token, None) is not None:
            what = "trim" if self._open else "open"
            self.timers.sooner(what, now + self._settings.fetch_us)
            early, self._early = self._early, []
            return [Failed(given.ticket, error) for given in early]
        refused = self._writer.refused(token)
        self._release(now)
        return [Failed(ticket, error) for _, ticket in refused]

    def _release(self, now: int) -> None:
        """Let go on what is on disk, in one flow."""
        flow = self.log.release()
        if flow is not None and self._open:  # else the whole log is announced in a moment
            self._flow(msgspec.structs.replace(flow, origin=self.node), None)
        oldest = self.log.oldest_us()
        if self.log.bytes > self._settings.log_bytes_max:
            oldest = now
        if oldest is not None:
            self.timers.sooner("trim", oldest)

    def _trim(self, now: int) -> list[Effect]:
        writes = self.log.trim(now)
        oldest = self.log.oldest_us()
        if oldest is not None:
            self.timers.sooner("trim", max(oldest, now + 1))
        return [self._store(writes)] if writes else []

    # --- subscribing

    def _subscribe(self, given: SubscribeEvents, now: int) -> list[Effect]:
        try:
            effects = self.home.subscribe(
                given.consumer, given.wanted, dict(given.vector), given.buffered, now
            )
        except RoamcastError as error:
            return [Failed(given.ticket, error)]
        (self._modulated.add if given.modulated else self._modulated.discard)(given.consumer)
        if self.home.waiting:
            # The wave begins once tables have offered what is new: in the next moment.
            self.timers.sooner("more", now)
            if self.waves.under_way is None:
                self._wave_wanted = True
        self._watch_ahead(now)
        return [TablesTouched(), *effects]

    def _unsubscribe(self, consumer: str) -> list[Effect]:
        if not self.home.unsubscribe(consumer):
            return []
        self._modulated.discard(consumer)
        if not self.home.consumers:
            self.waves.end()
        return [TablesTouched()]

    # --- links

    def _choose(self, now: int) -> list[Effect]:
        """Use the links that tables use; each that begins is a new one."""
        used = self._exchange.links
        gone = [link for link in self.relay.links if link not in used]
        begun = [link for link in used if link not in self.relay.links]
        for link in gone:
            self.relay.drop(link)
            self._coming.pop(link, None)
        for link in begun:
            self.relay.begin(link)
        if gone or begun:
            wave = self.waves.under_way
            self.waves.links_changed(bool(begun))
            if wave is not None and self.waves.under_way is None:
                self._wave_wanted = True
        if not begun:
            return []
        effects: list[Effect] = [SendOnLink(link, message) for link, message in self.waves.reset()]
        self._doubt(now)
        for link in begun:
            effects += self._hello(link, ask=True)
        return effects

    def _doubt(self, now: int) -> None:
        self.home.doubt(now)
        self.waves.end()
        self._wave_wanted = True

    def _hello(self, link: str, *, ask: bool) -> list[Effect]:
        """Say how far logs reach; of what comes later, intervals tell."""
        reach = pairs(self.relay.known)
        pages = [reach[at : at + REACH_MAX] for at in range(0, len(reach), REACH_MAX)] or [()]
        return [
            SendOnLink(link, FlowHello(page, ask and number == 0))
            for number, page in enumerate(pages)
        ]

    def _tell_empty(self, now: int) -> list[Effect]:
        effects = self.home.tell_empty(now)
        for name, link in self.relay.links.items():
            if link.full or link.queue:  # in order, behind what waits
                continue
            empties = link.empties()
            effects += [
                SendOnLink(name, FlowEmpty(tuple(empties[at : at + REACH_MAX])))
                for at in range(0, len(empties), REACH_MAX)
            ]
        return effects

    # --- what comes by links

    def _came(self, link: str, message: Message, now: int) -> list[Effect]:
        match message:
            case FlowChunk():
                return self._chunk(link, message)
            case FlowHello(reach, ask):
                for origin, position in reach:
                    self._reaches(origin, position, link)
                return self._hello(link, ask=False) if ask else []
            case FlowEmpty(intervals):
                for flow in intervals:
                    if flow.events or flow.after > flow.upto:
                        return [CutLink(link, "garbage: an empty interval that is not")]
                    self._flow(flow, link)
            case FlowFetch():
                return self._fetch(message)
            case FlowMark():
                self.timers.sooner("more", now)
                return _sent(self.waves.marked(message, link, now))
            case FlowStood():
                self.waves.stood(message, link)
            case FlowReset():
                onwards = self.waves.take_reset(message, link)
                if onwards is not None:
                    self._doubt(now)
                    return _sent(onwards)
        return []

    def _chunk(self, link: str, message: FlowChunk) -> list[Effect]:
        coming = self._coming.get(link)
        if message.number == 0:
            coming = self._coming[link] = _Coming()
        elif coming is None:
            return []  # its beginning came before the tree ran over this link for us
        if coming.number != message.number:
            return [CutLink(link, "garbage: a flow within a flow")]
        coming.number += 1
        try:
            whole = coming.assembly.add(message.chunk, message.last)
            if whole is None:
                return []
            del self._coming[link]
            content = _READ.decode(whole)
            flow = content.flow if isinstance(content, FlowPage) else content
            for _, event in flow.events:
                assert event.context is not None
            if flow.after > flow.upto:
                raise InputError("a flow that ends before it begins")
        except (InputError, msgspec.DecodeError) as error:
            return [CutLink(link, f"garbage: {error}"[:200])]
        if isinstance(content, FlowPage):
            return self._page(content)
        self._flow(content, link)
        return []

    def _flow(self, flow: Flow, link: str | None) -> None:
        if flow.origin == self.node and link is not None:
            return
        if flow.origin not in self.relay.known:
            if len(self.relay.known) >= ORIGINS_MAX:
                return
            # Its log may have been opened after the last wave was there.
            self._wave_wanted = True
        self.relay.passes(flow, link)
        self.home.flow(flow)

    def _reaches(self, origin: str, position: Position, link: str | None) -> None:
        """Take word of how far a log reaches."""
        self._flow(Flow(origin, position.epoch, position.number, position.number), link)

    # --- fetching

    def _fetch(self, fetch: FlowFetch) -> list[Effect]:
        """Answer a fetch from this node's log, or pass it on towards its origin."""
        if fetch.to != self.node:
            hop = self._topology.hop(fetch.to)
            return [SendOnLink(hop, fetch)] if hop in self.relay.links and hop else []
        if not self._open:
            return []
        try:
            wanted = [Filter.parse(text) for text in fetch.filters]
        except FilterError:
            return []  # only a broken home asks so; it will ask in vain
        after = fetch.after.number if fetch.after.epoch == self.log.epoch else 0
        found = self.log.read(
            after,
            fetch.upto,
            lambda event: not wanted or any(one.matches(event.context) for one in wanted),
        )
        flow = msgspec.structs.replace(found, origin=self.node)
        return self._page(FlowPage(fetch.asker, fetch.reader, fetch.after, flow))

    def _page(self, page: FlowPage) -> list[Effect]:
        """Take a page, or pass it on towards who asked."""
        if page.to != self.node:
            hop = self._topology.hop(page.to)
            if hop is not None:
                self.relay.push(hop, page)
            return []
        effects = self.home.page(page)
        return [*effects, *(OverlayStep("flows", "lost", page.flow.origin) for _ in effects[:1])]


def _sent(messages: Sequence[tuple[str, Message]]) -> list[Effect]:
    return [SendOnLink(link, message) for link, message in messages]
