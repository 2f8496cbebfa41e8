"""Custody as a part of a broker: parcels go along the shared tree to the nodes they are for.

A node answers for a parcel, node by node, from the moment it is on its disk until the next one has
it on its own. It says `taken` only after the write, and `pruned` only for what it holds and has not
sent on: two nodes that sent each other the same parcel must not both forget it (0102). When the
tree changes, what was not taken goes another way; whoever gets it twice knows it by its id.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from roamcast.errors import LimitError, RoamcastError, StoreError, UnreachableError
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Draw, Effect, Entry, Store, Stored, StoreFailed, Writes
from roamcast.model.parts import Occupancy, Part, PartTimers, Timer
from roamcast.model.records import OverlayStep
from roamcast.overlay.custody.held import (
    BODY,
    HELD,
    PREFIX,
    SEEN,
    Held,
    ParcelEvent,
    ParcelState,
    StoredBody,
    StoredTargets,
    name_of,
)
from roamcast.overlay.custody.messages import TARGETS_MAX, ParcelAnswer, ParcelChunk, ParcelContent
from roamcast.overlay.events import (
    CameByLink,
    CutLink,
    HandleParcel,
    NeighbourDown,
    NeighbourFull,
    NeighbourReady,
    NeighbourUp,
    OverlayOpened,
    ParcelArrived,
    ParcelExpired,
    ParcelHandled,
    ParcelId,
    ParcelPosted,
    PostParcel,
    SendOnLink,
    SendParcel,
    TreeChanged,
)
from roamcast.overlay.links.chunks import Assembly, chunks_of
from roamcast.overlay.topology.topology import NodeTopology


class CustodySettings(msgspec.Struct, frozen=True):
    """Bounds; intervals in microseconds."""

    parcel_bytes_max: int = 256 * 1024
    parcels_max: int = 100_000
    bytes_max: int = 1024 * 1024 * 1024
    seen_max: int = 1_000_000
    """Parcels handled here that are remembered; a new one waits while there are so many."""
    life_us: int = 24 * 3_600_000_000
    """A parcel that is older is given up, and said so; duplicates are known for longer."""
    under_way_max: int = 16
    """Parcels sent to one neighbour and not answered."""
    busy_us: int = 200_000
    busy_us_max: int = 10_000_000
    """Delay before a parcel goes again to who was busy, and before a failed write is repeated."""


class _Taking(msgspec.Struct):
    """A parcel that waits for the disk: who wants to hear when it is there."""

    parcel: ParcelId
    targets: tuple[str, ...]
    link: str = ""
    session: int = 0
    pruned: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    ticket: int | None = None
    part: str = ""
    token: int = 0


class _Handling(msgspec.Struct):
    """A parcel for this node whose part's writes are on their way to the disk."""

    parcel: ParcelId


class _Noting(msgspec.Struct):
    """A write that only follows what memory knows already."""

    parcel: ParcelId


class ParcelExpiryDue(Timer, frozen=True):
    """A parcel is too old."""

    parcel: ParcelId


class ParcelNoteDue(Timer, frozen=True):
    """What failed to be written of a parcel is written again."""

    parcel: ParcelId


class ParcelSendDue(Timer, frozen=True):
    """A parcel goes again to whoever was busy."""

    parcel: ParcelId


class ParcelForgetDue(Timer, frozen=True):
    """A parcel that was handled need not be remembered any more."""

    parcel: ParcelId


class Custody(Part):
    """The parcels that this node answers for."""

    part: ClassVar[str] = "custody"
    inputs: ClassVar = (
        OverlayOpened, NeighbourUp, NeighbourDown, NeighbourFull, NeighbourReady, TreeChanged,
        SendParcel, PostParcel, HandleParcel,
    )  # fmt: skip
    carried: ClassVar = {CameByLink: (ParcelChunk, ParcelAnswer)}
    prefix: ClassVar[str] = PREFIX

    def __init__(
        self,
        topology: NodeTopology,
        settings: CustodySettings,
        *,
        draw: Draw,
        kinds: frozenset[str],
    ) -> None:
        """`kinds`: what the parts of this broker handle; others are not taken for this node."""
        self.node = topology.node
        self.held: dict[ParcelId, Held] = {}
        self._topology = topology
        self._settings = settings
        self._draw = draw
        self._kinds = kinds
        self._epoch = 0
        self._number = 0
        self._bytes = 0
        self._seen: dict[ParcelId, int] = {}
        """Parcels that were handled here → until when they are remembered."""
        self._sessions: dict[str, int] = {}
        """Links that are up, each with a number of its session."""
        self._session = 0
        self._full: set[str] = set()
        self._waiting: dict[str, dict[ParcelId, None]] = {}
        self._under_way: dict[str, dict[ParcelId, tuple[str, ...]]] = {}
        self._assemblies: dict[str, Assembly] = {}
        self._coming: dict[str, ParcelId] = {}
        self._stores: dict[int, _Taking | _Handling | _Noting] = {}
        self._token = 0
        self.timers: PartTimers = PartTimers(
            {
                ParcelExpiryDue: self._expiry_due,
                ParcelNoteDue: lambda timer, now: self._note(timer.parcel, now),
                ParcelSendDue: self._send_due,
                ParcelForgetDue: lambda timer, now: self._forget_seen(timer.parcel, now),
            }
        )

    # --- the part

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up what was in custody; what was under way is under way no more."""
        for key in sorted(stored):
            if key.startswith(SEEN):
                parcel, until = msgspec.msgpack.decode(stored[key], type=tuple[ParcelId, int])
                self._remember(parcel, until)
        effects: list[Effect] = []
        for key in sorted(stored):
            if key.startswith(HELD):
                effects += self._take_up(stored[key], stored.get(BODY + key[len(HELD) :]), now)
        return effects

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        """Hold what another host of this node held, and know what it has handled."""
        bodies = {one.key: one.value for one in entries if one.key.startswith(BODY)}
        effects: list[Effect] = []
        for entry in entries:
            if entry.key.startswith(SEEN) and entry.value is not None:
                parcel, until = msgspec.msgpack.decode(entry.value, type=tuple[ParcelId, int])
                self._remember(parcel, until)
        for entry in entries:
            if entry.key.startswith(HELD) and entry.value is not None:
                effects += self._take_up(
                    entry.value, bodies.get(BODY + entry.key[len(HELD) :]), now
                )
        return effects

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a parcel, an answer, the disk's, or what happened to links and tree."""
        match given:
            case CameByLink(node, ParcelChunk() as message):
                return self._chunk(node, message, now)
            case CameByLink(node, ParcelAnswer() as message):
                return self._answered(node, message, now)
            case Stored(token):
                return self._stored(self._stores.pop(token), now)
            case StoreFailed(token, reason):
                return self._failed(self._stores.pop(token), reason, now)
            case SendParcel() | PostParcel():
                return self._post(given, now)
            case HandleParcel():
                return self._handle(given, now)
            case OverlayOpened(epoch):
                self._epoch = epoch
            case TreeChanged():
                return self._reroute(now)
            case NeighbourUp() | NeighbourDown() | NeighbourFull() | NeighbourReady():
                return self._link(given, now)
        return ()

    def _link(
        self, given: NeighbourUp | NeighbourDown | NeighbourFull | NeighbourReady, now: int
    ) -> list[Effect]:
        node = given.node
        if isinstance(given, NeighbourFull):
            self._full.add(node)
            return []
        self._full.discard(node)
        if isinstance(given, NeighbourDown):
            return self._link_down(node, now)
        if isinstance(given, NeighbourUp):
            self._session += 1
            self._sessions[node] = self._session
        return self._pump(node, now)

    def advance(self, now: int) -> Sequence[Effect]:
        """Send again what met a busy node, write again what failed, give up what is too old."""
        return self.timers.fire(now)

    def _expiry_due(self, timer: ParcelExpiryDue, now: int) -> list[Effect]:
        held = self.held.get(timer.parcel)
        return [] if held is None else self._expire(held, now)

    def _send_due(self, timer: ParcelSendDue, now: int) -> list[Effect]:
        held = self.held.get(timer.parcel)
        return [] if held is None else self._forward(held, now)

    def occupancy(self) -> Occupancy:
        """How much is held of what, and the bound of each."""
        settings = self._settings
        most = max(map(len, self._under_way.values()), default=0)
        return {
            "parcels": (len(self.held), settings.parcels_max),
            "bytes": (self._bytes, settings.bytes_max),
            "seen": (len(self._seen), settings.seen_max),
            "under way to one": (most, settings.under_way_max),
            "coming in": (max(map(len, self._assemblies.values()), default=0), self._wire_max),
        }

    @property
    def _wire_max(self) -> int:
        return self._settings.parcel_bytes_max + 200 * TARGETS_MAX

    # --- taking

    def _post(self, given: SendParcel | PostParcel, now: int) -> list[Effect]:
        """Take a parcel from this broker's own user or part."""
        ticket = given.ticket if isinstance(given, SendParcel) else None
        self._number += 1
        taking = _Taking(
            ParcelId(self.node, self._epoch, self._number), given.targets, ticket=ticket
        )
        writes: Writes = ()
        if isinstance(given, PostParcel):
            taking.part, taking.token = given.part, given.token
            writes = given.writes
        try:
            if not self._epoch:
                raise UnreachableError("the overlay is not open yet: try again in a moment")
            if not 0 < len(set(given.targets)) == len(given.targets) <= TARGETS_MAX:
                raise LimitError(f"a parcel is for 1 to {TARGETS_MAX} nodes, each named once")
            self._check_room(taking.parcel, given.kind, given.targets, len(given.body))
        except RoamcastError as error:
            return self._say(taking, error)
        held = Held(taking.parcel, given.kind, given.body, 0, now)
        return self._take(taking, held, writes, now)

    def _chunk(self, link: str, message: ParcelChunk, now: int) -> list[Effect]:
        if self._coming.setdefault(link, message.parcel) != message.parcel:
            return [CutLink(link, "garbage: a parcel within a parcel")]
        assembly = self._assemblies.setdefault(link, Assembly(self._wire_max))
        try:
            whole = assembly.add(message.chunk, message.last)
            if whole is None:
                return []
            parcel = msgspec.msgpack.decode(whole, type=ParcelContent)
        except (LimitError, msgspec.DecodeError) as error:
            return [CutLink(link, f"garbage: {error}"[:200])]
        del self._coming[link]
        if len(set(parcel.targets)) < len(parcel.targets):
            return [CutLink(link, "garbage: a parcel twice for one node")]
        return self._offered(link, message.parcel, parcel, now)

    def _offered(self, link: str, parcel: ParcelId, came: ParcelContent, now: int) -> list[Effect]:
        """Decide for each node whether to answer for it from now on."""
        held = self.held.get(parcel)
        fresh: list[str] = []
        pruned: list[str] = []
        busy: list[str] = []
        for target in came.targets:
            state = None if held is None else held.states.get(target)
            if target == self.node and parcel in self._seen:
                pruned.append(target)
            elif state is None:
                fresh.append(target)
            elif state is ParcelState.WRITTEN or (
                target == self.node and state is ParcelState.SENT
            ):
                pruned.append(target)
            else:  # it is being written, or on its way from here: we cannot vouch for it
                busy.append(target)
        taking = _Taking(parcel, tuple(fresh), link, self._sessions.get(link, 0))
        taking.pruned, taking.busy = tuple(pruned), tuple(busy)
        if not fresh:
            return self._say(taking, None, "on its way from here")
        try:
            if came.age_us >= self._settings.life_us:
                raise LimitError("too old")
            self._check_room(parcel, came.kind, taking.targets, len(came.body))
        except LimitError as error:
            return self._say(taking, error)
        held = held or Held(parcel, came.kind, came.body, came.age_us, now)
        return self._take(taking, held, (), now)

    def _check_room(self, parcel: ParcelId, kind: str, targets: Sequence[str], size: int) -> None:
        settings = self._settings
        if size > settings.parcel_bytes_max:
            raise LimitError(f"a parcel has at most {settings.parcel_bytes_max} bytes")
        if self.node in targets:
            if kind not in self._kinds:
                raise LimitError(f"unknown kind of parcel {kind[:50]!r}")
            if len(self._seen) + len(self.held) >= settings.seen_max:
                raise LimitError(f"{settings.seen_max} parcels are remembered")
        if parcel not in self.held and (
            len(self.held) >= settings.parcels_max or self._bytes + size > settings.bytes_max
        ):
            raise LimitError(f"{len(self.held)} parcels of {self._bytes} bytes are held: full")

    def _take(self, taking: _Taking, held: Held, writes: Writes, now: int) -> list[Effect]:
        """Write it first; whoever brought it hears of it afterwards."""
        fresh = held.parcel not in self.held
        if fresh:
            self.held[held.parcel] = held
            self._bytes += len(held.body)
            remaining = max(1, self._settings.life_us - held.age(now))
            self.timers.set(ParcelExpiryDue(held.parcel), now + remaining)
        held.states.update(dict.fromkeys(taking.targets, ParcelState.NEW))
        return [self._store(taking, (*writes, *held.writes(now, body=not held.body_stored)))]

    def _store(self, why: _Taking | _Handling | _Noting, writes: Writes) -> Effect:
        self._token += 1
        self._stores[self._token] = why
        return Store(self._token, writes)

    def _say(self, taking: _Taking, error: RoamcastError | None, reason: str = "") -> list[Effect]:
        """Tell whoever brought a parcel what became of it."""
        if taking.ticket is not None:
            ticket = taking.ticket
            return [Acknowledged(ticket) if error is None else Failed(ticket, error)]
        if taking.part:
            parcel = taking.parcel if error is None else None
            return [ParcelPosted(taking.part, taking.token, parcel, str(error or ""))]
        if self._sessions.get(taking.link) != taking.session:
            return []  # the link is over: its neighbour will ask again
        busy, taken = taking.busy, taking.targets
        if error is not None:
            busy, taken, reason = (*busy, *taken), (), str(error)
        answer = ParcelAnswer(
            taking.parcel, taken, taking.pruned, busy, reason[:200] if busy else ""
        )
        return [SendOnLink(taking.link, answer)]

    # --- what the disk says

    def _stored(self, why: _Taking | _Handling | _Noting, now: int) -> list[Effect]:
        if isinstance(why, _Noting):
            return []
        held = self.held.get(why.parcel)
        if isinstance(why, _Handling):
            self._remember(why.parcel, now + 2 * self._settings.life_us)
            if held is not None and self.node in held.states:
                held.move([self.node], ParcelEvent.ANSWERED)
                self._drop_if_done(held)
            return [ParcelHandled(why.parcel)]
        effects = self._say(why, None, "on its way from here")
        if held is not None:
            held.body_stored = True
            held.move([one for one in why.targets if one in held.states], ParcelEvent.STORED)
            effects += self._forward(held, now)
        return effects

    def _failed(self, why: _Taking | _Handling | _Noting, reason: str, now: int) -> list[Effect]:
        """Nothing was written: nothing is promised, and what was known stays to be written."""
        again = now + self._settings.busy_us
        held = self.held.get(why.parcel)
        if isinstance(why, _Noting):
            self.timers.set(ParcelNoteDue(why.parcel), again)
            return []
        if isinstance(why, _Handling):
            if held is not None and held.states.get(self.node) is ParcelState.SENT:
                held.move([self.node], ParcelEvent.RETURNED)
                self.timers.set(ParcelSendDue(why.parcel), again)
            return []
        if held is not None:
            for target in why.targets:
                held.states.pop(target, None)
            self._drop_if_done(held)
            # A write that was on its way meanwhile may have named these nodes, too.
            self.timers.set(ParcelNoteDue(why.parcel), again)
        return self._say(why, StoreError(reason))

    def _note(self, parcel: ParcelId, now: int) -> list[Effect]:
        """Bring the disk up to what memory knows; a crash before that brings a duplicate."""
        held = self.held.get(parcel) or Held(parcel, "", b"", 0, now)
        return [self._store(_Noting(parcel), held.writes(now))]

    # --- forwarding

    def _forward(self, held: Held, now: int) -> list[Effect]:
        """Queue a parcel for the links that lead to its nodes; give it to this node's own part."""
        if now < held.not_before:
            self.timers.sooner(ParcelSendDue(held.parcel), held.not_before)
            return []
        effects: list[Effect] = []
        links: dict[str, None] = {}
        for target, state in held.states.items():
            if state is ParcelState.WRITTEN and target != self.node:
                hop = self._topology.hop(target)
                if hop is not None:
                    links[hop] = None
        if held.states.get(self.node) is ParcelState.WRITTEN:
            held.move([self.node], ParcelEvent.LEFT)
            effects.append(ParcelArrived(held.parcel, held.kind, held.body))
        for link in links:
            self._waiting.setdefault(link, {})[held.parcel] = None
            effects += self._pump(link, now)
        return effects

    def _pump(self, link: str, now: int) -> list[Effect]:
        """Send what waits for a link, as far as the link and the window allow."""
        effects: list[Effect] = []
        waiting = self._waiting.get(link, {})
        under_way = self._under_way.setdefault(link, {})
        if link not in self._sessions or link in self._full:
            return effects
        for parcel in list(waiting):
            if len(under_way) >= self._settings.under_way_max:
                break
            if parcel in under_way:
                continue  # one answer at a time; the rest follows it
            del waiting[parcel]
            held = self.held.get(parcel)
            if held is None:
                continue
            targets = tuple(
                target
                for target, state in held.states.items()
                if state is ParcelState.WRITTEN and self._topology.hop(target) == link
            )
            if not targets:
                continue
            if now < held.not_before:
                self.timers.sooner(ParcelSendDue(parcel), held.not_before)
                continue
            held.move(targets, ParcelEvent.LEFT)
            under_way[parcel] = targets
            whole = msgspec.msgpack.encode(
                ParcelContent(held.kind, targets, held.age(now), held.body)
            )
            effects += [
                SendOnLink(link, ParcelChunk(parcel, chunk, last))
                for chunk, last in chunks_of(whole)
            ]
        return effects

    def _answered(self, link: str, answer: ParcelAnswer, now: int) -> list[Effect]:
        sent = self._under_way.get(link, {}).pop(answer.parcel, None)
        named = (*answer.taken, *answer.pruned, *answer.busy)
        if sent is None or sorted(named) != sorted(sent):
            return [CutLink(link, "garbage: an answer to what was never sent")]
        held = self.held.get(answer.parcel)
        effects: list[Effect] = []
        if held is not None:
            held.move(held.sent((*answer.taken, *answer.pruned)), ParcelEvent.ANSWERED)
            if answer.taken or answer.pruned:
                held.refusals = 0
                effects += self._note(held.parcel, now)
            if answer.busy:
                held.move(held.sent(answer.busy), ParcelEvent.RETURNED)
                self._rest(held, now)
                effects.append(
                    OverlayStep("custody", "busy", link, answer.parcel.number, answer.reason)
                )
            self._drop_if_done(held)
            effects += self._forward(held, now)
        return [*effects, *self._pump(link, now)]

    def _rest(self, held: Held, now: int) -> None:
        """Wait before the next try, a drawn time that grows: two that block each other part."""
        settings = self._settings
        delay = min(settings.busy_us << min(held.refusals, 20), settings.busy_us_max)
        held.refusals += 1
        held.not_before = now + delay // 4 + round(delay * self._draw())

    def _link_down(self, link: str, now: int) -> list[Effect]:
        """Nothing is under way on this link any more; the tree may lead another way by now."""
        self._sessions.pop(link, None)
        self._assemblies.pop(link, None)
        self._coming.pop(link, None)
        effects: list[Effect] = []
        for parcel, targets in self._under_way.pop(link, {}).items():
            held = self.held.get(parcel)
            if held is not None:
                held.move(held.sent(targets), ParcelEvent.RETURNED)
                effects += self._forward(held, now)
        return effects

    def _reroute(self, now: int) -> list[Effect]:
        """The tree is another one: what nobody has taken goes its new way."""
        self._waiting.clear()
        effects: list[Effect] = []
        for held in list(self.held.values()):
            effects += self._forward(held, now)
        return effects

    # --- the end of a parcel

    def _handle(self, given: HandleParcel, now: int) -> list[Effect]:
        """Let a part's writes and the end of a parcel become one transaction."""
        held = self.held.get(given.parcel)
        assert held is not None, f"nobody gave {given.parcel} to a part"
        until = now + 2 * self._settings.life_us
        seen = (SEEN + name_of(given.parcel), msgspec.msgpack.encode((given.parcel, until)))
        rest = held.writes(now, without=self.node)
        held.body_stored &= len(held.states) > 1  # else its bytes go with it
        return [self._store(_Handling(given.parcel), (*given.writes, seen, *rest))]

    def _remember(self, parcel: ParcelId, until: int) -> None:
        self._seen[parcel] = until
        self.timers.set(ParcelForgetDue(parcel), until)

    def _forget_seen(self, parcel: ParcelId, now: int) -> list[Effect]:
        del now
        self._seen.pop(parcel, None)
        return [self._store(_Noting(parcel), ((SEEN + name_of(parcel), None),))]

    def _expire(self, held: Held, now: int) -> list[Effect]:
        targets = tuple(target for target in held.states if target != self.node)
        for target in targets:
            del held.states[target]
        self._drop_if_done(held)
        step = OverlayStep("custody", "expired", held.parcel.origin, held.parcel.number)
        return [step, ParcelExpired(held.parcel, targets), *self._note(held.parcel, now)]

    def _drop_if_done(self, held: Held) -> None:
        if not held.states and self.held.pop(held.parcel, None) is not None:
            self._bytes -= len(held.body)
            self.timers.cancel(ParcelExpiryDue(held.parcel))
            self.timers.cancel(ParcelSendDue(held.parcel))

    def _take_up(self, value: bytes, body: bytes | None, now: int) -> list[Effect]:
        stored = msgspec.msgpack.decode(value, type=StoredTargets)
        known = self.held.get(stored.parcel)
        if known is None:
            if body is None:
                return []
            read = msgspec.msgpack.decode(body, type=StoredBody)
            age_us = stored.age_us + max(0, now - stored.written_us)
            known = Held(stored.parcel, read.kind, read.body, age_us, now)
            known.body_stored = True
        for target in stored.targets:
            handled = target == self.node and stored.parcel in self._seen
            if target not in known.states and not handled:
                known.states[target] = ParcelState.WRITTEN
        if known.states and stored.parcel not in self.held:
            self.held[stored.parcel] = known
            self._bytes += len(known.body)
            remaining = max(1, self._settings.life_us - known.age(now))
            self.timers.set(ParcelExpiryDue(stored.parcel), now + remaining)
        return self._forward(known, now)
