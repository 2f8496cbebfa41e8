"""The signals from one placement to the next, one batch at a time (CBM section 3.2).

At the end of a period the source knows the subscriptions, or only the flows that filters reported
(footnote 2). It computes where filters should be and signals them. A filter that is switched off
stays in place, passive, and a message can activate it again; code moves only when it must.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from roamcast.errors import TreeError
from roamcast.placement.cost import cost
from roamcast.placement.flows import LeafWants, checked_flows, flows, levels
from roamcast.placement.heuristic import step
from roamcast.placement.optimal import optimal
from roamcast.placement.problem import Problem, traffic
from roamcast.placement.tree import Floats, Tree

Kind = Literal["activate", "passivate", "migrate", "spawn"]


@dataclass(frozen=True)
class Signal:
    """One message from the source: what the filter at `source` does, and for which vertex."""

    kind: Kind
    source: int  # the vertex that receives the signal
    target: int  # where a filter is active afterwards (passivate: where it no longer is)


@dataclass(frozen=True)
class Filters:
    """The vertices with filters: active ones, and passive ones still in place."""

    active: frozenset[int]
    passive: frozenset[int] = frozenset()

    @staticmethod
    def of(active: Iterable[int], passive: Iterable[int] = ()) -> "Filters":
        """Check that no filter is both active and passive."""
        states = Filters(frozenset(active), frozenset(passive))
        both = states.active & states.passive
        if both:
            raise TreeError(f"vertex {min(both)} is given as active and as passive")
        return states


@dataclass(frozen=True)
class BatchPlan:
    """The outcome of one period's end: signals, placement and costs."""

    filters: Filters
    signals: tuple[Signal, ...]
    cost_before: float  # old subscriptions, old placement
    cost_unmoved: float  # new subscriptions, old placement
    cost: float  # new subscriptions, new placement, without the cost of the change
    change_cost: float


@dataclass(frozen=True)
class ChangeCosts:
    """The cost of activating a filter: by moving code, by new code, or by a message alone."""

    migrate: float = 0.0
    spawn: float = 0.0
    activate: float = 0.0


def next_batch(
    tree: Tree,
    before: LeafWants | Floats,
    after: LeafWants | Floats,
    current: Filters,
    *,
    limit: int | None = None,
    moves: int | None = None,
    objective: Callable[[Tree, Floats], Problem] = traffic,
    costs: ChangeCosts = ChangeCosts(),  # noqa: B008 (frozen)
) -> BatchPlan:
    """Place filters for the new subscriptions (or flows) and plan the signals.

    With `moves`, the heuristic makes at most that many moves. Without, the placement is optimal and
    any number of filters may move.
    """
    old = objective(tree, _flow(tree, before))
    new = objective(tree, _flow(tree, after))
    if moves is None:
        target = optimal(new, limit)
    else:
        target = step(new, sorted(current.active), limit, moves)[0]
    sent = signals(tree, current, target.filters)
    kinds = [signal.kind for signal in sent]
    change_cost = (
        costs.migrate * kinds.count("migrate")
        + costs.spawn * kinds.count("spawn")
        + costs.activate * kinds.count("activate")
    )
    return BatchPlan(
        apply(current, sent),
        sent,
        cost(old, sorted(current.active)),
        cost(new, sorted(current.active)),
        target.cost,
        change_cost,
    )


def signals(tree: Tree, current: Filters, active: Iterable[int]) -> tuple[Signal, ...]:
    """Return signals after which exactly `active` filter, in an order in which they can be sent.

    A passive filter in the right place is activated. Otherwise a filter no longer needed migrates,
    over few links (pairs that meet lower in the tree first). What is still missing is spawned by
    the nearest filter above, or by the source. The rest turn passive.
    """
    wanted = frozenset(active)
    tree.places(sorted(wanted | current.active | current.passive))
    missing = wanted - current.active
    spare = current.active - wanted
    awake = sorted(missing & current.passive)
    pairs = _pairs(tree, sorted(spare), sorted(missing - current.passive))
    moved = dict(pairs)
    found = [Signal("activate", vertex, vertex) for vertex in awake]
    found += [Signal("migrate", source, target) for source, target in sorted(pairs)]
    able = (current.active & wanted) | frozenset(awake) | frozenset(moved.values())
    for vertex in sorted(missing - frozenset(awake) - frozenset(moved.values())):
        found.append(Signal("spawn", _nearest_above(tree, vertex, able), vertex))
    found += [Signal("passivate", vertex, vertex) for vertex in sorted(spare - moved.keys())]
    return tuple(found)


def apply(current: Filters, sent: Iterable[Signal]) -> Filters:
    """Apply signals to filters; raise if a signal cannot be carried out."""
    active, passive = set(current.active), set(current.passive)
    for signal in sent:
        if signal.kind in ("migrate", "passivate") and signal.source not in active:
            raise TreeError(f"vertex {signal.source} has no active filter to {signal.kind}")
        if signal.kind == "activate" and signal.target not in passive:
            raise TreeError(f"vertex {signal.target} has no passive filter to activate")
        if signal.kind in ("migrate", "passivate"):
            active.remove(signal.source)
        if signal.kind == "passivate":
            passive.add(signal.source)
        else:
            passive.discard(signal.target)
            active.add(signal.target)
    return Filters(frozenset(active), frozenset(passive))


def _flow(tree: Tree, known: LeafWants | Floats) -> Floats:
    if isinstance(known, LeafWants):
        return flows(tree, known)
    return checked_flows(tree, known)


def _pairs(tree: Tree, spare: list[int], missing: list[int]) -> list[tuple[int, int]]:
    """Pair filters to move with vacant vertices: first those whose paths up meet lowest."""
    depth = levels(tree)
    waiting: dict[int, tuple[list[int], list[int]]] = {}
    for side, vertices in enumerate((spare, missing)):
        for vertex in vertices:
            place = int(tree.position[vertex])
            waiting.setdefault(place, ([], []))[side].append(vertex)
    by_depth: dict[int, list[int]] = {}
    for place in waiting:
        by_depth.setdefault(int(depth[place]), []).append(place)
    pairs: list[tuple[int, int]] = []
    for level in range(max(by_depth, default=-1), -1, -1):
        for place in sorted(by_depth.get(level, [])):
            from_here, to_here = waiting.pop(place)
            while from_here and to_here:
                pairs.append((from_here.pop(0), to_here.pop(0)))
            if level == 0 or not (from_here or to_here):
                continue
            above = int(tree.up[place])
            if above not in waiting:
                waiting[above] = ([], [])
                by_depth.setdefault(level - 1, []).append(above)
            waiting[above][0].extend(from_here)
            waiting[above][1].extend(to_here)
    return pairs


def _nearest_above(tree: Tree, vertex: int, able: frozenset[int]) -> int:
    above = int(tree.parent[vertex])
    while above >= 0 and above not in able:
        above = int(tree.parent[above])
    return above if above >= 0 else tree.root
