"""Garbage is sought among what is new, and everything is looked through once in a while."""

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from litestar._parsers import parse_query_string

from roamcast.live.service import collecting
from roamcast.live.service.collecting import ASIDE_MAX, THRESHOLDS, Collector


class Knot:
    """Something that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def soon() -> Iterator[list[Callable[[], None]]]:
    """Collect as a service does; gives what is to be called soon."""
    asked: list[Callable[[], None]] = []
    collector = Collector(asked.append)
    collector.start()
    yield asked
    collector.stop()


def survivors_seen() -> int:
    """Give how many objects the next collection of all generations looks through."""
    return sum(len(gc.get_objects(generation)) for generation in range(3))


def test_no_collection_looks_through_what_survived_one(soon: list[Callable[[], None]]) -> None:
    seen = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            seen.append(survivors_seen())

    gc.callbacks.append(note)
    held = [[[number]] for number in range(200_000)]
    gc.callbacks.remove(note)
    young, second, third = THRESHOLDS
    assert len(seen) > 5
    # The lists are two objects each; what runs beside this test makes a few of its own.
    assert max(seen) < 2 * (young * (second + 1) * (third + 2))
    assert gc.get_freeze_count() > len(held)
    assert not soon


def test_a_cycle_among_the_new_is_freed(soon: list[Callable[[], None]]) -> None:
    gone = ref(Knot())
    gc.collect()
    assert gone() is None
    assert not soon


def test_a_cycle_that_was_set_aside_waits_for_the_whole_pass(
    soon: list[Callable[[], None]],
) -> None:
    knot = Knot()
    gone = ref(knot)
    gc.collect()
    del knot
    for _ in range(ASIDE_MAX - 2):
        gc.collect()
    assert gone() is not None
    assert not soon
    gc.collect()
    assert len(soon) == 1
    soon.pop()()
    assert gone() is None
    gc.collect()
    assert not soon


def test_what_is_set_aside_is_freed_when_nobody_refers_to_it(
    soon: list[Callable[[], None]],
) -> None:
    class Held:
        pass

    held = Held()
    gone = ref(held)
    gc.collect()
    del held
    assert gone() is None
    assert not soon


def test_python_collects_as_before_when_the_service_is_over() -> None:
    before = gc.get_threshold(), len(gc.callbacks)
    collector = Collector(lambda _: None)
    collector.start()
    collector.stop()
    assert (gc.get_threshold(), len(gc.callbacks)) == before
    assert gc.get_freeze_count() == 0


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def test_free_memory_is_given_back_to_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "GIVE_BACK_S", 0.01)

    async def lies_between() -> tuple[float, float]:
        blocks = [bytearray(64_000) for _ in range(2_000)]  # 128 MB, each too small for a map
        last = blocks.pop()
        del blocks
        before = resident_mb()
        task = asyncio.create_task(collecting.give_back())
        while resident_mb() > before - 64 and not task.done():
            await asyncio.sleep(0.01)
        task.cancel()
        return before - resident_mb(), len(last)

    parse_query_string(b"filter=" + b"x" * 16_384)
    given_back, _ = asyncio.run(asyncio.wait_for(lies_between(), 60))
    assert given_back >= 64
    assert parse_query_string.cache_info().currsize == 0, "the framework keeps no long texts"
