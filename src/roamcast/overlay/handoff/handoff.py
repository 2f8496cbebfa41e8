"""Handoff as a part of a broker: A1 at a consumer's home, A2 at the nodes it may come to (JIT).

Messages go along the shared tree and may be lost; each is repeated until it is answered, or a lease
ends what nobody ends. What is older than what was heard last of a consumer is ignored (trap 21).
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import msgspec

from roamcast.errors import (
    ConflictError,
    ForbiddenError,
    InputError,
    LimitError,
    NotFoundError,
    RoamcastError,
)
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.filters import Filter
from roamcast.model.filters.here import Level, rewritten
from roamcast.model.machine import Effect, step
from roamcast.model.parts import Forward, Occupancy, Part, Timers
from roamcast.model.records import HandoffStep
from roamcast.overlay.events import CameByLink, SendOnLink
from roamcast.overlay.flows.events import SubscribeEvents, UnsubscribeEvents, VirtualStanding
from roamcast.overlay.flows.flows import Flows
from roamcast.overlay.flows.vector import Pairs, pairs
from roamcast.overlay.handoff.events import (
    AttachConsumer,
    ChangeWanted,
    ConsumerAttached,
    ConsumerGone,
    ConsumerReleased,
    DetachConsumer,
    PrepareNext,
    ReportPlace,
)
from roamcast.overlay.handoff.messages import (
    FILTER_LENGTH_MAX,
    HANDOFF_MESSAGES,
    Attachment,
    HandoffArrived,
    HandoffCancel,
    HandoffEnable,
    HandoffForward,
    HandoffMessage,
    HandoffReceipt,
    HandoffRequest,
    HandoffStanding,
    StepNumber,
)
from roamcast.overlay.handoff.settings import HandoffSettings, Surroundings
from roamcast.overlay.handoff.states import (
    ASKED_TABLE,
    HOME_TABLE,
    NEXT_TABLE,
    AskedEvent,
    AskedState,
    HomeEvent,
    HomeState,
    NextEvent,
    NextState,
)
from roamcast.overlay.topology.topology import NodeTopology

STEPS_MAX: Final = 100_000
"""Consumers whose last step is remembered after they are gone; beyond, the oldest are not."""

OWN_WISH: Final = "own wish"
"""Why a consumer moved that does not say."""

_Key = tuple[str, str, str]
"""A timer: what is due, for which consumer, at which node."""


class _Local:
    """A consumer at its home, and the neighbours that were asked."""

    def __init__(self, given: AttachConsumer) -> None:
        self.consumer = given.consumer
        self.owner = given.owner
        self.attachment = given.attachment
        self.wanted = given.wanted
        self.place = given.place
        self.state = HomeState.HOME
        self.number = 0
        self.asked: dict[str, AskedState] = {}

    def next_step(self) -> StepNumber:
        """Count what is said of it."""
        self.number += 1
        return StepNumber(self.attachment, self.number)


class _Virtual:
    """A consumer that may come here."""

    def __init__(self, home: str, step: StepNumber) -> None:
        self.home = home
        self.step = step
        self.state = NextState.PREPARING
        self.owner = ""
        self.wanted = ""
        self.start: Pairs = ()


class HandoffNode(msgspec.Struct, frozen=True):
    """What makes a node hand consumers over."""

    surroundings: Surroundings
    settings: HandoffSettings = HandoffSettings()
    level: Level | None = None
    """What here('floor') is of a place; None: its parents by their depth are not known."""


class Handoff(Part):
    """Consumers here, and those who may come."""

    part: ClassVar[str] = "handoff"
    inputs: ClassVar = (
        AttachConsumer, ReportPlace, ChangeWanted, DetachConsumer, VirtualStanding, PrepareNext,
    )  # fmt: skip
    carried: ClassVar = {CameByLink: HANDOFF_MESSAGES}

    def __init__(self, topology: NodeTopology, flows: Flows, node: HandoffNode) -> None:
        self.node = topology.node
        self.locals: dict[str, _Local] = {}
        self.virtuals: dict[str, _Virtual] = {}
        self._topology = topology
        self._flows = flows
        self._around = node.surroundings
        self._settings = node.settings
        self._level = node.level
        self._steps: dict[str, StepNumber] = {}
        """The last step heard of each consumer: what is older is ignored."""
        self._arrivals: dict[str, HandoffArrived] = {}
        """Arrivals that the old home has not confirmed."""
        self.timers: Timers[_Key] = Timers()
        self.spent: Callable[[str, int], tuple[tuple[int, int], ...]] = lambda *_: ()
        """What a consumer's client was sent in the last second; who paces sessions sets it."""

    # --- the part

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take what sessions say, what other nodes say, and that routes stand."""
        match given:
            case CameByLink(_, message):
                assert isinstance(message, HandoffMessage)
                return self._came(message, now)
            case VirtualStanding(consumer, vector):
                return self._stood(consumer, vector)
            case AttachConsumer(ticket):
                return self._answered(ticket, lambda: self._attach(given, now))
            case ChangeWanted(ticket):
                return self._answered(ticket, lambda: self._change(given, now))
            case ReportPlace():
                return self._report(given, now)
            case DetachConsumer():
                return self._detach(given, now)
            case PrepareNext(consumer, node):
                return self._hand_over(consumer, node, now)
        raise AssertionError(f"handoff takes no {type(given).__name__}")

    def advance(self, now: int) -> Sequence[Effect]:
        """Repeat, renew, rest, end leases."""
        effects: list[Effect] = []
        for what, consumer, node in list(self.timers.due(now)):
            if what == "ask":
                effects += self._repeat(consumer, node, now)
            elif what == "still":
                effects += self._rest(consumer)
            elif what == "sleep":
                effects += self._expire(consumer)
            elif what == "lease":
                effects += self._end(consumer, NextEvent.EXPIRED)
            elif what == "arrived":
                effects += self._say_arrived(consumer, now)
            else:
                self._arrivals.pop(consumer, None)
        return effects

    def occupancy(self) -> Occupancy:
        """How much is held of what, and the bound of each."""
        settings = self._settings
        return {
            "consumers": (len(self.locals), settings.consumers_max),
            "virtual consumers": (len(self.virtuals), settings.virtuals_max),
            "steps": (len(self._steps), STEPS_MAX),
            "arrivals": (len(self._arrivals), settings.consumers_max),
        }

    def idle(self) -> bool:
        """Whether nothing waits for an answer."""
        waiting = (one for local in self.locals.values() for one in local.asked.values())
        return not self._arrivals and all(one is AskedState.STANDING for one in waiting)

    def _answered(self, ticket: int, ask: Any) -> list[Effect]:
        try:
            effects: list[Effect] = ask()
        except RoamcastError as error:
            return [Failed(ticket, error)]
        return effects

    # --- sessions: A1's Register and Subscribe

    def _attach(self, given: AttachConsumer, now: int) -> list[Effect]:
        """Let a consumer be served here: its virtual one becomes it, or a normal handoff begins."""
        name = given.consumer
        self.check(given)
        wanted = self._filter(given.wanted, (given.place,))
        effects: list[Effect] = []
        virtual = self.virtuals.pop(name, None)
        prepared = False
        if virtual is not None:
            prepared = virtual.state is NextState.STANDING
            step(NEXT_TABLE, virtual.state, NextEvent.ARRIVED)
            self.timers.cancel(("lease", name, ""))
        local = self.locals.get(name)
        if local is not None:
            effects += self._cancel_all(local)
            local.state = step(HOME_TABLE, local.state, HomeEvent.RETURNED)
            self.timers.cancel(("sleep", name, ""))
            local.attachment, local.wanted = given.attachment, given.wanted
            local.number, local.place = 0, given.place
        else:
            local = self.locals[name] = _Local(given)
        self._hear(name, StepNumber(given.attachment, 0))
        effects += [
            Forward(SubscribeEvents(given.ticket, name, wanted, given.vector)),
            ConsumerAttached(given.ticket, name, prepared),
            HandoffStep(name, "attached" if prepared else "normal", given.previous),
        ]
        if given.previous and given.previous != self.node:
            effects.append(HandoffStep(name, f"moved: {given.why or OWN_WISH}", given.previous))
            arrived = HandoffArrived(
                given.previous, self.node, name, StepNumber(given.attachment, 0)
            )
            self._arrivals[name] = arrived
            self.timers.set(("lookout", name, ""), now + self._settings.arrived_us)
            effects += self._say_arrived(name, now)
        return [*effects, *self._report(ReportPlace(name, given.place), now)]

    def check(self, given: AttachConsumer) -> None:
        """Refuse a consumer that is elsewhere by now, is another's, or one too many."""
        name, settings = given.consumer, self._settings
        known = self._steps.get(name)
        if known is not None and given.attachment < known.attachment:
            raise ConflictError("this consumer was attached elsewhere later: raise its attachment")
        local, virtual = self.locals.get(name), self.virtuals.get(name)
        owners = [one.owner for one in (local, virtual) if one is not None and one.owner]
        if any(owner != given.owner for owner in owners):
            raise ForbiddenError("this consumer belongs to another credential")
        if local is None and len(self.locals) >= settings.consumers_max:
            raise LimitError(f"a node serves at most {settings.consumers_max} consumers")
        if len(given.wanted) > FILTER_LENGTH_MAX:
            raise LimitError(f"a filter has at most {FILTER_LENGTH_MAX} characters")

    def _change(self, given: ChangeWanted, now: int) -> list[Effect]:
        """Take what a consumer wants now, and tell every node that prepares for it."""
        local = self.locals.get(given.consumer)
        if local is None:
            raise NotFoundError(f"there is no consumer {given.consumer!r} here")
        if len(given.wanted) > FILTER_LENGTH_MAX:
            raise LimitError(f"a filter has at most {FILTER_LENGTH_MAX} characters")
        wanted = self._filter(given.wanted, (local.place,))
        local.wanted = given.wanted
        effects = [self._resubscribe(local, wanted), Acknowledged(given.ticket)]
        for node, state in list(local.asked.items()):
            if state is not AskedState.ASKED:
                local.asked[node] = AskedState.SENT
                effects += self._forward(local, node, now)
        return effects

    def _resubscribe(self, local: _Local, wanted: Filter) -> Effect:
        served = self._flows.home.consumers.get(local.consumer)
        vector = () if served is None else pairs(served.vector or served.asked)
        return Forward(
            SubscribeEvents(
                0, local.consumer, wanted, vector, buffered=local.state is HomeState.LEAVING
            )
        )

    def _report(self, given: ReportPlace, now: int) -> list[Effect]:
        """Take where a consumer is: ask the nodes that it may cross to, cancel at the others."""
        local = self.locals.get(given.consumer)
        if local is None or local.state is HomeState.LEAVING:
            return []
        moved = given.place != local.place
        effects = self._moved(local, given.place) if moved else []
        border = self._around.borders(given.place)
        if given.toward is not None:
            border = tuple(node for node in border if node in given.toward)
        if not border and local.state is HomeState.HOME:
            return effects
        if local.state is HomeState.STILL and not moved:
            return effects
        event = HomeEvent.CROSSING if border else HomeEvent.INSIDE
        local.state = step(HOME_TABLE, local.state, event)
        for node in [node for node in local.asked if node not in border]:
            effects += self._cancel(local, node)
        for node in border:
            if node not in local.asked:
                local.asked[node] = AskedState.ASKED
                effects += self._ask(local, node, now)
            elif moved and local.asked[node] is not AskedState.ASKED:
                effects += self._forward(local, node, now)  # its entry places differ
        key = ("still", local.consumer, "")
        if not border:
            self.timers.cancel(key)
        elif moved or key not in self.timers:
            self.timers.set(key, now + self._settings.still_us)
        return effects

    def _hand_over(self, consumer: str, node: str, now: int) -> list[Effect]:
        """Ask a node to prepare although its border is elsewhere."""
        local = self.locals.get(consumer)
        if local is None or local.state is HomeState.LEAVING or node in local.asked:
            return []
        local.state = step(HOME_TABLE, local.state, HomeEvent.CROSSING)
        local.asked[node] = AskedState.ASKED
        return self._ask(local, node, now)

    def last_step(self, consumer: str) -> StepNumber | None:
        """Give the last step that was heard of a consumer."""
        return self._steps.get(consumer)

    def prepared(self, consumer: str, node: str) -> bool:
        """Whether a node has said that it holds everything for a consumer of ours."""
        local = self.locals.get(consumer)
        return local is None or local.asked.get(node) is AskedState.STANDING

    def _moved(self, local: _Local, place: str) -> list[Effect]:
        """Narrow here() to the new place."""
        before, local.place = self._filter(local.wanted, (local.place,)), place
        wanted = self._filter(local.wanted, (place,))
        return [] if wanted == before else [self._resubscribe(local, wanted)]

    def _rest(self, consumer: str) -> list[Effect]:
        """Cancel for a consumer that does not move (JIT 3.1, case 2)."""
        local = self.locals.get(consumer)
        if local is None or local.state is not HomeState.BORDER:
            return []
        local.state = step(HOME_TABLE, local.state, HomeEvent.RESTED)
        return self._cancel_all(local)

    def _detach(self, given: DetachConsumer, now: int) -> list[Effect]:
        """Hold events for a consumer whose session is over, for a while."""
        local = self.locals.get(given.consumer)
        if local is None or given.attachment != local.attachment:
            return []
        if given.final:
            effects = self._cancel_all(local)
            return [*effects, *self._drop(local)]
        local.state = step(HOME_TABLE, local.state, HomeEvent.LEFT)
        self.timers.cancel(("still", local.consumer, ""))
        self.timers.set(("sleep", local.consumer, ""), now + self._settings.sleep_us)
        return [self._resubscribe(local, self._filter(local.wanted, (local.place,)))]

    def _expire(self, consumer: str) -> list[Effect]:
        local = self.locals[consumer]
        local.state = step(HOME_TABLE, local.state, HomeEvent.EXPIRED)
        effects = self._cancel_all(local)
        return [*effects, *self._drop(local), ConsumerGone(consumer)]

    def _drop(self, local: _Local) -> list[Effect]:
        self._forget(local)
        return [Forward(UnsubscribeEvents(local.consumer))]

    def _forget(self, local: _Local) -> None:
        del self.locals[local.consumer]
        for what in ("still", "sleep"):
            self.timers.cancel((what, local.consumer, ""))
        for node in local.asked:
            self.timers.cancel(("ask", local.consumer, node))

    # --- A1: towards the next nodes

    def _ask(self, local: _Local, node: str, now: int) -> list[Effect]:
        self.timers.set(("ask", local.consumer, node), now + self._settings.retry_us)
        request = HandoffRequest(node, self.node, local.consumer, local.next_step())
        return [*self._send(request), HandoffStep(local.consumer, "asked", node)]

    def _forward(self, local: _Local, node: str, now: int) -> list[Effect]:
        state = local.asked[node] = step(ASKED_TABLE, local.asked[node], AskedEvent.FORWARD)
        wait = self._settings.retry_us
        if state is AskedState.STANDING:
            wait = self._settings.lease_us // 3
        self.timers.set(("ask", local.consumer, node), now + wait)
        return self._send(
            HandoffForward(
                node,
                self.node,
                local.consumer,
                local.next_step(),
                local.owner,
                local.wanted,
                local.place,
            )
        )

    def _repeat(self, consumer: str, node: str, now: int) -> list[Effect]:
        """Ask again, or renew the lease of what stands."""
        local = self.locals.get(consumer)
        if local is None or node not in local.asked:
            return []
        if local.asked[node] is AskedState.ASKED:
            return self._ask(local, node, now)
        return self._forward(local, node, now)

    def _cancel(self, local: _Local, node: str) -> list[Effect]:
        del local.asked[node]
        self.timers.cancel(("ask", local.consumer, node))
        cancel = HandoffCancel(node, self.node, local.consumer, local.next_step())
        return [*self._send(cancel), HandoffStep(local.consumer, "cancelled", node)]

    def _cancel_all(self, local: _Local, but: str = "") -> list[Effect]:
        effects: list[Effect] = []
        for node in list(local.asked):
            if node != but:
                effects += self._cancel(local, node)
        return effects

    # --- what other nodes say

    def _send(self, message: HandoffMessage) -> list[Effect]:
        hop = self._topology.hop(message.to)
        return [SendOnLink(hop, message)] if hop is not None else []

    def _came(self, message: HandoffMessage, now: int) -> list[Effect]:
        if message.to != self.node:
            return self._send(message)
        match message:
            case HandoffEnable() | HandoffStanding():
                return self._advanced(message, now)
            case HandoffArrived():
                return self._arrived(message, now)
            case HandoffReceipt():
                known = self._arrivals.get(message.consumer)
                if known is not None and known.step == message.step:
                    del self._arrivals[message.consumer]
                    self.timers.cancel(("arrived", message.consumer, ""))
                    self.timers.cancel(("lookout", message.consumer, ""))
                    return [ConsumerReleased(message.consumer, message.spent)]
                return []
        return self._prepare(message, now)

    def _hear(self, consumer: str, newest: StepNumber) -> bool:
        """Note what is said of a consumer; return whether it is not older than what was heard."""
        known = self._steps.pop(consumer, None)
        fresh = known is None or newest >= known
        self._steps[consumer] = newest if known is None else max(known, newest)
        if len(self._steps) > STEPS_MAX:
            del self._steps[next(iter(self._steps))]
        return fresh

    def _advanced(self, message: HandoffEnable | HandoffStanding, now: int) -> list[Effect]:
        """Take a neighbour's answer to what this home said."""
        local, node = self.locals.get(message.consumer), message.sender
        if local is None or node not in local.asked or message.step.attachment != local.attachment:
            return []
        state = local.asked[node]
        if isinstance(message, HandoffEnable):
            local.asked[node] = step(ASKED_TABLE, state, AskedEvent.ENABLE)
            return self._forward(local, node, now)
        if state is AskedState.ASKED:
            return []
        local.asked[node] = step(ASKED_TABLE, state, AskedEvent.STOOD)
        self.timers.set(("ask", local.consumer, node), now + self._settings.lease_us // 3)
        return [HandoffStep(local.consumer, "standing", node, len(message.start))]

    def _arrived(self, message: HandoffArrived, now: int) -> list[Effect]:
        """Give a consumer up that is elsewhere; it may come back, so its events are held."""
        local, name = self.locals.get(message.consumer), message.consumer
        spent = self.spent(name, now)
        receipt = self._send(HandoffReceipt(message.sender, self.node, name, message.step, spent))
        if not self._hear(name, message.step):
            if local is None or local.state is HomeState.LEAVING:
                return receipt
            # It is here, and by a later attachment: the lower one loses there.
            later = StepNumber(local.attachment, 0)
            here = HandoffArrived(message.sender, self.node, name, later)
            return [*self._send(here), *receipt]
        if local is None or local.attachment >= message.step.attachment:
            return receipt
        local.state = step(HOME_TABLE, local.state, HomeEvent.ARRIVED)
        effects = self._cancel_all(local, but=message.sender)
        self._forget(local)
        virtual = self.virtuals[name] = _Virtual(message.sender, message.step)
        virtual.owner, virtual.wanted = local.owner, local.wanted
        virtual.state = NextState.STANDING
        self.timers.set(("lease", name, ""), now + self._settings.dwell_us)
        served = self._flows.home.consumers.get(name)
        if served is not None:
            subscribe = SubscribeEvents(0, name, served.wanted, pairs(served.vector), buffered=True)
            effects.append(Forward(subscribe))
        return [*receipt, *effects, ConsumerGone(name, message.sender)]

    def _say_arrived(self, consumer: str, now: int) -> list[Effect]:
        arrived = self._arrivals.get(consumer)
        if arrived is None:
            return []
        self.timers.set(("arrived", consumer, ""), now + self._settings.retry_us)
        return self._send(arrived)

    # --- A2: for consumers that may come here

    def _prepare(self, message: HandoffMessage, now: int) -> list[Effect]:
        """Make, change or end a virtual consumer, if nothing newer was heard of its consumer."""
        name = message.consumer
        if name in self.locals:
            return []  # it is here: whoever says this does not know yet
        if not self._hear(name, message.step):
            return []
        virtual = self.virtuals.get(name)
        if isinstance(message, HandoffCancel):
            return self._end(name, NextEvent.CANCEL)
        if virtual is None:
            if len(self.virtuals) >= self._settings.virtuals_max:
                return []  # the consumer has its vector: a normal handoff serves it
            virtual = self.virtuals[name] = _Virtual(message.sender, message.step)
        virtual.home, virtual.step = message.sender, message.step
        self.timers.set(("lease", name, ""), now + self._settings.lease_us)
        if not isinstance(message, HandoffForward):
            return self._send(HandoffEnable(message.sender, self.node, name, message.step))
        return self._wants(name, virtual, message)

    def _wants(self, name: str, virtual: _Virtual, message: HandoffForward) -> list[Effect]:
        try:
            places = self._around.entries(message.place) or ("",)
            wanted = self._filter(message.wanted, places)
        except InputError:
            return []  # nothing is prepared; its consumer hears why when it comes
        if virtual.owner and virtual.owner != message.owner:
            return []
        virtual.owner, virtual.wanted = message.owner, message.wanted
        served = self._flows.home.consumers.get(name)
        if served is not None and served.wanted == wanted and served.stands:
            virtual.start = virtual.start or pairs(served.vector)
            if virtual.state is not NextState.STANDING:
                virtual.state = step(NEXT_TABLE, virtual.state, NextEvent.STOOD)
            return self._say_standing(name, virtual)
        virtual.state = step(NEXT_TABLE, virtual.state, NextEvent.FORWARD)
        if served is not None and served.wanted == wanted:
            return []  # it will stand in a moment
        return [Forward(SubscribeEvents(0, name, wanted, (), buffered=True))]

    def _stood(self, consumer: str, vector: Pairs) -> list[Effect]:
        virtual = self.virtuals.get(consumer)
        if virtual is None or not virtual.owner:
            return []
        virtual.start = vector
        virtual.state = step(NEXT_TABLE, virtual.state, NextEvent.STOOD)
        return self._say_standing(consumer, virtual)

    def _say_standing(self, consumer: str, virtual: _Virtual) -> list[Effect]:
        """Routes stand, so the home learns from where on everything is held (trap 16)."""
        return self._send(
            HandoffStanding(virtual.home, self.node, consumer, virtual.step, virtual.start)
        )

    def _end(self, consumer: str, event: NextEvent) -> list[Effect]:
        virtual = self.virtuals.pop(consumer, None)
        if virtual is None:
            return []
        step(NEXT_TABLE, virtual.state, event)
        self.timers.cancel(("lease", consumer, ""))
        return [
            Forward(UnsubscribeEvents(consumer)),
            HandoffStep(consumer, "ended", virtual.home),
        ]

    def _filter(self, text: str, places: tuple[str, ...]) -> Filter:
        return rewritten(text, places, self._level)


__all__ = ["Attachment", "Handoff", "HandoffNode"]
