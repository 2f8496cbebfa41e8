"""Messages of future casts: forwarded to every addressed network, or only as contexts match.

TCC's algorithm 7, after all contexts have appeared: a router has the cast if somebody beyond it, or
at it, matched. It still caches it for links that lead to addressed networks where nobody has.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from roamcast.sim.hops import _kernel
from roamcast.sim.hops.routers import HistoricCast, Routers
from roamcast.sim.topology.graph import Ints

Flags = npt.NDArray[np.bool_]


class FutureCounts(NamedTuple):
    """One future cast: sent at once to every network, against cached early and sent on demand."""

    networks: int  # addressed
    reached: int  # where a context matched
    links_at_once: int
    links: int
    copies_at_once: int  # cached: one at each addressed network
    copies: int


def count_future(routers: Routers, cast: HistoricCast, matched: Flags) -> FutureCounts:
    """Count a cast's messages and cached copies; `matched` says which addressed networks match."""
    addressed = routers.addressed(cast)
    assert len(matched) == len(addressed)
    up = _kernel.turned(routers.topology.parents, cast.origin)
    all_of: Any = _kernel.reached(up, addressed)
    some_of: Any = _kernel.reached(up, addressed[matched])
    having = some_of[2] >= 0
    having[cast.origin] = True  # the first node always caches it
    waits = all_of[1] > some_of[1]  # links that it has not been forwarded over yet
    waits[addressed] = True  # contexts of its own network may still come
    return FutureCounts(
        len(addressed),
        int(matched.sum()),
        _links(all_of[0]),
        _links(some_of[0]),
        len(addressed),
        int((having & waits).sum()),
    )


def _links(routers: Ints) -> int:
    return max(0, len(routers) - 1)
