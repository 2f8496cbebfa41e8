"""The active map, and the way of an update of it to each view class (AMS, active maps).

Each context holds the queries that its present state satisfies, by view class; `notes.py` notes a
new one there. So the update query set of a change is the old set united with the new one and costs
one match, and a departure finds everyone who saw the context, even if the rules that let them see
it have changed since. 0026: a context is its newest state.

A view class is told a change only if what it may see has changed. So that numbers tell nothing of
the others, each class numbers its updates itself (0090); one number is common to all messages of an
update in a class (AMS 10), so that clients drop duplicates and older states. Whom the rules of a
context name is told by `apart.py`; what the map shows at one moment is read in `current_sets.py`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol

from msgspec import structs

from roamcast.channels.server.apart import Apart
from roamcast.channels.server.desk import NOBODY, ClientState, Desk, Policy
from roamcast.channels.server.live_views import LiveViews
from roamcast.channels.server.map_context import ClassView, MapContext, Touched
from roamcast.channels.server.messages import CONTEXT_BYTES_MAX, State, Superseded
from roamcast.channels.server.named import ViewerKey
from roamcast.channels.server.notes import Notes
from roamcast.channels.server.queries import LocalUpdate, Matched, QueryChange
from roamcast.channels.server.removals import Removal, Removed
from roamcast.channels.server.view_class import ViewClass
from roamcast.channels.spread.dissemination import Dissemination
from roamcast.errors import ConflictError, ContextError, LimitError
from roamcast.model.contexts import Context, body_of, context_of, is_pseudonym
from roamcast.model.events import PublicationReplaced
from roamcast.model.filters import Filter
from roamcast.model.filters.atoms import Conjunction, Values
from roamcast.model.filters.values import Interval
from roamcast.model.items import is_item
from roamcast.model.nearest import Found, nearest
from roamcast.model.parts import Timer
from roamcast.model.records import ContextChanged, ContextClosed, ContextOpened, UpdateMatched


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

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held beside the contexts, and the bound of each."""
        return {
            "seats": (len(self.seats), self._contexts_max),
            "free seats": (len(self._free), len(self.seats)),
            "places": (len(self._at), len(self.contexts)),
            "reserved": (len(self._reserved), self._contexts_max),
        }

    def put(self, context: Context, body: bytes, stamp: int, owner: str) -> MapContext | None:
        """Add or change a context; None if this state, or a newer one, is known already."""
        vid = context.vid
        known = self.contexts.get(vid)
        if known is None:
            if self.removed:
                gone = self.removed.get(vid)
                if gone is not None and stamp <= gone.stamp:
                    return None
                self.removed.forget(vid)
            if vid in self._reserved:
                self._absent -= 1
            else:
                self._check_room()
            known = MapContext(context, body, stamp, owner, {}, seat=self._seat(vid))
            self.contexts[vid] = known
        else:
            if stamp <= known.stamp and not _replaces(body, stamp, owner, known):
                return None
            self._leave(known.context)
            known.context, known.body = context, body
            known.stamp, known.owner, known.owner_before = stamp, owner, ""
        here = self._at.get(context.place)
        if here is None:
            here = self._at[context.place] = {}
        here[vid] = None
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
    if body == known.body and owner != known.owner:
        # The same state, published again after a restart or by another way of its publisher.
        known.owner, known.owner_before = owner, known.owner
    return body > known.body


def _point(span: Interval) -> bool:
    return span.low is not None and span.low == span.high


class ClockDue(Timer, frozen=True):
    """The clock may change what somebody may see of a context: an hour of its rules begins."""

    vid: str


class Remembers(Protocol):
    """What keeps the past of a map (`channels/past`)."""

    def begin(self, context: Context, body: bytes, owner: str, now: int) -> None:
        """The map shows a state that is not on disk."""

    def end(self, vid: str, owner: str, at: int, now: int) -> None:
        """The map shows a vid no more, and its context ended then."""

    def check_room(self) -> None:
        """Refuse a publication while too much waits for the disk."""


class MapContexts:
    """Takes every change of the map, and hands it to the view classes that see it."""

    def __init__(
        self, desk: Desk, active_map: ActiveMap, policy: Policy, dissemination: Dissemination
    ) -> None:
        self.map = active_map
        self._desk = desk
        self._policy = policy
        self._dissemination = dissemination
        self.live = LiveViews(self._context_of, active_map.contexts.keys, policy)
        """The contexts, indexed for questions (docs/queries.md)."""
        self.publishers: Mapping[str, str] = {}
        """Vid → who alone may publish under it, because its rules are theirs (0082)."""
        self.trusted_nodes: frozenset[str] = frozenset()
        """Their vids belong to who registered them: the subject is the vid (0111)."""
        self.claims: Mapping[str, str] = {}
        """Vid → who published under it lately (0090)."""
        self.is_stored: Callable[[str, str], bool] = lambda _vid, _owner: False
        """(vid, owner) → whether this process publishes it for the owner, from disk."""
        self.may_name: Callable[[str, str], bool] | None = None
        """(owner, vid) → whether they may publish under it; None: everybody may."""
        self.blurred: Callable[[Context], Context] | None = None
        """Gives the context of a pseudonym as the map may have it: its times are rounded (0220)."""
        self.check_place: Callable[[str | None, tuple[float, float] | None], None] | None = None
        """Raises for a place that another node serves."""
        self.past: Remembers | None = None
        self.notes = Notes(desk, active_map.contexts)
        self.apart = Apart(
            desk, active_map.contexts, policy, self.live, self.notes, self._unchanged
        )
        desk.timers.handle(ClockDue, self._clock_due)

    def _context_of(self, vid: str) -> Context | None:
        known = self.map.contexts.get(vid)
        return None if known is None else known.context

    def put(self, client: ClientState, context: Context, body: bytes, stamp: int) -> None:
        """Publish a context for a client, or change it."""
        if context.place is None and context.point is None and not is_item(context):
            raise ContextError("a context on the map needs a place or a point: add one")
        if len(body) > CONTEXT_BYTES_MAX:
            raise LimitError(f"a context has at most {CONTEXT_BYTES_MAX} bytes")
        vid, published = context.vid, client.publications
        if vid not in published and len(published) >= self._desk.settings.publications_max:
            limit = self._desk.settings.publications_max
            raise LimitError(f"a client publishes at most {limit} contexts")
        if self.check_place is not None:
            self.check_place(context.place, context.point)
        self.check_owner(vid, client.name)
        if self.past is not None:
            self.past.check_room()
        if client.unconfirmed:
            client.unconfirmed.pop(vid, None)
        published[vid] = None
        if not self.put_for(client.name, context, body, stamp):
            known = self.map.contexts.get(vid) or self.map.removed.get(vid)
            if known is None or known.owner != client.name:
                self._overtake(client.name, vid, self.map.stamp(vid))
            elif isinstance(known, Removal) or known.body != self.shown_body(context, body):
                self.outdate(client.name, vid, known.stamp)

    def check_owner(self, vid: str, owner: str) -> None:
        """Refuse to change what somebody else publishes or has published, or has set rules for.

        The refusal is the same for all of these: which of them holds may be hidden (0082, 0090).
        """
        if self.may_name is not None and not self.may_name(owner, vid):
            raise taken(vid)
        if self.trusted_nodes:
            subject = owner.partition("#")[0]
            if subject != vid and subject.rpartition("@")[2] in self.trusted_nodes:
                said = "who comes without a name publishes one context, under its own vid"
                raise LimitError(said)
            if vid.rpartition("@")[2] in self.trusted_nodes and not self._may_take(owner, vid):
                raise taken(vid)
        known = self.map.contexts.get(vid)
        if known is not None and known.owner != owner and not self._may_take(owner, known.owner):
            raise taken(vid)
        other = self.publishers.get(vid, owner)
        if other != owner and not self._may_take(owner, other):
            raise taken(vid)
        other = self.claims.get(vid, owner)
        if other != owner and not self._may_take(owner, other):
            raise taken(vid)

    def reconsider(self, vid: str) -> None:
        """Show a context anew, after its rules have changed."""
        self.notes.settle(vid)
        known = self.map.contexts.get(vid)
        if known is not None:
            self._note(known, before=known.context)
        self.live.reconsider(vid)
        if known is not None:
            if self._desk.journal:
                self._record(known, known.context, known.body)
            self._changed(known, known.context, known.body, "changed")

    def _record(
        self, known: MapContext, context: Context | None, body: bytes, ended: int = 0
    ) -> None:
        """Record what the journal may say of a context: what everybody may see, and the past of."""
        vid, before = known.context.vid, known.recorded
        seen = None if context is None else self._policy.recorded(context, self._desk.now)
        if context is not None:
            known.recorded = seen
        if seen is None:
            if before is not None:
                reason = "cancelled" if context is None else "hidden"
                self._desk.out.append(ContextClosed(vid, ended or self._desk.now, reason))
        elif seen is context or seen != before:
            begins = ContextOpened if before is None else ContextChanged
            said = body if seen is context else body_of(seen)
            self._desk.out.append(begins(vid, seen.place or "", seen.t_r, said))

    def _note(self, known: MapContext, before: Context | None) -> None:
        """Let the policy note whose a context is, and since when its parts are as they are."""
        # What is older than this broker may have changed unseen: its t_r could tell (0090).
        now, context = self._desk.now, known.context
        since = context.t_r if known.stamp >= self._desk.started else now
        self._policy.note(context, known.owner, now, before=before, since=since)

    def _clock_due(self, timer: ClockDue) -> None:
        """Update the view classes that see a context otherwise than a moment ago, and no others."""
        self.notes.settle(timer.vid)
        known = self.map.contexts[timer.vid]
        context, now = known.context, self._desk.now
        assert known.changes_at is not None
        before = known.changes_at - 1
        known.changes_at = None
        classes, viewers = self._touched(known, context)

        def differs(name: str) -> bool:
            return self._seen(context, name, before) != self._seen(context, name, now)

        classes = {name: touched for name, touched in classes.items() if differs(name)}
        viewers = {key: touched for key, touched in viewers.items() if differs(key[1])}
        if classes or viewers:
            self._changed(known, context, known.body, "changed", (classes, viewers))
        else:
            self._wake(known, self._policy.changes_at(context, now))

    def _seen(self, context: Context, view_class: str, now: int) -> Context | None:
        """Give a context as a class sees it, without t_r: rules may set that to the time asked."""
        seen = self._policy.visible(context, view_class, now)
        return None if seen is None else structs.replace(seen, t_r=0)

    def _wake(self, known: MapContext, at: int | None) -> None:
        """Set or cancel the timer for the next change that the clock makes."""
        known.changes_at = at
        timer = ClockDue(known.context.vid)
        if at is None:
            self._desk.timers.cancel(timer)
        else:
            self._desk.timers.set(timer, at)

    def shown(self, context: Context) -> Context:
        """Give a context as the map has it; the same object if nothing of it is rounded."""
        if self.blurred is None or not is_pseudonym(context.vid):
            return context
        return self.blurred(context)

    def shown_body(self, context: Context, body: bytes) -> bytes:
        """Give the bytes of a context as the map has it, of which `body` says exact times."""
        shown = self.shown(context)
        return body if shown is context else body_of(shown)

    def put_for(
        self, owner: str, context: Context, body: bytes, stamp: int, *, stored: bool = False
    ) -> bool:
        """Publish a context for an owner, or change it; False if what is known is not older.

        `stored`: it is on disk, and so is its step of the past.
        """
        exact = context
        if self.blurred is not None and (context := self.shown(exact)) is not exact:
            body = body_of(context)
        vid = context.vid
        if self.notes.unnoted:
            self.notes.settle(vid)
        before = self.map.contexts.get(vid)
        owner_before = state_before = None
        if before is not None:
            owner_before, state_before = before.owner, before.context
        elif self.map.removed:
            gone = self.map.removed.get(vid)
            if gone is not None and not self._may_take(gone.owner, owner):
                self.map.removed.forget(vid)  # nobody removes what is another's
        known = self.map.put(context, body, stamp, owner)
        if known is None:
            return False
        if self.past is not None and not stored:
            self.past.begin(exact, body, owner, self._desk.now)
        if not self._policy.open_to_all(vid):
            self._note(known, state_before)
        if self.live.stale is not None:
            self.live.note(vid)
        fresh = owner_before is None
        if self._desk.journal:
            self._record(known, context, body)
        if owner_before is not None and owner_before != owner:
            self._overtake(owner_before, vid, stamp)
        self._changed(known, context, body, "appeared" if fresh else "changed")
        return True

    def cancel(self, client: ClientState, vid: str, stamp: int) -> None:
        """Unpublish a client's context; one of a later stamp stays the client's until it does so.

        Forgotten here, a context that stays on the map would stay there after its client.
        """
        earlier = vid in client.unconfirmed
        seen_us = client.unconfirmed.pop(vid, None)
        client.publications.pop(vid, None)
        if self.withdraw(client.name, vid, stamp):
            return
        if earlier:
            client.unconfirmed[vid] = seen_us
        else:
            client.publications[vid] = None
        self.outdate(client.name, vid, self.stamp_of(vid))

    def withdraw(
        self,
        owner: str,
        vid: str,
        stamp: int = 0,
        *,
        ended: int | None = None,
        stored: bool = False,
    ) -> bool:
        """Take a context off the map, if nobody has published it since the stamp.

        Without a stamp its publisher has only left this server. If it was the last to publish the
        context, that leaves the map, and may come back in the same state. False: the owner itself
        has published it since, by a clock that was ahead of its present one.

        `ended`: when its publisher was last seen, if that is not now. `stored`: as in `put_for`.
        """
        known = self.map.contexts.get(vid)
        if stamp:
            self.erase(vid, Removal(stamp, owner, self._desk.now))
            return known is None or known.owner != owner or known.stamp <= stamp
        if known is not None and known.owner == owner:
            other = self._desk.clients.get(known.owner_before)
            if other is not None and vid in other.publications and not stored:
                known.owner, known.owner_before = known.owner_before, ""
            else:
                self._take_off(known, ended, stored=stored)
        return True

    def erase(self, vid: str, removal: Removal) -> None:
        """Take a context off the map unless it is newer or another's, and remember the removal."""
        known = self.map.contexts.get(vid)
        if known is not None:
            if known.stamp > removal.stamp or not self._may_take(removal.owner, known.owner):
                return
            if removal.owner == known.owner:
                self.outdate(known.owner, vid, removal.stamp)
            else:
                self._overtake(known.owner, vid, removal.stamp)
            self._take_off(known)
        self.map.removed.note(vid, removal, self._desk.now)

    def _may_take(self, client: str, owner: str) -> bool:
        return client == owner or self._policy.may_take(client, owner)

    def _take_off(
        self, known: MapContext, ended: int | None = None, *, stored: bool = False
    ) -> None:
        vid, now = known.context.vid, self._desk.now
        self.notes.settle(vid)
        # Not before it was published: its client may have been silent since the last of others.
        ended = now if ended is None else min(now, max(ended, known.context.t_r))
        if self.past is not None and not stored:
            self.past.end(vid, known.owner, ended, now)
        self.map.remove(vid)
        self._policy.forget(vid)
        self.live.note(vid)
        if self._desk.journal:
            self._record(known, None, b"", ended)
        apart = self.apart.viewers(known) if known.names or known.apart else ()
        self._changed(known, None, b"", "left")
        for watcher in apart:
            del watcher.vids[vid]

    def stamp_of(self, vid: str) -> int:
        """Give the stamp of the present state of a context, or of its removal."""
        return self.map.stamp(vid)

    def outdate(self, owner: str, vid: str, stamp: int) -> None:
        """Tell a publisher that this map has a later stamp of its own: its clock was set back."""
        client = self._desk.clients.get(owner)
        if client is not None and (vid in client.publications or vid in client.unconfirmed):
            self._desk.deliver(client, Superseded(vid, stamp, own=True))
            self._desk.flush()  # before the answer that releases the request

    def _overtake(self, owner: str, vid: str, stamp: int) -> None:
        """Tell a publisher that somebody else published its context later, or removed it."""
        client = self._desk.clients.get(owner)
        if client is None:
            if self.is_stored(vid, owner):
                self._desk.out.append(PublicationReplaced(vid, owner))
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
        touched: tuple[Mapping[str, Touched], Mapping[ViewerKey, Touched]] | None = None,
    ) -> None:
        """Spread an update in every class for which it changes what that sees of the context.

        `touched`: the classes and the viewers by name to look at, if these are not all whose
        queries the context satisfies or satisfied.
        """
        desk = self._desk
        desk.number += 1
        vid = known.context.vid
        matched: list[int] = []
        clients = 0
        returning: dict[ViewerKey, ClassView] = {}
        if context is not None and (known.apart or known.names is not self._policy.names_of(vid)):
            returning = self.apart.name_anew(known)
        plain = not (known.names or known.apart or returning)
        at: int | None = None
        classes: Mapping[str, Touched]
        viewers: Mapping[ViewerKey, Touched]
        if plain and touched is None and context is not None and self._policy.open_to_all(vid):
            classes, viewers = self._seen_by_all(known, context), {}
        else:
            classes, viewers = touched or self._touched(known, context)
            if context is not None:
                at = self._policy.changes_at(context, desk.now)
        without = NOBODY
        if not plain:
            apart = [watcher.alone for watcher in self.apart.viewers(known)]
            without = frozenset([*apart, *(key[1] for key in returning)])
        stepped: dict[str, None] = {}
        for name, (seen, after) in classes.items():
            view = self._dissemination.classes[name]
            update = self.step(view, known, context, body, seen, after)
            if update is not None and update.queries:
                stepped[name] = None
                now = known.views[name]
                state = State(now.number, vid, now.body)
                placed = self._tell_class(view, update, state, seen, without)
                if desk.journal:
                    matched += update.queries
                    clients += placed
            if not after:  # it holds nothing of this class any more: others cost nothing (0096)
                known.views.pop(name, None)
        if without:
            self.apart.spread(known, context, body, viewers, returning, stepped)
        if at != known.changes_at:
            self._wake(known, at)
        if desk.journal:
            place = "" if known.recorded is None else known.recorded.place or ""
            desk.out.append(
                UpdateMatched(
                    str(desk.number),
                    vid,
                    change,
                    len(matched),
                    clients,
                    " ".join(map(str, matched)),
                    place,
                    desk.epoch,
                )
            )

    def _tell_class(
        self,
        view: ViewClass,
        update: QueryChange,
        state: State,
        seen: Context | None,
        without: frozenset[str],
    ) -> int:
        """Tell an update to a class, but for some viewers; give how many clients subscribed."""
        if view.local and not view.local.keys().isdisjoint(update.queries):
            before, after = update.before, update.after
            self._desk.out.append(
                LocalUpdate(view.name, state, before, after, seen, without=without)
            )
        placed = 0
        for record in update.records:
            placed += len(record.clients)
        if placed:  # queries of sessions have none: the hub serves those
            self._dissemination.spread(view, update, state)
        return placed

    def _seen_by_all(self, known: MapContext, context: Context) -> dict[str, Touched]:
        """Give the classes of `_touched` for a context that is open to all: one form (0096)."""
        found: dict[str, Touched] = {}
        if known.views:
            found = dict.fromkeys(known.views, (context, ()))
        for name, after in self._dissemination.shared.match(context):
            found[name] = (context, after)
        return found

    def _touched(
        self, known: MapContext, context: Context | None
    ) -> tuple[dict[str, Touched], dict[ViewerKey, Touched]]:
        """Give the classes with queries that a context satisfies or satisfied, and what they see.

        Beside them the viewers for whom it lies apart. Each form in which somebody sees the context
        is matched once, for all of them (0096).
        """
        policy, now = self._policy, self._desk.now
        viewers = self.apart.viewers(known)
        if context is None:
            nothing: Touched = (None, ())
            keys = [watcher.key for watcher in viewers]
            return dict.fromkeys(known.views, nothing), dict.fromkeys(keys, nothing)
        forms = policy.forms(context, now)
        seen_as = [(form, policy.seen(context, form, now)) for form in forms]
        found: dict[str, Touched] = {}
        for name in known.views:
            seen = policy.seen(context, policy.form_of(context, name, now), now)
            found[name] = (seen, ())
        matches = []
        for form, seen in seen_as:
            if seen is not None:
                matched = self._dissemination.shared.match(seen)
                matches.append((form, seen, matched))
                for name, after in matched:
                    if policy.form_of(context, name, now) == form:
                        found[name] = (seen, after)
        apart: dict[ViewerKey, Touched] = {}
        if viewers:
            sets = [(form, seen, dict(matched)) for form, seen, matched in matches]
            for watcher in viewers:
                its = policy.form_of(context, watcher.alone, now)
                apart[watcher.key] = (policy.seen(context, its, now), ())
                for form, seen, by_class in sets:
                    if form == its:
                        after = watcher.own(by_class.get(watcher.view.name, ()))
                        apart[watcher.key] = (seen, after)
                        break
        return found, apart

    def step(
        self,
        view: ViewClass,
        known: MapContext,
        context: Context | None,
        body: bytes,
        seen: Context | None,
        after: Matched,
    ) -> QueryChange | None:
        """Note what a class sees of a context from now on; give the update query set.

        None if the class sees what it saw: then it is told nothing, and counts nothing (0090).
        """
        name, table, now = view.name, view.table, self._desk.now
        before = known.views.get(name)
        if before is None:
            before = known.views[name] = ClassView(view.opened, b"")
        elif seen is context and before.seen is None:  # the common case, without a call
            if body == before.body:
                return None
        elif self._unchanged(before, context, seen, body, name):
            return None
        change = table.change(before.matched, after)
        before.number = view.number = next_number(view, now - self._desk.started)
        before.matched = after
        if seen is context:
            before.body, before.seen = body, None
        else:  # what rules coarsened needs bytes of its own: encoded once for the whole class
            before.body, before.seen = b"" if seen is None else body_of(seen), seen
        for record in change.left:
            table.leave(record, known.context.vid)
        for record in change.entered:
            table.enter(record, known.context.vid)
        return change

    def _unchanged(
        self,
        before: ClassView,
        context: Context | None,
        seen: Context | None,
        body: bytes,
        view_class: str,
    ) -> bool:
        """Whether a class sees now what it saw before."""
        if seen is None:
            return not before.body
        if not before.body:
            return False
        if seen is context and before.seen is None:
            return body == before.body
        was = before.seen or context_of(before.body)
        if seen.t_r != was.t_r:
            # A rule for the present alone shows a time that only says when it was looked.
            if context is None or not self._policy.momentary(context, view_class, self._desk.now):
                return False
            was = structs.replace(was, t_r=seen.t_r)
        return seen == was

    def forget_classes(self, names: Collection[str]) -> None:
        """Drop what view classes saw that have ended."""
        for name in names:
            self.live.forget(name)
        self.notes.forget_classes(names)
        for known in self.map.contexts.values():
            for name in [name for name in known.views if name in names]:
                del known.views[name]


def taken(vid: str) -> ConflictError:
    """Say that a vid is somebody else's, in the same words whether it is on the map or not."""
    return ConflictError(f"{vid[:100]!r} belongs to somebody else: choose another vid")


def next_number(view: ViewClass, elapsed_us: int) -> int:
    """Number an update of a class by its time: it counts nothing that others see (0090)."""
    return max(view.number + 1, elapsed_us)
