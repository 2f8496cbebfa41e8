"""Where modulators run: jobs in, answers out, in order; both drivers have one.

The live service gives it a thread of its own, the simulator calls it after a while. It holds no
policy: which consumer's events come next, and what becomes of the answers, is the home's matter.
"""

from collections.abc import Callable, Sequence
from typing import Final

from roamcast.errors import InputError, LimitError
from roamcast.overlay.flows.messages import Event, Events
from roamcast.overlay.modulators.events import (
    EndModulation,
    Modulate,
    ModulationAnswer,
    ModulationFailed,
    StartModulation,
)
from roamcast.overlay.modulators.modulation import Modulation
from roamcast.overlay.modulators.sample import Sample
from roamcast.overlay.modulators.specs import Spec

CHECKPOINT_BYTES_MAX: Final = 128 * 1024
"""States of one consumer's modulators together: they travel in one parcel."""

BYTES_MAX: Final = 512 * 1024 * 1024
"""Memory of all modules that run here: beyond it, whoever asks for more is stopped, …"""

OWNER_BYTES_MAX: Final = 64 * 1024 * 1024
"""… and beyond this of one credential's, so that nobody takes it all."""

Make = Callable[[Sequence[Spec]], Modulation]
Order = StartModulation | Modulate | EndModulation


class Workshop:
    """The modulations of one broker's consumers, by instance."""

    def __init__(
        self,
        make: Make = Modulation,
        *,
        bytes_max: int = BYTES_MAX,
        owner_bytes_max: int = OWNER_BYTES_MAX,
    ) -> None:
        self._make = make
        self._running: dict[int, Modulation] = {}
        self._owners: dict[int, str] = {}
        self._bytes: dict[int, int] = {}
        """Instances whose modules take memory → how much."""
        self._bytes_max = bytes_max
        self._owner_bytes_max = owner_bytes_max

    def __len__(self) -> int:
        return len(self._running)

    def work(self, order: Order) -> ModulationAnswer | ModulationFailed | None:
        """Carry out an order; whatever goes wrong in a modulator is the answer."""
        try:
            match order:
                case StartModulation(consumer, instance, specs, checkpoint, owner):
                    made = self._make(specs)
                    if checkpoint is not None:
                        made.restore(checkpoint)
                    self._running[instance], self._owners[instance] = made, owner
                    self._weigh(instance)
                case Modulate(consumer, instance):
                    return self._modulate(order)
                case EndModulation(instance):
                    self._end(instance)
        except InputError as error:
            self._end(instance)
            return ModulationFailed(consumer, instance, str(error)[:500])
        return None

    def _end(self, instance: int) -> None:
        for held in (self._running, self._owners, self._bytes):
            held.pop(instance, None)

    def _weigh(self, instance: int) -> None:
        """Stop modulators that take more memory than is left for them."""
        taken = self._running[instance].memory_bytes
        if taken == self._bytes.get(instance, 0):
            return
        self._bytes[instance] = taken
        owner = self._owners[instance]
        own = sum(size for one, size in self._bytes.items() if self._owners[one] == owner)
        if own > self._owner_bytes_max:
            raise LimitError(
                f"modules of one credential take at most {self._owner_bytes_max} bytes"
            )
        if sum(self._bytes.values()) > self._bytes_max:
            raise LimitError("modules take all the memory that this broker has for them")

    def _modulate(self, order: Modulate) -> ModulationAnswer | None:
        modulation = self._running.get(order.instance)
        if modulation is None:  # it has failed before, and said so
            return None
        answers = tuple(_through(modulation, events) for events in order.events)
        self._weigh(order.instance)
        checkpoint = None
        if order.checkpoint:
            checkpoint = modulation.checkpoint()
            if sum(map(len, checkpoint.states)) > CHECKPOINT_BYTES_MAX:
                raise LimitError(f"its state has more than {CHECKPOINT_BYTES_MAX} bytes")
        return ModulationAnswer(
            order.consumer, order.instance, order.job, answers, modulation.mark, checkpoint
        )


def _through(modulation: Modulation, events: Events) -> Events:
    """Let events through; each answer stays where its event was in the log."""
    found = []
    for number, event in events:
        left = modulation.apply(Sample(event.body, event.data), event.context.t_r)
        if left is not None:
            found.append((number, _changed(event, left)))
    return tuple(found)


def _changed(event: Event, left: Sample) -> Event:
    return Event(event.producer, event.life, event.number, left.body, left.data, event.needs)
