"""Compile the kernels into their caches, on all cores: a first call waits about a minute else."""

import multiprocessing
import os

import numpy as np

from roamcast.identity import agent_core
from roamcast.identity.agent_settings import AgentSettings
from roamcast.matching import FilterSet
from roamcast.model.context_arrow import to_arrow
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.placement.flows import LeafWants, flows
from roamcast.placement.heuristic import settle
from roamcast.placement.incremental import Replanner
from roamcast.placement.optimal import optimal
from roamcast.placement.problem import traffic
from roamcast.placement.tree import Tree
from roamcast.sim.hops.counting import count_hops
from roamcast.sim.hops.routers import Setting, draw_cast, draw_routers
from roamcast.sim.topology import tradeoff


def change_filters() -> None:
    """Let a filter come and go."""
    filters = FilterSet()
    filters.add("a", Filter.parse("a = 'x' AND b > 1"))
    filters.remove("a")


def search_filters() -> None:
    """Match against no filter: the search is compiled for itself."""
    context = Context("v", None, (0.0, 0.0), {"a": "x", "b": 2})
    FilterSet().match(context)
    FilterSet().match_batch(to_arrow([context]))


def place_filters() -> None:
    """Solve a small problem in every way."""
    tree = Tree.of([-1, 0, 0, 1, 1])
    wanted = LeafWants.of(tree, {2: [0], 3: [1], 4: [2]})
    problem = traffic(tree, flows(tree, wanted))
    optimal(problem)
    optimal(problem, 1)
    settle(problem, 1)
    Replanner(tree, wanted, 1).change({3: [2]})


def scan_sightings() -> None:
    """Let the agent read no sighting of nobody."""
    rows, numbers = np.empty((0, 6), np.int64), np.empty(0, np.int64)
    states = np.empty((0, agent_core.STATE_WIDTH), np.int64)
    closed = np.empty((0, agent_core.CLOSED_WIDTH), np.int64)
    chosen = AgentSettings().vector()
    agent_core.scan(numbers, rows, states, chosen, closed, numbers, numbers)
    agent_core.expire_all(states, chosen, 0, closed, numbers)


def count_messages() -> None:
    """Count the messages of a cast among a few routers."""
    generator = np.random.default_rng(0)
    routers = draw_routers(Setting(routers=200, access=140, trusted=12), generator)
    count_hops(routers, draw_cast(routers, 0.4, generator), 1)


def call(number: int) -> None:
    """Do one of the jobs, in a process of its own."""
    JOBS[number]()


JOBS = (
    change_filters, search_filters, place_filters, scan_sightings, count_messages, tradeoff.warm_up
)  # fmt: skip

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        pool.map(call, range(len(JOBS)), chunksize=1)
    FilterSet().warm_up(batches=True)  # whatever these left
