"""What does `bench run placement` measure on? Trees, demands, and what a measured call costs.

Run by itself it prints by how many bytes its process grew while it placed filters.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from roamcast.placement._limited import solve_limited
from roamcast.placement._sparse import sparse
from roamcast.placement.flows import LeafWants, flows
from roamcast.placement.heuristic import best_move
from roamcast.placement.incremental import Replanner
from roamcast.placement.optimal import optimal
from roamcast.placement.problem import Problem, traffic
from roamcast.placement.tree import Tree

K = 15
"""How many filters are placed, unless a part says otherwise."""


def shaped(shape: str, vertices: int) -> Tree:
    if shape == "complete":
        parent = (np.arange(vertices) - 1) // 2
    elif shape == "random":
        share = np.random.default_rng(2).random(vertices)
        parent = np.floor(share * np.arange(vertices)).astype(np.int64)
    else:  # a spine of even numbers, each with one odd leg
        number = np.arange(vertices)
        parent = np.where(number % 2 == 0, number - 2, number - 1)
    parent[0] = -1
    return Tree.of(parent)


def subscribed(tree: Tree, items: int, chance: float, seed: int = 1) -> LeafWants:
    source = np.random.default_rng(seed)
    leaves = np.flatnonzero(tree.size[tree.position] == 1)
    start = np.zeros(tree.vertices + 1, dtype=np.int64)
    start[leaves + 1] = source.binomial(items, chance, leaves.size)
    start = np.cumsum(start)
    return LeafWants(start, source.integers(0, items, start[-1], dtype=np.int32), items)


def demanded(shape: str, vertices: int, items: int = 1024, chance: float = 0.05) -> Problem:
    tree = shaped(shape, vertices)
    return traffic(tree, flows(tree, subscribed(tree, items, chance)))


def plain_tables(problem: Problem, limit: int) -> float:
    """The paper's tables for every vertex that pays, without the bound: what ours is beside."""
    costs, _ = solve_limited(sparse(problem, np.flatnonzero(problem.solo > 0)), limit)
    return float(costs[-1])


def seconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def peak_bytes(shape: str, n: int, k: int, items: int, chance: float) -> int:
    """Give by how much a fresh process grew while it placed filters (k = 0: computed flows)."""
    # Freed memory goes back at once, or what was used before would hide what is used now.
    frugal = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    words = [shape, n, k, items, chance]
    done = subprocess.run(  # noqa: S603 (this file, with numbers)
        [sys.executable, __file__, *map(str, words)],
        env={**os.environ, **frugal},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def _measure(shape: str, n: int, k: int, items: int, chance: float) -> int:
    warm_up()
    tree = shaped(shape, n)
    subscriptions = subscribed(tree, items, chance)
    if k > 0:
        problem = traffic(tree, flows(tree, subscriptions))
        del subscriptions
        call = lambda: optimal(problem, k)  # noqa: E731
    else:
        call = lambda: flows(tree, subscriptions)  # noqa: E731
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark starts anew
    before = _status("VmRSS")
    call()
    return max(0, _status("VmHWM") - before)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


def exponent(sizes: list[float], values: list[float]) -> float:
    """Fit value ∝ size^exponent."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-9)), 1)[0])


def warm_up() -> None:
    """Compile, or load, what is measured."""
    problem = demanded("complete", 16_383)
    optimal(problem, K)
    plain_tables(problem, K)
    best_move(problem, [0, 1, 2], 3)
    tree = problem.tree
    Replanner(tree, subscribed(tree, 64, 0.1), K).change({16_382: [1]})


if __name__ == "__main__":
    named, *numbers = sys.argv[1:]
    sys.stdout.write(str(_measure(named, *map(int, numbers[:3]), float(numbers[3]))))
