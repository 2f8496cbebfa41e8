"""SimMob: people on a building's graph, by AMS's rules."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import LimitError, PlaceError
from roamcast.model.buildings import FloorPlan, building
from roamcast.model.contexts import Context, encode
from roamcast.model.places import Place, Places
from roamcast.sim.movement import simmob
from roamcast.sim.movement.draws import Draws, exponential
from roamcast.sim.movement.modes import (
    STATES_MAX,
    DestinationPool,
    Gather,
    Matrix,
    MovementMode,
    Office,
)
from roamcast.sim.movement.moves import Move, MoveFeed, merged
from roamcast.sim.movement.simmob import Activity, SimMob
from roamcast.sim.movement.workloads import (
    MINUTE_US,
    BuildingWorkload,
    located_context,
    meeting,
    normal,
    rates_for,
)

HOUSE = Places(building("lab", 3, FloorPlan(cells=3, meeting_rooms=1, kitchens=0)))
ROOMS = [HOUSE.number(path) for path in HOUSE.of_kind("office")]


def walkers(
    people: int = 5,
    seed: int = 1,
    activities: Sequence[Activity] = (),
    mode: MovementMode | None = None,
    end_us: int | None = None,
) -> SimMob:
    homes = [ROOMS[person % len(ROOMS)] for person in range(people)]
    chosen = mode or Office(homes, [DestinationPool(tuple(ROOMS), (1.0,) * len(ROOMS))], stay=0.5)
    return SimMob(
        HOUSE,
        homes,
        chosen,
        random.Random(seed),
        speed_m_s=1.25,
        pause_us=60e6,
        activities=activities,
        end_us=end_us,
    )


def first(simulation: SimMob, count: int) -> list[Move]:
    return list(itertools.islice(simulation, count))


# Streams


def test_moves_come_in_time_order_and_first_say_where_everybody_starts() -> None:
    moves = first(walkers(), 500)
    assert [move.person for move in moves[:5]] == [0, 1, 2, 3, 4]
    assert all(move.time_us == 0 for move in moves[:5])
    assert moves == sorted(moves, key=lambda move: (move.time_us, move.person))
    assert moves[-1].time_us > MINUTE_US


def test_each_move_goes_through_a_door_in_the_time_its_length_takes() -> None:
    walks = HOUSE.walks
    doors = {
        (HOUSE.path(int(a)), HOUSE.path(int(b))): float(metres)
        for a, b, metres in zip(walks.starts, walks.ends, walks.metres, strict=True)
    }
    last: dict[int, Move] = {}
    for move in first(walkers(), 2000):
        before = last.get(move.person)
        if before is not None:
            assert before.place is not None
            assert move.place is not None
            step_us = doors[before.place, move.place] / 1.25 * 1e6
            assert move.time_us - before.time_us >= math.floor(step_us)
        last[move.person] = move


def test_trips_follow_shortest_ways_and_end_where_the_mode_said() -> None:
    asked: list[tuple[int, int, int]] = []

    class Told(Office):
        def goal(self, person: int, here: int, unit: float, /) -> int:
            goal = super().goal(person, here, unit)
            asked.append((person, here, goal))
            return goal

    told = Told([ROOMS[0]], [DestinationPool(tuple(ROOMS), (1.0,) * len(ROOMS))], stay=0.3)
    moves = first(walkers(1, mode=told), 400)
    walked = iter(move.place for move in moves[1:])
    for _, here, goal in asked[:-1]:
        route = HOUSE.route(HOUSE.path(here), HOUSE.path(goal))
        assert route is not None
        for step in route.places[1:]:
            assert next(walked) == step


def test_the_same_seed_gives_the_same_moves_and_another_seed_others() -> None:
    assert first(walkers(seed=3), 800) == first(walkers(seed=3), 800)
    assert first(walkers(seed=3), 800) != first(walkers(seed=4), 800)


def test_a_feed_tells_its_deadline_and_never_runs_ahead() -> None:
    taken = []

    def counted() -> itertools.chain[Move]:
        for move in walkers():
            taken.append(move)
            yield move

    feed = MoveFeed(counted())
    early = list(feed.until(0))
    assert len(early) == 5
    assert len(taken) == 6  # one move is held ready, no more
    deadline = feed.deadline()
    assert deadline is not None
    assert list(feed.until(deadline - 1)) == []
    assert feed.pull().time_us == deadline
    empty = MoveFeed(iter(()))
    assert empty.deadline() is None
    with pytest.raises(AssertionError):
        empty.pull()


def test_streams_are_merged_by_time_then_person() -> None:
    one = [Move(0, 0, "a"), Move(5, 0, "b")]
    other = [Move(0, 1, "a"), Move(3, 1, "b"), Move(5, 1, "c")]
    assert [(m.time_us, m.person) for m in merged(other, one)] == [
        (0, 0), (0, 1), (3, 1), (5, 0), (5, 1),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_hundred_thousand_people_are_no_more_than_a_longer_queue() -> None:
    simulation = walkers(100_000)
    moves = first(simulation, 100_100)
    assert len({move.person for move in moves}) == 100_000


# Draws


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 10**6))))
def test_one_draw_and_an_array_of_draws_are_the_same(
    seed: int, asked: list[tuple[int, int]]
) -> None:
    draws = Draws(10, random.Random(seed))
    people = np.array([person for person, _ in asked], dtype=np.int64)
    counts = np.array([count for _, count in asked], dtype=np.int64)
    singly = [draws.unit(person, count) for person, count in asked]
    assert draws.units(people, counts).tolist() == singly
    assert all(0 <= unit < 1 for unit in singly)


def test_draws_are_even_and_do_not_depend_on_how_many_people_there_are() -> None:
    few, many = Draws(3, random.Random(1)), Draws(300, random.Random(1))
    counts = np.arange(20_000)
    for person in range(3):
        units = few.units(np.full(20_000, person), counts)
        assert (units == many.units(np.full(20_000, person), counts)).all()
        assert np.bincount((units * 10).astype(int)) == pytest.approx(2000, abs=250)
    across = many.units(np.arange(300), np.zeros(300, dtype=np.int64))
    assert across.mean() == pytest.approx(0.5, abs=0.06)
    pauses = [exponential(unit, 7.0) for unit in few.units(np.zeros(20_000, int), counts).tolist()]
    assert np.mean(pauses) == pytest.approx(7.0, rel=0.03)
    assert np.mean(np.array(pauses) > 7.0) == pytest.approx(math.exp(-1), abs=0.015)


# Modes


def shares(mode: MovementMode, person: int, here: int, draws: int = 20_000) -> dict[int, float]:
    goals = Counter(mode.goal(person, here, (i + 0.5) / draws) for i in range(draws))
    return {goal: count / draws for goal, count in goals.items()}


@given(st.data())
@settings(max_examples=30)
def test_destinations_follow_the_rows_of_the_matrix(data: st.DataObject) -> None:
    raw = data.draw(
        st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=4), min_size=4, max_size=4)
    )
    rows = [np.array(row, dtype=float) if any(row) else np.ones(4) for row in raw]
    mode = Matrix([10, 11, 12, 13], [row / row.sum() for row in rows])
    for here in (10, 13):
        expected = mode.row(0, here)
        assert sum(expected.values()) == pytest.approx(1)
        assert shares(mode, 0, here, 2000) == pytest.approx(expected, abs=0.002)


@given(st.floats(0, 1), st.integers(2, 6), st.integers(0, 7), st.data())
@settings(max_examples=50)
def test_the_office_mode_is_its_matrix(
    stay: float, size: int, office: int, data: st.DataObject
) -> None:
    weights = data.draw(st.lists(st.integers(1, 9), min_size=size, max_size=size))
    mode = Office(
        [office], [DestinationPool(tuple(range(size)), tuple(map(float, weights)))], stay=stay
    )
    expected, found = mode.row(0, 5), shares(mode, 0, 5, 4000)
    assert found.keys() <= expected.keys()
    assert {goal: found.get(goal, 0.0) for goal in expected} == pytest.approx(expected, abs=0.002)
    # Also as a matrix of the general form, with the same destinations drawn.
    states = sorted({*range(size), office})
    row = [mode.row(0, 0).get(state, 0.0) for state in states]
    general = shares(Matrix(states, [row] * len(states)), 0, states[0], 4000)
    assert general.keys() <= expected.keys()
    assert {goal: general.get(goal, 0.0) for goal in expected} == pytest.approx(
        {goal: found.get(goal, 0.0) for goal in expected}, abs=0.002
    )


def test_even_the_largest_draw_never_chooses_the_own_office_as_a_venture() -> None:
    nearly = 1 - 2**-53
    for own in range(3):
        mode = Office([own], [DestinationPool((0, 1, 2), (0.1, 0.2, 0.7))], stay=0.8)
        assert mode.goal(0, 0, nearly) != own


def test_wrong_modes_are_refused() -> None:
    for rows in ([[1.0]], [[0.5, 0.4], [0, 1]], [[2, -1], [0, 1]], [[math.nan, 1], [0, 1]]):
        with pytest.raises(PlaceError):
            Matrix([1, 2], rows)
    with pytest.raises(PlaceError, match="not in this mode"):
        Matrix([1], [[1.0]]).goal(0, 7, 0.5)
    with pytest.raises(LimitError):
        Matrix(range(STATES_MAX + 1), [[1.0]])
    for pool in (
        DestinationPool((1,), (1.0,)),
        DestinationPool((1, 1), (1.0, 1.0)),
        DestinationPool((1, 2), (1.0, 0.0)),
    ):
        with pytest.raises(PlaceError):
            Office([1], [pool])
    with pytest.raises(PlaceError):
        Office([1], [DestinationPool((1, 2), (1.0, 1.0))], stay=1.5)


# Activities


MEETING = "lab/2/2007"


@pytest.mark.parametrize("minutes", [3, 4, 5])
@pytest.mark.parametrize("called_at", [0, 90, 600])
def test_a_meeting_gathers_everybody_in_its_time_and_keeps_them(
    minutes: int, called_at: int
) -> None:
    start = called_at * 1_000_000
    people = list(range(0, 40, 2))
    activity = Activity(start, people, Gather(HOUSE.number(MEETING)), None, minutes * MINUTE_US)
    where: dict[int, str | None] = {}
    feed = MoveFeed(walkers(40, seed=minutes, activities=[activity]))
    for move in feed.until(start + minutes * MINUTE_US):
        where[move.person] = move.place
    assert all(where[person] == MEETING for person in people)
    late = [move for move in feed.until(start + 60 * MINUTE_US) if move.person in people]
    assert late == []


def test_arrivals_at_a_meeting_are_spread_over_its_time() -> None:
    activity = Activity(0, range(200), Gather(HOUSE.number(MEETING)), None, 4 * MINUTE_US)
    arrived = [m.time_us for m in walkers(200, activities=[activity]) if m.place == MEETING]
    halves = sum(time_us < 2 * MINUTE_US for time_us in arrived)
    assert 40 < halves < 160
    assert max(arrived) <= 4 * MINUTE_US


def test_who_is_not_called_walks_as_if_there_were_no_meeting() -> None:
    activity = Activity(5 * MINUTE_US, [0, 1], Gather(HOUSE.number(MEETING)), None, MINUTE_US)
    until = 30 * MINUTE_US
    with_it = [m for m in MoveFeed(walkers(activities=[activity])).until(until) if m.person > 1]
    without = [m for m in MoveFeed(walkers()).until(until) if m.person > 1]
    assert with_it == without


def test_after_a_meeting_people_can_be_sent_back() -> None:
    homes = [ROOMS[person % len(ROOMS)] for person in range(5)]
    office = Office(homes, [DestinationPool(tuple(ROOMS), (1.0,) * len(ROOMS))], stay=1.0)
    gather = Gather(HOUSE.number(MEETING))
    plans = [
        Activity(MINUTE_US, range(5), gather, None, 3 * MINUTE_US),
        Activity(30 * MINUTE_US, range(5), office, 60e6),
    ]
    where = {}
    # Back in their offices they stay: only the given end lets the stream end.
    for move in walkers(activities=plans, end_us=90 * MINUTE_US):
        where[move.person] = move.place
    assert where == {person: HOUSE.path(home) for person, home in enumerate(homes)}


def test_wrong_simulations_are_refused() -> None:
    mode = Gather(ROOMS[0])
    with pytest.raises(LimitError):
        SimMob(HOUSE, [], mode, random.Random(1), speed_m_s=1, pause_us=1)
    for speed, pause in ((0.0, 1.0), (math.inf, 1.0), (1.0, 0.0)):
        with pytest.raises(PlaceError):
            SimMob(HOUSE, [1], mode, random.Random(1), speed_m_s=speed, pause_us=pause)
    for wrong in (
        Activity(-1, [0], mode, None),
        Activity(0, [9], mode, None),
        Activity(0, [0], mode, 0.0),
        Activity(0, [0], mode, None, -1),
    ):
        with pytest.raises(PlaceError):
            walkers(5, activities=[wrong])
    apart = Places([Place("a", "room"), Place("b", "room")])
    lost = SimMob(apart, [0], Gather(1), random.Random(1), speed_m_s=1, pause_us=1)
    with pytest.raises(PlaceError, match="there is no walk to 'b'"):
        list(lost)


def test_kept_ways_stay_within_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = first(walkers(), 500)
    monkeypatch.setattr(simmob, "SETTLED_MAX", 20)
    simulation = walkers()
    assert first(simulation, 500) == expected
    kept = list(simulation._ways._cached.values())
    assert sum(map(len, kept)) == simulation._ways._settled
    assert simulation._ways._settled <= 20 or len(kept) == 1


# The workloads


@pytest.fixture(scope="module")
def work() -> BuildingWorkload:
    return normal(100, floors=2)


def test_the_rates_give_the_mobile_share_and_the_moves_they_were_asked_for(
    work: BuildingWorkload,
) -> None:
    assert work.rates.sighting_s == pytest.approx(12.0)
    simulation = work.moves(random.Random(5))
    feed = MoveFeed(simulation)
    for _ in feed.until(30 * MINUTE_US):
        pass
    before = simulation.walking_us
    hours = 12
    moves = sum(1 for _ in feed.until((30 + 60 * hours) * MINUTE_US))
    mobile = (simulation.walking_us - before) / (100 * 60 * hours * MINUTE_US)
    assert mobile == pytest.approx(0.12, abs=0.006)
    assert moves / (60 * hours) == pytest.approx(60, rel=0.05)


def test_people_venture_out_on_their_own_storey_only(work: BuildingWorkload) -> None:
    storey = {p: work.places.parent(work.places.path(home)) for p, home in enumerate(work.offices)}
    for move in MoveFeed(work.moves(random.Random(1))).until(20 * MINUTE_US):
        assert move.place is not None
        assert work.places.parent(move.place) == storey[move.person]


def test_larger_communities_stand_on_a_campus_with_the_same_rates(work: BuildingWorkload) -> None:
    small, large = normal(1000, floors=2), normal(3000, floors=2)
    assert large.places.roots() == ("campus",)
    assert large.rates == small.rates
    assert len(large.offices) == 3000


def test_the_meeting_workload_calls_to_a_meeting_room(work: BuildingWorkload) -> None:
    called = meeting(work, range(50))
    where = {}
    simulation = work.moves(random.Random(2), [called])
    for move in MoveFeed(simulation).until(called.time_us + 5 * MINUTE_US):
        where[move.person] = move.place
    assert {where[person] for person in range(50)} == {work.places.of_kind("meeting")[0]}


def test_rates_need_a_share_and_ways(work: BuildingWorkload) -> None:
    for mobile, moves in ((0.0, 60.0), (1.0, 60.0), (0.1, 0.0)):
        with pytest.raises(PlaceError):
            rates_for(work.places, work.offices, work.mode, mobile, moves)
    apart = Places([Place("a", "room"), Place("b", "room")])
    mode = Office([0], [DestinationPool((0, 1), (1.0, 1.0))])
    with pytest.raises(PlaceError, match="no walk"):
        rates_for(apart, [0], mode, 0.1, 60.0)


def test_objects_have_the_papers_size() -> None:
    for person in (0, 7, 999, 99_999):
        context = Context(
            "k3x9q@tn1.example.org", "lab/12/12034", None, located_context(person), 10**15
        )
        assert 400 <= len(encode(context)) <= 500
