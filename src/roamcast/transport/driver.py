"""Runs a machine in real time: gives it inputs, carries its effects, wakes it at its deadline.

The driver holds no policy: a table says who carries out which effect, and an effect that nobody
carries is our own mistake. The service, the SDK and a relay run their machines with it; the
simulator has its own in virtual time. `Tickets` are requests that wait for a machine's answer.
Clocks of microseconds since 1970 are here, too.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from roamcast.errors import LimitError, RoamcastError, StoreError
from roamcast.model.machine import Effect, Input, Machine

Carry = Callable[[Effect], None]
"""Does what an effect asks for; raises `AssertionError` for an effect that it does not know."""

Carrier = Callable[[Any], None]
"""Carries out one kind of effect."""

Clock = Callable[[], int]

WAKE_US_MIN: Final = 1_000
"""A machine that is due again at once waits this long, so that sockets get their turn; nor is it
asked more often when it is due."""

STEP_US_BELIEVED: Final = 60_000_000
"""A wall clock set forward by more than this is believed after it has stood for as long (0084)."""

TICKETS_MAX: Final = 100_000

CLOSED: Final = "the service is going down: ask again in a moment"
UNSURE: Final = "the service went down before this was safe: look, and ask again if it is not there"

_OPEN: Final = object()


def steady_clock() -> Clock:
    """Make a clock that starts with the wall clock and then only counts on.

    For durations, or for a clock that is corrected by another host's.
    """
    start_us = time.time_ns() // 1000
    start = time.monotonic_ns()

    def now() -> int:
        return start_us + (time.monotonic_ns() - start) // 1000

    return now


def wall_clock() -> Clock:
    """Make a clock that follows the wall clock forward and never goes back.

    A process that slept, or whose wall clock was set, has the right time again. While the wall
    clock is behind, it runs on at its own pace: a clock that stands still would wake no machine.
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


class RemoteClock:
    """Another host's time, as near as its messages tell; it never goes back after the first."""

    def __init__(self) -> None:
        self._steady = steady_clock()
        self._ahead_us: int | None = None

    def now(self) -> int:
        """Give the other host's time; our own before it is known."""
        return self._steady() + (self._ahead_us or 0)

    def follow(self, remote_us: int) -> None:
        """Take the other host's present time; only the first correction may be backwards."""
        ahead_us = remote_us - self._steady()
        self._ahead_us = ahead_us if self._ahead_us is None else max(ahead_us, self._ahead_us)


class Carriers:
    """Carries effects by their type, or by the nearest base type in the table."""

    def __init__(self, carriers: Mapping[type[Effect], Carrier]) -> None:
        self._carriers = dict(carriers)

    def __call__(self, effect: Effect) -> None:
        """Carry one effect out."""
        carrier = self._carriers.get(type(effect))
        if carrier is None:
            carrier = self._inherit(type(effect))
        carrier(effect)

    def _inherit(self, kind: type[Effect]) -> Carrier:
        for base in kind.__mro__:
            if base in self._carriers:
                carrier = self._carriers[kind] = self._carriers[base]
                return carrier
        raise AssertionError(f"nobody carries {kind.__name__}")


def nothing(effect: Effect) -> None:
    """Carry an effect that this driver has nothing to do for; the table says so by name."""
    del effect


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
        self._settling = False
        """Whether the timer is about to be set anew, …"""
        self._settled_s = 0.0
        """… and when it last was."""
        self._closed = False

    def start(self) -> None:
        """Let the machine do what is due from the start, and wake it from now on."""
        self._wake()

    def give(self, given: Input) -> None:
        """Give an input, carry its effects, and set the timer, once for many inputs."""
        if self._closed:
            return
        for effect in self.machine.receive(given, self.clock()):
            self.carry(effect)
        if self._settling:
            return
        self._settling = True
        loop = asyncio.get_running_loop()
        settles_s = self._settled_s + WAKE_US_MIN / 1_000_000
        if loop.time() >= settles_s:
            loop.call_soon(self._settle)
        else:
            loop.call_at(settles_s, self._settle, 0)

    def _settle(self, wait_us_min: int = WAKE_US_MIN) -> None:
        """Set the timer for the machine's deadline."""
        self._settling = False
        self._settled_s = asyncio.get_running_loop().time()
        due = self.machine.deadline()
        if due == self._due or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = None
        if due is not None:
            wait_us = max(due - self.clock(), wait_us_min)
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
        self._settle()


class Tickets:
    """Requests that wait, for the disk or for the broker's next word."""

    def __init__(self) -> None:
        self._closed = False
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._at_once: dict[int, Any] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def ask_now(self, give: Callable[[int], None]) -> Any:
        """Give the broker something that it answers at once; raise if it refuses."""
        self._last += 1
        ticket = self._last
        self._at_once[ticket] = _OPEN
        try:
            give(ticket)
        finally:
            answer = self._at_once.pop(ticket)
        if isinstance(answer, RoamcastError):
            raise answer
        assert answer is not _OPEN, "the broker did not answer at once"
        return answer

    async def ask(self, give: Callable[[int], None]) -> Any:
        """Give the broker something with a ticket, and wait for its answer."""
        if self._closed:
            raise StoreError(CLOSED)
        if len(self._waiting) >= TICKETS_MAX:
            raise LimitError("too many requests wait for the disk: try again in a moment")
        self._last += 1
        ticket = self._last
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = waiting
        try:
            give(ticket)
        except BaseException:
            self._waiting.pop(ticket, None)
            waiting.cancel()
            raise
        return await waiting

    def answer(self, ticket: int, result: Any) -> None:
        """What was asked is done."""
        if ticket in self._at_once:
            self._at_once[ticket] = result
            return
        waiting = self._waiting.pop(ticket, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(result)

    def refuse(self, ticket: int, error: RoamcastError) -> None:
        """What was asked is not done."""
        if ticket in self._at_once:
            self._at_once[ticket] = error
            return
        waiting = self._waiting.pop(ticket, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)

    async def close(self, seconds: float) -> None:
        """Take nothing more; what is not answered in so many seconds is refused."""
        self._closed = True
        if self._waiting:
            await asyncio.wait([*self._waiting.values()], timeout=seconds)
        for ticket in [*self._waiting]:
            self.refuse(ticket, StoreError(UNSURE))
