"""The work for a home's consumers: flows to modulators, answers to disk, and out.

At any moment at most one job of a consumer is with its modulators, or its record with the disk.
What follows from an answer, a write or a word of the consumer waits for that (`_go_on`).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from roamcast.errors import ModulatorError
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Store, Writes, step
from roamcast.model.parts import Forward, Part, PartTimers, Timer, TimerHandlers
from roamcast.model.records import HandoffStep
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.flows.events import (
    EventsDelivered,
    EventsLost,
    EventsStanding,
    SubscribeEvents,
    UnsubscribeEvents,
)
from roamcast.overlay.flows.messages import Events
from roamcast.overlay.flows.vector import Position, pairs, published
from roamcast.overlay.homes import events as given_by
from roamcast.overlay.homes.managers import HomeSettings
from roamcast.overlay.homes.records import (
    SERVING_TABLE,
    ServedConsumer,
    ServingEvent,
    ServingState,
    deleted,
    record_of,
)
from roamcast.overlay.homes.relocation import LogSpan, Saved, Work
from roamcast.overlay.modulators.events import (
    EndModulation,
    Modulate,
    ModulationAnswer,
    NeedModule,
    StartModulation,
)
from roamcast.overlay.modulators.modulation import REPLAY, Checkpoint
from roamcast.overlay.modulators.specs import Code, Spec

PRODUCERS_MAX: Final = 64
BARRED_MAX: Final = 1_024
"""Modules that were stopped, each of one credential, that are remembered."""

SKIPPED: Final = "skipped: events do not move with this consumer"
LOG_TOO_SHORT: Final = "a log no longer has what its state depends on"


class ServingTimer(Timer, frozen=True):
    """One of a consumer that is served here."""

    consumer: str


class ServingLeaseDue(ServingTimer, frozen=True):
    """It has been away for too long."""


class ServingPatienceDue(ServingTimer, frozen=True):
    """Its former home has not given its state in time."""


class ServingAgainDue(ServingTimer, frozen=True):
    """What was waiting for a parcel is tried again."""


class ServingStoreDue(ServingTimer, frozen=True):
    """What failed to be written of it is written again."""


CONSUMER_TIMERS: Final = (ServingLeaseDue, ServingPatienceDue, ServingAgainDue, ServingStoreDue)


class ServingWork(Part):
    """What a home does for the consumers that it serves; who they are, `Serving` decides."""

    def __init__(self, settings: HomeSettings) -> None:
        self.served: dict[str, ServedConsumer] = {}
        self._settings = settings
        self._stores: dict[int, str] = {}
        self._count = 0
        """Of instances, jobs and tokens."""
        self._producers: dict[str, None] = {}
        self._barred: dict[tuple[str, str], tuple[int, str]] = {}
        """Owners and modules of theirs that were stopped here → until when, and why."""
        self.timers: PartTimers = PartTimers(self._timer_handlers())

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _timer_handlers(self) -> TimerHandlers:
        raise NotImplementedError

    def _give(self, served: ServedConsumer) -> list[Effect]:
        raise NotImplementedError

    def _end_claim(self, name: str, *, everywhere: bool) -> None:
        raise NotImplementedError

    # --- beginning and ending

    def _begin(self, served: ServedConsumer, saved: Saved | None, now: int) -> list[Effect]:
        """Let modulators and flows begin."""
        if served.state is ServingState.ASKING:
            served.state = step(SERVING_TABLE, served.state, ServingEvent.KNOWN)
        self.timers.cancel(ServingPatienceDue(served.name))
        work = served.work
        work.begin(saved, work.had)
        served.replaying = served.frozen = False
        served.continued = saved is not None
        served.lacks = {spec.module for spec in work.specs if isinstance(spec, Code)}
        if served.lacks:
            return [NeedModule(module) for module in sorted(served.lacks)]
        return self._start(served, now)

    def _start(self, served: ServedConsumer, now: int) -> list[Effect]:
        """Let modulators begin, whose modules are all here."""
        work = served.work
        served.instance = self._next()
        checkpoint = work.base.checkpoint
        effects: list[Effect] = [
            StartModulation(served.name, served.instance, work.specs, checkpoint, served.owner),
            HandoffStep(served.name, "continued" if served.continued else "began"),
        ]
        continued = served.continued or not work.counts
        return [*effects, *self._answer_for(served, now, continued=continued)]

    def _module_ready(self, module: str, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for served in [one for one in self.served.values() if module in one.lacks]:
            served.lacks.discard(module)
            if not served.lacks:
                effects += self._start(served, now)
        return effects

    def _module_missing(self, module: str, reason: str) -> list[Effect]:
        """End those who would begin; a state that came from elsewhere waits for its module."""
        effects: list[Effect] = []
        for served in [one for one in self.served.values() if module in one.lacks]:
            if served.continued:
                effects.append(NeedModule(module))
                continue
            effects += self._drop(served, "stopped", everywhere=True)
            effects.append(given_by.ModulatorsStopped(served.name, reason))
        return effects

    def _answer_for(self, served: ServedConsumer, now: int, *, continued: bool) -> list[Effect]:
        """Serve a consumer; what this node answers for is on disk before anybody is told."""
        served.beginning, served.continued = True, continued
        if served.work.keeps:
            return self._store(served)
        return [*self._serve(served), *self._go_on(served, now)]

    def _serve(self, served: ServedConsumer) -> list[Effect]:
        """Tell who asked that its consumer is served, and let its events come."""
        if not served.beginning or served.state is not ServingState.SERVING:
            return []
        served.beginning = False
        effects: list[Effect] = []
        if served.ticket is not None:
            attached = given_by.ModulatedAttached(served.ticket, served.name, served.continued)
            effects.append(attached)
        if served.anew:
            effects.append(given_by.ModulatorsAnew(served.name, served.anew))
        served.ticket, served.anew = None, ""
        return [*effects, *self._stand(served), *self._flow_on(served)]

    def _stand(self, served: ServedConsumer) -> list[Effect]:
        """Tell a consumer's end where it begins with origins that only its record knows.

        Its end may have gone before it heard of them. It confirms only what it knows, and
        modulators stop when too much is unconfirmed.
        """
        work = served.work
        unknown = {one: at for one, at in work.vector.items() if one not in work.had}
        return [EventsStanding(served.name, pairs(unknown))] if unknown else []

    def _begin_anew(self, served: ServedConsumer, reason: str, now: int) -> list[Effect]:
        served.anew = reason
        return self._begin(served, None, now)

    def _flow_on(self, served: ServedConsumer) -> list[Effect]:
        served.flowing = True
        wanted, vector = Filter.parse(served.wanted), pairs(served.work.vector)
        return [Forward(SubscribeEvents(0, served.name, wanted, vector, modulated=True))]

    def _flow_off(self, served: ServedConsumer) -> list[Effect]:
        if not served.flowing:
            return []
        served.flowing = False
        return [Forward(UnsubscribeEvents(served.name))]

    def _halt(self, served: ServedConsumer) -> list[Effect]:
        """Stop flows and modulators; what was under way comes to nothing."""
        effects = self._flow_off(served)
        if served.instance:
            effects.append(EndModulation(served.instance))
        served.instance, served.doing, served.out = 0, None, []
        served.beginning, served.lacks = False, set()
        served.work.clear()
        return effects

    def _drop(self, served: ServedConsumer, why: str, *, everywhere: bool = False) -> list[Effect]:
        """Forget a consumer; `everywhere`: its former homes should, too."""
        effects = self._halt(served)
        del self.served[served.name]
        for kind in CONSUMER_TIMERS:
            self.timers.cancel(kind(served.name))
        self._end_claim(served.name, everywhere=everywhere)
        if served.stored:
            effects.append(self._write(deleted(served.name)))
        effects.append(Forward(given_by.DropHomeClient(served.name)))
        return [*effects, HandoffStep(served.name, why)]

    # --- events through modulators

    def _flowed(
        self, effect: EventsStanding | EventsDelivered | EventsLost, now: int
    ) -> list[Effect]:
        served = self.served.get(effect.consumer)
        if served is None or not served.flowing:
            return []
        work, effects = served.work, list[Effect]()
        match effect:
            case EventsStanding(name, vector):
                known = set(work.vector)
                skipped = work.stands(dict(vector))
                effects += [
                    EventsLost(name, one.origin, one.after, one.upto, SKIPPED) for one in skipped
                ]
                # Of what it knows, flows are ahead of what has gone through modulators and out.
                fresh = {one: work.vector[one] for one, _ in vector if one not in known}
                effects.append(EventsStanding(name, pairs(fresh)))
                effects += self._produces(dict(vector))
            case EventsDelivered(_, origin, after, upto, events):
                work.add(LogSpan(origin, after, upto), events)
                effects += self._produces({origin: upto})
            case EventsLost(_, origin, after, upto, reason):
                if any(one.origin == origin for one in work.script):
                    # What the state depends on cannot be repeated any more.
                    return [*self._halt(served), *self._begin_anew(served, LOG_TOO_SHORT, now)]
                work.lose(LogSpan(origin, after, upto), reason)
        if work.crowded and not work.script:
            effects += self._flow_off(served)
        return [*effects, *self._go_on(served, now)]

    def _produces(self, vector: Mapping[str, Position]) -> list[Effect]:
        """Tell homes where events come from: paths are measured from there.

        By logs that have something, not by what was delivered here: all homes must measure alike,
        or a consumer goes to and fro between two that do not.
        """
        fresh = [one for one, at in vector.items() if published(at) and one not in self._producers]
        if not fresh:
            return []
        self._producers.update(dict.fromkeys(fresh))
        while len(self._producers) > PRODUCERS_MAX:
            del self._producers[next(iter(self._producers))]
        return [Forward(given_by.SetProducers(tuple(sorted(self._producers))))]

    def _go_on(self, served: ServedConsumer, now: int) -> list[Effect]:
        """Do the next thing for a consumer of whom nothing is under way."""
        if served.busy:
            return []
        if served.state is ServingState.GIVING:
            return self._give(served)
        if served.state is not ServingState.SERVING or served.lacks:
            return []
        work = served.work
        if served.replaying and not work.script:
            served.replaying = False
            if not work.replayed():
                return self._stop(served.name, served.instance, REPLAY, now)
            if work.cut:
                work.clear()
                return [*self._flow_on(served), *self._go_on(served, now)]
        served.replaying = bool(work.script)
        found = work.next_work()
        checkpoint = work.wants_checkpoint
        if found or checkpoint:
            return self._modulate(served, found, now, checkpoint=checkpoint)
        if not served.flowing and work.empty:
            work.clear()
            return self._flow_on(served)
        return []

    def _modulate(
        self, served: ServedConsumer, found: list[Work], now: int, *, checkpoint: bool
    ) -> list[Effect]:
        served.doing = found
        events = tuple(work.events for work in found)
        if not checkpoint and not any(events):  # only positions move
            return self._worked(served, events, served.work.mark, now)
        return [Modulate(served.name, served.instance, self._next(), events, checkpoint)]

    def _answered(self, given: ModulationAnswer, now: int) -> list[Effect]:
        served = self.served.get(given.consumer)
        if served is None or served.instance != given.instance or served.doing is None:
            return []
        checkpoint = given.checkpoint
        giving = served.state is ServingState.GIVING and served.work.whole
        if giving and checkpoint is not None and not served.doing:
            served.work.freeze(checkpoint)
            served.doing, served.frozen = None, True
            return self._go_on(served, now)
        return self._worked(served, given.events, given.mark, now, checkpoint)

    def _worked(
        self,
        served: ServedConsumer,
        answers: tuple[Events, ...],
        mark: bytes,
        now: int,
        checkpoint: Checkpoint | None = None,
    ) -> list[Effect]:
        """Take answers; they go out once the steps that led to them are on disk."""
        done, served.doing = served.doing, None
        assert done is not None
        out, recorded = served.work.answered(done, answers, mark, replayed=served.replaying)
        served.out += out
        if checkpoint is not None:
            served.work.checkpointed(checkpoint)
        if recorded:
            return self._store(served)
        return [*self._release(served), *self._go_on(served, now)]

    def _release(self, served: ServedConsumer) -> list[Effect]:
        out, served.out = served.out, []
        name = served.name
        return [
            EventsLost(name, one.span.origin, one.span.after, one.span.upto, one.lost)
            if one.lost
            else EventsDelivered(name, one.span.origin, one.span.after, one.span.upto, one.events)
            for one in out
        ]

    def _stop(self, name: str, instance: int, reason: str, now: int) -> list[Effect]:
        """End a consumer whose modulators cannot go on; nobody else notices."""
        served = self.served.get(name)
        if served is None or served.instance != instance:
            return []
        for spec in served.work.specs:
            if isinstance(spec, Code):
                self._bar(served.owner, spec.module, reason, now)
        effects = self._drop(served, "stopped", everywhere=True)
        return [*effects, given_by.ModulatorsStopped(name, reason)]

    def _bar(self, owner: str, module: str, reason: str, now: int) -> None:
        """Begin nobody's module again for a while that was stopped: each time costs others time."""
        self._barred.pop((owner, module), None)
        self._barred[owner, module] = now + self._settings.barred_us, reason
        if len(self._barred) > BARRED_MAX:
            del self._barred[next(iter(self._barred))]

    def _check_barred(self, owner: str, specs: Sequence[Spec], now: int) -> None:
        for spec in specs:
            if not isinstance(spec, Code):
                continue
            until, reason = self._barred.get((owner, spec.module), (0, ""))
            if now < until:
                wait_s = -((now - until) // MICROSECONDS)
                raise ModulatorError(
                    f"this module was stopped: {reason}; it may begin here again in {wait_s} s"
                )

    # --- the disk

    def _write(self, writes: Writes, name: str = "") -> Effect:
        token = self._next()
        self._stores[token] = name
        return Store(token, writes)

    def _store(self, served: ServedConsumer) -> list[Effect]:
        """Write the record; what waits for it goes out afterwards."""
        served.stored = True
        effect = self._write(record_of(served.record()), served.name)
        served.store = self._count
        return [effect]

    def _stored(self, token: int, now: int) -> list[Effect]:
        served = self.served.get(self._stores.pop(token))
        if served is None or served.store != token:
            return []
        served.store = 0
        effects = self._serve(served)
        return [*effects, *self._release(served), *self._go_on(served, now)]

    def _unstored(self, token: int, now: int) -> list[Effect]:
        served = self.served.get(self._stores.pop(token))
        if served is not None and served.store == token:
            self.timers.set(ServingStoreDue(served.name), now + self._settings.claim_us)
        return []
