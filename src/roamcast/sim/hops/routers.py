"""Routers with their roles and archived contexts: the setting of TCC's experiments (section IV).

The paper leaves open where a context node's area lies, how many contexts match, who has them and
how often people change their vid. Our choices: an area is the router's own point; every archived
context of an addressed node matches; a person's contexts lie at access nodes drawn uniformly.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from roamcast.errors import LimitError
from roamcast.sim.topology.graph import Ints, Topology, tree
from roamcast.sim.topology.roles import (
    TCC_ACCESS_NODES,
    TCC_TRUSTED_NODES,
    access_nodes,
    choose_trusted,
    trusted_nodes,
)
from roamcast.sim.topology.tradeoff import TCC_ALPHA, TCC_ROUTERS, tradeoff_tree

CONTEXTS_MAX = 100_000_000


class Setting(NamedTuple):
    """How many of what; the defaults are TCC's where the paper has a number."""

    routers: int = TCC_ROUTERS
    access: int = TCC_ACCESS_NODES
    trusted: int = TCC_TRUSTED_NODES
    alpha: float = TCC_ALPHA
    contexts_per_access: float = 10.0
    contexts_per_person: int = 5
    new_vid: float = 0.5
    """Chance that a person takes a new vid for a context."""


class HistoricCast(NamedTuple):
    """A cast into the past: the router where it enters, and its target, a square."""

    origin: int
    west: float
    south: float
    edge: float


@dataclass(frozen=True)
class Routers:
    """A tree of routers. The contexts of router r are `starts[r]` to `starts[r + 1]`."""

    topology: Topology
    access: Ints  # routers that are access nodes, ascending
    starts: Ints
    trusted: Ints  # of each context: the router of its trusted node
    vids: Ints
    people: Ints

    def addressed(self, cast: HistoricCast) -> Ints:
        """Return the access nodes in the target, ascending."""
        assert self.topology.points is not None
        points = self.topology.points[self.access]
        low = np.array([cast.west, cast.south])
        inside = ((points >= low) & (points <= low + cast.edge)).all(axis=1)
        return self.access[inside]


def draw_routers(setting: Setting, generator: np.random.Generator) -> Routers:
    """Draw a topology, its access and trusted nodes, and people with contexts."""
    count = round(setting.access * setting.contexts_per_access)
    if not 0 <= count <= CONTEXTS_MAX or setting.contexts_per_person < 1:
        raise LimitError(f"0 to {CONTEXTS_MAX} contexts, at least one a person")
    topology = tradeoff_tree(setting.routers, generator, setting.alpha)
    access = access_nodes(topology, setting.access, generator)
    trusted = trusted_nodes(topology, setting.trusted, generator)
    people = np.arange(count) // setting.contexts_per_person
    chosen = choose_trusted(trusted, -(-count // setting.contexts_per_person), generator)
    # A context has a new vid, or its predecessor's; the first of each person has a new one.
    fresh = generator.random(count) < setting.new_vid
    fresh[:: setting.contexts_per_person] = True
    vids = np.cumsum(fresh) - 1
    nodes = generator.choice(access, size=count)
    order = np.argsort(nodes, kind="stable")
    starts = np.searchsorted(nodes[order], np.arange(setting.routers + 1))
    return Routers(
        topology,
        access,
        starts.astype(np.int64),
        chosen[people][order].astype(np.int64),
        vids[order].astype(np.int64),
        people[order].astype(np.int64),
    )


def draw_cast(routers: Routers, edge: float, generator: np.random.Generator) -> HistoricCast:
    """Draw a cast: it enters at any access node; its target lies within the unit square."""
    if not 0 < edge <= 1:
        raise LimitError(f"a target's edge is above 0 and at most 1, not {edge}")
    west, south = (generator.random(2) * (1 - edge)).tolist()
    return HistoricCast(int(generator.choice(routers.access)), west, south, edge)


def line_routers(setting: Setting, generator: np.random.Generator) -> Routers:
    """Return routers in a row, TCC's worst case for early caching (IV-B); they have no contexts."""
    at = (np.arange(setting.routers) + 0.5) / setting.routers
    points = np.column_stack([at, np.full(setting.routers, 0.5)])
    topology = tree(np.arange(-1, setting.routers - 1), points)
    access = np.sort(generator.choice(setting.routers, size=setting.access, replace=False))
    none = np.empty(0, np.int64)
    starts = np.zeros(setting.routers + 1, np.int64)
    return Routers(topology, access.astype(np.int64), starts, none, none, none)
