"""Maps of several brokers, watched from anywhere, while everything else fails.

Two to seven whole brokers on hosts that crash and lose what was not synced, with failing disks and
links that lose, reorder and part. People publish, change, move to another node and leave, some
under rules; sessions watch everywhere. At no moment does a session see what rules hide. Once all is
healed each session's view is what it should be; then a node goes for good, and its contexts leave.
"""

import random
from functools import partial
from typing import ClassVar, Final

import msgspec

from roamcast.broker import (
    Acknowledged,
    Broker,
    CloseSession,
    CutOff,
    Failed,
    Frame,
    OpenSession,
    PublishFor,
    SetRules,
    SubscribeSession,
    UnpublishFor,
)
from roamcast.channels.failover.epochs import epoch_at
from roamcast.channels.past.messages import LookForEnded
from roamcast.channels.past.settings import PastSettings
from roamcast.identity.rules import EVERYONE, Rule, Viewer
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect
from roamcast.overlay.events import HangUp
from roamcast.overlay.filters.planning import FilterSettings
from roamcast.overlay.links.messages import NONCE_BYTES
from roamcast.overlay.links.settings import NeighbourSettings
from roamcast.overlay.overlay import OverlayNode
from roamcast.overlay.tables.wants import Wants
from roamcast.sim.checkers import Violation, check_bounds
from roamcast.sim.host import Boot, Host, HostState
from roamcast.sim.workload import Sizes, Workload
from roamcast.sim.workloads._map_parts import ScanMatcher, quick_settings
from roamcast.sim.workloads._overlay_parts import Inert, key_pair, overlay_of
from roamcast.sim.workloads.overlay import LINGER_US, OverlayWorkload
from roamcast.sim.workloads.roaming import LINKED
from roamcast.sim.world import World

WATCH_US: Final = 100_000
AGAIN_US: Final = 300_000
SECRET: Final = "hidden"  # noqa: S105 — an attribute
HIDING: Final = (Rule(viewers=("staff",), precision="exact"),)
PARTLY: Final = (Rule(viewers=(EVERYONE,), precision="exact", attributes=("colour",)),)
COLOURS: Final = ("red", "green", "blue")
WANTED: Final = (
    "colour = 'red'",
    "colour IN ('red', 'green')",
    "colour <> 'blue'",
    "true",
    "hidden = 1",
)
"""The last one asks for what rules may hide."""


class Someone(msgspec.Struct):
    """A person with one vid, at one node at a time: what was asked, and what is in force."""

    vid: str
    rules: tuple[Rule, ...] | None
    node: str = ""
    wished: dict[str, object] | None = None
    """The attributes that the map shall show; None: nothing."""
    shown: tuple[str, dict[str, object]] | None = None
    """Where the map shows them, and which; None: nowhere."""
    ticket: int = 0
    """What is under way."""
    ruled: bool = False
    """Whether the rules are in force at its node."""

    @property
    def calm(self) -> bool:
        """Whether everything asked for is in force."""
        wished = None if self.wished is None else (self.node, self.wished)
        return not self.ticket and wished == self.shown


class Watcher:
    """A session at one node, and the view that its frames make."""

    def __init__(self, name: str, wanted: str) -> None:
        self.name = name
        self.wanted = Filter.parse(wanted)
        self.node = ""
        self.boots = 0
        self.view: dict[str, dict[str, object]] = {}

    def read(self, data: bytes) -> None:
        """Take a frame."""
        frame = msgspec.json.decode(data)
        if frame["type"] == "subscribed":
            self.view = {one["id"]: one["properties"] for one in frame["features"]}
        for event in frame.get("events", ()):
            vid, kind = event["subject"], event["type"].rpartition(".")[2]
            if (kind == "appeared") == (vid in self.view):
                raise Violation("changes follow each other", f"{self.name}: {vid} {kind}")
            if kind == "left":
                del self.view[vid]
            else:
                self.view[vid] = event["data"]["properties"]

    def sees(self) -> dict[str, dict[str, object]]:
        """Give the attributes of everybody in view."""
        return {
            vid: {name: shown[name] for name in ("colour", SECRET) if name in shown}
            for vid, shown in self.view.items()
        }


class StatesWorkload(Workload):
    """Brokers, people on their maps, and sessions that watch all of them."""

    name: ClassVar[str] = "states"
    registry = OverlayWorkload.registry
    effects: ClassVar = (Acknowledged, Failed, HangUp, LookForEnded, Frame, CutOff)
    sizes: ClassVar = {
        "nodes": (2, 7),
        "more_edges": (0, 3),
        "people": (1, 8),
        "watchers": (1, 4),
        "changes": (1, 60),
        "passive": (0, 2),
        "gone": (0, 1),
    }

    def __init__(self) -> None:
        self._sizes: Sizes = {}
        self._draw = random.Random()
        self._beside: dict[str, list[str]] = {}
        self._people: list[Someone] = []
        self._watchers: dict[str, Watcher] = {}
        self._ticket = 0
        self._asked: dict[int, tuple[Someone, tuple[str, dict[str, object]] | None, bool]] = {}
        """Tickets → whose it is, what it brings about, and whether it is about rules."""
        self._gone = ""
        self._phase = 0
        self._frames = 0

    # --- the world

    def setup(self, world: World, sizes: Sizes) -> None:
        """A tree, some more links, people and sessions at random nodes."""
        self._sizes = sizes
        draw = self._draw = world.kernel.generator("workload/states")
        world.clock_of = lambda _: None
        nodes = [f"n{number}" for number in range(sizes["nodes"])]
        for number, node in enumerate(nodes):
            self._beside.setdefault(node, [])
            if number:
                self._join(node, nodes[draw.randrange(number)])
        for _ in range(sizes["more_edges"]):
            self._join(*draw.sample(nodes, 2))
        self._passive = set(draw.sample(nodes, min(sizes["passive"], len(nodes))))
        world.observe(self._observe)
        for node in nodes:
            world.add_host(node, partial(self._boot, node))
        for number in range(sizes["people"]):
            rules = draw.choice((None, None, HIDING, PARTLY))
            self._people.append(Someone(f"v{number}", rules, draw.choice(nodes)))
        for number in range(sizes["watchers"]):
            one = Watcher(f"s{number}", draw.choice(WANTED))
            self._watchers[one.name] = one

    def _join(self, first: str, other: str) -> None:
        if other not in self._beside[first]:
            self._beside[first].append(other)
            self._beside[other].append(first)

    def _boot(self, node: str, boot: Boot) -> Broker | Inert:
        if node == self._gone:
            return Inert()
        filters = FilterSettings(filters=0 if node in self._passive else "all")
        tables = msgspec.structs.replace(LINKED.tables, linger_us=LINGER_US)
        made = OverlayNode(
            node,
            key_pair(node)[0],
            {far: NeighbourSettings(key_pair(far)[1], (far,)) for far in self._beside[node]},
            boot.generator.random,
            lambda: boot.generator.randbytes(NONCE_BYTES),
            msgspec.structs.replace(LINKED, filters=filters, tables=tables),
            states=True,
            wants=Wants(linger_us=LINGER_US),
        )
        return Broker(
            boot.host,
            epoch=epoch_at(boot.now, 0, 0),
            now=boot.now,
            load=boot.disk.open().load,
            stamp=boot.disk.stamp,
            map_settings=quick_settings(receivers=1, buffer=16, sync_us_max=1_000_000),
            make_matcher=ScanMatcher,
            past_settings=PastSettings(return_us=1_000_000),
            overlay=made,
        )

    # --- what people do

    def start(self, world: World, duration_us: int) -> None:
        """Appear, change, move and leave at random moments."""
        draw, call = self._draw, world.kernel.call
        for _ in range(self._sizes["changes"]):
            call(draw.randrange(duration_us), partial(self._wish, world, draw.choice(self._people)))
        for at in range(0, duration_us, WATCH_US):
            call(at, lambda _: self._watch(world))

    def _wish(self, world: World, somebody: Someone, now: int) -> None:
        del now
        if not somebody.calm:
            return
        draw = self._draw
        if somebody.shown is not None and draw.random() < 0.3:
            somebody.wished = None
        else:
            somebody.wished = {"colour": draw.choice(COLOURS), SECRET: 1}
            if somebody.shown is None and draw.random() < 0.5:
                somebody.node, somebody.ruled = draw.choice([*self._beside]), False
        self._ask(world, somebody)

    def _ask(self, world: World, somebody: Someone, now: int = 0) -> None:
        """Ask for the next step until all that was wished is in force."""
        del now
        host = world.hosts[somebody.node]
        if somebody.calm or host.state is not HostState.UP:
            return
        self._ticket = somebody.ticket = self._ticket + 1
        if somebody.rules is not None and not somebody.ruled:
            self._asked[somebody.ticket] = (somebody, somebody.shown, True)
            world.give(host, SetRules(somebody.ticket, "ann", somebody.vid, somebody.rules))
        elif somebody.wished is None:
            self._asked[somebody.ticket] = (somebody, None, False)
            world.give(host, UnpublishFor(somebody.ticket, "ann", somebody.vid))
        else:
            self._asked[somebody.ticket] = (somebody, (somebody.node, somebody.wished), False)
            place = f"campus/{somebody.node}"
            wished = dict(somebody.wished)
            context = Context(somebody.vid, place, None, wished, host.local(world.now))  # type: ignore[arg-type]
            world.give(host, PublishFor(somebody.ticket, "ann", context))

    def _watch(self, world: World) -> None:
        for host in world.hosts.values():
            overlay = overlay_of(host)
            if overlay is not None:
                for part in overlay.parts:
                    check_bounds(f"{host.name}'s {part.part}", part)
        for one in self._people:
            if one.ticket and world.now % AGAIN_US < WATCH_US:
                one.ticket = 0  # whatever became of it: ask again
            if not one.ticket:
                self._ask(world, one)
        for watcher in self._watchers.values():
            self._serve(world, watcher)

    def _serve(self, world: World, watcher: Watcher) -> None:
        """Let a session be open somewhere."""
        host = world.hosts.get(watcher.node)
        if host is not None and host.state is HostState.UP and host.boots == watcher.boots:
            return
        if host is not None and host.state is HostState.PAUSED:
            world.give(host, CloseSession(watcher.name))  # it hears that later
        up = [one for one in world.hosts.values() if overlay_of(one) is not None]
        if not up:
            return
        host = self._draw.choice(up)
        watcher.node, watcher.boots, watcher.view = host.name, host.boots, {}
        world.give(host, OpenSession(0, watcher.name, Viewer(watcher.name)))
        asked = SubscribeSession(0, watcher.name, "all", watcher.wanted, everywhere=True)
        world.give(host, asked)

    # --- the end

    def settled(self, world: World) -> bool:
        """Every view is right; then a node goes for good; then sessions end and nothing is held."""
        self._watch(world)
        if self._lacking(world) is not None:
            return False
        if self._phase == 0 and self._sizes["gone"] and self._leaves:
            self._phase = 1
            self._gone = self._leaves[0]
            host = world.hosts[self._gone]
            world.crash(host)
            world.restart(host)
            for watcher in self._watchers.values():
                self._serve(world, watcher)
            return False
        if self._phase < 2:
            self._phase = 2
            for watcher in self._watchers.values():
                world.give(world.hosts[watcher.node], CloseSession(watcher.name))
        return self._held(world) is None

    @property
    def _leaves(self) -> list[str]:
        return [node for node, far in sorted(self._beside.items()) if len(far) == 1]

    def _right(self, watcher: Watcher) -> dict[str, dict[str, object]]:
        """Give what a session should see."""
        found: dict[str, dict[str, object]] = {}
        for one in self._people:
            if one.shown is None or one.rules is HIDING or one.shown[0] == self._gone:
                continue
            shown = dict(one.shown[1])
            if one.rules is PARTLY:
                del shown[SECRET]
            if watcher.wanted.matches(Context(one.vid, attributes=shown)):  # type: ignore[arg-type]
                found[one.vid] = shown
        return found

    def _lacking(self, world: World) -> tuple[str, str] | None:
        del world
        if self._phase == 2:
            return None
        for one in self._people:
            if not one.calm and one.node != self._gone:
                return "liveness", f"{one.vid} is not through"
        for watcher in self._watchers.values():
            if watcher.node == self._gone or watcher.sees() != self._right(watcher):
                detail = f"{watcher.name} at {watcher.node} sees {watcher.sees()}"
                return "every view is right in the end", f"{detail}, not {self._right(watcher)}"
        return None

    def _held(self, world: World) -> tuple[str, str] | None:
        for host in world.hosts.values():
            overlay = overlay_of(host)
            if overlay is None or overlay.states is None:
                continue
            held = {**overlay.states.occupancy(), **overlay.exchange.occupancy()}
            for what in ("contexts shown to others", "contexts of others", "states.heard"):
                if held[what][0]:
                    return "tables are empty at rest", f"{host.name} has {held[what][0]} {what}"
        return None

    def check(self, world: World) -> None:
        """Raise for the first promise that is not true."""
        broken = self._lacking(world) or self._held(world)
        if broken is not None:
            raise Violation(*broken)

    def metrics(self, world: World) -> dict[str, float]:
        """Count what happened."""
        del world
        return {"asked": self._ticket, "frames": self._frames}

    def _observe(self, host: Host, effect: Effect, now: int) -> None:
        del now
        if isinstance(effect, Frame):
            self._frames += 1
            for name in effect.sessions:
                watcher = self._watchers[name]
                if watcher.node == host.name and watcher.boots == host.boots:
                    watcher.read(effect.data)
                    self._check_hidden(watcher)
        elif isinstance(effect, Acknowledged | Failed) and effect.ticket in self._asked:
            one, shown, rules = self._asked.pop(effect.ticket)
            if isinstance(effect, Acknowledged):
                one.ruled = one.ruled or rules
                one.shown = shown
            if one.ticket == effect.ticket:
                one.ticket = 0

    def _check_hidden(self, watcher: Watcher) -> None:
        hidden = {one.vid: one.rules for one in self._people if one.rules is not None}
        for vid, shown in watcher.view.items():
            rules = hidden.get(vid)
            if rules is HIDING or (rules is PARTLY and SECRET in shown):
                raise Violation("nobody sees what rules hide", f"{watcher.name} sees {vid} {shown}")


WORKLOAD = StatesWorkload
