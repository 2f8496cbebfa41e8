"""Which signals turn the old placement into the new one? CBM section 3.2, one batch at a time.

At the end of a period the source knows the subscriptions, or only the flows that filters sent up
(footnote 2), computes where filters shall be and tells them. A filter that is switched off stays
where it is, passive, and can be activated again by a message; code moves only when it must.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from roamcast.errors import TreeError
from roamcast.placement.cost import cost
from roamcast.placement.flows import Subscriptions, checked_flows, flows, levels
from roamcast.placement.heuristic import step
from roamcast.placement.optimal import optimal
from roamcast.placement.problem import Problem, traffic
from roamcast.placement.tree import Floats, Tree

Kind = Literal["activate", "passivate", "migrate", "spawn"]


@dataclass(frozen=True)
class Signal:
    """One message from the source: what the filter at `source` does, and for which vertex."""

    kind: Kind
    source: int  # who is told
    target: int  # where a filter is afterwards active (passivate: where it no longer is)


@dataclass(frozen=True)
class Filters:
    """Where filters are: at work, and idle but still in place."""

    active: frozenset[int]
    passive: frozenset[int] = frozenset()

    @staticmethod
    def of(active: Iterable[int], passive: Iterable[int] = ()) -> "Filters":
        """Check that no filter is both at work and idle."""
        states = Filters(frozenset(active), frozenset(passive))
        both = states.active & states.passive
        if both:
            raise TreeError(f"vertex {min(both)} is given as active and as passive")
        return states


@dataclass(frozen=True)
class Batch:
    """What one period's end leads to."""

    filters: Filters
    signals: tuple[Signal, ...]
    cost_before: float  # old subscriptions, old placement
    cost_unmoved: float  # new subscriptions, old placement
    cost: float  # new subscriptions, new placement, without the cost of the change
    change_cost: float


@dataclass(frozen=True)
class ChangeCosts:
    """What it costs to bring a filter to work: moved code, new code, or only a message."""

    migrate: float = 0.0
    spawn: float = 0.0
    activate: float = 0.0


def next_batch(
    tree: Tree,
    before: Subscriptions | Floats,
    after: Subscriptions | Floats,
    current: Filters,
    *,
    limit: int | None = None,
    moves: int | None = None,
    objective: Callable[[Tree, Floats], Problem] = traffic,
    costs: ChangeCosts = ChangeCosts(),  # noqa: B008 (frozen)
) -> Batch:
    """Place filters for the new subscriptions (or flows) and say how to get there.

    With `moves` the heuristic makes at most so many moves; without, the placement is optimal and
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
    return Batch(
        apply(current, sent),
        sent,
        cost(old, sorted(current.active)),
        cost(new, sorted(current.active)),
        target.cost,
        change_cost,
    )


def signals(tree: Tree, current: Filters, active: Iterable[int]) -> tuple[Signal, ...]:
    """Give the signals that make exactly `active` filter, in an order in which they can be sent.

    An idle filter in the right place is activated; otherwise a filter no longer needed migrates,
    each over few links (pairs that meet lower in the tree go first); for what is still missing the
    nearest filter above spawns one, at last the source, which always can; the rest turn passive.
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
    """Let filters obey signals; a signal that cannot be obeyed is an error."""
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


def _flow(tree: Tree, known: Subscriptions | Floats) -> Floats:
    if isinstance(known, Subscriptions):
        return flows(tree, known)
    return checked_flows(tree, known)


def _pairs(tree: Tree, spare: list[int], missing: list[int]) -> list[tuple[int, int]]:
    """Pair filters to move with places to fill where their ways to the root meet lowest."""
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
