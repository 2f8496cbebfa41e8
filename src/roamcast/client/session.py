"""The SDK's `Session`: a program appears, changes and leaves; it watches, counts and finds."""

import asyncio
import random
import re
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

import msgspec

from roamcast.channels.server.messages import CONTEXT_BYTES_MAX, FILTER_LENGTH_MAX
from roamcast.client.asking import Asking, Where
from roamcast.client.casting import Casting, CastPreview, CastProgress
from roamcast.client.connecting import Connecting
from roamcast.client.event_streams import BrokerChange, EventStream, Modulator
from roamcast.client.events import EventRoamer, TokenOf
from roamcast.client.everywhere import EverywhereViews
from roamcast.client.following import go_on, withdraw
from roamcast.client.inbox import MailInbox, OpenedMail
from roamcast.client.items import Items
from roamcast.client.nearness import Near, check_near
from roamcast.client.own_vids import OwnVids, keys_path
from roamcast.client.reaching import Reaching
from roamcast.client.runner import Runner
from roamcast.client.views import View
from roamcast.errors import (
    ContextError,
    ForbiddenError,
    InputError,
    LimitError,
    MovedError,
    RoamcastError,
    UnreachableError,
)
from roamcast.identity.key_store import KeyStore
from roamcast.model.contexts import (
    Attribute,
    Context,
    body_of,
    check,
    check_place,
    check_point,
    to_feature,
)
from roamcast.model.filters import Filter
from roamcast.transport.address import (
    Hosts,
    ServiceAddress,
    Token,
    check_url,
    find,
    scopes_of,
)
from roamcast.transport.driver import wall_clock
from roamcast.transport.http import HttpClient

_DEVICE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

Point = tuple[float, float]
"""Longitude and latitude."""


class _Same(msgspec.Struct, frozen=True):
    """Stands for "unchanged", where None means "none"."""


SAME: Final = _Same()


class Session(Asking):
    """A program's session with one service, made by `connect`.

    While the service is away, publications wait and views stand still; both go on by themselves. A
    session that cannot go on, because its key has expired or another program took its device's
    name, raises the reason wherever it is used.
    """

    def __init__(
        self,
        runner: Runner,
        http: HttpClient,
        *,
        named: HttpClient,
        trust: HttpClient,
        keys: Path,
        events: EventRoamer,
        everywhere: EverywhereViews | None = None,
        follow: Callable[[str], Runner] | None = None,
    ) -> None:
        """`named`: the service, and `trust` the trusted node, asked under the person's name.

        `everywhere`: views over the maps of all nodes; None for a session that sees its own node's
        only. `follow` makes a link to another broker, if what is on the map goes where the
        session's place is served.
        """
        super().__init__(http)
        self._runner = runner
        self.casts = Casting(named)
        self._items = Items(named)
        """Follow, cancel and update casts."""
        self.reach = Reaching(trust)
        """Say who may write to you."""
        self._trust = trust
        self._keys = keys
        self._own: str | None = None
        self._events = events
        self._everywhere = everywhere
        self._follow = follow
        self._moving = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        events.on_move = self._moved

    @property
    def connected(self) -> bool:
        """Whether there is a link to the service at this moment."""
        return self._runner.link.connected

    @property
    def way(self) -> str:
        """How this client receives shared channels: `udp`, `nats` or `socket`."""
        return self._runner.ways.using

    @property
    def device(self) -> str:
        """The name that tells this program from the user's others."""
        return self._runner.link.device

    @property
    def context(self) -> Context | None:
        """This device's own context as it was last published."""
        return None if self._own is None else self._runner.published.get(self._own)

    def now(self) -> int:
        """Give the service's time, in microseconds since 1970."""
        return self._runner.clock.now()

    async def appear(
        self,
        place: str | None = None,
        point: Point | None = None,
        *,
        vid: str | None = None,
        lifetime_s: float | None = None,
        **attributes: Attribute,
    ) -> Context:
        """Put this device on the map, and return when the service has taken it.

        Each appearance has a fresh random vid unless one is given, so that two of them cannot be
        linked. The context leaves with this session; with a lifetime it is stored, outlives the
        session, and leaves when its time is over.
        """
        made = self._made(vid or secrets.token_urlsafe(16), place, point, attributes)
        if lifetime_s is not None:
            await self.put(made, lifetime_s=lifetime_s)
            return made
        before, self._own = self._own, made.vid
        if before is not None and before != made.vid:
            self._runner.unpublish(before)
        await self._show(made)
        return made

    async def _show(self, context: Context) -> None:
        """Publish a context, at the broker that serves its place if this session may go there."""
        while True:
            runner = self._publisher()
            runner.publish(context)
            try:
                await runner.taken(context.vid)
                return
            except MovedError as error:
                if not await self._go(error.url):
                    raise
            except UnreachableError:
                if runner is self._publisher():
                    raise  # it is over, and did not only move

    async def _go(self, url: str) -> bool:
        """Let what is on the map, and events, go to the broker that serves a place."""
        url = url.rstrip("/")
        if self._follow is None or not url or url not in self._events.urls:
            return False
        if self._events.begun:
            await self._events.move(url, "place")
        await self._map_to(url)
        return True

    def _moved(self, url: str, why: str) -> None:
        """What is on the map goes along when the place says so; else it stays where it is."""
        if self._follow is not None and why == "place":
            self._following = asyncio.get_running_loop().create_task(self._map_to(url))

    async def _map_to(self, url: str) -> None:
        """Go on with views and publications at another broker."""
        async with self._moving:
            old = self._runner
            if self._follow is None or old.link.hosts.current.url == url:
                return
            made = self._follow(url)
            try:
                await made.start()
            except UnreachableError:
                return  # it is not there: this one goes on
            published = list(old.published.values())
            with suppress(RoamcastError):
                await withdraw(old)
            self._runner = made
            await go_on(published, old, made)

    async def change(
        self,
        place: str | _Same | None = SAME,
        point: Point | _Same | None = SAME,
        **attributes: Attribute | None,
    ) -> Context:
        """Change some of this device's context; an attribute that is None is removed."""
        known = self.context
        if known is None:
            raise InputError("there is nothing to change: call appear first")
        changed = {**known.attributes, **attributes}
        made = self._made(
            known.vid,
            known.place if isinstance(place, _Same) else place,
            known.point if isinstance(point, _Same) else point,
            {name: value for name, value in changed.items() if value is not None},
        )
        await self._show(made)
        return made

    async def leave(self) -> None:
        """Take this device off the map."""
        vid, self._own = self._own, None
        if vid is not None:
            await self.withdraw(vid)

    async def publish(
        self,
        vid: str,
        place: str | None = None,
        point: Point | None = None,
        **attributes: Attribute,
    ) -> Context:
        """Publish another context that this program answers for, or replace it."""
        made = self._made(vid, place, point, attributes)
        await self._show(made)
        return made

    async def withdraw(self, vid: str) -> None:
        """Unpublish what `publish` published."""
        self._runner.unpublish(vid)
        await self._runner.taken(vid)

    def watch(self, where: Where, *, scope: Literal["everywhere", "here"] = "everywhere") -> View:
        """Follow a filter: the current set first, then every change of it.

        Where the service is a node with neighbours, other nodes' maps are followed, too, as
        everybody may see them there; `here` follows the service's own map alone. So do anonymous
        sessions and those with `limit_bytes`.
        A filter that cannot be read raises `FilterError` here. A slow reader gets the latest state
        of each context; nothing is reported twice, and nothing stays that has left.
        """
        self._check_scope("subscribe")
        wanted = where if isinstance(where, Filter) else Filter.parse(where)
        if len(wanted.source) > FILTER_LENGTH_MAX:
            raise LimitError(f"a filter has at most {FILTER_LENGTH_MAX} characters")
        if scope == "everywhere" and self._everywhere is not None and self._runner.elsewhere:
            self._runner.check_open()
            return View(self._everywhere.follow(wanted), self._everywhere.leave)
        return View(self._runner.subscribe(wanted), self._unsubscribe)

    def _unsubscribe(self, name: str) -> None:
        self._runner.unsubscribe(name)  # the one that serves by then

    @property
    def broker(self) -> str:
        """The address of the broker that serves this session's events."""
        return self._events.broker

    @property
    def moves(self) -> list[BrokerChange]:
        """The changes of broker so far: from, to, why, and how long none served."""
        return list(self._events.moves)

    async def subscribe(
        self,
        where: Where,
        *,
        expires_s: float = 60.0,
        modulators: Sequence[Modulator] = (),
        keeps_state: bool = True,
        keeps_events: bool = True,
    ) -> EventStream:
        """Have every event that a filter matches, once and in order, from now on.

        `watch` follows states and coalesces; this follows what happens. `expires_s` is how long
        the broker holds events for a program that is away. `modulators` thin out, select or compute
        at the broker, such as `{"type": "every", "n": 10}` or a module of `put_module`. If they
        stop, the stream raises `ModulatorError` with the reason. What they know moves with the
        subscription from broker to broker, and survives their crashes; without `keeps_state` they
        begin anew. Without `keeps_events` what comes while it moves is skipped, and in `gaps`.
        """
        self._check_scope("subscribe")
        text = where if isinstance(where, str) else where.source
        return await self._events.subscribe(
            text, expires_s=expires_s, modulators=modulators,
            keeps_state=keeps_state, keeps_events=keeps_events,
        )  # fmt: skip

    async def put_module(self, code: bytes) -> str:
        """Store a WebAssembly module at the service; return its name, to be used in a modulator."""
        self._check_scope("subscribe")
        answer = await self._http.ask("POST", "/modules", body=bytes(code), kind="application/wasm")
        return str(answer["module"])

    async def publish_event(
        self,
        place: str | None = None,
        point: Point | None = None,
        *,
        data: bytes = b"",
        vid: str | None = None,
        causal: bool = False,
        **attributes: Attribute,
    ) -> None:
        """Publish something that happened; returns when it is on the broker's disk.

        However often it is sent again, it is delivered once. `causal`: after everything that this
        session's streams have received.
        """
        self._check_scope("publish")
        made = Context(vid or await self._event_vid(), place, point, attributes, self.now())
        await self._events.publish(to_feature(check(made)), data, causal=causal)

    async def _event_vid(self) -> str:
        """Give the vid of an event that names none: a fresh one."""
        return secrets.token_urlsafe(16)

    async def report(self, place: str, point: tuple[float, float] | None = None) -> None:
        """Say where this program is, so that the next broker prepares before it crosses.

        With points, longitude and latitude, only brokers that lie ahead prepare.
        """
        await self._events.report(check_place(place), None if point is None else check_point(point))

    async def publish_item(
        self,
        major: str,
        minor: str,
        subkeys: Iterable[tuple[str, str, Any]] = (),
        *,
        lifetime_s: float | None = None,
    ) -> str:
        """Publish an item of information, or change it; return its vid.

        `subkeys` are typed triples, such as `("float", "price", 104.5)`. It stays when the session
        ends, for `lifetime_s` or until `remove_item`.
        """
        return await self._items.publish(major, minor, subkeys, lifetime_s)

    async def remove_item(self, major: str, minor: str) -> None:
        """Take an item of one's own back."""
        await self._items.remove(major, minor)

    async def cast(
        self,
        where: Where,
        text: str,
        *,
        kind: str = "text",
        priority: str = "routine",
        expires: str | None = None,
        lifetime_s: float | None = None,
        cast_id: str = "",
    ) -> CastProgress:
        """Send a text to everybody who was, is or will be where a filter says.

        It goes under the token's name, also from an anonymous session: people may stop a sender. A
        repeat with the same `cast_id` sends nothing again.
        """
        return await self.casts.cast(
            where, text, kind=kind, priority=priority, expires=expires, lifetime_s=lifetime_s,
            cast_id=cast_id,
        )  # fmt: skip

    async def preview(self, where: Where) -> CastPreview:
        """Say about how many a cast would reach; nothing is sent."""
        return await self.casts.preview(where)

    async def inbox(self, *, follow: bool = True, keep: bool = False) -> AsyncIterator[OpenedMail]:
        """Read mail from the trusted node: what waits, and with `follow` what comes.

        Each cast comes once. It is acknowledged when it is in the key store, and removed from there
        when the next one is asked for, unless `keep` is set.
        """
        store = KeyStore.open(self._keys)
        try:
            inbox = MailInbox(store, self._trust, wall_clock())
            async for mail in inbox.mails(follow=follow, keep=keep):
                yield mail
        finally:
            store.close()

    async def close(self) -> None:
        """Leave, and end the session; every view comes to its end."""
        if self._following is not None:
            self._following.cancel()
        runner = self._runner
        try:
            if self.connected:
                await withdraw(runner)
        finally:
            await self._events.close()
            if self._everywhere is not None:
                await self._everywhere.close()
            await runner.stop()

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _publisher(self) -> Runner:
        return self._runner

    def _check_scope(self, scope: str) -> None:
        """Raise for what the service would end the session for."""
        scopes = scopes_of(self._runner.link.key)
        if scopes is not None and not scopes & {scope, "admin"}:
            raise ForbiddenError(
                f"your token does not allow to {scope}: make one with `roamcast token --scope "
                f"{scope}`"
            )

    def _made(
        self,
        vid: str,
        place: str | None,
        point: Point | None,
        attributes: dict[str, Attribute],
    ) -> Context:
        """Make a context as of now, and check that the service can accept it."""
        self._check_scope("publish")
        made = check(Context(vid, place, point, attributes, self._runner.clock.now()))
        if place is None and point is None:
            raise ContextError("a context needs a place, a point or both")
        if len(body_of(made)) > CONTEXT_BYTES_MAX:
            raise LimitError(f"a context has at most {CONTEXT_BYTES_MAX} bytes")
        return made


def connect(
    url: str | None = None,
    token: Token | None = None,
    *,
    data: str | Path | None = None,
    device: str | None = None,
    limit_bytes: int = 0,
    timeout_s: float = 10.0,
    interface: str = "",
    tls: ssl.SSLContext | None = None,
    anonymous: bool = False,
    trust: tuple[str, Token] | None = None,
    keys: str | Path | None = None,
    hybrid: bool = False,
    near: Near = "",
) -> Connecting:
    """Open a session with a service.

    `url` may name several hosts, with commas between them: one of them serves, and when another
    takes over, the session moves there by itself. A service also names its other hosts. Without
    `url` and `token` they come from ROAMCAST_URL and ROAMCAST_TOKEN, or from the file that a
    service on this machine wrote into its data folder. `token` may be a function, which is called
    for a valid key before every connection. `device` names this program among the user's others; a
    second one of the same name takes its place. `limit_bytes` is the most that the service may send
    here in any second, 0 for no limit; a half of it is for events. `interface` is the address of
    the interface that UDP multicast comes by, where the system does not choose the right one.

    With `near` the addresses are brokers of one overlay, and the session roams among them: to the
    one that serves the `place` it reports, that answers clearly faster (`latency`), or that a
    function of the addresses and its own gives; with `home` brokers choose where each subscription
    with modulators is served best. Its token must hold at all of them.

    By default the service knows the token's name. With `anonymous` it does not: each appearance has
    a vid of the trusted node `trust` (address and token; without it, the one in the service), over
    a connection of its own. `keys` is the file of the person's vids and inbox, by default one in
    their home. `hybrid` seals their mail with ML-KEM-768 besides X25519.
    """
    if device is not None and _DEVICE.fullmatch(device) is None:
        raise InputError("a device's name has 1 to 64 of the characters A-Z a-z 0-9 _ . -")
    check_near(near)
    address = find(url, token, data=None if data is None else Path(data))
    trusted = address if trust is None else ServiceAddress(check_url(trust[0]), trust[1])
    path = keys_path(trusted) if keys is None else Path(keys)
    draw = random.SystemRandom().random

    def make_http(where: ServiceAddress | Hosts) -> HttpClient:
        return HttpClient(where, timeout_s=timeout_s, tls=tls)

    def make_runner(where: Hosts, name: str) -> Runner:
        return Runner(
            where,
            name,
            draw=draw,
            limit_bytes=limit_bytes - limit_bytes // 2,
            open_s=timeout_s,
            interface=interface,
            tls=tls,
        )

    def make_events(name: str, token_of: TokenOf | None = None) -> EventRoamer:
        return EventRoamer(
            address,
            name,
            near=near,
            draw=draw,
            limit_bytes=limit_bytes // 2,
            open_s=timeout_s,
            tls=tls,
            token_of=token_of,
        )

    async def named() -> Session:
        # Brokers of an overlay are not hosts of one service: each has a map of its own.
        hosts = Hosts(ServiceAddress(address.url, address.token) if near else address)
        name = device or secrets.token_urlsafe(12)
        runner, http = make_runner(hosts, name), make_http(hosts)
        await runner.start()
        made = make_http(trusted)

        def follow(url: str) -> Runner:
            hosts.answered(url)  # what is asked over HTTP is asked there, too
            return make_runner(Hosts(ServiceAddress(url, address.token)), name)

        return Session(
            runner,
            http,
            named=http,
            trust=made,
            keys=path,
            events=make_events(name),
            everywhere=None if limit_bytes else EverywhereViews(http, draw),
            follow=follow if near else None,
        )

    async def nameless() -> Session:
        from roamcast.client.anonymous import AnonymousSession, EventVid, VidLink

        asked = make_http(trusted)
        vids = OwnVids(KeyStore.open(path), asked, draw=draw, hybrid=hybrid)
        viewer = VidLink(address.url, make_http)
        try:
            await viewer.register(vids)
            runner = await viewer.open(make_runner)
        except BaseException:
            await viewer.close()
            await vids.close()
            raise
        published = EventVid(vids, make_http)
        return AnonymousSession(
            address.url,
            vids,
            event_vid=published,
            events=make_events(secrets.token_urlsafe(12), published.token),
            viewer=viewer,
            runner=runner,
            make_runner=make_runner,
            make_http=make_http,
            draw=draw,
            named=make_http(address),
            trust=asked,
            keys=path,
        )

    return Connecting(nameless if anonymous else named)
