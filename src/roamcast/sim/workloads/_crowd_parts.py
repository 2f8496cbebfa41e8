"""What the overlay workload knows of contexts: who published what where, and who must know of it.

A neighbour's copy of a summary comes with a watermark: everything acknowledged before it is in the
copy, while it lasts and for a while after. So no filter that is true of a member is ever refused by
a summary that came after it (trap 2). In the end every table is right, and all of the past is found
in the areas, also where the node serves other places now (trap 7).
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from roamcast.identity.rules import Rule
from roamcast.model.areas import Area, Patch
from roamcast.model.filters import Filter
from roamcast.model.time import FOREVER
from roamcast.overlay.overlay import Overlay
from roamcast.overlay.topology.trees import Tree, branches
from roamcast.sim.checkers import Violation

STAFF: Final = (Rule(viewers=("staff",), precision="exact", past=True),)
"""Neighbours must not learn of these, and staff must find them."""


class Publication(msgspec.Struct):
    """A context that somebody publishes at a node; its number is in its attributes."""

    node: str
    number: int
    place: str
    hidden: bool
    begins: int
    """Since when it is there, by the node's clock."""
    acknowledged: int | None = None
    """What the node's clock had shown at most when its publisher was answered."""
    ended: int | None = None
    """The true time when its publisher asked for its end."""
    gone: bool = False
    """Whether its publisher was told that it ended."""

    @property
    def vid(self) -> str:
        """Its vid."""
        return f"p{self.number}"

    @property
    def wanted(self) -> Filter:
        """A filter that is true of it alone."""
        return Filter.parse(f"n = {self.number} AND place = '{self.place}'")

    @property
    def began(self) -> Area:
        """Where and when it began: everybody must know that it is to be found there, for ever."""
        begins = (self.begins, self.begins)
        return Area((Patch(places=(self.place,), begins=begins, ends=(self.begins, None)),))


class CrowdTruth:
    """What was published, and what each node must know of it."""

    def __init__(self, linger_us: int) -> None:
        self.publications: dict[int, Publication] = {}
        """By the ticket that asked for each."""
        self.ends: dict[int, Publication] = {}
        """By the ticket that asked for the end of each."""
        self.checked = 0
        self._linger_us = linger_us
        self._nodes: tuple[str, ...] = ()
        self._local: Callable[[str], int] = lambda _: 0
        self._clocks: dict[str, int] = {}
        self._trees: dict[str, Tree] = {}
        self._changed: dict[str, dict[str, int]] = {}
        """Nodes → what all clocks showed when something last changed about the node's links."""

    def clocks(self, nodes: tuple[str, ...], local: Callable[[str], int]) -> None:
        """Ask this what the clocks of these nodes show."""
        self._nodes, self._local = nodes, local

    def tick(self, node: str, local: int) -> None:
        """Note what a node's clock shows; one that is set back has shown more."""
        self._clocks[node] = max(local, self._clocks.get(node, local))

    def change(self, node: str) -> None:
        """Something changed about a node's links: it started, or the tree runs otherwise."""
        for one in self._nodes:
            self.tick(one, self._local(one))
        self._changed[node] = dict(self._clocks)

    def acknowledge(self, ticket: int) -> None:
        """A publisher was answered."""
        found = self.publications.get(ticket)
        if found is not None:
            found.acknowledged = self._clocks[found.node]
        if ticket in self.ends:
            self.ends[ticket].gone = True

    def check(self, overlays: Mapping[str, Overlay], now: int) -> None:
        """Check that no summary refuses what it must hold."""
        for node, overlay in overlays.items():
            tree = overlay.topology.tree
            if self._trees.get(node) != tree:
                self._trees[node] = dict(tree)
                self.change(node)
        for node, overlay in overlays.items():
            self._check_own(node, overlay)
            for other, link in branches(overlay.topology.tree, node).items():
                way = _way(overlay.topology.tree, node, other)
                alike = all(
                    one in overlays and overlays[one].topology.tree == overlay.topology.tree
                    for one in way
                )
                mark = overlay.feeding.crowd.watermark(link)
                if not alike or mark is None or link not in overlay.exchange.links:
                    continue
                # The lowest of the marks of all on the way: each made it after all changes.
                if all(self._clock_at(one, behind) < mark for one in way for behind in way[1:]):
                    self._check_link(node, overlay, other, link, mark, now)

    def _clock_at(self, changed: str, node: str) -> int:
        """What a node's clock showed when something last changed about another's links."""
        return self._changed.get(changed, {}).get(node, FOREVER)

    def _check_own(self, node: str, overlay: Overlay) -> None:
        """What was acknowledged here is in this broker's own summary."""
        for one in self.publications.values():
            lasts = one.acknowledged is not None and one.ended is None
            if one.node == node and lasts and not overlay.feeding.crowd.admits(one.wanted):
                raise Violation("no summary refuses a member", f"{one} at {node} itself")

    def _check_link(
        self, node: str, overlay: Overlay, other: str, link: str, mark: int, now: int
    ) -> None:
        for one in self.publications.values():
            if one.node != other or one.acknowledged is None or one.acknowledged > mark:
                continue
            if one.ended is not None and one.ended + self._linger_us // 2 < now:
                continue
            self.checked += 1
            if link not in overlay.feeding.crowd.beyond(one.wanted, None):
                detail = f"{node} looks beyond {link} up to {mark}, and not for {one}"
                raise Violation("no summary refuses a member", detail)

    def wrong(self, node: str, overlay: Overlay, hops: Mapping[str, str]) -> str:
        """Say what is wrong at a node once everything is healed; empty if nothing is."""
        hiding = {one.node for one in self.publications.values() if one.hidden}
        for one in self.publications.values():
            if one.acknowledged is None:
                continue
            # A node with rules admits everything in its places, and wider ones: see 0130.
            veiled = {hops[other] for other in hiding if other in hops}
            lasts = one.ended is None and one.node in hops
            right = {hops[one.node]} if lasts and not one.hidden else set()
            found = set(overlay.feeding.crowd.beyond(one.wanted, None))
            if one.ended is not None and not one.gone and one.node in hops:
                veiled.add(hops[one.node])  # nobody knows whether it has ended
            if not right <= found <= right | veiled:
                return f"{node} looks for {one} beyond {found}, not {right}"
            if one.node in hops:
                past = overlay.feeding.areas.beyond(one.began, None)
                if hops[one.node] not in past:
                    return f"{node} looks for the past of {one} beyond {past} alone"
        return ""


def _way(tree: Tree, first: str, other: str) -> list[str]:
    """Give the nodes on the way from one to another, both included."""
    way = [first]
    while way[-1] != other:
        way.append(branches(tree, way[-1])[other])
    return way
