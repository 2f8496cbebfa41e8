"""Results on their way back: gathered from neighbours, united, passed on (TCC algorithm 5)."""

from collections.abc import Sequence

import msgspec

from roamcast.model.machine import Effect
from roamcast.overlay.casts.desk import HeldCasts, ignore
from roamcast.overlay.casts.handing import Handing
from roamcast.overlay.casts.held import LATE, HeldCast, LateCast, name_of
from roamcast.overlay.casts.messages import RESULT, CastBody, CastParcel, CastResult
from roamcast.overlay.events import HandleParcel, ParcelArrived


class Results:
    """Who has answered, and what is passed on."""

    def __init__(self, desk: HeldCasts, handing: Handing) -> None:
        self._desk = desk
        self._handing = handing

    def repeated(self, held: HeldCast, content: CastParcel, now: int) -> Sequence[Effect]:
        """A cast came again: another neighbour need not wait for us, or this one asks again."""
        del now
        if content.came_from != held.came_from or held.flushed:
            return self.answer_none(held.body, content.came_from)
        return []

    def answer_none(self, body: CastBody, to: str) -> list[Effect]:
        """Tell a neighbour that nothing is to be expected from here."""
        if body.policy == "NH":
            return []
        result = msgspec.msgpack.encode(CastResult(body.id, self._desk.node, (), complete=True))
        return [self._desk.requests.post(RESULT, (to,), result, (), ignore)]

    def arrived(self, given: ParcelArrived, content: CastResult, now: int) -> Sequence[Effect]:
        """Take a page of results from a neighbour."""
        held = self._desk.casts.get(content.cast)
        if held is None:
            return self._late(given, content, now)
        if not held.live:
            return [HandleParcel(given.parcel)]
        if self._desk.delivery.full:
            return self._desk.wait_for_room(given, now)
        return self._take(given, content, held)

    def _late(self, given: ParcelArrived, content: CastResult, now: int) -> Sequence[Effect]:
        """Take up a cast again that was forgotten: who was found gets it all the same (0165)."""
        desk = self._desk
        end = desk.endings.get(content.cast)
        if end is None or not end.late or not content.pairs:
            return [HandleParcel(given.parcel)]
        if desk.delivery.full or desk.full:
            return desk.wait_for_room(given, now)

        def read(value: bytes | None, now: int) -> Sequence[Effect]:
            if content.cast in desk.casts or desk.full:
                return self.arrived(given, content, now)
            if value is None:
                return [HandleParcel(given.parcel)]
            late = msgspec.msgpack.decode(value, type=LateCast)
            held = HeldCast(late.cast)
            held.sent_to = dict.fromkeys(late.sent_to)
            held.settled = held.looked = held.flushed = True
            held.unwritten = held.returns()
            desk.hold(held)
            desk.timers.set(("drop", held.id, 0), now + desk.settings.retry_us)
            return self._take(given, content, held)

        return [desk.requests.read(LATE + name_of(content.cast), read)]

    def _take(self, given: ParcelArrived, content: CastResult, held: HeldCast) -> Sequence[Effect]:
        pages = self._desk.delivery.came(held, content.pairs)

        writes = (*held.unwritten, *(page.write() for page in pages))

        def handled(now: int) -> Sequence[Effect]:
            held.taking.discard(given.parcel)
            held.unwritten = ()
            if self._desk.casts.get(held.id) is not held or not held.live:
                over = held.id not in self._desk.casts  # given up: nothing of it may stay
                keys = [key for key, _ in writes] if over else [page.key for page in pages]
                gone = tuple((key, None) for key in keys)
                return [self._desk.requests.store(gone, ignore)] if gone else []
            effects = self._desk.delivery.came_stored(held, pages, now)
            if content.complete:
                held.answered.add(content.node)
                if held.flushed and held.complete:
                    effects += self._desk.delivery.flush(held, complete=True, now=now)
            return [*effects, *self.flush_if_ready(held, now)]

        held.taking.add(given.parcel)
        return self._desk.handle(given.parcel, writes, handled)

    def flush_if_ready(self, held: HeldCast, now: int) -> list[Effect]:
        """Pass results on once everybody has answered."""
        if held.body.policy == "NH" or held.flushed or not held.looked or not held.complete:
            return []
        if not self._desk.delivery.is_stored(held):
            self._desk.timers.set(("flush", held.id, 0), now + self._desk.settings.batch_us)
            return []
        return self._desk.delivery.flush(held, complete=True, now=now)

    def lose_patience(self, held: HeldCast, now: int) -> list[Effect]:
        """Pass on what is there; what comes later follows."""
        return [] if held.flushed else self._desk.delivery.flush(held, complete=False, now=now)

    def ask_again(self, held: HeldCast, now: int) -> list[Effect]:
        """Ask neighbours again that have not answered: their results, or the cast, may be lost."""
        silent = [link for link in held.sent_to if link not in held.answered]
        if (
            not held.collects
            or not silent
            or not held.live
            or held.again >= self._desk.settings.again_max
        ):
            return []
        held.again += 1
        delay = self._desk.settings.again_us << min(held.again, 20)
        self._desk.timers.set(("again", held.id, 0), now + delay)
        return [self._handing.hand(held, silent)]
