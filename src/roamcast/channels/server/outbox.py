"""The queue of one client: what waits, and the batch on its way (AMS, basic unicast design).

0060: reliable unicast is stop-and-wait, as a remote procedure call is: one batch on its way,
repeated until its receipt comes. What happens meanwhile waits, and of each context only the latest
state. So batching and coalescing follow the client's own pace, and so do the pages of a large
current set (0058). A client whose queue exceeds its bound is told the reason once, and dropped.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from roamcast.channels.server.messages import (
    ITEMS_MAX,
    Announce,
    Batch,
    Closing,
    Dropped,
    Opening,
    Parcel,
    Refused,
    State,
    Superseded,
    payload_of,
    size_of,
)
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.spread.streams import Ledger

SEATS_MAX: Final = 16_384
"""How many seats of the map one batch looks at: in a large map few may satisfy a query."""

Key = tuple[str, str, int]
"""(kind, what it is about, number): items of equal keys take each other's place."""
Fresh = Callable[[State], State]
"""Gives the present state in place of one that has waited."""
Waiting = State | Announce | Opening | Closing | Refused | Dropped | Superseded


class Pager(msgspec.Struct):
    """A cursor over the map's seats: how far one subscription's current set has been listed.

    0058: a client that rides on no carousel gets a large current set in pages, made of the present
    states as its batches leave. A context that was on the map when the listing was opened, and has
    not changed since, still has its seat, so it is listed. Whatever appears, changes or leaves
    meanwhile is sent as every change is. So nothing is missed, and the client drops duplicates.
    """

    subscription: str
    as_of: int
    queries: tuple[int, ...]
    complete: bool
    """Whether everything there is to list is known here."""
    at: int = 0

    def page(
        self,
        seats: Sequence[str | None],
        state_of: Callable[[str], State | None],
        room_bytes: int,
        states_max: int,
    ) -> tuple[list[State], bool]:
        """Give the next states, at least one if there is any, and whether these were the last."""
        states: list[State] = []
        last = min(len(seats), self.at + SEATS_MAX)
        while self.at < last and len(states) < states_max:
            vid = seats[self.at]
            state = None if vid is None else state_of(vid)
            if state is not None:
                room_bytes -= size_of_state(state)
                if states and room_bytes < 0:
                    break
                states.append(state)
            self.at += 1
        return states, self.at >= len(seats)


Turn = Callable[[Pager, int, int], tuple[list[State], bool]]
"""Gives the next states of a current set: at most so many bytes and states, and whether it ends."""


class Outbox:
    """The queue of one client's session."""

    def __init__(self, epoch: int, session: int, opened: int, settings: MapSettings) -> None:
        self.opened = opened
        self.items_max = settings.outbox_items_max
        self.number = 0
        self.coalesced = 0
        self.due: int | None = None
        self.pagers: dict[str, Pager] = {}
        """Current sets that are listed in pages, one after the other."""
        self._epoch = epoch
        self._session = session
        self._settings = settings
        self._waiting: dict[Key, Waiting] = {}
        self._states = 0
        self._in_flight: Batch | None = None
        self._attempts = 0
        self._full = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def room(self) -> int:
        """How many more items may wait."""
        return self.items_max - len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is on its way."""
        return not self._waiting and not self.pagers and self._in_flight is None

    def add(self, item: Waiting, listing: str = "") -> bool:
        """Queue an item; a later state of a context takes the place of an earlier one.

        `listing`: the subscription whose answer the item belongs to; such items stay between its
        opening and its closing. False if the queue is full: then everything in it was given up for
        one `Dropped`, and until `reopen` it takes only items that concern no subscription.
        """
        if self._full and not isinstance(item, Superseded | Refused):
            return False
        key = (
            ("listed " + listing, item.vid, 0)
            if listing and isinstance(item, State)
            else _key(item, len(self._waiting))
        )
        earlier = self._waiting.get(key)
        if isinstance(earlier, Announce):
            item = earlier  # of the same channels, but from the position the client needs
        if listing or isinstance(item, Opening | Closing):
            # A listing comes after everything that waits, also after an earlier one of its name.
            self._states -= isinstance(self._waiting.pop(key, None), State)
        if key in self._waiting:
            self.coalesced += 1
        elif len(self._waiting) >= self.items_max:
            if not self._full:
                self.clear("too slow: more updates wait than a client may have")
            return False
        elif isinstance(item, State):
            self._states += 1
        self._waiting[key] = item
        return True

    def clear(self, reason: str) -> None:
        """Give up what waits and queue the reason; what concerns no subscription stays."""
        most = self._settings.outbox_items_max - 1
        staying = [pair for pair in self._waiting.items() if isinstance(pair[1], Superseded)]
        self._waiting = {("dropped", "", 0): Dropped(reason), **dict(staying[:most])}
        self._states = 0
        self.pagers.clear()
        self._full = True

    def reopen(self) -> None:
        """Take items again: a client that was dropped subscribes anew."""
        self._full = False

    def list_later(self, pager: Pager) -> None:
        """List a current set in pages, after its opening."""
        if not self._full:
            self.pagers[pager.subscription] = pager

    def waits(self, now: int) -> bool:
        """Whether nothing may leave now: nothing waits, or the receipt of a batch may yet come."""
        if self._in_flight is not None:
            return self.due is not None and now < self.due
        if self._waiting or self.pagers:
            return False
        self.due = None
        return True

    def poll(
        self, now: int, ledger: Ledger | None, number: int, fresh: Fresh, turn: Turn
    ) -> Batch | None:
        """Give what may leave now: the batch on its way if it is due again, else the next batch.

        `number` is that of the last update. `fresh` is needed because the client may have received
        a later state than one that waits by a channel, and forgotten it.
        """
        if self.waits(now):
            return None
        if self._in_flight is None:
            room = None if ledger is None else ledger.room(now)
            self._in_flight = self._next(room, number, fresh, turn)
            if self._in_flight is None:
                self.due = now + (1_000 if self.pagers else self._settings.flush_us)
                return None
            self._attempts = 0
        batch = self._in_flight
        if ledger is not None:
            size = size_of(batch)
            if ledger.room(now, control=True) < size:
                self.due = now + self._settings.flush_us
                return None
            ledger.charge(now, size)
        wait = min(
            self._settings.repeat_us << min(self._attempts, 16), self._settings.repeat_us_max
        )
        self._attempts += 1
        self.due = now + wait
        return batch

    def receipt(self, number: int) -> bool:
        """Take a receipt; False if it is not that of the batch on its way."""
        if self._in_flight is None or number != self._in_flight.number:
            return False
        self._in_flight = None
        self.due = None
        return True

    def _next(self, room: int | None, number: int, fresh: Fresh, turn: Turn) -> Batch | None:
        """Take as many items from the front as a batch may hold, at least one if there is room.

        While a current set is listed, half of each batch is for it, however much changes.
        """
        limit = self._settings.batch_bytes_max
        most = None if room is None else room - _HEAD_BYTES
        if most is not None:
            limit = min(limit, most)
        elif self.pagers:
            limit //= 2
        taken: list[Waiting] = []
        keys: list[Key] = []
        total = 0
        for key, waiting in self._waiting.items():
            item = fresh(waiting) if isinstance(waiting, State) else waiting
            size = _size(item)
            if taken and (total + size > limit or len(taken) == ITEMS_MAX):
                break
            if most is not None and size > most:
                break  # only without a limit may one large item exceed a batch
            taken.append(item)
            keys.append(key)
            total += size
        for key in keys:
            self._states -= isinstance(self._waiting.pop(key), State)
        if self.pagers:
            assert room is None, "a client with a limit gets no pages"
            taken += self._pages(self._settings.batch_bytes_max - total, len(taken), turn)
        if not taken:
            return None
        self.number += 1
        payload = payload_of(Parcel(self._epoch, tuple(taken), (self._states,), number))
        return Batch(self._epoch, self._session, self.number, payload, self.opened)

    def _pages(self, room: int, items: int, turn: Turn) -> list[Waiting]:
        """Go on with the current sets whose opening has left, until there is no more room."""
        taken: list[Waiting] = []
        while self.pagers and room > 0 and items + len(taken) < ITEMS_MAX - 1:
            name, pager = next(iter(self.pagers.items()))
            if ("Opening", name, 0) in self._waiting:
                break
            states, ends = turn(pager, room, ITEMS_MAX - 1 - items - len(taken))
            taken += states
            room -= sum(map(size_of_state, states)) + _CLOSING_BYTES
            if not ends:
                break
            taken.append(Closing(name, pager.as_of, pager.complete))
            del self.pagers[name]
        return taken


_CLOSING_BYTES: Final = 64
"""About the size of a `Closing`; a long name makes it larger."""
_HEAD_BYTES: Final = 72
"""At most the heads of a batch and of its parcel."""


def _key(item: Waiting, count: int) -> Key:
    match item:
        case State(vid=vid):
            return ("state", vid, 0)
        case Announce(query=query, stream=stream, version=version):
            return ("stream", f"{stream}/{version}", query)
        case Opening(subscription=name) | Closing(subscription=name):
            return (type(item).__name__, name, 0)
        case Refused(kind=kind, name=name):
            return (f"refused {kind}", name, count)
        case Superseded(vid=vid):
            return ("superseded", vid, 0)
    return ("dropped", "", 0)


def _size(item: Waiting) -> int:
    """Bound an item's bytes without encoding it where that is easy."""
    if isinstance(item, State):
        return size_of_state(item)
    return len(msgspec.msgpack.encode(item)) + 8


def size_of_state(state: State) -> int:
    """Bound a state's bytes without encoding it."""
    return len(state.body) + len(state.vid) * 4 + 24
