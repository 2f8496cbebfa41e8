"""Does every client see the map as it is, through every fault? (AMS 1 to 14, 16, 17.)

One map server and clients that publish, move, ask and withdraw; some have a bandwidth limit, some
are remote, some may see less, some are behind a relay. Once everything is healed each view must
equal what all clients publish, filtered by the query and by what the client may see; then everybody
leaves, and the server and the relays must be empty again.
"""

import random
from collections.abc import Callable, Hashable, Sequence
from itertools import product
from typing import ClassVar, Final

from roamcast.channels.client.copy import Appeared, Changed
from roamcast.channels.client.map_client import MapClient, SubscribeFilter, UnsubscribeFilter
from roamcast.channels.client.publications import PublishContext, UnpublishContext
from roamcast.channels.relay.relay import MapRelay
from roamcast.channels.server.desk import Policy
from roamcast.channels.server.map_server import MapServer, compiled_matcher
from roamcast.channels.server.messages import MAP_PROTOCOL, WELL_KNOWN
from roamcast.channels.server.queries import Matcher
from roamcast.channels.server.settings import MapSettings, Mode
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect
from roamcast.model.records import ChannelStep, Delivery, Record, Transmission
from roamcast.sim.checkers import BandwidthLimit, Violation, check_bounds
from roamcast.sim.host import Boot, Host, HostState
from roamcast.sim.workload import Sizes, Workload
from roamcast.sim.workloads._map_parts import (
    HOUR_US_MAX,
    Coarse,
    Overheard,
    ScanMatcher,
    held_by_relay,
    held_by_server,
    quick_settings,
)
from roamcast.sim.workloads._users import Users
from roamcast.sim.world import World

SERVER: Final = "server"
SITE: Final = "lab"
RELAYS: Final = (("relay-0", SITE), ("relay-2", "elsewhere"))
"""Relays and where they are; the second is a guest, and serves guests."""
WATCH_US: Final = 200_000
LEAVING_US: Final = 15_000_000
ROOMS: Final = tuple(f"lab/{floor}/{room}" for floor in (1, 2) for room in "abc")
KINDS: Final = ("person", "printer")
ACTS: Final = ("move", "move", "move", "move", "cancel", "watch", "watch", "unwatch")
FILTERS: Final = (
    *(f"place = '{room}'" for room in ROOMS),
    "within(place, 'lab/1')",
    "within(place, 'lab')",
    "type = 'person' AND within(place, 'lab')",
    "type = 'printer'",
    "place = 'lab/1/a' OR place = 'lab/2/b'",
    "type = 'person' AND (place = 'lab/1/a' OR within(place, 'lab/2'))",
    "place IN ('lab/1/a', 'lab/1/b', 'lab/1/c')",
    "vid = 'client-0/0'",
    "floor_wide = 2",
)


class MapWorkload(Workload):
    """A map server, its clients, and the promise that views equal the map."""

    name: ClassVar[str] = "map"
    registry = MAP_PROTOCOL
    sizes: ClassVar = {
        "clients": (1, 9),
        "limited": (0, 3),
        "remote": (0, 9),
        "operations": (4, 160),
        "present": (1, 16),
        "subscribers_min": (1, 4),
        "history": (1, 24),
        "channels": (1, 40),
        "page": (1, 12),
        "outbox": (24, 200),
        "batch": (200, 1_000),
        "buffer": (4, 100),
        "mode": (0, 3),
        "compiled": (0, 1),
        "wide_groups": (1, 4),
        "wide_subscribers_min": (1, 3),
        "relays": (0, 2),
        "behind": (0, 5),
        "filters": (2, len(FILTERS)),
        "hour_ms": (1_000, HOUR_US_MAX // 1_000),
    }

    def __init__(
        self, server: type[MapServer] = MapServer, client: type[MapClient] = MapClient
    ) -> None:
        """The machines under test; a test may pass ones that are broken on purpose."""
        self._server = server
        self._client = client
        self._users = Users()
        self._limits: dict[Hashable, int] = {}
        self._bandwidth = BandwidthLimit({})
        self._policy: Policy = Coarse()
        self._settings = MapSettings()
        self._sizes: Sizes = {}
        self._filters: Sequence[str] = FILTERS
        self._counts = dict.fromkeys(("shown", "transmissions", "bytes", "paged"), 0)
        self._asked_us: dict[tuple[str, str], int] = {}
        self._note: Callable[[Host, Effect], None] = lambda _host, _record: None

    def setup(self, world: World, sizes: Sizes) -> None:
        """One server; clients with names that say what they are."""
        self._sizes = sizes
        # A limit of some bytes a second does not carry a view anew every second.
        self._policy = Coarse(HOUR_US_MAX if sizes["limited"] else sizes["hour_ms"] * 1_000)
        mode = (Mode.MANY, Mode.MANY, Mode.UNICAST, Mode.SINGLE)[sizes["mode"]]
        self._settings = quick_settings(
            receivers=sizes["clients"],
            buffer=sizes["buffer"],
            sync_us_max=750_000,
            mode=mode,
            query_channels=sizes["mode"] != 1 or sizes["history"] % 2 == 0,
            subscribers_min=sizes["subscribers_min"],
            history_max=sizes["history"],
            channels_max=max(2, sizes["channels"]),
            page_contexts_max=sizes["page"],
            page_bytes_max=300,
            carousel_bytes_per_s=20_000,
            local_scope=SITE,
            wide_groups_max=sizes["wide_groups"],
            wide_subscribers_min=sizes["wide_subscribers_min"],
            outbox_items_max=sizes["outbox"],
            batch_bytes_max=sizes["batch"],
            client_timeout_us=2_500_000,
            server_here_us=500_000,
            linger_us=2_500_000,
            well_known_reserve_bytes=192,
            limit_bytes_min=900,
        )
        make_matcher: Callable[[], Matcher] = compiled_matcher if sizes["compiled"] else ScanMatcher
        self._note = world.note
        world.observe(self._observe)
        world.journal = Overheard(world.journal, self._hear(world))
        world.add_host(
            SERVER,
            lambda boot: self._server(
                SERVER,
                epoch=world.now + 1,  # it grows with every start, whatever the clock shows
                now=boot.now,
                settings=self._settings,
                policy=self._policy,
                make_matcher=make_matcher,
            ),
            site=SITE,
        )
        for name, site in RELAYS[: sizes["relays"]]:
            self._add_relay(world, name, site, make_matcher)
        for number in range(sizes["clients"]):
            name = f"client-{number}"
            if number < sizes["limited"]:
                self._limits[name] = (1_500, 4_000, 4_000)[number]
            first = max(0, sizes["limited"] - 1)  # one of them has a limit
            remote = first <= number < first + sizes["remote"]
            site = "elsewhere" if remote else f"{SITE}/{number % 2}"
            server = SERVER
            if number >= sizes["clients"] - sizes["behind"]:
                server = self._relay_for(world, name)
            self._add(world, name, server, site)
        self._bandwidth = BandwidthLimit(self._limits)

    def _relay_for(self, world: World, name: str) -> str:
        """Name the relay whose clients may see the same, or the server if there is none."""
        seen_as = self._policy.view_class(name)
        for relay, _ in RELAYS:
            if relay in world.hosts and self._policy.view_class(relay) == seen_as:
                world.network.unicast_only[name] = None
                return relay
        return SERVER

    def _add_relay(
        self, world: World, name: str, site: str, make_matcher: Callable[[], Matcher]
    ) -> None:
        def make(boot: Boot) -> MapRelay:
            return MapRelay(
                boot.host,
                server=SERVER,
                epoch=world.now + 1,
                now=boot.now,
                settings=self._settings,
                draw=boot.generator.random,
                site=site,
                policy=self._policy,
                make_matcher=make_matcher,
            )

        world.add_host(name, make, site=site)

    def _add(self, world: World, name: str, server: str, site: str) -> None:
        def make(boot: Boot) -> MapClient:
            return self._client(
                boot.host,
                server=server,
                now=boot.now,
                settings=self._settings,
                draw=boot.generator.random,
                limit_bytes=self._limits.get(name, 0),
                site=site,
            )

        world.add_host(name, make, site=site)

    def start(self, world: World, duration_us: int) -> None:
        """Let users publish, move, cancel, ask and withdraw at random moments."""
        draw = world.kernel.generator("workload/map")
        self._filters = draw.sample(FILTERS, self._sizes["filters"])
        clients, present = self._sizes["clients"], self._sizes["present"]
        for number, thing in product(range(clients), range(present)):  # there are large sets early
            act = self._operation(world, draw, "move", number, thing)
            world.kernel.call(draw.randrange(duration_us // 4), act)
        for _ in range(self._sizes["operations"]):
            kind, number = draw.choice(ACTS), draw.randrange(clients)
            act = self._operation(world, draw, kind, number, draw.randrange(max(3, present)))
            world.kernel.call(draw.randrange(duration_us), act)
        for at in range(WATCH_US, duration_us, WATCH_US):
            world.kernel.call(at, lambda _: self._watch(world))

    def _operation(
        self, world: World, draw: random.Random, kind: str, number: int, thing: int
    ) -> Callable[[int], None]:
        vid = f"client-{number}/{thing}"
        place, private = draw.choice(ROOMS), draw.random() < 0.2
        attributes = {"type": draw.choice(KINDS), "floor_wide": draw.randrange(3)}
        subscription, text = f"s{draw.randrange(3)}", draw.choice(self._filters)

        def act(now: int) -> None:
            host = world.hosts[f"client-{number}"]
            if host.state is not HostState.UP:
                return
            if kind == "move":
                context = Context(vid, place, None, {**attributes, "private": private}, now)
                self._users.give(world, host, PublishContext(context))
            elif kind == "cancel":
                self._users.give(world, host, UnpublishContext(vid))
            elif kind == "watch":
                self._ask(world, host, SubscribeFilter(subscription, text))
            else:
                self._ask(world, host, UnsubscribeFilter(subscription))

        return act

    def _ask(self, world: World, host: Host, given: SubscribeFilter | UnsubscribeFilter) -> None:
        self._asked_us[host.name, given.subscription] = world.now
        self._users.give(world, host, given)

    def settled(self, world: World) -> bool:
        """Everyone has said everything, and every view is as it should be."""
        clients = _clients(world)
        if not all(client.idle for client in clients):
            return False
        return all(self._wrong(world, host) == "" for host, _ in _pairs(world))

    def _wrong(self, world: World, host: Host) -> str:
        """Say how a user's views differ from what all users publish, "" if they do not."""
        users = [host for host, _ in _pairs(world)]
        seen_as = self._policy.view_class(host.name)
        now = world.hosts[SERVER].local(world.now)  # hours are those of the server's clock
        truth = (context for _, context in self._users.published(users))
        visible = [self._policy.visible(context, seen_as, now) for context in truth]
        return self._users.wrong(host, visible, limited=host.name in self._limits)

    def check(self, world: World) -> None:
        """Views equal the map; then everybody leaves, and nothing is left of them."""
        self._watch(world)
        for host, client in _pairs(world):
            if not client.idle:
                raise Violation("liveness", f"{host.name} is {client.state} and not idle")
            wrong = self._wrong(world, host)
            if wrong:
                raise Violation("views equal the map", f"{host.name}: {wrong}")
        for host, _ in _pairs(world):
            life = self._users.life(host)
            for name in list(life.views):
                self._ask(world, host, UnsubscribeFilter(name))
            for vid in list(life.published):
                self._users.give(world, host, UnpublishContext(vid))
        world.kernel.run(world.now + LEAVING_US)
        self._check_empty(world)

    def _check_empty(self, world: World) -> None:
        server = world.hosts[SERVER].machine
        assert isinstance(server, MapServer)
        held = held_by_server(server)
        for relay in _relays(world):
            kept = held_by_relay(relay)
            held |= {f"{what} of {relay.name}": count for what, count in kept.items()}
        for name in world.hosts:
            groups = [group for group in world.network.joined(name) if group != WELL_KNOWN]
            held[f"groups that {name} listens to"] = 0 if self._single(name) else len(groups)
        left = {name: count for name, count in held.items() if count > 0}
        if left:
            raise Violation("empty when clients leave", str(left))

    def _single(self, name: str) -> bool:
        """Whether a host has groups without subscriptions: those of the one channel for all."""
        return name == SERVER or self._settings.mode is Mode.SINGLE

    def metrics(self, world: World) -> dict[str, float]:
        """Count what was shown and sent."""
        del world
        return {name: float(count) for name, count in self._counts.items()}

    def _observe(self, host: Host, effect: Effect, now: int) -> None:
        if not isinstance(host.machine, MapClient):
            return
        self._counts["shown"] += hasattr(effect, "subscription")
        self._users.tell(host, effect)
        if isinstance(effect, Appeared | Changed):
            given_us = effect.context.t_r
            # What was there before the user asked has no delay, only an age.
            if given_us > self._asked_us.get((host.name, effect.subscription), 0):
                producer = effect.context.vid.partition("/")[0]
                self._note(host, Delivery(host.name, producer, effect.number, now - given_us))

    def _hear(self, world: World) -> Callable[[int, str, Record], None]:
        def hear(now: int, host: str, record: Record) -> None:
            if isinstance(record, ChannelStep):
                self._counts["paged"] += record.step == "listed in pages"
            if host in self._limits or not isinstance(record, Transmission):
                return
            if host == SERVER:
                self._counts["transmissions"] += 1
                self._counts["bytes"] += record.bytes
            receivers: Sequence[str] = [record.peer]
            if not record.peer:
                receivers = world.network.members(record.channel)
            for name in receivers:
                # A second of the sender's clock: it can count by no other.
                self._bandwidth.deliver(name, record.bytes, world.hosts[host].steady(now))

        return hear

    def _watch(self, world: World) -> None:
        server = world.hosts[SERVER].machine
        if isinstance(server, MapServer):
            check_bounds(SERVER, server)
        for relay in _relays(world):
            check_bounds(relay.name, relay)
        for client in _clients(world):
            check_bounds(client.name, client)


def _pairs(world: World) -> list[tuple[Host, MapClient]]:
    found = ((host, host.machine) for host in world.hosts.values())
    return [(host, machine) for host, machine in found if isinstance(machine, MapClient)]


def _relays(world: World) -> list[MapRelay]:
    machines = (host.machine for host in world.hosts.values())
    return [machine for machine in machines if isinstance(machine, MapRelay)]


def _clients(world: World) -> list[MapClient]:
    return [client for _, client in _pairs(world)]


WORKLOAD = MapWorkload
