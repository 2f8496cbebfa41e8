"""What all of casts share at a node: what is held, what was asked for, what time demands."""

from collections import Counter
from collections.abc import Callable, Sequence

from roamcast.model.machine import Effect, Writes
from roamcast.model.parts import Timers
from roamcast.overlay.casts.delivery import CastDelivery, What
from roamcast.overlay.casts.held import HeldCast, StoredEnd
from roamcast.overlay.casts.requests import Requests
from roamcast.overlay.casts.settings import CastSettings
from roamcast.overlay.casts.spreading import Spreading
from roamcast.overlay.casts.waiting import WaitingCasts
from roamcast.overlay.events import HandleParcel, ParcelArrived, ParcelId


class HeldCasts:
    """The casts at a node and everything that works on them."""

    def __init__(
        self,
        settings: CastSettings,
        *,
        requests: Requests,
        timers: Timers[What],
        delivery: CastDelivery,
        waiting: WaitingCasts,
        spreading: Spreading | None,
    ) -> None:
        self.settings = settings
        self.requests = requests
        self.timers = timers
        self.delivery = delivery
        self.waiting = waiting
        self.spreading = spreading
        self.node = delivery.node
        self.casts: dict[str, HeldCast] = {}
        self.by_sender: Counter[str] = Counter()
        """Senders at this node → their casts that are held, or on their way to the disk."""
        self.endings: dict[str, StoredEnd] = {}
        """Casts that are over, by id: repeats of them are known (trap 12)."""
        self.writing: dict[str, ParcelId | None] = {}
        """Casts on their way to the disk → the parcel that brought them."""
        self.planning: set[ParcelId] = set()
        """Parcels whose casts' filters are being taken apart."""
        self.to_look: dict[str, None] = {}
        """Casts that are to be looked up."""
        self.held_up: dict[ParcelId, ParcelArrived] = {}
        """Parcels that wait for room; they stay in custody."""
        self._handling: dict[ParcelId, Callable[[int], Sequence[Effect]]] = {}

    @property
    def full(self) -> bool:
        """Whether no more casts are taken."""
        return len(self.casts) + len(self.writing) >= self.settings.casts_max

    def hold(self, held: HeldCast) -> None:
        """Hold a cast from now on."""
        self.casts[held.id] = held
        if held.body.origin == self.node:
            self.by_sender[held.body.sender] += 1

    def let_go(self, held: HeldCast) -> None:
        """Hold a cast no longer."""
        del self.casts[held.id]
        if held.body.origin == self.node:
            self.count_out(held.body.sender)

    def count_out(self, sender: str) -> None:
        """Count one cast less of a sender."""
        self.by_sender[sender] -= 1
        if not self.by_sender[sender]:
            del self.by_sender[sender]

    def handle(
        self, parcel: ParcelId, writes: Writes, then: Callable[[int], Sequence[Effect]]
    ) -> list[Effect]:
        """End a parcel, together with what it changes; it comes again if the disk refuses."""
        self._handling[parcel] = then
        return [HandleParcel(parcel, writes)]

    def handled(self, parcel: ParcelId, now: int) -> Sequence[Effect]:
        """Take custody's word that a parcel has ended."""
        then = self._handling.pop(parcel, None)
        return () if then is None else then(now)

    def wait_for_room(self, given: ParcelArrived, now: int) -> list[Effect]:
        """Leave a parcel in custody until there is room."""
        self.held_up[given.parcel] = given
        self.timers.sooner(("room", "", 0), now + self.settings.retry_us)
        return []


def ignore(done: bool, now: int) -> Sequence[Effect]:
    """Let nothing follow: a crash or a failed write leaves something that does no harm."""
    del done, now
    return ()
