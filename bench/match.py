"""How fast is one context matched against a million filters? Beside a compiled scan in this run.

The scan is what a competent person writes first: rows of integers, contiguous, compiled by Numba,
left at the first predicate that fails. It gets its contexts coded already; ours starts from a
dictionary, or from Arrow. Both end with the numbers of the filters; what it costs to read their
ids, too, stands beside it.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from bench import _match_workloads as workloads
from roamcast.lab.report import Claim, Report, Steps
from roamcast.matching import FilterSet
from roamcast.model.context_arrow import to_arrow
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.atoms import Box, Residual, Values
from roamcast.model.filters.holds import holds, scalar

TITLE = "matching: contexts against up to a million filters, beside a compiled scan"

BATCH = 256
CHANGES = 10_000
SAMPLE = 200  # filters parsed from text, to see that the direct way gives the same


def run(quick: bool, progress: Steps) -> Report:
    sizes = (10_000, 100_000) if quick else (10_000, 100_000, 1_000_000)
    return measure(sizes, 10_000 if quick else 100_000, progress)


def measure(sizes: Sequence[int], unfriendly: int, progress: Steps) -> Report:
    """Measure the friendly workload at these sizes, and the unfriendly one at one."""
    contexts = [
        Context(f"v{number}", attributes=attributes)
        for number, attributes in enumerate(workloads.contexts(2 * BATCH))
    ]
    index = FilterSet()
    index.warm_up(batches=True)
    before_mb = _resident_mb()
    rows: list[dict[str, Any]] = []
    predicates = workloads.filters(max(sizes))
    with progress("filters added", max(sizes)) as step:
        for size in sizes:
            grown = time.perf_counter()
            added = len(index)
            index.add_many(_named(predicates, added, size, step))
            built_s = time.perf_counter() - grown
            memory_mb = _resident_mb() - before_mb
            row = _friendly(index, contexts, size)
            rows.append(row | {"added_s": built_s, "memory_mb": memory_mb})
    add_us, remove_us, worst_ms = _changes(index, max(sizes))
    hard = _unfriendly(unfriendly, progress)
    parameters = {
        "filters": "built as normal forms, which parsing gives too on a sample",
        "contexts": len(contexts),
        "batch": BATCH,
        "median": "of single contexts, each engine in a block of its own",
        "add_us": add_us,
        "remove_us": remove_us,
        "slowest_change_ms": worst_ms,
        "changes": 2 * CHANGES,
    }
    return Report("match", parameters, [*rows, hard], _claims(rows, hard, add_us, remove_us))


def _claims(
    rows: list[dict[str, Any]], hard: dict[str, Any], add_us: float, remove_us: float
) -> list[Claim]:
    by_size = {row["filters"]: row for row in rows}
    bars = [
        (100_000, "one_by_one_times", 40, "times the scan per context, 100,000 filters"),
        (1_000_000, "one_by_one_times", 60, "times the scan per context, 1,000,000 filters"),
        (1_000_000, "batch_times", 100, f"times the scan in batches of {BATCH}, 1,000,000 filters"),
    ]
    claims = [
        Claim(said, by_size[size][what], by_size[size][what] >= bar, bar=bar)
        for size, what, bar, said in bars
        if size in by_size
    ]
    ours = hard["one_by_one_times"]
    said = f"times the scan per context, {hard['filters']:,} unfriendly filters"
    claims.append(Claim(said, ours, ours >= 10, bar=10))
    if 1_000_000 in by_size:
        memory = by_size[1_000_000]["memory_mb"]
        claims.append(Claim("MB of memory for 1,000,000 filters", memory, memory < 1000, bar=1000))
    slower_ms = max(add_us, remove_us) / 1000
    said = f"ms to add or remove one of {rows[-1]['filters']:,}, mean of {CHANGES:,}"
    claims.append(Claim(said, slower_ms, slower_ms < 1, bar=1))
    return claims


def _named(predicates: Any, start: int, stop: int, step: Callable[[int], None]) -> Any:
    for number in range(start, stop):
        one = next(predicates)
        made = workloads.filter_of(one)
        if number < SAMPLE:
            assert Filter.parse(workloads.text_of(one)).normal == made.normal
        yield f"f{number}", made
        if number % 1000 == 999:
            step(1000)


# The friendly workload.


@njit  # not cached: Numba cannot name a module outside a package
def _scan(rows: Any, context: Any, found: Any) -> int:
    count = 0
    for row in range(len(rows)):
        holds_all = True
        for place in range(rows.shape[1]):
            value = context[rows[row, place, 0]]
            if value < rows[row, place, 1] or value > rows[row, place, 2]:
                holds_all = False
                break
        if holds_all:
            found[count] = row
            count += 1
    return count


def _scan_rows(size: int) -> np.ndarray:
    """Give every filter as (attribute, low, high) five times, in 32-bit integers."""
    chunks = []
    for attributes, operators, low, high in workloads.coded_filters(size):
        below, above = (operators == 2) | (operators == 3), operators >= 4
        first = np.where(below, 0, low + (operators == 4))
        last = np.where(above, 9_999, high - (operators == 2))
        chunks.append(np.stack([attributes, first, last], axis=2).astype(np.int32))
    return np.concatenate(chunks)


def _friendly(index: FilterSet, contexts: list[Context], size: int) -> dict[str, Any]:
    scanned = _scan_rows(size)
    found = np.empty(size, np.int64)
    coded = [
        np.array([int(str(value).lstrip("v")) for value in context.attributes.values()], np.int32)
        for context in contexts
    ]
    for context, codes in zip(contexts[:20], coded, strict=False):
        numbers = found[: _scan(scanned, codes, found)].tolist()
        assert index.match(context) == [f"f{number}" for number in numbers]
    few = max(32, min(len(coded), 20_000_000 // size))
    scan_us = _median_us(lambda codes: _scan(scanned, codes, found), coded[:few])
    one_us = _median_us(index.match_numbers, contexts)
    with_ids_us = _median_us(index.match, contexts)
    batches = [to_arrow(contexts[at : at + BATCH]) for at in range(0, len(contexts), BATCH)]
    batch_us = _median_us(index.match_batch, batches * 4) / BATCH
    matched = statistics.mean(len(index.match(context)) for context in contexts)
    return {
        "workload": "friendly",
        "filters": size,
        "matched": matched,
        "scan_us": scan_us,
        "one_by_one_us": one_us,
        "one_by_one_times": scan_us / one_us,
        "with_ids_us": with_ids_us,
        "batch_us": batch_us,
        "batch_times": scan_us / batch_us,
    }


def _changes(index: FilterSet, size: int) -> tuple[float, float, float]:
    """Remove filters and add others with new values; give both means and the slowest change."""
    count = min(CHANGES, size)
    chosen = random.Random(5).sample(range(size), count)
    fresh = []
    for number, one in enumerate(workloads.filters(count)):
        moved = [(n, o, [v[0] + 0.5, v[1] + 0.5] if o == "range" else v) for n, o, v in one]
        fresh.append((f"new{number}", workloads.filter_of(moved)))
    removed = [_timed(index.remove, f"f{number}") for number in chosen]
    added = [_timed(index.add, name, one) for name, one in fresh]
    slowest = max(*removed, *added)
    return statistics.mean(added) * 1e6, statistics.mean(removed) * 1e6, slowest * 1e3


# The unfriendly workload.


@njit  # not cached: Numba cannot name a module outside a package
def _scan_sets(
    starts: Any, columns: Any, more: Any, low: Any, high: Any, context: Any, found: Any
) -> int:
    """Scan rows of any number of predicates; `more` marks one with an alternative after it."""
    count = 0
    for row in range(len(starts) - 1):
        at, end = starts[row], starts[row + 1]
        holds_all = True
        while at < end:
            value = context[columns[at]]
            inside = low[at] <= value <= high[at]
            while more[at]:
                at += 1
                inside |= low[at] <= value <= high[at]
            at += 1
            if not inside:
                holds_all = False
                break
        if holds_all:
            found[count] = row
            count += 1
    return count


class _Scanned:
    """Filters as rows for the scan; texts are ranks among all texts there are."""

    def __init__(self, held: dict[str, Filter], contexts: list[Context]) -> None:
        self.columns: dict[tuple[str, str], int] = {("lon", ""): 0, ("lat", ""): 1}
        self.names: list[str] = []
        self.residuals: list[list[Residual]] = []
        flat: list[tuple[int, bool, float, float]] = []
        starts = [0]
        conjunctions = [(name, part) for name, f in held.items() for part in f.conjunctions() or []]
        texts = {v for c in contexts for v in c.attributes.values() if isinstance(v, str)}
        for _, part in conjunctions:
            for atom in part:
                if isinstance(atom, Values) and atom.kind == "string":
                    ends = [end for i in atom.intervals for end in (i.low, i.high)]
                    texts |= {end for end in ends if isinstance(end, str)}
        self.ranks = {text: float(rank) for rank, text in enumerate(sorted(texts))}
        for name, part in conjunctions:
            residuals = []
            for atom in part:
                if isinstance(atom, Residual):
                    residuals.append(atom)
                flat += self._predicates(atom)
            self.names.append(name)
            self.residuals.append(residuals)
            starts.append(len(flat))
        columns, more, low, high = zip(*flat, strict=True)
        self.arrays = (
            np.array(starts),
            np.array(columns, np.int32),
            np.array(more),
            np.array(low),
            np.array(high),
        )
        self.found = np.empty(len(self.names), np.int64)

    def _predicates(self, atom: Any) -> list[tuple[int, bool, float, float]]:
        if isinstance(atom, Residual):
            atom = atom.envelope
        if isinstance(atom, Box):
            return [(0, False, atom.west, atom.east), (1, False, atom.south, atom.north)]
        assert isinstance(atom, Values)
        column = self.columns.setdefault((atom.property, atom.kind), len(self.columns))
        made = []
        for number, interval in enumerate(atom.intervals):
            low, high = self._number(interval.low, -np.inf), self._number(interval.high, np.inf)
            low = low if interval.low_closed else np.nextafter(low, np.inf)
            high = high if interval.high_closed else np.nextafter(high, -np.inf)
            made.append((column, number < len(atom.intervals) - 1, low, high))
        return made

    def _number(self, end: Any, unbounded: float) -> float:
        return unbounded if end is None else self.ranks[end] if isinstance(end, str) else float(end)

    def coded(self, context: Context) -> np.ndarray:
        codes = np.full(len(self.columns), np.nan)
        if context.point is not None:
            codes[:2] = context.point
        for (name, kind), column in self.columns.items():
            value = scalar(context, name, kind) if kind else None  # type: ignore[arg-type]
            if value is not None:
                codes[column] = self._number(value, 0.0)
        return codes

    def match(self, given: tuple[Context, np.ndarray]) -> set[str]:
        context, codes = given
        count = _scan_sets(*self.arrays, codes, self.found)
        return {
            self.names[row]
            for row in self.found[:count].tolist()
            if all(holds(part, context) for part in self.residuals[row])
        }


def _unfriendly(size: int, progress: Steps) -> dict[str, Any]:
    contexts = workloads.unfriendly_contexts(2 * BATCH)
    held = {}
    with progress("unfriendly filters parsed", size) as step:
        for number, text in enumerate(workloads.unfriendly_texts(size)):
            held[f"f{number}"] = Filter.parse(text)
            step(1)
    before = time.perf_counter()
    index = FilterSet()
    index.add_many(held.items())
    added_s = time.perf_counter() - before
    scanned = _Scanned(held, contexts)
    coded = [(context, scanned.coded(context)) for context in contexts]
    for given in coded[:20]:
        assert set(index.match(given[0])) == scanned.match(given)
    scan_us = _median_us(scanned.match, coded[: max(64, min(len(coded), 10_000_000 // size))])
    one_us = _median_us(index.match, contexts)
    batches = [to_arrow(contexts[at : at + BATCH]) for at in range(0, len(contexts), BATCH)]
    batch_us = _median_us(index.match_batch, batches * 2) / BATCH
    return {
        "workload": "unfriendly",
        "filters": size,
        "matched": statistics.mean(len(index.match(context)) for context in contexts),
        "scan_us": scan_us,
        "one_by_one_us": one_us,
        "one_by_one_times": scan_us / one_us,
        "with_ids_us": one_us,
        "batch_us": batch_us,
        "batch_times": scan_us / batch_us,
        "added_s": added_s,
        "memory_mb": None,
    }


def _timed(call: Callable[..., Any], *given: Any) -> float:
    before = time.perf_counter()
    call(*given)
    return time.perf_counter() - before


def _median_us(call: Callable[[Any], Any], each: Sequence[Any]) -> float:
    call(each[0])
    return statistics.median(_timed(call, given) for given in each) * 1e6


def _resident_mb() -> float:
    """Measure the memory this process holds, in MB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 1e6
