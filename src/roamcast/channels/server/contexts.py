"""The way of an update: a context is published, changed or removed, and each view class learns it.

Every update has one number, common to all its messages (AMS 10), so that clients drop duplicates
and older states. The update query set unites the queries that the old state satisfied with those of
the new one: without the old ones departures would be lost.
"""

from collections.abc import Callable, Collection, Iterable

from msgspec import structs

from roamcast.channels.server.desk import ClientState, Desk, Policy
from roamcast.channels.server.map import ActiveMap, MapContext, Matched, Removal
from roamcast.channels.server.messages import CONTEXT_BYTES_MAX, State, Superseded, body_of
from roamcast.channels.server.queries import QueryChange, QueryRecord
from roamcast.channels.server.view_class import ViewClass
from roamcast.channels.spread.dissemination import Dissemination
from roamcast.channels.timers import Timer
from roamcast.errors import ConflictError, ContextError, LimitError
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect
from roamcast.model.records import ContextChanged, ContextClosed, ContextOpened, UpdateMatched


class ClockDue(Timer, frozen=True):
    """The clock may change what somebody may see of a context: an hour of its rules begins."""

    vid: str


class LocalUpdate(Effect, frozen=True, gc=False):
    """An update for queries placed in this process: those satisfied before it, and after it.

    `context`: what the view class sees now, decoded, None if it sees nothing any more.
    """

    view_class: str
    state: State
    before: Matched
    after: Matched
    context: Context | None = None


class MapContexts:
    """Takes every change of the map, and hands it to the view classes that see it."""

    def __init__(
        self, desk: Desk, active_map: ActiveMap, policy: Policy, dissemination: Dissemination
    ) -> None:
        self.map = active_map
        self._desk = desk
        self._policy = policy
        self._dissemination = dissemination
        self.publisher_of: Callable[[str], str | None] = lambda _: None
        """Who alone may publish under a vid, because its rules are theirs (0082)."""
        desk.fresh = self.fresh
        desk.timers.handle(ClockDue, self._clock_due)

    def put(self, client: ClientState, context: Context, body: bytes, stamp: int) -> None:
        """Publish a context for a client, or change it."""
        if context.place is None and context.point is None:
            raise ContextError("a context on the map needs a place or a point: add one")
        if len(body) > CONTEXT_BYTES_MAX:
            raise LimitError(f"a context has at most {CONTEXT_BYTES_MAX} bytes")
        if (
            context.vid not in client.publications
            and len(client.publications) >= self._desk.settings.publications_max
        ):
            limit = self._desk.settings.publications_max
            raise LimitError(f"a client publishes at most {limit} contexts")
        self.check_owner(context.vid, client.name)
        client.unconfirmed.pop(context.vid, None)
        client.publications[context.vid] = None
        if not self.put_for(client.name, context, body, stamp):
            known = self.map.contexts.get(context.vid)
            if known is None or known.owner != client.name:
                self._overtake(client.name, context.vid, self.map.stamp(context.vid))

    def check_owner(self, vid: str, owner: str) -> None:
        """Refuse to change what somebody else publishes, or has set rules for (0082)."""
        known = self.map.contexts.get(vid)
        if known is not None and not self._may_take(owner, known.owner):
            raise ConflictError(f"{vid!r} is published by somebody else: choose another vid")
        publisher = self.publisher_of(vid)
        if publisher is not None and not self._may_take(owner, publisher):
            raise ConflictError(f"the rules of {vid!r} are somebody else's: choose another vid")

    def reconsider(self, vid: str) -> None:
        """Show a context anew, after its rules have changed."""
        known = self.map.contexts.get(vid)
        if known is not None:
            classes = [*self._dissemination.classes.values()]
            self._changed(known, known.context, known.body, "changed", classes)

    def _clock_due(self, timer: ClockDue) -> None:
        """Update the view classes that see a context otherwise than a moment ago, and no others."""
        known = self.map.contexts[timer.vid]
        context, now = known.context, self._desk.now
        assert known.changes_at is not None
        before = known.changes_at - 1
        known.changes_at = None
        differing = [
            view
            for view in self._dissemination.classes.values()
            if self._seen(context, view, before) != self._seen(context, view, now)
        ]
        if differing:
            self._changed(known, context, known.body, "changed", differing)
        else:
            self._wake(known, self._policy.changes_at(context, now))

    def _seen(self, context: Context, view: ViewClass, now: int) -> Context | None:
        """Give a context as a class sees it, without t_r: rules may set that to the time asked."""
        seen = self._policy.visible(context, view.name, now)
        return None if seen is None else structs.replace(seen, t_r=0)

    def _wake(self, known: MapContext, at: int | None) -> None:
        """Set or cancel the timer for the next change that the clock makes."""
        known.changes_at = at
        timer = ClockDue(known.context.vid)
        if at is None:
            self._desk.timers.cancel(timer)
        else:
            self._desk.timers.set(timer, at)

    def put_for(self, owner: str, context: Context, body: bytes, stamp: int) -> bool:
        """Publish a context for an owner, or change it; False if what is known is not older."""
        before = self.map.contexts.get(context.vid)
        owner_before = None if before is None else before.owner
        if before is None and self.map.removed:
            gone = self.map.removed.get(context.vid)
            if gone is not None and not self._may_take(gone.owner, owner):
                self.map.removed.forget(context.vid)  # nobody removes what is another's
        known = self.map.put(context, body, stamp, owner)
        if known is None:
            return False
        fresh = owner_before is None
        if self._desk.journal:
            begins = ContextOpened if fresh else ContextChanged
            self._desk.out.append(begins(context.vid, context.place or "", context.t_r, body))
        if owner_before is not None and owner_before != owner:
            self._overtake(owner_before, context.vid, stamp)
        classes = self._dissemination.classes.values()
        self._changed(known, context, body, "appeared" if fresh else "changed", classes)
        return True

    def cancel(self, client: ClientState, vid: str, stamp: int = 0) -> None:
        """Unpublish a client's context."""
        client.publications.pop(vid, None)
        client.unconfirmed.pop(vid, None)
        self.withdraw(client.name, vid, stamp)

    def withdraw(self, owner: str, vid: str, stamp: int = 0) -> None:
        """Take a context off the map, if nobody has published it since the stamp.

        Without a stamp its publisher has only left this server. If it was the last to publish the
        context, that leaves the map, and may come back in the same state.
        """
        if stamp:
            self.erase(vid, Removal(stamp, owner, self._desk.now))
            return
        known = self.map.contexts.get(vid)
        if known is not None and known.owner == owner:
            self._take_off(known)

    def erase(self, vid: str, removal: Removal) -> None:
        """Take a context off the map unless it is newer or another's, and remember the removal."""
        known = self.map.contexts.get(vid)
        if known is not None:
            if known.stamp > removal.stamp or not self._may_take(removal.owner, known.owner):
                return
            self._overtake(known.owner, vid, removal.stamp)
            self._take_off(known)
        self.map.removed.note(vid, removal, self._desk.now)

    def _may_take(self, client: str, owner: str) -> bool:
        return client == owner or self._policy.may_take(client, owner)

    def _take_off(self, known: MapContext) -> None:
        vid = known.context.vid
        self.map.remove(vid)
        self._desk.out.append(ContextClosed(vid, self._desk.now, "cancelled"))
        self._changed(known, None, b"", "left", self._dissemination.classes.values())

    def _overtake(self, owner: str, vid: str, stamp: int) -> None:
        """Tell a publisher that somebody else published its context later, or removed it."""
        client = self._desk.clients.get(owner)
        if client is None:
            return
        # What is another's needs no confirming: left there, such vids would pile up.
        client.unconfirmed.pop(vid, None)
        if vid in client.publications:
            del client.publications[vid]
            self._desk.deliver(client, Superseded(vid, stamp))

    def _changed(
        self,
        known: MapContext,
        context: Context | None,
        body: bytes,
        change: str,
        classes: Iterable[ViewClass],
    ) -> None:
        """Number the update, and spread it in every class that saw or sees the context."""
        desk = self._desk
        desk.number = known.number = number = desk.number + 1
        vid = known.context.vid
        matched: list[int] = []
        clients = 0
        for view in classes:
            update, seen = self.step(view, known, context, body)
            if update.queries:
                state = State(number, vid, known.bodies[view.name])
                if view.local and not view.local.keys().isdisjoint(update.queries):
                    before, after = update.before, update.after
                    desk.out.append(LocalUpdate(view.name, state, before, after, seen))
                self._dissemination.spread(view, update, state)
                if desk.journal:
                    matched += update.queries
                    for record in update.records:
                        clients += len(record.clients)
        at = None if context is None else self._policy.changes_at(context, desk.now)
        if at != known.changes_at:
            self._wake(known, at)
        if desk.journal:
            desk.out.append(
                UpdateMatched(
                    str(number),
                    vid,
                    change,
                    len(matched),
                    clients,
                    " ".join(map(str, matched)),
                    known.context.place or "",
                    desk.epoch,
                )
            )

    def step(
        self, view: ViewClass, known: MapContext, context: Context | None, body: bytes
    ) -> tuple[QueryChange, Context | None]:
        """Note what a class sees of a context from now on; give the update query set, and that."""
        name, table = view.name, view.table
        seen = None
        if context is not None:
            seen = self._policy.visible(context, name, self._desk.now)
        after: Matched = ()
        if seen is not None and table.records:
            after = table.match(seen)
        before = known.matched.get(name, ())
        # Only what rules coarsened needs bytes of its own: encoded once for the whole class.
        known.bodies[name] = body if seen is context else b"" if seen is None else body_of(seen)
        known.matched[name] = after
        change = table.change(before, after)
        for record in change.left:
            table.leave(record, known.context.vid)
        for record in change.entered:
            table.enter(record, known.context.vid)
        return change, seen

    def satisfying(self, view: ViewClass, wanted: Filter, query: int) -> list[str]:
        """Find the contexts that satisfy a query not yet placed, and note it at each of them."""
        found = []
        for vid in self.candidates(wanted):
            known = self.map.contexts[vid]
            seen = self._policy.visible(known.context, view.name, self._desk.now)
            if seen is None or not wanted.matches(seen):
                continue
            found.append(vid)
            matched = known.matched.get(view.name, ())
            standing = [number for number in matched if number in view.table.records]
            known.matched[view.name] = (*standing, query)
            known.bodies[view.name] = known.body if seen is known.context else body_of(seen)
        return found

    def candidates(self, wanted: Filter) -> list[str]:
        """Name contexts that could satisfy a filter; rules may show some in other places."""
        restricted = self._policy.restricted()
        if restricted is None:
            return list(self.map.contexts)
        named = dict.fromkeys(self.map.candidates(wanted))
        named.update((vid, None) for vid in restricted if vid in self.map.contexts)
        return list(named)

    def forget_classes(self, names: Collection[str]) -> None:
        """Drop what view classes saw that have ended."""
        for known in self.map.contexts.values():
            for name in [name for name in known.bodies if name in names]:
                del known.bodies[name]
                known.matched.pop(name, None)

    def fresh(self, view_class: str, state: State) -> State:
        """Give a context's present state for a view class, in place of one that has waited."""
        known = self.map.contexts.get(state.vid)
        if known is None:
            return State(state.number, state.vid, b"")
        if known.number == state.number:
            return state
        return State(known.number, state.vid, known.bodies.get(view_class, b""))

    def state_of_any(self, view: ViewClass, queries: Collection[int], vid: str) -> State | None:
        """Give a context's present state if it satisfies any of some queries."""
        known = self.map.contexts[vid]
        matched = known.matched.get(view.name, ())
        if not any(query in matched for query in queries):
            return None
        return State(known.number, vid, known.bodies[view.name])

    def state_of(self, view: ViewClass, record: QueryRecord, vid: str) -> State | None:
        """Give a context's present state if it satisfies a query."""
        known = self.map.contexts.get(vid)
        if known is None or record.number not in known.matched.get(view.name, ()):
            return None
        return State(known.number, vid, known.bodies[view.name])
