"""Messages of historic casts, counted in compiled code: NH, FBTH and BTH⟨n⟩ at any scale.

`reference` says what is counted; a test holds the two equal, message for message.
"""

from typing import Any, NamedTuple

import numpy as np

from roamcast.sim.hops import _kernel
from roamcast.sim.hops.routers import HistoricCast, Routers
from roamcast.sim.topology.graph import Ints

POLICIES = {"NH": 0, "FBTH": 1, "BTH2": 2, "BTH3": 3, "BTH4": 4}
"""The number of the branching point that collects; 0: none does."""


class HopCounts(NamedTuple):
    """What one cast costs; in the order of the kernel's array.

    A receiver is a trusted node in the header of an explicit multicast; vids are split along with
    receivers. Delays are hops from the origin to the trusted node, summed over matching contexts,
    or over people, where each counts with the copy that comes first.
    """

    asks: int
    answers: int
    resolves: int
    answer_vids: int
    receivers: int  # summed over the messages of the explicit multicasts
    receivers_max: int
    vids: int
    vids_max: int
    vids_unsplit: int  # had every message of a multicast all its vids
    collectors: int  # explicit multicasts sent
    matches: int
    delay: int
    delay_unwaited: int  # had no router waited for its slower subtrees
    delay_last: int  # until the last trusted node has it
    people: int
    delay_first: int


def count_hops(routers: Routers, cast: HistoricCast, branching: int) -> HopCounts:
    """Count the messages of a cast whose vids are collected at branching points of this number."""
    return HopCounts(*_counted(routers, cast, branching, 0)[0].tolist())


def list_hops(routers: Routers, cast: HistoricCast, branching: int) -> Ints:
    """Return a row (phase, from, to, receivers, vids) for each message."""
    counts = count_hops(routers, cast, branching)
    room = counts.asks + counts.answers + counts.resolves
    _, rows = _counted(routers, cast, branching, room)
    assert len(rows) == room
    return rows


def _counted(routers: Routers, cast: HistoricCast, branching: int, room: int) -> tuple[Ints, Ints]:
    assert branching >= 0
    parents = routers.topology.parents
    assert parents is not None, "casts are counted on trees"
    out: Ints = np.empty((room, 5), np.int64)
    archive = _kernel.ContextColumns(routers.starts, routers.trusted, routers.vids, routers.people)
    ends = (int(routers.vids.max(initial=-1)) + 1, int(routers.people.max(initial=-1)) + 1)
    found: Any = _kernel.count_cast(
        parents, archive, ends, cast.origin, routers.addressed(cast), branching, out
    )
    counts, written = found
    return counts, out[:written]
