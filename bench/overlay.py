"""How fast do brokers learn of each other? 40, 200 and 1,000 nodes in the simulator, growth fitted.

All nodes start at once on a tree with a quarter as many links more, each with an area of its own.
Then one link fails, and the time until every node knows is taken. Times are virtual, 4 to 6 ms a
hop; bytes are what nodes send until then; CPU seconds are this process's, for all nodes together.

The overlay has *converged* when a parcel or a question from anywhere takes the right way: every
node has the true graph and the same tree, every link of the tree has offered all that lies beyond
it, and areas everywhere are looked for over the right link. While the nodes start, the tree runs
over other links for moments. What was heard on those lingers, on purpose, for 30 s after they left
the tree (0104): such a link is asked in vain until then, and nobody is missed. To wait for that
would measure the linger, a constant, and hide the rest; so only links of the tree count here. That
nothing false is left in the end is the swarm's to check: "every table is right in the end".

Live: three services of two hosts each, one host of each killed under load (`_overlay_live`); and
what a node without neighbours pays (`_overlay_alone`).
"""

import random
import time
from functools import partial
from typing import Any

import msgspec
import numpy as np

from bench._overlay_alone import alone, alone_live
from bench._overlay_live import killed_hosts
from roamcast.journal.book import Journal
from roamcast.lab.report import Claim, Report, Steps
from roamcast.model.records import Record, Transmission
from roamcast.model.wire import Registry
from roamcast.overlay.links.messages import LINK_MESSAGES, NONCE_BYTES
from roamcast.overlay.links.settings import LinkSettings, NeighbourSettings
from roamcast.overlay.overlay import OverlayNode, OverlaySettings
from roamcast.overlay.tables.areas import Areas
from roamcast.overlay.tables.digest_table import digest_of
from roamcast.overlay.topology.trees import branches, shared_tree
from roamcast.sim.host import Boot
from roamcast.sim.network import LinkQuality
from roamcast.sim.workloads._overlay_parts import area_at, key_pair, overlay_of
from roamcast.sim.workloads.overlay import BareNode
from roamcast.sim.world import World

TITLE = "overlay: nodes learn the topology and tables; time, bytes and growth"

SIZES = (40, 200, 1_000)
STEP_US = 20_000
VIRTUAL_US_MAX = 120_000_000
EVENTS_MAX = 100_000_000
SETTINGS = OverlaySettings(LinkSettings(silent_us=3_000_000))

ALONE_BAR = 1.03
SECONDS_BAR = 10.0
GROWTH_BAR = 1.5
"""Every node must learn every link: bytes a node grow at least with the number of nodes."""


class Counting(Journal):
    """Counts the bytes that are sent, and holds nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def write(self, time: int, host: str, record: Record) -> None:
        """Count a transmission."""
        del time, host
        if isinstance(record, Transmission):
            self.bytes += record.bytes


class Map:
    """The nodes of one run, and what each of them must know."""

    def __init__(self, nodes: int) -> None:
        draw = random.Random(nodes)
        self.names = [f"n{number:04}" for number in range(nodes)]
        edges = {(self.names[draw.randrange(n)], self.names[n]) for n in range(1, nodes)}
        while len(edges) < nodes + nodes // 4:
            edges.add(tuple(sorted(draw.sample(self.names, 2))))  # type: ignore[arg-type]
        self.edges = sorted(edges)
        self.keys = {
            name: digest_of(msgspec.msgpack.encode(area_at(f"campus/{name}")))
            for name in self.names
        }
        """Nodes → the keys of their areas in tables."""
        self.journal = Counting()
        quality = LinkQuality(delay_us=4_000, jitter_us=2_000)
        self.world = World(nodes, Registry(LINK_MESSAGES), quality=quality, journal=self.journal)
        self.draw = draw

    def start(self) -> None:
        """Boot every node; the end whose name comes first dials."""
        beside: dict[str, dict[str, NeighbourSettings]] = {name: {} for name in self.names}
        for one, other in self.edges:
            beside[one][other] = NeighbourSettings(key_pair(other)[1], (other,))
            beside[other][one] = NeighbourSettings(key_pair(one)[1])
        for name in self.names:
            self.world.add_host(name, partial(self._boot, name, beside[name]))

    def _boot(self, name: str, beside: dict[str, NeighbourSettings], boot: Boot) -> BareNode:
        areas = Areas()
        areas.put("own", area_at(f"campus/{name}"))
        draw = boot.generator
        node = OverlayNode(
            name,
            key_pair(name)[0],
            beside,
            draw.random,
            lambda: draw.randbytes(NONCE_BYTES),
            SETTINGS,
            (areas,),
        )
        return BareNode(node, epoch=1_000, now=boot.now, load=boot.disk.load)

    def until_known(self, *, tables: bool) -> float:
        """Run until every node knows what is; give the seconds that took."""
        began = self.world.now
        graph: dict[str, list[str]] = {name: [] for name in self.names}
        for one, other in self.edges:
            graph[one].append(other)
            graph[other].append(one)
        right = {name: tuple(sorted(near)) for name, near in graph.items()}
        tree = shared_tree(right, self.names[0])
        lacking = list(self.names)
        while self.world.now < began + VIRTUAL_US_MAX:
            self.world.kernel.run(self.world.now + STEP_US, EVENTS_MAX)
            # Asking all nodes at each step would take far longer than what they do.
            while lacking and self._knows(lacking[-1], right, tree, tables=tables):
                lacking.pop()
            if not lacking:
                lacking = [
                    name for name in self.names if not self._knows(name, right, tree, tables=tables)
                ]
                if not lacking:
                    return (self.world.now - began) / 1e6
        raise AssertionError(f"{len(self.names)} nodes did not converge")

    def _knows(self, name: str, right: Any, tree: Any, *, tables: bool) -> bool:
        overlay = overlay_of(self.world.hosts[name])
        assert overlay is not None
        if overlay.topology.graph() != right or overlay.topology.tree != tree:
            return False
        if not tables:
            return True
        table = overlay.exchange.tables["areas"]
        assert isinstance(table, Areas)
        beyond: dict[str, set[str]] = {}
        for far, link in branches(tree, name).items():
            beyond.setdefault(link, set()).add(self.keys[far])
        return all(
            link in overlay.exchange.links and keys <= table.offered(link).keys()
            for link, keys in beyond.items()
        )

    def fail_one(self) -> None:
        """Let a link outside the tree fail, so that the rest stays in reach."""
        tree = shared_tree(overlay_of_first(self), self.names[0])
        spare = [ends for ends in self.edges if tree[ends[0]] != ends[1] != tree[ends[1]]]
        spare = [ends for ends in spare if tree[ends[1]] != ends[0]]
        one, other = spare[0]
        self.edges.remove((one, other))
        lost = LinkQuality(loss=1.0)
        self.world.network.set_quality(one, other, lost)
        self.world.network.set_quality(other, one, lost)


def overlay_of_first(made: Map) -> dict[str, tuple[str, ...]]:
    """Give the graph as the first node knows it."""
    overlay = overlay_of(made.world.hosts[made.names[0]])
    assert overlay is not None
    return overlay.topology.graph()


def measure(nodes: int) -> dict[str, Any]:
    """Let so many nodes learn of each other, then let a link fail."""
    made = Map(nodes)
    began = time.process_time()
    made.start()
    seconds = made.until_known(tables=True)
    sent = made.journal.bytes
    made.fail_one()
    repaired = made.until_known(tables=False)
    return {
        "nodes": nodes,
        "links": len(made.edges) + 1,
        "converged s": round(seconds, 2),
        "bytes a node": sent // nodes,
        "a failed link known s": round(repaired, 2),
        "CPU s": round(time.process_time() - began, 1),
    }


def run(quick: bool, progress: Steps) -> Report:
    """Measure each size, and fit how time and bytes grow."""
    sizes = SIZES[:2] if quick else SIZES
    rows = []
    with progress("parts", len(sizes) + 4) as step:
        for nodes in sizes:
            rows.append(measure(nodes))
            step(1)
        live = killed_hosts()
        step(1)
        costs = [alone()]
        step(1)
        for load in ("service", "fanout"):
            costs.append(alone_live(load))
            step(1)
    logs = np.log([row["nodes"] for row in rows])
    bytes_growth = float(np.polyfit(logs, np.log([row["bytes a node"] for row in rows]), 1)[0])
    time_growth = float(np.polyfit(logs, np.log([row["converged s"] for row in rows]), 1)[0])
    slowest = max(row["converged s"] for row in rows)
    claims = [
        Claim(
            "all nodes know all links and areas within so many seconds",
            slowest,
            slowest <= SECONDS_BAR,
            bar=SECONDS_BAR,
        ),
        Claim(
            "bytes a node grow with this power of the number of nodes",
            round(bytes_growth, 2),
            bytes_growth <= GROWTH_BAR,
            bar=GROWTH_BAR,
        ),
    ]
    claims.append(
        Claim("live: parcels lost", live["parcels lost"], live["parcels lost"] == 0, bar=0)
    )
    claims += [
        Claim(
            f"an update at a node alone, beside no node: {cost['alone']}",
            cost["ratio"],
            cost["ratio"] <= ALONE_BAR,
            bar=ALONE_BAR,
        )
        for cost in costs[1:]
    ]
    rows += [live, *costs]
    parameters = {"sizes": list(sizes), "time grows with power": round(time_growth, 2)}
    return Report("overlay", parameters, rows, claims)
