"""Deliberate defects of the state plane between brokers: the swarm finds each."""

import pytest

from roamcast.sim.workloads.states import StatesWorkload
from tests.planting import planted, promise_broken

pytestmark = pytest.mark.slow

PLANE = "roamcast.overlay.states.plane:StatePlane."
TABLE = "roamcast.overlay.states.table:States."
BUSY = {"nodes": 5, "people": 6, "watchers": 4, "changes": 40}


def test_a_hidden_attribute_that_is_shown_elsewhere_is_found() -> None:
    old = "matched = after.intersection(self._placed.values())"
    new = """matched = after.intersection(self._placed.values())
    known = self._local._server.map.contexts.get(vid)
    body = body if known is None else known.body"""
    with planted(PLANE + "_update", old, new):
        assert promise_broken(StatesWorkload, sizes=BUSY) == "nobody sees what rules hide"


def test_a_departed_context_that_stays_elsewhere_is_found() -> None:
    with planted(PLANE + "_update", "self._remove(vid, now)", "del self._out[vid]"):
        assert promise_broken(StatesWorkload, sizes=BUSY) == "every view is right in the end"


def test_contexts_of_a_node_that_is_gone_and_stay_are_found() -> None:
    old = "self._dropped.set(link, self._now + self._linger_us)"
    where = "roamcast.overlay.tables.link_table:LinkTable.drop"
    with planted(where, old, "pass"):
        broken = promise_broken(StatesWorkload, sizes={**BUSY, "gone": 1})
    assert broken == "every view is right in the end"


def test_a_change_that_is_missed_after_the_tree_changed_is_found() -> None:
    old = "link.sending.changed.update(keys)"
    with planted(TABLE + "wants_changed", old, "pass"):
        assert promise_broken(StatesWorkload, sizes=BUSY) in (
            "every view is right in the end",
            "tables are empty at rest",
        )
