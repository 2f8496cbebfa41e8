"""View classes: who shares one, and who comes after one has ended."""

import msgspec
import pytest

from roamcast.errors import LimitError
from roamcast.identity.policy import PUBLIC, RuleBook, RulesPolicy, is_own, subject_of
from roamcast.identity.rules import Rule, Viewer, showing, visible
from roamcast.model.contexts import Context


def policy() -> RulesPolicy:
    return RulesPolicy(lambda _vid: (), Viewer)


def test_whoever_is_in_the_same_groups_shares_a_class_until_it_ends() -> None:
    made = policy()
    first = made.class_of(Viewer("ada", frozenset({"staff"})))
    assert made.class_of(Viewer("bob", frozenset({"staff"}))) == first
    assert made.class_of(Viewer("bob")) != first
    assert made.retire(first)
    assert not made.retire(first)
    assert made.class_of(Viewer("bob", frozenset({"staff"}))) != first


def test_no_name_of_a_group_looks_like_a_class_that_took_anothers_place() -> None:
    for group in ("~1", "1", "\x7e1"):
        made = policy()
        made.retire(made.class_of(Viewer("ada")))
        alone, grouped = Viewer("bob"), Viewer("cy", frozenset({group}))
        assert made.class_of(alone) != made.class_of(grouped)
        before = made.class_of(grouped)
        assert made.retire(before)
        assert made.class_of(grouped) != before


def naming(*viewers: str) -> tuple[Rule, ...]:
    return (Rule(viewers=viewers, precision="exact"),)


def test_a_class_without_names_sees_nothing_that_a_rule_shows_one_name() -> None:
    made = RulesPolicy(lambda _vid: naming("ada"), Viewer)
    shared = made.class_of(Viewer("ada", frozenset({"staff"})))
    context = Context("v", "c/b", None, {}, 1)
    assert made.visible(context, shared, 5) is None
    assert made.visible_to(context, Viewer("ada"), 5) is not None
    apart = RulesPolicy(lambda _vid: naming("ada"), Viewer, names=lambda name: name == "ada")
    assert apart.visible(context, apart.class_of(Viewer("ada")), 5) is not None
    assert apart.visible(context, apart.class_of(Viewer("bob")), 5) is None
    assert apart.view_class("ada") == apart.name_of(Viewer("ada"))


def test_what_is_public_is_shown_as_it_is_and_time_changes_nothing() -> None:
    context = Context("v", "c/b", None, {}, 1, 9)
    public = RulesPolicy(lambda _vid: PUBLIC, Viewer)
    assert public.visible_to(context, Viewer("bob"), 5) is context
    assert public.changes_at(context, 5) is None
    for now in (0, 5, 9):  # and its rules mean the same, the past included
        assert visible(context, PUBLIC, Viewer("bob"), now) == context
    assert RulesPolicy(lambda _vid: naming("*"), Viewer).changes_at(context, 5) == 9


def test_every_way_tells_since_when_a_part_lasts_and_nothing_of_a_hidden_move() -> None:
    floor = Rule(viewers=("*",), precision="floor", past=True)
    made = RulesPolicy(lambda _vid: (floor,), Viewer)
    shared = made.class_of(Viewer("bob"))

    def seen(context: Context, now: int) -> set[int]:
        form = made.form_of(context, shared, now)
        views = (
            made.seen(context, form, now),
            made.visible(context, shared, now),
            made.visible_to(context, Viewer("bob"), now),
            *(made.seen(context, one, now) for one in made.forms(context, now)),
        )
        return {view.t_r for view in views if view is not None}

    here = Context("v", "c/b/1/r1", None, {}, 10)
    assert seen(here, 11) == {10}  # before the map has it
    made.note(here, "ada", 11, before=None, since=10)
    hidden = Context("v", "c/b/1/r2", None, {}, 20)
    made.note(hidden, "ada", 21, before=here, since=20)
    assert seen(hidden, 22) == {10}
    shown = Context("v", "c/b/2/r2", None, {}, 30)
    made.note(shown, "ada", 31, before=hidden, since=30)
    assert seen(shown, 32) == {30}


def test_the_journal_gets_what_everybody_may_see_now_and_later() -> None:
    context = Context("v", "c/b/1/r1", None, {"mood": "tired"}, 10)
    floor = Rule(viewers=("*",), precision="floor", past=True, attributes=())
    present = Rule(viewers=("*",), precision="exact")
    for rules, place in (
        (PUBLIC, "c/b/1/r1"),
        ((floor,), "c/b/1"),
        ((present,), None),
        (naming("ada"), None),
        ((), None),
    ):
        made = RulesPolicy(lambda _vid, rules=rules: rules, Viewer)  # type: ignore[misc]
        recorded = made.recorded(context, 11)
        assert (recorded and recorded.place) == place
        assert (recorded and recorded.attributes) == {
            None: None, "c/b/1": {}, "c/b/1/r1": context.attributes,
        }[place]  # fmt: skip


def test_a_rule_that_hides_is_no_form_to_see_something_in() -> None:
    hides, shows = (Rule(viewers=("*",), precision=one) for one in ("hidden", "exact"))
    context = Context("v", "c/b", None, {}, 1)
    assert showing(context, (hides, shows), 5) == [shows]


def test_a_part_lasts_since_its_rule_began_though_an_earlier_rule_showed_it() -> None:
    floor = (Rule(viewers=("*",), precision="floor", past=True),)
    rules = {"v": floor}
    made = RulesPolicy(rules.__getitem__, Viewer)
    context, bob = Context("v", "c/b/1/r1", None, {}, 10), Viewer("bob")
    made.note(context, "ada", 11, before=None, since=10)
    assert made.owns(Viewer("ada"), "v")
    rules["v"] = PUBLIC
    made.note(context, "ada", 20, before=context, since=10)
    assert not made.owns(Viewer("ada"), "v")
    rules["v"] = floor
    made.note(context, "ada", 30, before=context, since=10)
    view = made.visible_to(context, bob, 31)
    assert view is not None
    assert view.t_r == 30


@pytest.mark.parametrize(
    ("vid", "own"),
    [
        ("ada", True),
        ("ada:badge", True),
        ("adam", False),
        ("bob:badge", False),
        ("x" * 22, True),
        ("x" * 21, False),
        ("x" * 21 + ":", False),
    ],
)
def test_a_vid_is_ones_own_by_its_beginning_or_if_nobody_can_guess_it(vid: str, own: bool) -> None:
    assert is_own("ada#phone", vid) is own


def test_classes_have_a_limit_and_empty_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roamcast.identity.policy.VIEW_CLASSES_MAX", 2)
    used: set[str] = set()
    made = RulesPolicy(lambda _vid: (), Viewer, used=lambda: used)
    a, b, c = (Viewer("", frozenset({group})) for group in "abc")
    used |= {made.class_of(a), made.class_of(b)}
    assert made.class_of(a) in used
    with pytest.raises(LimitError):
        made.class_of(c)
    used.discard(made.class_of(a))
    assert made.class_of(c) == made.name_of(c)
    bare = RulesPolicy(lambda _vid: (), Viewer)
    bare.class_of(a)
    bare.class_of(b)
    with pytest.raises(LimitError):
        bare.class_of(c)


def test_a_class_ends_again_and_again_under_new_names() -> None:
    made = policy()
    ada = Viewer("ada")
    names = []
    for _ in range(3):
        names.append(made.class_of(ada))
        assert made.retire(names[-1])
        assert not any(made.retire(name) for name in names)
    assert len({*names, made.class_of(ada)}) == 4


def test_devices_of_one_subject_may_change_what_the_others_publish() -> None:
    made = policy()
    assert made.may_take("ada#1", "ada#2")
    assert not made.may_take("ada#1", "bob#1")
    assert subject_of("ada#1#2") == "ada"


def test_a_book_gives_own_rules_else_the_default() -> None:
    book = RuleBook()
    assert (book.public, book.of("v"), book.own("v")) == (True, PUBLIC, None)
    assert list(book.restricted() or ()) == []
    assert book.set("v", naming("bob", "*", "ann")) == ["ann", "bob"]
    assert (book.of("v"), book.own("v")) == (naming("bob", "*", "ann"),) * 2
    assert list(book.restricted() or ()) == ["v"]
    assert [book.names(name) for name in ("bob", "*", "ann")] == [True, False, True]
    assert book.set("w", naming("bob")) == []
    book.set("v", None)
    assert (book.names("ann"), book.names("bob"), book.own("v")) == (False, True, None)
    book.set("w", ())
    assert (book.names("bob"), book.own("w")) == (False, ())
    private = RuleBook(naming("eve"))
    assert not private.public
    assert private.restricted() is None
    assert private.names("eve")
    with pytest.raises(LimitError):
        RuleBook(naming(""))
    with pytest.raises(LimitError):
        book.set("w", naming(""))
    assert book.own("w") == ()
    assert RulesPolicy(book.of, Viewer, restricted=private.restricted).restricted() is None
    assert RulesPolicy(book.of, Viewer).restricted() is None
    assert list(RulesPolicy(book.of, Viewer, restricted=book.restricted).restricted() or ()) == [
        "w"
    ]


def test_a_vid_is_public_by_its_own_rules_or_else_by_the_default() -> None:
    book, private = RuleBook(), RuleBook(naming("eve"))
    for one in (book, private):
        one.set("open", PUBLIC)
        one.set("shut", ())
        assert (one.is_public("open"), one.is_public("shut")) == (True, False)
        assert one.encoded("open") == msgspec.msgpack.encode(PUBLIC)
        assert one.encoded("shut") == msgspec.msgpack.encode(())
        assert one.encoded("none") is None
    assert (book.is_public("none"), private.is_public("none")) == (True, False)


def test_a_book_knows_which_vids_rules_name_a_viewer() -> None:
    book = RuleBook(naming("eve"))
    book.set("v", naming("bob", "ann"))
    book.set("w", naming("bob"))
    assert book.naming("eve") is None  # the default may name it for any vid
    assert [set(book.naming(name) or ()) for name in ("bob", "ann", "cy")] == [
        {"v", "w"}, {"v"}, set(),
    ]  # fmt: skip
    assert (book.names_of("v"), book.names_of("x")) == ({"bob", "ann"}, {"eve"})


def test_the_public_form_shows_a_context_as_it_is_and_no_form_nothing() -> None:
    made = RulesPolicy(lambda vid: PUBLIC if vid == "v" else (), Viewer)
    shared = made.class_of(Viewer("bob"))
    for vid, shown in (("v", True), ("w", False)):
        context = Context(vid, "c/b", None, {}, 1)
        assert made.open_to_all(vid) is shown
        form = made.form_of(context, shared, 5)
        assert (form is PUBLIC[0]) is shown
        assert made.seen(context, form, 5) is (context if shown else None)


def test_who_looks_by_name_is_known_until_their_last_session_is_over() -> None:
    made = RulesPolicy(lambda _vid: naming("ada"), Viewer)
    context, ada = Context("v", "c/b", None, {}, 1), Viewer("ada", frozenset({"staff"}))
    nobody = Viewer("", frozenset({"staff"}))
    assert made.enter(nobody) == ""
    made.leave(nobody)  # it has not come in
    alone = made.enter(ada)
    assert made.enter(ada) == alone
    made.leave(ada)
    assert made.visible(context, alone, 5) is not None
    made.leave(ada)
    with pytest.raises(KeyError):
        made.visible(context, alone, 5)


def test_below_their_limit_empty_classes_stay() -> None:
    made = RulesPolicy(lambda _vid: naming("*"), Viewer, used=set)
    first = made.class_of(Viewer("", frozenset({"a"})))
    made.class_of(Viewer("", frozenset({"b"})))
    assert made.visible(Context("v", "c/b", None, {}, 1), first, 5) is not None


@pytest.mark.parametrize(
    ("rules", "momentary"),
    [
        ((), False),
        ((Rule(viewers=("*",), precision="exact"),), True),
        ((Rule(viewers=("*",), precision="exact", past=True),), False),
    ],
    ids=["hidden", "now", "with its past"],
)
def test_only_what_is_shown_without_its_past_is_momentary(
    rules: tuple[Rule, ...], momentary: bool
) -> None:
    made = RulesPolicy(lambda _vid: rules, Viewer)
    seen = made.class_of(Viewer("ada"))
    assert made.momentary(Context("v", "c/b", None, {}, 1), seen, 5) is momentary


def test_a_coarse_place_lasts_since_that_place_began_and_not_the_true_one() -> None:
    rules = (Rule(viewers=("*",), precision="building", past=True),)
    made = RulesPolicy(lambda _vid: rules, Viewer)
    states = [
        Context("v", place, None, {}, t_r)
        for place, t_r in (
            ("c/b1/f1/r", 10),
            ("c/b1/f2/r", 20),
            ("c/b2/f1/r", 30),
            ("c/b2/f2/r", 40),
        )
    ]
    before, lasts = None, []
    for state in states:
        made.note(state, "ada", state.t_r, before=before, since=5)
        shown = made.visible_to(state, Viewer("bob"), state.t_r)
        assert shown is not None
        lasts.append((shown.place, shown.t_r))
        before = state
    assert lasts == [("c/b1", 5), ("c/b1", 5), ("c/b2", 30), ("c/b2", 30)]


def test_a_context_under_rules_is_its_owners_and_nobody_elses() -> None:
    made = RulesPolicy(lambda vid: PUBLIC if vid == "public" else (), Viewer)
    for vid, owner in (("v", "ada#phone"), ("public", "ada"), ("nobody's", "")):
        made.note(Context(vid, "c/b", None, {}, 1), owner, 1, before=None, since=1)
    assert made.owns(Viewer("ada"), "v")
    assert not made.owns(Viewer("bob"), "v")
    assert not made.owns(Viewer(""), "nobody's")
    assert not made.owns(Viewer("ada"), "public")
    made.forget("v")
    assert not made.owns(Viewer("ada"), "v")
