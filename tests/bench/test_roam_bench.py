"""The benches of roaming wait for everything that was acknowledged, and for nothing else."""

import asyncio
import contextlib
from typing import Any

from bench.roam import Crowd, Walker


def test_a_reader_has_time_for_the_last_event_whatever_it_had_before() -> None:
    async def scene() -> dict[str, int]:
        nobody: Any = None
        async with contextlib.AsyncExitStack() as stack:
            crowd = Crowd([], "", stack)
            reader = Walker(nobody, nobody, 0)
            reader.found = [("alone", number) for number in range(50)] + [("p0", 0)]
            crowd.walkers = [reader]
            crowd.published = {"p0": 2}
            asyncio.get_running_loop().call_later(0.01, reader.found.append, ("p0", 1))
            await crowd.rest()
            return crowd.judged()

    assert asyncio.run(scene()) == {"lost": 0, "twice": 0, "reordered": 0}
