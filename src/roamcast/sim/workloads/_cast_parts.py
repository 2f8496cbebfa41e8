"""What the casts workload adds to brokers: their drivers, and a plain record of who was where.

`CastNode` is a broker with its driver: look-ups that take a while and sometimes fail, deposits that
get lost. `CastTruth` has what people and senders were told, and says who must get a cast and who
may; it knows nothing of the machines.
"""

import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import product
from typing import Any, Final

import msgspec

from roamcast.broker import Broker
from roamcast.channels.past.part import STEPS
from roamcast.identity.rules import Rule
from roamcast.identity.trusted.mailboxes import Deposit, SealedParcel
from roamcast.model.addresses import Server
from roamcast.model.machine import Effect, Input, Received, Send, earliest
from roamcast.model.time import FOREVER, format_instant
from roamcast.overlay.casts.held import PAYLOADS, planned
from roamcast.overlay.casts.looking import look_up, paged
from roamcast.overlay.casts.messages import (
    DepositFailed,
    DepositMail,
    LookUpPast,
    MailDeposited,
    PastUnread,
    PayloadRead,
    PlanFilter,
    ReadPayload,
)
from roamcast.sim.checkers import Violation
from roamcast.sim.clocks import Clock
from roamcast.sim.host import Boot
from roamcast.sim.step_log import SimStepLog
from roamcast.sim.workloads._trust_parts import TrustAnswer, TrustCall

LOOK_US_MAX: Final = 80_000
DEPOSIT_US: Final = 400_000
"""How long a driver waits for a trusted node."""

SKEW_US: Final = 1_000_000
"""How far clocks are off here at most: expiries are awaited."""

UNREAD: Final = 0.05
"""How often the past cannot be read."""

CERTAIN_US: Final = 1_500_000
"""What is acknowledged later may have come too late for a cast."""


class CastNode:
    """A broker and its driver on one host."""

    def __init__(self, boot: Boot, broker: Broker) -> None:
        self.broker = broker
        self.overlay = broker.overlay
        self._disk = boot.disk
        self._log = SimStepLog()
        self._draw = random.Random(boot.generator.random())
        self._number = boot.number << 32
        self._calls: dict[int, tuple[int, int]] = {}
        """Numbers of calls → the token, and how many vids there are."""
        self._later: list[tuple[int, int, Input]] = []
        self._order = 0

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a trusted node's answer, or anything for the broker."""
        if isinstance(given, Received) and isinstance(given.message, TrustAnswer):
            answer = given.message
            token, vids = self._calls.pop(answer.number, (0, 0))
            if not token:
                return ()
            given = (
                MailDeposited(token, vids - answer.full, 0, 0, answer.full)
                if answer.done
                else DepositFailed(token, "refused")
            )
        return self._out(self.broker.receive(given, now), now)

    def advance(self, now: int) -> Sequence[Effect]:
        """Give the broker what has become ready, and let it do what is due."""
        effects = self._out(self.broker.advance(now), now)
        while self._later and self._later[0][0] <= now:
            _, _, given = heappop(self._later)
            if isinstance(given, DepositFailed):
                number = next((n for n, c in self._calls.items() if c[0] == given.token), None)
                if number is None:
                    continue  # it was answered
                del self._calls[number]
            effects += self._out(self.broker.receive(given, now), now)
        return effects

    def deadline(self) -> int | None:
        """When the broker or an answer is due."""
        return earliest(self.broker.deadline(), self._later[0][0] if self._later else None)

    def _give_later(self, given: Input, at: int) -> None:
        self._order += 1
        heappush(self._later, (at, self._order, given))

    def _out(self, effects: Sequence[Effect], now: int) -> list[Effect]:
        out: list[Effect] = []
        for effect in effects:
            match effect:
                case LookUpPast():
                    self._look_up(effect, now)
                case PlanFilter():
                    self._give_later(planned(effect), now + 1 + self._some(20_000))
                case ReadPayload(token, name):
                    payload = self._disk.keys.get(name)
                    self._give_later(PayloadRead(token, payload), now + 1 + self._some(5_000))
                case DepositMail():
                    out.append(effect)
                    out.append(self._deposit(effect, now))
                case _:
                    out.append(effect)
        return out

    def _some(self, most: int) -> int:
        return self._draw.randrange(most)

    def _look_up(self, effect: LookUpPast, now: int) -> None:
        at = now + 1 + self._some(LOOK_US_MAX)
        if self._draw.random() < UNREAD:
            self._give_later(PastUnread(effect.token, "a sector is bad"), at)
            return
        memories = [self.broker.remembers(one.viewer, now) for one in effect.questions]
        answers = look_up(
            effect.questions,
            [one.seen for one in memories],
            waiting=memories[0].waiting,
            log=self._log.of(self._disk.load(STEPS)),
            archive=lambda _: (),
            known=memories[0].known,
            now=now,
        )
        for page in paged(effect.token, answers, 2):
            self._give_later(page, at)

    def _deposit(self, effect: DepositMail, now: int) -> Effect:
        payload = self._disk.keys.get(effect.payload)
        assert payload is not None, f"no payload {effect.payload} of {effect.cast}"
        parcels = tuple(
            SealedParcel(vid, payload + b":" + vid.encode()) for vid, _ in effect.parcels
        )
        given = Deposit(
            0, effect.cast, effect.sender, effect.kind, effect.expires_us, effect.back_s, parcels
        )
        self._number += 1
        self._calls[self._number] = effect.token, len(parcels)
        self._give_later(DepositFailed(effect.token, "no answer"), now + DEPOSIT_US)
        return Send(Server(effect.node), TrustCall(self._number, msgspec.msgpack.encode(given)))


REPLICA: Final = "-replica"


class Standby:
    """What a host runs whose node is served by another one now."""

    def receive(self, given: object, now: int) -> Sequence[Effect]:
        """Take nothing."""
        del given, now
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        """Do nothing."""
        del now
        return ()

    def deadline(self) -> int | None:
        """Never."""
        return None


# --- the record


SENDERS: Final = ("sender", "other")
HIDDEN: Final = "hidden"
WITHOUT: Final = "everybody but the first sender"
COARSE: Final = "the floor and no more"
KINDS_OF_RULES: Final = (HIDDEN, WITHOUT, COARSE)
FLOOR_OF_PLACE: Final = 2
"""Segments of a place that a floor keeps where nobody knows kinds: one is hidden."""


def rules_to(kind: str) -> tuple[Rule, ...]:
    """Give the rules that a kind stands for."""
    if kind == HIDDEN:
        return ()
    if kind == COARSE:
        return (Rule(viewers=("*",), precision="floor", past=True),)
    return (
        Rule(viewers=("*",), precision="exact", past=True),
        Rule(viewers=(SENDERS[0],), precision="hidden"),
    )


class VisitState(msgspec.Struct):
    """What somebody said of themselves at a node, from when on, and whether it was taken."""

    place: str
    role: str
    begin: int
    certain: bool = False
    refused: bool = False


class Visit(msgspec.Struct):
    """Somebody at a node under one vid: their states, and when they left."""

    person: str
    vid: str
    node: str
    states: list[VisitState]
    left: tuple[int, int | None] | None = None
    """Not before, and not after; None while nobody asked to end it."""
    unclear: bool = False
    """When they left may have been noted too late for a cast."""
    vague: bool = False
    """The node's clock was set back: what it noted is anybody's guess."""
    rules: str = ""
    """What they let senders see from the beginning on; empty for all of it."""
    hiding: bool = False
    hidden_us: int | None = None
    """When they knew that they are hidden, by the true time; None before, or if nobody answered."""

    def shown_to(self, cast: "RecordedCast") -> "Visit | None":
        """Give the visit as a cast's sender may see it; None for nothing (a reading of its own)."""
        if self.rules == HIDDEN or (self.rules == WITHOUT and cast.sender == SENDERS[0]):
            return None
        if self.hidden_us is not None and self.hidden_us < cast.sent_us:
            return None
        if self.rules != COARSE:
            return self
        shown = [
            msgspec.structs.replace(one, place="/".join(one.place.split("/")[:FLOOR_OF_PLACE]))
            for one in self.states
        ]
        return msgspec.structs.replace(self, states=shown)

    def runs(self, moments: Sequence[int]) -> list[list[tuple[VisitState, int, int | None]]]:
        """Give every way it may have been, as far as moments tell: states with their intervals."""
        unsure = [one for one in self.states if not one.certain and not one.refused]
        ends: list[int | None] = [None]
        if self.left is not None:
            low, high = self.left
            between = [at for one in moments for at in (one - 1, one, one + 1)]
            ends = [low, high, *(at for at in between if low <= at <= (high or FOREVER))]
        ways = []
        for taken in product((True, False), repeat=len(unsure)):
            known = [
                one
                for one in self.states
                if one.certain
                or any(one is other and yes for other, yes in zip(unsure, taken, strict=True))
            ]
            for end in ends:
                kept = [one for one in known if end is None or one.begin <= end]
                until = [*(one.begin for one in kept[1:]), end]
                ways.append([(one, one.begin, at) for one, at in zip(kept, until, strict=False)])
        return ways


Times = Callable[[int, int], bool]
Where = Callable[[VisitState], bool]


class Alternative(msgspec.Struct, frozen=True):
    """One alternative of a filter, as text and as plain functions."""

    text: str
    where: Where
    times: Times
    moments: tuple[int, ...]


class RecordedCast(msgspec.Struct):
    """A cast as its sender knows it."""

    id: str
    origin: str
    ticket: int
    expires: int
    alternatives: tuple[Alternative, ...]
    sent: int
    policy: str
    promised: bool = False
    ended: str = ""
    """How its sender ended it: "cancelled", or the update's id; with a ? until that is clear."""
    sender: str = SENDERS[0]
    sent_us: int = 0
    """When it was sent, by the true time."""


def matches(run: Sequence[tuple[VisitState, int, int | None]], cast: RecordedCast) -> bool:
    """Whether somebody with these states matches: each stretch, as it was known at expiry."""
    for one in cast.alternatives:
        begin: int | None = None
        for state, since, until in [*run, (None, 0, 0)]:
            if state is not None and one.where(state):
                begin = since if begin is None else begin
                end = until
                continue
            if begin is not None and _counts(one, begin, end, cast.expires):
                return True
            begin = None
    return False


def _counts(alternative: Alternative, begin: int, end: int | None, expires: int) -> bool:
    if begin > expires:
        return False
    if end is not None and end <= expires:
        return alternative.times(begin, end)
    later = [moment + by for moment in alternative.moments for by in (-1, 0, 1)]
    return all(alternative.times(begin, at) for at in (expires, *later, FOREVER) if at >= expires)


class CastTruth:
    """Who was where, which casts were sent, and who has them."""

    def __init__(self) -> None:
        self.visits: dict[str, Visit] = {}
        """By vid."""
        self.casts: dict[str, RecordedCast] = {}
        self.got: dict[str, set[str]] = {}
        """People → the casts they have."""

    def receivers(self, cast: RecordedCast) -> tuple[set[str], set[str]]:
        """Give who must get a cast, and who may."""
        must: set[str] = set()
        may: set[str] = set()
        for whole in self.visits.values():
            visit = whole.shown_to(cast)
            if visit is None:
                continue
            if visit.vague:
                may.add(visit.person)
                continue
            moments = [at for one in cast.alternatives for at in one.moments]
            runs = visit.runs([*moments, cast.expires])
            answers = {matches(run, cast) for run in runs}
            if True in answers:
                may.add(visit.person)
                if False not in answers and not visit.unclear and not visit.hiding:
                    must.add(visit.person)
        return must, may

    def hidden_from(self, cast: RecordedCast) -> int:
        """Count the visits that would match, had their rules not hidden them."""
        moments = [at for one in cast.alternatives for at in one.moments]
        hidden = [one for one in self.visits.values() if one.states and not one.shown_to(cast)]
        return sum(
            any(matches(run, cast) for run in one.runs([*moments, cast.expires])) for one in hidden
        )

    def who_has(self, cast: str) -> set[str]:
        """Name the people who have a cast."""
        return {person for person, casts in self.got.items() if cast in casts}


# --- what is checked


LEFT_OVER: Final = (
    "casts/body/",
    "casts/page/",
    "casts/sent/",
    "casts/settled/",
    "casts/report/",
    "consents/",
    PAYLOADS,
)


def check_blind(given: DepositMail | Deposit) -> None:
    """A trusted node learns neither place nor filter."""
    text = msgspec.msgpack.encode(given)
    for word in (b"campus", b"role", b"time,", b"INTERVAL"):
        if word in text:
            raise Violation("a trusted node learns no context", f"{given}")


def moderate(clock: Clock | None) -> Clock | None:
    if clock is None:
        return None
    offset = max(-SKEW_US, min(SKEW_US, clock.offset_us))
    return Clock(offset, max(-10_000, min(10_000, clock.drift_ppm)))


# --- filters


def drawn_filter(
    draw: random.Random, moments: Callable[[], int], places: Sequence[str], roles: Sequence[str]
) -> tuple[str, tuple[Alternative, ...]]:
    """Draw a filter about times, and what it means."""
    count = draw.choice((1, 1, 1, 2))
    parts = []
    for _ in range(count):
        text, where = _drawn_where(draw, places, roles)
        low, high = sorted((moments(), moments()))
        name = draw.choice(list(PREDICATES))
        span = f"INTERVAL('{format_instant(low)}', '{format_instant(high)}')"
        times = PREDICATES[name](low, high)
        whole = f"{text} AND {name}(time, {span})"
        parts.append(Alternative(whole, where, times, (low, high)))
    return " OR ".join(f"({one.text})" for one in parts), tuple(parts)


def drawn_present(
    draw: random.Random, sent: int, places: Sequence[str], roles: Sequence[str]
) -> tuple[str, tuple[Alternative, ...]]:
    """Draw a filter about the present, and what it means."""
    text, where = _drawn_where(draw, places, roles)
    return text, (Alternative(text, where, lambda s, e: s <= sent <= e, (sent,)),)


def _drawn_where(
    draw: random.Random, places: Sequence[str], roles: Sequence[str]
) -> tuple[str, Where]:
    place, role = draw.choice(places), draw.choice(roles)
    within: Where = lambda state: state.place == place or state.place.startswith(place + "/")  # noqa: E731
    match draw.randrange(4):
        case 0:
            return f"within(place, '{place}')", within
        case 1:
            return f"role = '{role}'", lambda state: state.role == role
        case 2:
            return "place IS NOT NULL", lambda _: True
        case _:
            both = f"within(place, '{place}') AND role = '{role}'"
            return both, lambda state: within(state) and state.role == role


# TCC figure 4 with its errata, written anew: [a, b] and the context's [s, e].
PREDICATES: Final[dict[str, Callable[[int, int], Times]]] = {
    "before": lambda a, _: lambda _s, e: e < a,
    "after": lambda _, b: lambda s, _e: s > b,
    "starts_only": lambda a, b: lambda s, e: a <= s <= b <= e,
    "ends_only": lambda a, b: lambda s, e: s <= a <= e <= b,
    "start_by": lambda a, b: lambda s, _e: a <= s <= b,
    "end_by": lambda a, b: lambda _s, e: a <= e <= b,
    "overlaps": lambda a, b: lambda s, e: s <= b and e >= a,
    "excludes": lambda a, b: lambda s, e: e < a or s > b,
    "during": lambda a, b: lambda s, e: a <= s and e <= b,
    "contains": lambda a, b: lambda s, e: s <= a and e >= b,
}
