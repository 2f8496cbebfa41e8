"""Notes: in slices, a new query is noted at all contexts that satisfy it, and at no others."""

from roamcast.channels.server.settings import MapSettings
from tests.strategies_hub import Desk

SECOND = 1_000_000


def test_a_query_that_is_withdrawn_before_it_is_noted_leaves_nothing() -> None:
    desk = Desk(map_settings=MapSettings(notes_max=5))
    for number in range(20):
        desk.keep(f"p{number:03}", "hq")
    desk.open("s")
    desk.watch("s", "within(place, 'hq')")
    assert desk.broker._server.contexts.notes.unnoted
    desk.unwatch("s")
    desk.keep("p003", "hq/1")
    desk.run(SECOND)
    assert desk.broker._server.contexts.notes.unnoted == {}
