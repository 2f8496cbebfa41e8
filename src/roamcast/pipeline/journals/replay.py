"""A broker's decisions replayed under another q and m, to count the transmissions.

AMS leaves q and m open. A journal says which queries each update met and who asked for them, which
is all that the choice of channels depends on. So the same steps (query records, recurring update
query sets, `recurring.History`) are taken again under other thresholds, and counted (decision
0045). Limits of bandwidth and the pool's size are left out: with them a broker sends more.
"""

from collections.abc import Iterable

import msgspec

from roamcast.channels.server.queries import Matched
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.server.view_class import History

SUBSCRIBERS_MIN = (1, 2, 3, 4, 6, 8, 12, 16)
HISTORY_MAX = (8, 32, 128, 512, 2048)
"""What is tried for q and m, every pair of them."""


class AskedQuery(msgspec.Struct):
    """One query: its clients that hear channels, those that do not, and its channels."""

    view_class: "Class"
    local: dict[str, None]
    remote: dict[str, None]
    channel: bool = False
    sets: dict[Matched, None] = {}
    """The recurring sets with this query that have a channel."""


class Class(msgspec.Struct):
    """A view class: how many queries stand, its H, and which sets of H have a channel."""

    name: str
    history: History
    queries: int = 0
    channels: dict[Matched, None] = {}


class Replay:
    """A broker under q and m, as far as its channels go; `transmissions` carry updates."""

    def __init__(self, subscribers_min: int, history_max: int) -> None:
        self._settings = MapSettings(subscribers_min=subscribers_min, history_max=history_max)
        self.transmissions = 0
        self.announcements = 0
        self.channels_max = 0
        self._channels = 0
        self._asked: dict[int, AskedQuery] = {}
        self._classes: dict[str, Class] = {}

    @property
    def cost(self) -> int:
        """All transmissions caused by updates."""
        return self.transmissions + self.announcements

    def count_anew(self) -> None:
        """Forget what was counted so far, and nothing else."""
        self.transmissions = self.announcements = 0
        self.channels_max = self._channels

    def restart(self) -> None:
        """Begin a new epoch, without any subscription."""
        self._asked.clear()
        self._classes.clear()
        self._channels = 0

    def placed(self, query: int, view_class: str, client: str, *, remote: bool) -> None:
        """Count a client in; the q-th one that hears channels earns the query one (AMS 8)."""
        asked = self._asked.get(query)
        if asked is None:
            view = self._classes.get(view_class)
            if view is None:
                view = Class(view_class, History(self._settings.history_max), channels={})
                self._classes[view_class] = view
            view.queries += 1
            asked = self._asked[query] = AskedQuery(view, {}, {}, sets={})
        if remote:
            asked.remote[client] = None
            return
        asked.local[client] = None
        if not asked.channel and len(asked.local) >= self._settings.subscribers_min:
            asked.channel = True
            self._open()
            self.announcements += len(asked.local) - 1

    def withdrawn(self, query: int, client: str) -> None:
        """Count a client out; with few left the channel goes, with none the query."""
        asked = self._asked.get(query)
        if asked is None:
            return
        asked.local.pop(client, None)
        asked.remote.pop(client, None)
        if asked.channel and len(asked.local) < max(1, self._settings.subscribers_keep):
            asked.channel = False
            self._channels -= 1
        if not asked.local and not asked.remote:
            view = asked.view_class
            for queries in list(asked.sets):
                view.history.forget(queries)
                self._close_set(view, queries)
            del self._asked[query]
            view.queries -= 1
            if not view.queries:
                view.history.clear()

    def update(self, queries: Iterable[int]) -> None:
        """Spread one update, class by class, as `channels.spread.dissemination` does."""
        classes: dict[str, list[int]] = {}
        for query in queries:
            if query in self._asked:
                classes.setdefault(self._asked[query].view_class.name, []).append(query)
        for matched in classes.values():
            self._spread(tuple(sorted(matched)))

    def _spread(self, queries: Matched) -> None:
        records = [self._asked[query] for query in queries]
        view = records[0].view_class
        if len(queries) > 1:
            entry, discarded = view.history.note(queries)
            if discarded is not None:
                self._close_set(view, discarded.queries)
            if queries in view.channels:
                self.transmissions += 1 + _clients(record.remote for record in records)
                return
            if self._earns(records, entry.count):
                self._open_set(view, queries, records)
        self.transmissions += sum(record.channel for record in records)
        alone = (
            record.remote if record.channel else {**record.local, **record.remote}
            for record in records
        )
        self.transmissions += _clients(alone)

    def _earns(self, records: list[AskedQuery], count: int) -> bool:
        """Whether a set gets its channel now: the paper's step 4d, if one transmission saves."""
        if count < self._settings.subscribers_min:
            return False
        if sum(1 if record.channel else len(record.local) for record in records) < 2:
            return False
        most = self._settings.streams_per_query_max - 1
        return all(len(record.sets) < most for record in records)

    def _open_set(self, view: Class, queries: Matched, records: list[AskedQuery]) -> None:
        self._open()
        view.channels[queries] = None
        for record in records:
            record.sets[queries] = None
            # where a query has a channel the announcement rides on the update
            self.announcements += 0 if record.channel else len(record.local)

    def _close_set(self, view: Class, queries: Matched) -> None:
        if queries in view.channels:
            del view.channels[queries]
            self._channels -= 1
            for query in queries:
                del self._asked[query].sets[queries]

    def _open(self) -> None:
        self._channels += 1
        self.channels_max = max(self.channels_max, self._channels)


def _clients(groups: Iterable[dict[str, None]]) -> int:
    """Count clients; one in several groups counts once."""
    return len({name for group in groups for name in group})
