"""Neighbours that nobody configured: an expanding ring search (OO part 2).

A node asks those one hop away, then two, and so on until enough have answered. Who hears the
question answers, and passes it on while it has hops left; answers go back the way the question
came. The nearest become neighbours, if their keys were given: the ring finds, it does not admit.

By radio, a hop is whoever is in reach, and a search goes on for ever, for nodes move. Over links, a
hop is a link: neighbours are asked for their neighbours, while fewer links are up than wanted. Who
was known before is dialled when too few answer: a node whose neighbours all died has nobody to ask.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from roamcast.model.addresses import Neighbour
from roamcast.model.machine import Draw, Effect, Listen, Multicast, Received, Send, step
from roamcast.model.parts import Occupancy, Part
from roamcast.model.records import OverlayStep
from roamcast.model.wire import Count, Message, messages_of
from roamcast.overlay.events import (
    CameByLink,
    NeighbourDown,
    NeighbourFound,
    NeighbourFull,
    NeighbourGone,
    NeighbourReady,
    NeighbourUp,
    OverlayOpened,
    SendOnLink,
)
from roamcast.overlay.links.messages import NodeName
from roamcast.overlay.links.settings import NeighbourSettings

GROUP: Final = "overlay/seek"
HOPS_MAX: Final = 8
QUESTIONS_MAX: Final = 1_000
"""Questions whose way back is remembered; beyond it the oldest is forgotten."""

FOUND_MAX: Final = 1_000
"""Nodes that one search takes note of."""

QUESTIONS_PER_S: Final = 50
QUESTIONS_BURST: Final = 200
"""Questions of one link that are taken; more are not passed on, so that nobody floods others."""

ADDRESSES_MAX: Final = 16
Address = Annotated[str, Meta(min_length=1, max_length=500)]
Hops = Annotated[int, Meta(ge=1, le=HOPS_MAX)]


class Seek(Message, frozen=True, tag="overlay.seek", gc=False):
    """Node to whoever is one hop away: which nodes are there?"""

    node: NodeName
    number: Annotated[Count, Meta(description="of the question, in the order of asking")]
    hops: Annotated[Hops, Meta(description="how far it goes, this hop included")]


class SeekAnswer(Message, frozen=True, tag="overlay.found", gc=False):
    """Node to the one that a question came from: here is a node, so many hops from there."""

    seeker: NodeName
    number: Count
    node: NodeName
    addresses: Annotated[
        tuple[Address, ...],
        Meta(min_length=1, max_length=ADDRESSES_MAX, description="where its hosts are dialled"),
    ]
    hops: Hops


DISCOVERY_MESSAGES: Final = messages_of(__name__)


class DiscoverySettings(msgspec.Struct, frozen=True):
    """Intervals in microseconds."""

    ring_us: int = 500_000
    """How long answers of one ring are awaited."""
    rest_us: int = 20_000_000
    """Interval between two searches."""
    hops_max: int = 4
    enough: int = 2
    """By radio, a ring that finds so many nodes is the last one; over links, how many to have."""
    neighbours_max: int = 4
    misses_max: int = 2
    """A found neighbour that is missed at so many searches in turn is given up."""
    by_radio: bool = False
    """Whether whoever is in reach is asked, or whoever is linked."""


class SearchState(enum.StrEnum):
    """Whether a search runs."""

    RESTING = "resting"
    SEEKING = "seeking"


class SearchEvent(enum.StrEnum):
    """What moves a search."""

    DUE = "the next search is due"
    WIDER = "the ring found too few"
    ENDED = "it found enough, or the ring is as wide as may be"


_S, _E = SearchState, SearchEvent
SEARCH_TABLE: Final = {
    (_S.RESTING, _E.DUE): _S.SEEKING,
    (_S.SEEKING, _E.WIDER): _S.SEEKING,
    (_S.SEEKING, _E.ENDED): _S.RESTING,
}


class Discovery(Part):
    """The search of one node, and its answers to others'."""

    part: ClassVar[str] = "discovery"
    messages: ClassVar = (Seek, SeekAnswer)
    inputs: ClassVar = (
        OverlayOpened, NeighbourUp, NeighbourDown, NeighbourFull, NeighbourReady,
    )  # fmt: skip
    carried: ClassVar = {CameByLink: (Seek, SeekAnswer)}

    def __init__(
        self,
        node: str,
        *,
        addresses: tuple[str, ...],
        keys: Mapping[str, bytes],
        settings: DiscoverySettings,
        draw: Draw,
        configured: Collection[str] = (),
        may_dial: Callable[[str], bool] = lambda _: True,
        listed: Callable[[], Iterable[tuple[str, str]]] = tuple,
    ) -> None:
        """`addresses`: where others dial this node; `keys`: nodes that may become neighbours.

        Without keys it answers and passes on, and searches never. Configured neighbours are never
        given up. `may_dial` says whether an address that somebody told is one to dial; `listed`
        names nodes beyond the links and an address of each.
        """
        assert settings.hops_max <= HOPS_MAX
        self.state = SearchState.RESTING
        self.neighbours: dict[str, int] = {}
        """Neighbours that nobody configured → searches in turn at which they were missed."""
        self._node = node
        self._addresses = addresses[:ADDRESSES_MAX]
        self._keys = {name: key for name, key in keys.items() if name != node}
        self._settings = settings
        self._draw = draw
        self._configured = frozenset(configured)
        self._may_dial = may_dial
        self._listed = listed
        self._number = 0
        self._ring = 0
        self._found: dict[str, tuple[int, tuple[str, ...]]] = {}
        """Nodes → how far they are, and their addresses."""
        self._book: dict[str, tuple[str, ...]] = {}
        """Nodes with keys that were ever heard of → their addresses."""
        self._failed: dict[str, int] = {}
        """Nodes → how often they were found and then given up."""
        self._ways: dict[tuple[str, int], str] = {}
        """Questions → whom they came from."""
        self._links: dict[str, None] = {}
        self._full: set[str] = set()
        self._room: dict[str, tuple[float, int]] = {}
        """Links → how many questions they may ask at once, and when that was."""
        self._due: int | None = None

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Begin once the node is open; answer, pass on, take note."""
        match given:
            case OverlayOpened(epoch):
                return self._open(epoch, now)
            case Received(sender, Seek() as question):
                return self._asked(sender, question)
            case CameByLink(link, Seek() as question):
                return self._asked(link, question) if self._has_room(link, now) else ()
            case Received(_, SeekAnswer() as answer) | CameByLink(_, SeekAnswer() as answer):
                return self._answered(answer)
            case NeighbourUp(node):
                self._links[node] = None
                self._full.discard(node)
                self._failed.pop(node, None)
                if not self._settings.by_radio and node not in self._configured:
                    self.neighbours[node] = 0
            case NeighbourDown(node):
                self._links.pop(node, None)
                self._room.pop(node, None)
            case NeighbourFull(node):
                self._full.add(node)
            case NeighbourReady(node):
                self._full.discard(node)
        return ()

    def _open(self, epoch: int, now: int) -> Sequence[Effect]:
        self._number = epoch  # above those of an earlier life, which others remember
        if self._settings.by_radio:
            self._due = now
            return (Listen(GROUP),)
        # Links that are configured come up first: they may be all that is wanted.
        self._due = now + 2 * self._settings.ring_us if self._keys else None
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        """Ask the next ring, or end the search."""
        if self._due is None or now < self._due:
            return ()
        if self.state is SearchState.RESTING:
            missed = () if self._settings.by_radio else self._miss(self._links)
            self._note_addresses()
            if not self._settings.by_radio and len(self._links) >= self._settings.enough:
                self._rest(now)
                return missed
            self._found.clear()
            self._ring = 0
            self.state = step(SEARCH_TABLE, self.state, SearchEvent.DUE)
            return [*missed, *self._ask_ring(now)]
        if self._has_enough() or self._ring >= self._settings.hops_max:
            self.state = step(SEARCH_TABLE, self.state, SearchEvent.ENDED)
            self._rest(now)
            if not self._settings.by_radio and not self._has_enough():
                for node, addresses in self._book.items():
                    self._found.setdefault(node, (HOPS_MAX, addresses))
            missed = self._miss(self._found) if self._settings.by_radio else ()
            return [*missed, *self._choose()]
        self.state = step(SEARCH_TABLE, self.state, SearchEvent.WIDER)
        return self._ask_ring(now)

    def deadline(self) -> int | None:
        """When the next ring or search is due."""
        return self._due

    def occupancy(self) -> Occupancy:
        """How much is remembered."""
        return {
            "questions": (len(self._ways), QUESTIONS_MAX),
            "found": (len(self._found), FOUND_MAX),
        }

    def _rest(self, now: int) -> None:
        # Drawn, so that nodes that started together do not ask together for ever.
        rest_us = self._settings.rest_us
        self._due = now + rest_us // 2 + round(rest_us * self._draw())

    def _ask_ring(self, now: int) -> list[Effect]:
        self._ring += 1
        self._number += 1
        self._due = now + self._settings.ring_us
        return self._ask(Seek(self._node, self._number, self._ring), came_from="")

    def _has_enough(self) -> bool:
        linked = () if self._settings.by_radio else self._links
        found = sum(node not in linked for node in self._found)
        return found + len(linked) >= self._settings.enough

    # --- questions and answers

    def _ask(self, question: Seek, came_from: str) -> list[Effect]:
        if self._settings.by_radio:
            return [Multicast(GROUP, question)]
        links = (link for link in self._links if link != came_from and link not in self._full)
        return [SendOnLink(link, question) for link in links]

    def _reply(self, to: str, answer: SeekAnswer) -> Effect:
        if self._settings.by_radio:
            return Send(Neighbour(to), answer)
        return SendOnLink(to, answer)

    def _has_room(self, link: str, now: int) -> bool:
        """Whether a link may ask one more question: each is passed on to all others."""
        room, since = self._room.get(link, (float(QUESTIONS_BURST), now))
        room = min(QUESTIONS_BURST, room + (now - since) * QUESTIONS_PER_S / 1_000_000)
        self._room[link] = (room - 1 if room >= 1 else room), now
        return room >= 1

    def _asked(self, sender: str, question: Seek) -> Sequence[Effect]:
        key = (question.node, question.number)
        if question.node == self._node or key in self._ways:
            return ()
        if len(self._ways) >= QUESTIONS_MAX:
            del self._ways[next(iter(self._ways))]
        self._ways[key] = sender
        effects: list[Effect] = []
        if self._addresses:
            own = SeekAnswer(question.node, question.number, self._node, self._addresses, 1)
            effects.append(self._reply(sender, own))
        if question.hops > 1:
            further = msgspec.structs.replace(question, hops=question.hops - 1)
            effects += self._ask(further, sender)
        return effects

    def _answered(self, answer: SeekAnswer) -> Sequence[Effect]:
        if answer.seeker != self._node:
            way = self._ways.get((answer.seeker, answer.number))
            if way is None or answer.hops >= HOPS_MAX:
                return ()
            further = msgspec.structs.replace(answer, hops=answer.hops + 1)
            return (self._reply(way, further),)
        known = self._found.get(answer.node)
        room = len(self._found) < FOUND_MAX or known is not None
        # Of the rings of this search any answer counts, however late.
        current = self._number - self._ring < answer.number <= self._number
        admitted = answer.node in self._keys and all(map(self._may_dial, answer.addresses))
        if room and current and admitted and (known is None or answer.hops < known[0]):
            self._found[answer.node] = answer.hops, answer.addresses
            self._book[answer.node] = answer.addresses
        return ()

    def _note_addresses(self) -> None:
        for node, address in self._listed():
            if node in self._keys and node not in self._book and self._may_dial(address):
                self._book[node] = (address,)

    # --- who becomes a neighbour, and who is one no longer

    def _miss(self, there: Collection[str]) -> list[Effect]:
        """Give up those that were missing too often."""
        effects: list[Effect] = []
        for node in list(self.neighbours):
            self.neighbours[node] = 0 if node in there else self.neighbours[node] + 1
            if self.neighbours[node] >= self._settings.misses_max:
                del self.neighbours[node]
                self._failed[node] = self._failed.get(node, 0) + 1
                effects += [NeighbourGone(node), OverlayStep("topology", "given up", node)]
        return effects

    def _choose(self) -> list[Effect]:
        """Take the nearest, by name among equals; first those that never were in vain."""
        effects: list[Effect] = []
        lacking = self._settings.neighbours_max - len(self.neighbours)
        by_radio = self._settings.by_radio
        if not by_radio:
            lacking = min(lacking, self._settings.enough - len(self._links))
        nearest = sorted(
            (0 if by_radio else self._failed.get(node, 0), hops, node, addresses)
            for node, (hops, addresses) in self._found.items()
            if node not in self.neighbours and (by_radio or node not in self._links)
        )
        for _, hops, node, addresses in nearest[: max(0, lacking)]:
            if node not in self._configured:
                self.neighbours[node] = 0
            settings = NeighbourSettings(self._keys[node], addresses)
            effects += [
                NeighbourFound(node, settings),
                OverlayStep("topology", "found", node, hops),
            ]
        return effects
