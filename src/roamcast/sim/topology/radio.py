"""The ad-hoc radio graph of nodes within range of each other (OO)."""

import numpy as np
import numpy.typing as npt
import shapely

from roamcast.errors import LimitError
from roamcast.sim.topology.graph import Topology, check_size

OO_RANGE_M = 250.0


def radio_graph(points_m: npt.ArrayLike, range_m: float = OO_RANGE_M) -> Topology:
    """Join every two nodes at most `range_m` apart; links as (lower, higher), ascending."""
    points = np.asarray(points_m, dtype=np.float64).reshape(-1, 2)
    check_size(len(points))
    if not (range_m > 0 and np.isfinite(range_m) and np.isfinite(points).all()):
        raise LimitError("positions are finite and a radio's range is above 0 m")
    drawn = shapely.points(points)
    one, other = shapely.STRtree(drawn).query(drawn, predicate="dwithin", distance=range_m)
    links = np.column_stack([one, other])[one < other]
    return Topology(len(points), links[np.lexsort((links[:, 1], links[:, 0]))], points=points)
