"""`CoverIndex`: which of many filters does no other one cover? Without comparing pairs.

The filters are a forest: each lies below one that covers it, or is a root. A new filter's witnesses
are matched against the roots, which names those that can cover it; `covers` confirms. If none does,
it is a root itself, and the roots that it covers are found the other way round: it is asked, as a
one-time question, of the roots' witnesses. Filters without witnesses are compared with a bounded
number of others; what that misses is forwarded although it need not be.

A root that is removed stays as a *ghost* until all that lay below it has found a new place, a
bounded number at each step, so that no route is missing meanwhile.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from roamcast.errors import InputError
from roamcast.matching.covering import covers
from roamcast.matching.filter_set import FilterSet
from roamcast.matching.live import LiveIndex, questions
from roamcast.matching.live.slices import run
from roamcast.matching.witness import Witnesses, witnesses
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.holds import holds

PLAIN_MAX: Final = 256
"""Roots that no index names, and that are therefore compared one by one."""

_NOTHING: Final = Context("")


class _Node(msgspec.Struct):
    wanted: Filter
    samples: Witnesses | None
    above: str | None = None
    below: dict[str, None] = {}
    ghost: bool = False


class CoverIndex:
    """Filters by name, each below one that covers it. Filters of one view only."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._roots = FilterSet()
        self._samples = LiveIndex()
        self._plain: dict[str, None] = {}
        self._ghosts: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, name: object) -> bool:
        return name in self._nodes

    @property
    def ghosts(self) -> int:
        """Removed roots that still have filters below them."""
        return len(self._ghosts)

    def is_ghost(self, name: str) -> bool:
        """Return whether a filter was removed and only stays for what lies below it."""
        return self._nodes[name].ghost

    def roots(self) -> Iterator[str]:
        """Give the filters that no other one covers, ghosts included."""
        return (name for name, node in self._nodes.items() if node.above is None)

    def above(self, name: str) -> str | None:
        """Give the filter below which one lies."""
        return self._nodes[name].above

    def below(self, name: str) -> Iterator[str]:
        """Give the filters directly below one."""
        return iter(self._nodes[name].below)

    def filter(self, name: str) -> Filter:
        """Give a filter by its name."""
        return self._nodes[name].wanted

    def add(self, name: str, wanted: Filter) -> list[str]:
        """Add a filter; give the names of all that lie elsewhere now, its own first."""
        known = self._nodes.get(name)
        if known is not None:
            if not known.ghost:
                raise InputError(f"the filter {name!r} is there already")
            known.ghost = False  # what lay below it and is still there may stay
            del self._ghosts[name]
        else:
            self._nodes[name] = _Node(wanted, witnesses(wanted, name))
        return [name, *self._place(name)]

    def remove(self, name: str, limit: int) -> list[str]:
        """Remove a filter; give the names of all that lie elsewhere now, at most about `limit`."""
        node = self._nodes.get(name)
        if node is None or node.ghost:
            raise InputError(f"no filter has the name {name!r}")
        if node.above is not None:
            over = self._nodes[node.above]
            del over.below[name], self._nodes[name]
            for child in node.below:  # what covers it covers what it covers
                self._nodes[child].above = node.above
            over.below |= node.below
            return list(node.below)
        self._uproot(name)
        node.ghost = True
        self._ghosts[name] = None
        return self.settle(limit)

    def settle(self, limit: int) -> list[str]:
        """Find a new place for what lies below ghosts; give what moved, and ghosts that went."""
        moved: list[str] = []
        while self._ghosts and len(moved) < limit:
            ghost = next(iter(self._ghosts))
            node = self._nodes[ghost]
            while node.below and len(moved) < limit:
                child = next(iter(node.below))
                del node.below[child]
                self._nodes[child].above = None
                moved += [child, *self._place(child)]
            if not node.below:
                del self._ghosts[ghost], self._nodes[ghost]
                moved.append(ghost)
        return moved

    def _place(self, name: str) -> list[str]:
        """Hang a filter below a root that covers it, or make it one; give what it took below."""
        node = self._nodes[name]
        cover = self._cover(node)
        if cover is not None:
            node.above = cover
            self._nodes[cover].below[name] = None
            return []
        taken = self._covered(node)
        for other in taken:
            self._uproot(other)
            self._nodes[other].above = name
            node.below[other] = None
        self._roots.add(name, node.wanted)
        if node.samples is not None and node.samples[0].vid == name:
            self._samples.put(node.samples[0])
        elif len(self._plain) < PLAIN_MAX:
            self._plain[name] = None
        return taken

    def _uproot(self, name: str) -> None:
        self._roots.remove(name)
        self._samples.remove(name)
        self._plain.pop(name, None)

    def _cover(self, node: _Node) -> str | None:
        if node.samples is None:
            candidates = [*self._roots.match(_NOTHING), *self._plain]  # `true`, or one like it
        else:
            low, high = node.samples
            candidates = self._roots.match(low)
            if high != low and candidates:
                both = set(self._roots.match(high))
                candidates = [other for other in candidates if other in both]
        return next(
            (other for other in candidates if covers(self._nodes[other].wanted, node.wanted)), None
        )

    def _covered(self, node: _Node) -> list[str]:
        found = run(questions.every(self._samples, node.wanted))
        names = [context.vid for context in found]
        normal = node.wanted.normal
        likely = [name for name in names if holds(normal, self._high(name))]
        return [
            name
            for name in (*likely, *self._plain)
            if covers(node.wanted, self._nodes[name].wanted)
        ]

    def _high(self, name: str) -> Context:
        samples = self._nodes[name].samples
        assert samples is not None
        return samples[1]
