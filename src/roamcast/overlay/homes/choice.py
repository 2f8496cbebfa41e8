"""The choice of a home broker: by cost of the path and by load, without time or network.

A candidate has a path before it, from the producers, and one after it, to the client. What a
modulator lets through goes on from there, so a share of 0.1 passed makes the path after it cheap
and draws the home upstream. A loaded broker is not chosen, though nearer (OO 2.4).
"""

import enum
import math
from collections.abc import Iterable
from typing import Final

import msgspec

from roamcast.model.machine import step


class HomeCandidate(msgspec.Struct, frozen=True, gc=False):
    """A broker that could serve a client."""

    broker: str
    before: float
    """Mean hops from the producers to it."""
    after: float
    """Hops from it to the client; infinite where there is no path."""
    loaded: bool = False
    """Whether it takes no more clients."""
    battery: float = 1.0
    """Share of its energy that is left, above 0; 1 on mains."""


class HomePolicy(msgspec.Struct, frozen=True, gc=False):
    """What a home is chosen for; the weights are multiplied with costs in hops."""

    latency: float = 1.0
    """Hops from producer to consumer."""
    bytes: float = 0.0
    """Hops weighed with the share of bytes that travel each."""
    power: float = 0.0
    """The same, dearer at a broker whose battery is low."""

    def cost(self, candidate: HomeCandidate, passed: float) -> float:
        """Weigh a candidate; `passed` is the share of bytes that leave the client's modulator."""
        hops = candidate.before + candidate.after
        if hops == math.inf:  # which no weight of 0 makes cheaper
            return math.inf
        carried = candidate.before + passed * candidate.after
        weighed = self.latency * hops + self.bytes * carried
        return weighed + self.power * carried / max(candidate.battery, 0.01)


LATENCY: Final = HomePolicy()
BYTES: Final = HomePolicy(latency=0.0, bytes=1.0)
POWER: Final = HomePolicy(latency=0.0, power=1.0)


class HomeReason(enum.StrEnum):
    """Why a client has the home it has."""

    FIRST = "first home"
    ITSELF = "it came by itself"
    SHORTER = "shorter path"
    UNREACHABLE = "old home out of reach"
    LOAD = "old home overloaded"
    STAYS = "no candidate is better"
    LOADED = "the better candidates are loaded"


class Choice(msgspec.Struct, frozen=True, gc=False):
    """A home, and why; "" where there is none."""

    broker: str
    reason: HomeReason


def choose_home(
    home: HomeCandidate | None,
    candidates: Iterable[HomeCandidate],
    *,
    policy: HomePolicy = LATENCY,
    passed: float = 1.0,
    gain: float = 0.0,
    leave: bool = False,
) -> Choice:
    """Choose between the present home and others; equal costs go to the first name.

    A candidate must be cheaper than the home by more than `gain`. With `leave` the home is
    overloaded itself: any candidate that is not will do.
    """
    found = list(candidates)
    costs = {other.broker: policy.cost(other, passed) for other in found}
    here = policy.cost(home, passed) if home is not None else math.inf
    within = math.inf if leave else here - gain
    better = [
        other
        for other in found
        if costs[other.broker] < within and (home is None or other.broker != home.broker)
    ]
    free = [other for other in better if not other.loaded]
    if not free:
        name = home.broker if home is not None else ""
        return Choice(name, HomeReason.LOADED if better else HomeReason.STAYS)
    best = min(free, key=lambda other: (costs[other.broker], other.broker)).broker
    if home is None:
        return Choice(best, HomeReason.FIRST)
    if here == math.inf:
        return Choice(best, HomeReason.UNREACHABLE)
    return Choice(best, HomeReason.LOAD if leave else HomeReason.SHORTER)


class Direction(enum.StrEnum):
    """Which way a modulator moves (OO 3.4)."""

    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"
    HORIZONTAL = "horizontal"


def direction(home: HomeCandidate, to: HomeCandidate) -> Direction:
    """Say whether a new home lies nearer to the producers, else nearer to the client."""
    if to.before < home.before:
        return Direction.UPSTREAM
    if to.before > home.before and to.after < home.after:
        return Direction.DOWNSTREAM
    return Direction.HORIZONTAL


class LoadState(enum.StrEnum):
    """Whether a broker takes clients."""

    OPEN = "open"
    LOADED = "loaded"


class LoadEvent(enum.StrEnum):
    """What its load did."""

    ROSE = "reached the upper threshold"
    FELL = "fell to the lower threshold"


LOAD_TABLE: Final = {
    (LoadState.OPEN, LoadEvent.ROSE): LoadState.LOADED,
    (LoadState.LOADED, LoadEvent.FELL): LoadState.OPEN,
}


class LoadGauge:
    """A broker's load with hysteresis: loaded from the upper threshold down to the lower one."""

    def __init__(self, high: float = 0.7, low: float = 0.5) -> None:
        assert 0 < low <= high
        self.state = LoadState.OPEN
        self.load = 0.0
        self._high = high
        self._low = low

    def measure(self, load: float) -> bool:
        """Take a measured load; say whether the state changed."""
        self.load = load
        event = None
        if self.state is LoadState.OPEN and load >= self._high:
            event = LoadEvent.ROSE
        elif self.state is LoadState.LOADED and load <= self._low and load < self._high:
            event = LoadEvent.FELL
        if event is not None:
            self.state = step(LOAD_TABLE, self.state, event)
        return event is not None
