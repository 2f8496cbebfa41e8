"""A cast at a node: what is on disk of it, what is in memory, and what its filter asks for."""

import enum
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import msgspec

from roamcast.channels.past.asking import Asked
from roamcast.errors import LimitError, RoamcastError
from roamcast.identity.rules import Viewer
from roamcast.model import casts
from roamcast.model.areas import Area, area_of
from roamcast.model.casts import Tense
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter, recent
from roamcast.model.filters import text as writing
from roamcast.model.filters.atoms import FALSE, T_D, T_R, Normal, Values
from roamcast.model.filters.lasting import expiration
from roamcast.model.filters.normal import all_of
from roamcast.model.filters.values import Interval
from roamcast.model.machine import Writes
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.casts.looking import window_of
from roamcast.overlay.casts.messages import (
    CastBody,
    CastReport,
    FilterPlanned,
    Pair,
    PastQuestion,
    PlanFilter,
)
from roamcast.overlay.events import ParcelId

PREFIX: Final = "casts/"
BODY: Final = PREFIX + "body/"
SENT: Final = PREFIX + "sent/"
SETTLED: Final = PREFIX + "settled/"
PAGE: Final = PREFIX + "page/"
END: Final = PREFIX + "end/"
REPORTED: Final = PREFIX + "report/"
PAYLOADS: Final = "payloads/"
"""Not this part's prefix: payloads of a million casts are not read at a start."""
LATE: Final = PAYLOADS + "late/"
"""Casts that are over, and whose results may still be on their way back."""

HOUR_S: Final = 3_600
BACK_S_MAX: Final = 100 * 366 * 24 * HOUR_S
PLANS: Final = 16_384
"""Filters that stay taken apart; those of a million casts would not fit memory."""


class CastPlan:
    """What a cast's filter asks for: whom, where to go, until when."""

    def __init__(self, filter_text: str, target: Area | None, sent: int, split_at: int) -> None:
        wanted = recent.read(filter_text)
        self.tense: Tense = casts.tense(wanted, split_at)
        if self.tense == "present":
            # Who lasts at the moment of sending: then it is a filter about times as any other.
            wanted = _filter(
                all_of(
                    [
                        wanted.normal,
                        Values(T_R, "instant", (Interval(high=sent),)),
                        Values(T_D, "instant", (Interval(low=sent),)),
                    ]
                )
            )
        area = area_of(wanted)
        self.text = wanted.text
        self.window = window_of(area)
        asked = Asked(wanted, self.window)
        if asked.parts is None:
            raise LimitError("a cast's filter has too many alternatives: send several casts")
        self.parts = asked.parts
        """For each alternative its terms about times, and its others."""
        self.loose = _filter(asked.without_times)
        """What every state of somebody who may match satisfies."""
        past, future = casts.split(wanted, split_at)
        self.past: Area | None = None
        """Where somebody may have matched by now; None for nobody."""
        self.future: Filter | None = None
        """Who may match from now on, or is here now."""
        if self.tense == "present":
            self.future = wanted
        else:
            self.past = None if past.normal == FALSE else area_of(past)
            self.future = None if future.normal == FALSE else future
        if self.past is not None and target is not None:
            self.past = target
        self.area = target or area
        self.last = expiration(wanted).last
        """The last moment at which anybody can match; None if there is none."""
        ends = [patch.ends[0] for patch in area.patches]
        if any(end is None for end in ends):
            self.back_s = BACK_S_MAX
        else:
            back_us = max([sent - end for end in ends if end is not None], default=0)
            hours = -(-max(0, back_us) // (HOUR_S * MICROSECONDS))
            self.back_s = min(hours * HOUR_S, BACK_S_MAX)

    def stored(self) -> "StoredPlan":
        """Give what is stored of it."""
        text = self.text if self.tense == "present" else ""
        return StoredPlan(self.loose.stored, self.last, self.window, text)


def _filter(normal: Normal) -> Filter:
    return Filter.parse(writing.of(normal))


_plan = lru_cache(PLANS)(CastPlan)


def plan_of(body: CastBody) -> CastPlan:
    """Take a cast's filter apart; the last ones are remembered."""
    return _plan(body.filter, body.target, body.sent, body.split_at)


def planned(effect: PlanFilter) -> FilterPlanned:
    """Answer a request to take a filter apart; any thread may."""
    try:
        plan_of(effect.body)
    except RoamcastError as error:
        return FilterPlanned(effect.token, error)
    return FilterPlanned(effect.token)


class CastStatus(enum.StrEnum):
    """What becomes of a cast at a node."""

    LIVE = "live"
    CANCELLED = "cancelled"
    UPDATED = "updated"


class StoredPlan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a restart needs of a cast's filter, so that a million of them are not parsed (0145)."""

    loose: bytes
    """The filter without times, in normal form; empty where it waits already, or no more."""
    last: int | None
    window: tuple[int, int]
    text: str
    """What is asked of the past; empty where it is the filter as it was sent."""


class StoredCast(msgspec.Struct, frozen=True, array_like=True):
    """A cast on disk, written once."""

    body: CastBody
    came_from: str
    branches: tuple[str, ...]
    patience_us: int
    plan: StoredPlan | None = None


class StoredEnd(msgspec.Struct, frozen=True, array_like=True):
    """A cast that is over, on disk: repeats of it are known by this, and what replaced it."""

    cast: str
    over_us: int
    status: str = ""
    """Cancelled or updated; empty where it only was forgotten."""
    update: str = ""
    kind: str = ""
    media_type: str = ""
    late: bool = False
    """Whether results that are late are still taken: the cast lies among the payloads."""


class LateCast(msgspec.Struct, frozen=True, array_like=True):
    """A cast that was forgotten, as it is taken up again when results are late."""

    cast: StoredCast
    sent_to: tuple[str, ...]


class StoredPage(msgspec.Struct, array_like=True):
    """Some of those whom a cast has found."""

    cast: str
    number: int
    to: str
    """The trusted node they are of, with an @ before it; empty while they wait to be united."""
    pairs: tuple[Pair, ...]
    owes: tuple[str, ...]
    """The casts that are still to be deposited for them: this one, then its update."""
    last: str = ""
    """The cast that was deposited last."""
    reached: int = 0
    unreachable: int = 0
    refused: int = 0


class CastPage:
    """A page in memory; on disk from `stored` on."""

    __slots__ = ("beyond", "busy", "page", "refusals", "stored")

    def __init__(self, page: StoredPage, *, stored: bool) -> None:
        self.page = page
        self.stored = stored
        self.busy = False
        """Something is under way for it: a deposit, a parcel, a write."""
        self.refusals = 0
        self.beyond = False
        """Beyond those whom an update can reach: it goes when it is delivered."""

    @property
    def key(self) -> str:
        """Its key in the store."""
        return f"{PAGE}{name_of(self.page.cast)}/{self.page.number:012}"

    def write(self) -> tuple[str, bytes]:
        """Give what is to be written of it."""
        return self.key, msgspec.msgpack.encode(self.page)


class HeldCast:
    """One cast at this node."""

    __slots__ = (
        "again",
        "answered",
        "body",
        "branches",
        "came_from",
        "end",
        "flushed",
        "found",
        "known",
        "looked",
        "looking",
        "pages",
        "patience_us",
        "plan",
        "posting",
        "pushed",
        "reported",
        "reports",
        "sent_to",
        "settled",
        "taking",
        "telling",
        "unnamed",
        "unreachable",
        "unwritten",
        "updatable",
        "whom",
    )

    def __init__(self, stored: StoredCast) -> None:
        self.body = stored.body
        self.came_from = stored.came_from
        self.branches = stored.branches
        self.patience_us = stored.patience_us
        self.plan = stored.plan or plan_of(stored.body).stored()
        self.sent_to: dict[str, None] = {}
        """Neighbours that have it for certain: custody of it is on disk."""
        self.posting: dict[str, None] = {}
        self.pushed = False
        """Whether it goes wherever its area is served at once, and does not wait here."""
        self.answered: set[str] = set()
        """Neighbours whose results are complete."""
        self.pages: dict[int, CastPage] = {}
        self.whom: dict[str, None] = {}
        """Vids that were found, here or beyond."""
        self.found = 0
        self.unreachable = 0
        self.unnamed = 0
        self.updatable = 0
        """Vids on disk that have the cast: an update reaches these."""
        """How many were reached beyond those whom an update can reach."""
        self.looked = False
        """Whether this node's past has been looked up, in this life."""
        self.looking = False
        self.flushed = False
        """Whether results were passed on; what comes later goes straight on."""
        self.settled = False
        """Whether nobody here can match any more."""
        self.again = 0
        self.reported: CastReport | None = None
        self.reports: dict[str, CastReport] = {}
        self.end: StoredEnd | None = None
        self.telling: set[str] = set()
        """Neighbours that are being told of its end."""
        self.known = 0
        """Pages that were made: the number of the next one."""
        self.taking: set[ParcelId | str] = set()
        """Results and its end, on their way to the disk: it is not forgotten meanwhile."""
        self.unwritten: Writes = ()
        """What is to be written of a cast that results have brought back."""

    @property
    def id(self) -> str:
        """The cast's id."""
        return self.body.id

    @property
    def live(self) -> bool:
        """Whether it still looks for people."""
        return self.end is None

    @property
    def collects(self) -> bool:
        """Whether neighbours pass back what they find: the n-th branching point is here or above.

        Above it nobody waits: what each node finds there it resolves itself (TCC III-C).
        """
        branching = len(self.sent_to) + len(self.posting) > 1
        return 0 < self._number <= len(self.branches) + branching

    @property
    def complete(self) -> bool:
        """Whether all neighbours that pass something back have answered."""
        return not self.collects or (not self.posting and self.answered.issuperset(self.sent_to))

    @property
    def viewer(self) -> Viewer:
        """Who sent it: it sees what they may see."""
        return Viewer(self.body.sender, frozenset(self.body.groups))

    @property
    def _number(self) -> int:
        """The number of the branching point that collects; 0 for NH. FBTH is BTH1."""
        policy = self.body.policy
        fixed = {"NH": 0, "FBTH": 1}
        return fixed[policy] if policy in fixed else int(policy.removeprefix("BTH"))

    def resolver(self, node: str) -> str:
        """Name the node that resolves what is found here (TCC III-C)."""
        # With fewer branching points the access node resolves itself (erratum to algorithm 6).
        return self.branches[self._number - 1] if 0 < self._number <= len(self.branches) else node

    def question(self) -> PastQuestion:
        """Ask the past for everybody who matches."""
        text = self.plan.text or self.body.filter
        return PastQuestion(text, self.plan.window, self.viewer, self.body.expires_us)

    def take_loose(self) -> Filter:
        """Give the filter that it waits with; whoever takes it holds it from then on."""
        loose = self.plan.loose
        self.plan = msgspec.structs.replace(self.plan, loose=b"")
        return Filter.of_stored(loose) if loose else plan_of(self.body).loose

    def stored(self) -> StoredCast:
        """Give what is on disk of it."""
        return StoredCast(self.body, self.came_from, self.branches, self.patience_us, self.plan)

    @property
    def awaits_results(self) -> bool:
        """Whether neighbours may pass something back, however late."""
        return self.live and self.body.policy != "NH" and bool(self.sent_to)

    def awaits(self) -> Writes:
        """Give what stays on disk for results that are late."""
        late = LateCast(self.stored(), tuple(self.sent_to))
        return ((LATE + name_of(self.id), msgspec.msgpack.encode(late)),)

    def returns(self) -> Writes:
        """Give what is written of a cast that results have brought back."""
        name = name_of(self.id)
        body = (BODY + name, msgspec.msgpack.encode(self.stored()))
        sent = ((f"{SENT}{name}/{link}", link.encode()) for link in self.sent_to)
        return (body, (SETTLED + name, b""), *sent)

    def forgets(self, *, keep: bool = False) -> Writes:
        """Delete everything of it, but what remembers that it is over."""
        name = name_of(self.id)
        keys = [BODY + name, SETTLED + name]
        if not keep:
            keys += [PAYLOADS + name, LATE + name]
        keys += [f"{SENT}{name}/{link}" for link in self.sent_to]
        keys += [f"{REPORTED}{name}/{node}" for node in self.reports]
        keys += [page.key for page in self.pages.values()]
        if self.end is not None and self.end.update:
            keys.append(PAYLOADS + name_of(self.end.update))
        return tuple((key, None) for key in keys)


@lru_cache(4_096)
def name_of(cast: str) -> str:
    """Give the part of a cast's keys that names it: an id may have any character."""
    return blake2b(cast.encode(), digest_size=16).hexdigest()


def paged_pairs(pairs: Iterable[Pair], pairs_max: int, bytes_max: int) -> list[tuple[Pair, ...]]:
    """Divide pairs into pages that fit a parcel and a deposit."""
    pages: list[tuple[Pair, ...]] = []
    page: list[Pair] = []
    size = 0
    for pair in pairs:
        cost = len(pair.vid) + len(pair.key) + 16
        if page and (len(page) >= pairs_max or size + cost > bytes_max):
            pages.append(tuple(page))
            page, size = [], 0
        page.append(pair)
        size += cost
    if page:
        pages.append(tuple(page))
    return pages


def closed(state: Context, begin: int, end: int | None) -> Context:
    """Give a stretch as one context, with the attributes of its last state."""
    return msgspec.structs.replace(state, t_r=begin, t_d=end)
