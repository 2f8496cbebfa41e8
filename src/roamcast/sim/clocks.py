"""Clocks of simulated hosts: off by an amount, too fast or too slow, stepped at a reboot.

A machine reads only its own host's clock; the kernel knows the true time. A clock never jumps while
its host is up: live drivers take the time of day at their start, and count on from there.
"""

import random
from typing import Final

import msgspec

ORIGIN_US: Final = 60_000_000
"""The time of day at the true time 0, so that no clock shows a time before 1970."""

OFFSET_US_MAX: Final = 25_000_000
"""Two clocks differ by at most twice this: servers refuse stamps further ahead (60 s)."""

DRIFT_PPM_MAX: Final = 100_000
_MILLION: Final = 1_000_000


class Skew(msgspec.Struct, frozen=True):
    """How far a scenario's clocks are off, at most, in either direction."""

    offset_us: int
    drift_ppm: int

    def clock(self, generator: random.Random) -> "Clock":
        """Draw the clock of one host."""
        offset = generator.randint(-self.offset_us, self.offset_us)
        return Clock(offset, generator.randint(-self.drift_ppm, self.drift_ppm))


class Clock(msgspec.Struct, frozen=True):
    """A clock that shows `local(now)` at the true time `now`."""

    offset_us: int = 0
    drift_ppm: int = 0

    def stepped(self, step_us: int) -> "Clock":
        """Return this clock set forwards, or backwards, by so much."""
        offset = max(-OFFSET_US_MAX, min(OFFSET_US_MAX, self.offset_us + step_us))
        return Clock(offset, self.drift_ppm)

    def local(self, now: int) -> int:
        """Return what the clock shows at a true time."""
        return ORIGIN_US + self.offset_us + now + now * self.drift_ppm // _MILLION

    def true(self, local: int) -> int:
        """Return the first true time at which the clock shows at least `local`."""
        passed = local - ORIGIN_US - self.offset_us
        now = passed * _MILLION // (_MILLION + self.drift_ppm)
        while self.local(now) < local:  # rounding: one or two steps
            now += 1
        while self.local(now - 1) >= local:
            now -= 1
        return now
