"""How do groups move? Leaders roam an area, members stay about them (OO 4.4: conference visitors).

Reference point group mobility (Hong, Gerla, Pei, Chiang 1999): a group's reference point follows
random waypoint; each member's place relative to it follows random waypoint within the group's
circle. Nobody leaves the area: who would, walks along its edge, which brings them only nearer to
the reference point.
"""

import math
import random
from collections.abc import Sequence

import msgspec
import numpy as np

from roamcast.errors import LimitError
from roamcast.sim.movement.draws import Floats
from roamcast.sim.movement.waypoint import Area, RandomWaypoint


class Groups(msgspec.Struct, frozen=True):
    """How many members each group has, and how far they stray."""

    sizes: Sequence[int]
    radius_m: float = 50.0
    stray_speed_max_m_s: float = 2.0


class GroupMovement:
    """Positions of all members, group by group, at any moment not before the last one asked for."""

    def __init__(self, groups: Groups, area: Area, generator: random.Random) -> None:
        if not groups.sizes or min(groups.sizes) < 1:
            raise LimitError("there is at least one group, and one member in each")
        if groups.radius_m <= 0 or groups.stray_speed_max_m_s <= 0:
            raise LimitError("a group has a radius, and its members a speed, above 0")
        self.people = sum(groups.sizes)
        self.group_of = np.repeat(np.arange(len(groups.sizes)), groups.sizes)
        self._area = area
        self._leaders = RandomWaypoint(len(groups.sizes), area, generator)
        # The largest square in the circle: whoever stays in it stays within the radius.
        side = groups.radius_m * math.sqrt(2)
        stray = groups.stray_speed_max_m_s
        self._middle = side / 2
        about = Area(side, side, stray / 4, stray, 0.0)
        self._members = RandomWaypoint(self.people, about, generator)

    def references(self, time_us: int) -> Floats:
        """Return the groups' reference points."""
        return self._leaders.positions(time_us)

    def positions(self, time_us: int) -> Floats:
        """Return everybody's (x, y) in metres; time must not go backwards."""
        offsets = self._members.positions(time_us) - self._middle
        about = self.references(time_us)[self.group_of] + offsets
        return np.clip(about, 0.0, [self._area.width_m, self._area.height_m])
