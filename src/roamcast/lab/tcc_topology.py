"""TCC section IV: the degree distribution of the overlay, and its access and trusted nodes.

Fabrikant, Koutsoupias and Papadimitriou (2002) prove a power-law bound for 4 ≤ α = o(√n), a star
for α < 1/√2 and an exponential tail for α beyond √n. Berger, Bollobás, Borgs, Chayes and Riordan
(2003) add that almost all nodes are leaves and that degrees bunch near the largest: the law holds
for the body of the inner nodes, not at either end. So the fit leaves out the leaves and the 5 % of
inner nodes with the most links (`_powerlaw`).
"""

from pathlib import Path
from typing import Any

import numpy as np

from roamcast.lab._powerlaw import Fit, fit_body, power_over_exponential
from roamcast.lab.report import Claim, Report, Steps, near
from roamcast.sim.topology.graph import Topology
from roamcast.sim.topology.roles import (
    TCC_ACCESS_NODES,
    TCC_TRUSTED_NODES,
    access_nodes,
    choose_trusted,
    trusted_nodes,
    zipf_exponent,
)
from roamcast.sim.topology.tradeoff import TCC_ALPHA, TCC_ROUTERS, tradeoff_tree

TITLE = "TCC's overlay: degrees of the trade-off topology, α = 20, and its access and trusted nodes"

SEEDS, SEEDS_QUICK = 10, 3
LARGE = 100_000
BEYOND = 1000.0
"""An α far above √10,000 = 100, where the source has an exponential tail."""

PEOPLE = 100_000
CASES = ((TCC_ROUTERS, 4.0), (TCC_ROUTERS, TCC_ALPHA), (LARGE, TCC_ALPHA), (TCC_ROUTERS, BEYOND))


def run(quick: bool, progress: Steps) -> Report:
    """Build every case over several seeds; choose access and trusted nodes on TCC's case."""
    seeds = SEEDS_QUICK if quick else SEEDS
    rows: list[dict[str, Any]] = []
    tails: list[dict[str, Any]] = []
    with progress("topologies", len(CASES) * seeds) as step:
        for routers, alpha in CASES:
            built = []
            for seed in range(seeds):
                built.append(tradeoff_tree(routers, np.random.default_rng(seed), alpha))
                step(1)
            rows += _rows(_case(routers, alpha), [_shape(topology) for topology in built])
            tails += _tail(routers, alpha, built[0].degrees)
    rows += _rows("roles", [_roles(seed) for seed in range(seeds)])
    parameters = {
        "alpha": TCC_ALPHA,
        "routers": TCC_ROUTERS,
        "access nodes": TCC_ACCESS_NODES,
        "trusted nodes": TCC_TRUSTED_NODES,
        "access rank exponent": zipf_exponent(TCC_ROUTERS),
        "trusted rank exponent": zipf_exponent(TCC_TRUSTED_NODES),
        "people": PEOPLE,
        "seeds": seeds,
        "fit": "p(k) ∝ k^-λ on 2…95 % of the inner nodes, maximum likelihood",
    }
    return Report("tcc-topology", parameters, rows + tails, _claims(rows))


def _shape(topology: Topology) -> dict[str, float]:
    degrees = topology.degrees
    fit: Fit = fit_body(degrees)
    return {
        "exponent": fit.exponent,
        "fit_high": fit.high,
        "ks": fit.distance,
        "inner_fitted": fit.count / int((degrees > 1).sum()),
        "power_over_exponential": power_over_exponential(degrees),
        "leaves": float((degrees == 1).mean()),
        "degree_max": int(degrees.max()),
        "top_1_percent_links": _top_share(topology),
        "depth_max": int(topology.depths().max()),
    }


def _rows(case: str, found: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Return a row for each quantity: its mean over the seeds, and its ends."""
    rows = []
    for name in found[0]:
        values = [float(one[name]) for one in found]
        mean, low, high = float(np.mean(values)), min(values), max(values)
        rows.append({"case": case, "quantity": name, "ours": mean, "lowest": low, "highest": high})
    return rows


def _case(routers: int, alpha: float) -> str:
    return f"n = {routers:,}, α = {alpha:g}"


def _top_share(topology: Topology) -> float:
    """Return the share of links that touch the 1 % of routers with the most links."""
    top = np.argsort(topology.degrees, kind="stable")[-topology.nodes // 100 :]
    return float(np.isin(topology.links, top).any(axis=1).mean())


def _tail(routers: int, alpha: float, degrees: np.ndarray) -> list[dict[str, Any]]:
    """Return the number of routers with at least d links, at a few dozen d, of one seed."""
    marks = np.unique(np.geomspace(1, degrees.max(), 20).round().astype(int)).tolist()
    return [
        {"case": _case(routers, alpha), "degree": d, "at_least": int((degrees >= d).sum())}
        for d in marks
    ]


def _roles(seed: int) -> dict[str, float]:
    """Choose nodes on one topology and summarise the choice."""
    generator = np.random.default_rng(seed)
    topology = tradeoff_tree(TCC_ROUTERS, generator)
    access = access_nodes(topology, TCC_ACCESS_NODES, generator)
    trusted = trusted_nodes(topology, TCC_TRUSTED_NODES, generator)
    served = choose_trusted(trusted, PEOPLE, generator)
    chosen = np.isin(np.arange(topology.nodes), access)
    by_degree = np.argsort(topology.degrees, kind="stable")
    hubs = by_degree[-topology.nodes // 100 :]
    counts = np.sort(np.bincount(served, minlength=topology.nodes))[::-1]
    return {
        "access_chosen": float(len(np.unique(access))),
        "access_leaves": float((topology.degrees[access] == 1).mean()),
        "access_of_leaves": float(chosen[topology.degrees == 1].mean()),
        "access_of_inner": float(chosen[topology.degrees > 1].mean()),
        "access_of_hubs": float(chosen[hubs].mean()),
        "trusted_chosen": float(len(np.unique(trusted))),
        "trusted_top_fifth_serves": float(counts[: TCC_TRUSTED_NODES // 5].sum() / PEOPLE),
    }


def _of(rows: list[dict[str, Any]], case: str) -> dict[str, float]:
    return {r["quantity"]: r["ours"] for r in rows if r["case"] == case and "quantity" in r}


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    small, large = (_of(rows, _case(routers, TCC_ALPHA)) for routers in (TCC_ROUTERS, LARGE))
    beyond, roles = _of(rows, _case(TCC_ROUTERS, BEYOND)), _of(rows, "roles")
    gain, loss = small["power_over_exponential"], beyond["power_over_exponential"]
    bunch = "Berger et al. 2003: almost all nodes are leaves, ever more as n grows"
    fifth = TCC_ROUTERS // 5
    return [
        Claim("α = 20: the tail is heavy (log-likelihood gained over exponential)", gain, gain > 0,
              paper="power law"),
        Claim("α = 1,000 > √n: it is not", loss, loss < 0, paper="exponential"),
        Claim("fitted exponent λ at α = 20, distance of the fit", [small["exponent"], small["ks"]],
              small["ks"] < 0.05, bar="KS distance below 0.05"),
        Claim("share of leaves at 10,000 and 100,000 routers", [small["leaves"], large["leaves"]],
              0.5 < small["leaves"] < large["leaves"], paper="towards 1", note=bunch),
        Claim("share of links that touch the 1 % largest hubs", small["top_1_percent_links"],
              small["top_1_percent_links"] > 0.5, paper="pronounced clusters"),
        near("access nodes", roles["access_chosen"], TCC_ACCESS_NODES, 0),
        Claim("nodes of few links are likelier access nodes: leaves, inner nodes",
              [roles["access_of_leaves"], roles["access_of_inner"]],
              roles["access_of_leaves"] > roles["access_of_inner"], paper="closer to the edge",
              note=f"80 % of 7,000 cannot come from {fifth:,} nodes: 80 % of the weight does"),
        near("trusted nodes", roles["trusted_chosen"], TCC_TRUSTED_NODES, 0),
        near("share of people served by a fifth of the trusted nodes",
             roles["trusted_top_fifth_serves"], 0.8, 0.02),
    ]  # fmt: skip


def draw(report: Report, path: Path) -> None:
    """Draw the tails with the fitted law, and one topology with its access and trusted nodes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 6), layout="constrained")
    _draw_tails(left, report.rows)
    _draw_routers(right)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_tails(axes: Any, rows: list[dict[str, Any]]) -> None:
    for routers, alpha in CASES:
        case = _case(routers, alpha)
        tail = [row for row in rows if row["case"] == case and "degree" in row]
        fit = _of(rows, case)
        heavy = fit["power_over_exponential"] > 0
        label = f"{case}: λ = {fit['exponent']:.2f}" if heavy else f"{case}: exponential"
        (line,) = axes.plot(
            [row["degree"] for row in tail], [row["at_least"] for row in tail], "o-", ms=3, lw=0.8,
            label=label,
        )  # fmt: skip
        inner = next(row["at_least"] for row in tail if row["degree"] > 1)
        if heavy:
            support = np.arange(2, round(fit["fit_high"]) + 1)
            law = support.astype(float) ** -fit["exponent"]
            beyond = inner * (1 - fit["inner_fitted"])
            expected = beyond + (inner - beyond) * law[::-1].cumsum()[::-1] / law.sum()
            axes.plot(support, expected, "--", color=line.get_color(), lw=1.6)
    axes.set(xscale="log", yscale="log", xlabel="degree d", ylabel="routers of degree d or more")
    title = "Degrees (dots, one seed) and fitted laws (dashed)"
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(frameon=False)


def _draw_routers(axes: Any) -> None:
    from matplotlib.collections import LineCollection

    generator = np.random.default_rng(0)
    topology = tradeoff_tree(TCC_ROUTERS, generator)
    points = topology.points
    assert points is not None
    access = access_nodes(topology, TCC_ACCESS_NODES, generator)
    trusted = trusted_nodes(topology, TCC_TRUSTED_NODES, generator)
    axes.add_collection(
        LineCollection(list(points[topology.links]), lw=0.15, color="#4a5568", alpha=0.6)
    )
    axes.scatter(*points[access].T, s=0.6, color="#1f5a93", label="7,000 access nodes", lw=0)
    hubs = np.flatnonzero(topology.degrees >= 20)
    axes.scatter(
        *points[hubs].T, s=topology.degrees[hubs] / 2, color="#e08e1b", alpha=0.7, lw=0,
        label="routers of degree 20 or more",
    )  # fmt: skip
    axes.scatter(
        *points[trusted].T, s=9, color="#b3261e", marker="^", lw=0, label="300 trusted nodes"
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_title("10,000 routers, α = 20", loc="left", fontsize=10)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.04), ncols=3, frameon=False, markerscale=2)
