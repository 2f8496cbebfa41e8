"""Memory: `Collector` seeks garbage among what is new, `give_back` returns what is free.

Python stops everything to look through all objects for cycles nobody refers to. Contexts and
subscriptions are no cycles, live long and are many. So whatever has survived a collection is set
aside: later ones pass over it, and it is freed as always when nobody refers to it (0380).

What is freed goes to the C library, which keeps it: a burst of large answers would leave a process
half as large again for ever. So it is asked now and then to return free pages to the machine. The
query strings and cookies that the web framework remembers are forgotten before: they may be long.
"""

import asyncio
import ctypes
import gc
from collections.abc import Callable
from typing import Any, Final

from litestar._kwargs.extractors import create_query_default_dict
from litestar._parsers import parse_cookie_string, parse_query_string

THRESHOLDS: Final = (700, 10, 3)
"""New objects, and collections of one generation before the next: the last sees some 20,000."""

ASIDE_MAX: Final = 1_000
"""So often something is set aside before everything is looked through again."""

GIVE_BACK_S: Final = 10.0
"""How often free memory is returned; it takes milliseconds, beside the loop."""

REMEMBERED: Final = (parse_query_string, create_query_default_dict, parse_cookie_string)
"""What the web framework remembers of the last thousand requests each."""


class Collector:
    """Sets aside what survives; a cycle that was in use at that moment waits for the whole pass."""

    def __init__(self, later: Callable[[Callable[[], None]], Any]) -> None:
        """`later` calls a function soon: no collection can begin in the middle of another."""
        self._later = later
        self._aside = 0
        self._before = gc.get_threshold()

    def start(self) -> None:
        """Set aside what was restored, and from now on whatever survives.

        What a spare has set aside before its turn is passed over: nobody waits for it then.
        """
        self._set_aside()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        """Leave Python's collector as it was."""
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2:
            gc.freeze()
            self._aside += 1
            if self._aside == ASIDE_MAX:
                self._later(self._look_through)

    def _look_through(self) -> None:
        """Look through everything, also what was set aside."""
        gc.unfreeze()
        self._set_aside()

    def _set_aside(self) -> None:
        gc.collect()
        gc.freeze()
        gc.collect()  # Python waits for a quarter more than the last collection left: that is none
        self._aside = 0


async def give_back() -> None:
    """Return free memory to the machine, again and again; a C library that has no way keeps it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while True:
        await asyncio.sleep(GIVE_BACK_S)
        for parse in REMEMBERED:
            parse.cache_clear()
        if trim is not None:
            await asyncio.to_thread(trim, 0)
