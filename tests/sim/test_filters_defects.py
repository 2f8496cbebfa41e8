"""Deliberate defects of filters between brokers: the swarm finds each."""

import pytest

from roamcast.sim.workloads.filters import FiltersWorkload
from tests.planting import planted, promise_broken

pytestmark = pytest.mark.slow

BUSY = {"nodes": 7, "more_edges": 1, "limit": 2, "items": 120, "changes": 30, "subscribers": 6}
"""Much moves in such a tree."""

PART = "roamcast.overlay.filters.part:NodeFilters."


def test_a_filter_that_breaks_before_it_makes_is_found() -> None:
    old = "return [*effects, *self._again(order.target, now)]"
    new = """effects = [*effects, *self._again(order.target, now)]
    if self.state is FilterState.MIGRATING:
        effects += self._move(FilterEvent.INSTALLED, now, order.rank)
    return effects"""
    with planted(PART + "_begin", old, new):
        assert promise_broken(FiltersWorkload, sizes=BUSY) == "make before break"


def test_an_older_batch_that_wins_is_found() -> None:
    sizes = {**BUSY, "nodes": 12, "more_edges": 3, "limit": 3}
    with (
        planted(PART + "_ordered", "if order.rank < self.rank:", "if False:"),
        planted(PART + "_install", "if asked.rank < self.rank:", "if False:"),
    ):
        assert promise_broken(FiltersWorkload, sizes=sizes) in (
            "the newer batch wins",
            "make before break",
        )


def test_two_batches_of_one_number_are_found() -> None:
    old = "Rank(max(highest, self.rank.number, self._planned) + 1, self.node)"
    with planted(PART + "_batch", old, "Rank(1, self.node)"):
        assert promise_broken(FiltersWorkload, sizes=BUSY) == "two batches never share a number"


def test_a_passive_node_that_drops_is_found() -> None:
    old = "return [link for link in self._topology.tree_links if link != came_from]"
    with planted(PART + "links", old, "return ()"):
        assert promise_broken(FiltersWorkload, sizes=BUSY) in ("no loss", "liveness")


def test_a_count_that_includes_the_roots_own_clients_is_found() -> None:
    old = "self._wanted += any(link != came_from for link in beyond())"
    new = "self._wanted += here() or any(link != came_from for link in beyond())"
    with planted(PART + "count", old, new):
        assert promise_broken(FiltersWorkload, sizes=BUSY) == "flows are counted right"


def test_a_count_that_forgets_own_clients_below_the_root_is_found() -> None:
    old = "self._wanted += here() or any(link != parent for link in beyond())"
    new = "self._wanted += any(link != parent for link in beyond())"
    with planted(PART + "count", old, new):
        assert promise_broken(FiltersWorkload, sizes=BUSY) == "flows are counted right"
