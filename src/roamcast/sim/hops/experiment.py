"""TCC's experiments as functions of their parameters and a seed, for figures and sweeps.

A run is one seed: a topology with its roles and contexts, drawn by the seed alone, and casts drawn
by the seed and the edge of their targets. So runs with other edges or policies share a network.
"""

from collections import Counter
from typing import Any

import numpy as np

from roamcast.sim.hops.counting import POLICIES, HopCounts, count_hops, list_hops
from roamcast.sim.hops.future import FutureCounts, count_future
from roamcast.sim.hops.machines import CastNet
from roamcast.sim.hops.reference import RESOLVE
from roamcast.sim.hops.routers import (
    HistoricCast,
    Routers,
    Setting,
    draw_cast,
    draw_routers,
    line_routers,
)

Row = dict[str, Any]

CASTS = 20
"""Casts of one run; the paper does not say how many."""

MACHINE_CONTEXTS = 0.3


def historic_run(
    edge: float, seed: int, casts: int = CASTS, **setting: Any
) -> list[dict[str, Any]]:
    """Send the same casts under each policy; give a policy's sums over the casts as a row."""
    routers = draw_routers(Setting(**setting), _network(seed))
    sent = _casts(routers, edge, casts, seed)
    rows = []
    for policy, branching in POLICIES.items():
        counts = np.array([count_hops(routers, cast, branching) for cast in sent])
        total = counts.sum(axis=0)
        highest = counts.max(axis=0)
        row = dict(zip(HopCounts._fields, total.tolist(), strict=True))
        row |= {name: int(highest[HopCounts._fields.index(name)]) for name in _MAXIMA}
        rows.append({"policy": policy, "casts": casts, **row})
    return rows


_MAXIMA = ("receivers_max", "vids_max")


def machine_run(edge: float, seed: int, **setting: Any) -> list[Row]:
    """Send one cast under each policy through the real machines; count beside them.

    Few contexts match, so that every answer fits one page, as it does where hops are counted.
    """
    given = Setting(**{"contexts_per_access": MACHINE_CONTEXTS, **setting})
    routers = draw_routers(given, _network(seed))
    (cast,) = _casts(routers, edge, 1, seed)
    rows = []
    for policy, branching in POLICIES.items():
        net = CastNet(routers)
        net.send(cast, policy)
        sent = Counter((hop.phase, hop.source, hop.target, len(hop.vids)) for hop in net.hops)
        hops = list_hops(routers, cast, branching)
        counted = Counter((p, a, b, v) for p, a, b, _, v in hops.tolist() if p != RESOLVE)
        rows.append(
            {
                "policy": policy,
                "sent": sent.total(),
                "counted": counted.total(),
                "different": ((sent - counted) + (counted - sent)).total(),
                "deposits": len(net.deposits),
            }
        )
    return rows


def future_run(
    edge: float,
    share: float,
    contexts: int,
    seed: int,
    *,
    line: bool = False,
    casts: int = CASTS,
    **setting: Any,
) -> Row:
    """Send casts into the future; each of a network's contexts matches by a chance of `share`."""
    given = Setting(**{"contexts_per_access": 0.0, **setting})
    routers = (line_routers if line else draw_routers)(given, _network(seed))
    generator = np.random.default_rng([seed, 2, contexts, round(share * 10_000)])
    total = np.zeros(len(FutureCounts._fields), np.int64)
    for cast in _casts(routers, edge, casts, seed):
        networks = len(routers.addressed(cast))
        matches = generator.random((networks, contexts)) < share
        matched = np.asarray(matches.any(axis=1), np.bool_)
        total += np.array(list(count_future(routers, cast, matched)))
    return {"casts": casts, **dict(zip(FutureCounts._fields, total.tolist(), strict=True))}


def _network(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 0])


def _casts(routers: Routers, edge: float, casts: int, seed: int) -> list[HistoricCast]:
    generator = np.random.default_rng([seed, 1, round(edge * 10_000)])
    return [draw_cast(routers, edge, generator) for _ in range(casts)]
