"""Days of a node's past: no stretch of states is refused, and days without anybody are."""

from hypothesis import given
from hypothesis import strategies as st

from roamcast.model.areas import Area, Patch
from roamcast.overlay.tables.days import FIRST_DAY, RANGES_MAX, Days, areas_of

PLACES = ("b35", "b36")
SINCE = 40
"""From this day on every day counts."""

days = st.integers(0, 39)
states = st.lists(st.tuples(st.sampled_from(PLACES), st.integers(0, 3)), min_size=1, max_size=4)


def areas(found: dict[str, Days], served: tuple[str, ...] = PLACES) -> dict[str, Area]:
    return areas_of(found, served, SINCE, day_us=100, margin_us=0)


def meets(offered: dict[str, Area], *, place: str, begins: int, ends: int) -> bool:
    """Whether a cast to who was at a place, from and until these moments, goes there."""
    asked = Area((Patch(places=(place,), begins=(begins, begins), ends=(ends, ends)),))
    return any(asked.meets(area) for area in offered.values())


@given(st.lists(st.tuples(days, states), max_size=8))
def test_no_stretch_is_refused_wherever_its_states_were(runs: list[tuple[int, list]]) -> None:
    found = {place: Days() for place in PLACES}
    stretches = []
    for first, run in runs:
        at = first
        for place, more in run:
            found[place].add(at, at + more)
            at += more
        stretches.append((first, at, {place for place, _ in run}))
    offered = areas(found)
    for first, last, places in stretches:
        for place in places:
            assert meets(offered, place=place, begins=first * 100 + 7, ends=last * 100 + 99)


def test_a_day_without_anybody_is_refused_and_the_days_to_come_are_not() -> None:
    offered = areas({"b35": Days([(3, 5), (9, 9)])})
    assert meets(offered, place="b35", begins=300, ends=599)
    assert not meets(offered, place="b35", begins=700, ends=750)
    assert not meets(offered, place="b35", begins=300, ends=900)  # nobody stayed over day 6
    assert not meets(offered, place="b36", begins=300, ends=599)
    assert meets(offered, place="b36", begins=4_000, ends=10**9)


def test_a_place_of_old_has_the_days_of_then_alone() -> None:
    offered = areas({"old": Days([(3, 5)])}, served=("new",))
    assert meets(offered, place="old", begins=300, ends=599)
    assert not meets(offered, place="old", begins=4_100, ends=4_200)
    assert meets(offered, place="new", begins=4_100, ends=4_200)


def test_a_node_that_does_not_know_since_when_may_have_had_anybody() -> None:
    offered = areas({"": Days([(FIRST_DAY, 40)])}, served=("",))
    assert offered == {"": Area((Patch(),))}


def test_the_margin_widens_days_on_both_sides() -> None:
    offered = areas_of({"b35": Days([(3, 3)])}, (), SINCE, day_us=100, margin_us=10)
    assert meets(offered, place="b35", begins=290, ends=409)
    assert not meets(offered, place="b35", begins=289, ends=289)
    assert not meets(offered, place="b35", begins=410, ends=410)


@given(st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 5)), max_size=150))
def test_ranges_hold_every_day_and_are_few(given: list[tuple[int, int]]) -> None:
    made, every = Days(), set()
    for first, more in given:
        new = set(range(first, first + more + 1))
        assert made.add(first, first + more) or new <= every | _all(made)
        every |= new
    assert every <= _all(made)
    assert len(made.ranges) <= RANGES_MAX
    assert all(one[1] + 1 < two[0] for one, two in zip(made.ranges, made.ranges[1:], strict=False))
    if len(_apart(every)) <= RANGES_MAX:
        assert made.ranges == _apart(every) or len(given) > RANGES_MAX


def test_ranges_that_ended_long_ago_are_forgotten_whole() -> None:
    made = Days([(1, 3), (7, 9)])
    assert not made.forget_before(2)
    assert made.forget_before(4)
    assert made.ranges == [(7, 9)]


def _all(made: Days) -> set[int]:
    return {day for first, last in made.ranges for day in range(first, last + 1)}


def _apart(days: set[int]) -> list[tuple[int, int]]:
    return Days((day, day) for day in sorted(days)).ranges
