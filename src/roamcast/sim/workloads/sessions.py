"""What users of the SDK see while links break and the service restarts, perhaps with new settings.

Clients run `ClientSession`, as the SDK does; the workload stands for their sockets. It breaks links
at random, and opens them again within a quarter of the outage (decision 0075). At all times: a user
is shown only what matches, and nothing leaves that was not there. In the end every view is what all
clients publish, and everything they published is taken. Where nothing fails but the server, nobody
ever seems to have left who has not.
"""

import random
from collections.abc import Callable
from typing import ClassVar, Final

import msgspec
from msgspec.structs import replace

from roamcast.channels.client.link_messages import LinkWelcome, settings_bytes
from roamcast.channels.client.map_client import SubscribeFilter, UnsubscribeFilter
from roamcast.channels.client.publications import PublishContext, UnpublishContext
from roamcast.channels.client.session import (
    OUTAGE_PART,
    ClientSession,
    Hidden,
    LinkDown,
    LinkUp,
    PublicationRefused,
    Shown,
    SubscriptionRefused,
    Taken,
)
from roamcast.channels.server.desk import Policy, Public
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.messages import MAP_PROTOCOL
from roamcast.channels.server.settings import MapSettings
from roamcast.model.contexts import Attribute, Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect
from roamcast.sim.checkers import Violation, check_bounds
from roamcast.sim.host import Boot, Host, HostState
from roamcast.sim.kernel import FAULT
from roamcast.sim.workload import Sizes, Workload
from roamcast.sim.workloads._map_parts import ScanMatcher, quick_settings
from roamcast.sim.world import World

SERVER: Final = "server"
LOOK_US: Final = 50_000
"""How often a link is looked at: whether its two ends still live, and whether to dial."""

RECENT_US: Final = 3_000_000
"""A change that is younger than this may still be on its way to those who watch."""

ROOMS: Final = tuple(f"lab/{room}" for room in "abcd")
FILTERS: Final = (
    "within(place, 'lab')",
    *(f"place = '{room}'" for room in ROOMS),
    "type = 'person'",
    "type = 'printer' OR place = 'lab/a'",
)
SUBSCRIPTIONS: Final = 3


class SessionLink(msgspec.Struct):
    """One client's link: which lives of client and server it joins, or since when it is away."""

    client_boots: int = 0
    server_boots: int = 0
    up: bool = False
    down_at: int = 0
    dial_at: int = 0


class SessionsWorkload(Workload):
    """One map server, and sessions whose users must see the map."""

    name: ClassVar[str] = "sessions"
    registry = MAP_PROTOCOL
    sizes: ClassVar = {
        "clients": (1, 7),
        "operations": (4, 160),
        "present": (1, 6),
        "page": (1, 12),
        "outbox": (24, 200),
        "buffer": (4, 100),
        "new_settings": (0, 1),
    }
    acts: ClassVar[tuple[str, ...]] = ("move", "move", "move", "cancel", "watch", "unwatch", "cut")

    def __init__(
        self, session: type[ClientSession] = ClientSession, *, only_server_fails: bool = False
    ) -> None:
        """The machine under test; a test may pass one that is broken on purpose.

        `only_server_fails`: check also that nobody seems to have left who is still there.
        """
        self._session = session
        self._only_server_fails = only_server_fails
        self._hosts: dict[str, Host] = {}
        self._sizes: Sizes = {}
        self._settings = MapSettings()
        self._policy: Policy = Public()
        self._links: dict[str, SessionLink] = {}
        self._wanted: dict[tuple[str, int], dict[str, Filter]] = {}
        self._views: dict[tuple[str, int, str], dict[str, Context]] = {}
        self._published: dict[tuple[str, int], dict[str, Context]] = {}
        """What the user of each life of a client publishes."""
        self._untaken: dict[tuple[str, int], dict[str, None]] = {}
        """What users gave and were not yet told to be taken."""
        self._counts = dict.fromkeys(("shown", "hidden", "taken", "links"), 0)

    def setup(self, world: World, sizes: Sizes) -> None:
        """One server, and clients that publish and watch."""
        self._sizes = sizes
        self._settings = quick_settings(
            receivers=sizes["clients"],
            buffer=sizes["buffer"],
            sync_us_max=750_000,
            subscribers_min=2,
            page_contexts_max=sizes["page"],
            outbox_items_max=sizes["outbox"],
            client_timeout_us=2_500_000,
            server_here_us=500_000,
            linger_us=2_500_000,
        )
        world.observe(self._observe)
        world.add_host(
            SERVER,
            lambda boot: MapServer(
                SERVER,
                epoch=world.now + 1,
                now=boot.now,
                settings=self._settings_of(boot.number),
                policy=self._policy,
                make_matcher=ScanMatcher,
            ),
        )
        for number in range(sizes["clients"]):
            name = f"client-{number}"
            self._links[name] = SessionLink()
            self._hosts[name] = world.add_host(name, self._make)

    def _make(self, boot: Boot) -> ClientSession:
        return self._session(draw=boot.generator.random)

    def _settings_of(self, boots: int) -> MapSettings:
        """A service may come back with other settings."""
        late = self._sizes["new_settings"] and boots % 2 == 0
        return replace(self._settings, repeat_us=150_000) if late else self._settings

    def start(self, world: World, duration_us: int) -> None:
        """Let users act at random moments, and links follow their ends."""
        draw = world.kernel.generator("workload/sessions")
        self._look(world, draw)
        clients, present = self._sizes["clients"], self._sizes["present"]
        for number in range(clients):
            for item in range(present):
                act = self._operation(world, draw, "move", number, item)
                world.kernel.call(draw.randrange(duration_us // 4), act)
        for _ in range(self._sizes["operations"]):
            kind, number = draw.choice(self.acts), draw.randrange(clients)
            act = self._operation(world, draw, kind, number, draw.randrange(max(3, present)))
            world.kernel.call(draw.randrange(duration_us), act)

    def _look(self, world: World, draw: random.Random) -> None:
        """Break links whose ends are gone, and open those whose time has come."""
        server = world.hosts[SERVER]
        for name, link in self._links.items():
            host = world.hosts[name]
            if link.client_boots != host.boots:
                # A session that has just been made knows of no link.
                link.client_boots, link.up, link.dial_at = host.boots, False, world.now
            if link.up and (link.server_boots != server.boots or server.state is HostState.DOWN):
                self._cut(world, host, draw)
            ends_live = host.state is HostState.UP and server.state is HostState.UP
            if not link.up and ends_live and world.now >= link.dial_at:
                link.up, link.server_boots = True, server.boots
                self._counts["links"] += 1
                world.give(host, LinkUp(self._welcome(name, server)))
            elif not link.up and not ends_live:
                away_us = world.now - link.down_at
                link.dial_at = world.now + int(away_us * OUTAGE_PART * draw.random())
        world.kernel.call(world.now + LOOK_US, lambda _: self._look(world, draw))

    def _welcome(self, name: str, server: Host) -> LinkWelcome:
        assert isinstance(server.machine, MapServer)
        settings = settings_bytes(self._settings_of(server.boots))
        return LinkWelcome(name, SERVER, server.machine.epoch, settings)

    def _cut(self, world: World, host: Host, draw: random.Random) -> None:
        link = self._links[host.name]
        link.up, link.down_at = False, world.now
        link.dial_at = world.now + draw.randrange(LOOK_US, 10 * LOOK_US)
        if host.state is not HostState.DOWN:
            world.give(host, LinkDown())

    def _operation(
        self, world: World, draw: random.Random, kind: str, number: int, item: int
    ) -> Callable[[int], None]:
        vid, place = f"client-{number}/{item}", draw.choice(ROOMS)
        attributes = self._attributes(draw)
        subscription, text = f"s{draw.randrange(SUBSCRIPTIONS)}", draw.choice(FILTERS)

        def act(now: int) -> None:
            host = world.hosts[f"client-{number}"]
            session = host.machine
            if host.state is not HostState.UP or not isinstance(session, ClientSession):
                return
            if session.client is None:
                return  # a user gets a session with its first link
            key = (host.name, host.boots)
            if kind == "move":
                context = Context(vid, place, None, attributes, now)
                self._published.setdefault(key, {})[vid] = context
                self._untaken.setdefault(key, {})[vid] = None
                world.kernel.give(now, host, PublishContext(context), FAULT)
            elif kind == "cancel":
                if self._published.get(key, {}).pop(vid, None) is not None:
                    self._untaken[key][vid] = None
                world.kernel.give(now, host, UnpublishContext(vid), FAULT)
            elif kind == "cut" and self._links[host.name].up:
                self._cut(world, host, draw)
            elif kind == "watch":
                self._wanted.setdefault(key, {})[subscription] = Filter.parse(text)
                self._views[*key, subscription] = {}
                world.kernel.give(now, host, SubscribeFilter(subscription, text), FAULT)
            elif kind == "unwatch":
                self._wanted.setdefault(key, {}).pop(subscription, None)
                self._views.pop((*key, subscription), None)
                world.kernel.give(now, host, UnsubscribeFilter(subscription), FAULT)

        return act

    def _attributes(self, draw: random.Random) -> dict[str, Attribute]:
        return {"type": draw.choice(("person", "printer"))}

    def _observe(self, host: Host, effect: Effect, now: int) -> None:
        match effect:
            case Shown(name, context):
                self._counts["shown"] += 1
                wanted = self._wanted[host.name, host.boots].get(name)
                if wanted is None or not wanted.matches(context):
                    raise Violation("only what matches", f"{host.name} {name}: {context}")
                self._views[host.name, host.boots, name][context.vid] = context
            case Hidden(name, vid):
                self._counts["hidden"] += 1
                view = self._views.get((host.name, host.boots, name), {})
                if view.pop(vid, None) is None:
                    detail = f"{host.name} {name}: {vid} left and was not there"
                    raise Violation("nothing leaves twice", detail)
                if self._only_server_fails:
                    self._check_left(host, name, vid, now)
            case Taken(vids):
                self._counts["taken"] += len(vids)
                for vid in vids:
                    self._untaken[host.name, host.boots].pop(vid)
            case PublicationRefused() | SubscriptionRefused():
                raise Violation("nothing sound is refused", f"{host.name}: {effect}")

    def _check_left(self, host: Host, name: str, vid: str, now: int) -> None:
        """A context that still matches, and has for a while, has not left."""
        publisher = self._hosts[vid.partition("/")[0]]
        wanted = self._wanted[host.name, host.boots].get(name)
        there = self._published.get((publisher.name, publisher.boots), {}).get(vid)
        if there is None or wanted is None or there.t_r > now - RECENT_US:
            return
        if wanted.matches(there):
            raise Violation("nobody seems to have left", f"{host.name} {name}: {vid}")

    def settled(self, world: World) -> bool:
        """Every view is right, and everything is taken."""
        return not any(self._wrong(world, host, one) for host, one in _sessions(world))

    def _wrong(self, world: World, host: Host, session: ClientSession) -> str:
        """Say how what a user sees differs from the map, "" if it does not."""
        if session.client is None or not session.client.idle:
            return "it is not in session, or not everything is taken"
        if self._untaken.get((host.name, host.boots)):
            return "its user was not told that everything is taken"
        truth = [
            context
            for each in self._hosts.values()
            for context in self._published.get((each.name, each.boots), {}).values()
        ]
        seen_as = self._policy.view_class(host.name)
        now = world.hosts[SERVER].local(world.now)
        for name, wanted in self._wanted.get((host.name, host.boots), {}).items():
            right = {
                one.vid: one
                for one in truth
                if wanted.matches(one) and self._policy.visible(one, seen_as, now)
            }
            seen = self._views[host.name, host.boots, name]
            if seen != right:
                lacks, stale = (
                    sorted(right.keys() - seen.keys()),
                    sorted(seen.keys() - right.keys()),
                )
                return f"{name} ({wanted.source}) lacks {lacks}, has stale {stale}"
        return ""

    def check(self, world: World) -> None:
        """Views equal the map."""
        for host, session in _sessions(world):
            check_bounds(host.name, session)
            wrong = self._wrong(world, host, session)
            if wrong:
                raise Violation("views equal the map", f"{host.name}: {wrong}")

    def metrics(self, world: World) -> dict[str, float]:
        """Count what users saw."""
        del world
        return {name: float(count) for name, count in self._counts.items()}


def _sessions(world: World) -> list[tuple[Host, ClientSession]]:
    found = ((host, host.machine) for host in world.hosts.values())
    return [(host, machine) for host, machine in found if isinstance(machine, ClientSession)]


WORKLOAD = SessionsWorkload
