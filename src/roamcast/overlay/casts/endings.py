"""The end of a cast: cancelled, updated, or over because nobody can match it any more."""

from collections.abc import Sequence

import msgspec

from roamcast.errors import StoreError
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect, Writes
from roamcast.model.records import CastStep
from roamcast.overlay.casts.desk import HeldCasts, ignore
from roamcast.overlay.casts.handing import Handing
from roamcast.overlay.casts.held import (
    END,
    LATE,
    PAYLOADS,
    SENT,
    CastStatus,
    HeldCast,
    StoredEnd,
    name_of,
)
from roamcast.overlay.casts.messages import ENDING, CastEnding
from roamcast.overlay.events import HandleParcel, ParcelArrived


class Endings:
    """The casts that end."""

    def __init__(self, desk: HeldCasts, handing: Handing) -> None:
        self._desk = desk
        self._handing = handing
        self._erasing: dict[str, Writes] = {}
        """Casts → what the disk refused to delete."""
        handing.ended = lambda held, now: [*self.tell(held), *self.drop_if_over(held, now)]

    def begin(self, held: HeldCast, ending: CastEnding, ticket: int, now: int) -> list[Effect]:
        """Its sender ends a cast here."""
        del now
        end = _end_of(ending)

        def then(done: bool, now: int) -> Sequence[Effect]:
            held.taking.discard(ending.cast)
            if not done:
                held.end = None
                self._handing.later(held, now)
                return [Failed(ticket, StoreError("the disk refused it"))]
            return [Acknowledged(ticket), *self.end(held, end, now)]

        held.end = end  # from now on nothing goes anywhere
        held.taking.add(ending.cast)  # and it is not forgotten before those it reached hear of it
        return [self._desk.requests.store(_end_writes(end, ending), then)]

    def arrived(self, given: ParcelArrived, content: CastEnding, now: int) -> Sequence[Effect]:
        """Take the end of a cast from a neighbour; it may come before the cast."""
        held = self._desk.casts.get(content.cast)
        known = self._desk.endings.get(content.cast) if held is None else held.end
        if known is not None and not known.late:
            return [HandleParcel(given.parcel)]
        if (
            content.cast in self._desk.writing
            or len(self._desk.endings) >= self._desk.settings.endings_max
        ):
            return self._desk.wait_for_room(given, now)
        end = _end_of(content)

        def handled(now: int) -> Sequence[Effect]:
            held = self._desk.casts.get(content.cast)
            if held is not None:
                held.taking.discard(given.parcel)
                held.end = end
                return self.end(held, end, now)
            self.remember(end)
            return []

        # Without its cast nobody here was reached: an update has nobody to go to.
        writes = _end_writes(end, None if held is None else content)
        if held is not None:
            held.taking.add(given.parcel)
        elif known is not None:  # results that are late come too late now
            writes = (*writes, *no_more_late(content.cast))
        return self._desk.handle(given.parcel, writes, handled)

    def end(self, held: HeldCast, end: StoredEnd, now: int) -> list[Effect]:
        """A cast is over, on disk: stop it here and beyond; an update follows who was reached."""
        self._desk.waiting.remove(held.id)
        self._desk.to_look.pop(held.id, None)
        for what in ("settle", "look", "patience", "again", "flush", "spread"):
            self._desk.timers.cancel((what, held.id, 0))
        effects: list[Effect] = [CastStep(held.id, end.status)]
        gone = self._desk.delivery.cancel(held, keep_owed=bool(end.update))
        if gone:
            effects.append(self._desk.requests.store(gone, ignore))
        if end.update:
            effects += self._desk.delivery.update(held, end.update)
        effects += self.tell(held)
        return [*effects, *self.drop_if_over(held, now)]

    def tell(self, held: HeldCast) -> list[Effect]:
        """Send the end wherever the cast went; that it was sent is on disk with it."""
        end = held.end
        targets = [link for link in (*held.sent_to, *held.posting) if link not in held.telling]
        if end is None or not targets:
            return []
        held.telling.update(targets)

        def read(payload: bytes | None, now: int) -> Sequence[Effect]:
            del now
            ending = CastEnding(
                end.cast, end.over_us, end.update or None, payload or b"", end.kind, end.media_type
            )
            name = name_of(held.id)
            # With the last mark gone, a restart need not tell them again.
            marks = tuple((f"{SENT}{name}/{link}", None) for link in targets)
            body = msgspec.msgpack.encode(ending)
            return [self._desk.requests.post(ENDING, targets, body, marks, posted)]

        def posted(done: bool, now: int) -> Sequence[Effect]:
            if not done:
                held.telling.difference_update(targets)
                self._desk.timers.set(("tell", held.id, 0), now + self._desk.settings.retry_us)
                return []
            for link in targets:
                held.sent_to.pop(link, None)
                held.telling.discard(link)
            return self.drop_if_over(held, now)

        if end.update:
            return [self._desk.requests.read(PAYLOADS + name_of(end.update), read)]
        return list(read(b"", 0))

    def remember(self, end: StoredEnd) -> None:
        """Know a cast by its id, though it is over."""
        self._desk.endings[end.cast] = end
        self._desk.timers.set(("forget", end.cast, 0), end.over_us)

    def drop_if_over(self, held: HeldCast, now: int) -> list[Effect]:
        """Forget a cast of which nothing is owed, once everybody was accounted for (trap 4)."""
        body = held.body
        if self._desk.casts.get(held.id) is not held:
            return []
        if now >= body.over_us:
            return self._forget(held, now)
        if not self._is_idle(held):
            return []
        if held.end is not None and body.origin != self._desk.node:
            return self._forget(held, now)
        if now < body.expires_us:
            return []
        if held.live and self._desk.spreading is not None:
            handed = self._handing.spread(held, now)
            known = held.id not in self._handing.dirty and self._desk.spreading.accounted(
                body.expires_us, now
            )
            if handed or not known:
                return handed
        return self._forget(held, now)

    def due(self, held: HeldCast, now: int) -> list[Effect]:
        """Look whether a cast is over; if not, again soon."""
        effects = self.drop_if_over(held, now)
        if held.id in self._desk.casts:
            self._desk.timers.set(("drop", held.id, 0), now + self._desk.settings.retry_us)
        return effects

    def _is_idle(self, held: HeldCast) -> bool:
        """Whether nothing of it is under way or owed."""
        if held.live and (not held.settled or not held.looked):
            return False
        if (held.end is not None and held.sent_to) or held.taking:
            return False
        return not held.posting and not held.looking and self._desk.delivery.is_done(held)

    def explain(self, held: HeldCast, now: int) -> str:
        """Say why a cast is still held."""
        spreading = self._desk.spreading
        facts = {
            "settled": held.settled,
            "looked": held.looked,
            "looking": held.looking,
            "posting": list(held.posting),
            "sent to": list(held.sent_to),
            "delivered": self._desk.delivery.is_done(held),
            "expired": now >= held.body.expires_us,
            "ended": held.end is not None,
            "missing": [] if spreading is None else spreading.missing(),
            "accounted": spreading is None or spreading.accounted(held.body.expires_us, now),
        }
        return f"{held.id}: {facts}"

    def _forget(self, held: HeldCast, now: int) -> list[Effect]:
        given_up = now >= held.body.over_us
        keep = held.awaits_results and not given_up
        end = held.end or StoredEnd(held.id, held.body.over_us, late=keep)
        writes = (*held.forgets(keep=keep), *_end_writes(end, None))
        if keep:
            writes = (*writes, *held.awaits())

        def then(done: bool, now: int) -> Sequence[Effect]:
            if not done:
                self._desk.timers.set(("erase", held.id, 0), now + self._desk.settings.retry_us)
                self._erasing[held.id] = writes
            return []

        self._desk.waiting.remove(held.id)
        self._desk.delivery.forget(held)
        self._desk.let_go(held)
        self._desk.to_look.pop(held.id, None)
        for what in ("settle", "look", "patience", "again", "flush", "spread", "drop", "report"):
            self._desk.timers.cancel((what, held.id, 0))
        self.remember(end)
        step = CastStep(held.id, "given up" if given_up else "over")
        return [step, self._desk.requests.store(writes, then)]

    def erase(self, cast: str) -> list[Effect]:
        """Delete again what the disk refused to delete."""
        writes = self._erasing.pop(cast, ())

        def then(done: bool, now: int) -> Sequence[Effect]:
            if not done:
                self._erasing[cast] = writes
                self._desk.timers.set(("erase", cast, 0), now + self._desk.settings.retry_us)
            return []

        return [self._desk.requests.store(writes, then)] if writes else []

    def resume(self, held: HeldCast, now: int) -> list[Effect]:
        """Go on with a cast that had ended before a restart."""
        assert held.end is not None
        self._desk.hold(held)
        held.settled = held.looked = held.flushed = True
        self._desk.timers.set(("drop", held.id, 0), max(now + 1, held.body.expires_us))
        return self.end(held, held.end, now)


def no_more_late(cast: str) -> Writes:
    """Delete what was kept of a cast for results that are late."""
    name = name_of(cast)
    return (PAYLOADS + name, None), (LATE + name, None)


def _end_of(ending: CastEnding) -> StoredEnd:
    status = CastStatus.CANCELLED if ending.update is None else CastStatus.UPDATED
    return StoredEnd(
        ending.cast,
        ending.over_us,
        status.value,
        ending.update or "",
        ending.kind,
        ending.media_type,
    )


def _end_writes(end: StoredEnd, ending: CastEnding | None) -> Writes:
    writes: Writes = ((END + name_of(end.cast), msgspec.msgpack.encode(end)),)
    if ending is not None and ending.update is not None:
        writes = (*writes, (PAYLOADS + name_of(ending.update), ending.payload))
    return writes
