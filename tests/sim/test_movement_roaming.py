"""Waypoints, groups, commuters and recordings, each against what defines it."""

import gzip
import itertools
import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import InputError, LimitError, PlaceError
from roamcast.sim.movement.commuters import commuters, wishes
from roamcast.sim.movement.groups import GroupMovement, GroupSettings
from roamcast.sim.movement.moves import Move, MoveFeed
from roamcast.sim.movement.replay import LINE_BYTES_MAX, read_positions, read_sightings
from roamcast.sim.movement.waypoint import RandomWaypoint, RoamingArea, ticks

SECOND = 1_000_000


def roaming(people: int = 50, area: RoamingArea = RoamingArea(), seed: int = 1) -> RandomWaypoint:  # noqa: B008
    return RandomWaypoint(people, area, random.Random(seed))


# Random waypoint


@settings(max_examples=30)
@given(st.integers(0, 99), st.lists(st.integers(0, 600), min_size=1, max_size=8))
def test_positions_do_not_depend_on_when_else_one_looked(seed: int, looks: list[int]) -> None:
    looked, alone = roaming(seed=seed), roaming(seed=seed)
    for second in sorted(looks):
        seen = looked.positions(second * SECOND)
    assert (seen == alone.positions(max(looks) * SECOND)).all()


def test_nodes_stay_in_their_area_and_within_their_speeds() -> None:
    area = RoamingArea(750, 500, 1, 20, 30)
    model = roaming(area=area)
    before = model.positions(0)
    assert (model.positions(30 * SECOND) == before).all()  # they start with a pause
    for second in range(31, 600):
        now = model.positions(second * SECOND)
        assert (now >= 0).all()
        assert (now <= [750, 500]).all()
        assert np.linalg.norm(now - before, axis=1).max() <= 20 + 1e-6
        before = now


def test_legs_are_straight_at_a_speed_between_the_bounds_with_pauses_between() -> None:
    model = roaming(1, RoamingArea(1000, 1000, 2, 5, 10))
    track = np.array([model.positions(tick * SECOND // 10)[0] for tick in range(20_000)])
    speeds = np.linalg.norm(np.diff(track, axis=0), axis=1) * 10
    moving = speeds > 1e-9
    # Ticks on which a leg begins or ends show a part of its speed; inside a leg it is constant.
    inside = moving[1:-1] & moving[:-2] & moving[2:]
    assert speeds[1:-1][inside].min() >= 2 - 1e-6
    assert speeds.max() <= 5 + 1e-6
    rests = [len(list(run)) for still, run in itertools.groupby(~moving) if still]
    assert all(98 <= rest <= 100 for rest in rests[:-1])


def test_waypoints_are_spread_evenly_and_speeds_too() -> None:
    model = roaming(4000)
    starts = model.positions(0) / 1000
    assert starts.mean(axis=0) == pytest.approx([0.5, 0.5], abs=0.02)
    assert np.histogram(starts[:, 0], 4, (0, 1))[0] == pytest.approx(1000, abs=120)
    first = np.linalg.norm(model.positions(11 * SECOND) - starts * 1000, axis=1)
    assert np.median(first) == pytest.approx(10.5, abs=0.7)


def test_adding_nodes_moves_nobody_else() -> None:
    few, many = roaming(3), roaming(30)
    assert (few.positions(500 * SECOND) == many.positions(500 * SECOND)[:3]).all()


def test_ticks_tell_everybodys_position_in_order() -> None:
    moves = list(MoveFeed(ticks(roaming(3), 5 * SECOND)).until(10 * SECOND))
    assert [(m.time_us, m.person) for m in moves] == [
        (t * 5 * SECOND, person) for t in range(3) for person in range(3)
    ]
    expected = roaming(3).positions(10 * SECOND)
    assert np.array([m.point for m in moves[-3:]]).tolist() == expected.tolist()
    with pytest.raises(LimitError):
        next(ticks(roaming(3), 0))


@pytest.mark.parametrize(
    "area",
    [
        RoamingArea(0),
        RoamingArea(pause_s=-1),
        RoamingArea(speed_min_m_s=0),
        RoamingArea(speed_min_m_s=9, speed_max_m_s=8),
    ],
)
def test_an_impossible_area_is_refused(area: RoamingArea) -> None:
    with pytest.raises(LimitError):
        roaming(area=area)
    with pytest.raises(LimitError):
        roaming(0)


def test_time_only_goes_forward() -> None:
    model = roaming()
    model.positions(5)
    with pytest.raises(AssertionError):
        model.positions(4)


# GroupSettings


def test_members_stay_about_their_reference_and_in_the_area() -> None:
    model = GroupMovement(GroupSettings([5, 1, 10], 50.0), RoamingArea(400, 300), random.Random(1))
    assert model.people == 16
    seen = []
    for second in range(0, 900, 7):
        members = model.positions(second * SECOND)
        away = members - model.references(second * SECOND)[model.group_of]
        assert np.linalg.norm(away, axis=1).max() <= 50 + 1e-9
        assert (members >= 0).all()
        assert (members <= [400, 300]).all()
        seen.append(members)
    track = np.array(seen)
    assert (np.ptp(track, axis=0) > 50).all()  # the groups went somewhere
    same, other = track[:, 0] - track[:, 1], track[:, 0] - track[:, 6]
    assert np.linalg.norm(same, axis=1).mean() < np.linalg.norm(other, axis=1).mean()


def test_impossible_groups_are_refused() -> None:
    for groups in (
        GroupSettings([]),
        GroupSettings([0]),
        GroupSettings([1], 0.0),
        GroupSettings([1], 5.0, 0.0),
    ):
        with pytest.raises(LimitError):
            GroupMovement(groups, RoamingArea(), random.Random(1))


# Commuters


def test_commuters_change_sides_one_pair_a_period() -> None:
    left, right = ["l/1", "l/2", "l/3"], ["r/1", "r/2", "r/3"]
    moves = list(commuters(left, right, 10))
    where: dict[int, str | None] = {}
    for time_us, at_once in itertools.groupby(moves, key=lambda move: move.time_us):
        for move in at_once:
            where[move.person] = move.place
        gone = time_us // 10
        assert [where[p] for p in range(3)] == right[:gone] + left[gone:]
        assert [where[p + 3] for p in range(3)] == left[:gone] + right[gone:]
    assert moves[-1].time_us == 30
    with pytest.raises(PlaceError):
        commuters(left, right[:2], 10)
    with pytest.raises(LimitError):
        commuters(left, right, 0)


def test_wishes_swap_from_left_to_right_as_in_cbm() -> None:
    assert wishes(4, 0, 0.1).tolist() == pytest.approx([0.4, 0.4, 0.2, 0.2])
    assert wishes(4, 1, 0.1).tolist() == pytest.approx([0.2, 0.4, 0.4, 0.2])
    # "At time t = 32 … all users have moved": CBM's 64 users.
    assert wishes(64, 32, 0.2)[:32] == pytest.approx(0.1)
    assert wishes(64, 32, 0.2)[32:] == pytest.approx(0.5)
    assert all(wishes(64, step, 0.2).mean() == pytest.approx(0.3) for step in range(40))
    for users, step, skew in ((3, 0, 0.1), (4, -1, 0.1), (4, 0, 0.4)):
        with pytest.raises(LimitError):
            wishes(users, step, skew)


# Replay

CSV = "lat,lng,datetime,uid\n39.9,116.3,2008-10-23 05:53:05,b\n39.8,116.2,2008-10-23 05:53:01,a\n"


def test_positions_are_replayed_in_time_order(tmp_path: Path) -> None:
    file = tmp_path / "positions.csv.gz"
    file.write_bytes(gzip.compress((CSV + "39.7,116.1,2008-10-23 05:53:05,a\n").encode()))
    recording = read_positions(file)
    assert recording.names == ("a", "b")
    start = 1_224_741_181 * SECOND
    assert list(recording.moves()) == [
        Move(start, 0, None, (116.2, 39.8)),
        Move(start + 4 * SECOND, 0, None, (116.1, 39.7)),
        Move(start + 4 * SECOND, 1, None, (116.3, 39.9)),
    ]
    assert [m.time_us for m in recording.moves(start_us=0, faster=2.0)] == [
        0,
        2 * SECOND,
        2 * SECOND,
    ]
    with pytest.raises(LimitError):
        next(recording.moves(faster=0.0))
    with pytest.raises(LimitError, match="limit of 2 rows"):
        read_positions(file, rows_max=2)
    assert len(read_positions(file, rows_max=3)) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lat,lng\n1,2\n",
        CSV + "x,1,2008-10-23 05:53:05,a\n",
        CSV + "99,1,2008-10-23 05:53:05,a\n",
        CSV + "nan,1,2008-10-23 05:53:05,a\n",
        CSV + ",1,2008-10-23 05:53:05,a\n",
        CSV + "1,1,noon,a\n",
    ],
)
def test_a_wrong_csv_is_refused_with_its_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "positions.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=r"positions\.csv"):
        read_positions(file)


def test_sightings_are_replayed_at_places_or_points(tmp_path: Path) -> None:
    file = tmp_path / "sightings.jsonl"
    file.write_text(
        '{"person": "zoe", "time": "1970-01-01T00:00:05Z", "place": "lab/1"}\n'
        '{"person": "amy", "time": "1970-01-01T00:00:01Z", "lon": 1, "lat": 2.5, "source": "gps"}\n'
    )
    recording = read_sightings(file)
    assert list(recording.moves()) == [
        Move(SECOND, 0, None, (1.0, 2.5)),
        Move(5 * SECOND, 1, "lab/1", None),
    ]
    assert len(read_sightings(file, rows_max=2)) == 2
    with pytest.raises(LimitError):
        read_sightings(file, rows_max=1)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert list(read_sightings(empty).moves()) == []


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"\xff",
        b"[]",
        b'{"person": 3}',
        b'{"person": "a", "time": 3}',
        b'{"person": "a", "time": "noon", "place": "x"}',
        b'{"person": "a", "time": "1970-01-01T00:00:05Z", "place": "x//y"}',
        b'{"person": "a", "time": "1970-01-01T00:00:05Z", "lon": 1}',
        b'{"person": "a", "time": "1970-01-01T00:00:05Z", "lon": 1, "lat": 91}',
        b"x" * (LINE_BYTES_MAX + 1),
    ],
)
def test_a_wrong_sighting_is_refused_with_its_line(line: bytes, tmp_path: Path) -> None:
    file = tmp_path / "sightings.jsonl"
    good = b'{"person": "a", "time": "1970-01-01T00:00:05Z", "place": "x"}\n'
    file.write_bytes(good + line + b"\n")
    with pytest.raises(InputError, match=r"sightings\.jsonl, line 2"):
        read_sightings(file)


SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "geolife_sample.txt.gz"


@pytest.mark.skipif(not SAMPLE.exists(), reason="the GeoLife sample is not beside this checkout")
def test_the_geolife_sample_replays_whole_and_in_order() -> None:
    recording = read_positions(SAMPLE)
    assert len(recording) == 217_653
    assert len(recording.names) == 2
    last = 0
    for move in itertools.islice(recording.moves(), 5000):
        assert move.time_us >= last
        assert move.point is not None
        last = move.time_us
    assert (np.diff(recording.times_us) >= 0).all()
    assert math.isclose(recording.points[:, 1].mean(), 39.9, abs_tol=3)
