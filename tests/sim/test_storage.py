"""Simulated disks: what was synced survives, the rest may go, and a torn tail is never believed."""

import random

from hypothesis import given
from hypothesis import strategies as st

from roamcast.sim.storage import COMPACT_BYTES_MIN, Disk

writes = st.lists(
    st.tuples(st.sampled_from("abc"), st.none() | st.binary(max_size=12)), min_size=1, max_size=3
).map(tuple)


def state_after(history: list[tuple[tuple[str, bytes | None], ...]]) -> dict[str, bytes]:
    keys: dict[str, bytes] = {}
    for record in history:
        for key, value in record:
            if value is None:
                keys.pop(key, None)
            else:
                keys[key] = value
    return keys


@given(st.lists(writes, max_size=12), st.data(), st.integers(0, 2**32))
def test_a_crash_keeps_a_whole_prefix_that_includes_everything_synced(
    history: list[tuple[tuple[str, bytes | None], ...]], data: st.DataObject, seed: int
) -> None:
    synced = data.draw(st.integers(0, len(history)))
    disk = Disk()
    for number, record in enumerate(history):
        end = disk.append(record)
        if number < synced:
            disk.sync(end)
    assert disk.keys == state_after(history)
    disk.crash(random.Random(seed))
    possible = [state_after(history[:kept]) for kept in range(synced, len(history) + 1)]
    assert disk.keys in possible


def test_over_many_crashes_every_outcome_happens_and_none_is_torn() -> None:
    seen = set()
    for seed in range(300):
        disk = Disk()
        disk.sync(disk.append((("k", b"old"),)))
        disk.append((("k", b"newer"),))
        disk.append((("k", b"newest"),))
        disk.crash(random.Random(seed))
        seen.add(disk.keys["k"])
    assert seen == {b"old", b"newer", b"newest"}


def test_after_a_crash_the_log_goes_on_where_it_was_whole() -> None:
    for seed in range(50):
        disk = Disk()
        disk.append((("a", b"lost perhaps"),))
        disk.crash(random.Random(seed))
        disk.sync(disk.append((("b", b"kept"),)))
        disk.crash(random.Random(seed))
        assert disk.keys["b"] == b"kept"


def test_the_log_stays_bounded_when_one_key_is_written_again_and_again() -> None:
    disk = Disk()
    for number in range(20_000):
        disk.sync(disk.append((("k", str(number).encode()),)))
        assert disk.log_bytes <= COMPACT_BYTES_MIN + 64
    disk.crash(random.Random(1))
    assert disk.keys == {"k": b"19999"}


def test_a_late_sync_from_before_a_compaction_promises_nothing_new() -> None:
    disk = Disk()
    value = bytes(COMPACT_BYTES_MIN // 4)
    for _ in range(5):
        old = disk.append((("k", value),))
    disk.sync(old)
    assert disk.log_bytes < 2 * len(value)
    disk.append((("k", b"unsynced"),))
    disk.sync(old)
    lost = 0
    for seed in range(100):
        copy = Disk()
        copy._log, copy._synced_bytes = bytearray(disk._log), disk._synced_bytes
        copy.crash(random.Random(seed))
        lost += copy.keys["k"] == value
    assert 0 < lost < 100  # a disk that took the old position for a new one would lose none
