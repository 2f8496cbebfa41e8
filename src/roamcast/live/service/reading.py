"""`FilterReader`: reads filters at their price, and long ones beside the loop.

Reading is charged by length before it begins, at what the dearest shapes cost that a fuzzer finds
(`python -m bench._filter_shapes`). A text that the same subject has read lately costs one step a
character. What others have read makes nothing cheaper: a price would tell of them.

A long filter takes up to a tenth of a second, so a thread reads it and the loop serves others.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from roamcast.errors import FilterError, LimitError
from roamcast.live.auth.admission import Rates
from roamcast.model import json_text
from roamcast.model.caching import ByBytes
from roamcast.model.filters import Filter, recent
from roamcast.transport.driver import Clock

READ_STEPS: Final = 400
"""Steps that reading one character costs: 20 µs against 50 ns (0148)."""

AT_ONCE_MAX: Final = 1_024
"""Characters of a filter that is read in the loop itself: a few milliseconds."""

READ_BYTES_MAX: Final = 8 << 20
"""Bytes of texts of which is remembered who has read them."""


class FilterReader:
    """All filters that come in, whoever sends them."""

    def __init__(self, work: Rates, clock: Clock, length_max: int) -> None:
        self.work = work
        self._clock = clock
        self._length_max = length_max
        self._read_by: ByBytes[tuple[str, str], bool] = ByBytes(READ_BYTES_MAX)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="filters")

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is cached, in bytes, and the bound of each."""
        return {
            "filters": (recent.recent.bytes, recent.BYTES_MAX),
            "filters by reader": (self._read_by.bytes, READ_BYTES_MAX),
        }

    def price(self, subject: str, text: str) -> int:
        """Give the steps that reading a text costs a subject."""
        again = self._read_by.get((subject, text)) and recent.recent.get(text)
        return len(text) if again else READ_STEPS * len(text)

    def charge(self, subject: str, *texts: str) -> None:
        """Charge a subject for texts before they are read; what it has no steps for is refused."""
        if max(map(len, texts)) > self._length_max:
            raise LimitError(f"a filter has at most {self._length_max} characters")
        self.work.take(subject, self._clock(), sum([self.price(subject, text) for text in texts]))
        for text in texts:
            self._read_by.put((subject, text), True, len(text))

    def owe(self, subject: str, text: str) -> int:
        """Charge for a text that is read whatever it costs; give how many microseconds to wait."""
        wait_us = self.work.owe(subject, self._clock(), self.price(subject, text))
        self._read_by.put((subject, text), True, len(text))
        return wait_us

    def known(self, text: str) -> Filter | None:
        """Give a filter that needs no reading, or so little that it is read at once."""
        return recent.read(text) if len(text) <= AT_ONCE_MAX else recent.recent.get(text)

    async def read(self, text: str) -> Filter:
        """Read a text that is charged."""
        found = self.known(text)
        if found is not None:
            return found
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, recent.read, text)

    async def read_json(self, text: str) -> Filter:
        """Read a filter in CQL2 JSON that is charged."""
        if len(text) <= AT_ONCE_MAX:
            return _read_json(text)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, _read_json, text)


def _read_json(text: str) -> Filter:
    made = Filter.parse(json_text.read(text, FilterError))
    assert made.text
    return made
