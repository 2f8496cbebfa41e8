"""The index of the log of steps: reading a part of the log finds what the whole of it says."""

import sqlite3
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.channels.past import index
from roamcast.channels.past.asking import EVER, within
from roamcast.channels.past.index import MOMENT_MAX, PAGE_STEPS, StepIndex, make_tables
from roamcast.channels.past.leaving import ended
from roamcast.channels.past.messages import LookForEnded
from roamcast.channels.past.part import Lives, Step, Uptime, encode_step, key_of, written_of
from roamcast.channels.past.pieces import Piece, pieces_within, read
from roamcast.channels.past.spans import ENDED_MAX, ReachedTime
from roamcast.errors import StoreError
from roamcast.model.contexts import Context, body_of
from roamcast.sim.step_log import SimStepLog

BODIES = [body_of(Context("v", place)) for place in ("hq/1", "hq/2")]
VIDS = ("a", "b", "long")
TIMES = st.integers(0, 12) | st.sampled_from([-1_000_000, 40, 5_000, 10**15])

STEPS = st.builds(Step, TIMES) | st.builds(
    Step,
    TIMES,
    st.sampled_from(BODIES),
    st.sampled_from(["", "r"]),
    st.sampled_from([0, 0, 1, 2]),
    st.sampled_from([0, 0, 99]),
    st.booleans(),
)
CHANGES = st.dictionaries(
    st.builds(key_of, st.integers(0, 15), st.sampled_from(VIDS)),
    st.none() | STEPS.map(encode_step),
    max_size=6,
)
KNOWN = st.builds(
    Lives,
    st.sampled_from([1, 2, 3]),
    st.dictionaries(st.sampled_from([1, 2, 3]), st.builds(Uptime, TIMES, TIMES)),
    st.sets(st.sampled_from(VIDS)),
    TIMES,
    st.sampled_from([0, 5]),
)
REACHES = st.builds(
    lambda ends, margin, letters: ReachedTime(min(ends), max(ends), margin, letters),
    st.tuples(TIMES, TIMES) | st.just(EVER),
    st.sampled_from([0, 0, 1, 3, 10**6]),
    st.sampled_from([0, 2, 4, 5]),
)


def intervals(pieces: list[Piece]) -> list[tuple[Any, ...]]:
    return sorted(
        (one.vid, one.begin, one.end is None, one.end or 0, one.body, one.rules, one.life)
        for one in pieces
    )


def changed(rows: Mapping[str, bytes], batch: Mapping[str, bytes | None]) -> dict[str, bytes]:
    both = {**rows, **batch}
    return {key: value for key, value in sorted(both.items()) if value is not None}


def spans(log: StepIndex) -> list[tuple[Any, ...]]:
    return log._connection.execute("SELECT * FROM spans ORDER BY vid, written").fetchall()


@settings(max_examples=200)
@given(st.lists(CHANGES, max_size=8), CHANGES, KNOWN, REACHES)
def test_a_question_reads_a_part_of_the_log_and_finds_what_all_of_it_says(
    batches: list[dict[str, bytes | None]],
    memory: dict[str, bytes | None],
    known: Lives,
    reach: ReachedTime,
) -> None:
    """Whatever was written, came late from another host, was archived, erased, lost in a crash."""
    disk, rows = SimStepLog(), dict[str, bytes]()
    log = disk.of(rows)
    for batch in batches:
        rows = changed(rows, batch)
        log = disk.of(rows)
        assert spans(log) == spans(SimStepLog().of(rows))
    # A step that waits is written once: it is on disk as it is in memory, or not there.
    waiting = {key: rows.get(key, value) for key, value in memory.items() if value is not None}
    whole = read(sorted({**waiting, **rows}.items()), known).pieces
    part = pieces_within(log, reach, sorted(waiting.items()), known)
    assert intervals(within(part, reach)) == intervals(within(whole, reach))
    assert log.count() == len(rows)
    read_steps = log.within(reach)
    assert log.count_within(reach) == len(read_steps)
    assert all(
        reach.touches(vid, span.begin, span.mark if span.level <= ENDED_MAX else None)
        for vid, span, _ in read_steps
    )


@settings(max_examples=100)
@given(st.lists(CHANGES, max_size=5), KNOWN, TIMES, st.integers(0, 8))
def test_the_pieces_that_may_leave_are_those_that_the_whole_log_names(
    batches: list[dict[str, bytes | None]], known: Lives, before: int, steps_max: int
) -> None:
    disk, rows = SimStepLog(), dict[str, bytes]()
    for batch in batches:
        rows = changed(rows, batch)
        disk.of(rows)
    found = ended(disk.of(rows), known, LookForEnded(before, steps_max))
    whole = read(sorted(rows.items()), known)
    told = {
        (*one.keys, *one.late): (one.begin, one.end) for one in whole.pieces if one.end is not None
    }
    left = len(rows)
    last = None
    for one in found.pieces:
        assert told.pop(one.keys) == (one.begin, one.end)
        assert last is None or last <= one.end
        assert one.end < before or left > steps_max
        left -= sum(key in rows for key in one.keys)
        last = one.end
    if left <= steps_max:
        assert all(end is not None and end >= before for _, end in told.values())
    else:
        assert not told
    assert sorted(found.strays) == sorted(whole.strays)


def test_a_question_reads_no_more_when_the_log_grows() -> None:
    disk, rows = SimStepLog(), dict[str, bytes]()
    for number in range(3_000):
        begin, vid = 1_000 * number, f"p{number % 50}"
        rows[key_of(begin, vid)] = encode_step(
            Step(begin, BODIES[number % 2] + bytes([number % 7]))
        )
        rows[key_of(begin + 900, vid)] = encode_step(Step(begin + 900))
    rows[key_of(0, "there")] = encode_step(Step(0, BODIES[0]))
    log = disk.of(rows)
    assert len(log.within(ReachedTime(1_500_000, 1_510_000))) == 12
    assert log.count_within(ReachedTime(1_500_000, 1_510_000)) == 12
    assert len(log.within(ReachedTime(*EVER))) == 3_001 > 2 * PAGE_STEPS
    assert len(log.keys("p7")) == 120


def test_a_state_that_changes_between_two_pages_is_found_once(monkeypatch: Any) -> None:
    monkeypatch.setattr(index, "PAGE_STEPS", 1)
    disk = SimStepLog()
    rows = {key_of(at, f"p{at}"): encode_step(Step(at, BODIES[0])) for at in (1, 2, 3)}
    log = disk.of(rows)
    level = log._level

    def moving(*given: int) -> Any:
        for one in level(*given):
            yield one
            if one[0] == "p1":
                disk.of({**rows, key_of(9, "p1"): encode_step(Step(9, BODIES[1]))})

    monkeypatch.setattr(log, "_level", moving)
    found = pieces_within(log, ReachedTime(*EVER), (), Lives(1, {}, (), 20))
    assert sorted((one.vid, one.begin, one.end) for one in found) == [
        ("p1", 1, 9),
        ("p1", 9, None),
        ("p2", 2, None),
        ("p3", 3, None),
    ]


def test_what_is_no_step_is_passed_over() -> None:
    disk = SimStepLog()
    good = {key_of(1, "p"): encode_step(Step(1, BODIES[0]))}
    bad = {
        "steps/": b"",
        "steps/zz": b"",
        "steps/000000000000000g/p": b"",
        key_of(2, "p"): b"\xff",
        key_of(3, "p"): encode_step(Step(MOMENT_MAX, BODIES[0])),
        f"steps/{'f' * 16}/p": encode_step(Step(1, BODIES[0])),
        "other": b"",
    }
    log = disk.of({**good, **bad})
    assert log.keys("p") == list(good)
    assert spans(log) == spans(SimStepLog().of(good))


def test_a_log_without_an_index_is_given_one() -> None:
    rows = {key_of(at, f"p{at % 7}"): encode_step(Step(at, BODIES[at % 2])) for at in range(2_500)}
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE entries (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
    connection.executemany("INSERT INTO entries VALUES (?, ?)", [*rows.items(), ("x", b"")])
    make_tables(connection)
    built = StepIndex(connection, nullcontext())
    built.build()
    assert spans(built) == spans(SimStepLog().of(rows))
    connection.close()
    with pytest.raises(StoreError, match="can not be read"):
        built.count()


def test_only_what_became_different_is_written_again(monkeypatch: Any) -> None:
    """A long stay of many changes costs no more for each further step."""
    disk, vid = SimStepLog(), "p"
    rows = {
        key_of(at, vid): encode_step(Step(at, BODIES[at // 2 % 2])) for at in range(0, 2_000, 2)
    }
    log = disk.of(rows)
    read_steps: list[int] = []
    step = log._step
    monkeypatch.setattr(log, "_step", lambda vid, at: read_steps.append(at) or step(vid, at))
    for at in (2_001, 1_001):  # at the end, and late from another host
        rows[key_of(at, vid)] = encode_step(Step(at, BODIES[0] + b"!"))
        disk.of(rows)
    del rows[key_of(0, vid)]  # the first leaves
    disk.of(rows)
    assert len(read_steps) <= 6
    assert written_of(log.keys(vid)[0]) == 2


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(VIDS), STEPS | st.none(), st.booleans()), max_size=20))
def test_steps_that_follow_the_last_one_are_indexed_as_in_a_log_read_anew(
    coming: list[tuple[str, Step | None, bool]],
) -> None:
    """Most changes do; whatever else comes between, an end, a removal, a transaction undone."""
    disk, rows = SimStepLog(), dict[str, bytes]()
    for number, (vid, step, undone) in enumerate(coming):
        if step is None:
            rows.pop(next((key for key in reversed(rows) if key.endswith(vid)), ""), None)
        else:
            rows[key_of(number, vid)] = encode_step(step)
        log = disk.of(rows)
        if undone:  # what is remembered may be lost at any time
            log.undone()
    assert spans(disk.of(rows)) == spans(SimStepLog().of(rows))


def test_the_last_steps_are_remembered_up_to_their_bounds(monkeypatch: Any) -> None:
    monkeypatch.setattr(index, "LAST_MAX", 3)
    monkeypatch.setattr(index, "LAST_BYTES_MAX", len(BODIES[0]))
    disk, rows = SimStepLog(), dict[str, bytes]()
    for number, (vid, body) in enumerate(
        [("a", BODIES[0]), ("b", BODIES[1]), ("c", BODIES[0]), ("d", BODIES[0] + b"!")]
    ):
        rows[key_of(number, vid)] = encode_step(Step(number, body))
        log = disk.of(rows)
    assert [*log._last] == ["a", "b", "c"], "the last body is too long"
    rows[key_of(9, "e")] = encode_step(Step(9, BODIES[0]))
    assert [*disk.of(rows)._last] == ["e"]
    log.undone()
    assert not log._last
