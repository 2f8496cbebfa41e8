"""Tie-breaking keys that depend on shapes and flows, not on vertex numbers (decision 0012).

Two vertices have the same key only if renumbering the tree could swap them, up to collisions of 64
bits. Ties broken by key are therefore broken the same way for every numbering.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from roamcast.model.kernels import kernel
from roamcast.placement._sparse import mix
from roamcast.placement.problem import Problem
from roamcast.placement.tree import Flags


def keys(problem: Problem, filters: Flags) -> NDArray[np.uint64]:
    """Return the key of every position under a placement."""
    found: NDArray[np.uint64] = _keys(
        problem.tree.up, problem.flow, problem.link, problem.price, filters
    )
    return found


@kernel
def _keys(up: Any, flow: Any, link: Any, price: Any, filters: Any) -> Any:
    n = up.size
    key = np.zeros(n, dtype=np.uint64)
    flow_bits = flow.view(np.uint64)
    link_bits = link.view(np.uint64)
    price_bits = price.view(np.uint64)
    for place in range(n - 1, -1, -1):
        own = mix(flow_bits[place], mix(link_bits[place], price_bits[place]))
        own = mix(own, key[place] + np.uint64(filters[place]))
        key[place] = own
        if place > 0:
            key[up[place]] += own * own | np.uint64(1)
    for place in range(1, n):
        key[place] = mix(key[up[place]], key[place])
    return key
