"""The homes of one broker's clients: a part that changes them, one careful step at a time.

settled → waiting (a drawn delay) → asking (the candidate reserves room) → moving. What a driver, a
neighbour or a timer brings becomes an event of the system channel; adaptors name clients, and only
here does a client move. Against herds (trap 25): hysteresis of loads, a dwell time, a drawn delay
after which the choice is made again, and admission by the broker that is to serve the client.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from roamcast.model.machine import Draw, Effect
from roamcast.model.parts import Occupancy, Part, PartTimers, Timer
from roamcast.model.records import OverlayStep
from roamcast.overlay.events import CameByLink, OverlayOpened, SendOnLink, TreeChanged
from roamcast.overlay.homes import events
from roamcast.overlay.homes.adaptors import ADAPTORS, Adaptor, Knowledge
from roamcast.overlay.homes.choice import HomeReason
from roamcast.overlay.homes.managers import (
    BrokerManager,
    ChangeEvent,
    ChangeState,
    ClientManager,
    ClientRecord,
    HomeMove,
    HomeSettings,
    ResourceMonitor,
)
from roamcast.overlay.homes.messages import (
    BrokerInformation,
    HomeAnswer,
    HomeRequest,
)
from roamcast.overlay.topology.topology import NodeTopology

Routed = HomeRequest | HomeAnswer


class LoadReportDue(Timer, frozen=True):
    """Others hear of our load."""


class ReservationDue(Timer, frozen=True):
    """The first reservation expires."""


class HomeChangeDue(Timer, frozen=True):
    """A client has waited long enough for the next step of its home change."""

    client: str


class HomeView(msgspec.Struct, frozen=True):
    """One client's home change, for people."""

    client: str
    state: str
    since_us: int
    reason: Annotated[str, Meta(description="why it stays, or is about to move")]
    target: Annotated[str, Meta(description="the node it is about to move to, if any")]
    weight: Annotated[float, Meta(description="share of the node's capacity that it needs")] = 0.0
    moved_from: Annotated[str, Meta(description="the node that served it before")] = ""
    moved_because: Annotated[str, Meta(description="why it last moved")] = ""
    moved_way: Annotated[str, Meta(description="upstream, downstream or horizontal")] = ""


class Homes(Part):
    """Who is served here, and who should be served elsewhere."""

    part: ClassVar[str] = "homes"
    inputs: ClassVar = (
        OverlayOpened, TreeChanged, events.MeasureLoad, events.AddHomeClient,
        events.DropHomeClient, events.ReportBrokers, events.SetProducers, events.MoveFailed,
    )  # fmt: skip
    carried: ClassVar = {CameByLink: (BrokerInformation, HomeRequest, HomeAnswer)}

    def __init__(
        self,
        topology: NodeTopology,
        settings: HomeSettings,
        *,
        draw: Draw,
        adaptors: Sequence[Adaptor] = ADAPTORS,
    ) -> None:
        self.node = topology.node
        self.settings = settings
        self.monitor = ResourceMonitor(settings)
        self.brokers = BrokerManager(self.node, topology.graph, settings)
        self.clients = ClientManager(settings)
        self._topology = topology
        self._draw = draw
        self._known = Knowledge(settings, self.monitor, self.brokers, self.clients)
        self._adaptors = adaptors
        self._epoch = 0
        self._number = 0
        self._asked: dict[int, str] = {}
        """Requests under way → clients."""
        self._leaving: dict[str, None] = {}
        """Clients that move because this broker is overloaded."""
        self._reported: BrokerInformation | None = None
        self._report_at = 0
        self.timers: PartTimers = PartTimers(
            {
                LoadReportDue: lambda _, now: self._report(now),
                ReservationDue: lambda _, _now: self._watch_reservations(),
                HomeChangeDue: lambda timer, now: self._go_on(timer.client, now),
            }
        )

    # --- reads

    def view(self) -> list[HomeView]:
        """Describe everybody's home change."""
        return [
            HomeView(
                one.name,
                one.state,
                one.since,
                one.reason,
                one.target,
                round(one.weight, 4),
                one.moved.origin,
                one.moved.because,
                one.moved.way,
            )
            for one in self.clients.clients.values()
        ]

    def loads(self) -> dict[str, float]:
        """Give the loads that are known: this broker's own, and what others said."""
        others = {name: one.load for name, one in sorted(self.brokers.information.items())}
        return {self.node: self.monitor.gauge.load, **others}

    # --- the part

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take what the driver measured, what clients report, what neighbours bring."""
        match given:
            case OverlayOpened(epoch):
                self._epoch = epoch
            case TreeChanged():
                # New links lead to brokers that have not heard of our load.
                self._reported = None
                self.timers.sooner(LoadReportDue(), max(now, self._report_at))
                return self._publish(events.TopologyMoved(), now)
            case CameByLink(link, BrokerInformation() as information):
                return self._learn(link, information, now)
            case CameByLink(_, HomeRequest() | HomeAnswer() as routed):
                return self._routed(routed, now)
            case events.MeasureLoad(load, battery):
                return self._measured(load, battery, now)
            case events.AddHomeClient():
                self._add(given, now)
            case events.DropHomeClient(client, away):
                self._drop(client, away=away)
            case events.ReportBrokers(client, found):
                if self.clients.report(client, found):
                    return self._publish(events.BrokersFound(client), now)
            case events.SetProducers(homes):
                self.brokers.producers = homes
                return self._publish(events.TopologyMoved(), now)
            case events.MoveFailed(client, reason):
                return self._failed(client, reason, now)
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        """Ask candidates, give up on silent ones, tell others of our load."""
        self.monitor.expire(now)
        return self.timers.fire(now)

    def _go_on(self, name: str, now: int) -> Sequence[Effect]:
        client = self.clients.clients[name]
        if client.state is ChangeState.WAITING:
            return self._ask(client, now)
        if client.state is ChangeState.ASKING:
            return self._refused(client, "no answer", now)
        return self._failed(name, "it did not go", now)

    def _watch_reservations(self) -> Sequence[Effect]:
        first = self.monitor.deadline()
        if first is not None:
            self.timers.sooner(ReservationDue(), first)
        return ()

    def occupancy(self) -> Occupancy:
        """How many clients, brokers and reservations there are."""
        settings = self.settings
        return {
            "clients": (len(self.clients.clients), settings.clients_max),
            "clients away": (len(self.clients.away), settings.clients_max),
            "brokers": (len(self.brokers.information), settings.brokers_max),
            "reservations": (len(self.monitor.reserved), settings.reservations_max),
        }

    # --- the system channel

    def _publish(self, event: events.SystemEvent, now: int) -> list[Effect]:
        """Let adaptors react, then look at the clients they name."""
        for adaptor in self._adaptors:
            if isinstance(event, adaptor.interests):
                leave = isinstance(event, events.LoadCrossed)
                for name in adaptor.process(event, self._known, now):
                    self._consider(self.clients.clients[name], now, leave=leave)
        return []

    def _consider(self, client: ClientRecord, now: int, *, leave: bool) -> None:
        """Begin a client's wait if another home is better; overload and loss of reach hurry."""
        if client.state is not ChangeState.SETTLED:
            return
        choice = self._known.choice(client, now, leave=leave)
        if choice.broker == self.node:
            return
        hurry = choice.reason is not HomeReason.SHORTER
        earliest_at = now if hurry else max(now, client.since + self.settings.dwell_us)
        client.step(ChangeEvent.BETTER)
        client.target, client.reason = choice.broker, choice.reason
        if leave:
            self._leaving[client.name] = None
        delay = round(self.settings.delay_us * self._draw())
        self.timers.set(HomeChangeDue(client.name), earliest_at + delay)

    # --- moves

    def _ask(self, client: ClientRecord, now: int) -> list[Effect]:
        """Choose again after the delay; ask the candidate for room."""
        leave = client.name in self._leaving and self.monitor.loaded
        choice = self._known.choice(client, now, leave=leave)
        # What hurried it may be over: then a shorter path alone does not cut its dwell time.
        early = now < client.since + self.settings.dwell_us
        early = early and choice.reason is HomeReason.SHORTER
        if choice.broker == self.node or early:
            client.step(ChangeEvent.STALE)
            self._settle(client, HomeReason.STAYS if early else choice.reason)
            return []
        client.step(ChangeEvent.DUE)
        client.target, client.reason = choice.broker, choice.reason
        self._number += 1
        client.number = self._number
        self._asked[self._number] = client.name
        self.timers.set(HomeChangeDue(client.name), now + self.settings.ask_us)
        return self._topology.towards(
            HomeRequest(
                choice.broker, self.node, self._epoch, self._number, client.weight,
                client=client.name, reason=choice.reason,
                direction=self._known.direction(client, choice.broker), passed=client.passed,
            )
        )  # fmt: skip

    def _answered(self, answer: HomeAnswer, now: int) -> list[Effect]:
        name = self._asked.get(answer.number)
        if name is None or answer.epoch != self._epoch:
            return []
        client = self.clients.clients[name]
        if not answer.accepted:
            return self._refused(client, "no room", now)
        del self._asked[answer.number]
        self.timers.set(HomeChangeDue(name), now + self.settings.move_us)
        self._leaving.pop(name, None)
        client.step(ChangeEvent.ACCEPTED)
        way = self._known.direction(client, client.target)
        return [
            events.MoveClient(name, client.target, client.reason, way),
            OverlayStep("homes", "move", client.target, reason=client.reason),
        ]

    def _refused(self, client: ClientRecord, reason: str, now: int) -> list[Effect]:
        self._asked.pop(client.number, None)
        self.timers.cancel(HomeChangeDue(client.name))
        target = client.target
        client.refuse(target, now, now + self.settings.dwell_us)
        client.step(ChangeEvent.REFUSED)
        self._settle(client, HomeReason.LOADED)
        return [OverlayStep("homes", "refused", target, reason=reason)]

    def _failed(self, name: str, reason: str, now: int) -> list[Effect]:
        client = self.clients.clients.get(name)
        if client is None or client.state is not ChangeState.MOVING:
            return []
        self.timers.cancel(HomeChangeDue(name))
        target = client.target
        client.step(ChangeEvent.FAILED)
        client.since = now  # try again after a dwell time
        self._settle(client, HomeReason.STAYS)
        return [OverlayStep("homes", "failed", target, reason=reason[:200])]

    def _settle(self, client: ClientRecord, reason: HomeReason) -> None:
        client.target, client.reason = "", reason
        self._leaving.pop(client.name, None)

    def _add(self, given: events.AddHomeClient, now: int) -> None:
        name, weight = given.client, given.weight
        new = name not in self.clients.clients
        client = self.clients.add(name, weight, given.passed, now)
        if not new:
            return
        asked = self.monitor.came(name, weight)
        if asked is not None:
            client.weight = weight or asked.weight
            # Or it would go back, because nothing has gone through its modulators here yet.
            client.passed = asked.passed if given.passed is None else given.passed
            client.moved = HomeMove(asked.origin, asked.reason, asked.direction)
        elif given.came_from:
            client.moved = HomeMove(given.came_from, HomeReason.ITSELF)

    def _drop(self, name: str, *, away: bool) -> None:
        client = self.clients.drop(name, away=away)
        if client is not None:
            self._asked.pop(client.number, None)
            self._leaving.pop(name, None)
            self.timers.cancel(HomeChangeDue(name))

    # --- load

    def _measured(self, load: float, battery: float, now: int) -> Sequence[Effect]:
        crossed = self.monitor.measure(load, battery)
        self.timers.sooner(LoadReportDue(), now if crossed else max(now, self._report_at))
        if crossed or self.monitor.loaded:  # still loaded: hand over those who found a place since
            return self._publish(events.LoadCrossed(self.monitor.loaded), now)
        return ()

    def _report(self, now: int) -> list[Effect]:
        """Tell the tree's neighbours if there is something new."""
        load, last = min(self.monitor.gauge.load, 1_000.0), self._reported
        if last is not None and last.loaded == self.monitor.loaded:
            near = abs(last.load - load) < self.settings.report_step
            if near and last.battery == self.monitor.battery:
                return []
        self._number += 1
        self._report_at = now + self.settings.report_us
        self._reported = BrokerInformation(
            self.node, self._epoch, self._number, load, self.monitor.loaded, self.monitor.battery
        )
        return [SendOnLink(link, self._reported) for link in self._topology.tree_links]

    def _learn(self, link: str, found: BrokerInformation, now: int) -> list[Effect]:
        """Take what is newer, and pass it on over the tree."""
        if found.node == self.node:
            return []
        before = self.brokers.learn(found)
        if before is None:
            return []
        effects: list[Effect] = [
            SendOnLink(other, found) for other in self._topology.tree_links if other != link
        ]
        if before.loaded != found.loaded:
            effects += self._publish(events.RoomChanged(found.node, found.loaded), now)
        return effects

    # --- requests, hop by hop

    def _routed(self, message: Routed, now: int) -> list[Effect]:
        if message.to != self.node:
            return self._topology.towards(message)
        if isinstance(message, HomeAnswer):
            return self._answered(message, now)
        accepted = self.monitor.admits(message, now)
        self._watch_reservations()
        answer = HomeAnswer(message.origin, self.node, message.epoch, message.number, accepted)
        return self._topology.towards(answer)
