"""Is there one map again, after servers fell and sides parted? (AMS 14 and 15.)

Several hosts may serve. Servers crash, alone or with their host; sides part and meet again, each
with its own server meanwhile; clients publish on, some of them the same objects. Once everything is
healed there is one server, and each view equals the newest version of every object that users ever
gave, filtered by the query and by what the client may see.
"""

import random
from collections.abc import Callable, Hashable, Sequence
from itertools import product
from typing import ClassVar, Final

from roamcast.channels.client.map_client import MapClient, SubscribeFilter, UnsubscribeFilter
from roamcast.channels.client.publications import PublishContext, UnpublishContext
from roamcast.channels.failover.messages import FAILOVER_PROTOCOL
from roamcast.channels.failover.post import Post
from roamcast.channels.failover.watchdog import WatchdogSettings
from roamcast.channels.server.desk import Policy
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.settings import MapSettings, Mode
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect
from roamcast.model.records import ChannelStep, Record, Transmission
from roamcast.sim.checkers import BandwidthLimit, Violation, check_bounds
from roamcast.sim.host import Boot, Host, HostState
from roamcast.sim.network import NetworkCut
from roamcast.sim.workload import Sizes, Workload
from roamcast.sim.workloads._map_parts import (
    HOUR_US_MAX,
    Coarse,
    Overheard,
    ScanMatcher,
    held_by_server,
    quick_settings,
)
from roamcast.sim.workloads._recovery_parts import RecoveryTruth
from roamcast.sim.workloads._users import Users
from roamcast.sim.workloads.map import ACTS, FILTERS, KINDS, ROOMS
from roamcast.sim.world import World

WATCH_US: Final = 200_000
LEAVING_US: Final = 6_000_000
WATCHDOG: Final = WatchdogSettings(
    probe_us=150_000,
    silent_us=600_000,
    stagger_us=250_000,
    rest_us=50_000,
    rest_us_max=1_000_000,
    leave_us=2_000_000,
)


class RecoveryWorkload(Workload):
    """Hosts that may serve, clients of whoever does, and the promise that there is one map."""

    name: ClassVar[str] = "recovery"
    registry = FAILOVER_PROTOCOL
    sizes: ClassVar = {
        "seats": (1, 4),
        "clients": (1, 7),
        "limited": (0, 2),
        "operations": (4, 120),
        "present": (1, 8),
        "shared": (0, 4),
        "splits": (0, 3),
        "falls": (0, 3),
        "subscribers_min": (1, 3),
        "page": (1, 8),
        "outbox": (24, 200),
        "batch": (200, 1_000),
        "mode": (0, 2),
        "hour_ms": (1_000, HOUR_US_MAX // 1_000),
    }

    def __init__(self) -> None:
        self._users = Users()
        self._truth = RecoveryTruth(self._users)
        self._limits: dict[Hashable, int] = {}
        self._bandwidth: dict[str, BandwidthLimit] = {}
        self._policy: Policy = Coarse()
        self._settings = MapSettings()
        self._sizes: Sizes = {}
        self._seats: tuple[str, ...] = ()
        self._counts = dict.fromkeys(("shown", "transmissions", "starts", "merges", "paged"), 0)

    def setup(self, world: World, sizes: Sizes) -> None:
        """Posts by seat, then clients, who first try the first seat."""
        self._sizes = sizes
        # A limit of some bytes a second does not carry a view anew every second.
        self._policy = Coarse(HOUR_US_MAX if sizes["limited"] else sizes["hour_ms"] * 1_000)
        self._settings = _settings(sizes)
        self._seats = tuple(f"seat-{number}" for number in range(sizes["seats"]))
        world.observe(self._observe)
        world.journal = Overheard(world.journal, self._hear(world))
        for number in range(min(sizes["limited"], sizes["clients"])):
            self._limits[f"client-{number}"] = (1_500, 4_000)[number]
        for name in self._seats:
            self._bandwidth[name] = BandwidthLimit(self._limits)
            world.add_host(name, self._post)
        for number in range(sizes["clients"]):
            world.add_host(f"client-{number}", self._client)

    def _post(self, boot: Boot) -> Post:
        def server(epoch: int, now: int) -> MapServer:
            return MapServer(
                boot.host,
                epoch=epoch,
                now=now,
                settings=self._settings,
                policy=self._policy,
                make_matcher=ScanMatcher,
                replicas=self._seats,
            )

        return Post(
            boot.host, seats=self._seats, now=boot.now, settings=WATCHDOG, make_server=server
        )

    def _client(self, boot: Boot) -> MapClient:
        return MapClient(
            boot.host,
            server=self._seats[0],
            now=boot.now,
            settings=self._settings,
            draw=boot.generator.random,
            limit_bytes=self._limits.get(boot.host, 0),
        )

    def start(self, world: World, duration_us: int) -> None:
        """Let users act, servers fall and sides part at random moments."""
        draw = world.kernel.generator("workload/recovery")
        clients, present = self._sizes["clients"], self._sizes["present"]
        for number, one in product(range(clients), range(present)):
            act = self._operation(world, draw, "move", number, f"client-{number}/{one}")
            world.kernel.call(draw.randrange(duration_us // 4), act)
        for _ in range(self._sizes["operations"]):
            kind, number = draw.choice(ACTS), draw.randrange(clients)
            vid = f"client-{number}/{draw.randrange(max(2, present))}"
            if self._sizes["shared"] and draw.random() < 0.5:
                vid = f"shared/{draw.randrange(self._sizes['shared'])}"
            act = self._operation(world, draw, kind, number, vid)
            world.kernel.call(draw.randrange(duration_us), act)
        for _ in range(self._sizes["splits"]):
            self._split(world, draw, duration_us)
        for _ in range(self._sizes["falls"]):
            world.kernel.call(draw.randrange(duration_us), lambda now: _fall(world, now))
        for at in range(WATCH_US, duration_us, WATCH_US):
            world.kernel.call(at, lambda _: self._watch(world))

    def _split(self, world: World, draw: random.Random, duration_us: int) -> None:
        """Part the hosts in two, most often for so long that both sides have a server."""
        begins = draw.randrange(1 + duration_us // 2)
        ends = min(duration_us, begins + draw.randrange(500_000, 4_000_000))
        cut = NetworkCut(frozenset(name for name in world.hosts if draw.random() < 0.5))
        world.kernel.call(begins, lambda _: world.network.cut(cut))
        world.kernel.call(ends, lambda _: world.network.mend(cut))

    def _operation(
        self, world: World, draw: random.Random, kind: str, number: int, vid: str
    ) -> Callable[[int], None]:
        place, private = draw.choice(ROOMS), draw.random() < 0.2
        attributes = {"type": draw.choice(KINDS), "floor_wide": draw.randrange(3)}
        subscription, text = f"s{draw.randrange(3)}", draw.choice(FILTERS)

        def act(now: int) -> None:
            host = world.hosts[f"client-{number}"]
            if host.state is not HostState.UP:
                return
            if kind == "move":
                context = Context(vid, place, None, {**attributes, "private": private}, now)
                self._truth.note(host, vid, context, host.local(now))
                self._users.give(world, host, PublishContext(context))
            elif kind == "cancel":
                self._cancel(world, host, vid)
            elif kind == "watch":
                self._users.give(world, host, SubscribeFilter(subscription, text))
            else:
                self._users.give(world, host, UnsubscribeFilter(subscription))

        return act

    def _cancel(self, world: World, host: Host, vid: str) -> None:
        if vid in self._users.life(host).published:
            self._truth.note(host, vid, None, host.local(world.now))
            self._users.give(world, host, UnpublishContext(vid))

    def settled(self, world: World) -> bool:
        """One server that everybody knows, everything said, and every view as it should be."""
        servers = _servers(world)
        if len(servers) != 1:
            return False
        epoch = servers[0].epoch
        if any(post.watchdog.epoch != epoch for post in _posts(world)):
            return False
        clients = _clients(world)
        if not all(client.idle and client.epoch == epoch for _, client in clients):
            return False
        truth, problem = self._truth.contexts(world, [host for host, _ in clients])
        if problem:
            return False
        return all(self._wrong(world, truth, host) == "" for host, _ in clients)

    def _wrong(self, world: World, truth: dict[str, Context], host: Host) -> str:
        """Say how a user's views differ from the truth, "" if they do not."""
        seen_as = self._policy.view_class(host.name)
        (server,) = [one for one in world.hosts.values() if _serves(one)]
        now = server.local(world.now)
        visible = [self._policy.visible(context, seen_as, now) for context in truth.values()]
        return self._users.wrong(host, visible, limited=host.name in self._limits)

    def check(self, world: World) -> None:
        """One server, one map, right views; then everybody leaves, and nothing is left."""
        self._watch(world)
        epochs = [server.epoch for server in _servers(world)]
        if len(epochs) != 1:
            raise Violation("one server", f"the epochs {epochs} are served")
        truth, problem = self._truth.contexts(world, [host for host, _ in _clients(world)])
        for host, client in _clients(world):
            if not client.idle or client.epoch != epochs[0]:
                detail = f"{host.name} is {client.state} in epoch {client.epoch}, not {epochs[0]}"
                raise Violation("liveness", detail)
            wrong = self._wrong(world, truth, host)
            if wrong:
                raise Violation("views equal the map", f"{host.name}: {wrong}")
        if problem:
            raise Violation("one publisher", problem)
        for host, _ in _clients(world):
            life = self._users.life(host)
            for name in list(life.views):
                self._users.give(world, host, UnsubscribeFilter(name))
            for vid in list(life.published):
                self._cancel(world, host, vid)
        world.kernel.run(world.now + LEAVING_US)
        self._check_empty(world, epochs[0])

    def _check_empty(self, world: World, epoch: int) -> None:
        servers = _servers(world)
        if [server.epoch for server in servers] != [epoch]:
            raise Violation("one server", "another one has started, and nothing was wrong")
        held = held_by_server(servers[0])
        left = {name: count for name, count in held.items() if count > 0}
        if left:
            raise Violation("empty when clients leave", str(left))

    def metrics(self, world: World) -> dict[str, float]:
        """Count what was shown, sent, started and merged."""
        del world
        return {name: float(count) for name, count in self._counts.items()}

    def _observe(self, host: Host, effect: Effect, now: int) -> None:
        del now
        if isinstance(host.machine, MapClient):
            self._counts["shown"] += hasattr(effect, "subscription")
            self._users.tell(host, effect)

    def _hear(self, world: World) -> Callable[[int, str, Record], None]:
        def hear(now: int, host: str, record: Record) -> None:
            if isinstance(record, ChannelStep):
                self._counts["starts"] += record.step == "server started"
                self._counts["paged"] += record.step == "listed in pages"
                self._counts["merges"] += record.step == "stepped down" and record.number > 0
            if not isinstance(record, Transmission) or host not in self._bandwidth:
                return
            self._counts["transmissions"] += 1
            receivers: Sequence[str] = [record.peer]
            if not record.peer:
                receivers = world.network.members(record.channel)
            for name in receivers:  # each server keeps a limit; two cannot know of each other
                self._bandwidth[host].deliver(name, record.bytes, world.hosts[host].steady(now))

        return hear

    def _watch(self, world: World) -> None:
        for post in _posts(world):
            check_bounds(post.name, post)


def _settings(sizes: Sizes) -> MapSettings:
    return quick_settings(
        receivers=sizes["clients"],
        buffer=32,
        sync_us_max=1_000_000,
        mode=(Mode.MANY, Mode.UNICAST, Mode.MANY)[sizes["mode"]],
        subscribers_min=sizes["subscribers_min"],
        history_max=8,
        channels_max=(12, 12, 1)[sizes["mode"]],
        page_contexts_max=sizes["page"],
        page_bytes_max=300,
        carousel_bytes_per_s=20_000,
        outbox_items_max=sizes["outbox"],
        batch_bytes_max=sizes["batch"],
        client_timeout_us=1_500_000,
        server_here_us=300_000,
        server_timeout_us=1_000_000,
        handover_us=1_000_000,
        linger_us=1_500_000,
        removed_max=64,
        well_known_reserve_bytes=192,
        limit_bytes_min=900,
    )


def _fall(world: World, now: int) -> None:
    """The server of some host crashes, and its watchdog does not."""
    for host in world.hosts.values():
        post = host.machine
        if host.state is HostState.UP and isinstance(post, Post) and post.server is not None:
            world.kernel.perform(host, post.fall(host.local(now)))
            world.kernel.arm(host)
            return


def _posts(world: World) -> list[Post]:
    return [host.machine for host in world.hosts.values() if isinstance(host.machine, Post)]


def _serves(host: Host) -> bool:
    return isinstance(host.machine, Post) and isinstance(host.machine.server, MapServer)


def _servers(world: World) -> list[MapServer]:
    servers = [post.server for post in _posts(world)]
    return [server for server in servers if isinstance(server, MapServer)]


def _clients(world: World) -> list[tuple[Host, MapClient]]:
    found = ((host, host.machine) for host in world.hosts.values())
    return [(host, machine) for host, machine in found if isinstance(machine, MapClient)]


WORKLOAD = RecoveryWorkload
