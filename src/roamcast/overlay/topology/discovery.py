"""Neighbours that nobody configured: an expanding ring search (OO part 2).

A node asks those one hop away, then two, and so on until enough have answered. Who hears the
question answers, and passes it on while it has hops left; answers go back the way the question
came. The nearest become neighbours, if their keys were given: the ring finds, it does not admit.
Found neighbours that answer no more are given up.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from roamcast.model.addresses import Neighbour
from roamcast.model.machine import Draw, Effect, Listen, Multicast, Received, Send, step
from roamcast.model.parts import Occupancy, Part
from roamcast.model.records import OverlayStep
from roamcast.model.wire import Count, Message, messages_of
from roamcast.overlay.events import NeighbourFound, NeighbourGone, OverlayOpened
from roamcast.overlay.links.messages import NodeName
from roamcast.overlay.links.settings import NeighbourSettings

GROUP: Final = "overlay/seek"
HOPS_MAX: Final = 8
QUESTIONS_MAX: Final = 1_000
"""Questions whose way back is remembered; beyond it the oldest is forgotten."""

FOUND_MAX: Final = 1_000
"""Nodes that one search takes note of."""

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
    address: Address
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
    """A ring that finds so many nodes is the last one."""
    neighbours_max: int = 4
    misses_max: int = 2
    """A found neighbour that does not answer so many searches in turn is given up."""


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
    inputs: ClassVar = (OverlayOpened,)

    def __init__(
        self,
        node: str,
        *,
        address: str,
        keys: Mapping[str, bytes],
        settings: DiscoverySettings,
        draw: Draw,
    ) -> None:
        """`address`: where others dial this node; `keys`: nodes that may become neighbours."""
        assert settings.hops_max <= HOPS_MAX
        self.state = SearchState.RESTING
        self.neighbours: dict[str, int] = {}
        """Neighbours that a search found → searches in turn that they did not answer."""
        self._node = node
        self._address = address
        self._keys = keys
        self._settings = settings
        self._draw = draw
        self._number = 0
        self._ring = 0
        self._found: dict[str, tuple[int, str]] = {}
        """Nodes → how far they are, and their address."""
        self._ways: dict[tuple[str, int], str] = {}
        """Questions → whom they came from."""
        self._due: int | None = None

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Begin once the node is open; answer, pass on, take note."""
        match given:
            case OverlayOpened(epoch):
                self._number = epoch  # above those of an earlier life, which others remember
                self._due = now
                return (Listen(GROUP),)
            case Received(sender, Seek() as question):
                return self._asked(sender, question)
            case Received(_, SeekAnswer() as answer):
                return self._answered(answer)
        raise AssertionError(f"a search takes no {given!r}")

    def advance(self, now: int) -> Sequence[Effect]:
        """Ask the next ring, or end the search."""
        if self._due is None or now < self._due:
            return ()
        settings = self._settings
        if self.state is SearchState.RESTING:
            self._found.clear()
            self._ring = 0
            self.state = step(SEARCH_TABLE, self.state, SearchEvent.DUE)
        elif len(self._found) >= settings.enough or self._ring >= settings.hops_max:
            self.state = step(SEARCH_TABLE, self.state, SearchEvent.ENDED)
            # Drawn, so that nodes that started together do not ask together for ever.
            self._due = now + settings.rest_us // 2 + round(settings.rest_us * self._draw())
            return self._choose()
        else:
            self.state = step(SEARCH_TABLE, self.state, SearchEvent.WIDER)
        self._ring += 1
        self._number += 1
        self._due = now + settings.ring_us
        return (Multicast(GROUP, Seek(self._node, self._number, self._ring)),)

    def deadline(self) -> int | None:
        """When the next ring or search is due."""
        return self._due

    def occupancy(self) -> Occupancy:
        """How much is remembered."""
        return {
            "questions": (len(self._ways), QUESTIONS_MAX),
            "found": (len(self._found), FOUND_MAX),
            "found neighbours": (len(self.neighbours), self._settings.neighbours_max),
        }

    def _asked(self, sender: str, question: Seek) -> Sequence[Effect]:
        key = (question.node, question.number)
        if question.node == self._node or key in self._ways:
            return ()
        if len(self._ways) >= QUESTIONS_MAX:
            del self._ways[next(iter(self._ways))]
        self._ways[key] = sender
        answer = SeekAnswer(question.node, question.number, self._node, self._address, 1)
        effects: list[Effect] = [Send(Neighbour(sender), answer)]
        if question.node in self._keys:  # it may dial us: await it, though we choose others
            settings = NeighbourSettings(self._keys[question.node])
            effects.append(NeighbourFound(question.node, settings))
        if question.hops > 1:
            further = msgspec.structs.replace(question, hops=question.hops - 1)
            effects.append(Multicast(GROUP, further))
        return effects

    def _answered(self, answer: SeekAnswer) -> Sequence[Effect]:
        if answer.seeker != self._node:
            way = self._ways.get((answer.seeker, answer.number))
            if way is None or answer.hops >= HOPS_MAX:
                return ()
            return (Send(Neighbour(way), msgspec.structs.replace(answer, hops=answer.hops + 1)),)
        known = self._found.get(answer.node)
        room = len(self._found) < FOUND_MAX or known is not None
        # Of the rings of this search any answer counts, however late.
        current = self._number - self._ring < answer.number <= self._number
        admitted = answer.node in self._keys and answer.node != self._node
        if room and current and admitted and (known is None or answer.hops < known[0]):
            self._found[answer.node] = answer.hops, answer.address
        return ()

    def _choose(self) -> list[Effect]:
        """Give up those that are silent, then take the nearest, by name among equals."""
        effects: list[Effect] = []
        for node in list(self.neighbours):
            self.neighbours[node] = 0 if node in self._found else self.neighbours[node] + 1
            if self.neighbours[node] >= self._settings.misses_max:
                del self.neighbours[node]
                effects += [NeighbourGone(node), OverlayStep("topology", "given up", node)]
        nearest = sorted((hops, node, address) for node, (hops, address) in self._found.items())
        for hops, node, address in nearest:
            if len(self.neighbours) >= self._settings.neighbours_max:
                break
            if node not in self.neighbours:
                self.neighbours[node] = 0
                settings = NeighbourSettings(self._keys[node], (address,))
                effects += [
                    NeighbourFound(node, settings),
                    OverlayStep("topology", "found", node, hops),
                ]
        return effects
