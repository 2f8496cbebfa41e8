"""Topologies: nodes 0…n-1, undirected links, and optionally the nodes' positions."""

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from roamcast.errors import LimitError

NODES_MAX = 10_000_000

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Topology:
    """An undirected graph; a tree also has `parents` (-1 at its root, node 0)."""

    def __init__(
        self,
        nodes: int,
        links: npt.ArrayLike,
        *,
        points: Floats | None = None,
        parents: Ints | None = None,
    ) -> None:
        check_size(nodes)
        self.nodes = nodes
        self.links = np.asarray(links, dtype=np.int64).reshape(-1, 2)
        self.points = points
        self.parents = parents
        assert points is None or points.shape == (nodes, 2)
        assert parents is None or len(parents) == nodes

    @cached_property
    def degrees(self) -> Ints:
        """Number of links of each node."""
        return np.bincount(self.links.ravel(), minlength=self.nodes).astype(np.int64)

    @cached_property
    def _adjacency(self) -> tuple[Ints, Ints]:
        both = np.concatenate([self.links, self.links[:, ::-1]])
        both = both[np.lexsort((both[:, 1], both[:, 0]))]
        starts = np.searchsorted(both[:, 0], np.arange(self.nodes + 1))
        return starts.astype(np.int64), both[:, 1].copy()

    def neighbours(self, node: int) -> Ints:
        """Nodes that share a link with this one, ascending."""
        starts, ends = self._adjacency
        return ends[starts[node] : starts[node + 1]]

    def depths(self) -> Ints:
        """Hops to the root of a tree."""
        assert self.parents is not None, "only a tree has depths"
        depths = np.zeros(self.nodes, dtype=np.int64)
        # A parent is older than its children: one pass in order is enough.
        for node in range(1, self.nodes):
            depths[node] = depths[self.parents[node]] + 1
        return depths

    def graph(self) -> Any:
        """Return a rustworkx graph with the same numbers; links weigh 1."""
        import rustworkx as rx

        graph: Any = rx.PyGraph(multigraph=False)
        graph.add_nodes_from(range(self.nodes))
        graph.add_edges_from([(a, b, 1.0) for a, b in self.links.tolist()])
        return graph


def tree(parents: Ints, points: Floats | None = None) -> Topology:
    """Return the topology of a list of parents; parents come before their children."""
    assert len(parents) > 0
    assert parents[0] == -1
    children = np.arange(1, len(parents))
    assert (parents[1:] < children).all()
    assert (parents[1:] >= 0).all()
    links = np.column_stack([parents[1:], children])
    return Topology(len(parents), links, points=points, parents=parents)


def check_size(nodes: int) -> int:
    """Raise LimitError for a number of nodes below 1 or beyond the limit."""
    if not 1 <= nodes <= NODES_MAX:
        raise LimitError(f"a topology has 1 to {NODES_MAX} nodes, not {nodes}")
    return nodes
