"""Placing: how frames call the queries of sessions."""

from roamcast.identity.rules import Viewer
from tests.strategies_hub import Desk

HQ, ONE = "within(place, 'hq')", "place = 'hq/1'"


def test_one_filter_has_one_number_in_every_view_class_until_nobody_watches_it() -> None:
    desk = Desk()
    desk.open("eve", Viewer("eve"))
    desk.open("sam", Viewer("sam", frozenset({"staff"})))
    for name in ("eve", "sam"):
        desk.watch(name, HQ, "all")
        desk.watch(name, ONE, "some")
    readers = [desk.readers[name] for name in ("eve", "sam")]
    numbers = [(reader.query_of["all"], reader.query_of["some"]) for reader in readers]
    assert numbers == [(1, 2), (1, 2)]
    placing = desk.broker._hub.placing
    desk.close("eve")
    assert placing.occupancy(2) == {"numbered queries": (2, 2), "numbered filters": (2, 2)}
    desk.close("sam")
    assert placing.occupancy(0) == {"numbered queries": (0, 0), "numbered filters": (0, 0)}
    desk.open("bob")
    desk.watch("bob", HQ)
    assert desk.readers["bob"].query_of["w"] == 3
