"""One batch at the root of the tree: reports in, orders out (CBM sections 3.2 and 6). Pure.

A node that does not report is taken to want everything, and never filters: a guess that costs
traffic, never an item. No flow is larger than the one above it, whatever a node claims.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta

from roamcast.overlay.filters.messages import FilterOrder, NodeReport, Rank
from roamcast.overlay.filters.states import MATCHING, FilterState
from roamcast.overlay.topology.trees import Tree as NodeTree
from roamcast.placement.batch import ChangeCosts, Filters, signals
from roamcast.placement.cost import cost, importance
from roamcast.placement.heuristic import step
from roamcast.placement.optimal import optimal
from roamcast.placement.problem import Problem, combined
from roamcast.placement.tree import Floats, Tree

FILTERS_MAX: Final = 1_000_000


class FilterSettings(msgspec.Struct, frozen=True):
    """How many nodes match, and how often that is thought over."""

    filters: int | Literal["all", "paying"] = "all"
    """At most this many; `all` nodes; or as many as save more than `filter_cost` each."""
    moves: int | None = None
    """Moves of the heuristic in one batch; none: the optimum, whatever it moves."""
    filter_cost: float = 0.0
    """Items a batch that a filter must save to be worth its work."""
    move_cost: float = 0.0
    """Items a batch that a filter at a new node must save beside that."""
    costs: ChangeCosts = ChangeCosts()
    sample: int = 1
    """One item in so many is counted, the same at every node."""
    report_us: int = 5_000_000
    batch_us: int = 60_000_000
    patience_us: int = 2_000_000
    """After this long a filter that migrates or spawns asks again."""
    tries_max: int = 3
    nodes_max: int = 10_000


class NodePlacement(msgspec.Struct, frozen=True):
    """One node of the tree, for people."""

    node: str
    parent: str
    state: Annotated[str, Meta(description="of its filter, or 'silent' if it does not report")]
    flow: Annotated[float, Meta(description="items of the last batch that its side wanted")]
    saves: Annotated[float, Meta(description="items on links that its filter spares, or would")]
    changed_us: Annotated[int, Meta(description="when its filter last moved, by its own clock")]
    why: Annotated[str, Meta(description="why its filter last moved")]


class PlacementView(msgspec.Struct, frozen=True):
    """The placement as the root of the tree sees it."""

    root: str
    batch: int
    filters: int | str
    traffic: Annotated[float, Meta(description="items on all links of the tree, as it is")]
    best: Annotated[float, Meta(description="the same with the best placement of as many filters")]
    one_more: Annotated[float, Meta(description="the same with one filter more")]
    everywhere: Annotated[float, Meta(description="the same with filters everywhere")]
    nowhere: Annotated[float, Meta(description="the same without any")]
    nodes: list[NodePlacement]
    reason: Annotated[str, Meta(description="why the last batch moved something, or nothing")]


class Survey:
    """The tree, its flows and its filters, as one batch sees them."""

    def __init__(
        self,
        tree: NodeTree,
        reports: Mapping[str, NodeReport],
        flows: Mapping[str, float],
        settings: FilterSettings,
    ) -> None:
        """`flows`: the items of the last batch that each node's side wanted, where it is known."""
        self.names = sorted(tree)
        self.parents = tree
        self.reports = reports
        self.settings = settings
        number = {name: index for index, name in enumerate(self.names)}
        self._number = number
        parent = [-1 if tree[name] == name else number[tree[name]] for name in self.names]
        self.tree = Tree.of(parent)
        self.root = self.names[self.tree.root]
        self.flow = self._bounded(flows)
        active = [number[name] for name in self.names if self.state(name) in MATCHING]
        passive = [number[name] for name in self.names if self.state(name) is FilterState.PASSIVE]
        self.current = Filters.of(active, passive)

    def state(self, name: str) -> FilterState | None:
        """Give the state that a node reported, None if it did not."""
        report = self.reports.get(name)
        return None if report is None else report.state

    def problem(self) -> Problem:
        """Weigh traffic, what a filter costs, and what moving one costs."""
        settings = self.settings
        return combined(
            self.tree,
            self.flow,
            traffic_weight=1.0,
            filter_cost=settings.filter_cost,
            move_cost=settings.move_cost,
            current=self.current.active,
        )

    def orders(self, rank: Rank) -> tuple[tuple[FilterOrder, ...], str]:
        """Give what to order, and why."""
        settings = self.settings
        if settings.filters == "all":
            missing = [n for n in self.names if self.state(n) not in (*MATCHING, None)]
            return tuple(FilterOrder(rank, n, "activate", n) for n in missing), "all nodes match"
        problem = self.problem()
        limit = None if settings.filters == "paying" else settings.filters
        active = sorted(self.current.active)
        before = cost(problem, active)
        if limit is not None and len(active) > limit:
            before = np.inf  # too many: whatever fits the limit is better
        if settings.moves is None:
            target = optimal(problem, limit)
        else:
            target = step(problem, active, limit, settings.moves)[0]
        wanted = [one for one in target.filters if self.state(self.names[one]) is not None]
        sent = signals(self.tree, self.current, wanted)
        prices = {**asdict(settings.costs), "passivate": 0.0}
        change = sum(prices[signal.kind] for signal in sent)
        after = cost(problem, wanted)
        if not sent:
            return (), "the placement is right"
        if after + change >= before:
            return (), f"a change would save {before - after:g} items and cost {change:g}"
        names = self.names
        return (
            tuple(
                FilterOrder(rank, names[one.source], one.kind, names[one.target]) for one in sent
            ),
            f"saves {before - after:g} items a batch" if np.isfinite(before) else "fits the limit",
        )

    def view(self, batch: int, reason: str, reasons: Mapping[Rank, str]) -> PlacementView:
        """Describe the placement and what others would cost; `reasons` of the batches known."""
        problem = combined(self.tree, self.flow, traffic_weight=1.0)
        active = sorted(self.current.active)
        worth = importance(problem, active)
        rows = []
        for index, name in enumerate(self.names):
            report = self.reports.get(name)
            saves = float(worth[self.tree.position[index]])
            rows.append(
                NodePlacement(
                    name,
                    self.parents[name],
                    "silent" if report is None else report.state.value,
                    float(self.flow[index]),
                    saves if np.isfinite(saves) else 0.0,
                    0 if report is None else report.changed_us,
                    "it does not report" if report is None else _why(report.rank, reasons),
                )
            )
        everyone = range(len(self.names))
        return PlacementView(
            self.root,
            batch,
            self.settings.filters,
            cost(problem, active),
            optimal(problem, len(active)).cost,
            optimal(problem, len(active) + 1).cost,
            cost(problem, everyone),
            cost(problem, ()),
            rows,
            reason,
        )

    def _bounded(self, flows: Mapping[str, float]) -> Floats:
        """Give every node's flow; a silent one wants all that the node above it does."""
        known = np.zeros(len(self.names))
        for place in range(len(self.names)):  # in pre-order: parents come before children
            index = int(self.tree.order[place])
            name = self.names[index]
            above = known[int(self.tree.parent[index])] if place else np.inf
            stated = flows.get(name)
            if stated is None:
                stated = above if place else max(flows.values(), default=0.0)
            known[index] = min(stated, above)
        return known


def _why(rank: Rank, reasons: Mapping[Rank, str]) -> str:
    if not rank.number:
        return "since it started"
    batch = f"batch {rank.number} of {rank.root}"
    return f"{batch}: {reasons[rank]}" if rank in reasons else batch
