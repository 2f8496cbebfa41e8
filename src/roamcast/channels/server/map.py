"""What is where? The located-objects a server knows (AMS, active maps), and what matches them now.

Each object remembers which queries its present state satisfies, per view class: so the update query
set of a change is the old set united with the new one and costs one match, and a departure finds
everyone who had seen the object, even if the rules that let them see it have changed since.
"""

from collections.abc import Iterable, Iterator

import msgspec

from roamcast.channels.server.messages import body_of
from roamcast.channels.server.removed import Removed
from roamcast.errors import LimitError
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.atoms import Conjunction, Values
from roamcast.model.filters.values import Interval
from roamcast.model.nearest import Found, nearest

Matched = tuple[int, ...]


class MapContext(msgspec.Struct):
    """One located-object: its state, who published it, and per view class what was shown of it."""

    context: Context
    stamp: int
    owner: str
    number: int
    bodies: dict[str, bytes]
    matched: dict[str, Matched]
    changes_at: int | None = None
    """When the clock may change what some see of it."""
    seat: int = 0
    """Its place in `ActiveMap.seats`, the same for as long as it is on the map."""


class ActiveMap:
    """Objects by vid, and by place so that a new query looks at few of them."""

    def __init__(self, contexts_max: int, removed: Removed | None = None) -> None:
        self.contexts: dict[str, MapContext] = {}
        self.removed = Removed(0, 0) if removed is None else removed
        self.seats: list[str | None] = []
        """Who is on the map, in an order in which nobody moves: `paging` goes over it."""
        self._free: list[int] = []
        self._contexts_max = contexts_max
        self._reserved: dict[str, None] = {}
        self._absent = 0
        """How many of the reserved are not on the map."""
        self._at: dict[str | None, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self.contexts)

    def put(self, context: Context, stamp: int, owner: str) -> MapContext | None:
        """Add or change an object; None if its state is known already, or a newer one is."""
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
            known = MapContext(context, stamp, owner, 0, {}, {}, seat=self._seat(context.vid))
            self.contexts[context.vid] = known
        else:
            if stamp <= known.stamp and not self._replaces(context, stamp, owner, known):
                return None
            self._leave(known.context)
            known.context, known.stamp, known.owner = context, stamp, owner
        self._at.setdefault(context.place, {})[context.vid] = None
        return known

    def reserve(self, vid: str) -> None:
        """Hold room for an object that comes as soon as it is on disk, or refuse it before."""
        if vid in self._reserved:
            return
        if vid not in self.contexts:
            self._check_room()
            self._absent += 1
        self._reserved[vid] = None

    def release(self, vid: str) -> None:
        """Hold no more room for an object than it takes."""
        if vid in self._reserved:
            del self._reserved[vid]
            self._absent -= vid not in self.contexts

    def _check_room(self) -> None:
        if len(self.contexts) + self._absent >= self._contexts_max:
            raise LimitError(f"the map holds at most {self._contexts_max} objects")

    def _replaces(self, context: Context, stamp: int, owner: str, known: MapContext) -> bool:
        """Of two states with one stamp the one with the later bytes stays, whoever compares."""
        if stamp < known.stamp:
            return False
        ours, theirs = body_of(known.context), body_of(context)
        if ours == theirs:
            known.owner = owner  # the same state, published again after a restart
        return theirs > ours

    def stamp(self, vid: str) -> int:
        """Say as of when an object is known, or known to be cancelled; 0 if it is neither."""
        known = self.contexts.get(vid) or self.removed.get(vid)
        return 0 if known is None else known.stamp

    def remove(self, vid: str) -> MapContext | None:
        """Take an object off the map."""
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
        """Take a free seat, else a new one: never more than there were objects at a time."""
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
        """Name every object that could satisfy a filter, at least those that do."""
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
        """Use the vid or the place a conjunction demands; None if it demands neither."""
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
        """Answer a query once: the objects that satisfy it now, by vid (AMS 3)."""
        found = (self.contexts[vid].context for vid in sorted(self.candidates(wanted)))
        return [context for context in found if wanted.matches(context)]

    def nearest(self, to: tuple[float, float], wanted: Filter, count: int = 1) -> list[Found]:
        """Answer "the nearest that meets constraints" once (AMS 3)."""
        return nearest((one.context for one in self.contexts.values()), to, wanted, count=count)


def _point(span: Interval) -> bool:
    return span.low is not None and span.low == span.high
