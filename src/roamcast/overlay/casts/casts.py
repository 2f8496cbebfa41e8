"""Casts as a part of a broker: whom they reach, past, present and future (TCC; OVERLAY 7).

Every cast that a node holds is looked up in its past, once, and then waits for what the map shows,
until nobody here can match any more. Both ask the whole filter, so it does not matter when a cast
comes or whether a clock is off: what was before is looked up, what comes after is waited for (traps
3 and 5). Meanwhile it is handed to each neighbour beyond which somebody may match, once
(`spreading`, `handing`). Those who are found become mail (`delivery`), here or where the policy
says (`results`).

Everything owed is on disk; after a crash all is resumed from there, and what happened since is
looked up again: people get a cast once, for trusted nodes know its id (trap 1).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import msgspec

from roamcast.channels.server.queries import Matcher
from roamcast.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    RoamcastError,
)
from roamcast.model.areas import Area
from roamcast.model.contexts import Context
from roamcast.model.events import Failed
from roamcast.model.machine import Draw, Effect, Entry, Stored, StoreFailed
from roamcast.model.parts import Occupancy, Part, Timers
from roamcast.model.records import CastStep
from roamcast.overlay.casts.delivery import CastDelivery, KeyOf, What
from roamcast.overlay.casts.desk import HeldCasts, ignore
from roamcast.overlay.casts.endings import Endings, no_more_late
from roamcast.overlay.casts.handing import Handing
from roamcast.overlay.casts.held import (
    END,
    PREFIX,
    SETTLED,
    HeldCast,
    name_of,
)
from roamcast.overlay.casts.keeping import read_stored
from roamcast.overlay.casts.lookups import Lookups
from roamcast.overlay.casts.messages import (
    CAST,
    CAST_KINDS,
    ENDING,
    REPORT,
    RESULT,
    CancelCast,
    CastEnding,
    CastParcel,
    CastReport,
    CastResult,
    CastView,
    DepositFailed,
    FilterPlanned,
    MailDeposited,
    PastFound,
    PastUnread,
    PayloadRead,
    SendCast,
    UpdateCast,
)
from roamcast.overlay.casts.orders import check_update
from roamcast.overlay.casts.reports import Reports
from roamcast.overlay.casts.requests import Requests
from roamcast.overlay.casts.results import Results
from roamcast.overlay.casts.settings import CastSettings
from roamcast.overlay.casts.spreading import Spreading
from roamcast.overlay.casts.taking import Taking
from roamcast.overlay.casts.waiting import See, WaitingCasts
from roamcast.overlay.events import (
    CameByLink,
    HandleParcel,
    NeighbourDown,
    NeighbourUp,
    ParcelArrived,
    ParcelHandled,
    ParcelPosted,
    TreeChanged,
)
from roamcast.overlay.overlay import Overlay
from roamcast.overlay.tables.messages import TableChunk
from roamcast.overlay.topology.messages import TopologyItems

_PARCELS: Final[dict[str, msgspec.msgpack.Decoder[Any]]] = {
    CAST: msgspec.msgpack.Decoder(CastParcel),
    RESULT: msgspec.msgpack.Decoder(CastResult),
    ENDING: msgspec.msgpack.Decoder(CastEnding),
    REPORT: msgspec.msgpack.Decoder(CastReport),
}
_NOTED: Final[What] = ("noted", "", 0)
_DECIDE: Final[What] = ("decide", "", 0)


class Casts(Part):
    """The casts that this node holds."""

    part: ClassVar[str] = "casts"
    inputs: ClassVar = (
        SendCast, CancelCast, UpdateCast, PastFound, PastUnread, FilterPlanned, PayloadRead,
        MailDeposited, DepositFailed, NeighbourUp, NeighbourDown, TreeChanged,
        ParcelArrived, ParcelHandled, ParcelPosted,
    )  # fmt: skip
    carried: ClassVar = {CameByLink: (TopologyItems, TableChunk)}
    prefix: ClassVar[str] = PREFIX

    def __init__(
        self,
        settings: CastSettings,
        *,
        now: int,
        draw: Draw,
        see: See,
        state_of: Callable[[str], Context | None],
        key_of: KeyOf,
        trusted_nodes: Collection[str],
        make_matcher: Callable[[], Matcher],
        overlay: Overlay | None = None,
    ) -> None:
        """`see`: what a viewer may see of a context. `state_of`: what the map shows of a vid."""
        spreading = None if overlay is None else Spreading(overlay, settings, now)
        requests = Requests(self.part)
        timers: Timers[What] = Timers()
        delivery = CastDelivery(
            "" if spreading is None else spreading.node,
            settings,
            requests,
            timers,
            draw=draw,
            key_of=key_of,
            trusted_nodes=frozenset(trusted_nodes),
        )
        desk = self._desk = HeldCasts(
            settings,
            requests=requests,
            timers=timers,
            delivery=delivery,
            waiting=WaitingCasts(
                see, settings.candidates_max, make_matcher, partial(timers.sooner, _DECIDE)
            ),
            spreading=spreading,
        )
        self._reports = Reports(desk)
        self._lookups = Lookups(desk, state_of, self._reports.soon)
        self._handing = Handing(desk, self._reports.soon)
        self._results = Results(desk, self._handing)
        self._endings = Endings(desk, self._handing)
        self._taking = Taking(desk, self._handing, self._results, self._hold)
        self._notes: list[Context] = []
        self.timers: Timers[What] = timers
        self.follows: Collection[Any] = desk.casts

    # --- reads

    @property
    def casts(self) -> Mapping[str, HeldCast]:
        """The casts that are held."""
        return self._desk.casts

    def view(self, cast: str) -> CastView:
        """Say how far a cast has come; the counts of people are for nobody as they are."""
        return self._reports.view(cast)

    def is_known(self, cast: str) -> bool:
        """Whether a cast is held, or over."""
        return cast in self._desk.casts or cast in self._desk.endings

    def leaves(self, area: Area) -> bool:
        """Whether somebody may be in an area beyond some link."""
        spreading = self._desk.spreading
        return spreading is not None and spreading.leaves(area)

    def explain(self, cast: str, now: int) -> str:
        """Say why a cast is still held."""
        return self._endings.explain(self._desk.casts[cast], now)

    # --- what the map shows (`Follower`)

    def shows(self, context: Context) -> None:
        """Note a state that the map shows."""
        self._notes.append(context)
        self.timers.set(_NOTED, 0)

    def ends(self, context: Context) -> None:
        """Note that the map shows a vid no more."""
        self.shows(context)

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up the casts that were held; what was under way is under way no more."""
        return self._load(stored, now)

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        """Take up what another host of this node held."""
        return self._load({one.key: one.value for one in entries if one.value is not None}, now)

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a request, an answer, a parcel, or news of links and tables."""
        desk = self._desk
        match given:
            case SendCast(ticket) | CancelCast(ticket) | UpdateCast(ticket):
                try:
                    return self._asked(given, now)
                except RoamcastError as error:
                    return [Failed(ticket, error)]
            case Stored(token) | StoreFailed(token):
                return desk.requests.stored(token, isinstance(given, Stored), now)
            case ParcelPosted(part, token, parcel):
                if part != self.part:
                    return ()
                return desk.requests.posted(token, parcel is not None, now)
            case ParcelArrived(_, kind):
                return self._arrived(given, now) if kind in CAST_KINDS else ()
            case ParcelHandled(parcel):
                return desk.handled(parcel, now)
            case NeighbourUp() | NeighbourDown() | CameByLink() | TreeChanged():
                return self._handing.changed(given, now)
            case _:
                return self._answered(given, now)

    def _answered(self, given: Any, now: int) -> Sequence[Effect]:
        """Take an answer of the driver."""
        desk = self._desk
        match given:
            case FilterPlanned(token, problem):
                return desk.requests.planned(token, problem, now)
            case PayloadRead(token, payload):
                return desk.requests.was_read(token, payload, now)
            case PastFound():
                return self._looked(given, now)
            case PastUnread(token):
                return self._lookups.unread(token, now)
            case MailDeposited():
                return self._after(desk.delivery.deposited(given, now), now)
            case DepositFailed(token, reason):
                return desk.delivery.deposit_failed(token, reason, now)
            case _:
                raise AssertionError(f"casts take no {type(given).__name__}")

    def _looked(self, given: PastFound, now: int) -> list[Effect]:
        effects, looked = self._lookups.answered(given, now)
        for held in looked:
            effects += self._results.flush_if_ready(held, now)
            self._reports.soon(held, now)
        return effects

    def advance(self, now: int) -> Sequence[Effect]:
        """Match what the map has shown, and do what time demands."""
        effects: list[Effect] = []
        notes, self._notes = self._notes, []
        for note in notes:
            effects += self._lookups.note(note, now)
        effects += self._lookups.spot(self._desk.waiting.fire(now), now)
        due = self._desk.waiting.deadline()
        if due is not None:
            self.timers.set(_DECIDE, due)
        for what, cast, number in list(self._desk.timers.due(now)):
            effects += self._due(what, cast, number, now)
        return effects

    def occupancy(self) -> Occupancy:
        """How much is held of what, and the bound of each."""
        settings = self._desk.settings
        return {
            "casts": (len(self._desk.casts) + len(self._desk.writing), settings.casts_max),
            "of one sender": (
                max(self._desk.by_sender.values(), default=0),
                settings.sender_max,
            ),
            "cached": (len(self._desk.waiting.casts), settings.cache_max),
            "endings": (len(self._desk.endings), settings.endings_max),
            "candidates": (len(self._desk.waiting), settings.candidates_max),
            "batches": (len(self._lookups.batches), settings.lookups_max),
            "to look up": (len(self._desk.to_look), len(self._desk.casts)),
            "events": (
                max((batch.count for batch in self._lookups.batches.values()), default=0),
                settings.events_max,
            ),
            # Beside casts that are handed on, each may have a result, an end and a report.
            "posts": (
                len(self._desk.requests.posts),
                settings.posts_max + 4 * len(self._desk.casts) + 4,
            ),
            **self._desk.delivery.occupancy(),
        }

    # --- what users ask for

    def _asked(self, given: SendCast | CancelCast | UpdateCast, now: int) -> Sequence[Effect]:
        if isinstance(given, SendCast):
            return self._taking.send(given, now)
        held = self._desk.casts.get(given.cast)
        if held is None or held.body.origin != self._desk.node:
            raise NotFoundError(f"no cast {given.cast[:60]!r} was sent here, or it is over")
        if not given.any_sender and held.body.sender != given.viewer.name:
            raise ForbiddenError("another sent this cast")
        if held.end is not None:
            raise ConflictError(f"this cast was {held.end.status} before")
        if isinstance(given, CancelCast):
            ending = CastEnding(held.id, held.body.over_us)
        else:
            check_update(given)
            if given.id in (given.cast, *self._desk.endings) or given.id in self._desk.casts:
                raise ConflictError("an update has an id of its own")
            ending = CastEnding(
                held.id, held.body.over_us, given.id, given.payload, given.kind, given.media_type
            )
        return self._endings.begin(held, ending, given.ticket, now)

    # --- a cast at this node

    def _hold(self, held: HeldCast, now: int, *, restored: bool = False) -> list[Effect]:
        """A cast is on disk: look it up, let it wait, hand it on."""
        self._desk.hold(held)
        body = held.body
        self._desk.timers.set(("drop", held.id, 0), max(now + 1, body.expires_us))
        if not held.settled:
            self._taking.wait(held, now)
            self._lookups.look(held, now)
            settles = self._waits_until(held)
            if restored:
                back = now + self._desk.settings.return_us
                self._desk.timers.set(("look", held.id, 0), back)
                settles = max(settles, back + 1)
            self._desk.timers.set(("settle", held.id, 0), max(now + 1, settles))
        else:
            held.looked = held.flushed = True
        if body.policy != "NH" and not held.flushed:
            self._desk.timers.set(("patience", held.id, 0), now + held.patience_us)
            self._desk.timers.set(("again", held.id, 0), now + self._desk.settings.again_us)
        self._reports.soon(held, now)
        return self._handing.spread(held, now)

    def _waits_until(self, held: HeldCast) -> int:
        """Give when nobody here can match any more, though reports come late."""
        last = held.plan.last
        latest = held.body.expires_us if last is None else min(last, held.body.expires_us)
        return latest + self._desk.settings.lateness_us

    def _settle(self, held: HeldCast, now: int) -> list[Effect]:
        """Nobody here can match any more: wait for nobody, and do not look again after a crash."""
        if held.looking or not held.looked or held.id in self._desk.to_look:
            self._desk.timers.set(("settle", held.id, 0), now + self._desk.settings.retry_us)
            return []
        if held.id in self._desk.waiting.lost:
            # Too many candidates: whom we lost track of is found by one more look.
            self._desk.waiting.remove(held.id)
            self._lookups.look(held, now)
            self._desk.timers.set(("settle", held.id, 0), now + self._desk.settings.retry_us)
            return []
        if not self._desk.delivery.is_stored(held):
            self._desk.timers.set(("settle", held.id, 0), now + self._desk.settings.retry_us)
            return []
        self._desk.waiting.remove(held.id)
        held.settled = True

        def then(done: bool, now: int) -> Sequence[Effect]:
            if not done and held.id in self._desk.casts:
                self._desk.timers.set(("settle", held.id, 0), now + self._desk.settings.retry_us)
            return []

        return [self._desk.requests.store(((SETTLED + name_of(held.id), b""),), then)]

    # --- parcels

    def _arrived(self, given: ParcelArrived, now: int) -> Sequence[Effect]:
        try:
            content = _PARCELS[given.kind].decode(given.body)
        except msgspec.DecodeError as error:
            return [CastStep("", f"garbage: {error}"[:200]), HandleParcel(given.parcel)]
        match content:
            case CastParcel():
                return self._taking.arrived(given, content, now)
            case CastResult():
                return self._results.arrived(given, content, now)
            case CastEnding():
                return self._endings.arrived(given, content, now)
            case _:
                return self._reports.arrived(given.parcel, content)

    def _after(self, effects: Sequence[Effect], now: int) -> list[Effect]:
        """Let a cast end if that was the last thing owed, and tell its sender."""
        out = list(effects)
        for effect in effects:
            if isinstance(effect, CastStep) and effect.cast in self._desk.casts:
                held = self._desk.casts[effect.cast]
                self._reports.soon(held, now)
                self._desk.timers.sooner(("drop", held.id, 0), max(now + 1, held.body.expires_us))
        return out

    # --- time

    def _due(self, what: str, cast: str, number: int, now: int) -> Sequence[Effect]:
        desk = self._desk
        match what:
            case "noted" | "decide":  # `advance` has done it
                return ()
            case "batch":
                return self._lookups.begin(now)
            case "scan":
                return self._handing.scan(now)
            case "room":
                waiting, desk.held_up = desk.held_up, {}
                return [effect for one in waiting.values() for effect in self._arrived(one, now)]
            case "forget":
                end = desk.endings.pop(cast, None)
                if end is None:
                    return ()
                gone = ((END + name_of(cast), None), *(no_more_late(cast) if end.late else ()))
                return [desk.requests.store(gone, ignore)]
            case "erase":
                return self._endings.erase(cast)
        held = desk.casts.get(cast)
        if held is None:
            return ()
        if what in ("write", "note", "deposit"):
            return desk.delivery.due(held, what, number, now)
        return self._due_of(held, what, now)

    def _due_of(self, held: HeldCast, what: str, now: int) -> Sequence[Effect]:
        match what:
            case "look":
                self._lookups.look(held, now)
                return ()
            case "settle":
                return self._settle(held, now)
            case "spread":
                return self._handing.spread(held, now)
            case "flush":
                return self._results.flush_if_ready(held, now)
            case "patience":
                return self._results.lose_patience(held, now)
            case "again":
                return self._results.ask_again(held, now)
            case "report":
                return self._reports.send(held, now)
            case "tell":
                return self._endings.tell(held)
            case "drop":
                return self._endings.due(held, now)
        raise AssertionError(f"no handler for {what}")

    # --- the disk

    def _load(self, stored: Mapping[str, bytes], now: int) -> list[Effect]:
        desk = self._desk
        effects: list[Effect] = []
        fresh, ended = read_stored(stored, desk)
        for end in ended:
            self._endings.remember(end)
        for held in fresh:
            if held.end is None:
                effects += self._hold(held, now, restored=True)
            else:
                effects += self._endings.resume(held, now)
        return [*effects, *desk.delivery.pump(now)]
