"""Reads of a broker are pure: what happens afterwards is what would have happened without them."""

from random import Random
from typing import Any

import pytest

from roamcast.identity.rules import Hours, Rule, Viewer
from roamcast.matching.live.slices import run
from roamcast.model.filters import Filter
from tests.strategies_hub import Desk

VIDS = ("ann", "bob", "eve")
NOBODY, STAFF = frozenset[str](), frozenset({"staff"})
VIEWERS = tuple(Viewer(name, groups) for name in VIDS for groups in (NOBODY, STAFF))
WANTED = ("within(place, 'hq')", "n > 1", "place = 'hq/1' AND near(geometry, POINT(0 0), 9)")
HOURS = Hours(start_min=1, end_min=3)
RULES = (
    (),
    (Rule(viewers=("*",), precision="building"),),
    (Rule(viewers=("eve",), precision="hidden"), Rule(viewers=("*",), precision="exact")),
    (
        Rule(viewers=("staff",), precision="exact"),
        Rule(viewers=("*",), precision="room", hours=HOURS),
    ),
)


class Recorded(Desk):
    """A broker, and everything that it wanted done."""

    def __init__(self) -> None:
        self.effects: list[tuple[int, str]] = []
        super().__init__()

    def carry(self, effects: Any) -> None:
        wanted = list(effects)
        # as text, because two errors of the same words are not equal
        self.effects += ((self.now, repr(effect)) for effect in wanted)
        super().carry(wanted)


def act(desk: Recorded, draw: Random) -> None:
    """Do one thing that changes a broker."""
    vid, what = draw.choice(VIDS), draw.randrange(7)
    if what < 3:
        desk.keep(vid, f"hq/{draw.randrange(3)}", owner=vid, n=draw.randrange(4))
    elif what == 3:
        desk.release(vid, owner=vid)
    elif what == 4:
        desk.rules(vid, draw.choice(RULES), owner=vid)
    elif what == 5:
        session = f"{vid}#{draw.randrange(2)}"
        if session not in desk.readers:
            desk.open(session, draw.choice(VIEWERS))
        desk.watch(session, draw.choice(WANTED), str(len(desk.effects)))
    else:
        desk.run(draw.choice((1_000, 1_000_000, 60_000_000)))


def ask(desk: Recorded) -> None:
    """Read everything that people and operators may read."""
    broker, now = desk.broker, desk.now
    for viewer in VIEWERS:
        for wanted in map(Filter.parse, WANTED):
            found = broker.find(viewer, wanted, now)
            assert run(broker.count(viewer, wanted, now)) == len(found)
            assert run(broker.page(viewer, wanted, now, after="", limit=2)).contexts == found[:2]
            run(broker.nearest(viewer, (0.0, 0.0), wanted, 2, now))
            broker.price(viewer, wanted, now)
            broker.steps(viewer, [wanted], now)
        for vid in VIDS:
            broker.get(viewer, vid, now)
            broker.rules_for(viewer.name, vid, any_owner=True)
            broker.publication_for(vid, vid)
        prepared = broker.prepared(viewer, now)
        if prepared is not None:
            run(prepared)
        broker.class_of_client(viewer.name)
    assert broker.held()
    assert broker.default_rules is not None


@pytest.mark.parametrize("seed", range(8))
def test_reads_change_nothing_that_follows(seed: int) -> None:
    alone, asked = Recorded(), Recorded()
    draws = Random(seed), Random(seed)
    for _ in range(60):
        act(alone, draws[0])
        act(asked, draws[1])
        ask(asked)
        assert asked.effects == alone.effects
    assert asked.disk == alone.disk
