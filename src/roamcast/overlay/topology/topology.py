"""The topology as a part of a broker: it tells neighbours what is new, and others of the tree.

Everything known is told when a link comes up, and afterwards only what has changed (OO part 2). Own
items of an earlier life that neighbours still hold are contradicted. What a node out of reach said,
and ends that are down, are forgotten after a while.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from roamcast.errors import LimitError
from roamcast.model.machine import Effect
from roamcast.model.parts import Occupancy, Part, PartTimers, Timer
from roamcast.model.records import OverlayStep
from roamcast.overlay.events import (
    CameByLink,
    CutLink,
    NeighbourDown,
    NeighbourFull,
    NeighbourReady,
    NeighbourUp,
    OverlayOpened,
    SendOnLink,
    TreeChanged,
)
from roamcast.overlay.topology.items import Ends, Graph, LinkItem, TopologyTable
from roamcast.overlay.topology.messages import HOPS_MAX, ITEMS_MAX, TopologyItems
from roamcast.overlay.topology.trees import Tree, branches, shared_tree, tree_from

BURST: Final = 32
"""Messages to one link at once; the rest follows in the next moment, unless the link is full."""

NUMBER_MAX: Final = 2**53
"""Nobody changes a link so often: a higher number is garbage."""


class TopologySettings(msgspec.Struct, frozen=True):
    """Intervals in microseconds."""

    gather_us: int = 10_000
    """How long changes are gathered before they are told."""
    settle_us: int = 50_000
    """How long changes are gathered before trees are computed."""
    forget_us: int = 3_600_000_000
    """After this long nodes out of reach and ends that are down are forgotten."""
    items_max: int = 200_000


class ItemsTellDue(Timer, frozen=True):
    """Neighbours hear what is new."""


class TreesDue(Timer, frozen=True):
    """The trees are computed anew."""


class ItemsForgetDue(Timer, frozen=True):
    """Some item has not counted for long enough."""


class NodeTopology(Part):
    """What this node knows of all links, and what follows for its own."""

    part: ClassVar[str] = "topology"
    inputs: ClassVar = (
        OverlayOpened,
        NeighbourUp,
        NeighbourDown,
        NeighbourFull,
        NeighbourReady,
    )
    carried: ClassVar = {CameByLink: (TopologyItems,)}

    def __init__(self, node: str, settings: TopologySettings) -> None:
        self.node = node
        self.table = TopologyTable(settings.items_max)
        self.links: dict[str, None] = {}
        """Neighbours whose links are up."""
        self.tree: Tree = {node: node}
        self._settings = settings
        self._epoch = 0
        self._number = 0
        self._changed: dict[str, dict[Ends, None]] = {}
        """Links → the items that their neighbours may lack."""
        self._full: set[str] = set()
        self._hops: dict[str, str] = {}
        self._stale: dict[Ends, int] = {}
        """Items that do not count → since when."""
        self.timers: PartTimers = PartTimers(
            {
                ItemsTellDue: lambda _, now: self._tell(now),
                TreesDue: lambda _, now: self._compute(now),
                ItemsForgetDue: lambda _, now: self._forget(now),
            }
        )

    # --- reads

    def graph(self) -> Graph:
        """Give the links that both ends say are up."""
        return self.table.graph()

    def hop(self, node: str) -> str | None:
        """Give the link on the shared tree that leads to a node, None while none does."""
        return self._hops.get(node)

    def towards(self, message: Any) -> list[Effect]:
        """Send a message on to the next node before the one it is for (`to`, `hops`).

        Without a way it is lost; whoever sent it says it again, or waits in vain.
        """
        hop = self.hop(message.to)
        if hop is None or message.hops >= HOPS_MAX:
            return []
        return [SendOnLink(hop, msgspec.structs.replace(message, hops=message.hops + 1))]

    def tree_of(self, source: str) -> Tree:
        """Give the tree of shortest paths from a source."""
        return tree_from(self.graph(), source)

    @property
    def tree_links(self) -> tuple[str, ...]:
        """The links of ours that the shared tree runs over."""
        return tuple(sorted(set(self._hops.values())))

    def idle(self) -> bool:
        """Whether there is nothing left to tell or to compute."""
        return not any(self._changed.values()) and TreesDue() not in self.timers

    # --- the part

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take what happened to a link, or what a neighbour knows."""
        match given:
            case OverlayOpened(epoch):
                self._epoch = epoch
            case NeighbourUp(node):
                self.links[node] = None
                self._changed[node] = dict.fromkeys(self.table.items)
                self._full.discard(node)
                self._say(node, now)
            case NeighbourDown(node):
                self.links.pop(node, None)
                self._changed.pop(node, None)
                self._full.discard(node)
                self._say(node, now)
            case NeighbourFull(node):
                self._full.add(node)
            case NeighbourReady(node):
                self._full.discard(node)
                self.timers.sooner(ItemsTellDue(), now)
            case CameByLink(node, TopologyItems(items)):
                return self._learn(node, items, now)
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        """Tell neighbours, compute trees, forget."""
        return self.timers.fire(now)

    def occupancy(self) -> Occupancy:
        """How many items are held, and wait to be told."""
        most = max(map(len, self._changed.values()), default=0)
        bound = self._settings.items_max
        return {"items": (len(self.table.items), bound), "untold items": (most, bound)}

    # --- what this node says, and hears

    def _say(self, to: str, now: int) -> None:
        """State anew what holds of one of our own links."""
        self._number += 1
        item = LinkItem(self.node, to, self._epoch, self._number, to in self.links)
        self._spread(self.table.merge([item]), "", now)

    def _spread(self, newer: Sequence[LinkItem], came_from: str, now: int) -> None:
        if not newer:
            return
        for link, changed in self._changed.items():
            if link != came_from:
                changed.update((item.ends, None) for item in newer)
        self.timers.sooner(ItemsTellDue(), now + self._settings.gather_us)
        self.timers.sooner(TreesDue(), now + self._settings.settle_us)

    def _learn(self, link: str, items: Sequence[LinkItem], now: int) -> Sequence[Effect]:
        if any(item.node == item.to or item.number > NUMBER_MAX for item in items):
            return (CutLink(link, "garbage: an item of no link"),)
        others = [item for item in items if item.node != self.node]
        try:
            newer = self.table.merge(others)
        except LimitError as error:
            return (CutLink(link, str(error)),)
        self._spread(newer, link, now)
        for item in items:
            if item.node == self.node:
                self._contradict(item, now)
        return ()

    def _contradict(self, item: LinkItem, now: int) -> None:
        """Answer an item of an earlier life, or one that we never wrote, with what holds now."""
        known = self.table.items.get(item.ends)
        if known is not None and item.rank <= known.rank:
            return
        if (item.epoch, item.number) > (self._epoch, self._number):
            self._epoch, self._number = item.epoch, item.number
        if known is None or item.up != known.up or item.rank > known.rank:
            self._say(item.to, now)

    def _tell(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for link, changed in self._changed.items():
            if link in self._full:
                continue
            for _ in range(BURST):
                page = list(changed)[:ITEMS_MAX]
                if not page:
                    break
                for ends in page:
                    del changed[ends]
                known = [self.table.items[ends] for ends in page if ends in self.table.items]
                effects.append(SendOnLink(link, TopologyItems(tuple(known))))
            if changed:
                self.timers.sooner(ItemsTellDue(), now + 1)
        return effects

    # --- what follows

    def _compute(self, now: int) -> list[Effect]:
        graph = self.graph()
        tree = shared_tree(graph, self.node)
        self._age(tree, now)
        if tree == self.tree:
            return []
        self.tree = tree
        self._hops = branches(tree, self.node)
        links = self.tree_links
        return [
            OverlayStep("topology", "tree", number=len(tree), reason=" ".join(links)[:200]),
            TreeChanged(links),
        ]

    def _age(self, tree: Tree, now: int) -> None:
        """Note since when items do not count: their node is out of reach, or they are down."""
        stale: dict[Ends, int] = {}
        for ends, item in self.table.items.items():
            if not item.up or item.node not in tree:
                stale[ends] = self._stale.get(ends, now)
        self._stale = stale
        if stale:
            self.timers.sooner(ItemsForgetDue(), min(stale.values()) + self._settings.forget_us)

    def _forget(self, now: int) -> Sequence[Effect]:
        for ends, since in list(self._stale.items()):
            if since + self._settings.forget_us <= now:
                del self._stale[ends]
                self.table.forget(ends)
        if self._stale:
            first = min(self._stale.values())
            self.timers.sooner(ItemsForgetDue(), first + self._settings.forget_us)
        return ()
