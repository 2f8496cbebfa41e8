"""`EventOffice`: how requests, over HTTP or on a session, publish and subscribe to events."""

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, cast

from roamcast.channels.sessions.messages import EventPublication
from roamcast.live.auth.admission import Grant, Rates
from roamcast.live.config.settings import Settings
from roamcast.live.modulators.measuring import LoadMeter
from roamcast.live.modulators.shelf import MODULES_FOLDER, ModuleShelf
from roamcast.live.modulators.worker import ORDERS, ModulatorWorker
from roamcast.model.contexts import to_context
from roamcast.model.earth import Point
from roamcast.model.machine import Effect, Input
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.consumers.drain import DrainNode, UndrainNode
from roamcast.overlay.consumers.events import (
    ConfirmSessionEvents,
    ConsumerMoved,
    PublishEventFor,
    ReportSessionBrokers,
    ReportSessionPlace,
    SubscribeSessionEvents,
    UnsubscribeSessionEvents,
)
from roamcast.overlay.flows.events import EventPublished
from roamcast.overlay.flows.vector import Pairs, Position, pairs
from roamcast.overlay.modulators.events import LookUpModule, ShelveModule
from roamcast.overlay.modulators.workshop import Order
from roamcast.transport.driver import Clock, Tickets, nothing

EVENT_BYTES: Final = 256
ATTRIBUTE_BYTES: Final = 64
"""What an event weighs beside its data, and each of its attributes, about."""


class EventOffice:
    """The event plane of one service, as requests use it."""

    def __init__(
        self,
        settings: Settings,
        *,
        trusted_nodes: Collection[str],
        tickets: Tickets,
        give: Callable[[Input], None],
        clock: Clock,
    ) -> None:
        events = settings.events
        self.rates = Rates(events.bytes_per_s, events.bytes_burst, what="bytes of events")
        self._ahead_us = int(settings.limits.clock_skew_s_max * MICROSECONDS)
        self._trusted_nodes = trusted_nodes
        self._tickets = tickets
        self._give = give
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self.modulators = ModulatorWorker(
            ModuleShelf(Path(settings.server.data) / MODULES_FOLDER), give=give
        )
        self._meter = LoadMeter(self.modulators, give=give)
        self._measures = bool(settings.overlay.node)

    def carriers(self) -> dict[type[Effect], Callable[[Any], None]]:
        """Say who carries out what the event plane asks for."""
        shelf = self.modulators.shelf
        return {
            EventPublished: lambda effect: self._tickets.answer(effect.ticket, effect),
            ConsumerMoved: nothing,
            **dict.fromkeys(ORDERS, self._carry),
            LookUpModule: lambda asked: self._answer(lambda: shelf.look_up(asked)),
            ShelveModule: lambda given: self._answer(lambda: shelf.keep(given)),
        }

    def start(self) -> None:
        """Measure how loaded a node among others is; a lone one, once modulators run."""
        if self._measures:
            self._meter.start()

    def _carry(self, order: Order) -> None:
        self._meter.start()
        self.modulators.carry(order)

    def _answer(self, work: Callable[[], Input]) -> None:
        """Read or write a file beside the loop, and give the broker the answer."""

        async def do() -> None:
            self._give(await asyncio.to_thread(work))

        task = asyncio.get_running_loop().create_task(do())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """End the thread of modulators, and what is under way beside the loop."""
        self._meter.close()
        for task in self._tasks:
            task.cancel()
        self.modulators.close()

    async def publish(self, grant: Grant, event: EventPublication) -> EventPublished:
        """Publish an event, and wait until it is on disk.

        Without a producer it is one of its own: sent again, it is another.
        """
        vid = event.feature.id or self._own_vid(grant) or secrets.token_urlsafe(16)
        context = to_context(event.feature, self._clock(), vid=vid, ahead_us_max=self._ahead_us)
        grant.check_within(context)
        needs = pairs({name: Position(*at) for name, at in event.needs.items()})
        producer, owner = event.producer or secrets.token_urlsafe(16), grant.subject
        size = EVENT_BYTES + len(event.data) + len(context.attributes) * ATTRIBUTE_BYTES
        self.rates.take(owner, self._clock(), size)
        answer = await self._tickets.ask(
            lambda ticket: self._give(
                PublishEventFor(
                    ticket, owner, producer, event.life, event.number, context, event.data, needs
                )
            )
        )
        return cast("EventPublished", answer)

    def _own_vid(self, grant: Grant) -> str:
        """Give the vid of who comes without a name: they publish under no other."""
        nameless = grant.subject.rpartition("@")[2] in self._trusted_nodes
        return grant.subject if nameless else ""

    def subscribe(self, make: Callable[[int], SubscribeSessionEvents]) -> None:
        """Let a session have every event that a filter matches; `make` gives it a ticket."""
        self._ask_now(make)

    def unsubscribe(self, session: str, subscription: str) -> None:
        """End a session's subscription of events."""
        self._ask_now(lambda ticket: UnsubscribeSessionEvents(ticket, session, subscription))

    def confirm(self, session: str, subscription: str, vector: Pairs) -> None:
        """A session has had a subscription's events up to this vector."""
        self._give(ConfirmSessionEvents(session, subscription, vector))

    def report(self, session: str, place: str, point: Point | None) -> None:
        """Whoever holds a session is in this place now, and at this point."""
        self._give(ReportSessionPlace(session, place, point))

    def report_brokers(self, session: str, here_ms: float, found: Mapping[str, float]) -> None:
        """Whoever holds a session would go to these brokers, which are so far away."""
        times = tuple((url.rstrip("/"), int(ms * 1_000)) for url, ms in found.items())
        self._give(ReportSessionBrokers(session, int(here_ms * 1_000), times))

    def drain(self, to: tuple[str, ...], rate: float) -> None:
        """Hand everybody over to other nodes, and refuse newcomers."""
        self._ask_now(lambda ticket: DrainNode(ticket, to, rate))

    def undrain(self) -> None:
        """Take newcomers again."""
        self._ask_now(UndrainNode)

    def _ask_now(self, make: Callable[[int], Input]) -> None:
        self._tickets.ask_now(lambda ticket: self._give(make(ticket)))
