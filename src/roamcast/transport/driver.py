"""How does a machine run in real time? One input, one timer and the effects it asks for.

The driver holds no policy: it gives inputs with the time, carries each effect to whoever can do it,
and wakes the machine at its deadline. The service and the SDK run their machines with it; the
simulator has its own in virtual time.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from roamcast.model.machine import Effect, Input, Machine

Carry = Callable[[Effect], None]
Clock = Callable[[], int]

WAKE_US_MIN: Final = 1_000
"""A machine that is due again at once waits this long, so that sockets get their turn."""


STEP_US_BELIEVED: Final = 60_000_000
"""A wall clock that is set forward by more is believed when it has stood for so long (0084)."""


def steady_clock() -> Clock:
    """Make a clock of microseconds since 1970 that starts with the wall and never looks again.

    For whoever only measures how long something takes, or corrects it by another one's clock.
    """
    start_us = time.time_ns() // 1000
    start = time.monotonic_ns()

    def now() -> int:
        return start_us + (time.monotonic_ns() - start) // 1000

    return now


def wall_clock() -> Clock:
    """Make a clock of microseconds since 1970 that follows the wall forward and never goes back.

    A process that slept, or whose wall was set, has the right time again. While the wall is behind
    it runs on at its own pace, for a clock that stands still would never wake a machine.
    """
    ahead_us = time.time_ns() // 1000 - time.monotonic_ns() // 1000
    doubted_us: int | None = None

    def now() -> int:
        nonlocal ahead_us, doubted_us
        wall_us = time.time_ns() // 1000  # first: what passes between must not look like a step
        pace_us = time.monotonic_ns() // 1000
        step_us = wall_us - (ahead_us + pace_us)
        if step_us > STEP_US_BELIEVED:
            if doubted_us is None:
                doubted_us = pace_us
            believed = pace_us - doubted_us >= STEP_US_BELIEVED
        else:
            believed = True
        if believed:
            ahead_us += max(step_us, 0)
            doubted_us = None
        return ahead_us + pace_us

    return now


def _nobody(effect: Effect) -> None:
    raise AssertionError(f"nobody carries {type(effect).__name__}")


class Driver:
    """Runs one machine in the running loop."""

    def __init__(self, machine: Machine, *, clock: Clock, carry: Carry | None = None) -> None:
        """`carry` may be set later, before the first input: it often needs `give`."""
        self.machine = machine
        self.clock = clock
        self.carry = carry or _nobody
        self._timer: asyncio.TimerHandle | None = None
        self._due: int | None = None
        self._closed = False

    def start(self) -> None:
        """Let the machine do what is due from its birth, and wake it from now on."""
        self._wake()

    def give(self, given: Input) -> None:
        """Give an input, carry what it causes, and look when to wake next."""
        if self._closed:
            return
        for effect in self.machine.receive(given, self.clock()):
            self.carry(effect)
        self.settle()

    def settle(self) -> None:
        """Look again when the machine is due, after something changed it from outside."""
        due = self.machine.deadline()
        if due == self._due or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = None
        if due is not None:
            wait_us = max(due - self.clock(), WAKE_US_MIN)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(wait_us / 1_000_000, self._wake)

    def close(self) -> None:
        """Never wake the machine again."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        self._timer = None
        self._due = None
        if self._closed:
            return
        for effect in self.machine.advance(self.clock()):
            self.carry(effect)
        self.settle()
