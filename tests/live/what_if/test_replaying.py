"""A replay sends what the broker sent: the same machine, given the same steps at the same times."""

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import LimitError
from roamcast.identity.rules import Viewer
from roamcast.journal.book import Entry
from roamcast.live.what_if.comparing import differences
from roamcast.live.what_if.office import BYTES_MAX, STEPS_MAX, check_size
from roamcast.live.what_if.replaying import ReplaySetting, ShownState, WatchedReplay
from roamcast.live.what_if.timeline import TimelineStep, from_entries, from_runs
from roamcast.model.contexts import Context, body_of, context_of
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect
from roamcast.model.records import (
    ContextChanged,
    ContextClosed,
    ContextOpened,
    Record,
    UpdateMatched,
)
from tests.strategies_hub import START, Desk

SECOND = 1_000_000
MINUTE = 60 * SECOND


class Journalled(Desk):
    """A broker whose records are written down with their times, as a driver does."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        super().__init__()

    def carry(self, effects: Any) -> None:
        found: list[Effect] = list(effects)
        self.entries += [(self.now, "b", one) for one in found if isinstance(one, Record)]
        super().carry(found)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([0, 1_024, 3_000]))
def test_a_watcher_of_a_replay_is_sent_what_a_watcher_was_sent(seed: int, limit: int) -> None:
    draw, desk = Random(seed), Journalled()
    for number in range(draw.randrange(12)):
        desk.keep(f"v{number}", f"campus/b{number % 3}", type="person")
    reader = desk.open("w", Viewer(""))
    if limit:
        desk.limit("w", limit)
    desk.watch("w", "within(place, 'campus/b1') OR type = 'printer'", "map")
    for _ in range(60):
        desk.run(draw.choice((1, 500, 40_000, SECOND)))
        vid = f"v{draw.randrange(15)}"
        if draw.random() < 0.2:
            desk.release(vid)
        else:
            kind = draw.choice(("person", "printer"))
            desk.keep(vid, f"campus/b{draw.randrange(3)}", type=kind)
    desk.run(5 * SECOND)
    window = START, desk.now
    steps = from_entries(desk.entries, window)
    wanted = Filter.parse("within(place, 'campus/b1') OR type = 'printer'")
    replay = WatchedReplay(ReplaySetting(limit), wanted, window)
    replay.run(steps)
    assert replay.frames == reader.frames
    view: dict[str, str] = {}
    for state in replay.shown:
        if state.feature:
            view[state.vid] = state.feature.decode()
        else:
            del view[state.vid]
    assert view.keys() == desk.sees("w", "map").keys()


def step(at: int, vid: str, place: str) -> TimelineStep:
    body = body_of(Context(vid, place, None, {"type": "person"}, at)) if place else b""
    return TimelineStep(at, vid, body)


def places_of(replay: WatchedReplay) -> list[tuple[int, str, str | None]]:
    return [((one.at - START) // SECOND, one.vid, _place(one.feature)) for one in replay.shown]


def _place(feature: bytes) -> str | None:
    return msgspec.json.decode(feature)["properties"].get("place") if feature else None


def test_a_coarser_default_tells_less_and_leaves_rules_of_ones_own_alone() -> None:
    steps = [
        step(START, "ann", "campus/b1/1/1001"),
        step(START, "own", "campus/b1/1/1001"),
        step(START + SECOND, "ann", "campus/b1/1/1002"),
        step(START + 2 * SECOND, "own", "campus/b1/1/1002"),
        step(START + 3 * SECOND, "ann", "campus/b2/1/1001"),
        step(START + 4 * SECOND, "ann", ""),
    ]
    window = START, START + 5 * SECOND
    replay = WatchedReplay(
        ReplaySetting(precision="building"), Filter.parse("true"), window, exempt=["own"]
    )
    replay.run(steps)
    assert places_of(replay) == [
        (0, "ann", "campus/b1"),
        (0, "own", "campus/b1/1/1001"),
        (2, "own", "campus/b1/1/1002"),  # who walks within a building is not heard of
        (3, "ann", "campus/b2"),
        (4, "ann", None),
    ]


def test_a_limit_delays_what_is_shown_and_never_exceeds_itself() -> None:
    steps = [step(START, f"v{number:03}", "campus/b1") for number in range(40)]
    window = START, START + MINUTE
    replay = WatchedReplay(ReplaySetting(limit_bytes=1_024), Filter.parse("true"), window)
    replay.run(steps)
    assert len({one.vid for one in replay.shown}) == 40
    assert max(one.waited_us for one in replay.shown) > 5 * SECOND
    for at, _ in replay.frames:
        within = [size for other, size in replay.frames if at <= other < at + SECOND]
        assert sum(within) <= 1_024


def test_stays_become_steps_within_the_window() -> None:
    def stay(place: str, begin: int, end: int | None) -> Context:
        return Context("ann", place, None, {}, begin, end)

    run = [stay("a", 10, 20), stay("b", 20, 30), stay("c", 40, 50), stay("d", 50, 90)]
    made = from_runs([("ann", run)], (25, 80))
    shown = [(one.at, context_of(one.body).place if one.body else None) for one in made]
    assert shown == [(25, "b"), (30, None), (40, "c"), (50, "d")]
    assert all(context_of(one.body).t_d is None for one in made if one.body)
    assert from_runs([("ann", [stay("a", 10, None)])], (25, 80))[0].at == 25
    assert from_runs([("ann", [stay("a", 10, 25), stay("b", 81, None)])], (25, 80)) == []


def test_what_a_restart_does_not_bring_back_ended_when_the_broker_fell() -> None:
    def opened(vid: str) -> ContextOpened:
        return ContextOpened(vid, "a", 0, b"body")

    entries: list[Entry] = [
        (10, "b", opened("ann")),
        (10, "b", UpdateMatched("1", "ann", epoch=1)),
        (20, "b", opened("bob")),
        (20, "b", UpdateMatched("2", "bob", epoch=1)),
        (30, "b", ContextChanged("bob", "a", 0, b"other")),
        (100, "b", opened("bob")),
        (100, "b", UpdateMatched("1", "bob", epoch=2)),
        (100 + MINUTE, "b", opened("eve")),
        (102 + MINUTE, "b", ContextClosed("eve")),
    ]
    made = from_entries(entries, (15, 200 * MINUTE))
    assert [(one.at, one.vid, one.body) for one in made if one.vid != "ann"] == [
        (20, "bob", b"body"),
        (30, "bob", b"other"),
        (100, "bob", b"body"),
        (100 + MINUTE, "eve", b"body"),
        (102 + MINUTE, "eve", b""),
    ]
    assert [one for one in made if one.vid == "ann"] == [
        TimelineStep(15, "ann", b"body"),
        TimelineStep(30, "ann", b""),
    ]


@pytest.mark.parametrize(
    ("would", "seconds", "mean", "most", "at_ms"),
    [
        ([(0, "a", b"1"), (2, "a", b"2")], 0.0, 0.0, 0, 0),
        ([(1, "a", b"1"), (2, "a", b"2")], 1.0, 0.25, 1, 0),
        ([(0, "a", b"1"), (1, "b", b"x"), (3, "a", b"2"), (3, "b", b"")], 2.0, 0.75, 2, 2_000),
    ],
)
def test_differences_are_counted_over_the_time(
    would: list[Any], seconds: float, mean: float, most: int, at_ms: int
) -> None:
    def states(listed: list[Any]) -> list[ShownState]:
        return [ShownState(START + at * SECOND, vid, feature) for at, vid, feature in listed]

    was = states([(0, "a", b"1"), (2, "a", b"2")])
    found = differences(was, states(would), (START, START + 4 * SECOND))
    assert (found.seconds, found.mean_contexts) == (seconds, mean)
    assert (found.contexts_max, found.at_ms) == (most, at_ms)


@pytest.mark.limit("what_if.changes_max", "what_if.bytes_max")
def test_changes_and_their_bytes_at_the_limit_and_one_past_it() -> None:
    step = TimelineStep(1, "v", b"")
    check_size([step] * STEPS_MAX)
    with pytest.raises(LimitError, match="changed 20,001 times"):
        check_size([step] * (STEPS_MAX + 1))
    check_size([TimelineStep(1, "v", bytes(BYTES_MAX))])
    with pytest.raises(LimitError, match="of 16 MiB are replayed at once"):
        check_size([TimelineStep(1, "v", bytes(BYTES_MAX + 1))])
