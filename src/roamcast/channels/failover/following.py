"""A host that stands by copies the serving host's store, so that it can take over at once.

It asks the newest server it hears of to be followed, and repeats that as a beat: a server that has
dropped it, or lost its request, starts the copy again. Every page and every change is merged into
the disk here and confirmed only when it is there. Where this host's disk has newer entries, because
it served while nobody followed, it offers them to the server before it confirms the page.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from roamcast.channels.failover.epochs import genuine
from roamcast.channels.failover.replica_messages import (
    Follow,
    FollowerAck,
    OfferTaken,
    StoreChanges,
    StoreOffer,
    StorePage,
    pages,
)
from roamcast.channels.failover.replication import ReplicaGone
from roamcast.channels.server.messages import ServerHere
from roamcast.model.addresses import Replica
from roamcast.model.machine import (
    Effect,
    Entry,
    Input,
    Merge,
    Merged,
    PageRead,
    ReadPage,
    Received,
    Send,
    StoreFailed,
    earliest,
)
from roamcast.model.parts import Occupancy

MESSAGES_MAX: Final = 64
"""Messages that wait for the disk; a server sends one and repeats it, so this is plenty."""


class FollowingSettings(msgspec.Struct, frozen=True):
    """Intervals in microseconds."""

    beat_us: int = 1_000_000
    """Interval of the request to follow."""
    repeat_us: int = 1_000_000
    """Interval after which an offer that was not taken is sent again."""


class _Work(msgspec.Struct):
    """One page or one set of changes on its way into the disk."""

    message: StorePage | StoreChanges
    token: int
    offers: list[tuple[Entry, ...]] = []
    number: int = 0


class Following:
    """The copy of another host's store on a host that stands by."""

    def __init__(
        self, name: str, *, replicas: Sequence[str], settings: FollowingSettings | None = None
    ) -> None:
        self.name = name
        self.server = ""
        """The host that is followed, none at first."""
        self._epoch = 0
        self._replicas = tuple(replicas)
        self._settings = settings or FollowingSettings()
        self._token = 0
        self._number = 0
        self._queue: deque[StorePage | StoreChanges] = deque()
        self._work: _Work | None = None
        self._beat_at: int | None = None
        self._repeat_at: int | None = None

    def occupancy(self) -> Occupancy:
        """How many messages wait for the disk."""
        return {"messages": (len(self._queue), MESSAGES_MAX)}

    @staticmethod
    def takes(given: Received) -> bool:
        """Whether a message is for a host that stands by."""
        return isinstance(given.message, ServerHere | StorePage | StoreChanges | OfferTaken)

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Take what a server says, or what the disk answers."""
        match given:
            case Received(sender, ServerHere(epoch=epoch)):
                return self._hear(sender, epoch, now)
            case Received(sender, StorePage() | StoreChanges() as message):
                return self._take(sender, message)
            case Received(sender, OfferTaken(number)):
                return self._offer_taken(sender, number, now)
            case Merged(token):
                return self._merged(token)
            case PageRead(token, entries):
                return self._compare(token, entries, now)
            case StoreFailed(token):
                return self._failed(token)
            case ReplicaGone(address):
                if address.name == self.server:
                    self.stop()  # its next announcement begins the copy anew
                return []
            case _:
                raise AssertionError(f"following takes no {type(given).__name__}")

    def advance(self, now: int) -> Sequence[Effect]:
        """Ask to be followed, and repeat an offer that was not taken."""
        effects: list[Effect] = []
        if self._beat_at is not None and now >= self._beat_at:
            self._beat_at = now + self._settings.beat_us
            effects.append(Send(Replica(self.server), Follow(self._epoch)))
        if self._repeat_at is not None and now >= self._repeat_at:
            effects += self._offer(now)
        return effects

    def deadline(self) -> int | None:
        """The next beat or repetition."""
        return earliest(self._beat_at, self._repeat_at)

    def stop(self) -> None:
        """Follow nobody; what was not confirmed is not owed."""
        self.server, self._epoch = "", 0
        self._queue.clear()
        self._work = None
        self._beat_at = self._repeat_at = None

    def _hear(self, sender: str, epoch: int, now: int) -> list[Effect]:
        """A server announces itself: follow it if it is newer than the one that is followed."""
        if epoch <= self._epoch or not genuine(epoch, sender, self._replicas, now):
            return []
        if sender == self.name:
            return []  # of a life of this host that has ended
        self.stop()
        self.server, self._epoch = sender, epoch
        self._beat_at = now + self._settings.beat_us
        return [Send(Replica(sender), Follow(epoch))]

    def _take(self, sender: str, message: StorePage | StoreChanges) -> list[Effect]:
        if sender != self.server or message.epoch != self._epoch:
            return []
        if self._work is not None and self._work.message == message:
            return []  # it is being written
        if message in self._queue or len(self._queue) >= MESSAGES_MAX:
            return []
        self._queue.append(message)
        return self._next() if self._work is None else []

    def _next(self) -> list[Effect]:
        """Merge the next message, or compare at once where a page is empty."""
        self._work = None
        if not self._queue:
            return []
        message = self._queue.popleft()
        self._token += 1
        self._work = _Work(message, self._token)
        if message.entries:
            return [Merge(self._token, message.entries)]
        return self._merged(self._token)

    def _merged(self, token: int) -> list[Effect]:
        work = self._work
        if work is None or work.token != token:
            return []
        if isinstance(work.message, StoreChanges):
            return self._confirm()
        self._token += 1
        work.token = self._token
        return [ReadPage(self._token, work.message.after, work.message.until)]

    def _compare(self, token: int, ours: Sequence[Entry], now: int) -> list[Effect]:
        """Offer the server what it lacks of the page's keys, then confirm the page."""
        work = self._work
        if work is None or work.token != token:
            return []
        theirs = {entry.key: entry for entry in work.message.entries}
        newer = [
            entry
            for entry in ours
            if entry.key not in theirs or entry.rank > theirs[entry.key].rank
        ]
        work.offers = pages(newer)
        return self._offer(now) if work.offers else self._confirm()

    def _offer(self, now: int) -> list[Effect]:
        work = self._work
        assert work is not None
        assert work.offers
        if not work.number:
            # By time, as in `Replication`: an answer that was long on its way is to no later offer.
            self._number = max(self._number + 1, now)
            work.number = self._number
        self._repeat_at = now + self._settings.repeat_us
        return [Send(Replica(self.server), StoreOffer(work.number, work.offers[0]))]

    def _offer_taken(self, sender: str, number: int, now: int) -> list[Effect]:
        work = self._work
        if work is None or sender != self.server or not work.number or work.number != number:
            return []
        del work.offers[0]
        work.number = 0
        self._repeat_at = None
        return self._offer(now) if work.offers else self._confirm()

    def _confirm(self) -> list[Effect]:
        work = self._work
        assert work is not None
        ack = FollowerAck(self._epoch, work.message.number)
        return [Send(Replica(self.server), ack), *self._next()]

    def _failed(self, token: int) -> list[Effect]:
        """The disk refused: the server repeats what is not confirmed."""
        if self._work is None or self._work.token != token:
            return []
        return self._next()
