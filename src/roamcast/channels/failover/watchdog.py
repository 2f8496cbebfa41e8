"""Is there a map server, and who starts one if not? One watchdog on every host that may serve.

(AMS, Availability: "a distributed watch-dog facility can monitor and restart the server", on any
host.) A watchdog probes the server it knows of, on its own host or on another. Only an answer
counts, because announcements say nothing of what reaches the server. A silent server on its own
host is started again; one on another host is replaced, by the seats in their order: each next one
waits longer, so that it hears of the one before. If two start nevertheless, as the two sides of a
partition do, the newer epoch wins as soon as they hear each other, and the older steps down.
"""

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from roamcast.channels.failover.epochs import SEATS_MAX, credible, epoch_at, genuine, seat_of
from roamcast.channels.failover.messages import Alive, Probe
from roamcast.channels.server.messages import WELL_KNOWN, ServerHere
from roamcast.model.addresses import Replica
from roamcast.model.machine import (
    Effect,
    Ended,
    Input,
    Listen,
    Received,
    Send,
    Start,
    Stop,
    earliest,
    step,
)
from roamcast.model.records import ChannelStep

MAP_SERVER: Final = "map server"
"""The part of its host that a watchdog starts and stops."""


class WatchdogState(enum.StrEnum):
    """Who serves, as a watchdog knows."""

    STANDBY = "another host serves, or nobody yet"
    SERVING = "the server of this host serves"
    RESTING = "the server of this host has ended and starts again in a moment"
    LEAVING = "the server of this host hands over to a newer one"


class WatchdogEvent(enum.StrEnum):
    """What moves a watchdog from state to state."""

    SILENT = "the server is silent for too long"
    ENDED = "the server of this host has ended"
    DUE = "it is time to start again"
    NEWER = "a newer server was heard"
    OUTDATED = "clients know a newer epoch, but nobody hears its server"


_STATE, _EVENT = WatchdogState, WatchdogEvent

WATCHDOG_TABLE: Final = {
    (_STATE.STANDBY, _EVENT.SILENT): _STATE.SERVING,
    (_STATE.STANDBY, _EVENT.NEWER): _STATE.STANDBY,
    (_STATE.SERVING, _EVENT.SILENT): _STATE.RESTING,
    (_STATE.SERVING, _EVENT.ENDED): _STATE.RESTING,
    (_STATE.SERVING, _EVENT.OUTDATED): _STATE.SERVING,
    (_STATE.SERVING, _EVENT.NEWER): _STATE.LEAVING,
    (_STATE.RESTING, _EVENT.DUE): _STATE.SERVING,
    (_STATE.RESTING, _EVENT.NEWER): _STATE.STANDBY,
    (_STATE.LEAVING, _EVENT.NEWER): _STATE.LEAVING,
    (_STATE.LEAVING, _EVENT.ENDED): _STATE.STANDBY,
    (_STATE.LEAVING, _EVENT.DUE): _STATE.STANDBY,
}


class WatchdogSettings(msgspec.Struct, frozen=True):
    """Intervals in microseconds; the same on all seats."""

    probe_us: int = 500_000
    silent_us: int = 3_000_000
    """A server that answers nothing for so long is gone."""
    stagger_us: int = 1_000_000
    """Each seat waits so much longer than the one before it: more than a start takes."""
    rest_us: int = 100_000
    """How long a server that ended rests before it starts again; twice as long each time."""
    rest_us_max: int = 10_000_000
    """Beyond `silent_us` and the staggers another host tries before this one tries again."""
    leave_us: int = 10_000_000
    """A server that has not handed over by then is stopped."""


class Watchdog:
    """The watchdog of one seat."""

    def __init__(
        self, name: str, *, seats: Sequence[str], now: int, settings: WatchdogSettings
    ) -> None:
        """`seats`: the hosts that may serve, in their order of precedence, this one among them."""
        assert len(seats) <= SEATS_MAX
        assert len(set(seats)) == len(seats)
        self.name = name
        self.seat = list(seats).index(name)
        self.state = WatchdogState.STANDBY
        self.newest = 0
        """The newest epoch heard of; while serving, its own at least."""
        self.epoch = 0
        """The epoch of the server that is probed."""
        self._seats = tuple(seats)
        self._settings = settings
        self._answered_us = now
        self._started_us = now
        self._probe_at = now
        self._start_at: int | None = None
        self._leave_at: int | None = None
        self._outdated_at: int | None = None
        self._starts = 0
        self._booting = True

    @property
    def server(self) -> str:
        """The host that serves, as far as this watchdog knows; "" at first."""
        return self._seats[seat_of(self.epoch)] if self.epoch else ""

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Take an announcement, an answer, or the end of the own server."""
        match given:
            case Received(sender, ServerHere(epoch=epoch)):
                if epoch > self.newest or epoch == self.newest > self.epoch:
                    return self._hear(sender, epoch, now)
            case Received(_, Alive(epoch, newest)):
                if epoch == self.epoch:
                    self._answered_us = now
                if newest > self.newest and credible(newest, self._seats, now):
                    self.newest = newest
                    if self.state is WatchdogState.SERVING:
                        # Where its server lives we hear it within this time, and step down.
                        self._outdated_at = now + self._settings.silent_us
            case Ended(part, epoch) if part == MAP_SERVER and epoch == self.epoch:
                if self.state is WatchdogState.SERVING:
                    return self._rest(WatchdogEvent.ENDED, now)
            case Ended(part) if part == MAP_SERVER and self.state is WatchdogState.LEAVING:
                self._left(WatchdogEvent.ENDED)
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        """Probe; start or stop what must be."""
        effects: list[Effect] = []
        if self._booting:
            self._booting = False
            effects.append(Listen(WELL_KNOWN))
        if now - self._probe_at > self._settings.silent_us // 2:
            self._answered_us = now  # we slept: who did not answer meanwhile may be well
        if now >= self._probe_at:
            self._probe_at = now + self._settings.probe_us
            if self.server:
                effects.append(Send(Replica(self.server), Probe()))
        if self._leave_at is not None and now >= self._leave_at:
            self._left(WatchdogEvent.DUE)
            effects.append(Stop(MAP_SERVER))
        if self._start_at is not None and now >= self._start_at:
            effects += self._start(WatchdogEvent.DUE, now)
        elif self._outdated_at is not None and now >= self._outdated_at:
            effects += [Stop(MAP_SERVER), *self._start(WatchdogEvent.OUTDATED, now)]
        elif self._silent_at is not None and now >= self._silent_at:
            if self.state is WatchdogState.SERVING:
                effects += [Stop(MAP_SERVER), *self._rest(WatchdogEvent.SILENT, now)]
            else:
                effects += self._start(WatchdogEvent.SILENT, now)
        return effects

    def deadline(self) -> int | None:
        """The next probe, start, stop, or the moment from which silence counts."""
        return earliest(
            self._probe_at, self._start_at, self._leave_at, self._outdated_at, self._silent_at
        )

    @property
    def _silent_at(self) -> int | None:
        """From when on the server's silence is ours to answer."""
        if self.state is WatchdogState.SERVING:
            return self._answered_us + self._settings.silent_us
        if self.state is WatchdogState.STANDBY:
            turn = self.seat * self._settings.stagger_us
            return self._answered_us + self._settings.silent_us + turn
        return None

    def _hear(self, sender: str, epoch: int, now: int) -> list[Effect]:
        """A newer server: whoever we served or watched, this is the one now."""
        if not genuine(epoch, sender, self._seats, now):
            return []
        before, self.state = self.state, step(WATCHDOG_TABLE, self.state, WatchdogEvent.NEWER)
        self.epoch = self.newest = epoch
        self._answered_us = self._probe_at = now
        self._start_at = self._outdated_at = None
        if before is WatchdogState.SERVING:
            self._leave_at = now + self._settings.leave_us
        return [ChannelStep(WELL_KNOWN, "newer server", epoch, reason=sender)]

    def _start(self, event: WatchdogEvent, now: int) -> list[Effect]:
        self.state = step(WATCHDOG_TABLE, self.state, event)
        self.epoch = self.newest = epoch_at(now, self.seat, self.newest)
        self._start_at = self._outdated_at = None
        self._answered_us = self._started_us = now
        return [
            ChannelStep(WELL_KNOWN, "server started", self.epoch, reason=event.value),
            Start(MAP_SERVER, self.epoch),
        ]

    def _rest(self, event: WatchdogEvent, now: int) -> list[Effect]:
        """Start again after a while, a longer one the sooner the last life ended."""
        self.state = step(WATCHDOG_TABLE, self.state, event)
        settings = self._settings
        if now - self._started_us > 2 * settings.silent_us:
            self._starts = 0
        self._start_at = now + min(settings.rest_us << min(self._starts, 32), settings.rest_us_max)
        self._starts += 1
        self._outdated_at = None
        return [ChannelStep(WELL_KNOWN, "server ended", self.epoch, reason=event.value)]

    def _left(self, event: WatchdogEvent) -> None:
        self.state = step(WATCHDOG_TABLE, self.state, event)
        self._leave_at = None
