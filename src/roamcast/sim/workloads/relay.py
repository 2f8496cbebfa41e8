"""What users behind a relay see while links break, hosts fail and rights change (AMS 17).

Some clients of the `sessions` workload connect to a relay, which runs `Admission`; each has an own
link from the relay to the service (decision 0080). Rights change at random. In addition to what
`sessions` promises: whom the relay serves is shown nothing private that was published after the
service took that right away, and in the end every view is right for the rights its user has then.
"""

import random
from collections.abc import Callable
from itertools import count
from typing import ClassVar, Final

from msgspec.structs import replace

from roamcast.channels.client.link_messages import LinkWelcome, settings_bytes
from roamcast.channels.client.session import LinkDown, LinkUp, Shown
from roamcast.channels.relay.admission import RelayAdmission
from roamcast.channels.relay.guests import (
    CloseGuest,
    EndGuest,
    GuestArrived,
    GuestGone,
    GuestLinkDown,
    GuestLinkUp,
    OwnLinkDown,
    OwnLinkUp,
    PassThrough,
    Serve,
    ServingBegan,
    Withheld,
)
from roamcast.channels.server.map_server import MapServer
from roamcast.model.contexts import Attribute, Context
from roamcast.model.events import ClientsMoved
from roamcast.model.machine import Effect
from roamcast.sim.checkers import Violation, check_bounds
from roamcast.sim.host import Boot, Host, HostState
from roamcast.sim.workload import Sizes
from roamcast.sim.workloads._map_parts import ScanMatcher
from roamcast.sim.workloads._relay_parts import (
    PORT,
    GuestLink,
    OpenOwnLink,
    Port,
    RelayHost,
    Rights,
)
from roamcast.sim.workloads.sessions import LOOK_US, SERVER, SessionsWorkload
from roamcast.sim.world import World

RELAY: Final = "relay"
GUESTS_MAX: Final = 40
SOCKET_US: Final = 1_000
"""Time for the relay's driver to carry out what the relay decided about a guest."""
GRACE_US: Final = 2 * LOOK_US
"""A relay learns within this time that the service has ended a guest's own link."""

OWN_AWAY_US_MAX: Final = 3_000_000
"""A guest's own link, or the relay's, is dialled again within this time."""


class RelayWorkload(SessionsWorkload):
    """One map server, one relay, and sessions on both whose users must see what they may."""

    name: ClassVar[str] = "relay"
    sizes: ClassVar = {**SessionsWorkload.sizes, "behind": (1, 5)}
    acts: ClassVar[tuple[str, ...]] = (*SessionsWorkload.acts, "move", "move", "rights", "own cut")

    def __init__(self, admission: type[RelayAdmission] = RelayAdmission) -> None:
        """The machine under test; a test may pass one that is broken on purpose."""
        super().__init__()
        self._admission = admission
        self._rights = Rights()
        self._policy = self._rights
        self._behind: dict[str, GuestLink] = {}
        self._limited_at: dict[str, int] = {}
        """Subjects with limited rights → since when."""
        self._numbers = count(1)
        self._serving = ServingBegan(0, self._settings)
        self._own: tuple[int, int] = (0, 0)
        """Lives of the relay and of the service that the relay's own link joins; 0: it is away."""
        self._own_dial_at = 0
        self._later: Callable[[Callable[[World], None]], None] = lambda _: None
        self._counts |= dict.fromkeys(("served", "passed", "sent away", "withheld"), 0)

    def setup(self, world: World, sizes: Sizes) -> None:
        """The hosts of `sessions`; the first clients are behind the relay, each with a port."""
        super().setup(world, sizes)
        self._later = lambda act: world.kernel.call(world.now + SOCKET_US, lambda _: act(world))
        world.add_host(RELAY, self._make_relay)
        for name in list(self._links)[: sizes["behind"]]:
            del self._links[name]
            self._behind[name] = GuestLink()
            world.add_host(name + PORT, lambda _: Port(SERVER, RELAY))

    def _make_relay(self, boot: Boot) -> RelayHost:
        return RelayHost(
            SERVER,
            self._admission(
                RELAY,
                draw=boot.generator.random,
                policy=self._rights,
                guests_max=GUESTS_MAX,
                make_matcher=ScanMatcher,
            ),
        )

    def _attributes(self, draw: random.Random) -> dict[str, Attribute]:
        return {**super()._attributes(draw), "private": draw.random() < 0.5}

    def _operation(
        self, world: World, draw: random.Random, kind: str, number: int, item: int
    ) -> Callable[[int], None]:
        name = f"client-{number}"
        if kind == "rights":
            return lambda _: self._change_rights(world, name, draw)
        if kind == "own cut":
            return lambda _: self._cut_own(world, name, draw)
        if kind == "cut" and name in self._behind:
            return lambda _: self._leave(world, name, draw.randrange(LOOK_US, 10 * LOOK_US))
        return super()._operation(world, draw, kind, number, item)

    def _change_rights(self, world: World, name: str, draw: random.Random) -> None:
        """The service drops whoever has other rights now, and ends its links."""
        if name in self._rights.limited:
            self._rights.limited.remove(name)
            self._limited_at.pop(name)
        else:
            self._rights.limited.add(name)
            self._limited_at[name] = world.now
        server = world.hosts[SERVER]
        if server.state is not HostState.DOWN:
            # In a broker this is an event between its parts; here the server is alone.
            world.kernel.give(world.now, server, ClientsMoved((name, name + PORT)))
        if name in self._behind:
            self._cut_own(world, name, draw)
        elif self._links[name].up:
            self._cut(world, world.hosts[name], draw)

    # Links of clients behind the relay.

    def _look(self, world: World, draw: random.Random) -> None:
        """Break links whose ends are gone, and open those whose time has come."""
        if world.now:  # a relay's epoch is the time it began, and there is no epoch 0
            self._look_at_relay(world, draw)
            for name, link in self._behind.items():
                self._look_at_own(world, name, link, draw)
                self._look_at_guest(world, name, link)
        super()._look(world, draw)

    def _look_at_relay(self, world: World, draw: random.Random) -> None:
        """The relay's own link."""
        relay, server = world.hosts[RELAY], world.hosts[SERVER]
        joined = (relay.boots, server.boots)
        if self._own[0] and (self._own != joined or server.state is HostState.DOWN):
            self._own = (0, 0)
            self._own_dial_at = world.now + draw.randrange(LOOK_US, OWN_AWAY_US_MAX)
            if relay.state is not HostState.DOWN:
                world.give(relay, OwnLinkDown())
        if not self._own[0] and _are_up(relay, server) and world.now >= self._own_dial_at:
            self._own = joined
            world.give(relay, OwnLinkUp(self._welcome_as(world, RELAY)))

    def _look_at_own(self, world: World, name: str, link: GuestLink, draw: random.Random) -> None:
        """A guest's own link, which the relay holds for as long as there is the guest."""
        relay, server, port = world.hosts[RELAY], world.hosts[SERVER], world.hosts[name + PORT]
        if link.guest and link.relay_boots != relay.boots:
            link.guest, link.own_up, link.dial_at = 0, False, world.now
            self._part(world, name, link)
        joined = (server.boots, port.boots)
        ends_live = server.state is not HostState.DOWN and port.state is not HostState.DOWN
        if link.own_up and (link.own_boots != joined or not ends_live):
            self._cut_own(world, name, draw)
        ready = _are_up(relay, server, port) and world.now >= link.own_dial_at
        if link.guest and not link.own_up and ready:
            link.own_up, link.own_boots = True, joined
            link.welcome = self._welcome_as(world, port.name)
            world.give(relay, OpenOwnLink(link.guest, port.name))
            world.give(relay, GuestLinkUp(link.guest, link.welcome))

    def _look_at_guest(self, world: World, name: str, link: GuestLink) -> None:
        """A client's connection to the relay; the relay opens the own link first."""
        relay, server, port = world.hosts[RELAY], world.hosts[SERVER], world.hosts[name + PORT]
        host = world.hosts[name]
        if link.client_boots != host.boots or host.state is HostState.DOWN:
            link.up = False  # a session that has just been made knows of no link
            self._leave(world, name, 0)
            link.client_boots = host.boots
        if link.guest or not _are_up(host, relay, server, port) or world.now < link.dial_at:
            return
        link.guest, link.relay_boots = next(self._numbers), relay.boots
        link.own_up, link.own_boots = True, (server.boots, port.boots)
        self._counts["links"] += 1
        link.welcome = self._welcome_as(world, port.name)
        world.give(relay, OpenOwnLink(link.guest, port.name))
        world.give(relay, GuestArrived(link.guest, link.welcome))

    def _admit(self, world: World, number: int, served: bool) -> None:
        """The relay welcomes a guest: to itself, or to the service."""
        name, link = self._guest(number)
        if link is None or world.hosts[name].state is HostState.DOWN:
            return
        self._counts["served" if served else "passed"] += 1
        link.served, link.up = served, True
        if served:
            # Behind a relay nobody hears the service's groups.
            world.network.unicast_only[name] = None
            settings = settings_bytes(self._serving.settings)
            welcome = LinkWelcome(name + PORT, RELAY, self._serving.epoch, settings)
        else:
            world.network.unicast_only.pop(name, None)
            assert link.welcome is not None
            welcome = replace(link.welcome, client=name)
        world.give(world.hosts[name], LinkUp(welcome))

    def _send_away(self, world: World, number: int, retry_us: int) -> None:
        name, link = self._guest(number)
        if link is not None:
            self._leave(world, name, max(retry_us, LOOK_US))

    def _guest(self, number: int) -> tuple[str, GuestLink | None]:
        found = ((name, link) for name, link in self._behind.items() if link.guest == number)
        return next(found, ("", None))

    def _cut_own(self, world: World, name: str, draw: random.Random) -> None:
        link = self._behind.get(name)
        if link is None or not link.own_up:
            return
        link.own_up = False
        link.own_dial_at = world.now + draw.randrange(LOOK_US, OWN_AWAY_US_MAX)
        if world.hosts[RELAY].state is not HostState.DOWN:
            world.give(world.hosts[RELAY], GuestLinkDown(link.guest))

    def _leave(self, world: World, name: str, wait_us: int) -> None:
        """A client's connection to the relay is over."""
        link, relay = self._behind[name], world.hosts[RELAY]
        if not link.guest:
            return
        if relay.state is not HostState.DOWN and link.relay_boots == relay.boots:
            world.give(relay, GuestGone(link.guest))
        link.guest, link.own_up, link.dial_at = 0, False, world.now + wait_us
        self._part(world, name, link)

    def _part(self, world: World, name: str, link: GuestLink) -> None:
        if link.up and world.hosts[name].state is not HostState.DOWN:
            world.give(world.hosts[name], LinkDown())
        link.up = link.served = False

    def _welcome_as(self, world: World, name: str) -> LinkWelcome:
        """Give the service's welcome to a client of this name, with the tag of its view class.

        A restarted service has other tags for the same classes; here it even exchanges them.
        """
        server = world.hosts[SERVER]
        assert isinstance(server.machine, MapServer)
        tag = (server.boots + bool(self._rights.view_class(name))) % 2
        settings = settings_bytes(self._settings_of(server.boots))
        return LinkWelcome(name, SERVER, server.machine.epoch, settings, view=b"%d" % tag)

    def _observe(self, host: Host, effect: Effect, now: int) -> None:
        match effect:
            case Shown(_, context):
                self._check_right(host.name, context)
                super()._observe(host, effect, now)
            case ServingBegan():
                self._serving = effect
            case Serve(number) | PassThrough(number):
                self._later(lambda world: self._admit(world, number, isinstance(effect, Serve)))
            case EndGuest(number, _, retry_us):
                self._counts["sent away"] += 1
                self._later(lambda world: self._send_away(world, number, retry_us))
            case Withheld():
                self._counts["withheld"] += 1
            case CloseGuest():
                pass  # the own link of a guest is closed with its connection
            case _:
                super()._observe(host, effect, now)

    def _check_right(self, name: str, context: Context) -> None:
        link = self._behind.get(name)
        since = self._limited_at.get(name)
        if link is None or since is None or not context.attributes["private"]:
            return
        # Channels of the service itself are cut by keys, which this world does not have.
        if link.served and context.t_r > since + GRACE_US:
            raise Violation("nobody sees what they may not", f"{name}: {context}")

    def check(self, world: World) -> None:
        """Views equal the map, and the relay is within its bounds."""
        super().check(world)
        relay = world.hosts[RELAY].machine
        assert isinstance(relay, RelayHost)
        check_bounds(RELAY, relay)


def _are_up(*hosts: Host) -> bool:
    return all(host.state is HostState.UP for host in hosts)


WORKLOAD = RelayWorkload
