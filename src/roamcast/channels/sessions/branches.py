"""Branches: sessions that were told something else than those they share a query's frames with.

An update that is for some viewers alone parts their sessions from the others (0320). Each waits by
itself then, at the pace of all, and shares frames again when it is in step with them.
"""

from collections.abc import Callable

from roamcast.channels.sessions.changes import ContextEvent, merge
from roamcast.channels.sessions.desk import Branch, BranchTimer, HubDesk, SharedQuery

Write = Callable[[SharedQuery, tuple[str, ...], dict[str, ContextEvent], int], int]
"""Lets what waits of a query leave to some sessions; gives when the next of it may."""


class Branches:
    """The branches of all queries of a hub."""

    def __init__(self, desk: HubDesk, write: Write) -> None:
        self._desk = desk
        self._write = write

    def part(self, query: SharedQuery, only: str, without: frozenset[str]) -> bool:
        """Part the sessions that share frames by an event that is for some of them.

        Say whether it is for those that still share.
        """
        if not only and len(without) > len(query.shared):
            sessions = self._desk.sessions
            parted = [name for name in query.shared if sessions[name].viewer in without]
        else:
            some = [only] if only else sorted(without)
            viewers = [self._desk.viewers.get(viewer, ()) for viewer in some]
            parted = [name for names in viewers for name in names if name in query.shared]
        if len(parted) == len(query.shared):
            return bool(only)
        for name in parted:
            del query.shared[name]
            query.listed = None
            query.branches[name] = Branch(dict(query.events), query.ready_us)
            if query.events:
                self._desk.timers.set(BranchTimer(query.key, name), query.ready_us)
        return not only

    def rejoin(self, query: SharedQuery, now: int) -> None:
        """Let branches share frames again that wait for nothing, for as long as the others do."""
        if query.events:
            return
        for name, branch in list(query.branches.items()):
            if not branch.events and max(now, branch.ready_us) == max(now, query.ready_us):
                del query.branches[name]
                query.shared[name] = None
                query.listed = None

    def take(
        self,
        query: SharedQuery,
        event: ContextEvent,
        now: int,
        only: str,
        without: frozenset[str],
    ) -> None:
        """Take an event for the branches that it is for."""
        for name in self._desk.concerned(query.branches, only, without):
            branch = query.branches[name]
            merge(branch.events, event.state.vid, event)
            if now >= branch.ready_us:
                self.flush(query, name, now)
            else:
                self._desk.timers.sooner(BranchTimer(query.key, name), branch.ready_us)

    def flush(self, query: SharedQuery, name: str, now: int) -> None:
        """Let what waits for one session leave, at the pace of all."""
        branch = query.branches[name]
        if branch.events:
            branch.ready_us = self._write(query, (name,), branch.events, now)

    def end(self, query: SharedQuery, name: str) -> Branch:
        """End a branch; give what waits in it."""
        self._desk.timers.cancel(BranchTimer(query.key, name))
        return query.branches.pop(name)

    def part_with(self, name: str, query: SharedQuery) -> None:
        """Tell a session nothing more of a query, in whatever way it is served."""
        query.alone.pop(name, None)
        if name in query.branches:
            self.end(query, name)
        if name in query.shared:
            del query.shared[name]
            query.listed = None
        if not query.shared:
            query.events.clear()
