"""The event kernel: a virtual clock and a queue ordered by (time, priority, sequence).

The kernel knows neither networks nor faults. It gives inputs to `Target`s (machines wrapped by
`sim.host`), fires their deadlines and performs their effects. Time is integer microseconds; nothing
here reads a clock. Every generator is derived from the seed by name, so a new component does not
shift another's draws (decision 0020).

The queue is a heap while few events wait. With many, a heap's cost is cache misses, so distant
events lie unsorted in buckets of equal width, and each bucket is sorted once, when its time comes
(decision 0021). The order is the same, event for event.
"""

import hashlib
import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush, heappushpop
from itertools import count
from typing import Any, Final, Protocol

from roamcast.model.machine import Effect

NEVER: Final = 1 << 62
"""Later than every time, in microseconds."""

FAULT, INPUT, TIMER, LAST = 0, 1, 2, 9
"""Priorities within an instant: faults, then inputs, then timers; the end of the run comes last."""

HEAP_MAX: Final = 256
"""With more waiting events, the distant ones go to buckets."""

BUCKET_TARGET, BUCKET_MIN, BUCKET_MAX = 64, 8, 512
THIN_REFILLS_MAX: Final = 64

Action = Callable[[int], None]
Handler = Callable[[Any, Any], None]


class Target(Protocol):
    """What the kernel drives: a machine's three methods, and the time it is due to wake."""

    wake: int

    def receive(self, given: Any, now: int, /) -> Sequence[Effect]:
        """Handle an input; return effects."""

    def advance(self, now: int, /) -> Sequence[Effect]:
        """Handle what is due at `now`; return effects."""

    def deadline(self) -> int | None:
        """Return when `advance` is due."""


Event = tuple[int, int, int, Any, Any]
"""(time, priority, sequence, target, input); an input of None is the target's timer."""


class _Stop(Exception):  # noqa: N818 — a signal inside this module, not an error
    """The run reached its end."""


class _Rearrange(Exception):  # noqa: N818
    """The queue has grown out of its heap."""


class Runaway(Exception):  # noqa: N818 — a finding about a machine, reported by the swarm
    """A run scheduled more events than it was allowed."""


class _Caller:
    """The target of plain callbacks: faults, workloads, network deliveries."""

    wake: int = NEVER

    @staticmethod
    def receive(action: Action, now: int) -> Sequence[Effect]:
        action(now)
        return ()

    @staticmethod
    def advance(now: int) -> Sequence[Effect]:
        raise AssertionError(now)

    @staticmethod
    def deadline() -> int | None:
        return None


def _stop(_now: int) -> None:
    raise _Stop


def _rearrange(_now: int) -> None:
    raise _Rearrange


_CALLER = _Caller()


class Kernel:
    """Virtual time: schedule inputs and actions, then `run` until a time."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0
        self._bases: dict[type, Handler] = {}
        self._handlers: dict[type, Handler] = {}
        self._next = count(1).__next__
        self._near: list[Event] = []
        self._current: list[Event] = []
        self._buckets: dict[int, list[Event]] = {}
        self._bucket_ids: list[int] = []
        self._shift = 0
        self._horizon = NEVER
        self._heap_only = True
        self._thin_refills = 0
        self._rearranging = False
        self._sequence_max = NEVER

    def generator(self, name: str) -> random.Random:
        """Return the generator of the component called `name`: the same seed, the same draws."""
        # By name, not by a counter: the order in which components are made must not matter (0020).
        key = hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=16).digest()
        return random.Random(int.from_bytes(key, "big"))

    def on(self, effect: type[Effect], handler: Handler) -> None:
        """Perform effects of this type by calling handler(target, effect).

        Subclasses without a handler of their own use that of their nearest base.
        """
        self._bases[effect] = handler
        self._handlers.clear()

    def call(self, time: int, action: Action, priority: int = FAULT) -> None:
        """Call action(now) at a time."""
        self.give(time, _CALLER, action, priority)

    def give(self, time: int, target: Target, item: object, priority: int = INPUT) -> None:
        """Schedule an input for a target."""
        assert time >= self.now
        sequence = self._next()
        if sequence > self._sequence_max:
            raise Runaway(f"more than {self._sequence_max} events by {self.now} µs")
        if self._heap_only:
            near = self._near
            heappush(near, (time, priority, sequence, target, item))
            if len(near) > HEAP_MAX:
                self._grow()
        else:
            self._push((time, priority, sequence, target, item))

    def arm(self, target: Target) -> None:
        """Schedule a target's deadline after something other than the kernel has driven it."""
        # A timer that moved later needs no event: the old one finds `wake` changed and is stale.
        due = target.deadline()
        if due is not None and due < target.wake:
            target.wake = due = max(due, self.now)
            self._push((due, TIMER, self._next(), target, None))
            if self._heap_only and len(self._near) > HEAP_MAX:
                self._grow()

    def perform(self, target: Target, effects: Sequence[Effect]) -> None:
        """Perform effects obtained outside the kernel's loop."""
        if not self._handlers:
            self._resolve_handlers()
        for effect in effects:
            self._handlers[type(effect)](target, effect)

    def run(self, until: int, events_max: int = NEVER) -> int:
        """Run to the end of the instant `until`; return the number of events scheduled.

        Beyond `events_max`, `Runaway` is raised: a machine may schedule without end.
        """
        started = self._next()
        self._sequence_max = started + events_max
        self._resolve_handlers()
        self._push((until, LAST, self._next(), _CALLER, _stop))
        while True:
            try:
                self._loop()
            except _Rearrange:
                self._rearranging = False
                self._rebuild()
                continue
            except _Stop:
                pass
            break
        self.now = until
        self._sequence_max = NEVER
        return self._next() - started - 2

    def waiting(self) -> int:
        """Count the waiting events, stale timers included."""
        far = sum(map(len, self._buckets.values()))
        return len(self._near) + len(self._current) + far

    def _grow(self) -> None:
        """Switch from the heap to buckets: by an event, as the loop holds the queue's parts."""
        if not self._rearranging:
            self._rearranging = True
            self._push((self.now, FAULT, self._next(), _CALLER, _rearrange))

    def _resolve_handlers(self) -> None:
        """Map every effect type to its handler: a plain dictionary is 10 % faster (0021)."""
        known = [Effect]
        for kind in known:
            known += kind.__subclasses__()
            for base in kind.__mro__:
                if base in self._bases:
                    self._handlers[kind] = self._bases[base]
                    break

    def _push(self, event: Event) -> None:
        time = event[0]
        if time < self._horizon:
            heappush(self._near, event)
            return
        bucket = time >> self._shift
        if bucket in self._buckets:
            self._buckets[bucket].append(event)
        else:
            self._buckets[bucket] = [event]
            heappush(self._bucket_ids, bucket)

    def _loop(self) -> None:  # noqa: C901 — one loop on purpose: each call here costs 5 %
        """The hot path, with calls inlined by hand; `roamcast bench run sim` measures it."""
        near, current, handlers, following = self._near, self._current, self._handlers, self._next
        event = self._pop()
        buckets, shift, horizon = self._buckets, self._shift, self._horizon
        heap_only = self._heap_only
        while True:
            now, _, _, target, item = event
            self.now = now
            if item is None:
                if target.wake == now:  # otherwise the timer was moved and this event is stale
                    advance, deadline = target.advance, target.deadline
                    for effect in advance(now):
                        handlers[type(effect)](target, effect)
                    due = deadline()
                    if due is None:
                        target.wake = NEVER
                    elif heap_only:
                        assert due > now, target  # or the machine would spin
                        target.wake = due
                        # Most timers re-arm themselves: one heap operation instead of two (0021).
                        event = heappushpop(near, (due, TIMER, following(), target, None))
                        continue
                    else:
                        assert due > now, target
                        target.wake = due
                        if due < horizon:
                            heappush(near, (due, TIMER, following(), target, None))
                        else:
                            bucket = due >> shift
                            if bucket in buckets:
                                buckets[bucket].append((due, TIMER, following(), target, None))
                            else:
                                self._push((due, TIMER, following(), target, None))
            else:
                receive, deadline = target.receive, target.deadline
                for effect in receive(item, now):
                    handlers[type(effect)](target, effect)
                due = deadline()
                if due is not None and due < target.wake:
                    target.wake = due = max(due, now)
                    self._push((due, TIMER, following(), target, None))
            if current:
                event = heappop(near) if near and near[0] < current[-1] else current.pop()
            elif near:
                event = heappop(near)
            else:
                event = self._pop()
                buckets, shift, horizon = self._buckets, self._shift, self._horizon
                heap_only = self._heap_only

    def _pop(self) -> Event:
        """Remove the first event; if the current bucket is empty, sort the next one."""
        near, current = self._near, self._current
        while not near and not current:
            if not self._bucket_ids:
                raise _Stop
            bucket = heappop(self._bucket_ids)
            current.extend(self._buckets.pop(bucket))
            self._horizon = (bucket + 1) << self._shift
            self._thin_refills = self._thin_refills + 1 if len(current) < BUCKET_MIN else 0
            if len(current) > BUCKET_MAX or self._thin_refills > THIN_REFILLS_MAX:
                self._rebuild()
            else:
                current.sort(reverse=True)  # so that pop() from the end gives the earliest
        if current and not (near and near[0] < current[-1]):
            return current.pop()
        return heappop(near)

    def _rebuild(self) -> None:
        """Choose the buckets' width from the waiting events: about BUCKET_TARGET in each."""
        waiting = self._near + self._current
        for bucket in self._buckets.values():
            waiting += bucket
        waiting.sort()
        self._buckets = {}
        for queue in (self._near, self._current, self._bucket_ids):
            queue.clear()
        self._thin_refills = 0
        if len(waiting) <= HEAP_MAX:
            self._near.extend(waiting)
            self._horizon = NEVER
            self._heap_only = True
            return
        self._heap_only = False
        # Use the nearest three quarters: a few distant timers must not stretch the buckets.
        body = len(waiting) * 3 // 4
        width = max((waiting[body][0] - waiting[0][0]) * BUCKET_TARGET // body, 1)
        self._shift = width.bit_length() - 1  # a power of two, so a shift finds the bucket
        self._horizon = ((waiting[0][0] >> self._shift) + 1) << self._shift
        for event in waiting:
            self._push(event)
