"""Who in this very process watches the map? Queries placed without a client, told at once.

The service's last hop (WebSocket, SSE) is in the server's own process, so nothing to it is lost or
reordered: it needs no batches, receipts or channels. It places a query in the view class of whoever
looks, gets the current set, and from then on what each update means for it.
"""

from typing import TYPE_CHECKING

from roamcast.channels.server.map import Matched
from roamcast.channels.server.messages import State
from roamcast.channels.server.queries import QueryRecord, check_room
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect

if TYPE_CHECKING:
    from roamcast.channels.server.map_server import MapServer
    from roamcast.channels.server.view_class import ViewClass


class LocalUpdate(Effect, frozen=True, gc=False):
    """An update touched queries watched here: those its object satisfied before, and does now."""

    view_class: str
    state: State
    before: Matched
    after: Matched


class LocalQueries:
    """The queries that this process itself has placed at its map server."""

    def __init__(self, server: "MapServer") -> None:
        self._server = server

    def place(self, view_class: str, wanted: Filter) -> int:
        """Watch a filter in a view class; give the query's number, the same for equal filters."""
        server = self._server
        view = server.dissemination.view_class(view_class)
        record = view.table.known(wanted.text)
        if record is None:
            check_room(server.subscriptions.records, 1, server.settings.queries_max)
            number = server.dissemination.take_number()
            found = server.contexts.satisfying(view, wanted, number)
            record = view.table.add(number, wanted, found)
            server.subscriptions.records += 1
        view.local[record.number] = view.local.get(record.number, 0) + 1
        return record.number

    def drop(self, view_class: str, number: int) -> None:
        """Watch a query once less."""
        view = self._server.dissemination.classes[view_class]
        view.local[number] -= 1
        if view.local[number]:
            return
        del view.local[number]
        if self._server.dissemination.let_go(view, view.table.records[number]):
            self._server.subscriptions.records -= 1

    def current(self, view_class: str, number: int) -> list[State]:
        """Give every object that satisfies a query now, by vid."""
        view = self._server.dissemination.classes[view_class]
        record = view.table.records[number]
        return [state for vid in self._vids(record) if (state := self._of(view, record, vid))]

    def _vids(self, record: QueryRecord) -> list[str]:
        if record.members is not None:
            return sorted(record.members)
        return sorted(self._server.contexts.candidates(record.filter))

    def _of(self, view: "ViewClass", record: QueryRecord, vid: str) -> State | None:
        return self._server.contexts.state_of(view, record, vid)
