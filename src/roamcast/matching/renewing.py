"""`RenewingSet`: a filter set that gives back what removed filters occupied (0097).

A `FilterSet` keeps the columns, texts and grids of filters that are gone: pages refer to them. When
the filters removed since it was made had as many terms as those that stand, another set is filled
with the standing ones, a few at every addition and removal, and takes its place. So nobody waits
for it, a removal costs no more than an addition does, and all memory of the old set is returned.

To place many filters at once costs a quarter of placing one after another. So small ones wait until
there are LATER_MAX of them, or until somebody matches.
"""

from collections.abc import Callable
from typing import Final

from roamcast.errors import LimitError
from roamcast.matching.filter_set import FilterSet
from roamcast.matching.layout import Array
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter

TERMS_MIN: Final = 4_096
"""Removed terms below which a set is not renewed."""

MOVES: Final = 2
"""Filters that one addition or removal moves to the next set; with one session go a thousand."""

MOVED_TOGETHER: Final = 64
"""Filters that are moved at once, for the kernels are called once for all of these."""

LATER_MAX: Final = 64
"""Filters that wait to be placed together: two milliseconds of whoever matches next."""

LATER_TERMS_MAX: Final = 16
"""Terms of a filter that may wait."""


class RenewingSet:
    """Filters by id, as in `FilterSet`."""

    match: Callable[[Context], list[str]]
    match_numbers: Callable[[Context], Array]

    def __init__(self) -> None:
        self._later: dict[str, Filter] = {}
        """Filters that are not placed yet."""
        self._take(FilterSet())
        self._next: FilterSet | None = None
        self._filters: dict[str, Filter] = {}
        self._to_move: list[str] = []
        self._due = 0
        """How many of these are to be moved with the next that are."""
        self._standing = 0
        self._removed = 0

    def __len__(self) -> int:
        return len(self._filters)

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How many terms are held of filters that are gone, what waits, and the bounds."""
        # While the next set is filled more are removed: at most half of those that stood.
        return {
            "removed terms": (self._removed, 3 * (TERMS_MIN + self._standing)),
            "filters to place": (len(self._later), LATER_MAX),
        }

    def add(self, name: str, wanted: Filter) -> None:
        """Add a filter under a new id."""
        terms = wanted.terms
        # Where some wait already there was room for as many as may.
        roomy = self._later or self._set.roomy(LATER_MAX, LATER_TERMS_MAX)
        if terms <= LATER_TERMS_MAX and roomy:
            self._wait(name, wanted)
        else:
            self._place()
            self._add(name, wanted)
        self._filters[name] = wanted
        self._standing += terms
        self._move(MOVES)

    def _wait(self, name: str, wanted: Filter) -> None:
        assert name not in self._filters
        if not self._later:
            self.match, self.match_numbers = self._match, self._match_numbers
        self._later[name] = wanted
        if len(self._later) >= LATER_MAX:
            self._place()

    def _place(self) -> None:
        """Place what waits."""
        if self._later:
            later, self._later = self._later, {}
            self._set.add_many(later.items())
            if self._next is not None:
                self._next.add_many(later.items())
            self._take(self._set)

    def _match(self, context: Context) -> list[str]:
        self._place()
        return self._set.match(context)

    def _match_numbers(self, context: Context) -> Array:
        self._place()
        return self._set.match_numbers(context)

    def _add(self, name: str, wanted: Filter) -> None:
        try:
            self._set.add(name, wanted)
        except LimitError:
            # What was removed may fill it: then the next set must take over before it is due.
            if not self._removed:
                raise
            self._begin()
            self._move(len(self._to_move))
            self._set.add(name, wanted)
        if self._next is not None:
            self._next.add(name, wanted)

    def remove(self, name: str) -> None:
        """Remove the filter with this id."""
        if name in self._later:
            self._standing -= self._filters.pop(name).terms
            del self._later[name]
            return
        self._set.remove(name)
        terms = self._filters.pop(name).terms
        self._standing -= terms
        self._removed += terms
        if self._next is not None and name in self._next:
            self._next.remove(name)
        if self._next is None and self._removed > max(TERMS_MIN, self._standing):
            self._begin()
        self._move(MOVES)

    def _take(self, made: FilterSet) -> None:
        """Answer from a set: its own methods, so that an update passes nothing more."""
        self._set, self.name_of = made, made.name_of
        self.match, self.match_numbers = made.match, made.match_numbers
        if self._later:
            self.match, self.match_numbers = self._match, self._match_numbers

    def _begin(self) -> None:
        self._next = FilterSet()
        self._to_move = [name for name in self._filters if name not in self._later]

    def _move(self, most: int) -> None:
        """Move filters to the next set; when none is left it takes over."""
        if self._next is None:
            return
        self._due += most
        if self._due < min(MOVED_TOGETHER, len(self._to_move)):
            return
        moved = []
        for _ in range(min(self._due, len(self._to_move))):
            name = self._to_move.pop()
            wanted = self._filters.get(name)
            if wanted is not None and name not in self._next:
                moved.append((name, wanted))
        self._due = 0
        self._next.add_many(moved)
        if not self._to_move:
            self._take(self._next)
            self._next, self._removed = None, 0
