"""The feed of the archive: which pieces leave the log next, and how far they have come.

A batch is named on disk, appended to the archive, and only then its steps are deleted (0108). The
table says what may follow what.
"""

import enum
from collections.abc import Callable
from typing import Final

import msgspec

from roamcast.channels.past.messages import (
    ArchiveBatch,
    BatchLanded,
    BatchRefused,
    EndedFound,
    FeedArchive,
    LookForEnded,
)
from roamcast.channels.past.settings import BATCH_PIECES_MAX, PastSettings
from roamcast.model.machine import Effect, Store, Writes, step
from roamcast.model.records import Drop

BATCH: Final = "past/batch"


class FeedState(enum.StrEnum):
    """Where the batch is that leaves the log."""

    RESTING = "nothing leaves the log"
    LOOKING = "the log is searched for pieces that may leave"
    NAMING = "the batch is on its way to the disk"
    FEEDING = "the batch is on disk, and on its way to the archive"
    FORGETTING = "the archive has the batch; its steps are being deleted"


class FeedEvent(enum.StrEnum):
    """What moves a batch on."""

    DUE = "it is time to look"
    NONE = "nothing may leave"
    FOUND = "some pieces may leave"
    NAMED = "the batch is on disk"
    LANDED = "the archive has the batch, or there is no archive"
    DELETED = "its steps are gone"
    LACKED = "steps of it never came, and the archive does not have it"


_STATE, _EVENT = FeedState, FeedEvent

FEED_TABLE: Final = {
    (_STATE.RESTING, _EVENT.DUE): _STATE.LOOKING,
    (_STATE.LOOKING, _EVENT.DUE): _STATE.LOOKING,
    (_STATE.LOOKING, _EVENT.NONE): _STATE.RESTING,
    (_STATE.LOOKING, _EVENT.FOUND): _STATE.NAMING,
    (_STATE.NAMING, _EVENT.DUE): _STATE.NAMING,
    (_STATE.NAMING, _EVENT.NAMED): _STATE.FEEDING,
    (_STATE.FEEDING, _EVENT.DUE): _STATE.FEEDING,
    (_STATE.FEEDING, _EVENT.LANDED): _STATE.FORGETTING,
    (_STATE.FEEDING, _EVENT.LACKED): _STATE.RESTING,
    (_STATE.FORGETTING, _EVENT.DUE): _STATE.FORGETTING,
    (_STATE.FORGETTING, _EVENT.DELETED): _STATE.RESTING,
}


class ArchiveFeed:
    """The batch that leaves the log; `token` is that of its writes."""

    def __init__(
        self,
        settings: PastSettings,
        token: int,
        again: Callable[[Writes], None],
        look_at: Callable[[int], None],
    ) -> None:
        """`again` writes rows soon; `look_at` says when to call `look` next."""
        self.settings = settings
        self.state = FeedState.RESTING
        self.batch = ArchiveBatch()
        self._token = token
        self._again = again
        self._look_at = look_at
        self._feeding = 0
        """Batches that the driver was given and has not answered for."""
        self._lacking_since: int | None = None
        """Since when steps of the batch are missing here."""

    def take(self, value: bytes) -> None:
        """Take up the batch that is on disk here or at a replica, unless it is older."""
        batch = msgspec.msgpack.decode(value, type=ArchiveBatch)
        if batch.number >= self.batch.number:
            self.batch = batch
        else:  # older, though a clock that was ahead wrote it
            self._rewrite()

    def resume(self) -> list[Effect]:
        """Go on with a batch that is on disk: nobody knows whether the archive has it."""
        self._lacking_since = None
        self.state = FeedState.FEEDING if self.batch.pieces else FeedState.RESTING
        return [self._feed()] if self.state is FeedState.FEEDING else []

    def look(self, now: int) -> list[Effect]:
        """Look for a batch, or go on with the one at hand."""
        self._look_at(now + self.settings.look_us)
        self._move(FeedEvent.DUE)
        match self.state:
            case FeedState.LOOKING:
                return [LookForEnded(now - self.settings.store_us, self.settings.steps_max)]
            case FeedState.FEEDING:
                return [self._feed()]
            case FeedState.FORGETTING:
                return [self._forget()]
            case _:
                return []

    def found(self, given: EndedFound, now: int) -> list[Effect]:
        """Name the pieces that may leave."""
        if self.state is not FeedState.LOOKING:
            return []
        if not given.pieces and not given.strays:
            self._move(FeedEvent.NONE)
            return []
        self._move(FeedEvent.FOUND)
        before = self.batch.after
        number = max(now, before + 1)
        pieces = given.pieces[:BATCH_PIECES_MAX]
        self.batch = ArchiveBatch(number, before, pieces, given.strays[:BATCH_PIECES_MAX])
        if not self.settings.archive:
            # Nothing has to be the same after a crash: what is left is found again.
            self._move(FeedEvent.NAMED)
            self._move(FeedEvent.LANDED)
            return [self._forget()]
        return [Store(self._token, ((BATCH, msgspec.msgpack.encode(self.batch)),))]

    def stored(self, now: int) -> list[Effect]:
        """The batch's write is on disk: go on."""
        if self.state is FeedState.NAMING:
            return self._named()
        if self.state is FeedState.FORGETTING:
            return self._deleted(now)
        # A replica's batch came in between: what was written must not replace it.
        self._rewrite()
        return []

    def failed(self, now: int) -> None:
        """The disk refused the batch's write: try again soon."""
        if self.state is FeedState.NAMING:
            self._forget_batch()
        self._look_at(now + self.settings.retry_us)

    def landed(self, given: BatchLanded) -> list[Effect]:
        """The archive has a batch."""
        self._feeding -= 1
        if given.number != self.batch.number or self.state is not FeedState.FEEDING:
            return []
        self._move(FeedEvent.LANDED)
        return [self._forget()]

    def refused(self, given: BatchRefused, now: int) -> Drop:
        """The archive has not taken a batch."""
        self._feeding -= 1
        if given.number == self.batch.number and self.state is FeedState.FEEDING:
            self._look_at(now + self.settings.look_us)
            self._lack(given.lacking, now)
        return Drop(given.reason[:200], "past.batch")

    def _move(self, event: FeedEvent) -> None:
        self.state = step(FEED_TABLE, self.state, event)

    def _named(self) -> list[Effect]:
        self._move(FeedEvent.NAMED)
        return [self._feed()]

    def _feed(self) -> FeedArchive:
        self._feeding += 1
        return FeedArchive(self.batch)

    def _rewrite(self) -> None:
        self._again(((BATCH, msgspec.msgpack.encode(self.batch)),))

    def _forget_batch(self) -> None:
        self.batch = ArchiveBatch(self.batch.after, self.batch.after)
        self.state = FeedState.RESTING

    def _lack(self, lacking: bool, now: int) -> None:
        """Give a batch up whose steps died with another host: what is left is named anew (0132)."""
        if not lacking:
            self._lacking_since = None
            return
        if self._lacking_since is None:
            self._lacking_since = now
        elif now - self._lacking_since >= self.settings.patience_us and not self._feeding:
            self._lacking_since = None
            self._move(FeedEvent.LACKED)
            self.batch = ArchiveBatch(self.batch.after, self.batch.after)
            self._rewrite()

    def _forget(self) -> Store:
        """Delete the steps of a batch, and say on disk that it is done."""
        keys = [key for piece in self.batch.pieces for key in piece.keys]
        done: Writes = ()
        if self.settings.archive:
            number = self.batch.number
            done = ((BATCH, msgspec.msgpack.encode(ArchiveBatch(number, number))),)
        gone = dict.fromkeys([*keys, *self.batch.strays])
        return Store(self._token, (*done, *((key, None) for key in gone)))

    def _deleted(self, now: int) -> list[Effect]:
        self._move(FeedEvent.DELETED)
        full = len(self.batch.pieces) >= BATCH_PIECES_MAX
        number = self.batch.number if self.settings.archive else self.batch.after
        self.batch = ArchiveBatch(number, number)
        if full:
            self._look_at(now)
        return []
