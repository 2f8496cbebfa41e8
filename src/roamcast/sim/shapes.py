"""Network shapes of scenarios: all hosts one hop apart, on a line, or on a random tree.

A shape is a network's `reach` for hosts that are added one at a time, also during a run. For
thousands of routers, and for graphs drawn at once, see `sim.topology`.
"""

import enum

from roamcast.sim.host import Host
from roamcast.sim.kernel import Kernel
from roamcast.sim.network import Reach


class Shape(enum.StrEnum):
    """The shapes that the swarm chooses from."""

    FLAT = "flat"
    TREE = "tree"
    LINE = "line"


class HostTree:
    """A tree on which every new host is attached below an earlier one."""

    def __init__(self, kernel: Kernel, *, line: bool) -> None:
        self._kernel = kernel
        self._line = line
        self._names: list[str] = []
        self._above: dict[str, list[str]] = {}  # a host's path to the root, itself first
        self._hops: dict[tuple[str, str], int] = {}

    def hops(self, source: Host, destination: Host) -> int | None:
        """Return the number of links between two hosts, at least 1."""
        pair = source.name, destination.name
        found = self._hops.get(pair)
        if found is None:
            found = self._hops[pair] = self._count(*pair)
        return found

    def _count(self, source: str, destination: str) -> int:
        up = self._way(source)
        down = self._way(destination)
        shared = 0
        while shared < min(len(up), len(down)) and up[-1 - shared] == down[-1 - shared]:
            shared += 1
        return max(len(up) + len(down) - 2 * shared, 1)

    def _way(self, name: str) -> list[str]:
        way = self._above.get(name)
        if way is None:
            way = self._above[name] = [name]
            if self._names:
                last = len(self._names) - 1
                draw = self._kernel.generator(f"shape/{name}")
                parent = self._names[last if self._line else draw.randint(0, last)]
                way += self._above[parent]
            self._names.append(name)
        return way


def reach_of(shape: Shape, kernel: Kernel) -> Reach | None:
    """Return the network's `reach` for a shape; None if all hosts are one hop apart."""
    if shape is Shape.FLAT:
        return None
    return HostTree(kernel, line=shape is Shape.LINE).hops
