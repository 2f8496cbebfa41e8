"""Runs one `ClientSession` over a real link: it holds the socket, the groups, inboxes and timers.

All decisions are the session's (`channels.client.session`). Its clock is the service's, so that a
device whose own clock is wrong still publishes in order.
"""

import asyncio
import logging
import ssl
from collections.abc import Iterable

from roamcast.channels.client.link_messages import LinkWelcome
from roamcast.channels.client.map_client import SubscribeFilter, UnsubscribeFilter
from roamcast.channels.client.publications import PublishContext, UnpublishContext
from roamcast.channels.client.session import (
    CONTEXTS_MAX,
    ClientSession,
    Hidden,
    LinkAccepted,
    LinkDown,
    LinkRejected,
    LinkUp,
    PublicationRefused,
    Shown,
    SubscriptionOverflowed,
    SubscriptionRefused,
    Taken,
)
from roamcast.channels.client.watching import Current, Cut, Refusal
from roamcast.client.views import Feed
from roamcast.errors import InputError, LimitError, MovedError, UnreachableError
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Draw, Effect, Ignore, Listen, Received, Send
from roamcast.model.records import Record
from roamcast.model.time import MICROSECONDS
from roamcast.model.wire import Message
from roamcast.transport.address import Hosts, ServiceAddress
from roamcast.transport.driver import Driver, RemoteClock
from roamcast.transport.service_link import ServiceLink
from roamcast.transport.ways import Ways

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
        self.limited = limit_bytes > 0
        """Whether a service may send here only so much in a second."""
        self.clock = RemoteClock()
        self.session = ClientSession(draw=draw, limit_bytes=limit_bytes, contexts_max=contexts_max)
        self.driver = Driver(self.session, clock=self.clock.now, carry=self._carry)
        self.link = ServiceLink(
            where,
            device,
            on_welcome=self._on_welcome,
            on_message=self._on_message,
            on_renewal=self._on_renewal,
            on_close=self._on_close,
            draw=draw,
            open_s=open_s,
            tls=tls,
        )
        self.ways = Ways(
            send=self.link.send,
            on_message=self._on_message,
            clock=self.clock.now,
            interface=interface,
        )
        self._feeds: dict[str, Feed] = {}
        self._refused: dict[str, str] = {}
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._next_name = 1
        self._welcome: LinkWelcome | None = None
        self._silence_s: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._over: BaseException | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether the service has neighbours, whose maps no shared channel carries."""
        return self._welcome is not None and self._welcome.elsewhere

    @property
    def published(self) -> dict[str, Context]:
        """What this client publishes, by vid."""
        return self.session.published

    async def start(self) -> None:
        """Dial, and return when the service has sent its welcome."""
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
        """Publish a context, or its next state."""
        self.check_open()
        self.driver.give(PublishContext(context))
        self._refused.pop(context.vid, None)

    def unpublish(self, vid: str) -> None:
        """Cancel the publication of a context."""
        self.check_open()
        self.driver.give(UnpublishContext(vid))

    async def taken(self, vid: str) -> None:
        """Wait until the service has taken the latest about a context; raise if it refused."""
        while not self.session.taken(vid):
            self.check_open()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(vid, []).append(waiter)
            await waiter
        reason = self._refused.pop(vid, None)
        if reason is not None:
            raise MovedError.read(reason) or InputError(f"the service refused {vid[:60]}: {reason}")

    def subscribe(self, wanted: Filter) -> Feed:
        """Begin to follow a subscription."""
        self.check_open()
        while f"watch-{self._next_name}" in self._feeds:
            self._next_name += 1
        feed = Feed(f"watch-{self._next_name}", wanted)
        self._feeds[feed.name] = feed
        try:
            self.driver.give(SubscribeFilter(feed.name, wanted.source))
        except LimitError:
            del self._feeds[feed.name]
            raise
        self._next_name += 1
        return feed

    def give_up(self) -> list[Feed]:
        """Fill no feed any more: another runner does."""
        feeds, self._feeds = self._feeds, {}
        return list(feeds.values())

    def adopt(self, feeds: Iterable[Feed]) -> None:
        """Let readers of another runner's feeds go on here, once `follow` asks for them."""
        for feed in feeds:
            feed.inbox.renew()
            self._feeds[feed.name] = feed

    def follow(self, feeds: Iterable[Feed]) -> None:
        """Ask for what was adopted and is read still: readers are told what differs."""
        for feed in feeds:
            if self._feeds.get(feed.name) is feed and self._over is None:
                self.driver.give(SubscribeFilter(feed.name, feed.filter.source))

    def unsubscribe(self, name: str) -> None:
        """End a subscription."""
        if self._feeds.pop(name, None) is not None and self._over is None:
            self.driver.give(UnsubscribeFilter(name))

    def _on_welcome(self, welcome: LinkWelcome) -> float | None:
        """Offer a link to the session; None if it wants another host."""
        self.link.hosts.learn(welcome.hosts)
        if welcome.now:
            self.clock.follow(welcome.now)
        self._welcome, self._silence_s = welcome, None
        self.driver.give(LinkUp(welcome))
        return self._silence_s

    def _on_close(self) -> None:
        self.driver.give(LinkDown())

    def _on_renewal(self, welcome: LinkWelcome) -> None:
        """The service has another key for what groups carry."""
        self.ways.renew(welcome)

    def _on_message(self, group: str, message: Message) -> None:
        self.driver.give(Received(self.session.server, message, group))

    def _carry(self, effect: Effect) -> None:
        match effect:
            case Send(_, message):
                self.link.send(message)
            case Listen(group):
                self.ways.listen(group)
            case Ignore(group):
                self.ways.ignore(group)
            case LinkAccepted(silence_us):
                assert self._welcome is not None
                self._silence_s = silence_us / MICROSECONDS
                self.ways.renew(self._welcome)
            case LinkRejected():
                _LOG.info("this host serves an older map; looking for another one")
            case Taken(vids):
                for vid in vids:
                    self._wake(vid)
            case PublicationRefused(vid, reason):
                self._refused[vid] = reason
            case Cut(reason):
                _LOG.warning("the service gave up on this client: %s; asking again", reason)
            case Refusal(reason=reason):
                _LOG.warning("the service refused something: %s", reason)
            case Record():
                pass  # the SDK writes no journal
            case _:
                self._carry_view(effect)

    def _carry_view(self, effect: Effect) -> None:
        """Carry what a view's reader sees; a view that was closed meanwhile has no feed."""
        match effect:
            case Shown(name, context):
                if (feed := self._feeds.get(name)) is not None:
                    feed.inbox.show(context)
                    feed.news.set()
            case Hidden(name, vid):
                if (feed := self._feeds.get(name)) is not None:
                    feed.inbox.hide(vid)
                    feed.news.set()
            case Current(name, count, complete):
                if (feed := self._feeds.get(name)) is not None:
                    feed.inbox.current(count, complete=complete)
                    feed.news.set()
            case SubscriptionRefused(name, reason):
                if (feed := self._feeds.pop(name, None)) is not None:
                    feed.end(InputError(f"the service refused this subscription: {reason}"))
            case SubscriptionOverflowed(name, contexts_max):
                if (feed := self._feeds.pop(name, None)) is not None:
                    feed.end(
                        LimitError(
                            f"a subscription shows at most {contexts_max} contexts: narrow its "
                            "filter"
                        )
                    )
            case _:
                raise AssertionError(f"nobody carries {type(effect).__name__}")

    def _wake(self, vid: str) -> None:
        for waiter in self._waiters.pop(vid, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The link ended for good: everyone who waits learns why."""
        if not task.cancelled():
            self._end(task.exception())

    def _end(self, error: BaseException | None) -> None:
        if self._over is None:
            self._over = error or UnreachableError("this session is closed")
        self.driver.close()
        for feed in self._feeds.values():
            feed.end(error)
        for vid in list(self._waiters):
            self._wake(vid)
