"""What the filters workload knows beside the machines: who wants what, what moved, what it costs.

`FilterRecord` judges each step of a filter. `Census` counts a static hour: the events that cross
links, against the cost of the placement as `placement` computes it from the true subscriptions.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect
from roamcast.model.parts import Load
from roamcast.model.records import OverlayStep
from roamcast.overlay.events import SendOnLink
from roamcast.overlay.filters.messages import FilterOrder, NodeReport
from roamcast.overlay.filters.part import NodeFilters
from roamcast.overlay.filters.states import MATCHING, FilterState
from roamcast.overlay.flows.messages import Event
from roamcast.overlay.flows.relay import ForwardingRule
from roamcast.overlay.overlay import OverlayNode
from roamcast.overlay.topology.trees import Tree as NodeTree
from roamcast.placement.problem import Problem, traffic
from roamcast.placement.tree import Tree
from roamcast.sim.checkers import Violation
from roamcast.sim.workloads._roaming_parts import Producer, RoamingRecord
from roamcast.sim.workloads.overlay import BareNode

MAJORS: Final = 8
WANTED: Final = (
    *(f"major = {number}" for number in range(MAJORS)),
    "major IN (1, 3, 5)",
    "major < 3",
    "major >= 4",
    "major <> 2",
    "true",
    "major = 99",
)
"""What people ask for; nobody publishes the last one."""


class ItemSource(Producer):
    """It publishes items: a major key, a minor key, a value."""

    major: int | None = None
    """What it publishes next; None for any."""

    def _context(self) -> Context:
        major = self._draw.randrange(MAJORS + 1) if self.major is None else self.major
        return Context(self.name, attributes={"major": major, "minor": self._draw.randrange(3)})


class ItemRecord(RoamingRecord):
    """Also: nobody gets what they do not want."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: dict[str, Filter] = {}

    def delivered(self, consumer: str, event: Event) -> None:
        """Check an item against what its consumer asked for."""
        if not self.wanted[consumer].matches(event.context):
            raise Violation("nobody else gets an item", f"{consumer} has {event.context}")
        super().delivered(consumer, event)


class FilterRecord:
    """The steps of all filters, as their nodes told them."""

    def __init__(self) -> None:
        self._matched: dict[str, bool] = {}
        self._left_us: dict[str, int] = {}
        """Nodes → when they last ceased to match."""
        self._moving: dict[str, tuple[str, int]] = {}
        """Nodes whose filter migrates → the node it goes to, and since when."""
        self._batch: dict[str, int] = {}
        self._planned: dict[str, int] = {}
        """Nodes → the number of the last batch they planned in this life."""
        self.steps = 0

    def booted(self, node: str, matches: bool, now: int) -> None:
        """Take a node's new life: its filter and its orders are gone."""
        self._set(node, matches, now)
        self._moving.pop(node, None)
        self._batch[node] = self._planned[node] = 0

    def planned(self, node: str, numbers: Collection[int]) -> None:
        """Judge a batch by its orders: two of one number would both be obeyed."""
        for number in numbers:
            if number <= self._planned[node]:
                detail = f"{node} plans batch {number} after {self._planned[node]}"
                raise Violation("two batches never share a number", detail)
        self._planned[node] = max((self._planned[node], *numbers))

    def moved(self, node: str, step: OverlayStep, matches: bool, now: int) -> None:
        """Judge a step."""
        self.steps += 1
        if step.number < self._batch[node]:
            detail = f"{node} obeys batch {step.number} after {self._batch[node]}"
            raise Violation("the newer batch wins", detail)
        self._batch[node] = step.number
        moving = self._moving.pop(node, None)
        state = FilterState(step.step)
        if matches != (state in MATCHING):
            raise Violation("make before break", f"{node} is {state} and matches: {matches}")
        if moving is not None and state is FilterState.ABSENT:
            target, since = moving
            if not self._matched.get(target) and self._left_us.get(target, -1) < since:
                raise Violation("make before break", f"{node} let go before {target} matched")
        if state is FilterState.MIGRATING:
            self._moving[node] = (step.node, now)
        self._set(node, matches, now)

    def _set(self, node: str, matches: bool, now: int) -> None:
        if self._matched.get(node) and not matches:
            self._left_us[node] = now
        self._matched[node] = matches


def tell_batches(filters: NodeFilters, tell: Callable[[set[int]], None]) -> None:
    """Tell the numbers that a batch gives its orders; only here they are known as one batch's."""
    real = filters._batch  # noqa: SLF001

    def batch(now: int) -> list[Effect]:
        effects = real(now)
        orders = [one.message for one in effects if isinstance(one, SendOnLink)]
        ordered = {one.rank.number for one in orders if isinstance(one, FilterOrder)}
        tell(ordered | {one.number for one in effects if isinstance(one, OverlayStep)})
        return effects

    filters._batch = batch  # type: ignore[method-assign]  # noqa: SLF001


class CountedForwarding:
    """Counts the links over which a node sends events on; its rule decides."""

    def __init__(self, rule: ForwardingRule, count: Callable[[int], None]) -> None:
        self._rule = rule
        self._count = count

    def links(self, event: Event, came_from: str | None, known: Collection[str]) -> set[str]:
        """Name the links over which an event goes on."""
        found = self._rule.links(event, came_from, known)
        self._count(len(found))
        return found


class FilterNode(BareNode):
    """A node whose steps are told to the record."""

    def __init__(
        self,
        node: OverlayNode,
        *,
        epoch: int,
        now: int,
        load: Load,
        count: Callable[[int], None],
        report: Callable[[OverlayStep, bool], None],
    ) -> None:
        super().__init__(node, epoch=epoch, now=now, load=load)
        assert self.overlay.flows is not None
        relay = self.overlay.flows.relay
        relay.forwarding = CountedForwarding(relay.forwarding, count)
        self._report = report

    def receive(self, given: Any, now: int) -> list[Effect]:
        """Tell the record what moved."""
        return self._shown(super().receive(given, now))

    def advance(self, now: int) -> list[Effect]:
        """Tell the record what moved."""
        return self._shown(super().advance(now))

    def _shown(self, effects: list[Effect]) -> list[Effect]:
        steps = [one for one in effects if isinstance(one, OverlayStep) and one.layer == "filters"]
        for number, effect in enumerate(steps, start=1):
            # Of several steps at once only the last one is what the node does now.
            last = number == len(steps)
            does = self.overlay.filters.matches if last else FilterState(effect.step) in MATCHING
            self._report(effect, does)
        return effects


def lie(filters: NodeFilters, draw: Callable[[int], int]) -> None:
    """Let a node claim any flow."""
    real = filters._own  # noqa: SLF001 — a liar is this very part with another answer

    def own() -> NodeReport:
        report = real()
        return NodeReport(
            report.node, report.epoch, report.number, draw(10**12), report.state, report.rank
        )

    filters._own = own  # type: ignore[method-assign]  # noqa: SLF001


def problem_of(tree: NodeTree, wanted: Mapping[str, Sequence[Filter]], items: list[Context]) -> (
    tuple[Problem, list[str], dict[str, int]]
):  # fmt: skip
    """Give the traffic problem of items published at the root, by brute force; also the flows."""
    names = sorted(tree)
    below: dict[str, set[int]] = {
        name: {
            number
            for number, item in enumerate(items)
            if tree[name] != name and any(one.matches(item) for one in wanted.get(name, ()))
        }
        for name in names
    }
    depth: dict[str, int] = {}
    for name in names:
        at, length = name, 0
        while tree[at] != at:
            at, length = tree[at], length + 1
        depth[name] = length
    for name in sorted(names, key=lambda one: -depth[one]):
        if tree[name] != name:
            below[tree[name]] |= below[name]
    flows = {name: len(items) for name, items in below.items()}
    parent = [-1 if tree[name] == name else names.index(tree[name]) for name in names]
    problem = traffic(Tree.of(parent), np.array([float(flows[name]) for name in names]))
    return problem, names, flows
