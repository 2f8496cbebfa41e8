"""Which sets of queries come up together again and again? (AMS, recurring update query sets.)

The history H of at most m sets, the least recently used discarded; a set that has recurred q times
earns a channel. Steps 1–4d of the paper, with 4d read as "count at least q and no channel yet":
with q = 1, or when no channel was free at that moment, the paper's "exactly q" falls into no case.
"""

from collections import OrderedDict

import msgspec

from roamcast.channels.server.map import Matched
from roamcast.channels.spread.streams import Stream


class QuerySetEntry(msgspec.Struct):
    """One element of H: the set in canonical order, how often it came, its stream."""

    queries: Matched
    count: int = 0
    stream: Stream | None = None
    name: str = ""
    """Its hash in the journal, made when it is first written there."""


class History:
    """H: sets by their canonical form, which is also what is hashed."""

    def __init__(self, sets_max: int) -> None:
        assert sets_max > 0
        self._sets_max = sets_max
        self._entries: OrderedDict[Matched, QuerySetEntry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, queries: Matched) -> tuple[QuerySetEntry, QuerySetEntry | None]:
        """Count one occurrence (steps 2 to 4a); give the element and the one it pushed out."""
        entry = self._entries.get(queries)
        discarded = None
        if entry is None:
            entry = self._entries[queries] = QuerySetEntry(queries)
            if len(self._entries) > self._sets_max:
                _, discarded = self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(queries)
        entry.count += 1
        return entry, discarded

    def forget(self, queries: Matched) -> None:
        """Drop a set that cannot come again because one of its queries is gone."""
        del self._entries[queries]

    def clear(self) -> None:
        """Drop everything: nobody asks any more."""
        self._entries.clear()
