"""The contexts on the map (AMS, active maps), the queries each satisfies, and what was removed.

Each context holds the queries that its present state satisfies, by view class. So the update query
set of a change is the old set united with the new one and costs one match, and a departure finds
everyone who saw the context, even if the rules that let them see it have changed since.

0026: a context is its newest state. Removals have stamps, too, and are remembered for a bounded
time, so that what one side of a partition removed does not come back from the other.
"""

from collections.abc import Iterable, Iterator

import msgspec

from roamcast.errors import LimitError
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.atoms import Conjunction, Values
from roamcast.model.filters.values import Interval
from roamcast.model.nearest import Found, nearest

Matched = tuple[int, ...]
"""The numbers of the queries that a context satisfies, in ascending order."""


class MapContext(msgspec.Struct):
    """A context on the map: its state, who published it, and what each view class sees of it."""

    context: Context
    body: bytes
    """The context's bytes as they came: encoded once, by its publisher."""
    stamp: int
    owner: str
    number: int
    bodies: dict[str, bytes]
    """View class → the bytes it sees, empty if it sees nothing."""
    matched: dict[str, Matched]
    changes_at: int | None = None
    """When the clock may change what some see of it."""
    seat: int = 0
    """Its index in `ActiveMap.seats`, the same for as long as it is on the map."""


class Removal(msgspec.Struct, frozen=True):
    """A context was unpublished as of a stamp, by whom, and since when that is known here."""

    stamp: int
    owner: str
    since_us: int


class Removed:
    """Removals by vid, the first noted first; at most `removed_max`, each for `lasts_us`.

    A removal lasts longer than anybody may hold a context without having learned of it.
    """

    def __init__(self, lasts_us: int, removed_max: int) -> None:
        self.removed_max = removed_max
        self._lasts_us = lasts_us
        self._known: dict[str, Removal] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, vid: str) -> Removal | None:
        """Give the removal of a vid, if there is one."""
        return self._known.get(vid)

    def note(self, vid: str, removal: Removal, now: int) -> None:
        """Remember a removal; of two the later stamp counts."""
        known = self._known.get(vid)
        if known is None or removal.stamp > known.stamp:
            self._known.pop(vid, None)
            self._known[vid] = removal
            self.prune(now)

    def forget(self, vid: str) -> None:
        """Forget a removal, because the context was published again later."""
        self._known.pop(vid, None)

    def prune(self, now: int) -> None:
        """Forget removals that are too old, and the first noted beyond the bound.

        A removal that was handed over may be older than those noted here before it: it is then
        forgotten a little late, together with them.
        """
        excess = len(self._known) - self.removed_max
        gone: list[str] = []
        for vid, removal in self._known.items():
            if len(gone) >= excess and removal.since_us > now - self._lasts_us:
                break
            gone.append(vid)
        for vid in gone:
            del self._known[vid]

    def items(self, now: int) -> Iterator[tuple[str, Removal]]:
        """Give the removals that still count, by vid."""
        for vid, removal in self._known.items():
            if removal.since_us > now - self._lasts_us:
                yield vid, removal


class ActiveMap:
    """Contexts by vid, and by place so that a new query looks at few of them."""

    def __init__(self, contexts_max: int, removed: Removed | None = None) -> None:
        self.contexts: dict[str, MapContext] = {}
        self.removed = Removed(0, 0) if removed is None else removed
        self.seats: list[str | None] = []
        """The vids on the map, in an order in which none of them moves: pages go over it (0058)."""
        self._free: list[int] = []
        self._contexts_max = contexts_max
        self._reserved: dict[str, None] = {}
        self._absent = 0
        """How many of the reserved vids are not on the map."""
        self._at: dict[str | None, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self.contexts)

    @property
    def taken(self) -> int:
        """How many contexts are on the map or have room reserved."""
        return len(self.contexts) + self._absent

    def put(self, context: Context, body: bytes, stamp: int, owner: str) -> MapContext | None:
        """Add or change a context; None if this state, or a newer one, is known already."""
        known = self.contexts.get(context.vid)
        if known is None:
            if self.removed:
                gone = self.removed.get(context.vid)
                if gone is not None and stamp <= gone.stamp:
                    return None
                self.removed.forget(context.vid)
            if context.vid in self._reserved:
                self._absent -= 1
            else:
                self._check_room()
            seat = self._seat(context.vid)
            known = MapContext(context, body, stamp, owner, 0, {}, {}, seat=seat)
            self.contexts[context.vid] = known
        else:
            if stamp <= known.stamp and not _replaces(body, stamp, owner, known):
                return None
            self._leave(known.context)
            known.context, known.body = context, body
            known.stamp, known.owner = stamp, owner
        self._at.setdefault(context.place, {})[context.vid] = None
        return known

    def reserve(self, vid: str) -> None:
        """Reserve room for a context that comes when it is on disk (0077), or refuse it now."""
        if vid in self._reserved:
            return
        if vid not in self.contexts:
            self._check_room()
            self._absent += 1
        self._reserved[vid] = None

    def release(self, vid: str) -> None:
        """Reserve no more room for a context."""
        if vid in self._reserved:
            del self._reserved[vid]
            self._absent -= vid not in self.contexts

    def _check_room(self) -> None:
        if self.taken >= self._contexts_max:
            raise LimitError(f"the map holds at most {self._contexts_max} contexts")

    def stamp(self, vid: str) -> int:
        """Give the stamp of a context or of its removal; 0 if neither is known."""
        known = self.contexts.get(vid) or self.removed.get(vid)
        return 0 if known is None else known.stamp

    def remove(self, vid: str) -> MapContext | None:
        """Take a context off the map."""
        known = self.contexts.pop(vid, None)
        if known is not None:
            self._leave(known.context)
            self._absent += vid in self._reserved
            self.seats[known.seat] = None
            self._free.append(known.seat)
            if not self.contexts:
                self.seats.clear()
                self._free.clear()
        return known

    def _seat(self, vid: str) -> int:
        """Take a free seat, else a new one: never more than there were contexts at a time."""
        if not self._free:
            self.seats.append(vid)
            return len(self.seats) - 1
        seat = self._free.pop()
        self.seats[seat] = vid
        return seat

    def _leave(self, context: Context) -> None:
        here = self._at[context.place]
        del here[context.vid]
        if not here:
            del self._at[context.place]

    def candidates(self, wanted: Filter) -> Iterable[str]:
        """Name every context that could satisfy a filter, at least those that do."""
        parts = wanted.conjunctions()
        if parts is None:
            return list(self.contexts)
        vids: dict[str, None] = {}
        for part in parts:
            named = self._named(part)
            if named is None:
                return list(self.contexts)
            vids.update(dict.fromkeys(named))
        return list(vids)

    def _named(self, part: Conjunction) -> Iterator[str] | None:
        """Name the contexts by the vid or the place it demands; None if it demands neither."""
        texts = {
            atom.property: atom.intervals
            for atom in part
            if isinstance(atom, Values) and atom.kind == "string"
        }
        if "vid" in texts and all(_point(span) for span in texts["vid"]):
            return (str(span.low) for span in texts["vid"] if span.low in self.contexts)
        if "place" not in texts:
            return None
        spans = texts["place"]
        places: Iterable[str | None] = [str(span.low) for span in spans]
        if not all(_point(span) for span in spans):
            places = [here for here in self._at if here and any(here in span for span in spans)]
        return (vid for place in places for vid in self._at.get(place, ()))

    def find(self, wanted: Filter) -> list[Context]:
        """Answer a query once: the contexts that satisfy it now, by vid (AMS 3)."""
        found = (self.contexts[vid].context for vid in sorted(self.candidates(wanted)))
        return [context for context in found if wanted.matches(context)]

    def nearest(self, to: tuple[float, float], wanted: Filter, count: int = 1) -> list[Found]:
        """Answer "the nearest that meets constraints" once (AMS 3)."""
        contexts = (known.context for known in self.contexts.values())
        return nearest(contexts, to, wanted, count=count)


def _replaces(body: bytes, stamp: int, owner: str, known: MapContext) -> bool:
    """0026: of two states with one stamp the one with the later bytes stays, on every server."""
    if stamp < known.stamp:
        return False
    if body == known.body:
        known.owner = owner  # the same state, published again after a restart
    return body > known.body


def _point(span: Interval) -> bool:
    return span.low is not None and span.low == span.high
