"""Adaptors: each listens on the system channel and decides, with the managers' help (OO 3.5).

An adaptor has at most 50 lines (OO's home broker adaptor has fewer); a test counts them.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Protocol

import msgspec

from roamcast.overlay.homes import events
from roamcast.overlay.homes.choice import (
    Choice,
    Direction,
    HomeCandidate,
    HomeReason,
    choose_home,
    direction,
)
from roamcast.overlay.homes.managers import (
    BrokerManager,
    ChangeState,
    ClientManager,
    ClientRecord,
    HomeSettings,
    ResourceMonitor,
)

Interests = tuple[type[events.SystemEvent], ...]


class Knowledge:
    """What adaptors may ask."""

    def __init__(
        self,
        settings: HomeSettings,
        monitor: ResourceMonitor,
        brokers: BrokerManager,
        clients: ClientManager,
    ) -> None:
        self.settings = settings
        self.monitor = monitor
        self.brokers = brokers
        self.clients = clients

    def choice(self, client: ClientRecord, now: int, *, leave: bool = False) -> Choice:
        """Choose a home for a client by what is known now."""
        node = self.brokers.node
        here = self._candidate(client, node)
        others = [
            msgspec.structs.replace(one, loaded=one.loaded or client.is_refused(one.broker, now))
            for one in (self._candidate(client, broker) for broker in client.found)
            if one.broker != node
        ]
        settings = self.settings
        return choose_home(
            here,
            others,
            policy=settings.policy,
            passed=client.passed,
            gain=settings.gain,
            leave=leave,
        )

    def direction(self, client: ClientRecord, to: str) -> Direction:
        """Say which way a client's modulators would move."""
        return direction(self._candidate(client, self.brokers.node), self._candidate(client, to))

    def _candidate(self, client: ClientRecord, broker: str) -> HomeCandidate:
        found = self.brokers.candidate(broker, client.found.get(broker, math.inf))
        if broker != self.brokers.node:
            return found
        # Nobody tells a broker of its own battery: by the table of the others it would be full.
        return msgspec.structs.replace(found, battery=self.monitor.battery)


class Adaptor(Protocol):
    """Reacts to some events of the system channel with clients that should move."""

    interests: ClassVar[Interests]

    def process(self, event: events.SystemEvent, known: Knowledge, now: int) -> Sequence[str]:
        """Name the clients for whom a better home may be known."""


class TopologyAdaptor:
    """When the broker network changes, paths do, and with them everybody's best home."""

    interests: ClassVar[Interests] = (events.TopologyMoved,)

    def process(self, event: events.SystemEvent, known: Knowledge, now: int) -> Sequence[str]:
        """Look at everybody again."""
        del event, now
        return list(known.clients.clients)


class HomeAdaptor:
    """When a client has looked around, or a broker has room again: is another home better?"""

    interests: ClassVar[Interests] = (events.BrokersFound, events.RoomChanged)

    def process(self, event: events.SystemEvent, known: Knowledge, now: int) -> Sequence[str]:
        """Look at the client, or at those whom the broker that has room again could serve."""
        del now
        match event:
            case events.BrokersFound(client):
                return (client,)
            case events.RoomChanged(broker, False):
                everybody = known.clients.clients.values()
                return [one.name for one in everybody if broker in one.found]
        return ()


class LoadAdaptor:
    """When this broker is overloaded, it hands clients over until it will be below the limit."""

    interests: ClassVar[Interests] = (events.LoadCrossed,)

    def process(self, event: events.SystemEvent, known: Knowledge, now: int) -> Sequence[str]:
        """Name the heaviest clients that have somewhere to go, as many as are needed."""
        assert isinstance(event, events.LoadCrossed)
        chosen: list[str] = []
        if not event.loaded:
            return chosen
        everybody = known.clients.clients.values()
        staying = [one for one in everybody if one.state is ChangeState.SETTLED and one.weight > 0]
        leaving = sum(one.weight for one in everybody if one.state is not ChangeState.SETTLED)
        excess = known.monitor.gauge.load - known.settings.low - leaving
        for client in sorted(staying, key=lambda one: (-one.weight, one.name)):
            if excess <= 0:
                break
            if known.choice(client, now, leave=True).reason is HomeReason.LOAD:
                chosen.append(client.name)
                excess -= client.weight
        return chosen


ADAPTORS: tuple[Adaptor, ...] = (TopologyAdaptor(), HomeAdaptor(), LoadAdaptor())
