"""Settings of handoff, and what a node knows of its surroundings; intervals in microseconds."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from roamcast.overlay.handoff.predict import NodesAt


class HandoffSettings(msgspec.Struct, frozen=True):
    """How patient a home is, and how long a virtual consumer is held."""

    still_us: int = 60_000_000
    """JIT's T: a consumer that stays so long in one border place does not move."""
    lease_us: int = 30_000_000
    """A virtual consumer whose lease was not renewed goes."""
    dwell_us: int = 10_000_000
    """How long an old home holds a consumer that has crossed: it may come right back (trap 19)."""
    sleep_us: int = 60_000_000
    """How long a home holds events for a consumer whose session is over; then the log is left."""
    retry_us: int = 500_000
    """Delay before a message that was not answered is repeated."""
    arrived_us: int = 30_000_000
    """How long a new home looks for the old one."""
    consumers_max: int = 100_000
    virtuals_max: int = 100_000


class Surroundings(msgspec.Struct, frozen=True):
    """What a node knows of places: whom each borders, and where one comes in from there."""

    borders: Callable[[str], tuple[str, ...]]
    """Place → the nodes that it borders [BCT]; none for a place inside."""
    entries: Callable[[str], tuple[str, ...]] = lambda _: ()
    """Place of another node → the places of this one that one may come to from there."""
    nodes_at: NodesAt = lambda _: ()
    """Points → who serves there, as far as places have shapes."""
    shaped: Callable[[str], tuple[str, ...]] = lambda _: ()
    """Place → the nodes that it borders whose places there have shapes: a heading tells of them."""


def surroundings(
    node: str, neighbours: Mapping[str, Iterable[str]], node_of: Callable[[str], str | None]
) -> Surroundings:
    """Derive the border places of a node from the places' own neighbours (JIT 2.3)."""
    borders: dict[str, tuple[str, ...]] = {}
    entries: dict[str, tuple[str, ...]] = {}
    for place, others in neighbours.items():
        others = list(others)
        if node_of(place) == node:
            found = {node_of(other) for other in others} - {node, None}
            borders[place] = tuple(sorted(one for one in found if one is not None))
        else:
            own = sorted(other for other in others if node_of(other) == node)
            if own:
                entries[place] = tuple(own)
    return Surroundings(lambda place: borders.get(place, ()), lambda place: entries.get(place, ()))


def living_surroundings(
    node: str, neighbours: Callable[[str], Iterable[str]], node_of: Callable[[str], str | None]
) -> Surroundings:
    """Derive the same at every question: other nodes' areas are learned, and change."""

    def borders(place: str) -> tuple[str, ...]:
        found = {node_of(other) for other in neighbours(place)} - {node, None}
        return tuple(sorted(one for one in found if one is not None))

    def entries(place: str) -> tuple[str, ...]:
        return tuple(sorted(one for one in neighbours(place) if node_of(one) == node))

    return Surroundings(borders, entries)
