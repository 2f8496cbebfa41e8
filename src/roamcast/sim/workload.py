"""The interface of workloads: set up, start, settle, check, measure.

Each protocol has its own, in a module of `sim.workloads` that exports it as `WORKLOAD`, where the
swarm finds it. A workload draws only from generators of the world, under names of its own.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

from roamcast.errors import InputError
from roamcast.model.machine import Effect
from roamcast.model.wire import Registry
from roamcast.sim.world import World

Sizes = Mapping[str, int]


class Workload(ABC):
    """One protocol under load in one world; a fresh one for every run."""

    name: ClassVar[str]
    registry: ClassVar[Registry]
    sizes: ClassVar[Mapping[str, tuple[int, int]]]
    """What the swarm varies: name → (least, most), both included."""
    drawn_last: ClassVar[frozenset[str]] = frozenset()
    """Sizes that came later: with them set to 0, a seed is what it was before they came."""
    effects: ClassVar[tuple[type[Effect], ...]] = (Effect,)
    """What its machines address to their users; anything else is a mistake of ours."""
    settle_us_max: ClassVar[int] = 60_000_000
    """Maximum time after healing until every liveness promise must come true."""

    @abstractmethod
    def setup(self, world: World, sizes: Sizes) -> None:
        """Add the hosts that exist from the beginning."""

    @abstractmethod
    def start(self, world: World, duration_us: int) -> None:
        """Schedule what users do while there are faults."""

    @abstractmethod
    def settled(self, world: World) -> bool:
        """Return whether everything that must happen after healing has happened."""

    @abstractmethod
    def check(self, world: World) -> None:
        """Raise `Violation` if a promise is broken; called once, at the end."""

    @abstractmethod
    def metrics(self, world: World) -> dict[str, float]:
        """Return counts of what the run did, for display."""


Make = Callable[[], Workload]


def workload_names() -> list[str]:
    """Return the names of all workloads."""
    from roamcast.sim import workloads

    return sorted(
        info.name.replace("_", "-")
        for info in pkgutil.iter_modules(workloads.__path__)
        if info.name[0] != "_"
    )


def find_workload(name: str) -> Make:
    """Return a workload by name."""
    names = workload_names()
    if name not in names:
        raise InputError(f"there is no workload {name!r}; there are: {', '.join(names)}")
    module = importlib.import_module(f"roamcast.sim.workloads.{name.replace('-', '_')}")
    found: Make = module.WORKLOAD
    return found
