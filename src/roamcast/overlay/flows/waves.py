"""Waves: from which positions on does everything that this home wants come to it?

A home sends a mark along the tree. Each node passes it on over a link only once its own wants stand
at the other end of that link, so where the mark has been, the home's wants are in force. The
answers come back joined: for each origin the position of its log when the mark was there.

A link that begins may carry flows that were made without this home's wants. Whoever begins one says
so to everybody by a reset, ahead of any flow, and homes begin a new wave (0135).
"""

from collections.abc import Callable, Collection
from typing import Final

from roamcast.overlay.flows.messages import FlowMark, FlowReset, FlowStood
from roamcast.overlay.flows.vector import ORIGINS_MAX, Position, Vector, merge, pairs

Sent = list[tuple[str, FlowMark | FlowStood | FlowReset]]
"""Links and what to send over them."""

HOMES_MAX: Final = ORIGINS_MAX


class _Mark:
    """One wave as it passes through this node."""

    def __init__(
        self, wave: Position, came_from: str | None, links: Collection[str], now: int
    ) -> None:
        self.wave = wave
        self.since = now
        self.came_from = came_from
        self.waiting = {link: None for link in links if link != came_from}
        self.out: set[str] = set()
        self.start: dict[str, Position] = {}


class Waves:
    """The waves of all homes, and of this one."""

    def __init__(
        self,
        node: str,
        links: Collection[str],
        *,
        stands: Callable[[str], bool],
        position: Callable[[], Vector],
    ) -> None:
        """`stands`: whether everything wanted on this side is known at the end of a link."""
        self.node = node
        self.epoch = 0
        self._links = links
        self._stands = stands
        self._position = position
        self._number = 0
        self._marks: dict[str, _Mark] = {}
        self._resets: dict[str, Position] = {}

    def __len__(self) -> int:
        return len(self._marks)

    @property
    def under_way(self) -> Position | None:
        """This home's own wave, if one is under way."""
        own = self._marks.get(self.node)
        return None if own is None else own.wave

    def _next(self) -> Position:
        self._number += 1
        return Position(self.epoch, self._number)

    def begin(self, now: int) -> Position:
        """Begin a wave of this home; an earlier one is over."""
        wave = self._next()
        self._marks[self.node] = _Mark(wave, None, self._links, now)
        return wave

    def end(self) -> None:
        """Give up this home's wave."""
        self._marks.pop(self.node, None)

    def reset(self) -> Sent:
        """Say to everybody that a link began here."""
        at = self._resets[self.node] = self._next()
        return [(link, FlowReset(self.node, at)) for link in self._links]

    def take_reset(self, given: FlowReset, came_from: str) -> Sent | None:
        """Pass a reset on; None if it was heard before."""
        known = self._resets.get(given.node)
        if known is not None and given.at <= known:
            return None
        self._resets.pop(given.node, None)
        self._resets[given.node] = given.at
        if len(self._resets) > HOMES_MAX:
            del self._resets[next(iter(self._resets))]
        return [(link, given) for link in self._links if link != came_from]

    def marked(self, given: FlowMark, came_from: str, now: int) -> Sent:
        """Take another home's mark."""
        known = self._marks.get(given.home)
        if given.home == self.node or (known is not None and given.wave < known.wave):
            return []
        if known is not None and given.wave == known.wave:
            # Trees differ while news travels: it was here before, and the first answer has it all.
            return [(came_from, FlowStood(given.home, given.wave, ()))]
        if len(self._marks) >= HOMES_MAX and known is None:
            return []
        self._marks[given.home] = _Mark(given.wave, came_from, self._links, now)
        return []

    def stood(self, given: FlowStood, came_from: str) -> None:
        """Take the answer of one branch."""
        mark = self._marks.get(given.home)
        if mark is not None and mark.wave == given.wave and came_from in mark.out:
            mark.out.discard(came_from)
            mark.start = merge(mark.start, dict(given.start))

    def links_changed(self, begun: bool) -> None:
        """Forget waves that cannot be answered any more; homes begin new ones."""
        for home, mark in list(self._marks.items()):
            needed = {*mark.waiting, *mark.out, *([mark.came_from] if mark.came_from else ())}
            if begun or not needed <= set(self._links):
                del self._marks[home]

    def forget(self, until: int) -> None:
        """Forget other homes' marks that are older: nobody waits for their answers any more."""
        for home, mark in list(self._marks.items()):
            if mark.since <= until and mark.came_from is not None:
                del self._marks[home]

    def advance(self) -> tuple[Sent, Vector | None]:
        """Pass marks on and answer them; give this home's own answer if it is there."""
        out: Sent = []
        own: Vector | None = None
        for home, mark in list(self._marks.items()):
            for link in [link for link in mark.waiting if self._stands(link)]:
                del mark.waiting[link]
                mark.out.add(link)
                out.append((link, FlowMark(home, mark.wave)))
            if mark.waiting or mark.out:
                continue
            del self._marks[home]
            start = merge(mark.start, self._position())
            if mark.came_from is None:
                own = start
            else:
                out.append((mark.came_from, FlowStood(home, mark.wave, pairs(start))))
        return out, own
