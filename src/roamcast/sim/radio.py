"""Radio connectivity: neighbours and hops from positions and a range."""

import math
from collections import deque
from typing import Final

from roamcast.sim.host import Host

HOPS_MAX: Final = 64


class RadioField:
    """Hosts on a plane; two are neighbours if they are at most the range apart.

    `hops` serves as a network's `reach`: 1 for neighbours, more where others forward.
    """

    def __init__(self, range_m: float, *, relay: bool = False) -> None:
        assert range_m > 0
        self._range_m = range_m
        # Slightly wider than the range: a distance rounded down to it could else span two cells.
        self._side_m = range_m * (1 + 1e-9)
        self._relay = relay
        self._cells: dict[tuple[int, int], dict[str, Host]] = {}
        self._where: dict[str, tuple[int, int]] = {}
        self._hops: dict[str, dict[str, int]] = {}

    def move(self, host: Host, x_m: float, y_m: float) -> None:
        """Place a host, or move it."""
        host.position = (x_m, y_m)
        cell = (math.floor(x_m / self._side_m), math.floor(y_m / self._side_m))
        before = self._where.get(host.name)
        if before is not None and before != cell:
            del self._cells[before][host.name]
        self._cells.setdefault(cell, {})[host.name] = host
        self._where[host.name] = cell
        self._hops.clear()

    def remove(self, host: Host) -> None:
        """Remove a host; it is then unreachable."""
        del self._cells[self._where.pop(host.name)][host.name]
        self._hops.clear()

    def neighbours(self, host: Host) -> list[Host]:
        """Return the hosts in range, by name."""
        if host.name not in self._where:
            return []
        column, row = self._where[host.name]
        x, y = host.position
        found = [
            other
            for across in (-1, 0, 1)
            for along in (-1, 0, 1)
            for other in self._cells.get((column + across, row + along), {}).values()
            if other is not host
            and math.hypot(other.position[0] - x, other.position[1] - y) <= self._range_m
        ]
        return sorted(found, key=lambda other: other.name)

    def hops(self, source: Host, destination: Host) -> int | None:
        """Return the hops of a shortest path, None if there is none; without relaying at most 1."""
        if not self._relay:
            one, other = source.position, destination.position
            known = source.name in self._where and destination.name in self._where
            near = math.hypot(one[0] - other[0], one[1] - other[1]) <= self._range_m
            return 1 if known and near else None
        if source.name not in self._hops:
            self._hops[source.name] = self._spread(source)
        return self._hops[source.name].get(destination.name)

    def _spread(self, source: Host) -> dict[str, int]:
        hops = {source.name: 0}
        waiting = deque([source])
        while waiting:
            host = waiting.popleft()
            if hops[host.name] == HOPS_MAX:
                continue
            for other in self.neighbours(host):
                if other.name not in hops:
                    hops[other.name] = hops[host.name] + 1
                    waiting.append(other)
        return hops
