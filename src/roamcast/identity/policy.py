"""The rules in force, and `RulesPolicy`: the only place that decides visibility, by people's rules.

`RuleBook` has the rules of each vid, and the default for vids without any. Viewers who may see the
same form a view class, which shares channels and keys.
"""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from roamcast.errors import LimitError
from roamcast.identity.rules import (
    EVERYONE,
    WHOLE,
    Rule,
    Shape,
    Viewer,
    changes_at,
    check_rules,
    deciding,
    part_of,
    shape_of,
    showing,
    shown_by,
    visible,
)
from roamcast.model.contexts import Context
from roamcast.model.events import VIEW_CLASSES_MAX
from roamcast.model.places import Places

PUBLIC: Final = (Rule(viewers=(EVERYONE,), precision="exact", past=True),)
"""The default of a service: everybody with a token sees what is published without rules."""

APART_MAX: Final = 100_000
"""Most viewers with a view class of their own that no rule names any more; the oldest go first."""

UNGUESSABLE: Final = re.compile(r"[A-Za-z0-9_-]{22,}")
"""Vids of at least 128 bits, such as the SDK makes for each appearance."""

RulesOf = Callable[[str], Sequence[Rule]]
"""Gives the rules of a vid."""

ViewerOf = Callable[[str], Viewer]
"""Gives the viewer behind a client."""


def subject_of(client: str) -> str:
    """Give who is behind a client's name: a client is one device of a subject, `subject#device`."""
    return client.partition("#")[0]


def is_own(client: str, vid: str) -> bool:
    """Whether nobody else can mean a vid: it begins with its subject, or cannot be guessed."""
    subject = subject_of(client)
    return vid == subject or vid.startswith(f"{subject}:") or bool(UNGUESSABLE.fullmatch(vid))


class RuleBook:
    """Rules by vid."""

    def __init__(self, default: Sequence[Rule] = PUBLIC) -> None:
        self.default = tuple(check_rules(default))
        self.public = self.default == PUBLIC
        self._rules: dict[str, tuple[Rule, ...]] = {}
        self._names: dict[str, frozenset[str]] = {}
        """Vid with rules of its own → whom they name."""
        self._default_names = _named_by(self.default)
        self._naming: dict[str, dict[str, None]] = {}
        """Viewer → the vids whose own rules name it."""
        self._apart: dict[str, None] = {}

    def of(self, vid: str) -> tuple[Rule, ...]:
        """Give the rules in force for a vid."""
        return self._rules.get(vid, self.default)

    def is_public(self, vid: str) -> bool:
        """Whether everybody sees all of a vid, at any time."""
        own = self._rules.get(vid)
        return self.public if own is None else own == PUBLIC

    def own(self, vid: str) -> tuple[Rule, ...] | None:
        """Give the rules set for this very vid."""
        return self._rules.get(vid)

    def encoded(self, vid: str) -> bytes | None:
        """Give the rules set for this very vid as the past stores them."""
        own = self._rules.get(vid)
        return None if own is None else msgspec.msgpack.encode(own)

    def set(self, vid: str, rules: Sequence[Rule] | None) -> list[str]:
        """Set or (None) remove the rules of a vid; return viewers named for the first time."""
        checked = () if rules is None else tuple(check_rules(rules))
        names = _named_by(checked)
        fresh = sorted(viewer for viewer in names if not self.names(viewer))
        for viewer in self._names.pop(vid, ()):
            del self._naming[viewer][vid]
            if not self._naming[viewer]:
                del self._naming[viewer]
        self._rules.pop(vid, None)
        if rules is not None:
            self._rules[vid] = checked
            self._names[vid] = names
            for viewer in names:
                self._naming.setdefault(viewer, {})[vid] = None
        return fresh

    def names_of(self, vid: str) -> frozenset[str]:
        """Give whom the rules in force for a vid name: viewers and groups."""
        return self._names.get(vid, self._default_names)

    def naming(self, viewer: str) -> Collection[str] | None:
        """Give the vids whose rules name a viewer; None: it may be any."""
        return None if viewer in self._default_names else self._naming.get(viewer, {}).keys()

    def names(self, viewer: str) -> bool:
        """Whether some rule names a viewer, whose links then need a view class of their own."""
        naming, default = self._naming, self._default_names
        return viewer in naming or viewer in default or viewer in self._apart

    def keep_apart(self, viewer: str) -> None:
        """Treat a viewer as named from now on.

        Giving it a view class of its own made others of its former class change keys. That happens
        once, however often somebody names the viewer and takes it back (decision 0082).
        """
        self._apart[viewer] = None
        if len(self._apart) > APART_MAX:
            del self._apart[next(iter(self._apart))]

    def restricted(self) -> Collection[str] | None:
        """Give the vids that some viewers may not see exactly; None: it may be any."""
        return self._rules.keys() if self.public else None


def _named_by(rules: Sequence[Rule]) -> frozenset[str]:
    return frozenset(viewer for rule in rules for viewer in rule.viewers) - {EVERYONE}


class _Restricted(msgspec.Struct):
    """A context on the map that has rules: whose it is, since when its parts are as they are."""

    owner: str
    since: dict[Shape, int]


class RulesPolicy:
    """Decides who sees what of a context."""

    def __init__(
        self,
        rules_of: RulesOf,
        viewer_of: ViewerOf,
        *,
        names: Callable[[str], bool] = lambda _: False,
        restricted: Callable[[], Collection[str] | None] = lambda: None,
        names_of: Callable[[str], frozenset[str]] = lambda _: frozenset(),
        naming: Callable[[str], Collection[str] | None] = lambda _: (),
        places: Places | None = None,
        used: Callable[[], Collection[str]] | None = None,
    ) -> None:
        """`names`: whether some rule names a viewer: its links get a view class of their own.

        All other clients, and all sessions, are classed by their groups alone, so that everybody
        who may see the same shares a class and its channels. `names_of` gives whom the rules of a
        vid name, `naming` the vids whose rules name a viewer, None for any: what these see of it is
        theirs alone (0320). `used` gives the classes with members: at the limit the empty ones are
        dropped.
        """
        self._rules_of = rules_of
        self._viewer_of = viewer_of
        self._names = names
        self._restricted = restricted
        self.names_of = names_of
        self.naming = naming
        self.places = places
        self._used = used
        self._viewers: dict[str, Viewer] = {}
        self._alone: dict[str, tuple[Viewer, int]] = {}
        """Viewers with sessions, and how many each has."""
        self._retired: dict[str, int] = {}
        self._contexts: dict[str, _Restricted] = {}
        """Vids on the map that are not public."""

    def view_class(self, client: str) -> str:
        """Give the class of a client at the start of its session, for all of that session."""
        return self.class_of(self._viewer_of(client))

    def _name(self, viewer: Viewer) -> str:
        """Give a viewer's name if it decides what they see, else nothing."""
        return viewer.name if self._names(viewer.name) else ""

    def name_of(self, viewer: Viewer) -> str:
        """Name the class that a viewer would be in, without opening it."""
        name = self._name(viewer)
        return self._current("\n".join([name, *sorted(viewer.groups)]))

    def class_of(self, viewer: Viewer) -> str:
        """Name the class of a viewer, and open it if nobody is in it yet."""
        name = self._name(viewer)
        view_class = self.name_of(viewer)
        if view_class not in self._viewers:
            if len(self._viewers) >= VIEW_CLASSES_MAX and self._used is not None:
                used = self._used()
                self._viewers = {
                    known: who for known, who in self._viewers.items() if known in used
                }
            if len(self._viewers) >= VIEW_CLASSES_MAX:
                raise LimitError(f"a broker has {VIEW_CLASSES_MAX} view classes at most: try later")
            self._viewers[view_class] = Viewer(name, viewer.groups)
        return view_class

    def shared_class_of(self, viewer: Viewer) -> str:
        """Name the class of a viewer's groups, and open it if nobody is in it yet."""
        return self.class_of(Viewer("", viewer.groups))

    def enter(self, viewer: Viewer) -> str:
        """Let a viewer look by its own name as well; give what it is called among the classes.

        Nothing if it has no name: no rule names it.
        """
        if not viewer.name:
            return ""
        alone = "\n".join([viewer.name, *sorted(viewer.groups)])
        self._alone[alone] = viewer, self._alone.get(alone, (viewer, 0))[1] + 1
        return alone

    def leave(self, viewer: Viewer) -> None:
        """One of a viewer's sessions is over."""
        if viewer.name:
            alone = "\n".join([viewer.name, *sorted(viewer.groups)])
            count = self._alone[alone][1] - 1
            if count:
                self._alone[alone] = viewer, count
            else:
                del self._alone[alone]

    def _who(self, view_class: str) -> Viewer:
        """Give who looks: a class, or somebody alone."""
        known = self._viewers.get(view_class)
        return self._alone[view_class][0] if known is None else known

    def _current(self, base: str) -> str:
        return f"{base}\n#{self._retired[base]}" if base in self._retired else base

    def retire(self, view_class: str) -> bool:
        """Admit nobody to a class any more, because somebody with its key may no longer read it.

        False if it is retired already.
        """
        base = view_class.partition("\n#")[0]
        if self._current(base) != view_class:
            return False
        self._retired[base] = self._retired.get(base, 0) + 1
        return True

    def visible(self, context: Context, view_class: str, now: int) -> Context | None:
        """Give a context as a class may see it, or nothing."""
        return self.visible_to(context, self._who(view_class), now)

    def open_to_all(self, vid: str) -> bool:
        """Whether every class sees all of a context, whenever it looks."""
        return self._rules_of(vid) is PUBLIC

    def forms(self, context: Context, now: int) -> Collection[Rule]:
        """Give the rules by which somebody may see this context now: each is one form (0096)."""
        rules = self._rules_of(context.vid)
        return rules if rules is PUBLIC else showing(context, rules, now)

    def form_of(self, context: Context, view_class: str, now: int) -> Rule | None:
        """Give the rule that decides what a class sees of this context now; None: nothing."""
        rules = self._rules_of(context.vid)
        if rules is PUBLIC:
            return PUBLIC[0]
        return deciding(context, rules, self._who(view_class), now)

    def seen(self, context: Context, form: Rule | None, now: int) -> Context | None:
        """Give a context as a rule shows it."""
        if form is None or form is PUBLIC[0]:
            return None if form is None else context
        known = self._contexts.get(context.vid)
        return shown_by(form, context, now, self.places, None if known is None else known.since)

    def visible_to(self, context: Context, viewer: Viewer, now: int) -> Context | None:
        """Give a context as a viewer may see it, or nothing."""
        rules = self._rules_of(context.vid)
        if rules is PUBLIC:
            return context
        known = self._contexts.get(context.vid)
        if known is None:
            return visible(context, rules, viewer, now, self.places)
        return visible(context, rules, viewer, now, self.places, known.since)

    def recorded(self, context: Context, now: int) -> Context | None:
        """Give what may stand in the journal: what everybody may see, now and later."""
        rules = self._rules_of(context.vid)
        if rules is PUBLIC:
            return context
        anybody = Viewer("")
        best = deciding(context, rules, anybody, now)
        return self.visible_to(context, anybody, now) if best is not None and best.past else None

    def momentary(self, context: Context, view_class: str, now: int) -> bool:
        """Whether this class may not see since when a context lasts: its t_r is when one looked."""
        best = deciding(context, self._rules_of(context.vid), self._who(view_class), now)
        return best is not None and not best.past

    def note(
        self, context: Context, owner: str, now: int, *, before: Context | None, since: int
    ) -> None:
        """Note a context on the map, which was `before`, or whose rules have changed.

        `since` counts for a context that was not there before: when it is older than this broker,
        nobody knows what of it changed last, and its own t_r might tell.
        """
        rules, vid = self._rules_of(context.vid), context.vid
        known = self._contexts.get(vid)
        if rules is PUBLIC:
            self.forget(vid)
            return
        lasting: dict[Shape, int] = {}
        for shape in {shape_of(rule) for rule in rules if rule.past} - {WHOLE}:
            if before is None:
                lasting[shape] = since
            elif _differ(before, context, shape, self.places):
                lasting[shape] = context.t_r
            else:
                lasting[shape] = now if known is None else known.since.get(shape, now)
        self._contexts[vid] = _Restricted(subject_of(owner), lasting)

    def owns(self, viewer: Viewer, vid: str) -> bool:
        """Whether a context under rules is a viewer's own: they see all of it when they ask for it.

        Not in subscriptions: that would take a view class for each owner (decision 0090).
        """
        known = self._contexts.get(vid)
        return known is not None and known.owner == viewer.name != ""

    def forget(self, vid: str) -> None:
        """A context has left the map, or is public."""
        self._contexts.pop(vid, None)

    def changes_at(self, context: Context, now: int) -> int | None:
        """Give when time alone may next change what anybody sees of a context; None: never."""
        rules = self._rules_of(context.vid)
        return None if rules is PUBLIC else changes_at(context, rules, now)

    def restricted(self) -> Collection[str] | None:
        """Give the vids that some viewers may not see exactly; None: it may be any."""
        return self._restricted()

    def may_take(self, client: str, owner: str) -> bool:
        """Whether a client may change what another publishes: devices of one subject may."""
        return subject_of(client) == subject_of(owner)


def _differ(before: Context, after: Context, shape: Shape, places: Places | None) -> bool:
    """Whether a rule of this shape shows two states of a context differently, times apart."""
    was, now = part_of(before, shape, places), part_of(after, shape, places)
    return (was.place, was.point, was.attributes) != (now.place, now.point, now.attributes)
