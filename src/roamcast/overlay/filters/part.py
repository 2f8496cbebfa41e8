"""A node's filter as a part of its broker: it matches what passes, counts, reports and obeys.

Tables are everywhere; only matching is switched. A node that does not match sends everything on, so
any mixture of states is correct and no change loses anything. Every node counts the sampled items
that its side of the tree wants and reports that to its parent; the root of the shared tree plans a
batch and orders the others. Orders that are lost are given again with the next batch, since the
root plans from the states that nodes report, not from what it ordered. Where nothing passes,
nothing is reported.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from roamcast.model.machine import Effect, step
from roamcast.model.parts import Occupancy, Part, PartTimers, Timer
from roamcast.model.records import OverlayStep
from roamcast.overlay.events import (
    CameByLink,
    CutLink,
    NeighbourUp,
    OverlayOpened,
    SendOnLink,
    TreeChanged,
)
from roamcast.overlay.filters.messages import (
    REPORTS_MAX,
    FilterInstalled,
    FilterOrder,
    FlowReports,
    InstallFilter,
    NodeReport,
    Rank,
    ReportsWanted,
)
from roamcast.overlay.filters.planning import FilterSettings, PlacementView, Survey
from roamcast.overlay.filters.states import FILTER_TABLE, MATCHING, FilterEvent, FilterState
from roamcast.overlay.topology.topology import NodeTopology

RANK_MAX = 2**53
"""Nobody plans so many batches: a higher number is garbage."""

REASONS_MAX = 100
"""Batches of which the root remembers why they moved something."""


_BEGUN = {
    FilterState.MIGRATING: FilterEvent.MIGRATE,
    FilterState.SPAWNING: FilterEvent.SPAWN,
}


class NodeFilterView(msgspec.Struct, frozen=True):
    """A node's filter, and the whole placement where this node plans it."""

    node: str
    state: Annotated[str, Meta(description="of this node's filter")]
    root: Annotated[str, Meta(description="the node that plans: ask it for the placement")]
    placement: PlacementView | None


class _Job:
    """A filter that is to be installed elsewhere, and how often that was asked."""

    def __init__(self, rank: Rank, target: str, kind: FilterEvent) -> None:
        self.rank = rank
        self.target = target
        self.kind = kind
        self.tries = 0


class FilterReportDue(Timer, frozen=True):
    """What is new is reported."""


class FilterBatchDue(Timer, frozen=True):
    """The root plans with the reports that it has."""


class FilterJobDue(Timer, frozen=True):
    """A node is asked again to match in place of this one."""

    node: str


class NodeFilters(Part):
    """The filter of one node, and the batch loop while it is the root."""

    part: ClassVar[str] = "filters"
    inputs: ClassVar = (OverlayOpened, NeighbourUp, TreeChanged)
    carried: ClassVar = {
        CameByLink: (FlowReports, ReportsWanted, FilterOrder, InstallFilter, FilterInstalled)
    }

    def __init__(self, topology: NodeTopology, settings: FilterSettings, *, now: int) -> None:
        self.node = topology.node
        self.settings = settings
        self.state = FilterState.ACTIVE if settings.filters == "all" else FilterState.ABSENT
        self.rank = Rank()
        self.reason = "no batch was planned yet"
        self._reasons: dict[Rank, str] = {}
        """At the root: why the last batches moved something."""
        self.signalled = 0
        """Messages of signalling that this node sent or passed on."""
        self._topology = topology
        self._epoch = 0
        self._number = 0
        self._wanted = 0
        self._fresh = False
        """Whether something was counted that no report is due for."""
        self._changed_us = now
        self._reports: dict[str, NodeReport] = {}
        """The newest report of every node of our side of the tree; of all nodes at the root."""
        self._untold: dict[str, None] = {}
        """Nodes whose newest report our parent may lack."""
        self._parent = ""
        self._is_root = True
        self._before: dict[str, NodeReport] = {}
        """At the root: the reports at the last batch."""
        self._flows: dict[str, float] = {}
        self._planned = 0
        """At the root: the number of its last batch that moved something."""
        self._jobs: dict[str, _Job] = {}
        """Targets → what is to be installed there."""
        self._timers = PartTimers(
            {
                FilterReportDue: lambda _, _now: self._report(),
                FilterBatchDue: lambda _, now: self._batch(now),
                FilterJobDue: lambda timer, now: self._again(timer.node, now),
            }
        )

    # --- reads: what passes --------------------------------------------------------------------

    @property
    def matches(self) -> bool:
        """Whether this node matches what passes through it."""
        return self.state in MATCHING

    @property
    def root(self) -> str:
        """The node that plans: the root of the shared tree."""
        node = self.node
        tree = self._topology.tree
        while tree.get(node, node) != node:
            node = tree[node]
        return node

    def sampled(self, key: object) -> bool:
        """Whether an item of this name is counted; the same at every node."""
        share = self.settings.sample
        if share <= 1:
            return True
        digest = blake2b(msgspec.msgpack.encode(key), digest_size=8).digest()
        return int.from_bytes(digest, "big") % share == 0

    def links(self, beyond: Callable[[], Sequence[str]], came_from: str | None) -> Sequence[str]:
        """Name the links that an item goes on over; `beyond` matches it against the table.

        Where an item is published it is matched in any case: what nobody wants never leaves.
        """
        if self.matches:
            return beyond()
        if came_from is None and not beyond():
            return ()
        return [link for link in self._topology.tree_links if link != came_from]

    @property
    def counted(self) -> int:
        """Sampled items from above that this side of the tree wanted, since the node started."""
        return self._wanted

    def view(self) -> NodeFilterView:
        """Describe this node's filter; the root also describes all others."""
        root = self.root
        plan = None
        if root == self.node:
            plan = self._survey().view(self.rank.number, self.reason, self._reasons)
        return NodeFilterView(self.node, self.state.value, root, plan)

    def occupancy(self) -> Occupancy:
        """How much is known of other nodes."""
        bound = self.settings.nodes_max
        return {
            "reports": (len(self._reports), bound),
            "untold reports": (len(self._untold), bound),
            "filters on their way": (len(self._jobs), bound),
            "reasons of batches": (len(self._reasons), REASONS_MAX),
        }

    # --- what passes ---------------------------------------------------------------------------

    def count(
        self, beyond: Callable[[], Sequence[str]], here: Callable[[], bool], came_from: str | None
    ) -> None:
        """Count a sampled item that passed: the links that want it, and whether own clients do.

        f(v) counts what must cross the link from above. What comes from below needs no such link,
        and what only the root's own clients want crosses none. Neither is asked without need.
        """
        parent = self._up()
        before = self._wanted
        if parent is None:
            self._wanted += any(link != came_from for link in beyond())
        elif came_from == parent:
            self._wanted += here() or any(link != parent for link in beyond())
        planned = FilterReportDue() in self._timers
        self._fresh = self._fresh or (self._wanted > before and not planned)

    # --- the part ------------------------------------------------------------------------------

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take reports of children, orders of the root, and answers of other filters."""
        if isinstance(given, OverlayOpened):
            self._epoch = given.epoch
            return ()
        if isinstance(given, TreeChanged | NeighbourUp):
            self._stir(now)
            return [*self._step_down(now), *self._ask_children()]
        assert isinstance(given, CameByLink)
        message = given.message
        match message:
            case FlowReports(reports):
                self._stir(now)
                return self._learn(given.node, reports)
            case ReportsWanted() if given.node == self._parent:
                self._untold = dict.fromkeys(self._reports)
                self._stir(now)
            case FilterOrder() | InstallFilter() | FilterInstalled():
                if message.rank.number > RANK_MAX:
                    return (CutLink(given.node, "garbage: a batch that nobody planned"),)
                return self._route(message, now)
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        """Report, plan, and ask again for what was not installed."""
        if self._fresh:
            self._fresh = False
            self._stir(now)
        return self._timers.fire(now)

    def deadline(self) -> int | None:
        """When the next of these is due; at once if a report is to be set."""
        return 0 if self._fresh else self._timers.deadline()

    # --- reports -------------------------------------------------------------------------------

    def _stir(self, now: int) -> None:
        """Something is new: report it, and plan with it, after a while."""
        self._timers.sooner(FilterReportDue(), now + self.settings.report_us)
        if self._up() is None:
            self._timers.sooner(FilterBatchDue(), now + self.settings.batch_us)

    def _step_down(self, now: int) -> Sequence[Effect]:
        """Cease to match once another node plans: it knows only of filters that are reported."""
        was_root, self._is_root = self._is_root, self._up() is None
        if not was_root or self._is_root or self.settings.filters == "all" or not self.matches:
            return ()
        return [*self._give_up(now), *self._move(FilterEvent.PASSIVATE, now, self.rank)]

    def _ask_children(self) -> Sequence[Effect]:
        """Ask for all reports: some were lost, or came before this node knew of their tree."""
        tree = self._topology.tree
        return [
            SendOnLink(link, ReportsWanted())
            for link in self._topology.tree_links
            if tree.get(link) == self.node and link in self._topology.links
        ]

    def _up(self) -> str | None:
        """Give the link towards the root, None at the root."""
        parent = self._topology.tree.get(self.node, self.node)
        return None if parent == self.node else parent

    def _own(self) -> NodeReport:
        return NodeReport(
            self.node,
            self._epoch,
            self._number,
            self._wanted,
            self.state,
            self.rank,
            max(0, self._changed_us),
        )

    def _report(self) -> list[Effect]:
        """Tell the parent what is new; a new parent is told everything."""
        tree = self._topology.tree
        self._number += 1
        self._keep(self._own())
        for gone in [node for node in self._reports if node not in tree]:
            del self._reports[gone]
            self._untold.pop(gone, None)
        parent = self._up() or ""
        if parent != self._parent:
            self._parent = parent
            self._untold = dict.fromkeys(self._reports)
        if not parent or parent not in self._topology.links:
            return []
        untold = [self._reports[node] for node in self._untold]
        self._untold.clear()
        return [
            SendOnLink(parent, FlowReports(tuple(untold[start : start + REPORTS_MAX])))
            for start in range(0, len(untold), REPORTS_MAX)
        ]

    def _learn(self, link: str, reports: Sequence[NodeReport]) -> Sequence[Effect]:
        for report in reports:
            if report.node == self.node or self._topology.hop(report.node) != link:
                continue  # the tree has changed: it comes by another link
            if report.rank.number > RANK_MAX:
                return (CutLink(link, "garbage: a batch that nobody planned"),)
            if report.node not in self._reports and len(self._reports) >= self.settings.nodes_max:
                return (CutLink(link, "too many nodes report"),)
            self._keep(report)
        return ()

    def _keep(self, report: NodeReport) -> None:
        known = self._reports.get(report.node)
        if known is None or report.version > known.version:
            self._reports[report.node] = report
            self._untold[report.node] = None

    # --- the root ------------------------------------------------------------------------------

    def _survey(self) -> Survey:
        return Survey(self._topology.tree, self._reports, self._flows, self.settings)

    def _batch(self, now: int) -> list[Effect]:
        """Plan the next batch, if this node is the root."""
        if self._up() is not None:
            self._before.clear()
            self._flows.clear()
            return []
        self._number += 1
        self._keep(self._own())
        self._flows = {
            node: float(report.wanted - self._counted_before(report))
            for node, report in self._reports.items()
            if node in self._topology.tree
        }
        self._before = dict(self._reports)
        # A new root goes on above every batch that some node obeyed, and above those of its own
        # that nobody has reported yet: two batches of one number would both be obeyed.
        highest = max(report.rank.number for report in self._reports.values())
        rank = Rank(max(highest, self.rank.number, self._planned) + 1, self.node)
        orders, self.reason = self._survey().orders(rank)
        if orders:
            self._planned = rank.number
            self._reasons[rank] = self.reason
            if len(self._reasons) > REASONS_MAX:
                del self._reasons[next(iter(self._reasons))]
        effects: list[Effect] = []
        for order in orders:
            effects += self._route(order, now)
        return effects

    def _counted_before(self, report: NodeReport) -> int:
        """Give what a node had counted at the last batch; nothing in another life of it."""
        before = self._before.get(report.node)
        if before is None or before.epoch != report.epoch:
            return 0
        return min(before.wanted, report.wanted)

    # --- orders --------------------------------------------------------------------------------

    def _route(
        self, message: FilterOrder | InstallFilter | FilterInstalled, now: int
    ) -> Sequence[Effect]:
        """Send a message on towards its node, or obey it; what cannot go on is given up."""
        if message.to != self.node:
            hop = self._topology.hop(message.to)
            if hop is None or hop not in self._topology.links:
                return ()
            self.signalled += 1
            return (SendOnLink(hop, message),)
        if isinstance(message, FilterOrder):
            return self._ordered(message, now)
        if isinstance(message, InstallFilter):
            return self._install(message, now)
        return self._installed(message, now)

    def _ordered(self, order: FilterOrder, now: int) -> Sequence[Effect]:
        if order.rank < self.rank:
            return ()  # the newer batch wins
        effects: list[Effect] = []
        if order.rank > self.rank:
            self.rank = order.rank
            effects += self._give_up(now)
        match order.kind:
            case "activate":
                return [*effects, *self._move(FilterEvent.ACTIVATE, now, order.rank)]
            case "passivate":
                # what a root planned under this number before it crashed is void
                effects += self._give_up(now)
                return [*effects, *self._move(FilterEvent.PASSIVATE, now, order.rank)]
            case "migrate":
                return [*effects, *self._begin(order, FilterEvent.MIGRATE, now)]
            case "spawn":
                return [*effects, *self._begin(order, FilterEvent.SPAWN, now)]

    def _begin(self, order: FilterOrder, kind: FilterEvent, now: int) -> Sequence[Effect]:
        """Install a filter at another node; this one matches until that one does."""
        effects: Sequence[Effect] = ()
        if order.target == self.node:
            return self._move(FilterEvent.ACTIVATE, now, order.rank)
        if (self.state, kind) in FILTER_TABLE:
            effects = self._move(kind, now, order.rank, order.target)
        # else: the source of all items spawns without a filter of its own
        self._jobs[order.target] = _Job(order.rank, order.target, kind)
        return [*effects, *self._again(order.target, now)]

    def _again(self, target: str, now: int) -> Sequence[Effect]:
        job = self._jobs.get(target)
        if job is None:
            return ()
        if job.tries >= self.settings.tries_max:
            return self._over(target, FilterEvent.GAVE_UP, now)
        job.tries += 1
        self._timers.set(FilterJobDue(target), now + self.settings.patience_us)
        return self._route(InstallFilter(job.rank, target, self.node), now)

    def _install(self, asked: InstallFilter, now: int) -> Sequence[Effect]:
        if asked.rank < self.rank:
            return ()  # who asks gives up, and goes on matching
        effects: list[Effect] = []
        if asked.rank > self.rank:
            self.rank = asked.rank
            effects += self._give_up(now)
        effects += self._move(FilterEvent.ACTIVATE, now, asked.rank)
        return [*effects, *self._route(FilterInstalled(asked.rank, asked.source, self.node), now)]

    def _installed(self, answer: FilterInstalled, now: int) -> Sequence[Effect]:
        job = self._jobs.get(answer.node)
        if job is None or job.rank != answer.rank:
            return ()
        self._timers.cancel(FilterJobDue(answer.node))
        return self._over(answer.node, FilterEvent.INSTALLED, now)

    def _over(self, target: str, event: FilterEvent, now: int) -> Sequence[Effect]:
        """End a job; what this node began is over with the last job of its kind.

        A batch may tell a node to spawn here and to migrate there: that the one is installed does
        not say that the other is.
        """
        del self._jobs[target]
        begun = _BEGUN.get(self.state)
        if begun is None or any(job.kind is begun for job in self._jobs.values()):
            return ()
        return self._move(event, now, self.rank)

    def _give_up(self, now: int) -> Sequence[Effect]:
        """Newer orders came: what was begun is void, and this node matches as before."""
        for target in self._jobs:
            self._timers.cancel(FilterJobDue(target))
        self._jobs.clear()
        return self._move(FilterEvent.GAVE_UP, now, self.rank) if self._is_busy() else ()

    def _is_busy(self) -> bool:
        return self.state in _BEGUN

    def _move(self, event: FilterEvent, now: int, rank: Rank, target: str = "") -> Sequence[Effect]:
        """Change the state, and record which batch made it so."""
        if event is FilterEvent.ACTIVATE and self._is_busy():
            return ()  # it matches already, until what it began is over
        before = self.state
        self.state = step(FILTER_TABLE, before, event)
        if self.state is before:
            return ()
        self._changed_us = now
        self._stir(now)
        return (OverlayStep("filters", self.state.value, target, rank.number),)
