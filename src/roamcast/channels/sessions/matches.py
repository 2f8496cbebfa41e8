"""How many subscriptions of one subject one object may satisfy: so many, and sessions go at more.

A subscription is placed for little and told an update at the cost of a frame, while others wait.
Whoever wants one object by thousands of filters is cut off before any of them is told (0491).
"""

from collections.abc import Callable, Sequence
from typing import Final

from roamcast.channels.server.standing import subject_of
from roamcast.channels.sessions.desk import ExcessTimer, HubDesk, SharedQuery

PAUSE_US: Final = 100_000
"""Between the ends of two sessions: each takes up to half as long, with all its subscriptions."""


class Matches:
    """Holds each subject to as many queries that one update is for."""

    def __init__(
        self,
        desk: HubDesk,
        leave: Callable[[str, SharedQuery], None],
        cut: Callable[[str, str], None],
    ) -> None:
        """`leave` takes a session out of a query, `cut` cuts one off."""
        self._desk = desk
        self._leave = leave
        self._cut = cut

    def hold(
        self,
        queries: Sequence[SharedQuery],
        now: int,
        only: str = "",
        without: frozenset[str] = frozenset(),
    ) -> Sequence[SharedQuery]:
        """Let sessions go of subjects for whom too many of an update's queries are.

        They are told nothing of it any more; give the queries of which somebody is left. `only` and
        `without` say for which viewers the update is (0320). What others have does not count, so it
        tells nobody anything.
        """
        subjects: dict[str, dict[str, int]] = {}
        for name, count in self._counted(queries, only, without).items():
            subjects.setdefault(subject_of(name), {})[name] = count
        gone: set[str] = set()
        for sessions in subjects.values():
            excess = self._excess(sessions)
            for at, name in enumerate(excess, 1):
                self._desk.timers.sooner(ExcessTimer(name), now + at * PAUSE_US)
            gone.update(excess)
        return [one for one in queries if self._left(one, gone)] if gone else queries

    def _counted(
        self, queries: Sequence[SharedQuery], only: str, without: frozenset[str]
    ) -> dict[str, int]:
        """Count the queries of each session that an update is for."""
        counts: dict[str, int] = {}
        concerned = self._desk.concerned if only or without else None
        for query in queries:
            if concerned is None and not (query.branches or query.alone):  # nearly all
                for name in query.shared:
                    counts[name] = counts.get(name, 0) + 1
                continue
            for members in (query.shared, query.branches, query.alone):
                for name in concerned(members, only, without) if concerned else members:
                    counts[name] = counts.get(name, 0) + 1
        return counts

    def _left(self, query: SharedQuery, gone: set[str]) -> bool:
        """Take sessions out of a query; say whether it has others."""
        if len(query.shared) == 1 and not (query.branches or query.alone):  # nearly all
            (name,) = query.shared
            if name in gone:
                query.shared.clear()
                query.listed = None
                query.events.clear()
            return bool(query.shared)
        for members in (query.shared, query.branches, query.alone):
            for name in [name for name in members if name in gone]:
                self._leave(name, query)
        return bool(query.shared or query.branches or query.alone)

    def _excess(self, sessions: dict[str, int]) -> list[str]:
        """Name the sessions of a subject to end, those with the most of the queries first."""
        total, found = sum(sessions.values()), []
        for name in sorted(sessions, key=lambda name: (-sessions[name], name)):
            if total <= self._desk.settings.matches_max:
                break
            total -= sessions[name]
            found.append(name)
        return found

    def end(self, name: str) -> None:
        """Cut off a session that was let go."""
        most = self._desk.settings.matches_max
        self._cut(
            name,
            f"too many subscriptions: one object satisfies more than {most:,} of yours, "
            "join filters with OR",
        )
