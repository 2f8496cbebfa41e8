"""A small world with several hosts that may serve and their clients, for tests of recovery."""

from typing import Any

from roamcast.channels.client.map_client import MapClient, SubscribeFilter
from roamcast.channels.client.publications import PublishContext, UnpublishContext
from roamcast.channels.failover.messages import FAILOVER_PROTOCOL
from roamcast.channels.failover.post import Post
from roamcast.channels.failover.watchdog import WatchdogSettings
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.settings import MapSettings
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect
from roamcast.sim.network import NetworkCut
from roamcast.sim.workloads._map_parts import ScanMatcher
from roamcast.sim.world import World

SECOND = 1_000_000
SETTINGS = MapSettings(restart_spread_us=300_000, server_timeout_us=2 * SECOND)


class RecoveryWorld:
    """Seats s0, s1, …; clients by name; everything users are told."""

    def __init__(
        self,
        seats: int = 3,
        settings: MapSettings = SETTINGS,
        watchdog: WatchdogSettings | None = None,
    ) -> None:
        self.settings = settings
        self.watchdog = watchdog or WatchdogSettings()
        self.seats = tuple(f"s{number}" for number in range(seats))
        self.world = World(1, FAILOVER_PROTOCOL)
        self.told: list[tuple[str, Effect]] = []
        self.world.observe(lambda host, effect, _: self.told.append((host.name, effect)))
        for name in self.seats:
            self._post(name)

    def _post(self, name: str) -> None:
        def make(epoch: int, now: int) -> MapServer:
            return MapServer(
                name,
                epoch=epoch,
                now=now,
                settings=self.settings,
                make_matcher=ScanMatcher,
                replicas=self.seats,
            )

        self.world.add_host(
            name,
            lambda boot: Post(
                name, seats=self.seats, now=boot.now, settings=self.watchdog, make_server=make
            ),
        )

    def client(self, name: str) -> None:
        self.world.add_host(
            name,
            lambda boot: MapClient(
                name,
                server=self.seats[0],
                now=boot.now,
                settings=self.settings,
                draw=boot.generator.random,
            ),
        )

    def run(self, seconds: float) -> None:
        self.world.kernel.run(self.world.now + int(seconds * SECOND))

    def crash(self, name: str) -> None:
        self.world.crash(self.world.hosts[name])

    def restart(self, name: str) -> None:
        self.world.restart(self.world.hosts[name])

    def cut(self, *names: str, inwards: bool = True, outwards: bool = True) -> NetworkCut:
        cut = NetworkCut(frozenset(names), inwards=inwards, outwards=outwards)
        self.world.network.cut(cut)
        return cut

    def put(self, name: str, vid: str, place: str) -> None:
        context = Context(vid, place, None, {}, self.world.now)
        self.world.give(self.world.hosts[name], PublishContext(context))

    def cancel(self, name: str, vid: str) -> None:
        self.world.give(self.world.hosts[name], UnpublishContext(vid))

    def watch(self, name: str, text: str = "within(place, 'l')") -> None:
        self.world.give(self.world.hosts[name], SubscribeFilter("s", text))

    def sees(self, name: str) -> dict[str, str | None]:
        shown = self.machine(name).watching.copy.shown("s")
        return {vid: context.place for vid, context in sorted(shown.items())}

    def machine(self, name: str) -> MapClient:
        machine = self.world.hosts[name].machine
        assert isinstance(machine, MapClient)
        return machine

    def post(self, name: str) -> Post:
        machine = self.world.hosts[name].machine
        assert isinstance(machine, Post)
        return machine

    @property
    def servers(self) -> dict[str, int]:
        """Who serves, in which epoch."""
        posts = [host.machine for host in self.world.hosts.values()]
        return {
            post.name: post.server.epoch
            for post in posts
            if isinstance(post, Post) and post.server is not None
        }

    def told_to(self, name: str, kind: type[Effect]) -> list[Any]:
        return [effect for who, effect in self.told if who == name and isinstance(effect, kind)]
