"""An anonymous session: a fresh vid over a new connection at every registration.

One socket links the vids that are used on it, so each appearance has a link of its own, and so has
what this program watches. The service sees credentials without a name; the token that has a name
goes to the trusted node alone. Between two appearances is a random gap: an end and a beginning at
the same microsecond would link them in every archive.
"""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from roamcast.client.asking import Asking
from roamcast.client.events import EventRoamer
from roamcast.client.own_vids import OwnVids, VidToken, registered
from roamcast.client.runner import Runner
from roamcast.client.session import Point, Session
from roamcast.errors import InputError, RoamcastError
from roamcast.identity.key_store import OwnVid
from roamcast.model.contexts import Attribute, Context
from roamcast.model.machine import Draw
from roamcast.model.time import MICROSECONDS
from roamcast.transport.address import Hosts, ServiceAddress
from roamcast.transport.driver import wall_clock
from roamcast.transport.http import HttpClient

GAP_S_MAX: Final = 0.5
RENEW_PART: Final = 0.5
"""A vid registers again at this part of its token's life."""

RETRY_S: Final = 5.0

MakeRunner = Callable[[Hosts, str], Runner]
MakeHttp = Callable[[ServiceAddress], HttpClient]


class VidLink:
    """One vid at one service: its token, renewed in time, and its own connections."""

    def __init__(self, url: str, make_http: MakeHttp) -> None:
        self.url = url
        self._make_http = make_http
        self._token: VidToken | None = None
        self._renewing: asyncio.Task[None] | None = None
        self.runner: Runner | None = None

    @property
    def vid(self) -> str:
        """The pseudonym."""
        assert self._token is not None
        return self._token.own.vid

    @property
    def address(self) -> ServiceAddress:
        """The service, with this vid's token as it is now."""
        return ServiceAddress(self.url, self._key)

    def _key(self) -> str:
        assert self._token is not None
        return self._token.token

    async def register(self, vids: OwnVids) -> None:
        """Take a fresh vid and register it."""
        clock = wall_clock()
        own = await vids.fresh(clock())
        stranger = self._make_http(ServiceAddress(self.url, ""))
        self._token = await registered(own, self.url, stranger)
        vids.store.meet(self._token.receipt_key, self.url)
        self._renewing = asyncio.create_task(self._renew(stranger))

    async def open(self, make_runner: MakeRunner) -> Runner:
        """Open this vid's own link."""
        self.runner = make_runner(Hosts(self.address), secrets.token_urlsafe(12))
        await self.runner.start()
        return self.runner

    async def close(self) -> None:
        """End the link, and the token's renewal."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if self.runner is not None:
            await self.runner.stop()

    async def _renew(self, stranger: HttpClient) -> None:
        """Register the same vid again while its credential lasts: it links nothing new."""
        clock = wall_clock()
        while True:
            assert self._token is not None
            left_s = (self._token.expires_us - clock()) / MICROSECONDS
            await asyncio.sleep(max(left_s * RENEW_PART, RETRY_S))
            with suppress(RoamcastError):
                self._token = await registered(self._token.own, self.url, stranger)


class EventVid:
    """The vid of a session's events: one for all brokers, so that the next one knows its consumer.

    Like what is watched, it has connections of its own.
    """

    def __init__(self, vids: OwnVids, make_http: MakeHttp) -> None:
        self._vids = vids
        self._make_http = make_http
        self._own: OwnVid | None = None
        self._tokens: dict[str, VidToken] = {}
        self._lock = asyncio.Lock()

    async def vid(self) -> str:
        """Give the pseudonym; draw it the first time."""
        async with self._lock:
            if self._own is None:
                self._own = await self._vids.fresh(wall_clock()())
            return self._own.vid

    async def token(self, url: str) -> str:
        """Register at a broker, or give the token of that while it lasts."""
        await self.vid()
        assert self._own is not None
        known = self._tokens.get(url)
        if known is None or known.expires_us <= wall_clock()() + RETRY_S * MICROSECONDS:
            stranger = self._make_http(ServiceAddress(url, ""))
            known = self._tokens[url] = await registered(self._own, url, stranger)
            self._vids.store.meet(known.receipt_key, url)
        return known.token


class AnonymousSession(Session):
    """A session of somebody whom the service can not name."""

    def __init__(
        self,
        url: str,
        vids: OwnVids,
        *,
        viewer: VidLink,
        runner: Runner,
        make_runner: MakeRunner,
        make_http: MakeHttp,
        draw: Draw,
        named: HttpClient,
        trust: HttpClient,
        keys: Path,
        events: EventRoamer,
        event_vid: EventVid,
    ) -> None:
        http = make_http(viewer.address)
        super().__init__(runner, http, named=named, trust=trust, keys=keys, events=events)
        self._published = event_vid
        self._url = url
        self._vids = vids
        self._viewer = viewer
        self._make_runner = make_runner
        self._make_http = make_http
        self._draw = draw
        self._appearance: VidLink | None = None

    @property
    def vid(self) -> str | None:
        """The pseudonym under which this device is on the map."""
        return None if self._appearance is None else self._appearance.vid

    @property
    def context(self) -> Context | None:
        """This device's own context as it was last published."""
        link = self._appearance
        if link is None or link.runner is None:
            return None
        return link.runner.published.get(link.vid)

    async def appear(
        self,
        place: str | None = None,
        point: Point | None = None,
        *,
        vid: str | None = None,
        lifetime_s: float | None = None,
        **attributes: Attribute,
    ) -> Context:
        """Put this device on the map under a fresh vid, over a new connection."""
        if vid is not None:
            raise InputError("an anonymous session draws its vids from the trusted node")
        self._made("x", place, point, attributes)  # what is wrong is said before anybody leaves
        left = self._appearance is not None
        await self.leave()
        if left:
            await asyncio.sleep(self._draw() * GAP_S_MAX)
        link = VidLink(self._url, self._make_http)
        try:
            await link.register(self._vids)
            made = self._made(link.vid, place, point, attributes)
            if lifetime_s is not None:
                await Asking(self._make_http(link.address)).put(made, lifetime_s=lifetime_s)
                await link.close()
                return made
            runner = await link.open(self._make_runner)
            runner.publish(made)
            await runner.taken(made.vid)
        except BaseException:
            await link.close()
            raise
        self._appearance = link
        return made

    async def _event_vid(self) -> str:
        """Give the vid of this session's events: nobody publishes under another's."""
        return await self._published.vid()

    async def leave(self) -> None:
        """Take this device off the map, and end the connection of its vid."""
        link, self._appearance = self._appearance, None
        if link is None:
            return
        try:
            runner = link.runner
            if runner is not None and runner.link.connected:
                runner.unpublish(link.vid)
                await runner.taken(link.vid)
        finally:
            await link.close()

    async def close(self) -> None:
        """Leave, and end all connections."""
        try:
            with suppress(RoamcastError):
                await self.leave()
            await super().close()
        finally:
            await self._viewer.close()
            await self._vids.close()

    def _publisher(self) -> Runner:
        link = self._appearance
        if link is None or link.runner is None:
            raise InputError("there is nothing to change: call appear first")
        return link.runner
