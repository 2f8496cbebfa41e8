"""Link state: one item for each end of each link, and the table that merges them.

A node writes only the items of its own ends, so versions are compared within one node alone
(0101). A link counts while both ends say that it is up. Merging takes the higher rank of each
item: it is commutative, associative and idempotent, so items may come in any order and twice.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from roamcast.errors import LimitError
from roamcast.model.wire import Count
from roamcast.overlay.links.messages import NodeName

Ends = tuple[str, str]
Graph = dict[str, tuple[str, ...]]
"""Nodes → those they are linked with, in the order of their names."""


class LinkItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one node says of its link to another."""

    node: NodeName
    to: NodeName
    epoch: Annotated[Count, Meta(description="of the node when it said so")]
    number: Annotated[Count, Meta(description="counts what it said in that epoch")]
    up: bool

    @property
    def ends(self) -> Ends:
        """The two nodes; the first one says it."""
        return self.node, self.to

    @property
    def rank(self) -> tuple[int, int, bool]:
        """What decides between two of the same ends; equal versions by what they say."""
        return self.epoch, self.number, self.up


class TopologyTable:
    """The newest item of each end that is known."""

    def __init__(self, items_max: int) -> None:
        self.items: dict[Ends, LinkItem] = {}
        self._items_max = items_max
        self._graph: Graph | None = None

    def merge(self, items: Iterable[LinkItem]) -> list[LinkItem]:
        """Take the items that are newer than ours; give those."""
        newer: dict[Ends, LinkItem] = {}
        for item in items:
            known = newer.get(item.ends) or self.items.get(item.ends)
            if known is None or item.rank > known.rank:
                newer[item.ends] = item
        if len(self.items) + sum(ends not in self.items for ends in newer) > self._items_max:
            raise LimitError(f"a topology has at most {self._items_max} ends of links")
        if newer:
            self.items.update(newer)
            self._graph = None
        return list(newer.values())

    def forget(self, ends: Ends) -> None:
        """Drop an item."""
        if self.items.pop(ends, None) is not None:
            self._graph = None

    def graph(self) -> Graph:
        """Give the links that both ends say are up; computed once after many changes."""
        if self._graph is None:
            beside: dict[str, list[str]] = {}
            up = {ends for ends, item in self.items.items() if item.up}
            for node, to in up:
                if (to, node) in up:
                    beside.setdefault(node, []).append(to)
            self._graph = {node: tuple(sorted(found)) for node, found in beside.items()}
        return self._graph
