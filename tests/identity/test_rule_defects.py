"""Planted privacy defects, each by its name: the oracle finds every one of them."""

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roamcast.broker import Broker
from roamcast.identity import rules as module
from roamcast.identity.policy import RulesPolicy
from roamcast.identity.rules import Hours, Rule, Viewer
from roamcast.model.contexts import Context
from roamcast.model.nearest import nearest
from tests.identity.rule_cases import MINUTE, NOON, differs
from tests.identity.test_oracle import PATHS, walk
from tests.planting import refuted

SOURCE = Path(module.__file__).read_text()
DECIDED = "    best = deciding(context, rules, viewer, now)\n"
APPLY = "[r for r in rules if _names(r, viewer) and _applies(r, context, now)]"


def of_all(rules: str) -> str:
    """Show the attributes that any of some rules names."""
    every = f"any(r.attributes is None for r in {rules})"
    named = f"tuple(name for r in {rules} for name in r.attributes)"
    attributes = f"None if {every} else {named}"
    replaced = f"best and msgspec.structs.replace(best, attributes={attributes})"
    return f"{DECIDED}    best = {replaced}\n"


PRESENCE_TELLS = """if place is None or precision == "exact":
        return place
    if precision not in DEPTHS:
        return place.split("/")[0]
    if False:"""

DEFECTS = {
    # three that an audit planted and no test noticed
    "attributes are the union of all rules": (
        DECIDED,
        of_all(APPLY),
    ),
    "hours that hide do not hide the past": (
        'if rule.precision == "hidden":\n        return True',
        "if False:\n        return True",
    ),
    "the past is shown though it ends after the hours": (
        "span is not None and context.end <= span[1]",
        "span is not None",
    ),
    # as many again, and more
    "attributes of the first rule": (
        DECIDED,
        of_all(f"{APPLY}[:1]"),
    ),
    "attributes of a rule for others": (
        DECIDED,
        of_all("rules"),
    ),
    "a rule that hides counts only if it comes first": (
        'any(rule.precision == "hidden" for rule in shown)',
        'shown[:1] and shown[0].precision == "hidden"',
    ),
    "a rule that hides is one among others": (
        'if any(rule.precision == "hidden" for rule in shown) or not shown',
        "if not shown",
    ),
    "the coarsest rule decides": ("return max(shown", "return min(shown"),
    "of equal rules the one without a past decides": (
        "LEVELS.index(rule.precision), rule.past)",
        "LEVELS.index(rule.precision), not rule.past)",
    ),
    "since when is told without a rule for the past": (
        "    if not best.past:\n        t_r = max(context.t_r, now)\n",
        "",
    ),
    "since when is told of the time before the hours": ("max(t_r, span[0])", "t_r"),
    "a coarse place with the exact point": (
        "truncated(place, precision, places), None",
        "truncated(place, precision, places), point",
    ),
    "presence shows who it is": (
        'if rule.precision == "presence" and rule.attributes is None:',
        "if False:",
    ),
    "an exact place at a coarse precision": (
        "place, point = truncated(place, precision, places), None",
        "point = None",
    ),
    "presence tells the region": ("if place is None or precision not in DEPTHS:", PRESENCE_TELLS),
    "a finer kind is taken where its own is missing": (
        "if DEPTHS[kind] > DEPTHS[precision]:",
        "if False:",
    ),
    "a floor inside a room is shown, and the room with it": (
        "                break\n",
        "                continue\n",
    ),
    "an office is no room": ('elif precision == "room" and 0', "elif 0 > 1 and 0"),
    "a desk is a room": ('0 < depth < DEPTHS["room"]', "0 < depth"),
    "an office is a floor, too": ('elif precision == "room" and 0', "elif 0"),
    "one segment more than the precision": ("keep = min(", "keep = 1 + min("),
    "groups name nobody": (
        "any(group in named for group in viewer.groups)",
        "False",
    ),
    "a name is compared by its beginning": (
        "viewer.name in named",
        "any(viewer.name.startswith(name[:1]) for name in named)",
    ),
    "the last minute belongs to the hours": (
        "<= within < self.end_min * _MINUTE",
        "<= within <= self.end_min * _MINUTE",
    ),
    "the first minute does not": (
        "self.start_min * _MINUTE <= within",
        "self.start_min * _MINUTE < within",
    ),
    "the week begins on Sunday": ("weekday = (day + 3) % 7", "weekday = (day + 4) % 7"),
    "hours are west of UTC": ("local = instant + self", "local = instant - self"),
    "the span is told in local time": (
        "midnight = day * _DAY - self.offset_min * _MINUTE\n        return",
        "midnight = day * _DAY\n        return",
    ),
    "hours are looked at only for the past": (
        "return rule.hours is None or rule.hours.span(now) is not None",
        "return True",
    ),
    "the past without a rule for it": (
        "if not rule.past:\n        return False",
        "if False:\n        return False",
    ),
    "a context lasts still when it ends": ("<= now < context.end", "<= now <= context.end"),
    "a context lasts before it begins": ("context.t_r <= now <", "0 <= now <"),
}


def planted(old: str, new: str, patch: pytest.MonkeyPatch) -> Callable[..., Context | None]:
    assert SOURCE.count(old) == 1, f"rules.py has changed: plant {old!r} anew"
    made = types.ModuleType("roamcast.identity.rules")
    exec(compile(SOURCE.replace(old, new), module.__file__, "exec"), made.__dict__)
    patch.setattr(Hours, "span", made.__dict__["Hours"].span)  # the cases have the true class
    found: Callable[..., Context | None] = made.__dict__["visible"]
    return found


def test_without_a_defect_nothing_differs() -> None:
    assert not differs(module.visible)


@pytest.mark.parametrize("name", DEFECTS)
def test_the_oracle_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert differs(planted(*DEFECTS[name], monkeypatch))


# Defects of the paths to a context, with the rules themselves right.
PERSON = Context("v@t", "c/b/w/2/7", (1.25, 0.5), {"role": "guest", "age": 5}, NOON - MINUTE)
COARSE = [Rule(viewers=("*",), precision="floor", attributes=("age",))]
TO_NOON = [Rule(viewers=("*",), precision="exact", hours=Hours(end_min=721))]
right = RulesPolicy.visible
right_form = RulesPolicy.seen


def exact_form(self: Any, context: Context, form: Any, now: int) -> Context | None:
    seen = right_form(self, context, form, now)
    return None if seen is None else context


def with_place(seen: Context | None, context: Context) -> Context | None:
    if seen is None:
        return None
    return Context(seen.vid, context.place, seen.point, seen.attributes, seen.t_r, seen.t_d)


def exact_place_in_forms(self: Any, context: Context, form: Any, now: int) -> Context | None:
    return with_place(right_form(self, context, form, now), context)


def exact_place_in_sets(self: Any, context: Context, view_class: str, now: int) -> Context | None:
    return with_place(right(self, context, view_class, now), context)


def get_anything(self: Any, viewer: Viewer, vid: str, now: int) -> Context | None:
    known = self._server.map.contexts.get(vid)
    return None if known is None else known.context


def find_by_what_is_hidden(self: Any, viewer: Viewer, wanted: Any, now: int) -> list[Context]:
    known = [
        one.context for one in self._server.map.contexts.values() if wanted.matches(one.context)
    ]
    seen = [self._policy.visible_to(context, viewer, now) for context in known]
    return [one for one in seen if one is not None]


def nearest_by_true_points(
    self: Any, viewer: Any, to: Any, wanted: Any, count: int, now: int
) -> Any:
    yield  # a question goes in slices
    return nearest(
        [one.context for one in self._server.map.contexts.values()], to, wanted, count=count
    )


PATH_DEFECTS: dict[str, tuple[Any, str, Any, Any, str]] = {
    "current sets and changes are exact": (
        RulesPolicy,
        "seen",
        exact_form,
        COARSE,
        "age > 4",
    ),
    "coarse places are exact in current sets": (
        RulesPolicy,
        "visible",
        exact_place_in_sets,
        COARSE,
        "age > 4",
    ),
    "coarse places are exact in changes": (
        RulesPolicy,
        "seen",
        exact_place_in_forms,
        COARSE,
        "age > 4",
    ),
    "an item's page shows everything": (Broker, "get", get_anything, COARSE, "age > 4"),
    "a count tells of hidden attributes": (
        Broker,
        "find",
        find_by_what_is_hidden,
        COARSE,
        "role = 'guest'",
    ),
    "a query for a room finds whom only the floor shows": (
        Broker,
        "find",
        find_by_what_is_hidden,
        COARSE,
        "place = 'c/b/w/2/7'",
    ),
    "nearest goes by true points": (Broker, "nearest", nearest_by_true_points, COARSE, "age > 4"),
    "hours end and nobody is told": (
        RulesPolicy,
        "changes_at",
        lambda *_: None,
        TO_NOON,
        "age > 4",
    ),
}


@pytest.mark.parametrize("name", PATH_DEFECTS)
def test_a_path_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, wrong, rules, text = PATH_DEFECTS[name]
    stops = [NOON, NOON + 2 * MINUTE]
    walk([(PERSON, rules)], text, stops, PATHS)
    monkeypatch.setattr(owner, method, wrong)
    with refuted():
        walk([(PERSON, rules)], text, stops, PATHS)
