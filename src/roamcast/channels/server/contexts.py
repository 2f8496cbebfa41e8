"""The active map, and the way of an update of it to each view class (AMS, active maps).

Each context holds the queries that its present state satisfies, by view class. So the update query
set of a change is the old set united with the new one and costs one match, and a departure finds
everyone who saw the context, even if the rules that let them see it have changed since. 0026: a
context is its newest state.

A view class is told a change only if what it may see has changed. So that numbers tell nothing of
the others, each class numbers its updates itself (0090); one number is common to all messages of an
update in a class (AMS 10), so that clients drop duplicates and older states.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from operator import attrgetter
from typing import Final, Protocol

import msgspec
from msgspec import structs

from roamcast.channels.server.desk import NOBODY, ClientState, Desk, Policy
from roamcast.channels.server.live_views import SMALL_MAX, LiveViews, Seen
from roamcast.channels.server.messages import CONTEXT_BYTES_MAX, State, Superseded
from roamcast.channels.server.named import NamedViewer, NamedViewers, ViewerKey
from roamcast.channels.server.queries import Matched, QueryChange, QueryRecord
from roamcast.channels.server.removals import Removal, Removed
from roamcast.channels.server.view_class import ViewClass
from roamcast.channels.spread.dissemination import Dissemination
from roamcast.errors import ConflictError, ContextError, LimitError
from roamcast.matching.live.slices import run
from roamcast.model.contexts import Context, body_of, context_of, is_pseudonym
from roamcast.model.events import PublicationReplaced
from roamcast.model.filters import Filter
from roamcast.model.filters.atoms import Conjunction, Values
from roamcast.model.filters.values import Interval
from roamcast.model.items import is_item
from roamcast.model.machine import Effect
from roamcast.model.nearest import Found, nearest
from roamcast.model.parts import Timer
from roamcast.model.records import ContextChanged, ContextClosed, ContextOpened, UpdateMatched


class ClassView(msgspec.Struct):
    """What one view class sees of a context."""

    number: int
    """The class's update that brought it about."""
    body: bytes
    """Empty if the class sees nothing."""
    seen: Context | None = None
    """The body decoded; None if it is the context's own, or empty."""
    matched: Matched = ()


Touched = tuple[Context | None, Matched]
"""What a class sees of a context, and its queries that this satisfies."""


class MapContext(msgspec.Struct):
    """A context on the map: its state, who published it, and what each view class sees of it."""

    context: Context
    body: bytes
    """The context's bytes as they came: encoded once, by its publisher."""
    stamp: int
    owner: str
    views: dict[str, ClassView]
    """View class with queries that it satisfies → what the class was last told."""
    owner_before: str = ""
    """Who published this same state before its owner did."""
    recorded: Context | None = None
    """What stands in the journal of it."""
    changes_at: int | None = None
    """When the clock may change what some see of it."""
    seat: int = 0
    """Its index in `ActiveMap.seats`, the same for as long as it is on the map."""
    names: frozenset[str] = NOBODY
    """Whom its rules name."""
    apart: dict[ViewerKey, ClassView] | None = None
    """Viewer for whom it lies apart → what that viewer was last told, as in `views`."""

    def set_apart(self, key: ViewerKey, view: ClassView) -> None:
        """Note what a viewer for whom it lies apart is told."""
        if self.apart is None:
            self.apart = {}
        self.apart[key] = view

    def shown_apart(self, key: ViewerKey) -> ClassView | None:
        """Give what such a viewer was last told; None: nothing that its queries want."""
        return None if self.apart is None else self.apart.get(key)


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
            known = MapContext(context, body, stamp, owner, {}, seat=seat)
            self.contexts[context.vid] = known
        else:
            if stamp <= known.stamp and not _replaces(body, stamp, owner, known):
                return None
            self._leave(known.context)
            known.context, known.body = context, body
            known.stamp, known.owner, known.owner_before = stamp, owner, ""
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
    if body == known.body and owner != known.owner:
        # The same state, published again after a restart or by another way of its publisher.
        known.owner, known.owner_before = owner, known.owner
    return body > known.body


def _point(span: Interval) -> bool:
    return span.low is not None and span.low == span.high


class ClockDue(Timer, frozen=True):
    """The clock may change what somebody may see of a context: an hour of its rules begins."""

    vid: str


NOTES_US: Final = 1_000
"""Between two slices of notes."""


class NotesDue(Timer, frozen=True):
    """A new query is to be noted at more of the contexts that satisfy it."""


class Unnoted(msgspec.Struct):
    """The contexts at which a query is not noted yet, as its class saw them when it was placed.

    With a viewer: those that lie apart for it, as it saw them.
    """

    view: ViewClass
    number: int
    """The class's number of that moment."""
    contexts: dict[str, Context]
    viewer: NamedViewer | None = None

    def stands(self, query: int) -> bool:
        """Whether the query has not been withdrawn meanwhile."""
        placed = self.view.table.records if self.viewer is None else self.viewer.queries
        return query in placed


class LocalUpdate(Effect, frozen=True, gc=False):
    """An update for queries placed in this process: those satisfied before it, and after it.

    `context`: what the view class sees now, decoded, None if it sees nothing any more. `only`: it
    is for this viewer of the class alone; `without`: for all but these (0320).
    """

    view_class: str
    state: State
    before: Matched
    after: Matched
    context: Context | None = None
    only: str = ""
    without: frozenset[str] = frozenset()


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
        self.may_name: Callable[[str, str], bool] = lambda _owner, _vid: True
        self.blurred: Callable[[Context], Context] | None = None
        """Gives the context of a pseudonym as the map may have it: its times are rounded (0220)."""
        self.check_place: Callable[[str | None, tuple[float, float] | None], None] = (
            lambda _place, _point: None
        )
        """Raises for a place that another node serves."""
        """(vid, owner) → whether this process publishes it for the owner, from disk."""
        self.past: Remembers | None = None
        self.unnoted: dict[tuple[int, str], Unnoted] = {}
        """Queries that many contexts satisfy → where they are not noted yet.

        With a viewer for whom these lie apart, or none.
        """
        self.named = NamedViewers()
        desk.fresh = self.fresh
        desk.timers.handle(ClockDue, self._clock_due)
        desk.timers.handle(NotesDue, self._notes_due)

    def _context_of(self, vid: str) -> Context | None:
        known = self.map.contexts.get(vid)
        return None if known is None else known.context

    def put(self, client: ClientState, context: Context, body: bytes, stamp: int) -> None:
        """Publish a context for a client, or change it."""
        if context.place is None and context.point is None and not is_item(context):
            raise ContextError("a context on the map needs a place or a point: add one")
        if len(body) > CONTEXT_BYTES_MAX:
            raise LimitError(f"a context has at most {CONTEXT_BYTES_MAX} bytes")
        if (
            context.vid not in client.publications
            and len(client.publications) >= self._desk.settings.publications_max
        ):
            limit = self._desk.settings.publications_max
            raise LimitError(f"a client publishes at most {limit} contexts")
        self.check_place(context.place, context.point)
        self.check_owner(context.vid, client.name)
        if self.past is not None:
            self.past.check_room()
        if client.unconfirmed:
            client.unconfirmed.pop(context.vid, None)
        client.publications[context.vid] = None
        if not self.put_for(client.name, context, body, stamp):
            known = self.map.contexts.get(context.vid) or self.map.removed.get(context.vid)
            if known is None or known.owner != client.name:
                self._overtake(client.name, context.vid, self.map.stamp(context.vid))
            elif isinstance(known, Removal) or known.body != self.shown_body(context, body):
                self.outdate(client.name, context.vid, known.stamp)

    def check_owner(self, vid: str, owner: str) -> None:
        """Refuse to change what somebody else publishes or has published, or has set rules for.

        The refusal is the same for all of these: which of them holds may be hidden (0082, 0090).
        """
        if not self.may_name(owner, vid):
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
        for owners in (self.publishers, self.claims):
            other = owners.get(vid, owner)
            if other != owner and not self._may_take(owner, other):
                raise taken(vid)

    def reconsider(self, vid: str) -> None:
        """Show a context anew, after its rules have changed."""
        self.settle(vid)
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
        self.settle(timer.vid)
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
        exact, context = context, self.shown(context)
        if context is not exact:
            body = body_of(context)
        if self.unnoted:
            self.settle(context.vid)
        before = self.map.contexts.get(context.vid)
        owner_before, state_before = (before.owner, before.context) if before else (None, None)
        if before is None and self.map.removed:
            gone = self.map.removed.get(context.vid)
            if gone is not None and not self._may_take(gone.owner, owner):
                self.map.removed.forget(context.vid)  # nobody removes what is another's
        known = self.map.put(context, body, stamp, owner)
        if known is None:
            return False
        if self.past is not None and not stored:
            self.past.begin(exact, body, owner, self._desk.now)
        if not self._policy.open_to_all(context.vid):
            self._note(known, state_before)
        if self.live.stale is not None:
            self.live.note(context.vid)
        fresh = owner_before is None
        if self._desk.journal:
            self._record(known, context, body)
        if owner_before is not None and owner_before != owner:
            self._overtake(owner_before, context.vid, stamp)
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
        self.settle(vid)
        # Not before it was published: its client may have been silent since the last of others.
        ended = now if ended is None else min(now, max(ended, known.context.t_r))
        if self.past is not None and not stored:
            self.past.end(vid, known.owner, ended, now)
        self.map.remove(vid)
        self._policy.forget(vid)
        self.live.note(vid)
        if self._desk.journal:
            self._record(known, None, b"", ended)
        apart = self._lying_apart(known) if known.names or known.apart else ()
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
            returning = self._name_anew(known)
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
            apart = [watcher.alone for watcher in self._lying_apart(known)]
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
            self._spread_apart(known, context, body, viewers, returning, stepped)
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
        nothing: Touched = (context, ())
        found = dict.fromkeys(known.views, nothing)
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
        viewers = self._lying_apart(known)
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

    def _lying_apart(self, known: MapContext) -> list[NamedViewer]:
        """Give the viewers for whom a context lies apart, or lay until its last change."""
        viewers = {watcher.key: watcher for watcher in self.named.of(known.names)}
        for key in known.apart or ():
            viewers[key] = self.named.known[key]
        return list(viewers.values())

    def _name_anew(self, known: MapContext) -> dict[ViewerKey, ClassView]:
        """Take whom a context's rules name now; give who is to see it with the class again.

        Whom they name from now on saw it with the class until now.
        """
        vid = known.context.vid
        names, was = self._policy.names_of(vid), known.names
        known.names = names
        returning: dict[ViewerKey, ClassView] = {}
        if names is not was:
            for watcher in self.named.of(was - names):
                watcher.vids.pop(vid, None)
                returning[watcher.key] = ClassView(watcher.view.opened, b"")
            for watcher in self.named.of(names - was):
                watcher.vids[vid] = None
                with_class = known.views.get(watcher.view.name)
                matched = () if with_class is None else watcher.own(with_class.matched)
                if with_class is not None and matched and known.shown_apart(watcher.key) is None:
                    known.set_apart(watcher.key, structs.replace(with_class, matched=matched))
        apart = known.apart or {}
        for key in [key for key in apart if self.named.known[key].name not in names]:
            self.named.known[key].vids.pop(vid, None)
            returning[key] = apart.pop(key)
        return returning

    def _spread_apart(
        self,
        known: MapContext,
        context: Context | None,
        body: bytes,
        viewers: Mapping[ViewerKey, Touched],
        returning: Mapping[ViewerKey, ClassView],
        stepped: Collection[str],
    ) -> None:
        """Tell an update to viewers for whom a context lies apart, or lay until now."""
        for key, touched in viewers.items():
            if key not in returning:
                self._step_apart(known, key, context, body, touched, stepped)
        for key, was in returning.items():
            self._return(known, self.named.known[key], was, stepped)

    def _step_apart(
        self,
        known: MapContext,
        key: ViewerKey,
        context: Context | None,
        body: bytes,
        touched: Touched,
        stepped: Collection[str],
    ) -> None:
        """Note what a viewer sees of a context that lies apart for it, and tell what changed."""
        seen, after = touched
        watcher, before = self.named.known[key], known.shown_apart(key)
        if before is None:
            if not after:
                return
            before = ClassView(watcher.view.opened, b"")
        elif self._unchanged(before, context, seen, body, watcher.alone):
            return
        own = seen is context
        number = self._number_apart(watcher.view, before, stepped)
        text = body if own else b"" if seen is None else body_of(seen)
        self._tell_apart(watcher, State(number, known.context.vid, text), before, after, seen)
        if after:
            known.set_apart(key, ClassView(number, text, None if own else seen, after))
        elif known.apart is not None:
            known.apart.pop(key, None)

    def _return(
        self, known: MapContext, watcher: NamedViewer, was: ClassView, stepped: Collection[str]
    ) -> None:
        """Let a viewer see a context with its class again, and tell what differs for it."""
        context, vid = known.context, known.context.vid
        now = known.views.get(watcher.view.name)
        after = () if now is None else watcher.own(now.matched)
        seen = None if now is None else now.seen or context
        body = b"" if now is None else now.body
        who = watcher.alone
        if now is not None and was.body and self._unchanged(was, context, seen, body, who):
            if (was.body, was.number) != (body, now.number):
                # Only the time of looking or of the change differs: its own stays until more does.
                known.set_apart(watcher.key, was)
                watcher.vids[vid] = None
            return
        number = self._number_apart(watcher.view, was, stepped)
        self._tell_apart(watcher, State(number, vid, body), was, after, seen)

    def _tell_apart(
        self,
        watcher: NamedViewer,
        state: State,
        was: ClassView,
        after: Matched,
        seen: Context | None,
    ) -> None:
        before = watcher.own(was.matched)
        if before or after:
            self._desk.out.append(
                LocalUpdate(watcher.view.name, state, before, after, seen, only=watcher.alone)
            )

    def _number_apart(self, view: ViewClass, was: ClassView, stepped: Collection[str]) -> int:
        """Number an update that a viewer is told alone as its class would (0090)."""
        elapsed = self._desk.now - self._desk.started
        return max(elapsed, was.number + 1, view.number + (view.name not in stepped))

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
        elif self._unchanged(before, context, seen, body, name):
            return None
        change = table.change(before.matched, after)
        before.number = view.number = _next_number(view, now - self._desk.started)
        before.matched = after
        # Only what rules coarsened needs bytes of its own: encoded once for the whole class.
        own = seen is context
        before.body = body if own else b"" if seen is None else body_of(seen)
        before.seen = None if own else seen
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

    def satisfying(self, view: ViewClass, wanted: Filter, query: int) -> list[str]:
        """Find the contexts that satisfy a query not yet placed, and note it at each of them.

        At many contexts that takes long. It is done in slices then, and at each context before
        anybody looks at it (0195).
        """
        now = self._desk.now
        found = self.found(view, wanted)
        if found:
            # A number before the present: an update of this moment counts as without it, for that a
            # class got another query is hidden (0098).
            view.number = max(view.number, now - self._desk.started - 1)
        contexts = dict(zip(map(_vid_of, found), found, strict=True))
        return self._note_at(query, Unnoted(view, view.number, contexts))

    def watch(self, view: ViewClass, alone: str, wanted: Filter, query: int) -> None:
        """Note a query of a viewer at the contexts that lie apart for it."""
        watcher = self.named.known.get((view.name, alone))
        if watcher is None:
            watcher = self.named.add(alone, view)
            contexts, vids = self.map.contexts, self._policy.naming(watcher.name)
            for vid in contexts if vids is None else vids:
                if vid in contexts and watcher.name in contexts[vid].names:
                    watcher.vids[vid] = None
        watcher.queries[query] = watcher.queries.get(query, 0) + 1
        if watcher.queries[query] == 1 and watcher.vids:
            found = {seen.vid: seen for seen in self._found_apart(watcher, wanted)}
            self._note_at(query, Unnoted(view, view.number, found, watcher))

    def unwatch(self, view: ViewClass, alone: str, query: int) -> None:
        """Forget a viewer's query; the viewer with the last."""
        watcher = self.named.known[view.name, alone]
        watcher.queries[query] -= 1
        if watcher.queries[query]:
            return
        del watcher.queries[query]
        if (unnoted := self.unnoted.get((query, alone))) is not None:
            unnoted.contexts.clear()
        if not watcher.queries:
            self.named.remove(watcher)
            for vid in watcher.vids:
                apart = self.map.contexts[vid].apart
                if apart is not None:
                    apart.pop(watcher.key, None)

    def _found_apart(self, watcher: NamedViewer, wanted: Filter) -> list[Context]:
        """Give what a viewer sees and a filter wants of the contexts that lie apart for it."""
        now, see = self._desk.now, self._seen_by(watcher.alone)
        if len(watcher.vids) > SMALL_MAX:
            every = run(self.live.every(watcher.alone, see, wanted, now))
            return [seen for seen in every if seen.vid in watcher.vids]
        shown = (see(self.map.contexts[vid].context, now) for vid in watcher.vids)
        return [seen for seen in shown if seen is not None and wanted.matches(seen)]

    def _note_at(self, query: int, unnoted: Unnoted) -> list[str]:
        """Note a query where it is satisfied: at once at few contexts, else in slices."""
        vids = list(unnoted.contexts)
        if len(vids) > self._desk.settings.notes_max:
            alone = "" if unnoted.viewer is None else unnoted.viewer.alone
            self.unnoted[query, alone] = unnoted
            self._desk.timers.set(NotesDue(), self._desk.now + NOTES_US)
        else:
            for vid in vids:
                self.settle(vid)
                self._note_queries([query], [unnoted], vid)
        return vids

    def found(self, view: ViewClass, wanted: Filter) -> list[Context]:
        """Give what a class sees now and a filter wants, by vid."""
        if not self.map.contexts:
            return []
        name = view.name
        return run(self.live.every(name, self._seen_by(name), wanted, self._desk.now))

    def _note_queries(self, queries: list[int], unnoted: list[Unnoted], vid: str) -> None:
        """Note queries of one class, or of one viewer, at a context, in their order."""
        first, seen = unnoted[0], unnoted[0].contexts[vid]
        for one in unnoted:
            del one.contexts[vid]
        view, watcher, known = first.view, first.viewer, self.map.contexts[vid]
        if watcher is not None and vid not in watcher.vids:
            return  # it has returned to its class
        before = known.views.get(view.name) if watcher is None else known.shown_apart(watcher.key)
        if before is None:
            # Somebody may know an older state, told before the class lost sight of it.
            own = seen is known.context
            before = ClassView(first.number, known.body if own else body_of(seen))
            before.seen = None if own else seen
            if watcher is None:
                known.views[view.name] = before
            else:
                known.set_apart(watcher.key, before)
        standing = view.table.records if watcher is None else watcher.queries
        noted = [number for number in before.matched if number in standing]
        before.matched = tuple(sorted({*noted, *queries}))

    def settle(self, vid: str) -> int:
        """Note the queries at a context that are not noted there yet; give how many.

        Together: one after the other would cost each of them as much as all before it.
        """
        if not self.unnoted:
            return 0
        groups: dict[tuple[str, str], tuple[list[int], list[Unnoted]]] = {}
        for (query, alone), unnoted in self.unnoted.items():
            if not unnoted.stands(query):
                unnoted.contexts.clear()
            elif vid in unnoted.contexts:
                group = groups.setdefault((unnoted.view.name, alone), ([], []))
                group[0].append(query)
                group[1].append(unnoted)
        for queries, waiting in groups.values():
            self._note_queries(queries, waiting, vid)
        return sum([len(queries) for queries, _ in groups.values()])

    def _notes_due(self, timer: NotesDue) -> None:
        """Note the queries at some more contexts: as many notes as may be made at once."""
        room = self._desk.settings.notes_max
        for unnoted in islice(self.unnoted.values(), 1):
            for vid in [*islice(unnoted.contexts, room)]:
                room -= 1 + self.settle(vid)
                if room <= 0:
                    break
        self.unnoted = {query: left for query, left in self.unnoted.items() if left.contexts}
        if self.unnoted:
            self._desk.timers.set(timer, self._desk.now + NOTES_US)

    def _seen_by(self, view_class: str) -> Seen:
        return lambda context, now: self._policy.visible(context, view_class, now)

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
        for name in names:
            self.live.forget(name)
        for unnoted in self.unnoted.values():
            if unnoted.view.name in names:
                unnoted.contexts.clear()
        for known in self.map.contexts.values():
            for name in [name for name in known.views if name in names]:
                del known.views[name]

    def fresh(self, view_class: str, state: State) -> State:
        """Give a context's present state for a view class, in place of one that has waited."""
        self.settle(state.vid)
        known = self.map.contexts.get(state.vid)
        if known is None:
            return State(state.number, state.vid, b"")
        now = known.views.get(view_class)
        if now is None:
            return self._out_of_sight(view_class, known, state)
        if now.number == state.number:
            return state
        # What left may be back and hidden: then its departure has the later number.
        return State(max(now.number, state.number), state.vid, now.body)

    def _out_of_sight(self, view_class: str, known: MapContext, state: State) -> State:
        """Give the present state of a context that satisfies no query of a class any more."""
        view = self._dissemination.classes.get(view_class)
        seen = self._policy.visible(known.context, view_class, self._desk.now)
        body = b"" if seen is None else known.body if seen is known.context else body_of(seen)
        if view is None or body == state.body:
            return state
        view.number = _next_number(view, self._desk.now - self._desk.started)
        return State(view.number, state.vid, body)

    def state_of_any(self, view: ViewClass, queries: Collection[int], vid: str) -> State | None:
        """Give a context's present state if it satisfies any of some queries."""
        self.settle(vid)
        now = self.map.contexts[vid].views.get(view.name)
        if now is None or not any(query in now.matched for query in queries):
            return None
        return State(now.number, vid, now.body)

    def state_of(
        self, view: ViewClass, record: QueryRecord, vid: str, alone: str = ""
    ) -> State | None:
        """Give a context's present state if it satisfies a query, for a viewer of a class.

        A query that is not noted there yet need not be for that: to note all of them at each
        context of a current set would take longer than to send it.
        """
        known = self.map.contexts.get(vid)
        if known is None:
            return None
        now = self._shown_to(view, known, alone)
        if now is None or record.number not in now.matched:
            if not self._waits_for_note(record.number, view, vid, alone):
                return None
            if now is None:
                self.settle(vid)
                now = self._shown_to(view, known, alone)
                assert now is not None
        return State(now.number, vid, now.body)

    def _waits_for_note(self, query: int, view: ViewClass, vid: str, alone: str) -> bool:
        """Whether a context satisfies a query that is not noted there yet."""
        watcher = self.named.known.get((view.name, alone)) if alone else None
        own = watcher is not None and vid in watcher.vids
        unnoted = self.unnoted.get((query, alone if own else ""))
        return unnoted is not None and vid in unnoted.contexts and unnoted.stands(query)

    def decoded(self, view: ViewClass, state: State, alone: str = "") -> Context | None:
        """Give a state that `state_of` gave, decoded, if that is at hand."""
        known = self.map.contexts.get(state.vid)
        now = None if known is None else self._shown_to(view, known, alone)
        if known is None or now is None or now.body is not state.body:
            return None
        return known.context if now.seen is None and now.body is known.body else now.seen

    def _shown_to(self, view: ViewClass, known: MapContext, alone: str) -> ClassView | None:
        """Give what a viewer of a class was last told of a context."""
        watcher = self.named.known.get((view.name, alone)) if alone else None
        if watcher is not None and known.context.vid in watcher.vids:
            return known.shown_apart(watcher.key)
        return known.views.get(view.name)

    def listed_for(self, view: ViewClass, query: int, vids: list[str], alone: str) -> list[str]:
        """Give the current set of a class as one viewer of it sees it, by vid."""
        watcher = self.named.known.get((view.name, alone))
        if watcher is None or not watcher.vids:
            return vids
        with_class = [vid for vid in vids if vid not in watcher.vids]
        waiting = self.unnoted.get((query, alone))
        later = {} if waiting is None else waiting.contexts
        own = []
        for vid in watcher.vids:
            now = self.map.contexts[vid].shown_apart(watcher.key)
            if vid in later or (now is not None and query in now.matched):
                own.append(vid)
        return sorted([*with_class, *own])


_vid_of = attrgetter("vid")


def taken(vid: str) -> ConflictError:
    """Say that a vid is somebody else's, in the same words whether it is on the map or not."""
    return ConflictError(f"{vid[:100]!r} belongs to somebody else: choose another vid")


def _next_number(view: ViewClass, elapsed_us: int) -> int:
    """Number an update of a class by its time: it counts nothing that others see (0090)."""
    return max(view.number + 1, elapsed_us)
