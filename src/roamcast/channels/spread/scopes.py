"""How are clients beyond the reach of local groups told? Alone, or by a few wide-area groups.

AMS, "Local-Scope Versus Internet Multicast Groups": local groups serve local clients; one or two
remote ones are told by unicast; where more of them ask the same, their query rides on one of a
small fixed number of wide-area groups. When none is free, queries share one, and the clients on it
drop what they did not ask for. Local clients notice nothing of all this.
"""

from collections.abc import Collection, Iterable

from roamcast.channels.server.desk import ClientState, Desk
from roamcast.channels.server.queries import QueryRecord
from roamcast.channels.server.settings import MapSettings, Mode
from roamcast.channels.server.view_class import ViewClass
from roamcast.channels.spread.streams import Stream
from roamcast.model.places_path import path_within
from roamcast.model.records import ChannelStep


def is_remote(site: str, settings: MapSettings) -> bool:
    """Whether local groups do not reach a client that says it is at this site."""
    return bool(settings.local_scope) and not path_within(site, settings.local_scope)


def foreign_pairs(listeners: Collection[str], queries: int, subscribers: Collection[str]) -> int:
    """Count the pairs (client, query it did not ask for) that one more query brings to a group.

    Who listens already hears the new query, and its subscribers hear the queries that ride there.
    """
    both = sum(name in listeners for name in subscribers)
    return len(listeners) - both + (len(subscribers) - both) * queries


class Scopes:
    """Which queries ride on which wide-area groups."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def enlist(self, view: ViewClass, record: QueryRecord, client: ClientState) -> None:
        """Count a remote subscriber in; enough of them earn their query a place on a group."""
        settings = self._desk.settings
        if not settings.wide_groups_max or settings.mode is Mode.UNICAST:
            return
        if record.wide is not None:
            self._join(view, record, record.wide, client)
            return
        remote = [name for name in record.remote if self._desk.clients[name].remote]
        if len(remote) < settings.wide_subscribers_min:
            return
        stream = self._group_for(view, record, remote)
        if stream is None:
            return
        view.wide.setdefault(stream.number, {})[record.number] = None
        record.wide = stream
        for name in remote:
            self._join(view, record, stream, self._desk.clients[name])
        for name in record.riders:
            if name != client.name:  # the newcomer's answer lists the group
                self._desk.deliver(self._desk.clients[name], stream.announcement(record.number))
        if not record.riders:  # all have limits for which no group is free
            self._unshare(view, record, stream)

    def _join(
        self, view: ViewClass, record: QueryRecord, stream: Stream, client: ClientState
    ) -> None:
        if view.join(stream, client, record, ()):
            record.riders[client.name] = None
            stream.count_audience(self._desk.now)

    def _group_for(
        self, view: ViewClass, record: QueryRecord, subscribers: Collection[str]
    ) -> Stream | None:
        """Take a free group, else the one where least is heard in vain."""
        reason = f"{len(subscribers)} remote subscribers of one query"
        stream = view.open_stream((), reason, wide=True)
        if stream is not None or not view.wide:
            return stream
        _, _, number = min(
            (
                foreign_pairs(view.streams[number].listeners, len(queries), subscribers),
                len(queries),
                number,
            )
            for number, queries in view.wide.items()
        )
        stream = view.streams[number]
        sender = stream.bands[-1].sender
        reason = f"{reason}, and no wide-area group is free"
        self._desk.out.append(
            ChannelStep(sender.channel, "shared", sender.incarnation, record.number, reason)
        )
        return stream

    def discharge(self, view: ViewClass, record: QueryRecord, client: str) -> None:
        """Count a remote subscriber out; the last one takes its query off the group.

        Not before: to leave the group but keep the query, a client would have to be told, and
        until its receipt came nobody knew whether bytes on the group still count for it.
        """
        stream = record.wide
        if stream is None or client not in record.riders:
            return
        del record.riders[client]
        view.leave(stream, client)
        if not record.riders:
            self._unshare(view, record, stream)

    def _unshare(self, view: ViewClass, record: QueryRecord, stream: Stream) -> None:
        record.wide = None
        queries = view.wide[stream.number]
        del queries[record.number]
        if not queries:
            del view.wide[stream.number]
            view.close_stream(stream, "no query rides on it any more")

    def streams(self, records: Iterable[QueryRecord]) -> list[Stream]:
        """Give the groups an update goes to: each once, however many of its queries ride there."""
        found = {record.wide.number: record.wide for record in records if record.wide}
        return list(found.values())
