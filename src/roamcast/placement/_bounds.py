"""Exclusion of vertices that are in no optimal placement of at most k filters (decision 0011).

With a toll per filter instead of a limit the problem is easy (`_unlimited`), and any toll t gives a
bound: no placement saves more than best(t) + t·k. A placement that uses v saves at most
best(t) + t·(k - 1) + solo(v), since no filter adds more than its solo saving. If that is less than
a known placement saves, v is excluded. Typically a few hundred of a million vertices remain.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roamcast.model.kernels import kernel
from roamcast.placement._greedy import add_greedily
from roamcast.placement._sparse import Sparse, sparse
from roamcast.placement._unlimited import bits_needed, solve_unlimited
from roamcast.placement.problem import Problem

ROUNDS_MAX = 16
"""Maximum tolls tried; each costs about one pass over the vertices that pay more than it."""

MANY, ROUNDS_FEW = 8, 4
"""If more than one vertex in `MANY` may filter, few can be excluded, so fewer tolls are tried."""

ROUNDING = 1e-9
"""Relative error of sums of doubles; the threshold is lowered by it to stay exact."""

DECISIONS_MAX = 1 << 25
"""Rows of a toll's problem beyond which the bound would cost more than it can save."""

NODES_FIRST = 1024
"""Vertices examined first, in addition to eight for each filter allowed."""


def paying(problem: Problem) -> NDArray[np.int64]:
    """Return the positions where a filter alone would save anything; others never do (0010)."""
    return np.flatnonzero(problem.solo > 0)


def survey(
    problem: Problem, limit: int | None, guess: float | None
) -> tuple[int, NDArray[np.int64] | None]:
    """Count the vertices that pay; list those from `guess` on, if their number is suitable."""
    least = math.inf if guess is None else guess
    room = 0 if limit is None or guess is None else NODES_FIRST + 8 * limit
    most, found, places = _survey(problem.solo, least, room)
    fit = limit is not None and limit <= found <= room
    return int(most), places[:found] if fit else None


def candidates(
    problem: Problem, limit: int, most: int, guess: float | None, likely: NDArray[np.int64] | None
) -> tuple[NDArray[np.int64], float]:
    """Return the positions that may filter in a best placement of at most `limit` filters.

    Also returns the least solo saving among them, the `guess` for a similar problem. `most` and
    `likely` are the results of `survey` for the guess.
    """
    if likely is None or guess is None:
        first = min(most, NODES_FIRST + 8 * limit)
        guess = float(np.partition(problem.solo, -first)[-first])
        likely = np.flatnonzero(problem.solo >= guess)
    least = _Search(problem, limit, sparse(problem, likely), guess).least()
    if least >= guess:
        return likely[problem.solo[likely] >= least], least
    return np.flatnonzero((problem.solo > 0) & (problem.solo >= least)), least


@kernel
def _survey(solo: Any, least: float, room: int) -> Any:
    places = np.empty(room, dtype=np.int64)
    most = 0
    found = 0
    for place in range(solo.size):
        if solo[place] > 0:
            most += 1
            if solo[place] >= least:
                if found < room:
                    places[found] = place
                found += 1
    return most, found, places


@dataclass
class _Search:
    """The best toll so far: above it too few filters pay, below it too many."""

    problem: Problem
    limit: int
    folded: Sparse
    complete_from: float  # every vertex whose solo saving is at least this is in `folded`
    saved: float = 0.0
    above: tuple[float, float, int] | None = None  # toll, saving without tolls, filters used
    below: tuple[float, float, int] | None = None
    step: float = field(default=1 / 64)

    def least(self) -> float:
        """Return the solo saving below which a vertex is excluded."""
        slack = ROUNDING * max(1.0, self.problem.unfiltered)
        none = np.zeros(self.folded.up.size, dtype=np.bool_)
        _, gains = add_greedily(self.folded, none, self.limit)
        self.saved = max(self.saved, float(gains.sum()))
        if gains.size < self.limit:
            return 0.0
        toll = float(gains[-1])
        least = 0.0
        many = self.limit * MANY > np.count_nonzero(self.problem.solo > 0)
        for _ in range(ROUNDS_FEW if many else ROUNDS_MAX):
            if not self._covers(toll):
                break
            over, used = self._try(toll)
            least = max(least, toll - max(0.0, over) - slack)
            if over <= slack or used == self.limit:
                break
            following = self._next_toll(toll)
            if abs(following - toll) <= slack:
                break
            toll = following
        return least

    def _covers(self, toll: float) -> bool:
        """Ensure that every vertex that could pay the toll is in the folded tree."""
        if toll < self.complete_from:
            self.folded = sparse(self.problem, np.flatnonzero(self.problem.solo > toll))
            self.complete_from = toll
        return bits_needed(self.folded) <= DECISIONS_MAX

    def _try(self, toll: float) -> tuple[float, int]:
        """Solve with a toll; return the gap between bound and best known, and the filter count."""
        cost, chosen = solve_unlimited(self.folded, toll)
        used = int(np.count_nonzero(chosen))
        bare = self.problem.unfiltered - cost + toll * used
        if used <= self.limit:
            _, added = add_greedily(self.folded, chosen, self.limit - used)
            self.saved = max(self.saved, bare + float(added.sum()))
            self.above = (toll, bare, used)
        else:
            self.below = (toll, bare, used)
        return bare + toll * (self.limit - used) - self.saved, used

    def _next_toll(self, toll: float) -> float:
        if self.above and self.below:
            # best(t) + t·k is convex in t, so its minimum lies where the two bounds cross.
            return (self.below[1] - self.above[1]) / (self.below[2] - self.above[2])
        self.step *= 2
        return toll * (1 - self.step) if self.above else toll * (1 + self.step)
