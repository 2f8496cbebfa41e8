"""How is a machine run on a simulated host? It boots, crashes, pauses, and its disk survives.

A host is the kernel's target. Being down or paused is done by exchanging the three methods the
kernel calls, so that a healthy host pays nothing for the possibility.
"""

import enum
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from roamcast.model.machine import Effect, Input, Machine, Received
from roamcast.model.parts import DISK_ANSWERS
from roamcast.model.records import Drop, Fault
from roamcast.model.wire import tag_of
from roamcast.sim.clocks import Clock
from roamcast.sim.kernel import NEVER
from roamcast.sim.storage import Disk

INBOX_MAX: Final = 10_000
"""Inputs that wait for a paused host; the kernel's socket buffers in real life."""


class HostState(enum.StrEnum):
    """Whether a host runs."""

    UP = "up"
    DOWN = "down"
    PAUSED = "paused"


class Boot(msgspec.Struct, frozen=True):
    """What a machine is made with: its host, the boot number from 1, the disk, a generator."""

    host: str
    number: int
    now: int
    """What the host's clock shows."""
    stored: Mapping[str, bytes]
    disk: Disk
    generator: random.Random


Factory = Callable[[Boot], Machine]
"""Makes the machine of a host, at every boot; its first effects are those of `advance(now)`."""


class Host:
    """One host: a machine, a disk, a place in the network."""

    __slots__ = (
        "advance",
        "boots",
        "busy_until_us",
        "clock",
        "deadline",
        "disk",
        "factory",
        "generator_of",
        "inbox",
        "links",
        "machine",
        "name",
        "note",
        "position",
        "receive",
        "site",
        "state",
        "wake",
    )

    def __init__(
        self,
        name: str,
        factory: Factory,
        *,
        site: str,
        generator_of: Callable[[str], random.Random],
        note: Callable[["Host", Effect], None],
        clock: Clock | None = None,
    ) -> None:
        """`clock`: what its machine takes for the time; None for the true time."""
        self.name = name
        self.clock = clock
        self.factory = factory
        self.site = site
        self.position = (0.0, 0.0)
        self.state = HostState.DOWN
        self.boots = 0
        self.disk = Disk()
        self.machine: Machine | None = None
        self.links: dict[str, Any] = {}
        self.busy_until_us = 0
        self.inbox: deque[Input] = deque()
        self.generator_of = generator_of
        self.note = note
        self.wake = NEVER
        self.receive: Callable[[Any, int], Sequence[Effect]] = self._lose
        self.advance: Callable[[int], Sequence[Effect]] = _nothing
        self.deadline: Callable[[], int | None] = _never

    def __repr__(self) -> str:
        return f"host {self.name}"

    def boot(self, now: int) -> None:
        """Start the machine anew from what the disk holds."""
        assert self.state is HostState.DOWN
        self.boots += 1
        generator = self.generator_of(f"host/{self.name}/{self.boots}")
        stored = dict(sorted(self.disk.keys.items()))
        boot = Boot(self.name, self.boots, self.local(now), stored, self.disk, generator)
        self.machine = self.factory(boot)
        self.state = HostState.UP
        self._turn_on()
        if self.boots > 1:
            self.note(self, Fault("restart"))

    def local(self, now: int) -> int:
        """Return what the host's clock shows at a true time."""
        return now if self.clock is None else self.clock.local(now)

    def steady(self, now: int) -> int:
        """Return what the host's clock would show if nobody had ever set it."""
        return now if self.clock is None else Clock(0, self.clock.drift_ppm).local(now)

    def crash(self) -> None:
        """Stop at once: the machine is gone, and what the disk had not synced is in doubt."""
        assert self.state is not HostState.DOWN
        self.disk.crash(self.generator_of(f"disk/{self.name}/{self.boots}"))
        self.machine = None
        self.inbox.clear()
        self.state = HostState.DOWN
        self._turn_off()
        self.note(self, Fault("crash"))

    def pause(self) -> None:
        """Stand still: inputs wait, timers are missed."""
        assert self.state is HostState.UP
        self.state = HostState.PAUSED
        self.wake = NEVER
        self.receive, self.advance, self.deadline = self._wait, _nothing, _never
        self.note(self, Fault("pause"))

    def resume(self) -> list[Input]:
        """Go on; the caller hands over what has waited and arms the timer."""
        assert self.state is HostState.PAUSED
        self.state = HostState.UP
        self._turn_on()
        waited = list(self.inbox)
        self.inbox.clear()
        self.note(self, Fault("resume"))
        return waited

    def _turn_on(self) -> None:
        assert self.machine is not None
        self.wake = NEVER
        if self.clock is None:
            self.receive = self.machine.receive
            self.advance = self.machine.advance
            self.deadline = self.machine.deadline
        else:
            self.receive, self.advance, self.deadline = _by_clock(self.machine, self.clock)

    def _turn_off(self) -> None:
        self.wake = NEVER
        self.receive, self.advance, self.deadline = self._lose, _nothing, _never

    def _wait(self, given: Input, now: int) -> Sequence[Effect]:
        del now
        if len(self.inbox) < INBOX_MAX:
            self.inbox.append(given)
            return ()
        return (Drop("inbox full", message=_named(given)),)

    def _lose(self, given: Input, now: int) -> Sequence[Effect]:
        del now
        return (
            () if isinstance(given, DISK_ANSWERS) else (Drop("host down", message=_named(given)),)
        )


def _by_clock(
    machine: Machine, clock: Clock
) -> tuple[
    Callable[[Any, int], Sequence[Effect]],
    Callable[[int], Sequence[Effect]],
    Callable[[], int | None],
]:
    """Give the three methods of a machine whose host's clock is off."""

    def deadline() -> int | None:
        due = machine.deadline()
        return None if due is None else clock.true(due)

    return (
        lambda given, now: machine.receive(given, clock.local(now)),
        lambda now: machine.advance(clock.local(now)),
        deadline,
    )


def _named(given: Input) -> str:
    return tag_of(type(given.message)) if isinstance(given, Received) else type(given).__name__


def _nothing(now: int) -> Sequence[Effect]:
    del now
    return ()


def _never() -> int | None:
    return None
