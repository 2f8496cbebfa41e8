"""The real machines of casts send what is counted, message for message, on 200 routers."""

from collections import Counter

import numpy as np
import pytest

from roamcast.overlay.casts.settings import CastSettings
from roamcast.sim.hops.counting import POLICIES, list_hops
from roamcast.sim.hops.machines import CastNet
from roamcast.sim.hops.reference import RESOLVE, historic_hops, historic_resolutions
from roamcast.sim.hops.routers import HistoricCast, Routers, Setting, draw_cast, draw_routers

SMALL = Setting(routers=200, access=140, trusted=12, alpha=5, contexts_per_access=1.5)


def drawn(seed: int, edge: float) -> tuple[Routers, HistoricCast]:
    generator = np.random.default_rng(seed)
    routers = draw_routers(SMALL, generator)
    return routers, draw_cast(routers, edge, generator)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("seed", "edge"), [(0, 0.3), (1, 0.5), (2, 1.0), (3, 0.1)])
def test_machines_ask_and_answer_as_is_counted(policy: str, seed: int, edge: float) -> None:
    routers, cast = drawn(seed, edge)
    net = CastNet(routers)
    net.send(cast, policy)
    plain = [hop for hop in historic_hops(routers, cast, POLICIES[policy]) if hop.phase != RESOLVE]
    assert Counter(net.hops) == Counter(plain)
    counted = list_hops(routers, cast, POLICIES[policy])
    rows = Counter((hop.phase, hop.source, hop.target, len(hop.vids)) for hop in net.hops)
    assert rows == Counter((p, a, b, v) for p, a, b, _, v in counted.tolist() if p != RESOLVE)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_machines_deposit_where_is_resolved(policy: str, seed: int) -> None:
    routers, cast = drawn(seed, 0.5)
    net = CastNet(routers)
    net.send(cast, policy)
    wanted = historic_resolutions(routers, cast, POLICIES[policy])
    assert Counter(net.deposits) == Counter(wanted)


@pytest.mark.parametrize("policy", ["BTH2", "BTH3", "BTH4"])
def test_above_the_collecting_router_nobody_waits(policy: str) -> None:
    """Whoever resolves for itself does so at once: no patience runs out, and nobody asks again."""
    routers, cast = drawn(1, 0.5)
    net = CastNet(routers, CastSettings(patience_us=250_000_000, hop_us=1))
    net.send(cast, policy, seconds=10)
    wanted = historic_resolutions(routers, cast, POLICIES[policy])
    assert Counter(net.deposits) == Counter(wanted)


def test_fbth_collects_at_the_first_branching_point_not_at_the_origin() -> None:
    routers, cast = drawn(1, 0.5)
    net = CastNet(routers)
    net.send(cast, "FBTH")
    forwards = Counter(hop.source for hop in net.hops if hop.phase == 0)
    # The origin is an access node of the target, above the branching point: it resolves its own.
    collectors = {node for node, _, _ in net.deposits} - {cast.origin}
    assert [forwards[node] > 1 for node in collectors] == [True]
    assert forwards[cast.origin] == 1
