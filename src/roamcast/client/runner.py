"""What runs behind a session? One machine, its link, and an inbox for each standing query.

The machine is the simulator's own `MapClient`. It registers again after a restart of the service,
asks for what it lost and lists what it follows; here its effects find their way out, and its user's
inboxes. Its clock is the service's, so that a device whose clock is wrong publishes in order.
"""

import asyncio
import logging
import ssl
from typing import Final

from roamcast.channels.client.copy import Appeared, Changed, Left
from roamcast.channels.client.link_messages import LinkWelcome, settings_of
from roamcast.channels.client.map_client import MapClient, SubscribeFilter, UnsubscribeFilter
from roamcast.channels.client.publications import PublishContext, UnpublishContext
from roamcast.channels.client.watching import Current, Cut, Refusal
from roamcast.channels.server.messages import Answer, Request, ServerHere
from roamcast.channels.server.settings import MapSettings
from roamcast.client.inbox import CONTEXTS_MAX, Inbox
from roamcast.client.views import Feed
from roamcast.errors import InputError, LimitError, UnreachableError
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Draw, Effect, Ignore, Input, Listen, Received, Send
from roamcast.model.time import MICROSECONDS
from roamcast.model.wire import NAME_LENGTH_MAX, Message
from roamcast.transport.address import ServiceAddress
from roamcast.transport.driver import Driver, steady_clock
from roamcast.transport.hosts import Hosts
from roamcast.transport.link import OUTAGE_PART, SILENCE_BEATS, ReconnectingLink
from roamcast.transport.ways import Ways

ASK_AGAIN_S: Final = 1.0
"""After the service gave up on a client that was too slow, it asks again within this."""

DOUBT_S: Final = 0.5
"""After a restart of the service, what its list lacks is missed so much longer than the devices
that published it need to find back. Then it has left."""

_LOG = logging.getLogger("roamcast.client")


class Runner:
    """Runs one client until it is stopped or its link ends for good."""

    def __init__(
        self,
        where: ServiceAddress | Hosts,
        device: str,
        *,
        draw: Draw,
        limit_bytes: int = 0,
        open_s: float = 10.0,
        contexts_max: int = CONTEXTS_MAX,
        interface: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.published: dict[str, Context] = {}
        self.settings = MapSettings()
        self.link = ReconnectingLink(
            where,
            device,
            welcomed=self._welcomed,
            told=self._told,
            renewed=self._renewed,
            draw=draw,
            open_s=open_s,
            tls=tls,
        )
        self.ways = Ways(send=self.link.send, told=self._told, clock=self.now, interface=interface)
        self.driver: Driver | None = None
        self._machine: MapClient | None = None
        self._feeds: dict[str, Feed] = {}
        self._refused: dict[str, str] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._draw = draw
        self._limit_bytes = limit_bytes
        self._contexts_max = contexts_max
        self._wall = steady_clock()
        self._ahead_us: int | None = None
        self._next_name = 1
        self._server = ""
        self._doubts: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._over: BaseException | None = None

    @property
    def machine(self) -> MapClient:
        """The machine; there is one from the first welcome on."""
        assert self._machine is not None
        return self._machine

    def now(self) -> int:
        """Tell the service's time, as near as we know it; it never goes back."""
        return self._wall() + (self._ahead_us or 0)

    async def start(self) -> None:
        """Dial, and come back when the service has said welcome."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self.link.run(ready))
        self._task.add_done_callback(self._ended)
        try:
            await asyncio.wait((ready, self._task), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop()
            raise
        if self._task.done():
            await self._task  # raises why

    async def stop(self) -> None:
        """End everything; whoever reads comes to the end."""
        if self.driver is not None:
            self.driver.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.ways.close()
        self._end(None)

    def check_open(self) -> None:
        """Raise why the session is over, if it is."""
        if self._over is not None:
            raise self._over

    def publish(self, context: Context) -> None:
        """Publish an object, or its next state."""
        self.check_open()
        limit = self.settings.publications_max
        if context.vid not in self.published and len(self.published) >= limit:
            raise LimitError(f"a client publishes at most {limit} objects")
        self._refused.pop(context.vid, None)
        self.published[context.vid] = context
        self._give(PublishContext(context))

    def cancel(self, vid: str) -> None:
        """Cancel the publication of an object."""
        self.check_open()
        self.published.pop(vid, None)
        self._give(UnpublishContext(vid))

    async def taken(self, vid: str) -> None:
        """Wait until the service has taken the latest about an object; raise if it refused."""
        while not self.machine.taken(vid):
            self.check_open()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        reason = self._refused.pop(vid, None)
        if reason is not None:
            raise InputError(f"the service refused {vid[:60]}: {reason}")

    def watch(self, wanted: Filter) -> Feed:
        """Begin to follow a standing query."""
        self.check_open()
        limit = self.settings.subscriptions_max
        if len(self._feeds) >= limit:
            raise LimitError(f"a client follows at most {limit} standing queries; close one first")
        feed = Feed(f"watch-{self._next_name}", wanted, Inbox(self._contexts_max))
        self._next_name += 1
        self._feeds[feed.name] = feed
        self._give(SubscribeFilter(feed.name, wanted.source))
        return feed

    def unwatch(self, name: str) -> None:
        """Follow a standing query no more."""
        if self._feeds.pop(name, None) is not None and self._over is None:
            self._give(UnsubscribeFilter(name))

    def _give(self, given: Input) -> None:
        assert self.driver is not None
        self.driver.give(given)

    def _welcomed(self, welcome: LinkWelcome) -> float | None:
        """Take the first message of a link; the machine learns if the service has restarted."""
        settings = settings_of(welcome.settings)
        self.link.hosts.learn(welcome.hosts)
        if welcome.hosts and self._machine is not None and welcome.epoch < self._machine.epoch:
            self._tell_older(settings)
            return None
        self._server = welcome.server
        if welcome.now:
            ahead = welcome.now - self._wall()
            self._ahead_us = ahead if self._ahead_us is None else max(ahead, self._ahead_us)
        self.ways.welcomed(welcome)
        machine = self._machine
        if machine is not None and welcome.epoch != machine.epoch:
            self._doubt(settings.restart_spread_us)
        if machine is None or settings != self.settings or welcome.epoch < machine.epoch:
            self._make(welcome, settings)
        else:
            self._told("", ServerHere(welcome.epoch, settings.restart_spread_us))
        beats_us = SILENCE_BEATS * settings.server_here_us
        return max(beats_us, settings.client_timeout_us) / MICROSECONDS

    def _tell_older(self, settings: MapSettings) -> None:
        """Tell a server of a newer one that this client can not find any more, as its machine does.

        A client never goes back to an older epoch; its host starts a newer one if need be.
        """
        if self.link.outage_s * MICROSECONDS > settings.server_timeout_us:
            self.link.send(Request(self.machine.epoch, self.machine.session, 1, ()))

    def _make(self, welcome: LinkWelcome, settings: MapSettings) -> None:
        """Make the machine, and give it all that an earlier one was given."""
        before = self._machine
        if self.driver is not None:
            self.driver.close()
            for effect in self.machine.leave():
                self._carry(effect)
        self.settings = settings
        self._machine = MapClient(
            welcome.client,
            server=welcome.server,
            epoch=welcome.epoch,
            now=self.now(),
            settings=settings,
            draw=self._draw,
            limit_bytes=self._limit_bytes,
        )
        self.driver = Driver(self._machine, clock=self.now, carry=self._carry)
        if before is not None:  # with their stamps, for somebody may have newer ones
            self._machine.publications = before.publications
        for feed in self._feeds.values():
            feed.relists = True
            self._give(SubscribeFilter(feed.name, feed.filter.source))
        self.driver.start()

    def _renewed(self, welcome: LinkWelcome) -> None:
        """The service has another key for what groups are told."""
        self.ways.welcomed(welcome)

    def _told(self, group: str, message: Message) -> None:
        if isinstance(message, ServerHere) and message.epoch > self.machine.epoch:
            self._doubt(message.spread_us)
        self._give(Received(self._server, message, group))
        if isinstance(message, Answer):
            self._wake()

    def _doubt(self, spread_us: int) -> None:
        """The service has restarted: not everyone may be back when it lists who is there."""
        if self._doubts is not None:
            self._doubts.cancel()
        back_s = self.link.outage_s * OUTAGE_PART + spread_us / MICROSECONDS
        wait_s = DOUBT_S + back_s
        self._doubts = asyncio.get_running_loop().call_later(wait_s, self._believe)

    def _doubtful(self, vid: str) -> bool:
        """Whether an object is only missing: the service that restarted has said nothing of it."""
        if self._doubts is None:
            return False
        known = self.machine.watching.copy.known.get(vid)
        return known is None or known.number[0] < self.machine.epoch

    def _believe(self) -> None:
        self._doubts = None
        for feed in self._feeds.values():
            feed.believe()

    def _carry(self, effect: Effect) -> None:
        match effect:
            case Send(_, message):
                self.link.send(message)
            case Listen(group):
                self.ways.listen(group)
            case Ignore(group):
                self.ways.ignore(group)
            case Appeared(name, context) | Changed(name, context):
                self._show(name, context)
            case Left(name, vid):
                if (feed := self._feeds.get(name)) is not None:
                    feed.hide(vid, doubtful=self._doubtful(vid))
            case Current(name, count, complete):
                self._current(name, count, complete)
            case Refusal(about, reason):
                self._refuse(about, reason)
            case Cut(reason):
                _LOG.warning("the service gave up on this client: %s; asking again", reason)
                asyncio.get_running_loop().call_later(self._draw() * ASK_AGAIN_S, self._ask_again)

    def _show(self, name: str, context: Context) -> None:
        feed = self._feeds.get(name)
        if feed is None:
            return
        try:
            feed.show(context)
        except LimitError as error:
            feed.end(error)
            # Not at once: the machine is in the middle of its effects.
            asyncio.get_running_loop().call_soon(self.unwatch, name)

    def _current(self, name: str, count: int, complete: bool) -> None:
        feed = self._feeds.get(name)
        if feed is None:
            return
        if feed.relists:
            feed.relists = False
            listed = self.machine.watching.copy.views[name].shown
            for vid in [vid for vid in feed.inbox.shown if vid not in listed]:
                feed.hide(vid, doubtful=self._doubtful(vid))
        feed.inbox.current(count, complete=complete)
        feed.news.set()

    def _refuse(self, about: str, reason: str) -> None:
        feed = self._feeds.pop(about, None)
        if feed is not None:
            feed.end(InputError(f"the service refused this query: {reason}"))
            return
        vid = next((vid for vid in self.published if about == f"put {vid}"[:NAME_LENGTH_MAX]), None)
        if vid is not None:
            self._refused[vid] = reason
            del self.published[vid]
            asyncio.get_running_loop().call_soon(self._give, UnpublishContext(vid))
            return
        _LOG.warning("the service refused something: %s", reason)

    def _ask_again(self) -> None:
        """The machine forgot what it followed, but not this session's user."""
        for feed in self._feeds.values():
            if feed.name not in self.machine.wanted:
                feed.relists = True
                self._give(SubscribeFilter(feed.name, feed.filter.source))

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The link ended for good: everyone who waits learns why."""
        if not task.cancelled():
            self._end(task.exception())

    def _end(self, error: BaseException | None) -> None:
        if self._over is None:
            self._over = error or UnreachableError("this session is closed")
        if self.driver is not None:
            self.driver.close()
        if self._doubts is not None:
            self._doubts.cancel()
        for feed in self._feeds.values():
            feed.end(error)
        self._wake()
