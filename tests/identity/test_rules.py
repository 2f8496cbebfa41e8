"""Privacy rules: nothing finer than allowed ever comes out."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import InputError, LimitError
from roamcast.identity.rules import (
    DAYS_MAX,
    DEPTHS,
    FEW,
    LEVELS,
    MINUTES_A_DAY,
    RULES_MAX,
    VIEWER_LENGTH_MAX,
    VIEWERS_MAX,
    Hours,
    Rule,
    Viewer,
    both_show,
    changes_at,
    check_rules,
    decode_rules,
    truncated,
    visible,
)
from roamcast.model.buildings import building
from roamcast.model.contexts import ATTRIBUTES_MAX, Context, path_within
from roamcast.model.places import Place, Places
from tests.identity.rule_cases import differs

HOUR = 3_600_000_000
PLACES = Places([Place("campus", "region"), *building("campus/b35", 2)])
ROOM = PLACES.of_kind("office")[0]
BOB = Viewer("bob", frozenset({"legal"}))

hours = st.none() | st.builds(
    Hours,
    days=st.sets(st.integers(0, 6)).map(lambda days: tuple(sorted(days))),
    start_min=st.integers(0, 700),
    end_min=st.integers(701, 1440),
    offset_min=st.sampled_from([-300, 0, 60]),
)
some_rules = st.lists(
    st.builds(
        Rule,
        viewers=st.sampled_from([("*",), ("bob",), ("legal",), ("cid",), ()]),
        precision=st.sampled_from(LEVELS),
        hours=hours,
        past=st.booleans(),
        attributes=st.sampled_from([None, (), ("role",)]),
    ),
    max_size=5,
)
some_contexts = st.builds(
    lambda place, t_r, lasts: Context(
        "v@t", place, (1.0, 2.0), {"role": "guest", "age": 5}, t_r, t_r + lasts if lasts else None
    ),
    st.sampled_from([None, "campus", "x/y/z/1/2", *PLACES.paths[:12], ROOM]),
    st.integers(0, 200).map(lambda n: n * HOUR),
    st.sampled_from([0, HOUR, 30 * HOUR]),
)


@given(some_contexts, some_rules, st.integers(0, 240), st.integers(1, 10_000))
def test_until_the_clock_may_change_it_everybody_sees_the_same(
    context: Context, rules: list[Rule], hour: int, later_min: int
) -> None:
    now = hour * HOUR
    later = now + later_min * HOUR // 60
    at = changes_at(context, rules, now)
    assert at is None or at > now
    if at is not None and later >= at:
        later = at - 1

    def seen(instant: int) -> Context | None:
        found = visible(context, rules, BOB, instant, PLACES)
        return None if found is None else msgspec.structs.replace(found, t_r=0)

    assert seen(later) == seen(now)


@given(hours.filter(lambda one: one is not None and one.days), st.integers(0, 20_000))
def test_an_hours_next_edge_is_the_first_minute_that_differs(given_: Hours, minute: int) -> None:
    now = minute * HOUR // 60
    edge = given_.next_edge(now)
    assert edge is not None
    after = now
    same = given_.span(now) is None
    while (given_.span(after) is None) is same and after - now < 8 * 24 * HOUR:
        after += HOUR // 60
    # The end of a day and the beginning of the next are edges, too: never later than a difference.
    assert now < edge <= after


@given(some_contexts, some_rules, st.integers(0, 240), st.booleans())
@settings(max_examples=400)
def test_nothing_finer_than_allowed_ever_comes_out(
    context: Context, rules: list[Rule], now_h: int, with_places: bool
) -> None:
    now = now_h * HOUR
    shown = visible(context, rules, BOB, now, PLACES if with_places else None)
    theirs = [r for r in rules if set(r.viewers) & {"*", "bob", "legal"}]
    if shown is None:
        return
    assert theirs
    finest = max(LEVELS.index(r.precision) for r in theirs)
    lasting = context.t_r <= now < context.end
    if LEVELS[finest] != "exact":
        assert shown.point != context.point
        if shown.place is not None:
            assert context.place is not None
            assert path_within(context.place, shown.place)
            if not with_places:
                assert shown.place.count("/") < DEPTHS[LEVELS[finest]]
    if not any(r.past for r in theirs):
        assert lasting
        assert shown.t_r == now
    if all(r.attributes is not None for r in theirs):
        assert "age" not in shown.attributes
    assert (shown.vid, shown.t_d) == (context.vid, context.t_d)
    assert shown.t_r >= context.t_r
    assert set(shown.attributes) <= set(context.attributes)


@given(some_contexts, some_rules, st.integers(0, 240))
@settings(max_examples=200)
def test_a_rule_less_never_shows_more(context: Context, rules: list[Rule], now_h: int) -> None:
    def level(of: Sequence[Rule]) -> int:
        shown = visible(context, of, BOB, now_h * HOUR)
        return (
            -1 if shown is None else len((shown.place or "").split("/")) * (shown.place is not None)
        )

    granting = [r for r in rules if r.precision != "hidden"]
    for index in range(len(granting)):
        assert level(granting[:index] + granting[index + 1 :]) <= level(granting)


def test_without_a_rule_nothing_is_shown() -> None:
    assert visible(Context("v@t", ROOM), [], BOB, 1) is None


def test_hiding_wins_over_every_other_rule() -> None:
    rules = [
        Rule(viewers=("*",), precision="exact", past=True),
        Rule(viewers=("legal",), precision="hidden"),
    ]
    assert visible(Context("v@t", ROOM), rules, BOB, 1) is None
    assert visible(Context("v@t", ROOM), rules, Viewer("cid"), 1) is not None


@pytest.mark.parametrize(
    ("precision", "place"),
    [("room", "campus/b35/2/2104"), ("floor", "campus/b35/2"), ("building", "campus/b35"),
     ("region", "campus"), ("presence", None), ("exact", "campus/b35/2/2104/desk")],
)  # fmt: skip
def test_precision_cuts_the_path(precision: str, place: str | None) -> None:
    assert truncated("campus/b35/2/2104/desk", precision, None) == place  # type: ignore[arg-type]


def test_a_known_hierarchy_cuts_by_kind_and_snaps_to_the_centre() -> None:
    rule = Rule(viewers=("*",), precision="floor")
    shown = visible(Context("v@t", ROOM, (1.0, 2.0)), [rule], BOB, 1, PLACES)
    assert shown is not None
    assert shown.place is not None
    assert PLACES[shown.place].kind == "floor"
    assert shown.point == PLACES.centre(shown.place)


@pytest.mark.parametrize(
    ("place", "precision", "shown"),
    [(ROOM, "room", ROOM), ("campus/hall", "room", "campus/hall"),
     ("campus/hall", "floor", "campus"),
     (f"{ROOM}/desk", "room", ROOM), ("campus/b35/1/wing/9", "room", "campus/b35/1/wing/9"),
     ("campus/b35/1/wing/8/desk", "room", "campus/b35/1/wing"),
     ("campus/b35/1/wing/9", "floor", "campus/b35/1"), ("sea/reef", "room", None),
     ("campus/b35/1/wing/9/loft", "floor", "campus/b35/1"),
     ("campus/b35/1/wing/9/loft", "room", "campus/b35/1/wing/9/loft")],
)  # fmt: skip
def test_a_place_of_any_other_kind_is_a_room(place: str, precision: str, shown: str | None) -> None:
    more = [
        Place("campus/hall", "hall"), Place(f"{ROOM}/desk", "desk"),
        Place("campus/b35/1/wing", "wing"), Place("campus/b35/1/wing/9", "room"),
        Place("campus/b35/1/wing/8", "office"), Place("campus/b35/1/wing/8/desk", "desk"),
        Place("sea", "ocean"), Place("sea/reef", "reef"),
        Place("campus/b35/1/wing/9/loft", "floor"),
    ]  # fmt: skip
    places = Places([*PLACES.as_given, *more])
    assert truncated(place, precision, places) == shown  # type: ignore[arg-type]


def test_working_hours_hide_the_evening_and_the_weekend() -> None:
    rule = Rule(
        viewers=("*",), precision="room", hours=Hours((0, 1, 2, 3, 4), 540, 1020), past=True
    )
    thursday_9 = 9 * HOUR
    context = Context("v@t", ROOM, t_r=thursday_9)
    assert visible(context, [rule], BOB, thursday_9 + HOUR) is not None
    assert visible(context, [rule], BOB, thursday_9 + 8 * HOUR) is None
    assert visible(context, [rule], BOB, thursday_9 + 48 * HOUR) is None
    morning = Context("v@t", ROOM, t_r=thursday_9, t_d=thursday_9 + HOUR)
    overtime = Context("v@t", ROOM, t_r=thursday_9, t_d=thursday_9 + 10 * HOUR)
    assert visible(morning, [rule], BOB, 240 * HOUR) == morning.__class__(
        "v@t", ROOM, None, {}, thursday_9, thursday_9 + HOUR
    )
    assert visible(overtime, [rule], BOB, 240 * HOUR) is None


@pytest.mark.limit("rules.rules_max", "rules.viewers_max")
def test_rules_have_limits() -> None:
    rule = Rule(viewers=("*",), precision="room")
    assert check_rules([rule] * RULES_MAX)
    with pytest.raises(LimitError):
        check_rules([rule] * (RULES_MAX + 1))
    assert check_rules([Rule(viewers=("a",) * VIEWERS_MAX, precision="room")])
    with pytest.raises(LimitError):
        check_rules([Rule(viewers=("a",) * (VIEWERS_MAX + 1), precision="room")])


@pytest.mark.parametrize(
    "wrong",
    [
        Hours(start_min=5, end_min=5),
        Hours(start_min=-1),
        Hours(end_min=1441),
        Hours(days=(7,)),
        Hours(days=(0, 7)),
        Hours(days=(-1,)),
        Hours(days=(0,) * (DAYS_MAX + 1)),
        Hours(offset_min=MINUTES_A_DAY + 1),
        Hours(offset_min=-MINUTES_A_DAY - 1),
    ],
)
def test_impossible_hours_are_refused(wrong: Hours) -> None:
    with pytest.raises((InputError, LimitError)):
        check_rules([Rule(viewers=("*",), precision="room", hours=wrong)])


class Name(str):
    """A name that counts how often it is compared with another."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("many", [1, FEW, FEW + 1, 2_000])
def test_a_viewer_is_found_among_many_without_walking_through_them(many: int) -> None:
    viewers = tuple(f"viewer-{number}" for number in range(many))
    rules = (Rule(viewers=viewers, precision="room", past=True),)
    context = Context("x", "campus/b/1/r", None, {}, 0)
    Name.compared = 0
    last, group = Viewer(Name(viewers[-1])), Viewer("eve", frozenset({Name(viewers[0])}))
    assert visible(context, rules, last, 1) == visible(context, rules, group, 1) is not None
    assert visible(context, rules, Viewer(Name("eve")), 1) is None
    assert Name.compared <= 3 * FEW
    assert decode_rules(msgspec.json.encode(rules)) == rules
    assert hash(decode_rules(msgspec.json.encode(rules))) == hash(rules)


@pytest.mark.parametrize("field", ["attribute", "viewer", "Hours", "until"])
def test_an_unknown_field_is_refused_for_it_might_have_hidden_something(field: str) -> None:
    rule = {"viewers": ["*"], "precision": "exact", field: ["type"]}
    with pytest.raises(InputError, match=f"unknown field `{field}`"):
        decode_rules(json.dumps([rule]).encode())
    hours = {"viewers": ["*"], "precision": "exact", "hours": {field: 9}}
    with pytest.raises(InputError, match=f"unknown field `{field}`"):
        decode_rules(json.dumps([hours]).encode())


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(InputError):
        check_rules([Rule(viewers=("*",), precision="desk")])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "right",
    [
        Hours(start_min=0, end_min=1),
        Hours(start_min=1439, end_min=1440),
        Hours(days=tuple(range(7))),
        Hours(days=()),
        Hours(offset_min=MINUTES_A_DAY),
        Hours(offset_min=-MINUTES_A_DAY),
    ],
)
def test_hours_at_their_limits_are_taken(right: Hours) -> None:
    rules = [Rule(viewers=("*",), precision="room", hours=right)]
    assert check_rules(rules) is rules
    after = Rule(viewers=("",), precision="room")
    for first in (rules, [Rule(viewers=("*",), precision="room")]):
        with pytest.raises(LimitError):
            check_rules([*first, after])


@pytest.mark.limit("rules.viewer_length_max", "rules.attributes_max")
def test_names_and_attributes_have_limits() -> None:
    for length in (1, VIEWER_LENGTH_MAX):
        assert check_rules([Rule(viewers=("v" * length,), precision="room")])
    for length in (0, VIEWER_LENGTH_MAX + 1):
        with pytest.raises(LimitError):
            check_rules([Rule(viewers=("ok", "v" * length), precision="room")])
    names = tuple(f"a{number}" for number in range(ATTRIBUTES_MAX + 1))
    assert check_rules([Rule(viewers=(), precision="room", attributes=names[1:])])
    with pytest.raises(LimitError):
        check_rules([Rule(viewers=(), precision="room", attributes=names)])


def test_rules_are_read_from_json_with_integers_written_as_floats() -> None:
    body = b'[{"viewers": ["*"], "precision": "room", "hours": {"start_min": 60.0, "days": [1.0]}}]'
    wanted = Rule(viewers=("*",), precision="room", hours=Hours((1,), start_min=60))
    assert decode_rules(body) == (wanted,)
    for wrong in (b"[", b"\xff", b'[{"viewers": ["*"]}]', body.replace(b"60.0", b"60.5")):
        with pytest.raises(InputError):
            decode_rules(wrong)
    with pytest.raises(InputError):
        decode_rules(body.replace(b"60.0", b"1440"))  # begins when it ends
    for text in (b"null", b"{}", b"[" * 5_000 + b"]" * 5_000):
        with pytest.raises(InputError):
            decode_rules(text)


def test_hours_without_a_day_have_no_edge() -> None:
    assert Hours(days=()).next_edge(5 * HOUR) is None
    only_today = Hours(days=(3,), start_min=60, end_min=120)  # 1 January 1970 was a Thursday
    assert only_today.next_edge(0) == HOUR
    assert only_today.next_edge(HOUR) == 2 * HOUR
    assert only_today.next_edge(2 * HOUR) == (7 * 24 + 1) * HOUR
    assert Hours(days=(3,), offset_min=60).next_edge(0) == 23 * HOUR
    assert Hours(days=(2,), offset_min=-MINUTES_A_DAY).next_edge(0) == 24 * HOUR  # still Wednesday


def test_a_beginning_and_an_end_are_changes_even_without_hours() -> None:
    context = Context("v@t", ROOM, t_r=2 * HOUR, t_d=3 * HOUR)
    assert [changes_at(context, [], now * HOUR) for now in (1, 2, 3)] == [2 * HOUR, 3 * HOUR, None]
    assert changes_at(Context("v@t", ROOM, t_r=HOUR), [], HOUR) is None
    day = Rule(viewers=(), precision="room", hours=Hours(start_min=60, end_min=120))
    assert changes_at(context, [day], 0) == HOUR
    assert changes_at(context, [day], 2 * HOUR) == 3 * HOUR


def test_the_oracle_sees_the_same_in_thousands_of_cases() -> None:
    assert not differs(visible)


def test_hours_that_say_nothing_are_every_minute_of_every_day() -> None:
    for day in range(7):
        begin = day * 24 * HOUR
        for instant in (begin, begin + 24 * HOUR - 1):
            assert Hours().span(instant) == (begin, begin + 24 * HOUR)


WHOLE_VIEW = Context("v@t", "c/b/2/7", (1.0, 2.0), {"role": "guest", "age": 5}, 3)


@pytest.mark.parametrize(
    ("other", "both"),
    [
        (("c/b/2/7", (1.0, 2.0), {"age": 5}, 5), ("c/b/2/7", (1.0, 2.0), {"age": 5}, 5)),
        (("c/b", None, {"role": "guest", "age": 5}, 1), ("c/b", None, WHOLE_VIEW.attributes, 3)),
        (("c/b", (0.0, 0.0), {}, 3), ("c/b", (0.0, 0.0), {}, 3)),
        ((None, None, {}, 9), (None, None, {}, 9)),
        (("c/b/2/7", None, {}, 3), ("c/b/2/7", None, {}, 3)),
    ],
    ids=["fewer attributes", "coarser", "a centre", "presence", "no point"],
)  # fmt: skip
def test_two_views_both_show_the_coarser_place_and_what_they_share(
    other: tuple[Any, ...], both: tuple[Any, ...]
) -> None:
    place, point, attributes, t_r = other
    view = Context("v@t", place, point, attributes, t_r)
    place, point, attributes, t_r = both
    for first, second in ((WHOLE_VIEW, view), (view, WHOLE_VIEW)):
        assert both_show(first, second) == Context("v@t", place, point, attributes, t_r)


@given(some_contexts, some_rules, some_rules)
def test_what_two_views_both_show_is_shown_by_each(
    context: Context, then: list[Rule], since: list[Rule]
) -> None:
    views = [visible(context, rules, BOB, 0) for rules in (then, since)]
    one, other = views
    if one is None or other is None:
        return
    assert both_show(one, one) == one
    both = both_show(one, other)
    for view in (one, other):
        assert both.place is None or path_within(view.place or "", both.place)
        assert both.point is None or view.point is not None
        assert both.attributes.items() <= view.attributes.items()
        assert both.t_r >= view.t_r
