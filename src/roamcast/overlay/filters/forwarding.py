"""How events go on through a node whose matching can be switched (CBM's matching algorithm)."""

from collections.abc import Callable, Collection

from roamcast.overlay.filters.part import NodeFilters
from roamcast.overlay.flows.messages import Event
from roamcast.overlay.flows.relay import VIEW
from roamcast.overlay.tables.wants import Wants


class SwitchedForwarding:
    """Matches events while this node's filter is active, and counts sampled ones in any case."""

    def __init__(self, filters: NodeFilters, wants: Wants, here: Callable[[Event], bool]) -> None:
        """`here`: whether a client of this node wants an event."""
        self._filters = filters
        self._wants = wants
        self._here = here

    def links(self, event: Event, came_from: str | None, known: Collection[str]) -> set[str]:
        """Name the links over which an event goes on."""
        filters = self._filters
        found: list[str] | None = None

        def beyond() -> list[str]:
            nonlocal found
            if found is None:
                found = self._wants.beyond((VIEW, event.context), came_from)
            return found

        going: set[str] = set()
        if any(link != came_from for link in known):  # else there is nothing to decide
            going = set(filters.links(beyond, came_from)).intersection(known)
        if filters.sampled((event.producer, event.life, event.number)):
            filters.count(beyond, lambda: self._here(event), came_from)
        return going
