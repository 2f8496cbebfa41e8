"""Compile the kernels into their caches, on all cores: a first call waits about a minute else."""

import multiprocessing
import os

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


def call(number: int) -> None:
    """Do one of the jobs, in a process of its own."""
    JOBS[number]()


JOBS = (change_filters, search_filters, place_filters, tradeoff.warm_up)

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        pool.map(call, range(len(JOBS)), chunksize=1)
    FilterSet().warm_up(batches=True)  # whatever these left
