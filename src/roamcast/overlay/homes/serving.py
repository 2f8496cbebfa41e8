"""Serving: a home's consumers with modulators, from their first event to their next home.

A consumer attaches here. If it was served elsewhere, its former home is asked for what it keeps
(a claim), freezes at a vector, and sends checkpoint and steps in a parcel: there is always exactly
one node that keeps a consumer's state, or a parcel on its way. Losing the claim, the answer or the
session loses no event: the consumer's end knows what it had, and the logs have the rest.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from roamcast.errors import ConflictError, ForbiddenError, InputError, LimitError, RoamcastError
from roamcast.model.events import Failed
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Entry, Stored, StoreFailed, step
from roamcast.model.parts import Forward, Occupancy, TimerHandler, TimerHandlers
from roamcast.model.records import HandoffStep
from roamcast.model.wire import NAME_LENGTH_MAX
from roamcast.overlay.events import (
    CameByLink,
    HandleParcel,
    ParcelArrived,
    ParcelHandled,
    ParcelId,
    ParcelPosted,
    PostParcel,
)
from roamcast.overlay.flows.events import ForModulators
from roamcast.overlay.flows.vector import ORIGINS_MAX, pairs
from roamcast.overlay.handoff.messages import FILTER_LENGTH_MAX, Attachment
from roamcast.overlay.homes import events as given_by
from roamcast.overlay.homes.claims import HomeClaiming
from roamcast.overlay.homes.managers import HomeSettings
from roamcast.overlay.homes.messages import HomeClaim, HomeGiven
from roamcast.overlay.homes.records import (
    BASE,
    GONE,
    PREFIX,
    SERVING_TABLE,
    STEPS,
    GoneConsumer,
    ServedConsumer,
    ServedRecord,
    ServedView,
    ServingEvent,
    ServingState,
    deleted,
    encode,
    joined,
    read_gone,
    read_record,
    record_of,
)
from roamcast.overlay.homes.relocation import QUEUE_BYTES_MAX, ModulatedConsumer, Saved
from roamcast.overlay.homes.trail import TRAIL_MAX
from roamcast.overlay.homes.working import (
    BARRED_MAX,
    ServingAgainDue,
    ServingLeaseDue,
    ServingPatienceDue,
    ServingStoreDue,
    ServingTimer,
    ServingWork,
)
from roamcast.overlay.modulators.events import (
    Modulate,
    ModulationAnswer,
    ModulationFailed,
    ModuleMissing,
    ModuleReady,
)
from roamcast.overlay.modulators.specs import MODULATORS_MAX
from roamcast.overlay.topology.topology import NodeTopology

KIND: Final = "home"
"""Parcels that bring what a node has of a consumer."""

WEIGHED_OVER: Final = 4
"""Measurements of what a consumer's modulators take, of which about the mean counts."""

NOBODY_HAS_IT: Final = "no former home has its state"
TOO_LATE: Final = "its former home does not answer"


class ServingClaimDue(ServingTimer, frozen=True):
    """Former homes that did not answer a claim are asked again."""


class ServingGoneDue(ServingTimer, frozen=True):
    """Where its state went need not be remembered any more."""


class Serving(ServingWork):
    """The consumers with modulators whose home this is."""

    part: ClassVar[str] = "serving"
    inputs: ClassVar = (
        given_by.AttachModulated, given_by.DetachModulated, given_by.ConfirmModulated,
        given_by.ReportBrokers, given_by.MeasureLoad, ForModulators, ModulationAnswer,
        ModulationFailed, ModuleReady, ModuleMissing, ParcelArrived, ParcelHandled, ParcelPosted,
    )  # fmt: skip
    carried: ClassVar = {CameByLink: (HomeClaim, HomeGiven)}
    prefix: ClassVar[str] = PREFIX

    def __init__(self, topology: NodeTopology, settings: HomeSettings) -> None:
        super().__init__(settings)
        self.node = topology.node
        self.claims: dict[str, HomeClaiming] = {}
        self._topology = topology
        self._gone: dict[str, GoneConsumer] = {}
        """Consumers whose state went to another node."""
        self._arriving: dict[ParcelId, ServedRecord] = {}
        self._posts: dict[int, tuple[str, GoneConsumer]] = {}

    # --- the part

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Take up what was kept; its consumers are away until they come."""
        for key, value in sorted(stored.items()):
            if key.startswith(BASE):
                steps = stored.get(STEPS + key[len(BASE) :])
                self._keep(joined(read_record(value), steps), now)
            elif key.startswith(GONE):
                self._was_given(key[len(GONE) :], read_gone(value), now)
        return ()

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        """Keep what another host of this node had."""
        stored = {one.key: one.value for one in entries if one.value is not None}
        return self.restore(stored, now)

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take what sessions, flows, modulators, other nodes, custody and the disk bring."""
        match given:
            case ForModulators(effect):
                return self._flowed(effect, now)
            case given_by.AttachModulated(ticket):
                try:
                    return self._attach(given, now)
                except RoamcastError as error:
                    return [Failed(ticket, error)]
            case given_by.DetachModulated():
                return self._detach(given, now)
            case given_by.ConfirmModulated():
                return self._confirm(given, now)
            case given_by.ReportBrokers(client):
                return self._weigh(client)
            case given_by.MeasureLoad(_, _, weights):
                return [] if weights is None else self._measured(dict(weights))
            case Stored(token):
                return self._stored(token, now)
            case StoreFailed(token):
                return self._unstored(token, now)
        return self._worked_on(given, now)

    def _worked_on(self, given: Any, now: int) -> Sequence[Effect]:
        """Take what the workshop answers, and what is known of its modules."""
        match given:
            case ModulationAnswer():
                return self._answered(given, now)
            case ModulationFailed(consumer, instance, reason):
                return self._stop(consumer, instance, reason, now)
            case ModuleReady(module):
                return self._module_ready(module, now)
            case ModuleMissing(module, reason):
                return self._module_missing(module, reason)
        return self._came(given, now)

    def _came(self, given: Any, now: int) -> Sequence[Effect]:
        """Take what other nodes say, and what parcels bring."""
        match given:
            case CameByLink(_, HomeClaim() | HomeGiven() as message):
                return self._routed(message, now)
            case ParcelArrived(_, kind):
                return self._arrived(given) if kind == KIND else ()
            case ParcelHandled(parcel):
                return self._handled(parcel, now)
            case ParcelPosted(part, token, parcel):
                return self._posted(token, parcel, now) if part == self.part else ()
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        """Repeat claims and writes, end leases and patience."""
        return self.timers.fire(now)

    def _timer_handlers(self) -> TimerHandlers:
        def of_served(handler: Callable[[ServedConsumer, int], Sequence[Effect]]) -> TimerHandler:
            def handle(timer: Any, now: int) -> Sequence[Effect]:
                served = self.served.get(timer.consumer)
                return () if served is None else handler(served, now)

            return handle

        return {
            ServingClaimDue: lambda timer, now: self._say_claims(timer.consumer, now),
            ServingGoneDue: lambda timer, _: self._forget_gone(timer.consumer),
            ServingAgainDue: of_served(self._go_on),
            ServingStoreDue: of_served(lambda served, _: self._store(served)),
            # a lease ends only while a consumer is away
            ServingLeaseDue: of_served(lambda served, _: self._drop(served, "lease")),
            ServingPatienceDue: of_served(self._out_of_patience),
        }

    def _out_of_patience(self, served: ServedConsumer, now: int) -> Sequence[Effect]:
        waits = served.state is ServingState.ASKING
        return self._begin_anew(served, TOO_LATE, now) if waits else ()

    def occupancy(self) -> Occupancy:
        """How much is held of what, and the bound of each."""
        bound = self._settings.clients_max
        most = max((one.work.queue_bytes for one in self.served.values()), default=0)
        return {
            "consumers": (len(self.served), bound),
            "claims": (len(self.claims), bound),
            "given away": (len(self._gone), bound),
            "modules barred": (len(self._barred), BARRED_MAX),
            # One delivery more is let in when there is room.
            "bytes of one queue": (most, 2 * QUEUE_BYTES_MAX + 2 * 1024 * 1024),
        }

    def view(self) -> list[ServedView]:
        """Describe everybody for people."""
        return [
            ServedView(
                one.name,
                one.state,
                [type(spec).__struct_config__.tag for spec in one.work.specs],  # type: ignore[misc]
                one.work.events_in,
                1.0 if one.work.passed is None else round(one.work.passed, 3),
            )
            for one in self.served.values()
        ]

    def idle(self) -> bool:
        """Whether nothing is under way, for tests and checkers."""
        busy = any(one.busy or one.out or not one.work.empty for one in self.served.values())
        return not (busy or self.claims or self._stores or self._posts or self._arriving)

    # --- sessions

    def _attach(self, given: given_by.AttachModulated, now: int) -> list[Effect]:
        """Serve a consumer; ask its former homes first if they keep something of it."""
        self.check(given, now)
        name = given.consumer
        served = self.served.get(name)
        effects: list[Effect] = []
        if served is not None and served.attachment < given.served:
            # It was served elsewhere since: what is left here is void.
            effects += self._drop(served, "void")
            served = None
        asked = dict.fromkeys(one for one in given.trail if one != self.node)
        sent_to = self._sent_to(name, given.served)
        if sent_to:
            asked[sent_to] = None
        record = _asked_for(given)
        if served is None:
            served = self.served[name] = ServedConsumer(
                record, ServingState.ASKING, self._work(record)
            )
        served.attachment, served.ticket = given.attachment, given.ticket
        served.weight = given.weight
        served.claim = None
        came_from = "".join(one for one in given.trail[:1] if one != self.node)
        effects.append(Forward(given_by.AddHomeClient(name, given.weight, came_from=came_from)))
        if served.state is not ServingState.ASKING:
            return [*effects, *self._resume(served, record, now)]
        served.work = self._work(record)
        served.work.had, served.wanted = dict(given.vector), record.wanted
        waits = served.work.keeps and bool(asked)
        if asked:
            claim = self.claims[name] = HomeClaiming(
                name, given.owner, given.attachment, given.served,
                state=waits, until_us=now + self._settings.lease_us,
            )  # fmt: skip
            claim.ask(asked)
            if sent_to:  # by this node: the parcel may still be on its way there
                claim.was_given(sent_to)
            effects += self._say_claims(name, now)
        if not waits:
            return [*effects, *self._begin(served, None, now)]
        if not given.relocation.events:
            self.timers.set(ServingPatienceDue(name), now + self._settings.patience_us)
        return effects

    def check(self, given: given_by.AttachModulated, now: int) -> None:
        """Refuse what cannot be served here; nothing changes."""
        for text in (given.consumer, given.owner):
            if not 0 < len(text) <= NAME_LENGTH_MAX:
                raise InputError(f"a consumer's name has 1 to {NAME_LENGTH_MAX} characters")
        if len(given.wanted) > FILTER_LENGTH_MAX:
            raise LimitError(f"a filter has at most {FILTER_LENGTH_MAX} characters")
        if len(given.specs) > MODULATORS_MAX:
            raise LimitError(f"a subscription has at most {MODULATORS_MAX} modulators")
        if len(given.trail) > TRAIL_MAX:
            raise LimitError(f"a consumer names at most {TRAIL_MAX} former homes")
        if len(given.vector) > ORIGINS_MAX:
            raise LimitError(f"a vector has at most {ORIGINS_MAX} origins")
        Filter.parse(given.wanted)
        known = self.served.get(given.consumer)
        if known is None:
            self._check_newcomer(given, now)
            return
        if known.owner != given.owner:
            raise ForbiddenError("this consumer belongs to another credential")
        if given.attachment < known.attachment:
            raise ConflictError("this consumer was attached elsewhere later: raise its attachment")
        if known.state is ServingState.GIVING:
            raise ConflictError("this consumer is on its way to another node: try again")

    def _check_newcomer(self, given: given_by.AttachModulated, now: int) -> None:
        if len(self.served) >= self._settings.clients_max:
            raise LimitError(f"a node serves at most {self._settings.clients_max} consumers")
        if given.served == Attachment(0, 0):  # whoever had it running elsewhere goes on
            self._check_barred(given.owner, given.specs, now)

    def _work(self, record: ServedRecord) -> ModulatedConsumer:
        settings = self._settings
        return ModulatedConsumer(
            record.specs,
            record.relocation,
            renew_steps=settings.renew_steps,
            steps_max=settings.steps_max,
        )

    def _resume(self, served: ServedConsumer, record: ServedRecord, now: int) -> list[Effect]:
        """Go on with a consumer that was here before, from what its end has had."""
        served.state = step(SERVING_TABLE, served.state, ServingEvent.CAME)
        self.timers.cancel(ServingLeaseDue(served.name))
        work, had = served.work, dict(record.saved.vector)
        same = (work.specs, work.relocation) == (record.specs, record.relocation)
        if same and served.instance and not served.busy and had == work.vector:
            served.wanted = record.wanted
            work.had = had
            effects = self._flow_off(served)
            work.clear()
            return [*effects, *self._answer_for(served, now, continued=True)]
        saved = work.saved() if work.keeps and same else None
        effects = self._halt(served)
        served.wanted = record.wanted
        served.work = self._work(record)
        served.work.had = had
        return [*effects, *self._begin(served, saved, now)]

    def _detach(self, given: given_by.DetachModulated, now: int) -> list[Effect]:
        served = self.served.get(given.consumer)
        if served is None or served.attachment != given.attachment:
            return []
        if given.final or not served.work.keeps:
            return self._drop(served, "left", everywhere=True)
        if served.state is ServingState.ASKING and served.claim is None:
            return self._drop(served, "left")
        return self._leave(served, now) if served.state is ServingState.SERVING else []

    def _leave(self, served: ServedConsumer, now: int) -> list[Effect]:
        """Keep what is needed to go on, for a while."""
        work = served.work
        effects = self._flow_off(served)
        served.lacks = set()
        if work.script:
            saved = work.saved()
            effects += self._halt(served)
            work.begin(saved, work.had)
        work.clear()
        served.state = step(SERVING_TABLE, served.state, ServingEvent.LEFT)
        self.timers.set(ServingLeaseDue(served.name), now + self._settings.lease_us)
        return [*effects, Forward(given_by.DropHomeClient(served.name, away=True))]

    def _keep(self, record: ServedRecord, now: int) -> None:
        """Keep what came, or was on disk, for a consumer that is not here."""
        served = self.served[record.consumer] = ServedConsumer(
            record, ServingState.AWAY, self._work(record)
        )
        served.stored = True
        served.work.begin(record.saved, {})
        self.timers.set(ServingLeaseDue(record.consumer), now + self._settings.lease_us)

    def _confirm(self, given: given_by.ConfirmModulated, now: int) -> list[Effect]:
        served = self.served.get(given.consumer)
        if served is None or served.attachment != given.attachment:
            return []
        renewed = served.work.confirm(dict(given.vector))
        effects = self._store(served) if renewed and not served.busy else []
        return [*effects, *self._go_on(served, now)]

    def _weigh(self, name: str) -> list[Effect]:
        """Tell homes which share of bytes leaves a client's modulators by now."""
        served = self.served.get(name)
        if served is None or served.state is not ServingState.SERVING:
            return []
        return [Forward(given_by.AddHomeClient(name, served.weight, served.work.passed))]

    def _measured(self, weights: Mapping[str, float]) -> list[Effect]:
        """Let homes know what each consumer's modulators take, smoothed."""
        effects: list[Effect] = []
        for name, served in self.served.items():
            if served.state is ServingState.SERVING and (served.weight or name in weights):
                served.weight += (weights.get(name, 0.0) - served.weight) / WEIGHED_OVER
                effects += self._weigh(name)
        return effects

    # --- claims: what a new home asks, and how a former one answers

    def _say_claims(self, name: str, now: int) -> list[Effect]:
        claim = self.claims.get(name)
        if claim is None:
            return []
        if now >= claim.until_us and not claim.state:
            self._end_claim(name)
            return []
        self.timers.set(ServingClaimDue(name), now + self._settings.claim_us)
        served = self.served.get(name)
        had = () if served is None else pairs(served.work.had)
        effects: list[Effect] = []
        for message in claim.messages(self.node, had):
            effects += self._topology.towards(message)
        return effects

    def _end_claim(self, name: str, *, everywhere: bool = False) -> None:
        """Ask no more for a consumer's state; `everywhere`: but that it is forgotten."""
        claim = self.claims.get(name)
        if claim is not None and everywhere:
            claim.state = False
        elif claim is not None:
            del self.claims[name]
            self.timers.cancel(ServingClaimDue(name))

    def _routed(self, message: HomeClaim | HomeGiven, now: int) -> list[Effect]:
        if message.to != self.node:
            return self._topology.towards(message)
        if isinstance(message, HomeClaim):
            return self._claimed(message, now)
        return self._learned(message, now)

    def _claimed(self, claim: HomeClaim, now: int) -> list[Effect]:
        """Answer another node that serves a consumer."""
        name = claim.consumer
        served = self.served.get(name)
        if served is not None and served.owner != claim.owner:
            return self._say_given(claim, "")
        effects: list[Effect] = []
        if served is not None and served.attachment < claim.served:
            effects = self._drop(served, "void")
            served = None
        if served is None:
            return [*effects, *self._say_given(claim, self._sent_to(name, claim.served))]
        if claim.attachment <= served.attachment:
            answer = HomeGiven(claim.origin, self.node, name, served.attachment, self.node)
            return self._topology.towards(answer)
        if not (claim.state and served.work.keeps):
            effects = self._drop(served, "claimed")
            elsewhere = given_by.ServedElsewhere(name, claim.origin)
            return [*effects, elsewhere, *self._say_given(claim, claim.origin)]
        if served.claim is None or claim.attachment > served.claim.attachment:
            if served.claim is None:
                effects.append(given_by.ServedElsewhere(name, claim.origin))
            served.claim = claim
        if served.state in (ServingState.ASKING, ServingState.GIVING):
            return effects  # what comes here goes on to there; what goes already, it will find
        served.state = step(SERVING_TABLE, served.state, ServingEvent.CLAIMED)
        self.timers.cancel(ServingLeaseDue(name))
        effects.append(Forward(given_by.DropHomeClient(name)))
        return [*effects, *self._flow_off(served), *self._go_on(served, now)]

    def _say_given(self, claim: HomeClaim, at: str) -> list[Effect]:
        return self._topology.towards(
            HomeGiven(claim.origin, self.node, claim.consumer, claim.attachment, at)
        )

    def _give(self, served: ServedConsumer) -> list[Effect]:
        """Freeze, and send the record to the node that claims it, in one transaction."""
        claim, work = served.claim, served.work
        assert claim is not None
        work.confirm(dict(claim.had))
        if served.instance and served.work.whole and not work.script and not served.frozen:
            served.doing = []
            return [Modulate(served.name, served.instance, self._next(), (), True)]
        effects = self._halt(served)
        served.posting = True
        token = self._next()
        gone = GoneConsumer(claim.attachment, claim.origin)
        self._posts[token] = served.name, gone
        record = msgspec.structs.replace(served.record(), attachment=claim.attachment)
        writes = (*deleted(served.name), (GONE + served.name, encode(gone)))
        post = PostParcel(self.part, token, KIND, (claim.origin,), encode(record), writes)
        return [*effects, post]

    def _posted(self, token: int, parcel: ParcelId | None, now: int) -> list[Effect]:
        """The next home has it, or custody; or nothing has changed."""
        name, gone = self._posts.pop(token)
        served = self.served.get(name)
        if served is None or not served.posting:
            return []
        served.posting = False
        if parcel is None:
            self.timers.set(ServingAgainDue(name), now + self._settings.claim_us)
            return []
        claim = served.claim
        assert claim is not None
        del self.served[name]
        self._end_claim(name)
        self._was_given(name, gone, now)
        effects: list[Effect] = [HandoffStep(name, "given", gone.to)]
        return [*effects, *self._say_given(claim, gone.to)]

    def _was_given(self, name: str, gone: GoneConsumer, now: int) -> None:
        """Remember for a while where a consumer's state went."""
        self._gone.pop(name, None)
        self._gone[name] = gone
        self.timers.set(ServingGoneDue(name), now + self._settings.lease_us)
        if len(self._gone) > self._settings.clients_max:
            first = next(iter(self._gone))
            del self._gone[first]
            self.timers.set(ServingGoneDue(first), now)

    def _sent_to(self, name: str, served: Attachment) -> str:
        """Say to whom this node gave a consumer's state since it was last served; "": to nobody."""
        gone = self._gone.get(name)
        return gone.to if gone is not None and gone.attachment >= served else ""

    def _forget_gone(self, name: str) -> list[Effect]:
        self._gone.pop(name, None)
        return [self._write(((GONE + name, None),))]

    def _learned(self, answer: HomeGiven, now: int) -> list[Effect]:
        """Take a former home's answer."""
        name = answer.consumer
        claim, served = self.claims.get(name), self.served.get(name)
        if claim is None or answer.attachment < claim.attachment:
            return []
        if answer.attachment > claim.attachment:  # it has gone on since, and is served there
            self._end_claim(name)
            if served is None or served.attachment >= answer.attachment:
                return []
            elsewhere = given_by.ServedElsewhere(name, answer.at)
            return [*self._drop(served, "elsewhere"), elsewhere]
        claim.answered(answer, self.node)
        asking = served is not None and served.state is ServingState.ASKING
        if not claim.nodes and not (asking and claim.coming):
            self._end_claim(name)
        if not (asking and claim.in_vain):
            return []
        assert served is not None
        if served.claim is not None:
            onwards = served.claim
            return [*self._drop(served, "in vain"), *self._say_given(onwards, "")]
        if claim.served == Attachment(0, 0):  # nobody ever served it: there was nothing to lose
            return self._begin(served, None, now)
        return self._begin_anew(served, NOBODY_HAS_IT, now)

    # --- what comes

    def _arrived(self, given: ParcelArrived) -> list[Effect]:
        """Write what a former home sent, in the transaction that ends its parcel."""
        try:
            record = read_record(given.body)
        except msgspec.DecodeError:
            return [HandleParcel(given.parcel)]
        served = self.served.get(record.consumer)
        if served is not None and served.state is not ServingState.ASKING:
            older = record.attachment < served.attachment
            if served.state is not ServingState.AWAY or older or served.owner != record.owner:
                return [HandleParcel(given.parcel)]
        self._arriving[given.parcel] = record
        return [HandleParcel(given.parcel, (*record_of(record), (GONE + record.consumer, None)))]

    def _handled(self, parcel: ParcelId, now: int) -> list[Effect]:
        record = self._arriving.pop(parcel, None)
        if record is None:
            return []
        name = record.consumer
        self._gone.pop(name, None)
        self.timers.cancel(ServingGoneDue(name))
        served = self.served.get(name)
        if served is None or served.state is ServingState.AWAY:
            self._keep(record, now)
            return []
        served.stored = True
        if served.state is not ServingState.ASKING or served.owner != record.owner:
            return []
        self._end_claim(name)
        had = served.work.had
        if served.claim is not None:
            served.work = self._work(record)
            served.work.begin(record.saved, had)
            served.wanted = record.wanted
            served.state = step(SERVING_TABLE, served.state, ServingEvent.CLAIMED)
            effects: list[Effect] = [Forward(given_by.DropHomeClient(name))]
            return [*effects, *self._go_on(served, now)]
        same = (served.work.specs, served.work.relocation) == (record.specs, record.relocation)
        return self._begin(served, record.saved if same else None, now)


def _asked_for(given: given_by.AttachModulated) -> ServedRecord:
    return ServedRecord(
        given.consumer, given.owner, given.attachment, given.wanted, given.specs,
        given.relocation, Saved(given.vector),
    )  # fmt: skip
