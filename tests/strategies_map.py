"""A small world with a map server and clients, for tests of the map service."""

from collections.abc import Callable
from typing import Any

from roamcast.channels.client.map_client import MapClient, SubscribeFilter, UnsubscribeFilter
from roamcast.channels.client.publications import PublishContext, UnpublishContext
from roamcast.channels.relay.relay import MapRelay
from roamcast.channels.server.desk import Policy
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.messages import MAP_PROTOCOL
from roamcast.channels.server.settings import MapSettings
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect
from roamcast.model.records import Record, Transmission
from roamcast.sim.network import LinkQuality
from roamcast.sim.workloads._map_parts import Overheard, ScanMatcher
from roamcast.sim.world import World

SECOND = 1_000_000
SERVER = "server"


class MapWorld:
    """One server, clients by name, everything users are told, and what the server sends."""

    def __init__(
        self,
        settings: MapSettings | None = None,
        *,
        quality: LinkQuality | None = None,
        policy: Policy | None = None,
        server: type[MapServer] = MapServer,
        seed: int = 1,
    ) -> None:
        self.settings = settings or MapSettings()
        self.world = World(seed, MAP_PROTOCOL, quality=quality)
        self.told: list[tuple[str, Effect]] = []
        self.records: list[tuple[int, str, Record]] = []
        self.world.journal = Overheard(self.world.journal, self._hear)
        self.world.observe(lambda host, effect, _: self.told.append((host.name, effect)))
        self.world.add_host(
            SERVER,
            lambda boot: server(
                SERVER,
                epoch=boot.now + 1,
                now=boot.now,
                settings=self.settings,
                policy=policy,
                make_matcher=ScanMatcher,
            ),
            site=self.settings.local_scope,
        )

    def _hear(self, now: int, host: str, record: Record) -> None:
        self.records.append((now, host, record))

    def client(
        self, name: str, *, site: str | None = None, server: str = SERVER, **given: Any
    ) -> None:
        """A client at a site, in the scope of local groups unless told otherwise."""
        here = self.settings.local_scope if site is None else site
        self.world.add_host(
            name,
            lambda boot: MapClient(
                name,
                server=server,
                now=boot.now,
                settings=self.settings,
                draw=boot.generator.random,
                site=here,
                **given,
            ),
            site=here,
        )

    def relay(
        self,
        name: str,
        *,
        site: str | None = None,
        policy: Policy | None = None,
        apart: bool = False,
    ) -> None:
        """A relay at a site; give its clients its name as their server."""
        here = self.settings.local_scope if site is None else site
        self.world.add_host(
            name,
            lambda boot: MapRelay(
                name,
                server=SERVER,
                epoch=boot.now + 1,
                now=boot.now,
                settings=self.settings,
                draw=boot.generator.random,
                site=here,
                policy=policy,
                apart=apart,
                make_matcher=ScanMatcher,
            ),
            site=here,
        )

    def weak(self, name: str, relay: str, **given: Any) -> None:
        """A client on a unicast link, behind a relay."""
        self.world.network.unicast_only[name] = None
        self.client(name, server=relay, **given)

    def relay_machine(self, name: str) -> MapRelay:
        machine = self.world.hosts[name].machine
        assert isinstance(machine, MapRelay)
        return machine

    def run(self, seconds: float = 1.0) -> None:
        self.world.kernel.run(self.world.now + int(seconds * SECOND))

    def put(self, name: str, vid: str, place: str, **attributes: Any) -> None:
        context = Context(vid, place, None, attributes, self.world.now)
        self.world.give(self.world.hosts[name], PublishContext(context))

    def cancel(self, name: str, vid: str) -> None:
        self.world.give(self.world.hosts[name], UnpublishContext(vid))

    def watch(self, name: str, text: str, subscription: str = "s") -> None:
        self.world.give(self.world.hosts[name], SubscribeFilter(subscription, text))

    def unwatch(self, name: str, subscription: str = "s") -> None:
        self.world.give(self.world.hosts[name], UnsubscribeFilter(subscription))

    def sees(self, name: str, subscription: str = "s") -> dict[str, str | None]:
        machine = self.machine(name)
        shown = machine.watching.copy.shown(subscription)
        return {vid: context.place for vid, context in sorted(shown.items())}

    def machine(self, name: str) -> MapClient:
        machine = self.world.hosts[name].machine
        assert isinstance(machine, MapClient)
        return machine

    @property
    def server(self) -> MapServer:
        machine = self.world.hosts[SERVER].machine
        assert isinstance(machine, MapServer)
        return machine

    def told_to(self, name: str, kind: type[Effect]) -> list[Any]:
        return [effect for who, effect in self.told if who == name and isinstance(effect, kind)]

    def sent(
        self, wanted: Callable[[Transmission], bool] = lambda _: True, by: str = SERVER
    ) -> list[Transmission]:
        """What the server, or another host, transmitted since the last `forget`."""
        return [
            record
            for _, host, record in self.records
            if host == by and isinstance(record, Transmission) and wanted(record)
        ]

    def forget(self) -> None:
        self.told.clear()
        self.records.clear()


def updates(record: Transmission) -> bool:
    """A transmission that carries news, and no synchronisation, heal, answer or heartbeat."""
    return record.message in {"map.batch", "channel.data"}
