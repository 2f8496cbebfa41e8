"""The office for casts of a running service: who may send what, previews, and what became of it.

Everything that is refused is refused here or by the machine before anything is written, in one
line. What a sender is told are counts with noise, out of a budget (`preview`).
"""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec

from roamcast.broker import Broker
from roamcast.errors import ForbiddenError, InputError, LimitError, NotFoundError, RoamcastError
from roamcast.identity.rules import Viewer
from roamcast.live.auth.admission import Grant, Rates
from roamcast.live.auth.authority import (
    PRIORITIES,
    CastAuthority,
    check_area,
    check_priority,
    check_zones,
)
from roamcast.live.casts.audit import AuditAct, AuditLog, places_of
from roamcast.live.casts.preview import (
    ANSWERS_A_DAY,
    MOMENTS_US,
    SAME_US,
    NoisyCounts,
    SameAnswers,
    until_next,
    untold,
    with_counts_of,
    with_noise,
)
from roamcast.live.casts.whom import Whom
from roamcast.live.casts.wishes import CastWish
from roamcast.live.config.casting import CastSection
from roamcast.live.past.worker import PastWorker
from roamcast.live.service.reading import AT_ONCE_MAX, FilterReader
from roamcast.model import casts
from roamcast.model.areas import area_of
from roamcast.model.casts import LIFETIME_MAX, PAYLOAD_BYTES_MAX, Cast, Counted, PlaceCount, Tense
from roamcast.model.filters import Filter, recent
from roamcast.model.machine import Input
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.casts.consents import AskConsent, ConsentRequest, EndConsent, GiveConsent
from roamcast.overlay.casts.held import planned
from roamcast.overlay.casts.looking import window_of
from roamcast.overlay.casts.messages import (
    CancelCast,
    CastBody,
    CastView,
    PlanFilter,
    SendCast,
    UpdateCast,
)
from roamcast.transport.driver import Clock, Tickets

CASTS_BURST: Final = 60
CASTS_PER_S: Final = 1.0
NAMES: Final = {rank: name for name, rank in PRIORITIES.items()}


class Preview(msgspec.Struct, frozen=True, tag="preview"):
    """Whom a cast would reach at this node: pseudonyms, with noise; a person may have several."""

    tense: Tense
    past: Counted
    present: Counted
    future: int | None
    """An estimate: about as many as are here now and satisfy all but the times; None: nobody."""
    future_places: tuple[PlaceCount, ...] = ()


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
        charge: Callable[[Viewer, Filter, tuple[int, int]], Awaitable[None]],
        reader: FilterReader,
        settings: CastSection,
        audit: AuditLog,
    ) -> None:
        """`charge` takes the price of a question about the past from a sender's budget."""
        self._broker = broker
        self._reader = reader
        self._settings = settings
        self._audit = audit
        self._whom = Whom(broker, past, charge)
        self._tickets = tickets
        self._give = give
        self._clock = clock
        self._charge = charge
        self._counts = NoisyCounts(random.SystemRandom().random)
        self._answers = Rates(ANSWERS_A_DAY / 86_400, ANSWERS_A_DAY, what="counts of people")
        self._previewed: SameAnswers[Preview] = SameAnswers()
        self._progress: SameAnswers[CastView] = SameAnswers()
        self._asked_before: SameAnswers[int] = SameAnswers()
        self._tasks: set[asyncio.Task[Input]] = set()
        self._casts = Rates(CASTS_PER_S, CASTS_BURST, what="casts")

    async def _checked(self, grant: Grant, wish: CastWish) -> Filter:
        """Read and check a cast, at the price of its filter; a long one beside the loop."""
        self._reader.charge(grant.subject, wish.filter)
        await self._reader.read(wish.filter)
        if len(wish.filter) <= AT_ONCE_MAX:
            return self.checked(grant, wish)
        return await asyncio.to_thread(self.checked, grant, wish)

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
        """Send a cast, or let it wait for consent; it is on disk when this returns."""
        try:
            wanted = await self._checked(grant, wish)
            self._casts.take(grant.subject, self._clock())
        except RoamcastError as error:
            self._note("refused", grant, cast=wish.id, reason=error.title)
            raise
        now = self._clock()
        viewer = Viewer(grant.subject, grant.groups)
        name = wish.id or secrets.token_hex(12)
        known = self._broker.consents().get(name)
        if known is not None and known.sender == grant.subject:
            return pending_view(known)
        cast = Cast(
            name,
            self._text(grant, wish, wanted),
            wish.payload,
            now,
            expires=wish.expires_us,
            media_type=wish.media_type,
        )
        rank = PRIORITIES[wish.priority]
        told = {
            "cast": name,
            "tense": casts.tense(wanted, now),
            "priority": wish.priority,
            "places": places_of(area_of(wanted)),
            "bytes": len(wish.payload),
        }
        if self._broker.cast_body(name) is None:
            about = await self._consent_about(viewer, wanted, now)
            if about is not None:
                request = ConsentRequest(
                    cast, viewer.name, tuple(sorted(viewer.groups)), wish.kind, wish.policy, rank,
                    about, now, now + round(self._settings.consent_s * MICROSECONDS),
                )  # fmt: skip
                self._note("asked for consent", grant, **told)
                await self._ask(lambda t: AskConsent(t, request))
                return pending_view(request)
        if told["tense"] in ("historic", "hybrid", "present"):
            await self._charge(viewer, wanted, window_of(area_of(wanted)))
        self._note("sent", grant, **told)
        try:
            await self._ask(lambda t: SendCast(t, cast, viewer, wish.kind, wish.policy, rank))
        except RoamcastError as error:
            self._note("refused", grant, cast=name, reason=error.title)
            raise
        return untold(self._broker.cast_view(name))

    async def _consent_about(self, viewer: Viewer, wanted: Filter, now: int) -> int | None:
        """Give about how many a cast would reach that needs consent, 0: not known; else None.

        A yes or no tells of a count, so it has noise and a price as other counts have. What other
        nodes may find is not known here: then consent is needed.
        """
        least = self._settings.consent_above
        if not least:
            return None
        if self._broker.cast_leaves(area_of(wanted)):
            return 0
        about = self._asked_before.get(viewer.name, wanted.text, now)
        if about is None:
            try:
                self._answers.take(viewer.name, now, 1)
            except LimitError:
                return 0
            about = self._counts.about((await self._whom.find(viewer, wanted, now)).count())
            self._asked_before.put(viewer.name, wanted.text, now + SAME_US, about)
        return about if about >= least else None

    # --- consent

    def waiting(self, grant: Grant) -> list[ConsentRequest]:
        """Give the casts that wait for consent: one's own, and those one may consent to."""
        requests = self._broker.consents().values()
        return [
            one for one in requests if one.sender == grant.subject or self._may_send(grant, one)
        ]

    async def consent(self, grant: Grant, cast: str) -> CastView:
        """Consent to a cast: it is sent, and on disk when this returns."""
        if self._waits(grant, cast).sender == grant.subject:
            raise ForbiddenError("you sent this cast: a second person consents")
        viewer = Viewer(grant.subject, grant.groups)
        self._note("consented", grant, cast=cast)
        await self._ask(lambda t: GiveConsent(t, cast, viewer))
        return untold(self._broker.cast_view(cast))

    async def refuse(self, grant: Grant, cast: str) -> None:
        """Refuse a cast, or take one's own back."""
        self._waits(grant, cast)
        viewer = Viewer(grant.subject, grant.groups)
        self._note("not consented", grant, cast=cast)
        await self._ask(lambda t: EndConsent(t, cast, viewer))

    def _waits(self, grant: Grant, cast: str) -> ConsentRequest:
        """Find a request; what one may neither send nor has sent is not there."""
        for one in self.waiting(grant):
            if one.cast.id == cast:
                return one
        raise NotFoundError(f"no cast {cast[:60]!r} waits for your consent")

    def _may_send(self, grant: Grant, request: ConsentRequest) -> bool:
        """Say whether somebody might send this cast: then they may consent to it."""
        if "admin" in grant.scopes:
            return True
        try:
            check_priority(grant.cast, NAMES[request.priority])
            check_area(grant.cast, recent.read(request.cast.filter), self._clock())
        except RoamcastError:
            return False
        return not grant.filter

    def _note(self, act: AuditAct, grant: Grant, **more: Any) -> None:
        self._audit.note(self._clock(), act, grant.subject, **more)

    def plan(self, effect: PlanFilter) -> None:
        """Take a filter apart in a thread."""
        self._begin(asyncio.to_thread(planned, effect))

    def _begin(self, work: Coroutine[Any, Any, Input]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._planned)

    def _planned(self, task: "asyncio.Task[Input]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._give(task.result())

    async def preview(self, grant: Grant, wish: CastWish) -> Preview:
        """Say about how many a cast would reach; nothing is sent."""
        wanted = await self._checked(grant, wish)
        now = self._clock()
        same = self._previewed.get(grant.subject, wanted.text, now)
        if same is not None:
            return same
        # In all and by place, of what was and of what may come.
        parts = 4 if casts.tense(wanted, now) == "hybrid" else 2
        self._answers.take(grant.subject, now, parts)
        found = await self._whom.find(Viewer(grant.subject, grant.groups), wanted, now)
        past, present = self._counts.counted(found.past), self._counts.counted(found.present)
        coming = None if found.coming is None else self._counts.counted(found.coming)
        answer = Preview(
            found.tense,
            past,
            present,
            None if coming is None else coming.about,
            () if coming is None else coming.places,
        )
        self._previewed.put(grant.subject, wanted.text, now + SAME_US, answer)
        return answer

    async def cancel(self, grant: Grant, cast: str) -> None:
        """Stop a cast; mail that was deposited stays."""
        viewer, admin = Viewer(grant.subject, grant.groups), "admin" in grant.scopes
        known = self._broker.consents().get(cast)
        if known is not None and known.sender == grant.subject:
            await self.refuse(grant, cast)
            return
        self._own(grant, cast)
        self._note("cancelled", grant, cast=cast)
        await self._ask(lambda t: CancelCast(t, cast, viewer, any_sender=admin))

    async def update(self, grant: Grant, cast: str, wish: CastWish) -> str:
        """Stop a cast and write to exactly those whom it has reached; give the update's id."""
        viewer, admin = Viewer(grant.subject, grant.groups), "admin" in grant.scopes
        self._own(grant, cast)
        if len(wish.payload) > PAYLOAD_BYTES_MAX:
            raise LimitError(f"the payload exceeds the limit of {PAYLOAD_BYTES_MAX} bytes")
        name = wish.id or secrets.token_hex(12)
        self._note("updated", grant, cast=cast, bytes=len(wish.payload))
        told = (wish.payload, viewer, wish.kind, wish.media_type)
        await self._ask(lambda t: UpdateCast(t, cast, name, *told, any_sender=admin))
        return name

    def view(self, grant: Grant, cast: str) -> CastView:
        """Say what became of a cast, to its sender."""
        asked = self._broker.consents().get(cast)
        if asked is not None and asked.sender == grant.subject:
            return pending_view(asked)
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


def pending_view(request: ConsentRequest) -> CastView:
    """Show a cast that waits for consent: nobody was asked yet."""
    cast = request.cast
    tense = casts.tense(recent.read(cast.filter), request.asked_us)
    expires = request.until_us if cast.expires is None else min(cast.expires, request.until_us)
    return CastView(cast.id, tense, "pending", expires, 0, 0, 0, 0, 0, 0, 0)
