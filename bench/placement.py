"""How fast are filters placed? Beside computing the flows, plain tables, and starting anew.

Times are CPU seconds of this process, medians of repeats, so that a busy machine disturbs them
little. Memory is the growth of a fresh process at its highest while it places filters.
"""

import math
import time
from typing import Any

import numpy as np

from bench._placement_parts import (
    K,
    demanded,
    exponent,
    peak_bytes,
    plain_tables,
    seconds,
    shaped,
    subscribed,
    warm_up,
)
from roamcast.lab.report import Claim, Report, Steps
from roamcast.placement._limited import decisions_needed
from roamcast.placement._sparse import sparse
from roamcast.placement.flows import UNION_BYTES_MAX, LeafWants, flows
from roamcast.placement.heuristic import best_move
from roamcast.placement.incremental import Replanner
from roamcast.placement.optimal import optimal
from roamcast.placement.problem import traffic

TITLE = "filter placement: optimal, heuristic and incremental, with the flows' time beside them"

SHAPES = ("complete", "random", "caterpillar")
N = 131_071
LARGE = 1_048_575
LARGE_K = 100
DEMANDS = ((64, 0.1), (1024, 0.05), (4096, 0.05))
FLOWS_BAR = 6.0
INCREMENTAL_BAR = 10.0
MEMORY_BAR = 1 << 30


def run(quick: bool, progress: Steps) -> Report:
    repeats = 5 if quick else 15
    rows: list[dict[str, Any]] = []
    claims: list[Claim] = []
    parts = (_beside_flows, _growth_with_n, _growth_with_k, _many, _large, _heuristic, _incremental)
    warm_up()
    with progress("parts", len(parts) + 1) as step:
        for part in parts:
            part(rows, claims, quick, repeats)
            step(1)
        _million_leaves(rows, claims, quick)
        step(1)
    parameters = {"n": N, "k": K, "repeats": repeats, "quick": quick}
    return Report("placement", parameters, rows, claims)


def _row(rows: list[dict[str, Any]], what: str, shape: str, n: int, k: int, **more: Any) -> None:
    rows.append({"what": what, "shape": shape, "n": n, "k": k, **more})


def _beside_flows(rows: Any, claims: Any, quick: bool, repeats: int) -> None:
    worst = 0.0
    for shape in SHAPES:
        for items, chance in DEMANDS[1:2] if quick else DEMANDS:
            tree = shaped(shape, N)
            subscriptions = subscribed(tree, items, chance)
            flow = flows(tree, subscriptions)
            place = lambda tree=tree, flow=flow: optimal(traffic(tree, flow), K)  # noqa: E731
            pairs = [
                (seconds(lambda t=tree, s=subscriptions: flows(t, s)), seconds(place))
                for _ in range(repeats)
            ]
            flows_s, placed_s = np.median(pairs, axis=0)
            ratio = float(placed_s / flows_s)
            worst = max(worst, ratio)
            _row(
                rows, "optimal beside flows", shape, N, K,
                items=items, flows_ms=1e3 * float(flows_s), ms=1e3 * float(placed_s), ratio=ratio,
            )  # fmt: skip
    claims.append(
        Claim(
            f"optimal with traceback, n = {N:,}, k = {K}: time over the flows' alone, worst case",
            worst,
            worst <= FLOWS_BAR,
            bar=FLOWS_BAR,
        )
    )


def _growth_with_n(rows: Any, claims: Any, quick: bool, repeats: int) -> None:
    for shape in SHAPES:
        sizes, times, memory = [], [], []
        for power in range(12, 18 if quick else 21, 1 if quick else 2):
            n = 2**power - 1
            problem = demanded(shape, n)
            place = lambda p=problem: optimal(p, K)  # noqa: E731
            place()
            taken = float(np.median([seconds(place) for _ in range(repeats)]))
            sizes.append(float(n))
            times.append(taken)
            row = {"ms": 1e3 * taken}
            if power >= 16:
                memory.append((float(n), float(peak_bytes(shape, n, K, 1024, 0.05))))
                row["peak_mb"] = memory[-1][1] / 2**20
            _row(rows, "growth with n", shape, n, K, **row)
        fitted = exponent(sizes, times)
        by_memory = exponent([n for n, _ in memory], [peak for _, peak in memory])
        claims.append(
            Claim(
                f"{shape}: optimal's time grows with n to the power",
                fitted,
                fitted <= 1.2,
                bar=1.2,
                note=f"its memory, from n = 65,535, to the power {by_memory:.2f}",
            )
        )


def _growth_with_k(rows: Any, claims: Any, quick: bool, repeats: int) -> None:
    sizes, ours, tables, memory = [], [], [], []
    problem = demanded("complete", N if not quick else 16_383)
    n = problem.tree.vertices
    for k in (1, 4, 15, 63, 255) if quick else (1, 4, 15, 63, 255, 1023, 4095):
        place = lambda k=k: optimal(problem, k)  # noqa: E731
        found = place()
        taken = float(np.median([seconds(place) for _ in range(max(3, repeats // 3))]))
        peak = peak_bytes("complete", n, k, 1024, 0.05)
        plain = seconds(lambda k=k: plain_tables(problem, k))
        assert plain_tables(problem, k) == found.cost
        sizes.append(float(k))
        ours.append(taken)
        tables.append(plain)
        memory.append(float(peak))
        _row(
            rows, "growth with k", "complete", n, k,
            ms=1e3 * taken, plain_tables_ms=1e3 * plain, peak_mb=peak / 2**20,
        )  # fmt: skip
    fitted, by_tables = exponent(sizes, ours), exponent(sizes, tables)
    claims.append(
        Claim(
            "complete: optimal's time grows with k to the power",
            fitted,
            fitted <= 1.2,
            bar=1.2,
            note=f"memory {exponent(sizes, memory):.2f}; plain tables' time {by_tables:.2f};"
            f" at k = 15 ours is {tables[2] / ours[2]:.0f} times faster than plain tables",
        )
    )


def _many(rows: Any, claims: Any, quick: bool, repeats: int) -> None:
    """An eighth of all vertices filter: the bound helps least here and is paid for all the same."""
    slowest = 0.0
    for shape, n in (
        ("complete", 16_383 if quick else N),
        ("random", 16_383),
        ("caterpillar", 4095),
    ):
        problem = demanded(shape, n)
        k = n // 8
        times = [seconds(lambda p=problem, k=k: optimal(p, k)) for _ in range(max(3, repeats // 5))]
        taken = float(np.median(times))
        plain = seconds(lambda p=problem, k=k: plain_tables(p, k))
        slowest = max(slowest, taken / plain)
        peak = peak_bytes(shape, n, k, 1024, 0.05)
        _row(
            rows, "an eighth filter", shape, n, k,
            ms=1e3 * taken, plain_tables_ms=1e3 * plain, peak_mb=peak / 2**20,
        )  # fmt: skip
    claims.append(
        Claim(
            "k = n/8: time with the bound over plain tables alone, worst shape",
            slowest,
            slowest <= 3,
            bar=3,
        )
    )


def _large(rows: Any, claims: Any, quick: bool, repeats: int) -> None:
    n, k = (N, LARGE_K) if quick else (LARGE, LARGE_K)
    worst, tables_worst = 0, 0.0
    for shape in SHAPES:
        problem = demanded(shape, n, 4096, 0.01)
        found = optimal(problem, k)
        times = [seconds(lambda p=problem: optimal(p, k)) for _ in range(max(3, repeats // 4))]
        taken = float(np.median(times))
        peak = peak_bytes(shape, n, k, 4096, 0.01)
        worst = max(worst, peak)
        plain = seconds(lambda p=problem: plain_tables(p, k))
        splits, choices = decisions_needed(sparse(problem, np.flatnonzero(problem.solo > 0)), k)
        tables_mb = (2 * splits + choices) / 2**20
        tables_worst = max(tables_worst, tables_mb)
        _row(
            rows, "large", shape, n, k, ms=1e3 * taken, peak_mb=peak / 2**20,
            plain_tables_ms=1e3 * plain, plain_tables_mb=tables_mb, filters=len(found.filters),
        )  # fmt: skip
    claims.append(
        Claim(
            f"n = {n:,} with k = {k} is solved in bounded memory, MB at the highest",
            worst / 2**20,
            worst <= MEMORY_BAR,
            bar=MEMORY_BAR / 2**20,
            note=f"plain tables, where the bound does not help, keep {tables_worst:.0f} MB",
        )
    )


def _heuristic(rows: Any, claims: Any, quick: bool, repeats: int) -> None:
    for shape in SHAPES:
        sizes, times = [], []
        for power in range(14, 18 if quick else 21, 1 if quick else 2):
            n = 2**power - 1
            problem = demanded(shape, n)
            source = np.random.default_rng(3)
            inner = np.flatnonzero(problem.tree.inner()[problem.tree.position])
            filters = sorted(map(int, source.choice(inner, 100, replace=False)))
            move = lambda p=problem, f=filters: best_move(p, f, 100)  # noqa: E731
            move()
            taken = float(np.median([seconds(move) for _ in range(repeats)]))
            sizes.append(float(n))
            times.append(taken)
            _row(rows, "one heuristic step", shape, n, 100, ms=1e3 * taken)
        fitted = exponent(sizes, times)
        claims.append(
            Claim(
                f"{shape}: one heuristic step grows with n to the power",
                fitted,
                fitted <= 1.25,
                bar=1.25,
                note=f"{times[-1] / sizes[-1] * 1e9:.0f} ns a vertex at n = {int(sizes[-1]):,}",
            )
        )


def _incremental(rows: Any, claims: Any, quick: bool, repeats: int) -> None:
    for items, chance in DEMANDS[2:] if quick else ((4096, 0.01), *DEMANDS):
        tree = shaped("complete", N)
        subscriptions = subscribed(tree, items, chance)
        replanner = Replanner(tree, subscriptions, K)
        source = np.random.default_rng(4)
        leaves = np.flatnonzero(tree.size[tree.position] == 1)
        again, steps = [], []
        for _ in range(repeats):
            changed = np.sort(source.choice(leaves, leaves.size // 100, replace=False))
            counts = source.binomial(items, chance, changed.size)
            start = np.concatenate(([0], np.cumsum(counts)))
            item = source.integers(0, items, start[-1], dtype=np.int32)
            subscriptions = _changed(subscriptions, changed, counts, item)
            begin = time.process_time()
            fresh = optimal(traffic(tree, flows(tree, subscriptions)), K)
            middle = time.process_time()
            kept = replanner.change_many(changed, start, item)
            end = time.process_time()
            assert kept.cost == fresh.cost
            again.append(middle - begin)
            steps.append(end - middle)
        ratio = float(np.median(again) / np.median(steps))
        _row(
            rows, "1 % of leaves change", "complete", N, K, items=items,
            wanted_by_each=round(items * chance), anew_ms=1e3 * float(np.median(again)),
            ms=1e3 * float(np.median(steps)), ratio=1 / ratio,
        )  # fmt: skip
    claims.append(
        Claim(
            f"after 1 % of leaves change ({items:,} items, {round(items * chance)} wanted by each)"
            " a step is faster than starting again, times",
            ratio,
            ratio >= INCREMENTAL_BAR,
            bar=INCREMENTAL_BAR,
            note="same cost every time; fewer subscriptions narrow the lead, see the rows",
        )
    )


def _changed(old: LeafWants, leaves: np.ndarray, counts: np.ndarray, item: np.ndarray) -> LeafWants:
    """Write the changes into a copy, so that starting again has all it needs."""
    lengths = np.diff(old.start)
    pieces, at, taken = [], 0, 0
    for leaf, count in zip(leaves.tolist(), counts.tolist(), strict=True):
        pieces.append(old.item[at : old.start[leaf]])
        pieces.append(item[taken : taken + count])
        at, taken = old.start[leaf + 1], taken + count
    lengths[leaves] = counts
    start = np.concatenate(([0], np.cumsum(lengths)))
    return LeafWants(start, np.concatenate([*pieces, old.item[at:]]), old.items)


def _million_leaves(rows: Any, claims: Any, quick: bool) -> None:
    n = 2 ** (18 if quick else 21) - 1
    tree = shaped("complete", n)
    subscriptions = subscribed(tree, 4096, 0.005)
    taken = seconds(lambda: flows(tree, subscriptions))
    peak = peak_bytes("complete", n, 0, 4096, 0.005)
    _row(
        rows, "flows", "complete", n, 0, items=4096,
        wanted_by_each=20, ms=1e3 * taken, peak_mb=peak / 2**20,
    )  # fmt: skip
    bar = (UNION_BYTES_MAX + 64 * n) / 2**20
    claims.append(
        Claim(
            f"flows of {(n + 1) // 2:,} leaves and 4,096 items take bounded memory, MB",
            peak / 2**20,
            peak / 2**20 <= bar,
            bar=round(bar),
            note=f"{taken * 1e3:.0f} ms; all unions at once would take {math.ceil(n / 2048)} MB",
        )
    )
