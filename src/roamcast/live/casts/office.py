"""The office for casts of a running service: who may send what, previews, and what became of it.

Everything that is refused is refused here or by the machine before anything is written, in one
line. What a sender is told are counts with noise, out of a budget (`preview`).
"""

import random
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from roamcast.broker import Broker
from roamcast.errors import InputError, LimitError, NotFoundError
from roamcast.identity.rules import Viewer
from roamcast.live.auth.admission import Grant, Rates
from roamcast.live.auth.authority import (
    PRIORITIES,
    CastAuthority,
    check_area,
    check_priority,
    check_zones,
)
from roamcast.live.casts.preview import (
    ANSWERS_A_DAY,
    MOMENTS_US,
    SAME_US,
    Counted,
    NoisyCounts,
    SameAnswers,
    until_next,
    untold,
    with_counts_of,
    with_noise,
)
from roamcast.live.past.worker import PastWorker
from roamcast.live.service.answering import answered
from roamcast.model import casts
from roamcast.model.areas import area_of
from roamcast.model.casts import LIFETIME_MAX, PAYLOAD_BYTES_MAX, Cast, Tense
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter, recent
from roamcast.model.filters.atoms import FALSE
from roamcast.model.machine import Input
from roamcast.overlay.casts.looking import window_of
from roamcast.overlay.casts.messages import (
    CancelCast,
    CastBody,
    CastView,
    SendCast,
    UpdateCast,
)
from roamcast.transport.driver import Clock, Tickets

CASTS_BURST: Final = 60
CASTS_PER_S: Final = 1.0
PREVIEW_CONTEXTS_MAX: Final = 100_000


class CastWish(msgspec.Struct, frozen=True, kw_only=True):
    """A cast as its sender asks for it."""

    filter: str
    payload: bytes
    media_type: str = "text/plain; charset=utf-8"
    kind: str = "text"
    priority: str = "routine"
    expires_us: int | None = None
    id: str = ""
    policy: str = "NH"


class Preview(msgspec.Struct, frozen=True, tag="preview"):
    """Whom a cast would reach at this node: pseudonyms, with noise; a person may have several."""

    tense: Tense
    past: Counted
    present: Counted
    future: int | None
    """An estimate: about as many as are at the filter's places now; None where none may come."""


class CastOffice:
    """Casts of one service."""

    def __init__(
        self,
        broker: Broker,
        past: PastWorker,
        *,
        tickets: Tickets,
        give: Callable[[Input], None],
        clock: Clock,
        charge: Callable[[Viewer, Filter], None],
    ) -> None:
        """`charge` takes the price of a question about the past from a sender's budget."""
        self._broker = broker
        self._past = past
        self._tickets = tickets
        self._give = give
        self._clock = clock
        self._charge = charge
        self._counts = NoisyCounts(random.SystemRandom().random)
        self._answers = Rates(ANSWERS_A_DAY / 86_400, ANSWERS_A_DAY, what="counts of people")
        self._previewed: SameAnswers[Preview] = SameAnswers()
        self._progress: SameAnswers[CastView] = SameAnswers()
        self._casts = Rates(CASTS_PER_S, CASTS_BURST, what="casts")

    def checked(self, grant: Grant, wish: CastWish) -> Filter:
        """Give the filter of a cast that this sender may send, or say why they may not."""
        now = self._clock()
        check_zones(wish.filter)
        wanted = grant.bound(recent.read(wish.filter))
        if wish.priority not in PRIORITIES:
            raise InputError(f"{wish.priority[:40]!r} is no priority: choose from {[*PRIORITIES]}")
        if len(wish.payload) > PAYLOAD_BYTES_MAX:
            raise LimitError(f"the payload exceeds the limit of {PAYLOAD_BYTES_MAX} bytes")
        if not wish.payload:
            raise InputError("a cast needs something to say")
        expires = wish.expires_us
        if expires is not None and not now < expires <= now + LIFETIME_MAX:
            raise InputError("a cast expires after it is sent, within 60 days")
        text = self._text(grant, wish, wanted)
        casts.check(Cast(wish.id or "x", text, wish.payload, now, expires=expires))
        if "admin" not in grant.scopes:
            authority: CastAuthority = grant.cast
            check_priority(authority, wish.priority)
            check_area(authority, wanted, now)
        return wanted

    def _text(self, grant: Grant, wish: CastWish, wanted: Filter) -> str:
        """Give a filter as the sender wrote it, where nothing was added: receipts show it."""
        return wanted.text if grant.filter else wish.filter

    async def send(self, grant: Grant, wish: CastWish) -> CastView:
        """Send a cast; it is on disk when this returns."""
        wanted, now = self.checked(grant, wish), self._clock()
        viewer = Viewer(grant.subject, grant.groups)
        self._casts.take(grant.subject, now)
        if casts.tense(wanted, now) in ("historic", "hybrid", "present"):
            self._charge(viewer, wanted)
        name = wish.id or secrets.token_hex(12)
        cast = Cast(
            name,
            self._text(grant, wish, wanted),
            wish.payload,
            now,
            expires=wish.expires_us,
            media_type=wish.media_type,
        )
        rank = PRIORITIES[wish.priority]
        await self._ask(lambda t: SendCast(t, cast, viewer, wish.kind, wish.policy, rank))
        return untold(self._broker.cast_view(name))

    async def preview(self, grant: Grant, wish: CastWish) -> Preview:
        """Say about how many a cast would reach; nothing is sent."""
        wanted, now = self.checked(grant, wish), self._clock()
        viewer = Viewer(grant.subject, grant.groups)
        same = self._previewed.get(grant.subject, wanted.text, now)
        if same is not None:
            return same
        tense = casts.tense(wanted, now)
        # In all and by place; what may come is one answer, and beside what was, one more.
        self._answers.take(grant.subject, now, {"future": 1, "hybrid": 3}.get(tense, 2))
        self._charge(viewer, wanted)
        past, future = (wanted, wanted) if tense == "present" else casts.split(wanted, now)
        found: list[Context] = []
        if tense in ("historic", "hybrid") and past.normal != FALSE:
            found = await self._past.ask(viewer, past, window_of(area_of(past)), exact=True)
        here: list[Context] = []
        if tense == "present":
            asked = self._broker.page(viewer, wanted, now, after="", limit=PREVIEW_CONTEXTS_MAX)
            here = list((await answered(asked)).contexts)
        estimate = None
        if tense in ("future", "hybrid"):
            estimate = await self._estimate(viewer, future, now)
        before, now_here = (self._about(one) for one in (found, here))
        answer = Preview(tense, before, now_here, estimate)
        self._previewed.put(grant.subject, wanted.text, now + SAME_US, answer)
        return answer

    def _about(self, found: list[Context]) -> Counted:
        return self._counts.counted(self._reachable(found))

    async def _estimate(self, viewer: Viewer, wanted: Filter, now: int) -> int:
        places = {place for patch in area_of(wanted).patches for place in patch.places or ()}
        if not places:
            return 0
        quoted = (one.replace("'", "''") for one in sorted(places))
        there = Filter.parse(" OR ".join(f"within(place, '{one}')" for one in quoted))
        asked = self._broker.page(viewer, there, now, after="", limit=PREVIEW_CONTEXTS_MAX)
        found = self._reachable(list((await answered(asked)).contexts))
        return self._counts.about(len({one.vid for one in found}))

    def _reachable(self, contexts: list[Context]) -> list[Context]:
        """Leave out what no mail can reach: things, and who publishes under a name."""
        return [one for one in contexts if self._broker.key_of(one.vid) is not None]

    async def cancel(self, grant: Grant, cast: str) -> None:
        """Stop a cast; mail that was deposited stays."""
        viewer, admin = Viewer(grant.subject, grant.groups), "admin" in grant.scopes
        self._own(grant, cast)
        await self._ask(lambda t: CancelCast(t, cast, viewer, any_sender=admin))

    async def update(self, grant: Grant, cast: str, wish: CastWish) -> str:
        """Stop a cast and write to exactly those whom it has reached; give the update's id."""
        viewer, admin = Viewer(grant.subject, grant.groups), "admin" in grant.scopes
        self._own(grant, cast)
        if len(wish.payload) > PAYLOAD_BYTES_MAX:
            raise LimitError(f"the payload exceeds the limit of {PAYLOAD_BYTES_MAX} bytes")
        name = wish.id or secrets.token_hex(12)
        told = (wish.payload, viewer, wish.kind, wish.media_type)
        await self._ask(lambda t: UpdateCast(t, cast, name, *told, any_sender=admin))
        return name

    def view(self, grant: Grant, cast: str) -> CastView:
        """Say what became of a cast, to its sender."""
        body = self._own(grant, cast)
        now, view = self._clock(), self._broker.cast_view(cast)
        if now < body.sent + MOMENTS_US[0]:
            return untold(view)
        known = self._progress.get(grant.subject, cast, now)
        if known is None:
            try:
                self._answers.take(grant.subject, now, 2)
                known = with_noise(view, self._counts)
                self._progress.put(grant.subject, cast, until_next(body.sent, now), known)
            except LimitError:  # the budget is spent: what was told before stands
                known = self._progress.last(grant.subject, cast) or untold(view)
        return with_counts_of(view, known)

    def receipt_of(self, cast: str) -> tuple[str, int, int]:
        """Give what a receipt says of a cast: its filter, when it was sent and when it expires."""
        body = self._broker.cast_body(cast)
        return ("", 0, 0) if body is None else (body.filter, body.sent, body.expires_us)

    def _own(self, grant: Grant, cast: str) -> CastBody:
        """Refuse others' casts as if they were not there."""
        body = self._broker.cast_body(cast)
        if body is None or (body.sender != grant.subject and "admin" not in grant.scopes):
            raise NotFoundError(f"you sent no cast {cast[:60]!r} here, or it is over")
        return body

    async def _ask(self, make: Callable[[int], Input]) -> None:
        await self._tickets.ask(lambda ticket: self._give(make(ticket)))
