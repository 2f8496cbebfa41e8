"""Historic casts message by message, in plain Python: what the compiled counting must equal.

The algorithms are the paper's (TCC III-C), read as our errata say. Every router decides by what it
has been sent; a link carries at most one message of each phase.

- *ask* (algorithm 1): a router forwards over every other link beyond which an addressed access node
  lies. One that forwards over more than one is a branching point; its name travels with the cast.
- *answer* (algorithm 5): below the n-th branching point each router waits for all its subtrees,
  unites their vids with its own, and sends one answer back, an empty one as well: otherwise the
  router above would wait for it.
- *resolve* (algorithm 6): the n-th branching point sends an explicit multicast to the trusted nodes
  of the vids it has; an access node with fewer than n branching points above it, or at it, sends
  its own. Routers split vids along with receivers. Without vids nothing is sent.

NH is n = 0: every access node resolves. FBTH is n = 1.
"""

from collections.abc import Iterable
from typing import NamedTuple

from roamcast.sim.hops.routers import HistoricCast, Routers

ASK, ANSWER, RESOLVE = range(3)
PHASES = ("ask", "answer", "resolve")


class Hop(NamedTuple):
    """One message over one link."""

    phase: int
    source: int
    target: int
    receivers: frozenset[int] = frozenset()
    vids: frozenset[int] = frozenset()


def historic_hops(routers: Routers, cast: HistoricCast, branching: int) -> list[Hop]:
    """Return every message of a cast that is collected at branching points of this number."""
    return _Run(routers, cast, branching).hops


def historic_resolutions(
    routers: Routers, cast: HistoricCast, branching: int
) -> list[tuple[int, int, frozenset[int]]]:
    """Return (the router that resolves, the trusted node's router, vids) for each receiver."""
    return _Run(routers, cast, branching).resolved


class _Run:
    def __init__(self, routers: Routers, cast: HistoricCast, branching: int) -> None:
        self.hops: list[Hop] = []
        self.resolved: list[tuple[int, int, frozenset[int]]] = []
        self._routers = routers
        self._branching = branching
        self._addressed = set(routers.addressed(cast).tolist())
        count = routers.topology.nodes
        self._links = [routers.topology.neighbours(node).tolist() for node in range(count)]
        if self._addressed:
            self._asked(cast.origin, None, ())

    def _beyond(self, node: int, link: int) -> set[int]:
        """Return the routers on the other side of a link of a tree."""
        found, waiting = {link}, [link]
        while waiting:
            at = waiting.pop()
            more = [other for other in self._links[at] if other not in found and other != node]
            found.update(more)
            waiting += more
        return found

    def _asked(self, node: int, source: int | None, above: tuple[int, ...]) -> frozenset[int]:
        """Take the question at a router; return the vids it answers with, if it answers."""
        onward = [
            link
            for link in self._links[node]
            if link != source and self._beyond(node, link) & self._addressed
        ]
        branchings = (*above, node) if len(onward) > 1 else above
        found = self._archived(node) if node in self._addressed else frozenset()
        collected = self._branching > 0 and len(branchings) >= self._branching
        for link in onward:
            self.hops.append(Hop(ASK, node, link))
            answer = self._asked(link, node, branchings)
            if collected:
                found |= answer
        if not collected or branchings[self._branching - 1] == node:
            wanted = self._by_trusted(found)
            self.resolved += ((node, trusted, vids) for trusted, vids in wanted.items())
            self._resolve(node, wanted)
        else:
            assert source is not None
            self.hops.append(Hop(ANSWER, node, source, vids=found))
            return found
        return frozenset()

    def _resolve(self, node: int, wanted: dict[int, frozenset[int]]) -> None:
        """Send an explicit multicast on; a router that is a receiver takes its part."""
        for link in self._links[node]:
            beyond = self._beyond(node, link)
            part = {receiver: vids for receiver, vids in wanted.items() if receiver in beyond}
            if part:
                vids = _united(part.values())
                self.hops.append(Hop(RESOLVE, node, link, frozenset(part), vids))
                self._resolve(link, part)

    def _archived(self, node: int) -> frozenset[int]:
        starts = self._routers.starts
        return frozenset(self._routers.vids[starts[node] : starts[node + 1]].tolist())

    def _by_trusted(self, vids: frozenset[int]) -> dict[int, frozenset[int]]:
        trusted = dict(
            zip(self._routers.vids.tolist(), self._routers.trusted.tolist(), strict=True)
        )
        return {
            receiver: frozenset(vid for vid in vids if trusted[vid] == receiver)
            for receiver in {trusted[vid] for vid in vids}
        }


def _united(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*sets)
