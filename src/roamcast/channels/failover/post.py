"""A host that may serve: its watchdog, the copy it keeps while it stands by, and its server.

The watchdog says when the server starts and ends. While another host serves and nothing here uses
the disk, the store of that host is followed; before the server starts, following stops. Live, the
server is a process of its own, so `Start` and `Stop` leave as effects; in the simulator the post
makes the server itself and runs it inside.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from roamcast.channels.failover.epochs import SteppedDown
from roamcast.channels.failover.following import Following
from roamcast.channels.failover.messages import Alive
from roamcast.channels.failover.replica_messages import StoreChanges, StorePage
from roamcast.channels.failover.replication import ReplicaGone
from roamcast.channels.failover.watchdog import (
    MAP_SERVER,
    Watchdog,
    WatchdogSettings,
    WatchdogState,
)
from roamcast.channels.server.messages import ServerHere
from roamcast.model.addresses import Watchdog as WatchdogAddress
from roamcast.model.machine import (
    Effect,
    Ended,
    Input,
    Merge,
    Merged,
    PageRead,
    ReadPage,
    Received,
    Send,
    Start,
    Stop,
    Store,
    Stored,
    StoreFailed,
    earliest,
)
from roamcast.model.parts import DISK_ANSWERS, DISK_EFFECTS, Occupancy

_FOLLOWERS: Final = (StorePage, StoreChanges)
"""Messages for the copy alone; `OfferTaken` is for whichever part is up."""


class ServerMachine(Protocol):
    """A server as a post runs it."""

    @property
    def epoch(self) -> int:
        """The epoch it serves in."""

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Take one input."""

    def advance(self, now: int) -> Sequence[Effect]:
        """Do what time demands."""

    def deadline(self) -> int | None:
        """When to call `advance`."""

    def occupancy(self) -> Occupancy:
        """How much is held of what, and the bound of each."""


MakeServer = Callable[[int, int], ServerMachine]
"""(epoch, now) → a server of this host, restored from its disk as it is now."""


class Post:
    """One host that may serve."""

    def __init__(
        self,
        name: str,
        *,
        seats: Sequence[str],
        now: int,
        settings: WatchdogSettings,
        make_server: MakeServer | None = None,
        following: Following | None = None,
    ) -> None:
        """Without `make_server` the driver carries out `Start` and `Stop`.

        Without `following` no store is copied: the map alone survives, as in AMS.
        """
        self.name = name
        self.watchdog = Watchdog(name, seats=seats, now=now, settings=settings)
        self.following = following
        self.server: ServerMachine | None = None
        self._make_server = make_server
        self._running = 0
        """The epoch of the server that was started and has not ended, 0 if there is none."""
        self._copying = False
        self._last_here: Received | None = None
        self._tokens: dict[int, tuple[object, int]] = {}
        self._token = 0

    def occupancy(self) -> Occupancy:
        """How much the server and the copy hold."""
        held = {} if self.server is None else dict(self.server.occupancy())
        if self.following is not None:
            held |= self.following.occupancy()
        return held

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Give each part what is meant for it."""
        if isinstance(given, Ended):
            return self._perform(self._ended(given, now), now, self.watchdog)
        if isinstance(given, DISK_ANSWERS):
            return self._disk_answer(given, now)
        if isinstance(given, ReplicaGone) and self._copying and self.following is not None:
            return self._perform(self.following.receive(given, now), now, self.following)
        out: list[Effect] = []
        message = given.message if isinstance(given, Received) else None
        if isinstance(given, Received) and isinstance(message, Alive | ServerHere):
            out += self._perform(self.watchdog.receive(given, now), now, self.watchdog)
            if isinstance(message, ServerHere):
                self._last_here = given
        if isinstance(message, Alive):
            return out
        if self.server is not None and not isinstance(message, _FOLLOWERS):
            out += self._perform(self.server.receive(given, now), now, self.server)
        elif self._copying and isinstance(given, Received):
            out += self._follow(given, now)
        return out + self._review(now)

    def _follow(self, given: Received, now: int) -> list[Effect]:
        assert self.following is not None
        if not self.following.takes(given):
            return []  # for a server, and none is up
        return self._perform(self.following.receive(given, now), now, self.following)

    def advance(self, now: int) -> Sequence[Effect]:
        """Let all do what is due, the server first: its end may be the watchdog's turn."""
        out: list[Effect] = []
        if self.server is not None:
            out += self._perform(self.server.advance(now), now, self.server)
        if self._copying and self.following is not None:
            out += self._perform(self.following.advance(now), now, self.following)
        out += self._perform(self.watchdog.advance(now), now, self.watchdog)
        return out + self._review(now)

    def deadline(self) -> int | None:
        """The earliest of all."""
        server = None if self.server is None else self.server.deadline()
        copying = self.following.deadline() if self._copying and self.following else None
        return earliest(self.watchdog.deadline(), server, copying)

    def fall(self, now: int) -> Sequence[Effect]:
        """The server crashes and the rest of the host does not: a fault for tests."""
        if self.server is None:
            return []
        return self.receive(Ended(MAP_SERVER, self.server.epoch), now)

    def _ended(self, given: Ended, now: int) -> list[Effect]:
        if given.epoch == self._running:
            self._running = 0
            self.server = None
        return [*self.watchdog.receive(given, now), *self._review(now)]

    def _review(self, now: int) -> list[Effect]:
        """Follow whoever serves while this host stands by and nothing of it uses the disk."""
        if self.following is None:
            return []
        standing_by = self.watchdog.state is WatchdogState.STANDBY and not self._running
        if standing_by and not self._copying:
            self._copying = True
            if self._last_here is not None:
                heard = self.following.receive(self._last_here, now)
                return self._perform(heard, now, self.following)
        elif not standing_by and self._copying:
            self._stop_copying()
        return []

    def _stop_copying(self) -> None:
        assert self.following is not None
        self._copying = False
        self.following.stop()
        self._tokens = {
            token: owner for token, owner in self._tokens.items() if owner[0] is not self.following
        }

    def _disk_answer(
        self, given: Stored | StoreFailed | Merged | PageRead, now: int
    ) -> Sequence[Effect]:
        """Give the disk's answer to whoever asked, if that is still there."""
        owner, token = self._tokens.pop(given.token, (None, 0))
        if owner is None or owner not in (self.server, self.following):
            return []
        own = msgspec.structs.replace(given, token=token)
        machine = self.server if owner is self.server else self.following
        assert machine is not None
        return self._perform(machine.receive(own, now), now, machine)

    def _perform(self, effects: Sequence[Effect], now: int, origin: object) -> list[Effect]:
        """Carry out what concerns this host; the rest is for the driver."""
        out: list[Effect] = []
        waiting = deque((effect, origin) for effect in effects)
        while waiting:
            effect, part = waiting.popleft()
            if isinstance(effect, Start):
                self._running = effect.epoch
                if self._copying:
                    self._stop_copying()
                if self._make_server is None:
                    out.append(effect)
                else:
                    server = self.server = self._make_server(effect.epoch, now)
                    waiting.extend((more, server) for more in server.advance(now))
            elif isinstance(effect, Stop) and self._make_server is not None:
                ended = self._ended(Ended(MAP_SERVER, self._running), now)
                waiting.extend((more, self.watchdog) for more in ended)
            elif isinstance(effect, SteppedDown):
                ended = self._ended(Ended(MAP_SERVER, effect.epoch), now)
                waiting.extend((more, self.watchdog) for more in ended)
            elif isinstance(effect, Send) and self._is_own(effect):
                waiting.extend(self._own(effect, now))
            elif isinstance(effect, DISK_EFFECTS):
                out.append(self._numbered(effect, part))
            else:
                out.append(effect)
        return out

    def _is_own(self, effect: Send) -> bool:
        """Whether a message stays on this host and inside this machine."""
        return effect.to.name == self.name and self._make_server is not None

    def _own(self, effect: Send, now: int) -> list[tuple[Effect, object]]:
        """Deliver what parts of this host say to each other."""
        given = Received(self.name, effect.message)
        if isinstance(effect.to, WatchdogAddress):
            return [(more, self.watchdog) for more in self.watchdog.receive(given, now)]
        if self.server is None:
            return []
        return [(more, self.server) for more in self.server.receive(given, now)]

    def _numbered(self, effect: Store | Merge | ReadPage, part: object) -> Effect:
        self._token += 1
        self._tokens[self._token] = part, effect.token
        return msgspec.structs.replace(effect, token=self._token)
