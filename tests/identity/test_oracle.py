"""Every path to a context against the oracle: nobody sees anything else than the rules say."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.broker import Acknowledged, Broker, PublishFor
from roamcast.channels.server.settings import MapSettings
from roamcast.identity.rules import Hours, Rule, Viewer, visible
from roamcast.matching.live.slices import run
from roamcast.model import time
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.places import Places
from tests.identity import oracle
from tests.identity.rule_cases import MINUTE, NOON, PLACES, VIEWERS
from tests.strategies_hub import Desk

# Narrow on purpose: rules of one viewer must meet at one instant, with equal precisions.
hours = st.none() | st.builds(
    Hours,
    days=st.sampled_from([(0, 1, 2, 3, 4, 5, 6), (0,), (1, 2), (3, 4, 5), (6, 0), ()]),
    start_min=st.sampled_from([0, 660, 719, 720]),
    end_min=st.sampled_from([721, 780, 1440]),
    offset_min=st.sampled_from([0, 60, -60, 1440, -1440, 719]),
)
rules = st.lists(
    st.builds(
        Rule,
        viewers=st.sampled_from([("*",), ("bob",), ("legal",), ("x", "bob", "cid"), ()]),
        precision=st.sampled_from(
            ["exact", "exact", "room", "floor", "building", "region", "presence", "hidden"]
        ),
        hours=hours,
        past=st.booleans(),
        attributes=st.sampled_from([None, (), ("role",), ("age",), ("role", "age")]),
    ),
    max_size=4,
)
moments = st.sampled_from(
    [NOON + step * MINUTE for step in (-1500, -720, -61, -60, -1, 0, 1, 59, 60, 719, 720, 1440)]
)
contexts = st.builds(
    lambda place, point, t_r, lasts: Context(
        "v@t",
        place,
        point,
        {"role": "guest", "age": 5},
        t_r,
        None if lasts is None else t_r + lasts,
    ),
    st.sampled_from([None, "c", "c/b", "c/b/w/2", "c/b/w/2/7", "c/yard", "x/y/z/1/2"]),
    st.sampled_from([None, (1.25, 0.5)]),
    moments,
    st.sampled_from([None, None, MINUTE, 60 * MINUTE, 1440 * MINUTE]),
)


@given(contexts, rules, st.sampled_from(VIEWERS), moments, st.sampled_from([PLACES, None]))
@settings(max_examples=1500)
def test_a_context_is_shown_as_the_oracle_reads_the_rules(
    context: Context, given_rules: list[Rule], viewer: Viewer, now: int, places: Places | None
) -> None:
    seen = visible(context, given_rules, viewer, now, places)
    assert seen == oracle.shown(context, given_rules, viewer, now, places)


class PlacedDesk(Desk):
    """A desk whose broker knows places."""

    def boot(self) -> None:
        self.broker = Broker(
            "test", epoch=self.now, now=self.now, load=self.load, map_settings=MapSettings(),
            places=PLACES,
        )  # fmt: skip


WANTED = [
    "vid LIKE 'v%'",
    "role = 'guest'",
    "age > 4",
    "within(place, 'c/b')",
    "place = 'c/b/w/2/7'",
]
near = st.sampled_from([NOON + step * MINUTE for step in (-1, 0, 1)])  # timers between are many
some_people = st.lists(st.tuples(contexts, rules), min_size=1, max_size=3)
PATHS = ("find", "get", "nearest", "session")
NEWCOMER = Viewer("eve", frozenset({"legal", "staff"}))
"""Comes last, into a view class of its own: what it is shown at first was never an update of it."""


@given(some_people, st.sampled_from(WANTED), st.lists(near, min_size=1, max_size=2))
@settings(max_examples=60)
def test_no_path_shows_anything_else_than_the_oracle(
    people: list[tuple[Context, list[Rule]]], text: str, later: list[int]
) -> None:
    walk(people, text, later, PATHS)


def walk(people: Any, text: str, later: list[int], paths: Any) -> None:
    """Publish people with rules, let time pass, and compare every path at every stop."""
    stops = sorted(set(later))
    desk = PlacedDesk()
    desk.now = stops[0]
    desk.boot()
    wanted = Filter.parse(text)
    for viewer in VIEWERS[:2]:
        desk.open(viewer.name, viewer)
        desk.watch(viewer.name, text)
    truth: dict[str, tuple[Context, list[Rule]]] = {}
    for number, (context, own) in enumerate(people):
        vid = f"v{number}"
        assert isinstance(desk.rules(vid, own), Acknowledged)
        truth[vid] = (
            Context(
                vid, context.place, context.point, context.attributes, context.t_r, context.t_d
            ),
            own,
        )
    for vid, (context, _) in truth.items():
        desk.tickets += 1
        desk.give(PublishFor(desk.tickets, "ann", context))
        if not isinstance(desk.answers[desk.tickets], Acknowledged):
            truth = {name: one for name, one in truth.items() if name != vid}
    for at in stops:
        desk.run(at - desk.now + 1_000_000)
        late = f"late{at}"
        desk.open(late, VIEWERS[0])
        desk.watch(late, text)
        newcomer = f"new{at}"
        desk.open(newcomer, NEWCOMER)
        desk.watch(newcomer, text)
        some = [("bob", VIEWERS[0]), ("cid", VIEWERS[1]), (late, VIEWERS[0]), (newcomer, NEWCOMER)]
        for session, viewer in some:
            compare(desk, session, viewer, wanted, truth, paths)


def compare(
    desk: Desk, session: str, viewer: Viewer, wanted: Filter, truth: Any, paths: Any
) -> None:
    now = desk.now
    may = {
        vid: seen
        for vid, (context, own) in truth.items()
        if (seen := oracle.shown(context, own, viewer, now, PLACES)) is not None
    }
    matched = {vid: seen for vid, seen in may.items() if wanted.matches(seen)}
    if "find" in paths:
        assert {one.vid: one for one in desk.broker.find(viewer, wanted, now)} == matched
    if "get" in paths:
        assert {v: desk.broker.get(viewer, v, now) for v in truth} == {v: may.get(v) for v in truth}
    if "nearest" in paths:
        found = run(desk.broker.nearest(viewer, (0.0, 0.0), wanted, 10, now))
        near = {one.context.vid: one.context for one in found}
        assert near == {vid: one for vid, one in matched.items() if one.point is not None}
    if "session" in paths:
        desk.run(2_000_000)  # events leave in batches
        now = desk.now
        reader = desk.readers[session]
        view = reader.views[reader.query_of["w"]]
        lasting = {vid: one for vid, one in matched.items() if truth[vid][0].t_d is None}
        assert {vid for vid in view if truth[vid][0].t_d is None} == set(lasting)
        for vid, seen in lasting.items():
            told = view[vid]
            told_properties = {k: v for k, v in told["properties"].items() if k in ("role", "age")}
            assert told_properties == seen.attributes
            assert told["properties"].get("place") == seen.place
            point = None if told["geometry"] is None else tuple(told["geometry"]["coordinates"])
            assert point == seen.point
            begun = time.parse_instant(told["properties"]["t_r"])
            first = oracle.shown(*truth[vid], viewer, begun, PLACES)
            assert first is not None
            assert begun >= first.t_r


@pytest.mark.parametrize("path", PATHS)
def test_each_path_alone_is_compared(path: str) -> None:
    """The comparison itself is no empty one: a person in sight is seen on every path."""
    person = Context("v@t", "c/b/w/2/7", (1.25, 0.5), {"role": "guest", "age": 5}, NOON)
    grant = [Rule(viewers=("*",), precision="floor", attributes=("age",))]
    walk([(person, grant)], "age > 4", [NOON, NOON + MINUTE], (path,))
