"""Reference point group mobility (Hong, Gerla, Pei, Chiang 1999), for OO 4.4: conference visitors.

A group's reference point follows random waypoint. Each member's position relative to it follows
random waypoint within the group's circle. Positions are clipped to the area, which only brings
members nearer to the reference point.
"""

import math
import random
from collections.abc import Sequence

import msgspec
import numpy as np

from roamcast.errors import LimitError
from roamcast.sim.movement.draws import Floats
from roamcast.sim.movement.waypoint import RandomWaypoint, RoamingArea


class GroupSettings(msgspec.Struct, frozen=True):
    """The members of each group, and how far they stray from its reference point."""

    sizes: Sequence[int]
    radius_m: float = 50.0
    stray_speed_max_m_s: float = 2.0


class GroupMovement:
    """Positions of all members, group by group; time must not go backwards."""

    def __init__(self, groups: GroupSettings, area: RoamingArea, generator: random.Random) -> None:
        if not groups.sizes or min(groups.sizes) < 1:
            raise LimitError("there is at least one group, and one member in each")
        if groups.radius_m <= 0 or groups.stray_speed_max_m_s <= 0:
            raise LimitError("a group has a radius, and its members a speed, above 0")
        self.people = sum(groups.sizes)
        self.group_of = np.repeat(np.arange(len(groups.sizes)), groups.sizes)
        self._area = area
        self._leaders = RandomWaypoint(len(groups.sizes), area, generator)
        # Members roam the largest square in the circle, so they stay within the radius.
        side = groups.radius_m * math.sqrt(2)
        stray = groups.stray_speed_max_m_s
        self._middle = side / 2
        about = RoamingArea(side, side, stray / 4, stray, 0.0)
        self._members = RandomWaypoint(self.people, about, generator)

    def references(self, time_us: int) -> Floats:
        """Return the groups' reference points."""
        return self._leaders.positions(time_us)

    def positions(self, time_us: int) -> Floats:
        """Return everybody's (x, y) in metres; time must not go backwards."""
        offsets = self._members.positions(time_us) - self._middle
        about = self.references(time_us)[self.group_of] + offsets
        return np.clip(about, 0.0, [self._area.width_m, self._area.height_m])
