"""One-time questions over what a viewer may see of the map, by indexes.

A filter is asked of the *view* of a context, never of the context itself: what a rule hides must
not decide whether it is found. So contexts that everybody sees exactly stand in one index that all
viewers share, and those under rules in an index for each view class, as that class sees them. A
question goes to both, which have no vid in common.

The shared index is made at the first question to a map of more than SMALL_MAX contexts, and kept at
every change from then on; a smaller map is walked, which costs less than a plan. An index of a
class is made when the class first asks and follows changes when it asks again. What time alone
changes is looked at when it is due (`Policy.changes_at`). Rules for the present show a context
since the moment of the question, so questions about t_r are confirmed by the reference evaluator on
the view of that moment, for contexts under rules only.
"""

import heapq
from collections.abc import Callable, Collection
from functools import cached_property
from typing import Final, Protocol

from roamcast.channels.server.desk import Policy
from roamcast.matching import live
from roamcast.matching.live.slices import ContextPage, Question
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter, syntax
from roamcast.model.filters.atoms import T_R, TRUE, All, Any, Normal, Residual, Values
from roamcast.model.filters.normal import all_of, any_of
from roamcast.model.filters.price import REFERENCE_STEPS, Price, price, touched, unindexed
from roamcast.model.nearest import Found, nearest

SMALL_MAX: Final = 256
"""Contexts up to which the reference evaluator answers at once, in about a millisecond."""

CLASSES_MAX: Final = 256
"""Most view classes with an index; the one that asked longest ago goes first."""

VIEWS_MAX: Final = 4_000_000
"""Most views in the indexes of all classes together, likewise."""

STALE_MIN: Final = 1_024
"""Changes that may wait for a question, beside two for each context on the map."""

REFRESH_SLICE: Final = 256
"""Views made anew between two yields: a millisecond or two."""


class Visibility(Protocol):
    """What decides who sees what; `identity.policy` has it."""

    def changes_at(self, context: Context, now: int) -> int | None:
        """When time alone next changes what anybody sees of a context."""

    def restricted(self) -> Collection[str] | None:
        """The vids that some viewers may not see exactly; None: it may be any."""


Seen = Callable[[Context, int], Context | None]
"""Gives a context as one class sees it at a time, None if it sees nothing."""


def seen_by(policy: Policy, view_class: str) -> Seen:
    """Look at contexts as one class may see them."""
    return lambda context, now: policy.visible(context, view_class, now)


class ClassViews:
    """The contexts under rules, as one view class sees them."""

    def __init__(self, vids: Collection[str]) -> None:
        self.index = live.LiveIndex()
        self.stale: dict[str, None] = dict.fromkeys(vids)
        """Vids whose view is to be made anew."""
        self._due: list[tuple[int, str]] = []
        self._due_at: dict[str, int] = {}

    def refresh(
        self, contexts: Callable[[str], Context | None], policy: Visibility, seen: Seen, now: int
    ) -> Question[None]:
        """Bring every stale view up to date, and those that are due."""
        while self._due and self._due[0][0] <= now:
            at, vid = heapq.heappop(self._due)
            if self._due_at.get(vid) == at:
                self.stale[vid] = None
        done = 0
        while self.stale:
            vid, _ = self.stale.popitem()
            context = contexts(vid)
            view = None if context is None else seen(context, now)
            if view is None:
                self.index.remove(vid)
            else:
                self.index.put(view)
            self._wake(vid, None if context is None else policy.changes_at(context, now))
            done += 1
            if done % REFRESH_SLICE == 0:
                yield

    def pending(self, now: int) -> int:
        """How many views the next question makes anew."""
        due = bool(self._due) and self._due[0][0] <= now
        return len(self.stale) + (sum(at <= now for at, _ in self._due) if due else 0)

    def _wake(self, vid: str, at: int | None) -> None:
        if at is None:
            self._due_at.pop(vid, None)
        elif self._due_at.get(vid) != at:
            self._due_at[vid] = at
            heapq.heappush(self._due, (at, vid))
        if len(self._due) > 64 + 2 * len(self._due_at):  # drop what no longer counts
            self._due = [(moment, name) for name, moment in self._due_at.items()]
            heapq.heapify(self._due)


class LiveViews:
    """The live contexts, ready for questions by any viewer."""

    def __init__(
        self,
        contexts: Callable[[str], Context | None],
        vids: Callable[[], Collection[str]],
        policy: Visibility,
    ) -> None:
        """`contexts` gives a context on the map, `vids` names all of them."""
        self._contexts = contexts
        self._vids = vids
        self._policy = policy
        self.stale: dict[str, None] | None = None
        """Vids whose shared entry is not up to date; None: no question has needed the index yet.

        An update only adds its vid here. The next question brings the index up to date, so a map
        that nobody asks pays nothing, and a context that moves ten times in between pays once.
        """
        self._ruled: dict[str, None] = {}
        """The vids on the map that are under rules."""
        self._classes: dict[str, ClassViews] = {}

    @cached_property
    def _shared(self) -> live.LiveIndex:
        return live.LiveIndex()

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held of what, and the bound of each."""
        views = sum(len(views.index) for views in self._classes.values())
        return {
            "indexed view classes": (len(self._classes), CLASSES_MAX),
            "indexed views": (views, VIEWS_MAX),
        }

    def note(self, vid: str) -> None:
        """Take note of a context that has appeared, changed or left."""
        if self.stale is None:
            return
        self.stale[vid] = None
        if len(self.stale) > STALE_MIN + 2 * len(self._vids()):
            # Contexts came and went, and nobody asked: the next question starts from the map.
            self.clear()

    def clear(self) -> None:
        """Forget the indexes; the next question makes them anew."""
        self.stale = None
        self.__dict__.pop("_shared", None)
        self._ruled.clear()
        self._classes.clear()

    def reconsider(self, vid: str) -> None:
        """Take new rules of a context at once: no question under way may find what they hide."""
        if self.stale is not None:
            self.stale.pop(vid, None)
            self._follow(vid)

    def _follow(self, vid: str) -> None:
        context = self._contexts(vid)
        restricted = self._policy.restricted()
        ruled = restricted is None or vid in restricted
        if context is None or ruled:
            self._shared.remove(vid)
        else:
            self._shared.put(context)
        if vid in self._ruled or (ruled and context is not None):
            for views in self._classes.values():
                views.stale[vid] = None
        if ruled and context is not None:
            self._ruled[vid] = None
        else:
            self._ruled.pop(vid, None)

    def forget(self, view_class: str) -> None:
        """Drop the index of a class that has ended."""
        self._classes.pop(view_class, None)

    def price(self, view_class: str, wanted: Filter, now: int) -> Price:
        """Give the price of a question to both indexes, with all that it is made of."""
        contexts, steps = self.work(view_class, wanted, now)
        return Price(wanted.terms, unindexed(wanted.normal, self._shared), contexts, steps)

    def work(self, view_class: str, wanted: Filter, now: int) -> tuple[int, int]:
        """Give how many contexts a question to both indexes may touch, and its steps.

        Bringing them up to date is the service's own work. It is not charged: otherwise nobody
        could ask first. What is not up to date may all be touched.
        """
        each = 2 * wanted.looks
        if self.stale is None:
            count = len(self._vids())
            if self._small():
                each += REFERENCE_STEPS
            return count, wanted.terms + count * each
        contexts = touched(wanted.normal, self._shared)
        steps = wanted.terms + contexts * each
        views = self._classes.get(view_class)
        fresh = len(self.stale)
        if views is None:
            fresh += len(self._ruled)
        else:
            own = price(_weakened(wanted.normal), views.index)
            fresh += views.pending(now)
            contexts += own.contexts
            steps += own.steps
            if _asks_begin(wanted.normal):
                steps += own.contexts * REFERENCE_STEPS
        return contexts + fresh, steps + fresh * each

    def prepared(self, view_class: str, seen: Seen, now: int) -> Question[None] | None:
        """Bring the indexes up to date; None if a question may as well do it by itself."""
        if self._small():
            return None
        fresh = len(self._vids()) if self.stale is None else len(self.stale)
        if self._ruled:
            views = self._classes.get(view_class)
            fresh += len(self._ruled) if views is None else views.pending(now)
        return self._prepare(view_class, seen, now) if fresh > REFRESH_SLICE else None

    def _prepare(self, view_class: str, seen: Seen, now: int) -> Question[None]:
        yield from self._catch_up()
        if self._ruled:
            yield from self._views(view_class, seen, now)

    def count(self, view_class: str, seen: Seen, wanted: Filter, now: int) -> Question[int]:
        """Count what a class sees that satisfies a filter."""
        if self._small():
            return len(self._walked(seen, wanted, now))
        yield from self._catch_up()
        total = yield from live.questions.count(self._shared, wanted)
        if not self._ruled:
            return total
        views = yield from self._views(view_class, seen, now)
        if _asks_begin(wanted.normal):
            return total + len((yield from self._confirmed(views, seen, wanted, now)))
        return total + (yield from live.questions.count(views.index, wanted))

    def page(
        self, view_class: str, seen: Seen, wanted: Filter, now: int, after: str, limit: int
    ) -> Question[ContextPage]:
        """Give the first contexts after a vid that a class sees and a filter wants, by vid."""
        if self._small():
            found = [view for view in self._walked(seen, wanted, now) if view.vid > after]
            return ContextPage(found[:limit], len(found) > limit)
        yield from self._catch_up()
        shared = yield from live.questions.page(self._shared, wanted, after, limit)
        if not self._ruled:
            return shared
        views = yield from self._views(view_class, seen, now)
        if _asks_begin(wanted.normal):
            every = yield from self._confirmed(views, seen, wanted, now)
            mine = [context for context in every if context.vid > after]
            own = ContextPage(mine[:limit], len(mine) > limit)
        else:
            own = yield from live.questions.page(views.index, wanted, after, limit)
        both = list(heapq.merge(shared.contexts, own.contexts, key=lambda context: context.vid))
        more = shared.more or own.more or len(both) > limit
        return ContextPage(self._as_of(both[:limit], seen, now), more)

    def every(
        self, view_class: str, seen: Seen, wanted: Filter, now: int
    ) -> Question[list[Context]]:
        """Give all contexts that a class sees and a filter wants, by vid."""
        if self._small():
            return self._walked(seen, wanted, now)
        yield from self._catch_up()
        shared = yield from live.questions.every(self._shared, wanted)
        if not self._ruled:
            return shared
        views = yield from self._views(view_class, seen, now)
        if _asks_begin(wanted.normal):
            own = yield from self._confirmed(views, seen, wanted, now)
        else:
            own = yield from live.questions.every(views.index, wanted)
        both = heapq.merge(shared, own, key=lambda context: context.vid)
        return self._as_of(list(both), seen, now)

    def nearest(
        self,
        view_class: str,
        seen: Seen,
        wanted: Filter,
        now: int,
        to: tuple[float, float],
        count: int,
    ) -> Question[list[Found]]:
        """Give the nearest contexts that a class sees and a filter wants, ties by vid."""
        if self._small():
            return nearest(self._walked(seen, wanted, now), to, wanted, count=count)
        yield from self._catch_up()
        shared = yield from live.questions.nearest(self._shared, to, wanted, count=count)
        if not self._ruled:
            return shared
        views = yield from self._views(view_class, seen, now)
        index = views.index
        if _asks_begin(wanted.normal):
            index = live.LiveIndex()
            for context in (yield from self._confirmed(views, seen, wanted, now)):
                index.put(context)
        own = yield from live.questions.nearest(index, to, wanted, count=count)
        both = sorted([*shared, *own], key=lambda near: (near.metres, near.context.vid))[:count]
        shown = self._as_of([near.context for near in both], seen, now)
        return [Found(near.metres, view) for near, view in zip(both, shown, strict=True)]

    def _small(self) -> bool:
        return self.stale is None and len(self._vids()) <= SMALL_MAX

    def _walked(self, seen: Seen, wanted: Filter, now: int) -> list[Context]:
        """Let the reference evaluator answer about every context of a small map."""
        found = []
        for vid in sorted(self._vids()):
            context = self._contexts(vid)
            view = None if context is None else seen(context, now)
            if view is not None and wanted.matches(view):
                found.append(view)
        return found

    def _catch_up(self) -> Question[None]:
        """Make the shared index, slice by slice, when the first question needs it."""
        if self.stale is None:
            self.stale = dict.fromkeys(self._vids())
        done = 0
        while self.stale:
            vid, _ = self.stale.popitem()
            self._follow(vid)
            done += 1
            if done % REFRESH_SLICE == 0:
                yield

    def _views(self, view_class: str, seen: Seen, now: int) -> Question[ClassViews]:
        views = self._classes.pop(view_class, None) or ClassViews(self._ruled)
        self._classes[view_class] = views  # the last to be given up
        yield from views.refresh(self._ruled_context, self._policy, seen, now)
        total = sum(len(known.index) for known in self._classes.values())
        while len(self._classes) > 1 and (len(self._classes) > CLASSES_MAX or total > VIEWS_MAX):
            total -= len(self._classes.pop(next(iter(self._classes))).index)
        return views

    def _ruled_context(self, vid: str) -> Context | None:
        """Give a context under rules; any other is in the shared index."""
        return self._contexts(vid) if vid in self._ruled else None

    def _confirmed(
        self, views: ClassViews, seen: Seen, wanted: Filter, now: int
    ) -> Question[list[Context]]:
        """Ask the reference evaluator about views as of now, where t_r decides."""
        slots = yield from live.questions.satisfying(views.index, _weakened(wanted.normal))
        found = []
        for number, slot in enumerate(slots.tolist()):
            known = views.index.contexts[slot]
            context = None if known is None else self._contexts(known.vid)
            view = None if context is None else seen(context, now)
            if view is not None and wanted.matches(view):
                found.append(view)
            if number % REFRESH_SLICE == REFRESH_SLICE - 1:
                yield
        return sorted(found, key=lambda context: context.vid)

    def _as_of(self, found: list[Context], seen: Seen, now: int) -> list[Context]:
        """Show contexts under rules as they are seen at this moment: their t_r may follow it."""
        shown = []
        for view in found:
            context = self._ruled_context(view.vid)
            shown.append(view if context is None else seen(context, now) or view)
        return shown


def _asks_begin(normal: Normal) -> bool:
    """Return whether t_r decides: rules for the present move it to the moment of the question."""
    return _weakened(normal) is not normal


def _weakened(normal: Normal) -> Normal:
    """Return the normal form with every term about t_r true; itself if there is none."""
    if isinstance(normal, All | Any):
        parts = [_weakened(part) for part in normal.parts]
        if all(new is old for new, old in zip(parts, normal.parts, strict=True)):
            return normal
        return all_of(parts) if isinstance(normal, All) else any_of(parts)
    if isinstance(normal, Values):
        return TRUE if normal.property == T_R else normal
    if isinstance(normal, Residual) and isinstance(normal.expression, syntax.Temporal):
        return TRUE
    return normal
