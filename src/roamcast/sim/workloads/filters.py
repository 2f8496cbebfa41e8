"""Filters that are switched on, off and moved between nodes while items flow and all else fails.

Trees of up to 31 nodes, on hosts that crash and lose what was not synced, with failing disks and
links that lose, reorder and part; subscriptions come, change and go; one node may lie about its
flows and one may never report. Judged by a record of its own: every item reaches exactly those who
want it; a filter that moves matches until the other one does; the newer batch wins, and no two of
one root share a number. Once everything is healed one root plans, nothing is half-moved, no more
nodes match than may; then a static hour is counted on the links and compared with what `placement`
computes; and at rest nothing is held.
"""

import random
from functools import partial
from typing import ClassVar, Final

import msgspec

from roamcast.broker import Failed
from roamcast.channels.failover.epochs import epoch_at
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect
from roamcast.model.wire import Registry
from roamcast.overlay.events import HangUp
from roamcast.overlay.filters.planning import FilterSettings
from roamcast.overlay.filters.states import FilterState
from roamcast.overlay.flows.events import (
    EventPublished,
    EventsDelivered,
    EventsLost,
    EventsStanding,
)
from roamcast.overlay.flows.relay import VIEW
from roamcast.overlay.links.messages import LINK_MESSAGES, NONCE_BYTES
from roamcast.overlay.links.settings import NeighbourSettings
from roamcast.overlay.overlay import Overlay, OverlayNode
from roamcast.overlay.tables.wants import Wants
from roamcast.overlay.topology.items import Graph
from roamcast.overlay.topology.trees import branches, shared_tree
from roamcast.placement.cost import cost
from roamcast.placement.optimal import optimal
from roamcast.sim.checkers import Violation, check_bounds
from roamcast.sim.host import Boot, Host
from roamcast.sim.workload import Sizes, Workload
from roamcast.sim.workloads._filter_parts import (
    MAJORS,
    WANTED,
    FilterNode,
    FilterRecord,
    ItemRecord,
    ItemSource,
    lie,
    problem_of,
    tell_batches,
)
from roamcast.sim.workloads._overlay_parts import key_pair, overlay_of
from roamcast.sim.workloads._roaming_parts import TICKETS, Consumer
from roamcast.sim.workloads.overlay import LINGER_US
from roamcast.sim.workloads.roaming import FLOWS, LINKED
from roamcast.sim.world import World

WATCH_US: Final = 100_000
HOUR_ITEMS: Final = 16
ITEM_US: Final = 12_000
NEVER_US: Final = 10**15

QUICK: Final = FilterSettings(report_us=10_000, batch_us=450_000, patience_us=250_000)
"""In the longest tree all reports of an hour come before the next batch."""

PAYING: Final = 8
"""The limit that stands for as many filters as pay; 0 is all nodes."""


class FiltersWorkload(Workload):
    """Nodes with filters, sources of items, people who subscribe, and what is owed to them."""

    name: ClassVar[str] = "filters"
    registry = Registry(LINK_MESSAGES)
    effects: ClassVar = (
        Failed, HangUp, EventPublished, EventsDelivered, EventsLost, EventsStanding,
    )  # fmt: skip
    sizes: ClassVar = {
        "nodes": (2, 31),
        "more_edges": (0, 3),
        "sources": (1, 3),
        "subscribers": (1, 12),
        "items": (1, 200),
        "changes": (0, 40),
        "limit": (0, PAYING),
        "liars": (0, 1),
        "silent": (0, 1),
    }

    def __init__(self) -> None:
        self._record = ItemRecord()
        self._filters = FilterRecord()
        self._sizes: Sizes = {}
        self._draw = random.Random()
        self._beside: dict[str, list[str]] = {}
        self._sources: list[ItemSource] = []
        self._subscribers: dict[str, Consumer] = {}
        self._phase = 0
        """Faults and healing, then a static hour, its batch, and the end."""
        self._crossed = 0
        self._counted: dict[str, int] = {}
        self._active: list[str] = []
        self._hour: list[int] = []
        self._changed = 0

    # --- the world

    def setup(self, world: World, sizes: Sizes) -> None:
        """A tree, few more links, sources and subscribers at random nodes."""
        self._sizes = sizes
        draw = self._draw = world.kernel.generator("workload/filters")
        world.clock_of = lambda _: None
        nodes = [f"n{number:02}" for number in range(sizes["nodes"])]
        for number, node in enumerate(nodes):
            self._beside.setdefault(node, [])
            if number:
                self._join(node, nodes[draw.randrange(max(0, number - 6), number)])
        for _ in range(sizes["more_edges"]):
            self._join(*draw.sample(nodes, 2))
        odd = draw.sample(nodes[1:], min(2, len(nodes) - 1))
        self._liars = set(odd[:1]) if sizes["liars"] else set()
        self._silent = set(odd[-1:]) if sizes["silent"] else set()
        world.observe(self._observe)
        for node in nodes:
            world.add_host(node, partial(self._boot, world, node))
        for number in range(sizes["subscribers"]):
            at = draw.randrange(300_000)
            world.kernel.call(at, partial(self._change, world, f"c{number}"))
        for number in range(sizes["sources"] + 1):  # the last one is for the static hour
            source = ItemSource(f"p{number}", world, draw, self._record)
            # What comes from the root is counted; what comes from elsewhere must arrive as well.
            source.node = nodes[0] if draw.random() < 0.6 else draw.choice(nodes)
            self._sources.append(source)

    def _join(self, first: str, other: str) -> None:
        if other not in self._beside[first]:
            self._beside[first].append(other)
            self._beside[other].append(first)

    def _boot(self, world: World, node: str, boot: Boot) -> FilterNode:
        limit = self._sizes["limit"]
        filters = "all" if not limit else "paying" if limit == PAYING else limit
        settings = msgspec.structs.replace(QUICK, filters=filters)
        if node in self._silent:
            settings = msgspec.structs.replace(settings, report_us=NEVER_US)
        made = OverlayNode(
            node,
            key_pair(node)[0],
            {far: NeighbourSettings(key_pair(far)[1], (far,)) for far in self._beside[node]},
            boot.generator.random,
            lambda: boot.generator.randbytes(NONCE_BYTES),
            msgspec.structs.replace(LINKED, filters=settings),
            flows=FLOWS,
            wants=Wants(linger_us=LINGER_US),
        )
        built = FilterNode(
            made,
            epoch=epoch_at(boot.now, 0, 0),
            now=boot.now,
            load=boot.disk.open().load,
            count=self._cross,
            report=lambda step, matches: self._filters.moved(node, step, matches, world.now),
        )
        if node in self._liars:
            lie(built.overlay.filters, boot.generator.randrange)
        self._filters.booted(node, built.overlay.filters.matches, world.now)
        tell_batches(built.overlay.filters, partial(self._filters.planned, node))
        return built

    def _cross(self, links: int) -> None:
        self._crossed += links

    # --- what people do

    def start(self, world: World, duration_us: int) -> None:
        """Publish items and change subscriptions at random moments."""
        draw, call = self._draw, world.kernel.call
        for _ in range(self._sizes["items"]):
            source = draw.choice(self._sources[:-1])
            source.left += 1
            call(draw.randrange(duration_us), source.publish)
        for _ in range(self._sizes["changes"]):
            who = f"c{draw.randrange(self._sizes['subscribers'])}"
            call(draw.randrange(duration_us), partial(self._change, world, who))
        for at in range(WATCH_US, duration_us, WATCH_US):
            call(at, lambda _: self._watch(world))

    def _change(self, world: World, who: str, now: int) -> None:
        """Let somebody want something else, perhaps elsewhere: a new subscription."""
        if self._phase:
            return
        for old in [one for one in self._subscribers if one.partition(".")[0] == who]:
            gone = self._subscribers.pop(old)
            gone.over = True
            gone.leave()
        self._changed += 1
        wanted = self._draw.choice(WANTED)
        made = Consumer(f"{who}.{self._changed}", world, self._draw, self._record, wanted)
        self._record.wanted[made.name] = made.wanted
        self._subscribers[made.name] = made
        self._attach(made, now)

    def _attach(self, consumer: Consumer, now: int) -> None:
        if consumer.node is None and not consumer.over:
            consumer.attach(self._draw.choice(list(self._beside)), now)
            if consumer.node is None:  # that node is down
                again = partial(self._attach, consumer)
                consumer.world.kernel.call(now + WATCH_US, again)

    def _watch(self, world: World) -> None:
        for host in world.hosts.values():
            overlay = overlay_of(host)
            if overlay is not None:
                for part in overlay.parts:
                    check_bounds(f"{host.name}'s {part.part}", part)
        for consumer in list(self._subscribers.values()):
            if consumer.node is not None and not consumer.look():
                consumer.leave()
                self._attach(consumer, world.now)

    # --- the end

    def settled(self, world: World) -> bool:
        """Everything owed is there; a static hour is right; then all leave, and nothing is held."""
        self._watch(world)
        if self._phase == 0 and self._lacking(world) is None:
            self._phase = 1
            self._begin_hour(world)
        elif self._phase == 1 and self._lacking(world) is None:
            self._check_hour(world)
            self._phase = 2
            for consumer in self._subscribers.values():
                consumer.over = True
                consumer.leave()
        elif self._phase < 2:
            for source in self._sources:
                if source.up(source.node) is None:
                    source.node = self._draw.choice(list(world.hosts))
                if source is not self._sources[-1]:
                    source.publish(world.now)
            for consumer in self._subscribers.values():
                self._attach(consumer, world.now)
        return self._phase == 2 and self._held(world) is None

    @property
    def _graph(self) -> Graph:
        return {node: tuple(sorted(far)) for node, far in self._beside.items()}

    def _overlays(self, world: World) -> dict[str, Overlay]:
        found = {host.name: overlay_of(host) for host in world.hosts.values()}
        return {name: one for name, one in found.items() if one is not None}

    def _lacking(self, world: World) -> tuple[str, str] | None:
        for source in self._sources:
            if not source.done:
                return "liveness", f"{source.name} is not through"
        for consumer in self._subscribers.values():
            missing = set(world.hosts) - set(consumer.cursor.vector)
            if not consumer.standing or missing:
                return "liveness", f"{consumer.name} does not stand: {sorted(missing)}"
            lacking = self._record.lacking(consumer.name, consumer.wanted)
            if lacking is not None:
                return "no loss", f"{consumer.name} lacks {lacking}"
        overlays = self._overlays(world)
        for node in self._beside:
            wrong = self._unsettled(node, overlays.get(node))
            if wrong is not None:
                return wrong
        matching = [name for name, one in overlays.items() if one.filters.matches]
        limit = self._sizes["limit"]
        if 0 < limit < PAYING and len(matching) > limit:
            return "no more filters than may be", f"{matching}, not {limit}"
        silent = [name for name in matching if name in self._silent]
        if limit and silent:
            return "who never reports never filters", f"{silent}"
        return None

    def _unsettled(self, node: str, overlay: Overlay | None) -> tuple[str, str] | None:
        """Say what of one node is not yet at rest."""
        if overlay is None or overlay.flows is None or not overlay.flows.idle():
            return "queues are empty at rest", f"{node} has something to do"
        filters = overlay.filters
        if overlay.topology.tree != shared_tree(self._graph, node):
            return "all share one tree", f"{node} has {overlay.topology.tree}"
        if filters.root != min(self._beside):
            return "one root plans", f"{node} obeys {filters.root}"
        if filters.state in (FilterState.MIGRATING, FilterState.SPAWNING):
            return "nothing is half-moved", f"{node} is {filters.state}"
        if filters.occupancy()["filters on their way"][0]:
            return "nothing is half-moved", f"{node} installs a filter elsewhere"
        if filters.deadline() is not None and node not in self._silent:
            return "queues are empty at rest", f"{node} has something to report"
        return self._wrong_table(node, overlay)

    def _wrong_table(self, node: str, overlay: Overlay) -> tuple[str, str] | None:
        """Compare what a node believes is wanted with what is."""
        hops = branches(shared_tree(self._graph, node), node)
        for major in range(MAJORS):
            item = Context("item", attributes={"major": major, "minor": 0})
            right = {
                hops[consumer.node]
                for consumer in self._subscribers.values()
                if consumer.node in hops and consumer.wanted.matches(item)
            }
            found = overlay.exchange.tables["wants"].beyond((VIEW, item), None)
            if found != sorted(right):
                detail = f"{node} sends {major} to {found}, not {sorted(right)}"
                return "every table is right in the end", detail
        return None

    # --- a static hour

    def _begin_hour(self, world: World) -> None:
        """Publish every item a few times at the root, while nothing else happens."""
        overlays = self._overlays(world)
        self._crossed = 0
        self._counted = {name: one.filters.counted for name, one in overlays.items()}
        self._active = [name for name, one in overlays.items() if one.filters.matches]
        source = self._sources[-1]
        source.node = min(self._beside)
        source.left = HOUR_ITEMS
        self._hour = [self._draw.randrange(MAJORS) for _ in range(HOUR_ITEMS)]

        def publish(major: int, now: int) -> None:
            source.major = major
            source.publish(now)

        for number, major in enumerate(self._hour):
            world.kernel.call(world.now + ITEM_US * (number + 1), partial(publish, major))

    def _check_hour(self, world: World) -> None:
        """Compare counts and links with `placement`, and the batch with its optimum (CBM)."""
        tree = shared_tree(self._graph, min(self._beside))
        wanted = {
            node: [one.wanted for one in self._subscribers.values() if one.node == node]
            for node in self._beside
        }
        items = [Context("item", attributes={"major": major, "minor": 0}) for major in self._hour]
        problem, names, flows = problem_of(tree, wanted, items)
        before = cost(problem, [names.index(name) for name in self._active])
        if self._crossed != before:
            detail = f"{self._crossed} with filters at {self._active}, not {before:g}"
            raise Violation("links carry what the placement costs", detail)
        overlays = self._overlays(world)
        counted = {n: one.filters.counted - self._counted[n] for n, one in overlays.items()}
        if counted != flows:
            raise Violation("flows are counted right", f"{counted}, not {flows}")
        limit = self._sizes["limit"]
        if not limit or self._liars or self._silent:
            return
        active = [names.index(name) for name, one in overlays.items() if one.filters.matches]
        best = optimal(problem, None if limit == PAYING else limit).cost
        if cost(problem, active) != best:
            detail = f"{cost(problem, active):g}, not {best:g}"
            raise Violation("a batch finds the best placement", detail)

    def _held(self, world: World) -> tuple[str, str] | None:
        for name, overlay in self._overlays(world).items():
            assert overlay.flows is not None
            home = overlay.flows.home
            if home.consumers or home.behind():
                return "tables are empty at rest", f"{name} serves {list(home.consumers)}"
            table = overlay.exchange.tables["wants"].occupancy()
            if table["wants.filters"][0]:
                return "tables are empty at rest", f"{name} has {table}"
        return None

    def check(self, world: World) -> None:
        """Raise for the first promise that is not true."""
        self._watch(world)
        broken = self._held(world) if self._phase == 2 else self._lacking(world)
        if broken is not None:
            raise Violation(*broken)
        if self._record.gaps:
            raise Violation("no loss", f"told as lost: {self._record.gaps}")

    def metrics(self, world: World) -> dict[str, float]:
        """Count what happened."""
        del world
        return {
            "published": len(self._record.facts),
            "delivered": sum(map(len, self._record.had.values())),
            "changes": self._changed,
            "filter steps": self._filters.steps,
        }

    def _observe(self, host: Host, effect: Effect, now: int) -> None:
        if isinstance(effect, EventPublished | Failed):
            if effect.ticket >= TICKETS:  # consumers ask again when they are not served
                self._sources[effect.ticket // TICKETS - 1].answered(effect)
        elif isinstance(effect, EventsDelivered | EventsLost | EventsStanding):
            consumer = self._subscribers.get(effect.consumer)
            if consumer is not None:
                consumer.carry(host, effect, now)


WORKLOAD = FiltersWorkload
