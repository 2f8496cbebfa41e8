"""Figure 6 of CBM on brokers: commuters swap halves of a tree whose filters follow them.

The nodes are the overlay's own machines in virtual time: links, topology, tables, flows, filters.
Users subscribe at the leaves, the root publishes each item once an hour, and every item on every
link is counted. Nodes count what their side of the tree wants, report it up, and the root plans a
batch and signals it. `cbm-6` is computed for the same tree and draws, so savings are compared run
by run: 127 nodes and 64 users as in the paper, 31 nodes and 16 users with --quick.
"""

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from roamcast.lab import _cbm as cbm
from roamcast.lab.report import Claim, Report, Steps
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.wire import Registry
from roamcast.overlay.filters.planning import FilterSettings
from roamcast.overlay.flows.events import PublishEvent, SubscribeEvents
from roamcast.overlay.flows.settings import FlowSettings
from roamcast.overlay.links.messages import LINK_MESSAGES, NONCE_BYTES
from roamcast.overlay.links.settings import NeighbourSettings
from roamcast.overlay.overlay import Overlay, OverlayNode, OverlaySettings
from roamcast.overlay.tables.feeding import TableSettings
from roamcast.overlay.tables.wants import Wants
from roamcast.placement.cost import cost
from roamcast.placement.flows import LeafWants, flows
from roamcast.placement.optimal import curve, filled, optimal
from roamcast.placement.problem import Problem, traffic
from roamcast.placement.tree import Tree
from roamcast.sim.host import Boot
from roamcast.sim.movement.commuters import wishes
from roamcast.sim.workloads._filter_parts import FilterNode
from roamcast.sim.workloads._overlay_parts import key_pair, overlay_of
from roamcast.sim.world import World

TITLE = "CBM figure 6 on simulated brokers: saving by filters that follow commuters, against k"

SKEW = 0.2
USERS, USERS_QUICK = 64, 16
COUNTS, COUNTS_QUICK = (4, 8, 16, 24, 31), (1, 2, 4, 8)
SEEDS, SEEDS_QUICK = 2, 2
HOUR_REPEATS = 10
"""How often an hour has each item, where the cost of moving is spread over an hour."""

POINTS = 0.02
LINGER_US, BATCH_US, STEP_US, REST_US_MAX = 300_000, 4_000_000, 250_000, 120_000_000
SETTINGS = OverlaySettings(tables=TableSettings(linger_us=LINGER_US))


def run(quick: bool, progress: Steps) -> Report:
    """Let commuters swap halves once for each k, and count."""
    counts, seeds = (COUNTS_QUICK, SEEDS_QUICK) if quick else (COUNTS, SEEDS)
    users = USERS_QUICK if quick else USERS
    rows = []
    with progress("runs", len(counts) * seeds) as tick:
        for k in counts:
            for seed in range(seeds):
                rows.append(_row(users, k, seed))
                gc.collect()  # a world is a knot of references, and large
                tick(1)
    parameters = {"P": "0.3 ± q", "q": SKEW, "users": users, "nodes": 2 * users - 1, "seeds": seeds}
    return Report("cbm-6-live", parameters, rows, _claims(rows))


def _parents(users: int) -> list[int]:
    """Give the complete binary tree whose leaves are the users."""
    return [-1, *[(vertex - 1) // 2 for vertex in range(1, 2 * users - 1)]]


def _wanted(source: np.random.Generator, users: int, moved: int) -> cbm.Wanted:
    chances = np.repeat(wishes(users, moved, SKEW)[:, None], cbm.ITEMS, axis=1)
    return cbm.draw_wanted(source, chances)


def _traffic(tree: Tree, users: int, wanted: cbm.Wanted) -> Problem:
    leaves = range(users - 1, 2 * users - 1)
    return traffic(tree, flows(tree, LeafWants.of_table(tree, leaves, wanted)))


def _row(users: int, k: int, seed: int) -> dict[str, float]:
    tree = Tree.of(_parents(users))
    source = cbm.generator(6, users, seed)
    before, after = _wanted(source, users, 0), _wanted(source, users, users // 2)
    first, last = _traffic(tree, users, before), _traffic(tree, users, after)
    static = filled(first, optimal(first, k), k)
    planned = 1 - float(curve(last, k)[k]) / cost(last, static.filters)
    live = CommuterTree(users, k, seed)
    live.subscribe(before)
    live.hour()
    live.rest()
    live.subscribe(after)
    stayed = live.hour()
    signals = live.rest()
    moved = live.hour()
    live.rest()
    hour = HOUR_REPEATS
    return {
        "k": k,
        "seed": seed,
        "cbm_6": planned,
        "stayed": stayed,
        "moved": moved,
        "best": float(curve(last, k)[k]),
        "signals": signals,
        "saved": 1 - moved / stayed,
        "saved_with_moves": 1 - (hour * moved + signals) / (hour * stayed),
    }


class CommuterTree:
    """The nodes, the users at the leaves, and what crosses links."""

    def __init__(self, users: int, k: int, seed: int) -> None:
        self._users = users
        self._parents = _parents(users)
        self._names = [f"n{vertex:03}" for vertex in range(len(self._parents))]
        filters = FilterSettings(k, report_us=100_000, batch_us=BATCH_US, patience_us=500_000)
        self._settings = msgspec.structs.replace(SETTINGS, filters=filters)
        self._crossed = 0
        self._published = 0
        self._world = World(seed, Registry(LINK_MESSAGES))
        for vertex, name in enumerate(self._names):
            self._world.add_host(name, partial(self._boot, vertex))
        self._until(lambda one: len(one.topology.tree) == len(self._names))

    def _boot(self, vertex: int, boot: Boot) -> FilterNode:
        near = [child for child, parent in enumerate(self._parents) if parent == vertex]
        near += [self._parents[vertex]] if vertex else []
        names = [self._names[one] for one in near]
        made = OverlayNode(
            self._names[vertex],
            key_pair(self._names[vertex])[0],
            {name: NeighbourSettings(key_pair(name)[1], (name,)) for name in names},
            boot.generator.random,
            lambda: boot.generator.randbytes(NONCE_BYTES),
            self._settings,
            flows=FlowSettings(),
            wants=Wants(linger_us=LINGER_US),
        )
        load = boot.disk.open().load
        return FilterNode(
            made, epoch=1, now=boot.now, load=load, count=self._cross, report=lambda *_: None
        )

    def _cross(self, links: int) -> None:
        self._crossed += links

    def _overlays(self) -> list[Overlay]:
        found = [overlay_of(host) for host in self._world.hosts.values()]
        return [one for one in found if one is not None]

    def _until(self, true: Callable[[Overlay], bool]) -> None:
        end = self._world.now + REST_US_MAX
        while not all(map(true, self._overlays())):
            assert self._world.now < end, "the tree does not come to rest"
            self._world.kernel.run(self._world.now + STEP_US)

    def subscribe(self, wanted: cbm.Wanted) -> None:
        """Let each user want what the table says, and wait until all tables say so."""
        for user in range(self._users):
            items = ", ".join(str(item) for item in np.flatnonzero(wanted[user]))
            text = f"item IN ({items})" if items else "item = -1"
            host = self._world.hosts[self._names[self._users - 1 + user]]
            asked = SubscribeEvents(user, f"u{user}", Filter.parse(text), ())
            self._world.give(host, asked)
        self._world.kernel.run(self._world.now + STEP_US)
        self._until(_settled)

    def hour(self) -> int:
        """Publish every item once at the root; give the number of links that items crossed."""
        self._crossed = 0
        host = self._world.hosts[self._names[0]]
        for item in range(cbm.ITEMS):
            self._published += 1
            context = Context("source", attributes={"item": item})
            self._world.give(
                host, PublishEvent(1_000 + item, "source", 1, self._published, context, b"", ())
            )
        self._world.kernel.run(self._world.now + BATCH_US // 2)
        return self._crossed

    def rest(self) -> int:
        """Let the batch happen; give the messages of signalling it, one for each link."""
        before = sum(one.filters.signalled for one in self._overlays())
        self._until(lambda one: one.filters.deadline() is None)
        return sum(one.filters.signalled for one in self._overlays()) - before


def _settled(overlay: Overlay) -> bool:
    """Whether everybody stands, and no table is about to change."""
    assert overlay.flows is not None
    table = overlay.exchange.tables["wants"]
    return overlay.flows.idle() and table.deadline() is None


def _claims(rows: list[dict[str, float]]) -> list[Claim]:
    claims = []
    for k in sorted({row["k"] for row in rows}):
        of_k = [row for row in rows if row["k"] == k]
        gap = float(np.mean([row["saved_with_moves"] - row["cbm_6"] for row in of_k]))
        claims.append(
            Claim(
                f"ours: k = {k:g} on brokers saves within 2 points of cbm-6, moving included",
                round(gap, 4),
                abs(gap) <= POINTS,
                bar=POINTS,
                note=f"{np.mean([row['signals'] for row in of_k]):.0f} messages of signalling",
            )
        )
    exact = all(row["moved"] == row["best"] for row in rows)
    claims.append(
        Claim("ours: after one batch the links carry the optimum exactly", exact, exact, "exactly")
    )
    return claims


def draw(report: Report, path: Path) -> None:
    """Draw the saving against k, on brokers beside the plan."""
    series: dict[str, list[tuple[float, float, float]]] = {}
    for name, field in (("brokers, moving included", "saved_with_moves"), ("cbm-6", "cbm_6")):
        for k in sorted({row["k"] for row in report.rows}):
            values = [100 * row[field] for row in report.rows if row["k"] == k]
            series.setdefault(name, []).append((k, *cbm.mean_error(values)))
    cbm.lines(
        path,
        series,
        title=f"Traffic saved by filters that follow commuters, q = {SKEW:g} (CBM figure 6)",
        across="filters k",
        up="1 - Tm/Ts, %",
    )
