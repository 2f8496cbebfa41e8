"""`Collector`: cyclic garbage is sought among what is new, so that no pause grows with the map.

Python stops everything to look through all objects for cycles nobody refers to. Contexts and
subscriptions are no cycles, live long and are many. So whatever has survived a collection is set
aside: later ones pass over it, and it is freed as always when nobody refers to it (0380).
"""

import gc
from collections.abc import Callable
from typing import Any, Final

THRESHOLDS: Final = (700, 10, 3)
"""New objects, and collections of one generation before the next: the last sees some 20,000."""

ASIDE_MAX: Final = 1_000
"""So often something is set aside before everything is looked through again."""


class Collector:
    """Sets aside what survives; a cycle that was in use at that moment waits for the whole pass."""

    def __init__(self, later: Callable[[Callable[[], None]], Any]) -> None:
        """`later` calls a function soon: no collection can begin in the middle of another."""
        self._later = later
        self._aside = 0
        self._before = gc.get_threshold()

    def start(self) -> None:
        """Set aside what was restored, and from now on whatever survives."""
        self._look_through()
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
        gc.collect()
        gc.freeze()
        gc.collect()  # Python waits for a quarter more than the last collection left: that is none
        self._aside = 0
