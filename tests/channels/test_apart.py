"""Viewers whom rules name: each sees what it may, and other updates cost no more for them."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.broker import Frame
from roamcast.channels.server import apart
from roamcast.channels.server.messages import State
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.sessions.settings import HubSettings
from roamcast.identity.rules import Rule, Viewer
from roamcast.model.contexts import Context, body_of
from roamcast.model.filters import Filter
from tests.strategies_hub import Desk

SECOND = 1_000_000
TEXTS = ("within(place, 'hq')", "place = 'hq/1'", "n > 1", "vid <> ''")
NAMES = ("eve", "bob", "sam", "staff", "*")


def rule_of(draw: random.Random) -> Rule:
    named = tuple(draw.sample(NAMES, draw.randint(1, 3)))
    return Rule(
        viewers=named,
        precision=draw.choice(["hidden", "exact", "exact", "building"]),
        attributes=draw.choice([None, (), ("n",)]),
        past=draw.random() < 0.5,
    )


class Crowd:
    """Sessions that come, watch, are slow and go, while objects move and rules change."""

    def __init__(self, desk: Desk, draw: random.Random) -> None:
        self.desk, self.draw = desk, draw
        self.watching: dict[str, dict[str, str]] = {}
        self.viewers: dict[str, Viewer] = {}

    def step(self) -> None:
        desk, draw, vid = self.desk, self.draw, f"p{self.draw.randrange(5)}"
        what = draw.randrange(12)
        if what < 4:
            desk.keep(vid, f"hq/{draw.randrange(3)}/x", n=draw.randrange(4))
        elif what == 4:
            desk.release(vid)
        elif what < 8:
            rules = [rule_of(draw) for _ in range(draw.randint(0, 2))]
            desk.rules(vid, rules if draw.random() < 0.8 else None)
        elif what == 8:
            self._come_or_go(f"s{draw.randrange(6)}")
        elif what < 11 and self.watching:
            name = draw.choice(sorted(self.watching))
            if what == 10:
                draw.choice([desk.slow, desk.drained])(name)
            else:
                about = draw.choice("ab")
                self.watching[name][about] = draw.choice(TEXTS)
                desk.watch(name, self.watching[name][about], about)
        else:
            desk.run(draw.randrange(200_000))

    def _come_or_go(self, name: str) -> None:
        if name not in self.watching:
            groups = frozenset({"staff"}) if self.draw.random() < 0.3 else frozenset()
            self.viewers[name] = Viewer(self.draw.choice(["eve", "bob", "sam", ""]), groups)
            self.watching[name] = {}
            self.desk.open(name, self.viewers[name])
        elif self.draw.random() < 0.3:
            del self.watching[name]
            self.desk.close(name)

    def check(self) -> None:
        """Each session's program knows what its viewer may see."""
        for name, watches in self.watching.items():
            reader = self.desk.readers[name]
            for about, text in watches.items():
                wanted = Filter.parse(text)
                found = self.desk.broker.find(self.viewers[name], wanted, self.desk.now)
                view = reader.views[reader.query_of[about]]
                assert sorted(view) == [one.vid for one in found], (name, about, text)
                for one in found:
                    shown = view[one.vid]["properties"]
                    assert shown["place"] == one.place
                    assert shown.get("n") == one.attributes.get("n")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_in_the_end_everybody_has_read_what_rules_show_them(seed: int) -> None:
    draw = random.Random(seed)
    desk = Desk(
        HubSettings(frame_cost_us=draw.choice([0, 15, 50_000]), page_features_max=2),
        map_settings=MapSettings(notes_max=draw.choice([1, 512])),
    )
    crowd = Crowd(desk, draw)
    for _ in range(120):
        crowd.step()
    for name in crowd.watching:
        desk.drained(name)
    desk.run(20 * SECOND)
    crowd.check()
    held = desk.broker.occupancy()
    assert all(used <= most for used, most in held.values()), held
    for name in crowd.watching:
        desk.close(name)
    named = desk.broker._server.contexts.apart.named
    assert not named.known
    assert not any(known.apart for known in desk.broker._server.map.contexts.values())


@pytest.mark.parametrize("many", [1, 40])
def test_an_update_is_one_frame_for_all_whom_other_rules_name(many: int) -> None:
    desk = Desk(HubSettings(frame_cost_us=0))
    names = [f"v{number}" for number in range(many)]
    desk.rules("private", (Rule(viewers=tuple(names), precision="exact"),))
    desk.keep("private", "hq/2")
    for name in names:
        desk.open(name, Viewer(name))
        desk.watch(name, "within(place, 'hq')")
    frames: list[Any] = []
    carry = desk.carry

    def counted(effects: Any) -> None:
        frames.extend(one for one in effects if isinstance(one, Frame))
        carry(effects)

    desk.carry = counted  # type: ignore[method-assign]
    desk.keep("open", "hq/1")
    assert [len(frame.sessions) for frame in frames] == [many]
    assert all(desk.sees(name) == {"open": "hq/1", "private": "hq/2"} for name in names)


def test_a_name_that_many_contexts_rules_have_goes_by_the_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apart, "SMALL_MAX", 1)
    desk = Desk(map_settings=MapSettings(notes_max=1))
    for number in range(4):
        desk.rules(f"p{number}", (Rule(viewers=("eve",), precision="exact"),))
        desk.keep(f"p{number}", f"hq/{number % 2}")
    for name in ("eve", "bob"):
        desk.open(name, Viewer(name))
        desk.watch(name, "place = 'hq/1'")
    assert desk.sees("eve") == {"p1": "hq/1", "p3": "hq/1"}
    desk.keep("p1", "hq/0")  # before all of them are noted
    desk.run(SECOND)
    assert desk.sees("eve") == {"p3": "hq/1"}
    assert desk.sees("bob") == {}


def test_a_viewer_is_told_each_change_under_a_number_of_its_own_also_the_last() -> None:
    desk = Desk(HubSettings(frame_cost_us=0))
    desk.open("eve")
    desk.watch("eve", "within(place, 'hq')")
    told: list[str] = []
    carry = desk.carry

    def heard(effects: Any) -> None:
        for one in effects:
            if isinstance(one, Frame):
                told.extend(event["id"] for event in msgspec.json.decode(one.data)["events"])
        carry(effects)

    desk.carry = heard  # type: ignore[method-assign]
    desk.rules("p", (Rule(viewers=("eve",), precision="exact"),))
    for room in range(3):  # all in one moment, which the numbers tell
        desk.keep("p", f"hq/{room}")
    desk.rules("p", None)  # eve knows it already as all see it now
    desk.release("p")
    assert desk.sees("eve") == {}
    numbers = [int(name.rpartition("-")[2]) for name in told]
    assert len(numbers) == 4
    assert numbers == sorted(set(numbers))


def test_a_query_that_a_viewer_places_again_stands_since_the_first_time() -> None:
    desk = Desk(HubSettings(page_features_max=1), map_settings=MapSettings(notes_max=1))
    for vid in ("p", "q", "r"):
        desk.rules(vid, (Rule(viewers=("eve",), precision="exact"),))
        desk.keep(vid, "hq/1")
    for session in ("phone", "laptop"):
        desk.open(session, Viewer("eve"))
    desk.watch("phone", "within(place, 'hq')")
    desk.now += 1
    desk.keep("open", "hq/1")  # the class counts on
    desk.watch("laptop", "within(place, 'hq')")
    hub = desk.broker._hub
    (key,) = hub.queries
    states = [hub.placing.state(hub.sessions["phone"], key, vid) for vid in ("r", "open")]
    first, later = (state.number for state in states if state is not None)
    assert first < later


def test_a_state_of_elsewhere_is_not_at_hand_where_the_object_is_hidden_or_unknown() -> None:
    desk = Desk()
    desk.open("eve")
    desk.watch("eve", "within(place, 'hq')")
    desk.rules("hidden", (Rule(viewers=("bob",), precision="exact"),))
    desk.keep("hidden", "hq/1")
    hub = desk.broker._hub
    session = hub.sessions["eve"]
    for vid in ("hidden", "unknown"):
        state = State(1, vid, body_of(Context(vid, "hq/2")))
        assert hub._local.decoded(session.view_class, state, session.viewer) is None
