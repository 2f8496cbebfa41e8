"""Sessions that are slow, limited or new: each gets what it lacks, and nobody else waits for it."""

import random

import pytest

from roamcast.channels.server.settings import MapSettings
from roamcast.channels.sessions.settings import HubSettings
from roamcast.errors import LimitError
from roamcast.identity.rules import Viewer
from roamcast.model.filters import Filter
from tests.strategies_hub import Desk

SECOND = 1_000_000


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
