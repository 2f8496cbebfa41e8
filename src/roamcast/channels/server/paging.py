"""How does a client that rides on no carousel get a large current set? Page by page, at its pace.

Each such client has a cursor, not a copy of the set: pages are made as its batches leave, of the
states of that moment. The cursor goes once over the seats of the map. An object that was there when
the listing was opened and has not changed since has kept its seat, so it is listed; whatever
appears, changes or leaves meanwhile is told as every change is. So nothing is missed in between,
and the client drops what it hears twice.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from roamcast.channels.server.messages import State

SEATS_MAX: Final = 16_384
"""How many seats are looked at for one batch: of a large map few may satisfy a query."""


class Pager(msgspec.Struct):
    """How far one subscription's current set has been listed."""

    subscription: str
    as_of: int
    queries: tuple[int, ...]
    complete: bool
    """Whether all that there is to list is known here."""
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


def size_of_state(state: State) -> int:
    """Bound a state's bytes without encoding it."""
    return len(state.body) + len(state.vid) * 4 + 24
