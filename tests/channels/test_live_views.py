"""The law: questions over views answer as the reference evaluator on each view."""

import random

import pytest
from msgspec import structs

from roamcast.channels.server import live_views
from roamcast.channels.server.live_views import LiveViews
from roamcast.errors import FilterError
from roamcast.identity.policy import PUBLIC, RuleBook, RulesPolicy
from roamcast.identity.rules import EVERYONE, LEVELS, Hours, Rule, Viewer
from roamcast.matching.live.slices import run
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.nearest import nearest
from tests import strategies

VIEWERS = [Viewer("ann"), Viewer("bob"), Viewer("cyd", frozenset({"staff"}))]
HOUR = 3_600_000_000


def _some_rules(draw: random.Random) -> tuple[Rule, ...]:
    return tuple(
        Rule(
            viewers=(draw.choice([EVERYONE, "ann", "staff"]),),
            precision=draw.choice(LEVELS),
            hours=draw.choice([None, Hours(start_min=0, end_min=draw.randrange(1, 1_440))]),
            past=draw.random() < 0.5,
            attributes=draw.choice([None, (), ("a", "b")]),
        )
        for _ in range(draw.randrange(3))
    )


def draw_small(seed: int) -> int:
    """Some maps begin small, and are walked."""
    return (0, 0, 10)[seed % 3]


def _policy(book: RuleBook) -> RulesPolicy:
    return RulesPolicy(book.of, Viewer, names=book.names, restricted=book.restricted)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("default", [PUBLIC, ()], ids=["public", "hidden"])
def test_a_question_is_about_views(
    seed: int, default: tuple[Rule, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_views, "CLASSES_MAX", 2)  # indexes come and go
    monkeypatch.setattr(live_views, "SMALL_MAX", draw_small(seed))
    draw = random.Random(seed)
    book = RuleBook(default)
    policy = _policy(book)
    known: dict[str, Context] = {}
    live = LiveViews(known.get, known.keys, policy)
    now = 1_763_200_000_000_000
    for _ in range(6):
        for _ in range(30):
            vid = f"v{draw.randrange(25)}"
            match draw.randrange(4):
                case 0:
                    known.pop(vid, None)
                case 1:
                    book.set(vid, draw.choice([None, _some_rules(draw)]))
                    live.reconsider(vid)
                case _:
                    context = strategies.some_context(draw, vid)
                    begun = now + draw.randrange(-HOUR, HOUR)
                    known[vid] = structs.replace(context, t_r=begun, t_d=None)
            live.note(vid)
        now += draw.randrange(9 * HOUR)
        for _ in range(6):
            try:
                wanted = Filter.parse(strategies.some_filter(draw, depth=2))
            except FilterError:
                continue
            for viewer in VIEWERS:
                _check(live, policy, known, wanted, viewer, now)
    for vid in [*known]:
        del known[vid]
        live.note(vid)
    for viewer in VIEWERS:
        _check(live, policy, known, Filter.parse("true"), viewer, now)
    assert all(used <= bound for used, bound in live.occupancy().values())


def _check(
    live: LiveViews,
    policy: RulesPolicy,
    known: dict[str, Context],
    wanted: Filter,
    viewer: Viewer,
    now: int,
) -> None:
    def seen(context: Context, now: int) -> Context | None:
        return policy.visible_to(context, viewer, now)

    views = [view for vid in sorted(known) if (view := seen(known[vid], now)) is not None]
    expected = [view for view in views if wanted.matches(view)]
    name = policy.name_of(viewer)
    assert live.price(name, wanted, now).contexts >= len(expected)
    assert run(live.every(name, seen, wanted, now)) == expected
    assert run(live.count(name, seen, wanted, now)) == len(expected)
    page = run(live.page(name, seen, wanted, now, "v1", 3))
    after = [view for view in expected if view.vid > "v1"]
    assert (page.contexts, page.more) == (after[:3], len(after) > 3)
    for limit in (len(after), len(after) + 1):
        page = run(live.page(name, seen, wanted, now, "v1", max(limit, 1)))
        assert (page.contexts, page.more) == (after, False)
    to = (8.5, 48.5)
    found = run(live.nearest(name, seen, wanted, now, to, 3))
    assert found == nearest(expected, to, wanted, count=3)


@pytest.mark.parametrize("small", [0, 10])
def test_a_hidden_attribute_does_not_decide_who_is_found(
    small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_views, "SMALL_MAX", small)
    book = RuleBook(PUBLIC)
    policy = _policy(book)
    known = {"v": Context("v", "a/b", None, {"salary": 5, "type": "person"})}
    book.set("v", [Rule(viewers=(EVERYONE,), precision="exact", attributes=("type",))])
    live = LiveViews(known.get, known.keys, policy)
    live.note("v")
    ann = Viewer("ann")

    def seen(context: Context, now: int) -> Context | None:
        return policy.visible_to(context, ann, now)

    for text, count in (("salary > 4", 0), ("salary IS NULL", 1), ("type = 'person'", 1)):
        assert run(live.count(policy.name_of(ann), seen, Filter.parse(text), 0)) == count


def test_rules_that_come_move_a_context_out_of_the_shared_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_views, "SMALL_MAX", 0)
    book = RuleBook(PUBLIC)
    policy = _policy(book)
    known = {"v": Context("v", "a/b", None, {"type": "person"})}
    live = LiveViews(known.get, known.keys, policy)
    live.note("v")
    everything = Filter.parse("true")

    def shown() -> int:
        bob = Viewer("bob")
        return run(
            live.count(
                policy.name_of(bob), lambda c, now: policy.visible_to(c, bob, now), everything, 0
            )
        )

    assert shown() == 1
    book.set("v", [Rule(viewers=("ann",), precision="exact")])
    live.reconsider("v")
    assert shown() == 0
    book.set("v", None)
    live.reconsider("v")
    assert shown() == 1


def test_rules_that_come_while_a_question_runs_hide_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_views, "SMALL_MAX", 0)
    monkeypatch.setattr(live_views, "REFRESH_SLICE", 1)
    book = RuleBook(PUBLIC)
    policy = _policy(book)
    known = {f"v{n}": Context(f"v{n}", "a/b", None, {"type": "person"}) for n in range(3)}
    live = LiveViews(known.get, known.keys, policy)
    bob = Viewer("bob")

    def seen(context: Context, now: int) -> Context | None:
        return policy.visible_to(context, bob, now)

    question = live.every(policy.name_of(bob), seen, Filter.parse("true"), 0)
    next(question)  # one context is indexed
    for vid in known:
        book.set(vid, [Rule(viewers=("ann",), precision="exact")])
        live.reconsider(vid)
    assert run(question) == []


def test_changes_that_nobody_asks_about_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_views, "SMALL_MAX", 0)
    monkeypatch.setattr(live_views, "STALE_MIN", 10)
    policy = _policy(RuleBook(PUBLIC))
    known = {"here": Context("here", "a/b", None, {})}
    live = LiveViews(known.get, known.keys, policy)
    bob = Viewer("bob")

    def found() -> list[Context]:
        everything = Filter.parse("true")
        return run(live.every(policy.name_of(bob), lambda c, _: c, everything, 0))

    assert found() == [known["here"]]
    for number in range(12):  # 10, and 2 for the context on the map
        live.note(f"came-and-went-{number}")
    assert live.stale is not None
    assert len(live.stale) == 12
    live.note("one-more")
    assert live.stale is None
    assert found() == [known["here"]]


def test_views_are_made_anew_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_views, "REFRESH_SLICE", 2)
    known = {f"v{n}": Context(f"v{n}", "a/b") for n in range(5)}
    views = live_views.ClassViews(known)
    policy = _policy(RuleBook(PUBLIC))
    assert len(list(views.refresh(known.get, policy, lambda context, _: context, 0))) == 2
    assert len(views.index) == 5


def test_after_clearing_questions_start_from_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_views, "SMALL_MAX", 0)
    book = RuleBook(PUBLIC)
    book.set("ruled", [Rule(viewers=(EVERYONE,), precision="exact")])
    policy = _policy(book)
    known = {vid: Context(vid, "a/b") for vid in ("open", "ruled")}
    live = LiveViews(known.get, known.keys, policy)
    ann, wanted = Viewer("ann"), Filter.parse("true")

    def count() -> int:
        return run(
            live.count(
                policy.name_of(ann), lambda one, now: policy.visible_to(one, ann, now), wanted, 0
            )
        )

    assert count() == 2
    known.clear()  # and nobody is told
    live.clear()
    assert count() == 0
