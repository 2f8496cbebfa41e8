"""What lies on the maps of other nodes: what is told, and what is forgotten."""

from roamcast.model.contexts import Context, body_of
from roamcast.model.filters import Filter
from roamcast.overlay.states.table import VIEW, SharedState, States, key_of
from roamcast.overlay.tables.table import LINGER_US
from roamcast.overlay.tables.wants import Wants
from tests.tables_net import Net

EDGE = [("a", "b")]


def test_a_neighbour_that_is_forgotten_leaves_nothing_of_what_was_to_go_there() -> None:
    wants = Net({name: Wants() for name in "ab"}, EDGE)
    wants.tables["b"].subscribe("p", VIEW, Filter.parse("true"))
    wants.heal()
    states = Net({name: States(table, lambda: True) for name, table in wants.tables.items()}, EDGE)
    here, there = states.tables["a"], states.tables["b"]
    key, body = key_of("a", "v"), body_of(Context("v", "hall", None, {}, 1))
    here.put(SharedState("a", 1, 1, "v", body))
    states.settle()
    found = there.best(key)
    assert found is not None
    assert found.body == body
    here.put(SharedState("a", 1, 2, "v"))
    assert here.offer("b") is not None
    assert here._going == {"b": {key}}
    here.drop("b")
    here.advance(here._now + LINGER_US)
    assert not here._going
