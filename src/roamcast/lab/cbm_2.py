"""CBM section 3.2: the messages of signalling a batch, placement by placement.

After each batch the source tells filters what to do: activate, passivate, migrate, spawn. A signal
travels from the source to the filter it is for, over one link per level; code that migrates or is
spawned travels from there to its vertex. The paper gives no numbers.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from roamcast.lab import _cbm as cbm
from roamcast.lab.report import Claim, Report, Steps
from roamcast.placement.batch import Filters, Signal, next_batch
from roamcast.placement.flows import LeafWants, levels
from roamcast.placement.optimal import optimal
from roamcast.placement.tree import Tree

TITLE = "CBM section 3.2: messages of signalling a batch, optimal placement beside the heuristic"

CHANCE = 0.3
CHANGING = 0.2
BATCHES = 50
COUNTS = (3, 7, 15, 31)
SEEDS, SEEDS_QUICK = 20, 3
PLANS: dict[str, int | None] = {"heuristic": 1, "optimal": None}
KINDS = ("activate", "passivate", "migrate", "spawn")


def run(quick: bool, progress: Steps) -> Report:
    """Follow 50 batches in which a fifth of the users change; count signals and their links."""
    seeds = SEEDS_QUICK if quick else SEEDS
    rows = []
    with progress("plans", len(PLANS) * len(COUNTS)) as step:
        for plan, moves in PLANS.items():
            for k in COUNTS:
                total: Counter[str] = Counter()
                for seed in range(seeds):
                    total += _follow(k, moves, cbm.generator(2, k, seed))
                batches = seeds * (BATCHES - 1)
                row: dict[str, Any] = {"plan": plan, "k": k}
                row |= {kind: total[kind] / batches for kind in KINDS}
                row["signals"] = sum(row[kind] for kind in KINDS)
                row["links"] = total["links"] / batches
                row["code_links"] = total["code"] / batches
                rows.append(row)
                step(1)
    parameters = {"P": CHANCE, "changing": CHANGING, "batches": BATCHES, "seeds": seeds}
    return Report("cbm-2", parameters, rows, _claims(rows))


def _follow(k: int, moves: int | None, source: np.random.Generator) -> Counter[str]:
    tree = cbm.paper_tree()
    leaves = range(cbm.FIRST_USER, cbm.FIRST_USER + cbm.USERS)
    wanted = cbm.draw_wanted(source, cbm.uniform(CHANCE))
    filters = Filters.of(optimal(cbm.traffic_of(tree, wanted), k).filters)
    found: Counter[str] = Counter()
    for _ in range(BATCHES - 1):
        changing = source.random(cbm.USERS) < CHANGING
        fresh = cbm.draw_wanted(source, cbm.uniform(CHANCE))
        after = np.where(changing[:, None], fresh, wanted)
        before_wants, after_wants = (
            LeafWants.of_table(tree, leaves, table) for table in (wanted, after)
        )
        plan = next_batch(tree, before_wants, after_wants, filters, limit=k, moves=moves)
        filters, wanted = plan.filters, after
        for signal in plan.signals:
            found[signal.kind] += 1
            reach, code = links_of(tree, signal)
            found["links"] += reach
            found["code"] += code
    return found


def links_of(tree: Tree, signal: Signal) -> tuple[int, int]:
    """Return the links that a signal travels, and those that code travels because of it."""
    depth = levels(tree)
    reach = int(depth[tree.position[signal.source]])
    moved = signal.kind in ("migrate", "spawn")
    return reach, _distance(tree, signal.source, signal.target) if moved else 0


def _distance(tree: Tree, first: int, other: int) -> int:
    above = [first]
    while above[-1] != tree.root:
        above.append(int(tree.parent[above[-1]]))
    steps = 0
    while other not in above:
        other = int(tree.parent[other])
        steps += 1
    return steps + above.index(other)


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    at = {(row["plan"], row["k"]): row for row in rows}
    pairs = [(at["heuristic", k]["signals"], at["optimal", k]["signals"]) for k in COUNTS]
    most = max(ours for ours, _ in pairs)
    worst = max(row["links"] + row["code_links"] for row in rows)
    return [
        Claim("signals a batch, heuristic (k = 3, 7, 15, 31)", [round(a, 2) for a, _ in pairs],
              all(a <= b for a, b in pairs), bar=[round(b, 2) for _, b in pairs],
              note="the bar: optimal placement"),
        Claim("one move a batch needs at most two signals", most, most <= 2, bar=2),
        Claim("links that a batch's signals and code travel, worst plan", worst,
              worst < cbm.LINKS * cbm.ITEMS / 10, bar=cbm.LINKS * cbm.ITEMS / 10,
              note="the bar: a tenth of the items of one batch on all links"),
    ]  # fmt: skip


def draw(report: Report, path: Path) -> None:
    """Draw signals a batch against k, one line per plan."""
    series: dict[str, list[tuple[float, float, float]]] = {}
    for row in report.rows:
        series.setdefault(row["plan"], []).append((row["k"], row["signals"], 0.0))
    cbm.lines(
        path,
        series,
        title="Signals a batch, a fifth of the users change (CBM section 3.2)",
        across="filters k",
        up="signals",
    )
