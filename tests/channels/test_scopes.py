"""Scopes (AMS 16): local groups stay local, remote clients ride on a few shared groups."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.channels.server.settings import MapSettings
from roamcast.channels.spread.dissemination import foreign_pairs, is_remote
from roamcast.model.records import Transmission
from roamcast.sim.checkers import BandwidthLimit
from roamcast.sim.network import LinkQuality
from tests.strategies_map import SERVER, MapWorld, updates

CAMPUS = "campus"
FAR = "far"


def campus(**given: int) -> MapSettings:
    return MapSettings(**{"local_scope": CAMPUS, "wide_subscribers_min": 2, **given})


def asking(world: MapWorld, site: str, *texts: str) -> list[str]:
    """Clients at a site, named by it, each with one query."""
    names = [f"{site}-{number}" for number in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        world.client(name, site=site)
        world.watch(name, text)
    return names


def groups_of(world: MapWorld, name: str) -> list[str]:
    return sorted(world.machine(name).watching.tuner.channels)


@pytest.mark.parametrize(
    ("site", "scope", "remote"),
    [
        ("campus/b35", "campus", False),
        ("campus", "campus", False),
        ("campusplus", "campus", True),
        ("", "campus", True),
        ("far", "", False),
    ],
)
def test_the_server_decides_by_its_setting_who_is_remote(
    site: str, scope: str, remote: bool
) -> None:
    assert is_remote(site, MapSettings(local_scope=scope)) is remote


def test_local_groups_serve_local_clients_and_one_remote_client_is_told_alone() -> None:
    world = MapWorld(campus())
    near = asking(world, CAMPUS, *["place = 'hall'"] * 3)
    far = asking(world, FAR, "place = 'hall'")
    world.client("mover")
    world.run(2)
    world.forget()
    world.put("mover", "m", "hall")
    world.run(1)
    assert all(world.sees(name) == {"m": "hall"} for name in near + far)
    assert groups_of(world, far[0]) == []
    by_group, alone = [], []
    for record in world.sent(updates):
        (alone if record.peer else by_group).append(record)
    assert [record.receivers for record in by_group] == [3]
    assert [record.peer for record in alone] == far


def test_enough_remote_clients_of_one_query_share_a_wide_area_group() -> None:
    world = MapWorld(campus(wide_subscribers_min=3))
    far = asking(world, FAR, *["place = 'hall'"] * 3)
    world.client("mover")
    world.run(2)
    assert len({tuple(groups_of(world, name)) for name in far}) == 1
    world.forget()
    world.put("mover", "m", "hall")
    world.run(1)
    (record,) = world.sent(updates)
    assert (record.peer, record.receivers) == ("", 3)
    assert all(world.sees(name) == {"m": "hall"} for name in far)


def test_when_no_group_is_free_queries_share_one_and_clients_drop_what_is_not_theirs() -> None:
    world = MapWorld(campus(wide_groups_max=1))
    texts = ["place = 'a'", "place = 'a'", "place = 'b'", "place = 'b'"]
    far = asking(world, FAR, *texts)
    world.client("mover")
    world.run(2)
    groups = {group for name in far for group in groups_of(world, name)}
    assert len(groups) == 1
    world.forget()
    for number in range(5):
        world.put("mover", f"m{number}", "a")
        world.run(0.5)
    seen = {f"m{number}": "a" for number in range(5)}
    assert [world.sees(name) for name in far] == [seen, seen, {}, {}]
    assert [world.machine(name).watching.copy.foreign for name in far] == [0, 0, 5, 5]
    assert len(world.sent(updates)) == 5


def test_an_update_of_several_queries_on_one_group_is_sent_there_once() -> None:
    world = MapWorld(campus(wide_groups_max=1))
    far = asking(world, FAR, *["place = 'a'"] * 2, *["kind = 1"] * 2)
    world.client("mover")
    world.run(2)
    world.forget()
    world.put("mover", "m", "a", kind=1)
    world.run(1)
    (record,) = world.sent(updates)
    assert record.receivers == 4
    assert all(world.sees(name) == {"m": "a"} for name in far)


def test_a_query_joins_the_group_where_least_is_heard_in_vain() -> None:
    world = MapWorld(campus(wide_groups_max=2))
    asking(world, FAR, "place = 'a'", "place = 'a'", "place = 'b'", "place = 'b'")
    world.run(2)
    for name in ("far-2", "far-3"):  # who listen to the second group already
        world.watch(name, "place = 'c'", "more")
        world.run(1)
    shared = world.server.dissemination.classes[""].wide
    assert [len(queries) for queries in shared.values()] == [1, 2]
    assert all(len(groups_of(world, f"far-{number}")) == 1 for number in range(4))


def test_the_last_subscriber_takes_the_query_off_and_an_empty_group_is_given_back() -> None:
    world = MapWorld(campus(wide_groups_max=1, linger_us=500_000))
    far = asking(world, FAR, *["place = 'a'"] * 2, *["place = 'b'"] * 2)
    world.client("mover")
    world.run(2)
    view = world.server.dissemination.classes[""]
    world.unwatch(far[0])
    world.run(2)
    world.put("mover", "m", "a")  # one of them is left, and still hears it there
    world.run(1)
    assert world.sees(far[1]) == {"m": "a"}
    for name in far[1:]:
        assert view.wide_pool.used == 1
        world.unwatch(name)
        world.run(2)
    assert (view.wide_pool.used, view.wide, view.streams) == (0, {}, {})
    asking(world, "elsewhere", *["place = 'c'"] * 2)
    world.run(2)
    assert view.wide_pool.used == 1


def test_there_are_never_more_groups_than_the_setting_says() -> None:
    world = MapWorld(campus(wide_groups_max=3, wide_subscribers_min=1))
    far = asking(world, FAR, *[f"place = 'r{number}'" for number in range(12)])
    world.client("limited", site=FAR, limit_bytes=4_000)
    world.watch("limited", "place = 'r0'")  # for whose band no group is left: it is told alone
    world.client("mover")
    world.run(3)
    view = world.server.dissemination.classes[""]
    assert view.wide_pool.used == 3
    assert sorted(len(queries) for queries in view.wide.values()) == [4, 4, 4]
    for number in range(12):
        world.put("mover", f"m{number}", f"r{number}")
    world.run(3)
    for number, name in enumerate(far):
        assert world.sees(name) == {f"m{number}": f"r{number}"}
    assert world.sees("limited") == {"m0": "r0"}
    assert groups_of(world, "limited") == []


def test_every_byte_of_a_shared_group_counts_against_a_limit() -> None:
    world = MapWorld(campus(wide_groups_max=2), quality=LinkQuality(loss=0.05, jitter_us=2_000))
    free = asking(world, FAR, *["place = 'a'"] * 2)
    world.client("limited", site=FAR, limit_bytes=2_000)
    world.watch("limited", "place = 'b'")
    world.client("other", site=FAR)
    world.watch("other", "place = 'b'")
    world.client("mover")
    world.run(3)
    assert len(groups_of(world, "limited")) == 1  # a band of the group that everybody shares
    world.records.clear()
    draw = random.Random(4)
    for _ in range(80):  # twice the limit in what it did not ask for, and a little that it did
        world.put("mover", f"o{draw.randrange(9)}", draw.choice("aaab"), note="n" * 150)
        world.run(0.05)
    world.run(20)
    limit = BandwidthLimit({"limited": 2_000})
    for now, host, record in world.records:
        if host == SERVER and isinstance(record, Transmission):
            members = world.world.network.members(record.channel)
            for name in [record.peer] if record.peer else members:
                limit.deliver(name, record.bytes, now)
    assert world.sees("limited") == world.sees("other") != {}
    assert world.sees(free[0]) == world.sees(free[1]) != {}
    assert world.machine("limited").watching.copy.foreign > 0


def test_what_others_ask_for_fills_no_clients_memory() -> None:
    world = MapWorld(campus(wide_groups_max=1, tombstones_max=20))
    far = asking(world, FAR, *["kind = 1"] * 2, *["kind = 2"] * 2)
    world.client("mover")
    world.run(2)
    most = 0
    for number in range(300):
        world.put("mover", f"m{number}", "a", kind=1)
        world.run(0.01)
        most = max(most, len(world.machine(far[2]).watching.copy.known))
    assert 20 < most <= 41
    world.put("mover", "m7", "a", kind=2)  # an object that was dropped and forgotten
    world.run(3)
    assert world.sees(far[2]) == {"m7": "a"}


NAMES = st.sampled_from("abcdef")


@given(st.lists(st.frozensets(NAMES), max_size=4), st.frozensets(NAMES, min_size=1))
def test_foreign_pairs_counts_what_a_new_query_makes_clients_hear_in_vain(
    riding: list[frozenset[str]], subscribers: frozenset[str]
) -> None:
    def heard_in_vain(queries: list[frozenset[str]]) -> int:
        listeners = frozenset().union(*queries)
        return sum(name not in query for name in listeners for query in queries)

    listeners = frozenset().union(*riding)
    more = heard_in_vain([*riding, subscribers]) - heard_in_vain(riding)
    assert foreign_pairs(sorted(listeners), len(riding), sorted(subscribers)) == more


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 3), st.sampled_from("abc")),
        st.tuples(st.just("cancel"), st.integers(0, 3), st.just("")),
        st.tuples(st.just("watch"), st.integers(0, 3), st.sampled_from("abc")),
        st.tuples(st.just("unwatch"), st.integers(0, 3), st.just("")),
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None)
@given(MOVES, st.integers(1, 3), st.integers(1, 2), st.integers(0, 99))
def test_a_remote_clients_view_equals_what_unicast_would_give(
    moves: list[tuple[str, int, str]], groups: int, least: int, seed: int
) -> None:
    views = []
    for pool in (0, groups):
        world = MapWorld(
            campus(wide_groups_max=pool, wide_subscribers_min=least),
            quality=LinkQuality(loss=0.1, jitter_us=2_000),
            seed=seed,
        )
        far = asking(world, FAR, *["within(place, 'a')", "place = 'a'", "place = 'b'", "kind = 1"])
        world.client("mover")
        for what, number, place in moves:
            world.run(0.1)
            if what == "put":
                world.put("mover", f"o{number}", place, kind=number % 2)
            elif what == "cancel":
                world.cancel("mover", f"o{number}")
            elif what == "watch":
                world.watch(far[number], f"place = '{place}'", "more")
            else:
                world.unwatch(far[number], "more")
        world.world.network.mend_all(LinkQuality())
        world.run(6)
        views.append(
            {
                (name, subscription): world.sees(name, subscription)
                for name in far
                for subscription in world.machine(name).wanted
            }
        )
    assert views[0] == views[1]
