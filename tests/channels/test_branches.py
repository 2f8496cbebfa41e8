"""Branches: who was told something else waits by itself, until it is in step with the others."""

from roamcast.channels.sessions.settings import HubSettings
from roamcast.identity.rules import Rule, Viewer
from tests.strategies_hub import Desk

SECOND = 1_000_000


def test_who_was_told_something_else_shares_frames_again() -> None:
    desk = Desk(HubSettings(frame_cost_us=1_000))
    for name in ("eve", "bob", "sam"):
        desk.open(name, Viewer(name))
        desk.watch(name, "within(place, 'hq')")
    (query,) = desk.broker._hub.queries.values()
    desk.rules("p", (Rule(viewers=("eve",), precision="exact"),))
    desk.keep("p", "hq/1")
    assert list(query.branches) == ["eve"]
    desk.run(SECOND)
    desk.keep("q", "hq/1")
    assert not query.branches
    assert sorted(query.shared) == ["bob", "eve", "sam"]
