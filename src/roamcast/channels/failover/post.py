"""What runs on a host that may serve? A watchdog, and inside the same machine the server it starts.

A driver runs a post like any other machine. Where watchdog and server are processes of their own,
their driver does what is done here: it carries out `Start` and `Stop`, gives an `Ended` when the
server is gone or says `SteppedDown`, and gives each what is meant for it.
"""

from collections import deque
from collections.abc import Callable, Sequence

from roamcast.channels.failover.merging import SteppedDown
from roamcast.channels.failover.messages import Alive
from roamcast.channels.failover.watchdog import MAP_SERVER, Watchdog, WatchdogSettings
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.messages import ServerHere
from roamcast.model.machine import (
    Effect,
    Ended,
    Input,
    Received,
    Send,
    Start,
    Stop,
    earliest,
)

MakeServer = Callable[[int, int], MapServer]
"""(epoch, now) → a server of this host that knows all seats as its peers."""


class Post:
    """One host that may serve."""

    def __init__(
        self,
        name: str,
        *,
        seats: Sequence[str],
        now: int,
        settings: WatchdogSettings,
        make_server: MakeServer,
    ) -> None:
        self.name = name
        self.watchdog = Watchdog(name, seats=seats, now=now, settings=settings)
        self.server: MapServer | None = None
        self._make_server = make_server

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much the server holds, if there is one."""
        return {} if self.server is None else self.server.occupancy()

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Give each what is meant for it."""
        if isinstance(given, Ended):
            return self._perform(self.watchdog.receive(given, now), now)
        out: list[Effect] = []
        message = given.message if isinstance(given, Received) else None
        if isinstance(message, Alive | ServerHere):
            out += self._perform(self.watchdog.receive(given, now), now)
        if self.server is not None and not isinstance(message, Alive):
            out += self._perform(self.server.receive(given, now), now)
        return out

    def advance(self, now: int) -> Sequence[Effect]:
        """Let both do what is due, the server first: its end may be the watchdog's turn."""
        out: list[Effect] = []
        if self.server is not None:
            out += self._perform(self.server.advance(now), now)
        return out + self._perform(self.watchdog.advance(now), now)

    def deadline(self) -> int | None:
        """The earlier of the two."""
        server = None if self.server is None else self.server.deadline()
        return earliest(self.watchdog.deadline(), server)

    def fall(self, now: int) -> Sequence[Effect]:
        """The server crashes and the rest of the host does not: a fault for tests."""
        if self.server is None:
            return []
        epoch, self.server = self.server.epoch, None
        return self.receive(Ended(MAP_SERVER, epoch), now)

    def _perform(self, effects: Sequence[Effect], now: int) -> list[Effect]:
        """Carry out what concerns this host; the rest is for the driver."""
        out: list[Effect] = []
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            if isinstance(effect, Start):
                self.server = self._make_server(effect.epoch, now)
                waiting.extend(self.server.advance(now))
            elif isinstance(effect, Stop):
                self.server = None
            elif isinstance(effect, SteppedDown):
                self.server = None
                waiting.extend(self.watchdog.receive(Ended(MAP_SERVER, effect.epoch), now))
            elif isinstance(effect, Send) and effect.to.name == self.name:
                heard = Received(self.name, effect.message)
                if isinstance(effect.message, Alive):
                    waiting.extend(self.watchdog.receive(heard, now))
                elif self.server is not None:
                    waiting.extend(self.server.receive(heard, now))
            else:
                out.append(effect)
        return out
