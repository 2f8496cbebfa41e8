"""How events go on through a node whose matching can be switched (CBM's matching algorithm)."""

from collections.abc import Callable, Collection

import msgspec

from roamcast.model.contexts import Context
from roamcast.overlay.filters.part import NodeFilters
from roamcast.overlay.flows.messages import Event
from roamcast.overlay.flows.relay import VIEW
from roamcast.overlay.tables.wants import Wants


class SwitchedForwarding:
    """Matches events while this node's filter is active, and counts sampled ones in any case."""

    def __init__(self, filters: NodeFilters, wants: Wants, here: Callable[[Context], bool]) -> None:
        """`here`: whether a client of this node wants a context."""
        self._filters = filters
        self._wants = wants
        self._here = here

    def links(self, event: Event, came_from: str | None, known: Collection[str]) -> set[str]:
        """Name the links over which an event goes on."""
        filters, context = self._filters, event.context
        found: list[str] | None = None

        def beyond() -> list[str]:
            nonlocal found
            if found is None:
                found = self._wants.beyond((VIEW, context), came_from)
            return found

        going = set(filters.links(beyond, came_from)).intersection(known)
        name = msgspec.msgpack.encode((event.producer, event.life, event.number))
        if filters.sampled(name):
            filters.count(beyond(), self._here(context), came_from)
        return going
