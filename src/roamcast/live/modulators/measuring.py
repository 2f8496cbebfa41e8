"""What a broker's host has left: the share of a core that is used, and of the battery.

In: clocks of the process, and of the thread of modulators. Out: `MeasureLoad`, once a second.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from roamcast.live.modulators.worker import ModulatorWorker
from roamcast.model.machine import Input
from roamcast.overlay.homes.events import MeasureLoad

MEASURE_S: Final = 1.0
SUPPLIES: Final = Path("/sys/class/power_supply")


class LoadMeter:
    """Measures from `start` on."""

    def __init__(self, worker: ModulatorWorker, *, give: Callable[[Input], None]) -> None:
        self._worker = worker
        self._give = give
        self._timer: asyncio.TimerHandle | None = None
        self._at = self._used_s = 0.0

    def start(self) -> None:
        """Measure from now on; call in the running loop."""
        if self._timer is None:
            self._worker.take_shares()
            self._again()

    def _again(self) -> None:
        self._at, self._used_s = time.monotonic(), time.process_time()
        self._timer = asyncio.get_running_loop().call_later(MEASURE_S, self._measure)

    def _measure(self) -> None:
        """One core is all: the loop and the modulators share the interpreter."""
        passed_s = time.monotonic() - self._at
        busy = {name: spent / passed_s for name, spent in self._worker.take_shares().items()}
        used = (time.process_time() - self._used_s) / passed_s
        load = min(1.0, max(used, sum(busy.values())))
        self._give(MeasureLoad(load, battery_left(SUPPLIES), tuple(busy.items())))
        self._again()

    def close(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def battery_left(supplies: Path) -> float:
    """Give the share of energy that is left; 1 on mains, or where the system does not say."""
    left = 1.0
    try:
        for one in sorted(supplies.glob("BAT*")):
            if (one / "status").read_text().strip() == "Discharging":
                left = min(left, int((one / "capacity").read_text()) / 100)
    except (OSError, ValueError):
        return 1.0
    return min(1.0, max(left, 0.0))
