"""Internet-like topologies: heuristically optimised trade-offs, computed exactly (decision 0033).

Fabrikant, Koutsoupias and Papadimitriou (ICALP 2002, TCC's [14]): nodes arrive one after another,
uniformly on the unit square, and node i joins the older node j that minimises α·d_ij + h_j, where
d_ij is the distance between i and j (TCC says "from the root", a slip) and h_j the hops from j to
the first node. Ties go to the oldest j.

Trying every j costs n²/2 evaluations. This search is exact and tries few: each cell of a pyramid of
grids stores the least h of its nodes. α·(distance to the cell) + (least h) is a lower bound for all
its nodes; cells whose bound exceeds the best node found so far are skipped.
"""

import math
from typing import Any

import numpy as np

from roamcast.errors import LimitError
from roamcast.sim.topology._tradeoff_kernel import attach_by_pyramid
from roamcast.sim.topology.graph import Floats, Ints, Topology, check_size, tree

LEVELS_MAX = 11
"""The finest grid has at most 2048 × 2048 cells."""

TCC_ALPHA = 20.0
TCC_ROUTERS = 10_000


def tradeoff_tree(nodes: int, generator: np.random.Generator, alpha: float = TCC_ALPHA) -> Topology:
    """Place `nodes` routers uniformly on the unit square and join them."""
    check_size(nodes)
    return tradeoff_tree_of(generator.random((nodes, 2)), alpha)


def tradeoff_tree_of(points: Floats, alpha: float = TCC_ALPHA) -> Topology:
    """Join routers that arrive at these points of the unit square, in this order."""
    check_size(len(points))
    if not (math.isfinite(alpha) and alpha >= 0):
        raise LimitError(f"alpha is a finite number of at least 0, not {alpha}")
    if not ((points >= 0) & (points <= 1)).all():
        raise LimitError("every router stands on the unit square")
    levels = min(LEVELS_MAX, max(1, math.ceil(math.log(max(2, len(points)), 4))))
    parents: Ints = attach_by_pyramid(np.ascontiguousarray(points), float(alpha), levels)
    return tree(parents, points)


def warm_up() -> None:
    """Compile the kernel, or load it from the cache, so that timings exclude it."""
    tradeoff_tree(16, np.random.default_rng(0))


def build_for_bench(routers: int, seed: int = 1) -> dict[str, Any]:
    """Build one topology of TCC's kind and describe its shape; `bench/sim.py` times this call."""
    built = tradeoff_tree(routers, np.random.default_rng(seed))
    return {"routers": routers, "degree_max": int(built.degrees.max())}
