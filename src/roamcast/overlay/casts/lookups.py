"""Look-ups of the past, in batches, and what happens on the map while they are under way."""

from collections.abc import Callable, Sequence
from typing import Final

from roamcast.model.contexts import Context
from roamcast.model.machine import Effect
from roamcast.model.records import CastStep
from roamcast.overlay.casts.delivery import What
from roamcast.overlay.casts.desk import HeldCasts
from roamcast.overlay.casts.held import HeldCast
from roamcast.overlay.casts.messages import LookUpPast, PastFound

BATCH: Final[What] = ("batch", "", 0)


class LookupBatch:
    """Look-ups under way together, and what has happened on the map since they were asked."""

    def __init__(self, casts: list[str]) -> None:
        self.casts = casts
        self.events: dict[str, list[Context]] = {}
        self.count = 0


class Lookups:
    """The casts that are looked up."""

    def __init__(
        self,
        desk: HeldCasts,
        state_of: Callable[[str], Context | None],
        tell: Callable[[HeldCast, int], None],
    ) -> None:
        """`tell`: somebody was found, its sender should hear how many."""
        self.batches: dict[int, LookupBatch] = {}
        self._desk = desk
        self._state_of = state_of
        self._tell = tell

    def look(self, held: HeldCast, now: int) -> None:
        """Look a cast up with the next batch."""
        self._desk.to_look[held.id] = None
        due = (
            now
            if len(self._desk.to_look) >= self._desk.settings.batch_casts
            else now + (self._desk.settings.batch_us)
        )
        self._desk.timers.sooner(BATCH, due)

    def begin(self, now: int) -> list[Effect]:
        """Begin a batch, unless too much is under way."""
        if not self._desk.to_look:
            return []
        if len(self.batches) >= self._desk.settings.lookups_max or self._desk.delivery.full:
            self._desk.timers.set(BATCH, now + self._desk.settings.batch_us)
            return []
        chosen = [
            cast
            for cast in list(self._desk.to_look)
            if cast in self._desk.casts and not self._desk.casts[cast].looking
        ][: self._desk.settings.batch_max]
        for cast in [one for one in self._desk.to_look if one not in self._desk.casts]:
            del self._desk.to_look[cast]
        for cast in chosen:
            del self._desk.to_look[cast]
            self._desk.casts[cast].looking = True
        if self._desk.to_look:
            self._desk.timers.sooner(BATCH, now + self._desk.settings.batch_us)
        if not chosen:
            return []
        token = self._desk.requests.token()
        self.batches[token] = LookupBatch(chosen)
        return [LookUpPast(token, tuple(self._desk.casts[cast].question() for cast in chosen))]

    def answered(self, given: PastFound, now: int) -> tuple[list[Effect], list[HeldCast]]:
        """Take a page of an answer; with the last, give the casts that were looked up."""
        batch = self.batches[given.token]
        cast = batch.casts[given.question]
        held = self._desk.casts.get(cast)
        effects: list[Effect] = []
        if held is not None and held.live:
            archived = {pair.vid: pair.key for pair in given.keys}
            effects += self._desk.delivery.found(held, given.found, archived)
            effects += self.spot(
                self._desk.waiting.resume(cast, given.lasting, batch.events, self._state_of, now),
                now,
            )
        if not given.done:
            return effects, []
        del self.batches[given.token]
        looked: list[HeldCast] = []
        overflown = batch.count >= self._desk.settings.events_max
        for each in batch.casts:
            held = self._desk.casts.get(each)
            if held is None:
                continue
            held.looking = False
            if overflown:
                self.look(held, now)
                continue
            held.looked = True
            effects.append(CastStep(each, "looked up"))
            looked.append(held)
        return effects, looked

    def unread(self, token: int, now: int) -> list[Effect]:
        """Ask again later: the past could not be read."""
        for cast in self.batches.pop(token).casts:
            held = self._desk.casts.get(cast)
            if held is not None:
                held.looking = False
                self._desk.to_look[cast] = None
        self._desk.timers.set(BATCH, now + self._desk.settings.retry_us)
        return []

    def note(self, note: Context, now: int) -> list[Effect]:
        """Take a change of the map: it may decide something, also for look-ups under way."""
        for batch in self.batches.values():
            if batch.count < self._desk.settings.events_max:
                batch.count += 1
                batch.events.setdefault(note.vid, []).append(note)
        return self.spot(self._desk.waiting.take(note, now), now)

    def spot(self, found: Sequence[tuple[str, str]], now: int) -> list[Effect]:
        """Take (cast, vid) of people who were found while casts waited."""
        by_cast: dict[str, list[str]] = {}
        for cast, vid in found:
            by_cast.setdefault(cast, []).append(vid)
        effects: list[Effect] = []
        for cast, vids in by_cast.items():
            held = self._desk.casts[cast]
            effects += self._desk.delivery.found(held, vids)
            self._tell(held, now)
        return effects
