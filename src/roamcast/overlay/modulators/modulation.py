"""The modulators of one subscription: each event goes through them in turn.

A modulation is a function of the events it got since its checkpoint and of their times, so it can
move to another broker: the checkpoint and the events since then give the same state there. Its
mark, a running hash of all answers, shows whether they did.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Final, Protocol

import msgspec

from roamcast.errors import InputError, ModulatorError
from roamcast.model.contexts import Context, body_of
from roamcast.model.filters import Filter
from roamcast.overlay.modulators import specs
from roamcast.overlay.modulators.sample import Sample, listed, packed, unpacked
from roamcast.overlay.modulators.sandbox import Compiled, Engine, Sandbox

REPLAY: Final = "it answered otherwise when its events were replayed"


class Modulator(Protocol):
    """One step: an event in, an event or nothing out."""

    def apply(self, sample: Sample, time: int) -> Sample | None:
        """Take an event; give what is left of it."""

    def checkpoint(self) -> bytes:
        """Give everything that later answers depend on."""

    def restore(self, state: bytes) -> None:
        """Go on from a checkpoint."""


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """What a modulation needs to go on elsewhere."""

    states: tuple[bytes, ...]
    count: int = 0
    """Events so far."""
    mark: bytes = b""
    """Hash of all answers so far."""


class Modulation:
    """Modulators in turn, and their mark."""

    def __init__(
        self,
        wanted: Sequence[specs.Spec],
        *,
        engine: Engine | None = None,
        find: Callable[[str], Compiled | None] | None = None,
    ) -> None:
        """`find` gives a compiled module by its hash; ModulatorError if one is missing."""
        self.stopped = ""
        """Why it runs no more."""
        self.count = 0
        self.mark = b""
        self._steps = [_make(spec, engine, find) for spec in wanted]

    def apply(self, sample: Sample, time: int) -> Sample | None:
        """Let an event through all steps; ModulatorError stops this subscription for good."""
        if self.stopped:
            raise ModulatorError(self.stopped)
        left: Sample | None = sample
        try:
            for one in self._steps:
                if left is None:
                    break
                left = one.apply(left, time)
        except InputError as error:
            self.stopped = str(error)
            raise ModulatorError(self.stopped) from None
        self.count += 1
        answer = b"" if left is None else packed(left)
        self.mark = blake2b(self.mark + answer, digest_size=16).digest()
        return left

    @property
    def fuel_used(self) -> int:
        """What modules used for the last event."""
        return sum(one.sandbox.fuel_used for one in self._steps if isinstance(one, Running))

    @property
    def memory_bytes(self) -> int:
        """About how much memory its modules take."""
        return sum(one.sandbox.memory_bytes for one in self._steps if isinstance(one, Running))

    def checkpoint(self) -> Checkpoint:
        """Freeze the state; the modulation goes on from it, as any other would."""
        return Checkpoint(tuple(one.checkpoint() for one in self._steps), self.count, self.mark)

    def restore(self, found: Checkpoint) -> None:
        """Go on from a checkpoint of the same list of modulators."""
        if len(found.states) != len(self._steps):
            raise ModulatorError("the checkpoint belongs to other modulators")
        for one, state in zip(self._steps, found.states, strict=True):
            one.restore(state)
        self.count, self.mark, self.stopped = found.count, found.mark, ""

    def replay(self, events: Iterable[tuple[Sample, int]], mark: bytes) -> list[Sample | None]:
        """Repeat the events after a checkpoint; the mark must be the one of the first time."""
        answers = [self.apply(sample, time) for sample, time in events]
        if self.mark != mark:
            self.stopped = REPLAY
            raise ModulatorError(REPLAY)
        return answers


def _make(
    spec: specs.Spec, engine: Engine | None, find: Callable[[str], Compiled | None] | None
) -> Modulator:
    match spec:
        case specs.Select():
            return Selecting(spec)
        case specs.EveryNth(n):
            return Counting(n)
        case specs.PerSecond(rate):
            return Spacing(rate)
        case specs.WithinBox():
            return Inside(spec)
        case specs.Code(module, settings):
            compiled = find(module) if find is not None else None
            if engine is None or compiled is None:
                raise ModulatorError(f"module {module[:12]}… is not here")
            return Running(Sandbox(engine, compiled, settings))
    raise AssertionError(f"no modulator {spec!r}")


class Stateless:
    """A modulator that remembers nothing."""

    def checkpoint(self) -> bytes:
        """Nothing."""
        return b""

    def restore(self, state: bytes) -> None:
        """Nothing."""
        if state:
            raise ModulatorError("this modulator has no state")


class Selecting(Stateless):
    """A filter with projection."""

    def __init__(self, spec: specs.Select) -> None:
        self._filter = None if spec.filter == "TRUE" else Filter.parse(spec.filter)
        self._names = None if spec.attributes is None else frozenset(spec.attributes)
        self._data = spec.data

    def apply(self, sample: Sample, time: int) -> Sample | None:
        """Drop it, or what of it is not wanted."""
        del time
        context = sample.context
        if self._filter is not None and not self._filter.matches(context):
            return None
        body = sample.body
        if self._names is not None:
            body = body_of(_projected(context, self._names))
        return Sample(body, sample.data if self._data else b"")


def _projected(context: Context, names: frozenset[str]) -> Context:
    attributes = {name: value for name, value in context.attributes.items() if name in names}
    return msgspec.structs.replace(context, attributes=attributes)


class Numbered:
    """A modulator whose state is one number."""

    def __init__(self) -> None:
        self._number = 0

    def checkpoint(self) -> bytes:
        """The number."""
        return listed(self._number)

    def restore(self, state: bytes) -> None:
        """Take the number."""
        try:
            self._number = msgspec.msgpack.decode(state, type=int)
        except msgspec.DecodeError as error:
            raise ModulatorError(f"not a state: {error}") from None


class Counting(Numbered):
    """Every n-th event."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self._n = n

    def apply(self, sample: Sample, time: int) -> Sample | None:
        """Count."""
        del time
        self._number = (self._number + 1) % self._n
        return sample if self._number == 0 else None


class Spacing(Numbered):
    """At most r a second: the next one not before 1/r seconds after the last."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self._every_us = round(1_000_000 / rate)
        self._number = -(2**62)  # when the next one may go

    def apply(self, sample: Sample, time: int) -> Sample | None:
        """Let it through if its time has come; a schedule that is met does not drift."""
        if time < self._number:
            return None
        late = time - self._number
        start = self._number if late < self._every_us else time
        self._number = start + self._every_us
        return sample


class Inside(Stateless):
    """Events in a box."""

    def __init__(self, spec: specs.WithinBox) -> None:
        if spec.south > spec.north:
            raise ModulatorError("a box's south lies above its north")
        self._box = spec

    def apply(self, sample: Sample, time: int) -> Sample | None:
        """Look at the point; an event without one is in no box."""
        del time
        point = sample.context.point
        if point is None:
            return None
        x, y = point
        box = self._box
        across = box.west <= x <= box.east if box.west <= box.east else not box.east < x < box.west
        return sample if across and box.south <= y <= box.north else None


class Running:
    """A WebAssembly module."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def apply(self, sample: Sample, time: int) -> Sample | None:
        """Run it."""
        answer = self.sandbox.run(packed(sample), time)
        return unpacked(answer) if answer else None

    def checkpoint(self) -> bytes:
        """What the module saves; it goes on from that alone."""
        return self.sandbox.checkpoint()

    def restore(self, state: bytes) -> None:
        """Let a new instance load it."""
        self.sandbox.restore(state)
