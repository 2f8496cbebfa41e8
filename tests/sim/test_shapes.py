"""Shapes: hops on a tree that grows host by host, the same for the same seed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.channels.reliable.messages import PROTOCOL
from roamcast.sim.shapes import HostTree, Shape, reach_of
from roamcast.sim.world import World
from tests.sim.test_network import Echo


def world(count: int, seed: int = 1) -> World:
    made = World(seed, PROTOCOL)
    for number in range(count):
        made.add_host(f"h{number}", Echo)
    return made


def test_on_a_line_hosts_are_as_far_apart_as_they_came() -> None:
    made = world(6)
    reach = reach_of(Shape.LINE, made.kernel)
    assert reach is not None
    hosts = list(made.hosts.values())
    for host in hosts:
        reach(host, host)
    assert [reach(hosts[0], host) for host in hosts] == [1, 1, 2, 3, 4, 5]
    assert reach(hosts[4], hosts[2]) == 2


def test_flat_needs_no_reach() -> None:
    assert reach_of(Shape.FLAT, world(1).kernel) is None


@given(st.integers(2, 15), st.integers(0, 2**32))
def test_tree_distances_are_those_of_a_tree(count: int, seed: int) -> None:
    made = world(count, seed)
    tree = HostTree(made.kernel, line=False)
    hosts = list(made.hosts.values())
    for host in hosts:
        tree.hops(host, host)
    distance = [
        [0 if one is other else tree.hops(one, other) or 0 for other in hosts] for one in hosts
    ]
    neighbours = sum(value == 1 for row in distance for value in row) // 2
    assert neighbours == count - 1
    for i in range(count):
        for j in range(count):
            assert distance[i][j] == distance[j][i]
            for k in range(count):
                assert distance[i][j] <= distance[i][k] + distance[k][j]
                assert (distance[i][j] + distance[i][k] + distance[j][k]) % 2 == 0


@pytest.mark.parametrize("shape", [Shape.TREE, Shape.LINE])
def test_the_same_seed_grows_the_same_tree(shape: Shape) -> None:
    def distances() -> list[int | None]:
        made = world(12, seed=9)
        reach = reach_of(shape, made.kernel)
        assert reach is not None
        return [reach(made.hosts["h0"], host) for host in made.hosts.values()]

    assert distances() == distances()
