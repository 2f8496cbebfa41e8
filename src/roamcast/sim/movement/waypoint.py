"""The random waypoint model of OO's simulations.

A node waits `pause_s`, then walks straight to a point drawn uniformly from the area, at a speed
drawn uniformly between two bounds, and repeats. It starts at a drawn point with a wait, as in the
simulators that OO used. The lowest speed is above 0, because otherwise the mean speed decays for
ever (Yoon, Liu, Noble 2003). Every leg is a function of (person, leg), so the times at which
positions are sampled do not change the walk.
"""

import random
from collections.abc import Iterator
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from roamcast.errors import LimitError
from roamcast.sim.movement.draws import Draws, Floats
from roamcast.sim.movement.moves import Move

PEOPLE_MAX = 10_000_000


class RoamingArea(msgspec.Struct, frozen=True):
    """A rectangle in metres, from (0, 0), and how nodes move in it; defaults from OO."""

    width_m: float = 1000.0
    height_m: float = 1000.0
    speed_min_m_s: float = 1.0
    speed_max_m_s: float = 20.0
    pause_s: float = 10.0


class RandomWaypoint:
    """Positions of all nodes; time must not go backwards."""

    def __init__(self, people: int, area: RoamingArea, generator: random.Random) -> None:
        if not 1 <= people <= PEOPLE_MAX:
            raise LimitError(f"random waypoint moves 1 to {PEOPLE_MAX} people, not {people}")
        if min(area.width_m, area.height_m) <= 0 or area.pause_s < 0:
            raise LimitError("an area has a size above 0, and a pause is no shorter than 0")
        if not 0 < area.speed_min_m_s <= area.speed_max_m_s < np.inf:
            raise LimitError("speeds are above 0, the lowest not above the highest")
        self.people = people
        self.area = area
        self.now_us = 0
        self._draws = Draws(people, generator)
        self._leg = np.zeros(people, dtype=np.int64)
        everybody = np.arange(people)
        self._from = self._waypoint(everybody)
        self._to = self._from.copy()
        # A leg is a pause that ends at `leaves`, then a walk from `leaves` to `arrives`.
        self._leaves_s = np.zeros(people)
        self._arrives_s = np.zeros(people)
        self._next_leg(everybody)

    def positions(self, time_us: int) -> Floats:
        """Return everybody's (x, y) in metres; time must not go backwards."""
        assert time_us >= self.now_us, "a movement only goes forward"
        self.now_us = time_us
        now = time_us / 1e6
        while (arrived := np.flatnonzero(self._arrives_s <= now)).size:
            self._next_leg(arrived)
        walked = np.maximum(now - self._leaves_s, 0.0) / (self._arrives_s - self._leaves_s)
        return self._from + (self._to - self._from) * walked[:, None]

    def _next_leg(self, people: npt.NDArray[np.int64]) -> None:
        self._from[people] = self._to[people]
        self._leg[people] += 1
        self._to[people] = self._waypoint(people)
        low, high = self.area.speed_min_m_s, self.area.speed_max_m_s
        speed = low + (high - low) * self._draws.units(people, 3 * self._leg[people] + 2)
        away = np.linalg.norm(self._to[people] - self._from[people], axis=1)
        self._leaves_s[people] = self._arrives_s[people] + self.area.pause_s
        # A leg lasts at least 1 µs: otherwise the share of the walk would be 0/0.
        self._arrives_s[people] = self._leaves_s[people] + np.maximum(away / speed, 1e-6)

    def _waypoint(self, people: npt.NDArray[np.int64]) -> Floats:
        leg = 3 * self._leg[people]
        x = self._draws.units(people, leg) * self.area.width_m
        y = self._draws.units(people, leg + 1) * self.area.height_m
        return np.column_stack([x, y])


class Roaming(Protocol):
    """A model of movement in the plane."""

    def positions(self, time_us: int) -> Floats:
        """Return everybody's (x, y) in metres; time must not go backwards."""


def ticks(model: Roaming, every_us: int) -> Iterator[Move]:
    """Yield everybody's position at every tick from 0, without end."""
    if every_us < 1:
        raise LimitError("the interval between positions is at least 1 µs")
    time_us = 0
    while True:
        for person, point in enumerate(model.positions(time_us).tolist()):
            yield Move(time_us, person, None, (point[0], point[1]))
        time_us += every_us
