"""Sessions in the server's process: each ends with the true view, slow or limited or late."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.channels.server.settings import MapSettings
from roamcast.channels.sessions import hub as module
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


def test_a_slow_session_gets_the_latest_states_and_nobody_else_waits() -> None:
    desk = Desk()
    slow, fast = desk.open("slow"), desk.open("fast")
    for name in ("slow", "fast"):
        desk.watch(name, "within(place, 'hq')")
    desk.slow("slow")
    begun = len(slow.frames)
    for number in range(50):
        desk.keep("p", f"hq/{number}")
        desk.run(SECOND // 10)
    assert len(slow.frames) == begun
    assert desk.sees("fast") == {"p": "hq/49"}
    desk.drained("slow")
    assert desk.sees("slow") == {"p": "hq/49"}
    assert len(slow.frames) == begun + 1
    desk.keep("p", "hq/50")
    desk.run(SECOND)
    assert desk.sees("slow") == desk.sees("fast") == {"p": "hq/50"}
    assert not fast.cut


@pytest.mark.limit("limits.slow_s_max")
def test_a_session_that_takes_nothing_for_too_long_is_cut_off() -> None:
    desk = Desk(HubSettings(slow_us_max=5 * SECOND))
    reader = desk.open("s")
    desk.watch("s", "within(place, 'hq')")
    desk.slow("s")
    desk.run(5 * SECOND - 1)
    assert not reader.cut
    desk.run(1)
    assert reader.cut == "too slow: nothing was taken for 5 s"
    assert not desk.broker._hub.sessions
    assert not desk.broker._hub.queries


def test_a_session_that_lacks_too_much_is_cut_off_at_the_limit() -> None:
    desk = Desk(HubSettings(queue_events_max=10))
    reader = desk.open("s")
    desk.watch("s", "within(place, 'hq')")
    desk.slow("s")
    for number in range(10):
        desk.keep(f"p{number}", "hq")
    assert not reader.cut
    desk.keep("p10", "hq")
    assert reader.cut == "too slow: more than 10 changes wait"


def test_a_large_current_set_follows_in_pages_and_its_end_is_told_once() -> None:
    desk = Desk(HubSettings(page_features_max=10, frame_events_max=7, queue_events_max=5))
    for number in range(50):
        desk.keep(f"p{number:02}", "hq")
    reader = desk.open("s")
    desk.watch("s", "within(place, 'hq')")
    desk.run(SECOND)
    assert len(desk.sees("s")) == 50
    assert reader.complete == {reader.query_of["w"]}


def test_a_large_current_set_leaves_turns_to_others_and_changes_meanwhile_are_told_once() -> None:
    settings = HubSettings(page_features_max=10, frame_events_max=10)
    desk = Desk(settings, map_settings=MapSettings(notes_max=5))
    for number in range(100):
        desk.keep(f"p{number:03}", "hq")
    reader, other = desk.open("s"), desk.open("t")
    desk.watch("s", "within(place, 'hq')")
    assert len(desk.sees("s")) == 10
    assert len(reader.frames) == 1, "more than one slice at once"
    desk.watch("t", "within(place, 'hq')")  # the same query, not noted everywhere yet
    desk.keep("p050", "hq/2")  # not told yet
    desk.release("p051")
    desk.keep("p000", "hq/1")  # told
    desk.keep("p052", "elsewhere")
    desk.keep("p052", "hq/3")
    turns = len({at for at, _ in reader.frames})
    desk.run(SECOND)
    assert len({at for at, _ in reader.frames}) - turns >= 9
    expected = desk.broker.find(Viewer("s"), Filter.parse("within(place, 'hq')"), desk.now)
    for name, read in (("s", reader), ("t", other)):
        assert desk.sees(name) == {one.vid: one.place for one in expected}
        assert read.complete == {read.query_of["w"]}
    assert desk.broker._server.contexts.notes.unnoted == {}


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


def window_max(frames: list[tuple[int, int]]) -> int:
    return max(
        sum(size for at, size in frames if start <= at <= start + SECOND) for start, _ in frames
    )


def test_a_limit_holds_in_every_second_and_says_what_is_pending() -> None:
    desk = Desk()
    reader = desk.open("s")
    desk.limit("s", 4_000)
    desk.watch("s", "within(place, 'hq')")
    draw = random.Random(1)
    for _ in range(200):
        desk.keep(f"p{draw.randrange(20)}", f"hq/{draw.randrange(9)}")
        desk.run(20_000)
    assert reader.pending
    desk.run(60 * SECOND)
    assert not reader.pending
    assert window_max(reader.frames) <= 4_000
    expected = desk.broker.find(Viewer("s"), Filter.parse("within(place, 'hq')"), desk.now)
    assert desk.sees("s") == {one.vid: one.place for one in expected}


@pytest.mark.parametrize("limit", [1, 1_023])
def test_a_limit_below_the_least_is_refused(limit: int) -> None:
    desk = Desk()
    desk.open("s")
    with pytest.raises(LimitError, match="at least 1024"):
        desk.limit("s", limit)


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


def test_the_encodings_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEATURES_MAX", 3)
    monkeypatch.setattr(module, "EVENTS_MAX", 2)
    desk = Desk()
    desk.open("s")
    desk.watch("s", "within(place, 'hq')")
    writer = desk.broker._hub.writer
    for number in range(10):
        desk.keep(f"p{number}", "hq")
        desk.run(SECOND)
        assert len(writer._features) <= 3
        assert len(writer._events) <= 2
    assert len(desk.sees("s")) == 10
