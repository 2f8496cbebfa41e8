"""Topologies: each against its definition by brute force, and against rustworkx."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import rustworkx as rx
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import LimitError
from roamcast.model.buildings import Ground
from roamcast.sim.topology import trees
from roamcast.sim.topology.cells import CellGrid, CellGridSize
from roamcast.sim.topology.graph import NODES_MAX, Floats, Topology, check_size, tree
from roamcast.sim.topology.radio import radio_graph
from roamcast.sim.topology.roles import (
    access_nodes,
    choose_trusted,
    trusted_nodes,
    zipf_exponent,
    zipf_weights,
)
from roamcast.sim.topology.tradeoff import build_for_bench, tradeoff_tree, tradeoff_tree_of
from roamcast.sim.topology.trees import (
    complete_tree,
    links_of_code,
    recursive_tree,
    uniform_tree,
)


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def is_tree(topology: Topology) -> bool:
    return len(topology.links) == topology.nodes - 1 and rx.is_connected(topology.graph()) is True


# The common form


def test_neighbours_and_degrees_are_those_of_the_graph() -> None:
    topology = radio_graph(rng().random((60, 2)), 0.2)
    graph = topology.graph()
    for node in range(60):
        assert topology.neighbours(node).tolist() == sorted(graph.neighbors(node))
        assert topology.degrees[node] == graph.degree(node)


def test_the_number_of_nodes_stops_at_its_limit() -> None:
    assert check_size(NODES_MAX) == NODES_MAX
    for wrong in (0, NODES_MAX + 1):
        with pytest.raises(LimitError):
            check_size(wrong)
    with pytest.raises(LimitError):
        complete_tree(10, 7)
    with pytest.raises(LimitError):
        complete_tree(0, 7)


# Trees


def test_the_complete_binary_tree_of_cbm_has_127_vertices_and_64_leaves() -> None:
    topology = complete_tree(2, 6)
    assert topology.nodes == 127
    assert is_tree(topology)
    depths = topology.depths()
    assert (depths == 6).sum() == 64
    assert ((topology.degrees == 1) == (depths == 6)).all()


@given(st.integers(1, 5), st.integers(0, 4))
def test_inner_vertices_of_a_complete_tree_have_all_their_children(arity: int, depth: int) -> None:
    topology = complete_tree(arity, depth)
    assert topology.nodes == sum(arity**level for level in range(depth + 1))
    children = Counter(topology.parents.tolist())  # type: ignore[union-attr]
    for node, level in enumerate(topology.depths()):
        assert children[node] == (arity if level < depth else 0)


@given(st.integers(1, 40), st.integers(0, 9), st.sampled_from([None, 1, 2, 3]))
def test_a_recursive_tree_is_a_tree_with_room(nodes: int, seed: int, most: int | None) -> None:
    topology = recursive_tree(nodes, rng(seed), most)
    assert is_tree(topology)
    children = Counter(topology.parents.tolist()[1:])  # type: ignore[union-attr]
    assert most is None or max(children.values(), default=0) <= most


def test_a_recursive_tree_joins_each_older_node_with_equal_chance() -> None:
    parents = [recursive_tree(4, rng(seed)).parents[3] for seed in range(3000)]  # type: ignore[index]
    assert all(900 < parents.count(older) < 1100 for older in range(3))


def test_every_code_gives_another_labelled_tree() -> None:
    codes = itertools.product(range(5), repeat=3)
    found = {frozenset(map(frozenset, links_of_code(np.array(code)))) for code in codes}
    assert len(found) == 5**3  # Cayley: n^(n-2)


@given(st.integers(1, 40), st.integers(0, 9))
def test_a_uniform_tree_is_a_tree(nodes: int, seed: int) -> None:
    assert is_tree(uniform_tree(nodes, rng(seed)))


def test_uniform_trees_are_stars_as_often_as_they_should_be() -> None:
    # 16 labelled trees on 4 nodes, 4 of them stars.
    stars = sum(uniform_tree(4, rng(seed)).degrees.max() == 3 for seed in range(4000))
    assert 880 < stars < 1120


# Trade-off graphs


def joined_by_trying_all(points: Floats, alpha: float) -> list[int]:
    parents, hops = [-1], [0]
    for node in range(1, len(points)):
        away = points[:node] - points[node]
        costs = alpha * np.sqrt(away[:, 0] * away[:, 0] + away[:, 1] * away[:, 1]) + hops
        parents.append(int(np.argmin(costs)))  # the first of equal ones
        hops.append(hops[parents[-1]] + 1)
    return parents


@settings(max_examples=60)
@given(st.integers(1, 300), st.integers(0, 99), st.sampled_from([0.0, 0.5, 4.0, 20.0, 100.0, 1e4]))
def test_the_pyramid_finds_the_node_that_trying_all_finds(n: int, seed: int, alpha: float) -> None:
    points = rng(seed).random((n, 2))
    built = tradeoff_tree_of(points, alpha)
    assert built.parents is not None
    assert built.parents.tolist() == joined_by_trying_all(points, alpha)


@settings(max_examples=60)
@given(st.lists(st.tuples(*[st.integers(0, 8)] * 2), min_size=1, max_size=60), st.integers(0, 12))
def test_ties_and_borders_go_to_the_oldest(corners: list[tuple[int, int]], alpha: int) -> None:
    # Points on the lines of the grid, many of them equal: every kind of tie.
    points = np.array(corners, dtype=np.float64) / 8
    built = tradeoff_tree_of(points, alpha)
    assert built.parents is not None
    assert built.parents.tolist() == joined_by_trying_all(points, alpha)


def test_the_pyramid_is_exact_at_ten_times_the_size_too() -> None:
    points = rng(7).random((3000, 2))
    built = tradeoff_tree_of(points)
    assert built.parents is not None
    assert built.parents.tolist() == joined_by_trying_all(points, 20.0)


def test_a_small_alpha_gives_a_star_as_its_authors_prove() -> None:
    # Theorem 1 of Fabrikant et al.: α < 1/√2, the largest distance being √2.
    assert tradeoff_tree(2000, rng(), 0.7).degrees.max() == 1999


def test_tccs_topology_is_a_tree_of_hubs_and_leaves() -> None:
    topology = tradeoff_tree(10_000, rng())
    assert is_tree(topology)
    assert topology.degrees.max() > 50
    assert (topology.degrees == 1).mean() > 0.85
    # Above √n the tail is exponential: no hubs.
    assert tradeoff_tree(10_000, rng(), 1000.0).degrees.max() < 20


def test_the_same_seed_gives_the_same_routers() -> None:
    one, other = tradeoff_tree(500, rng(3)), tradeoff_tree(500, rng(3))
    assert (one.links == other.links).all()
    assert (one.points == other.points).all()
    assert build_for_bench(500) == build_for_bench(500)


@pytest.mark.parametrize("alpha", [-1.0, math.nan, math.inf])
def test_an_impossible_alpha_is_refused(alpha: float) -> None:
    with pytest.raises(LimitError, match="alpha"):
        tradeoff_tree(3, rng(), alpha)
    with pytest.raises(LimitError, match="square"):
        tradeoff_tree_of(np.array([[0.0, 1.5]]))


# Roles


def test_a_fifth_of_the_ranks_holds_four_fifths_of_the_weight() -> None:
    for count in (10, 300, 10_000):
        weights = zipf_weights(count)
        assert weights[: count // 5].sum() == pytest.approx(0.8)
        assert weights.sum() == pytest.approx(1.0)
        assert (np.diff(weights) < 0).all()
    with pytest.raises(LimitError):
        zipf_exponent(10, head=0.9, share=0.8)


def test_access_nodes_are_distinct_and_mostly_of_low_degree() -> None:
    topology = tradeoff_tree(10_000, rng())
    chosen = access_nodes(topology, 7000, rng(2))
    assert len(set(chosen.tolist())) == 7000
    assert (np.diff(chosen) > 0).all()
    hubs = np.argsort(topology.degrees)[-500:]
    assert np.isin(hubs, chosen).mean() < 0.65  # of all nodes 0.7
    with pytest.raises(LimitError):
        access_nodes(topology, 10_001, rng())
    assert len(access_nodes(topology, 10_000, rng())) == 10_000


@pytest.mark.slow
def test_sampling_without_replacement_draws_the_first_by_weight() -> None:
    # On a path of 5 nodes the two ends have the lowest degree; one draw follows the weights.
    path = tree(np.array([-1, 0, 1, 2, 3]))
    firsts = Counter(int(access_nodes(path, 1, rng(seed))[0]) for seed in range(1000))
    weights = zipf_weights(5)
    ends = (firsts[0] + firsts[4]) / 1000
    assert ends == pytest.approx(weights[:2].sum(), abs=0.05)


def test_people_choose_few_trusted_nodes_most_of_the_time() -> None:
    topology = tradeoff_tree(10_000, rng())
    trusted = trusted_nodes(topology, 300, rng(2))
    assert len(set(trusted.tolist())) == 300
    chosen = choose_trusted(trusted, 50_000, rng(3))
    assert np.isin(chosen, trusted[:60]).mean() == pytest.approx(0.8, abs=0.01)
    with pytest.raises(LimitError):
        trusted_nodes(topology, 10_001, rng())


# Cells


@pytest.mark.parametrize("shape", ["hexagon", "square"])
def test_a_point_belongs_to_the_nearest_base_station(shape: str) -> None:
    grid = CellGrid(CellGridSize(7, 6, 3, 2, 100.0, shape))  # type: ignore[arg-type]
    points = rng().random((2000, 2)) * [860, 760] - [100, 100]
    away = np.linalg.norm(points[:, None] - grid.centres_m[None], axis=2)
    cells = grid.cell_of(points)
    inside = cells >= 0
    assert (cells[inside] == away.argmin(axis=1)[inside]).all()
    radius = 100 / math.sqrt(3) if shape == "hexagon" else 100 / math.sqrt(2)
    assert (away.min(axis=1)[~inside] > 49.99).all()
    assert (away.min(axis=1)[inside] <= radius + 1e-9).all()
    assert 100 < (~inside).sum() < 1000


@pytest.mark.parametrize("shape", ["hexagon", "square"])
def test_neighbours_are_the_cells_one_pitch_away(shape: str) -> None:
    grid = CellGrid(CellGridSize(6, 5, 2, 2, 100.0, shape))  # type: ignore[arg-type]
    away = np.linalg.norm(grid.centres_m[:, None] - grid.centres_m[None], axis=2)
    for cell in range(grid.cells):
        near = np.flatnonzero((away[cell] > 1) & (away[cell] < 100.01))
        assert grid.topology.neighbours(cell).tolist() == near.tolist()


def test_border_cells_are_those_with_a_neighbour_in_another_area() -> None:
    grid = CellGrid(CellGridSize(20, 20, 8, 8))
    assert grid.areas == 9
    for cell in range(grid.cells):
        beyond = {int(grid.area[n]) for n in grid.topology.neighbours(cell)} - {
            int(grid.area[cell])
        }
        assert set(grid.border_cells.get(cell, ())) == beyond
    assert (np.bincount(grid.area)[[0, 1]] == 64).all()  # 50 to 100 cells in an area, as JIT says
    areas = grid.area_topology
    assert areas.nodes == 9
    assert areas.degrees.min() >= 2
    links = {tuple(link) for link in areas.links.tolist()}
    crossed = {(min(a, b), max(a, b)) for a, b in grid.area[grid.topology.links].tolist() if a != b}
    assert links == crossed


def test_the_grid_can_be_drawn_as_places() -> None:
    grid = CellGrid(CellGridSize(4, 4, 2, 2, 500.0))
    places = grid.places(Ground((103.8, 1.3)))
    assert len(places) == 1 + 4 + 16
    for cell in range(grid.cells):
        centre = Ground((103.8, 1.3)).point(*grid.centres_m[cell])
        assert places.deepest(centre) == grid.path(cell)
    way = places.route(grid.path(0), grid.path(15))
    hops = rx.dijkstra_shortest_path_lengths(grid.topology.graph(), 0, float, goal=15)[15]
    assert way is not None
    assert way.metres == 500.0 * hops


def test_a_grid_needs_cells() -> None:
    with pytest.raises(LimitError):
        CellGrid(CellGridSize(0, 4))
    with pytest.raises(LimitError):
        CellGrid(CellGridSize(4, 4, 0, 2))
    with pytest.raises(LimitError):
        CellGrid(CellGridSize(4000, 4000))


# Radio


@given(st.integers(1, 50), st.integers(0, 99), st.floats(0.01, 2.0))
def test_radios_hear_each_other_within_range(nodes: int, seed: int, reach: float) -> None:
    points = rng(seed).random((nodes, 2))
    expected = [
        (a, b)
        for a, b in itertools.combinations(range(nodes), 2)
        if math.dist(points[a], points[b]) <= reach
    ]
    assert [tuple(link) for link in radio_graph(points, reach).links.tolist()] == expected


def test_radio_positions_and_range_must_make_sense() -> None:
    for points, reach in (([[0, math.nan]], 1.0), ([[0, 0]], 0.0), ([[0, 0]], math.inf)):
        with pytest.raises(LimitError):
            radio_graph(points, reach)


def test_trees_can_be_walked_by_rustworkx() -> None:
    topology = trees.complete_tree(2, 4)
    lengths = rx.dijkstra_shortest_path_lengths(topology.graph(), 0, float)
    assert [lengths[n] for n in range(1, 31)] == topology.depths()[1:].tolist()
