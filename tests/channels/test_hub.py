"""Sessions in the server's process: each ends with the true view, slow or limited or late."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.channels.server.settings import MapSettings
from roamcast.channels.sessions.settings import HubSettings
from roamcast.errors import InputError, LimitError, NotFoundError
from roamcast.identity.rules import Viewer
from roamcast.model.filters import Filter
from tests.strategies_hub import Desk, Reader

SECOND = 1_000_000


def test_the_reply_has_the_current_set_and_every_change_follows() -> None:
    desk = Desk()
    desk.keep("p1", "hq/1")
    reader = desk.open("s")
    desk.watch("s", "within(place, 'hq')")
    assert desk.sees("s") == {"p1": "hq/1"}
    assert reader.complete
    desk.keep("p2", "hq/2")
    desk.keep("p1", "hq/2")
    desk.run(SECOND)
    assert desk.sees("s") == {"p1": "hq/2", "p2": "hq/2"}
    desk.keep("p1", "elsewhere")
    desk.release("p2")
    desk.run(SECOND)
    assert desk.sees("s") == {}


def test_equal_filters_share_one_frame() -> None:
    desk = Desk()
    for number in range(5):
        desk.open(f"s{number}")
        text = "within(place, 'hq') AND n = 1" if number % 2 else "n = 1 AND within(place, 'hq')"
        desk.watch(f"s{number}", text)
    desk.keep("p", "hq", n=1)
    desk.run(SECOND)
    sizes = {tuple(size for _, size in desk.readers[f"s{n}"].frames[2:]) for n in range(5)}
    assert len(sizes) == 1
    assert len(desk.broker._hub.queries) == 1


def test_what_changes_while_a_frame_waits_is_coalesced() -> None:
    desk = Desk(HubSettings(frame_cost_us=100_000))
    reader = desk.open("s")
    desk.watch("s", "within(place, 'hq')")
    before = len(reader.frames)
    for number in range(100):
        desk.keep("p", f"hq/{number}")
        desk.run(1_000)
    desk.run(SECOND)
    assert desk.sees("s") == {"p": "hq/99"}
    assert len(reader.frames) - before <= 3


def test_frames_of_a_query_leave_the_rarer_the_more_sessions_share_them() -> None:
    desk = Desk(HubSettings(frame_cost_us=1_000))
    for number in range(3):
        desk.open(f"s{number}")
        desk.watch(f"s{number}", "within(place, 'hq')")
    start = desk.now
    for number in range(100):
        desk.keep("p", f"hq/{number}")
        desk.run(100)
    times = [now for now, _ in desk.readers["s0"].frames if now > start]
    assert [after - before for before, after in pairwise(times)] == [3_000] * 3


@pytest.mark.limit("limits.subscriptions_per_client_max")
def test_sessions_and_watches_are_bounded() -> None:
    desk = Desk(HubSettings(sessions_max=2, subscriptions_per_session_max=2))
    desk.open("a")
    desk.open("b")
    with pytest.raises(LimitError, match="at most 2 sessions"):
        desk.open("c")
    desk.watch("a", "n = 1", "1")
    desk.watch("a", "n = 2", "2")
    desk.watch("a", "n = 3", "2")  # replaces
    with pytest.raises(LimitError, match="at most 2 subscriptions"):
        desk.watch("a", "n = 4", "3")
    with pytest.raises(InputError, match="no subscription '9'"):
        desk.unwatch("a", "9")
    for name in ("a", "b"):
        desk.close(name)
    assert not desk.broker._hub.queries
    assert not desk.broker._server.subscriptions.records


def test_many_subscriptions_are_placed_as_if_each_came_alone() -> None:
    texts = {"hq": "within(place, 'hq')", "one": "n = '1'", "same": "n = '1'", "none": "n = '2'"}
    alone, together = Desk(), Desk()
    for desk in (alone, together):
        desk.keep("p", "hq/1", n="1")
        desk.open("s")
    for about, text in texts.items():
        alone.watch("s", text, about)
    assert together.watch_many("s", texts) == {}
    assert together.readers["s"].frames == alone.readers["s"].frames
    for desk in (alone, together):
        desk.keep("q", "hq/2", n="2")
        desk.run(SECOND)
        assert desk.sees("s", "hq") == {"p": "hq/1", "q": "hq/2"}
        assert desk.sees("s", "one") == desk.sees("s", "same") == {"p": "hq/1"}
        assert desk.sees("s", "none") == {"q": "hq/2"}
    assert together.readers["s"].frames == alone.readers["s"].frames


def test_of_many_subscriptions_each_is_refused_by_itself() -> None:
    desk = Desk(
        HubSettings(subscriptions_per_session_max=3), map_settings=MapSettings(standing_steps_max=4)
    )
    desk.open("s#1")
    refused = desk.watch_many(
        "s#1", {"1": "a = 'x'", "2": "a = 'x' AND b = 'y'", "3": "a IN ('v', 'w')", "4": "b = 'z'"}
    )
    assert {about: str(why)[:30] for about, why in refused.items()} == {
        "3": "this subscription may cost eve"
    }
    assert desk.watch_many("s#1", {"1": "c = 'x'", "5": "d = 'x'"}).keys() == {"5"}  # 1 is replaced
    assert desk.broker._server.subscriptions.records == 3
    assert isinstance(desk.watch_many("gone", {"1": "true"})["1"], NotFoundError)
    desk.close("s#1")
    assert not desk.broker._hub.queries
    assert not desk.broker._server.subscriptions.records


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_in_the_end_every_session_has_read_the_true_view(seed: int) -> None:
    draw = random.Random(seed)
    desk = Desk(HubSettings(frame_cost_us=draw.choice([0, 15, 50_000]), page_features_max=3))
    texts = ["within(place, 'hq')", "place = 'hq/1'", "n > 1", "n > 1 OR place = 'hq/2'"]
    watching: dict[str, dict[str, str]] = {}
    slow: set[str] = set()
    for _ in range(150):
        what = draw.randrange(10)
        names = sorted(watching)
        if what < 5:
            desk.keep(f"p{draw.randrange(8)}", f"hq/{draw.randrange(3)}", n=draw.randrange(4))
        elif what == 5:
            desk.release(f"p{draw.randrange(8)}")
        elif what == 6 and len(names) < 6:
            name = f"s{len(names)}"
            desk.open(name)
            watching[name] = {}
            if draw.random() < 0.3:
                desk.limit(name, 20_000)
        elif what == 7 and names:
            name, about = draw.choice(names), draw.choice("ab")
            watching[name][about] = draw.choice(texts)
            desk.watch(name, watching[name][about], about)
        elif what == 8 and names:
            name = draw.choice(names)
            if name in slow:
                slow.discard(name)
                desk.drained(name)
            else:
                slow.add(name)
                desk.slow(name)
        else:
            desk.run(draw.randrange(200_000))
    for name in sorted(slow):
        desk.drained(name)
    desk.run(20 * SECOND)
    for name, watches in watching.items():
        reader: Reader = desk.readers[name]
        assert not reader.cut
        for about, text in watches.items():
            found = desk.broker.find(Viewer(name), Filter.parse(text), desk.now)
            assert desk.sees(name, about) == {one.vid: one.place for one in found}, (name, text)
            assert reader.query_of[about] in reader.complete
