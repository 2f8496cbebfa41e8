"""A consumer's modulated events at one home, and how they move to the next (OO 2.4, 3.4).

Events come as intervals of origins' logs: everything the consumer wants in (after, upto]. A vector,
origin → position, says how far modulators have got. To move, a home freezes: vector and state are
taken together (trap 24), and nothing more is delivered there. Relocation has two switches:

| events | state | promise                                                                  |
|--------|-------|--------------------------------------------------------------------------|
| yes    | yes   | every event passes the modulators once, in order, as if nobody had moved |
| yes    | no    | every event once, in order; modulators begin anew                        |
| no     | yes   | what came between freezing and the new routes is skipped, and reported   |
| no     | no    | both of these                                                            |

Modulators' answers depend on the order in which origins' events were mixed, so a home records the
intervals since its last checkpoint: replay follows them, and recovery after a crash is exact, too.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from roamcast.errors import LimitError, ModulatorError
from roamcast.overlay.flows.messages import Events
from roamcast.overlay.flows.vector import ORIGINS_MAX, Pairs, Position, Vector, pairs
from roamcast.overlay.links.messages import NodeName
from roamcast.overlay.modulators.modulation import REPLAY, Checkpoint, Modulation
from roamcast.overlay.modulators.sample import Sample
from roamcast.overlay.modulators.specs import MODULATORS_MAX, Spec

STEPS_MAX: Final = 256
"""Intervals since a checkpoint; at the bound a new one is taken."""

Located = tuple[Position, Sample, int]
"""An event, where it lies in its origin's log, and its time."""

Make = Callable[[Sequence[Spec]], Modulation]


class Relocation(msgspec.Struct, frozen=True, gc=False):
    """What moves with a consumer."""

    events: bool = True
    state: bool = True


class LogSpan(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What was taken of an origin's log: (after, upto]."""

    origin: NodeName
    after: Position
    upto: Position


class Frozen(msgspec.Struct, frozen=True):
    """A consumer on its way: how far it is, and its modulators' state there."""

    specs: Annotated[tuple[Spec, ...], Meta(max_length=MODULATORS_MAX)]
    vector: Annotated[Pairs, Meta(max_length=ORIGINS_MAX)]
    checkpoint: Checkpoint | None
    relocation: Relocation


class Saved(msgspec.Struct, frozen=True):
    """What a home stores of a consumer: a checkpoint, where it was, and what came since."""

    specs: Annotated[tuple[Spec, ...], Meta(max_length=MODULATORS_MAX)]
    vector: Annotated[Pairs, Meta(max_length=ORIGINS_MAX)]
    checkpoint: Checkpoint
    steps: Annotated[tuple[LogSpan, ...], Meta(max_length=STEPS_MAX)] = ()
    mark: bytes = b""


class ModulatedConsumer:
    """One consumer at its home."""

    def __init__(self, specs: Sequence[Spec], modulation: Modulation, vector: Vector) -> None:
        if len(vector) > ORIGINS_MAX:
            raise LimitError(f"a consumer has at most {ORIGINS_MAX} origins")
        self.specs = tuple(specs)
        self.vector = dict(vector)
        self.frozen = False
        self._modulation = modulation
        self._renew()

    @property
    def stopped(self) -> str:
        """Why its modulators run no more; empty while they do."""
        return self._modulation.stopped

    def missing(self, interval: LogSpan) -> LogSpan | None:
        """Give what lies between how far we are and an interval; it must be fetched first."""
        known = self.vector.get(interval.origin, interval.after)
        return None if interval.after <= known else LogSpan(interval.origin, known, interval.after)

    def deliver(self, interval: LogSpan, events: Iterable[Located]) -> list[Sample]:
        """Take an interval that follows what is known; give what the consumer gets of it.

        What is known already is left out. ModulatorError stops this consumer alone.
        """
        assert self.missing(interval) is None, "there is a gap: fetch what is missing first"
        origin = interval.origin
        if origin not in self.vector and len(self.vector) >= ORIGINS_MAX:
            raise LimitError(f"a consumer has at most {ORIGINS_MAX} origins")
        known = self.vector.get(origin, interval.after)
        if self.frozen or interval.upto <= known:
            return []
        found = [self._modulation.apply(s, time) for at, s, time in events if at > known]
        self.vector[origin] = interval.upto
        self._steps.append(LogSpan(origin, known, interval.upto))
        if len(self._steps) >= STEPS_MAX:
            self._renew()
        return [sample for sample in found if sample is not None]

    def save(self) -> Saved:
        """Give what is needed to go on after a crash."""
        steps = tuple(self._steps)
        return Saved(self.specs, self._base, self._checkpoint, steps, self._modulation.mark)

    def freeze(self, relocation: Relocation) -> Frozen:
        """Stop here, at one vector, with the state that belongs to it."""
        self.frozen = True
        self._renew()
        state = self._checkpoint if relocation.state else None
        return Frozen(self.specs, pairs(self.vector), state, relocation)

    def thaw(self) -> None:
        """Go on here after all: the move was given up."""
        self.frozen = False

    def _renew(self) -> None:
        """Take a checkpoint; what comes from now on is recorded after it."""
        self._checkpoint = self._modulation.checkpoint()
        self._base = pairs(self.vector)
        self._steps: list[LogSpan] = []


def take_over(frozen: Frozen, start: Vector, make: Make) -> tuple[ModulatedConsumer, list[LogSpan]]:
    """Go on with a consumer at its new home, whose routes stand from `start` on.

    The intervals that nobody will deliver come second; with events there are none, because the
    origins' logs have what lies between.
    """
    modulation = make(frozen.specs)
    if frozen.checkpoint is not None:
        modulation.restore(frozen.checkpoint)
    vector = dict(frozen.vector)
    skipped: list[LogSpan] = []
    for origin, position in start.items():
        known = vector.setdefault(origin, position)
        # Never back: what was delivered at the old home is not delivered again.
        if position > known and not frozen.relocation.events:
            skipped.append(LogSpan(origin, known, position))
            vector[origin] = position
    return ModulatedConsumer(frozen.specs, modulation, vector), skipped


def recover(
    saved: Saved, fetch: Callable[[LogSpan], Sequence[Located]], make: Make
) -> tuple[ModulatedConsumer, list[Sample]]:
    """Repeat what came since the checkpoint, in the same order; give the answers once more.

    They must be those of the first time, else `ModulatorError`: the consumer may have had some.
    """
    modulation = make(saved.specs)
    modulation.restore(saved.checkpoint)
    vector, answers = dict(saved.vector), []
    for interval in saved.steps:
        events = [(sample, time) for _, sample, time in fetch(interval)]
        answers += [modulation.apply(sample, time) for sample, time in events]
        vector[interval.origin] = interval.upto
    if modulation.mark != saved.mark:
        raise ModulatorError(REPLAY)
    return ModulatedConsumer(saved.specs, modulation, vector), [a for a in answers if a is not None]


def located(epoch: int, events: Events) -> list[Located]:
    """Give the events of a delivery as modulators take them; their time is their context's own."""
    return [
        (Position(epoch, number), Sample(event.body, event.data), event.context.t_r)
        for number, event in events
    ]
