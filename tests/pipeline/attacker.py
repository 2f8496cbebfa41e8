"""Whoever has all published tables: how large may a count be, for all that they tell?

By linear programming without rounding: the tableau's numbers stay integers (integer pivoting).
Nothing of the code under test is used.
"""

from collections.abc import Hashable, Iterable, Mapping

import numpy as np

Sum = Mapping[Hashable, int]
"""Unknown numbers, each with its factor."""


class Attacker:
    """Knows sums of unknown numbers that are not negative; bounds any other sum of them."""

    def __init__(
        self, equal: Iterable[tuple[Sum, int]], at_most: Iterable[tuple[Sum, int]] = ()
    ) -> None:
        equal, at_most = list(equal), list(at_most)
        names = {name for sums in (equal, at_most) for parts, _ in sums for name in parts}
        self._at = {name: number for number, name in enumerate(sorted(names, key=repr))}
        rows, wide = len(equal) + len(at_most), len(names) + len(at_most)
        table = np.zeros((rows, wide + rows + 1), np.int64)
        for row, (parts, total) in enumerate((*equal, *at_most)):
            for name, factor in parts.items():
                table[row, self._at[name]] += factor
            table[row, -1] = total
        for slack in range(len(at_most)):
            table[len(equal) + slack, len(names) + slack] = 1
        table[table[:, -1] < 0] *= -1
        table[:, wide : wide + rows] = np.eye(rows, dtype=np.int64)
        self._wide, self._basis, self._scale = wide, list(range(wide, wide + rows)), 1
        self._table = table
        # first: make all of the artificial numbers 0
        assert self._climb(np.concatenate([np.zeros(wide), -np.ones(rows)]), None) == 0, "no truth"
        self._leave()

    def most(self, wanted: Iterable[Hashable], enough: int) -> int:
        """Give how large a sum of unknown numbers may be; or `enough`, if that can be reached.

        A number that nothing is known of may be as large as one likes.
        """
        wanted = list(wanted)
        if not all(map(self.knows, wanted)):
            return enough
        costs = np.zeros(self._wide, np.int64)
        costs[[self._at[name] for name in wanted]] = 1
        found = self._climb(costs, enough)
        return enough if found is None else int(np.floor(found))

    def knows(self, name: Hashable) -> bool:
        """Say whether something is known of a number."""
        return name in self._at

    def _leave(self) -> None:
        """Drop the artificial numbers, and the rows that said nothing new."""
        for row in range(len(self._basis)):
            if self._basis[row] >= self._wide:
                others = np.flatnonzero(self._table[row, : self._wide])
                if len(others):
                    self._pivot(row, int(others[0]))
        kept = [row for row, name in enumerate(self._basis) if name < self._wide]
        self._basis = [self._basis[row] for row in kept]
        last = self._table[kept, -1:]
        self._table = np.concatenate([self._table[kept, : self._wide], last], axis=1)

    def _climb(self, costs: "np.ndarray", enough: int | None) -> float | None:
        """Pivot until nothing gets better (Bland's rule, so it ends), or `enough` is reached."""
        costs = costs.astype(np.int64)
        while True:
            basic = costs[self._basis]
            value = int(basic @ self._table[:, -1])
            if enough is not None and value >= enough * self._scale:
                return None
            gain = costs * self._scale - basic @ self._table[:, :-1]
            better = np.flatnonzero(gain > 0)
            if not len(better):
                return value / self._scale
            column = int(better[0])
            steps = self._table[:, column]
            rows = np.flatnonzero(steps > 0)
            if not len(rows):
                return None  # it may be as large as one likes
            best = rows[0]
            for row in rows[1:]:
                left = int(self._table[row, -1]) * int(steps[best])
                right = int(self._table[best, -1]) * int(steps[row])
                if left < right or (left == right and self._basis[row] < self._basis[best]):
                    best = row
            self._pivot(int(best), column)

    def _pivot(self, row: int, column: int) -> None:
        """Exchange one basic number; all entries stay integers over a common `scale`."""
        table, pivot = self._table, int(self._table[row, column])
        if pivot < 0:
            table[row] *= -1
            pivot = -pivot
        kept = table[row].copy()
        assert max(abs(table).max(), pivot) < 2**31, "entries outgrow the tableau"
        changed = (table * pivot - np.outer(table[:, column], kept)) // self._scale
        changed[row] = kept
        self._table, self._scale = changed, pivot
        self._basis[row] = column
