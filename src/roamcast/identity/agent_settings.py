"""Settings of user agents: trust in each source, freshness, dwell time, heartbeat."""

import msgspec
import numpy as np
import numpy.typing as npt

from roamcast.errors import InputError
from roamcast.identity.sightings import SOURCES
from roamcast.model.time import MICROSECONDS

RELIABILITY_MAX = 1_000
DURATION_MAX = 366 * 86_400 * MICROSECONDS
"""A year, in microseconds; times RELIABILITY_MAX, it fits into 64 bits with room to spare."""

HEARTBEAT, DWELL, MARGIN, RELIABILITY = 0, 1, 2, 3
FRESH = RELIABILITY + len(SOURCES)
SETTINGS_WIDTH = FRESH + len(SOURCES)
"""Indices and length of the vector that the compiled rules read."""


class Source(msgspec.Struct, frozen=True):
    """How far a kind of source is trusted, and for how long after a sighting."""

    reliability: int
    fresh_s: float


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a user agent; durations in seconds.

    `heartbeat_s`: silence of all sources for longer ends the context at the last sighting.
    `dwell_s`: a new place must win for this long before it counts, then from its first win on.
    `margin`: by how much a new place's support must exceed the current place's (hysteresis).
    """

    heartbeat_s: float = 300.0
    dwell_s: float = 20.0
    margin: int = 10
    badge: Source = Source(90, 60.0)
    wifi: Source = Source(50, 180.0)
    login: Source = Source(80, 120.0)
    gps: Source = Source(40, 120.0)

    def vector(self) -> npt.NDArray[np.int64]:
        """Return the checked settings as the vector of `agent_core` (durations in µs)."""
        sources: list[Source] = [getattr(self, name) for name in SOURCES]
        if not 0 <= self.margin <= RELIABILITY_MAX:
            raise InputError(f"margin is not between 0 and {RELIABILITY_MAX}")
        for name, source in zip(SOURCES, sources, strict=True):
            if not 1 <= source.reliability <= RELIABILITY_MAX:
                raise InputError(f"{name}: reliability is not between 1 and {RELIABILITY_MAX}")
        numbers = [
            _microseconds("heartbeat_s", self.heartbeat_s, least=1),
            _microseconds("dwell_s", self.dwell_s, least=0),
            self.margin,
            *(source.reliability for source in sources),
            *(_microseconds("fresh_s", source.fresh_s, least=1) for source in sources),
        ]
        return np.array(numbers, dtype=np.int64)


def _microseconds(name: str, seconds: float, *, least: int) -> int:
    limit_s = DURATION_MAX // MICROSECONDS
    if not 0 <= seconds <= limit_s or round(seconds * MICROSECONDS) < least:  # also catches NaN
        raise InputError(
            f"{name} is not a duration between {'0' if least == 0 else '1 µs'} and {limit_s} s"
        )
    return round(seconds * MICROSECONDS)
