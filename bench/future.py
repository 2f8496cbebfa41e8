"""How fast is a new context matched with a million cached casts, and how soon after a restart?

Each cast addresses a building, a floor, a room or a box on the map, a class or a gender, and ages;
its time is one of TCC's predicates. The set has what casts compile: their filters without the terms
about times, which `lasting.decide` decides for each candidate. The scan is what a competent person
writes first: rows of integers, compiled, left at the first predicate that fails; it gets its
contexts coded. A restart reads the filters as they are stored, in normal form (decision 0145).
"""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from roamcast.channels.past.asking import EVER, Asked
from roamcast.lab.report import Claim, Report, Steps
from roamcast.matching import FilterSet
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.atoms import All, Box, Normal, Values
from roamcast.model.filters.lasting import decide
from roamcast.model.filters.values import Interval, inside_place, point
from roamcast.model.time import MICROSECONDS, format_instant, parse_instant

TITLE = "future: new contexts against a million cached casts, beside a scan; the restart"

MILLION = 1_000_000
SIZES, SIZES_QUICK = (100_000, MILLION), (50_000,)
CONTEXTS = 512
SAMPLE = 200
"""Casts parsed from text, to see that the direct way gives the same, and what parsing costs."""

TIMES_BAR = 50
BUILDINGS, FLOORS, ROOMS = 2_000, 6, 20
CLASSES, GENDERS = 6, 3
CITY = (9.0, 48.6, 0.4, 0.3)  # west, south, width, height
NOW = parse_instant("2026-11-17T12:00:00Z")
PREDICATES = ("overlaps", "start_by", "during", "contains", "after", "end_by")
MICRO = 1_000_000


class Casts:
    """Cached casts as columns; the first n are the same for every size."""

    def __init__(self, count: int) -> None:
        draw = np.random.default_rng(17)
        self.boxed = draw.random(count) < 0.4
        self.depth = draw.integers(1, 4, count)  # building, floor, room
        self.place = draw.integers(0, BUILDINGS * FLOORS * ROOMS, count)
        self.corner = draw.random((count, 2))
        self.size = 0.002 + draw.random((count, 2)) * 0.02
        self.by_class = draw.random(count) < 0.7
        self.code = draw.integers(0, CLASSES * GENDERS, count)
        self.age = draw.integers(10, 70, count)
        self.span = draw.integers(3, 30, count)
        self.predicate = draw.integers(0, len(PREDICATES), count)
        self.begin = draw.integers(-10, 50, count)

    def place_of(self, number: int) -> tuple[int, ...]:
        """Give a cast's place: building, then floor, then room, as deep as it goes."""
        room = int(self.place[number])
        path = (room // (FLOORS * ROOMS), room // ROOMS % FLOORS, room % ROOMS)
        return path[: int(self.depth[number])]

    def box_of(self, number: int) -> tuple[float, float, float, float]:
        """Give a cast's box: west, south, east, north."""
        west, south, width, height = CITY
        x, y = (float(value) for value in self.corner[number])
        w, h = (float(value) for value in self.size[number])
        low = (round(west + x * width, 6), round(south + y * height, 6))
        return (*low, round(low[0] + w, 6), round(low[1] + h, 6))

    def who_of(self, number: int) -> tuple[str, str]:
        """Give the attribute that a cast asks for, and its value."""
        code = int(self.code[number])
        if self.by_class[number]:
            return "class", f"c{code % CLASSES}"
        return "gender", f"g{code % GENDERS}"

    def text(self, number: int) -> str:
        """Write a cast's filter as CQL2."""
        if self.boxed[number]:
            where = f"S_INTERSECTS(geometry, BBOX({','.join(map(str, self.box_of(number)))}))"
        else:
            where = f"within(place, '{path_of(self.place_of(number))}')"
        name, value = self.who_of(number)
        low = int(self.age[number])
        begin = NOW + int(self.begin[number]) * 86_400 * MICROSECONDS
        ends = f"'{format_instant(begin)}','{format_instant(begin + 7_200 * MICROSECONDS)}'"
        predicate = PREDICATES[self.predicate[number]]
        return (
            f"{where} AND {name} = '{value}' AND age BETWEEN {low} AND {low + self.span[number]} "
            f"AND {predicate}(time, INTERVAL({ends}))"
        )

    def normal(self, number: int) -> Normal:
        """Make what a cast compiles from its normal form, as parsing its text would."""
        low = float(self.age[number])
        name, value = self.who_of(number)
        ages = Values("age", "number", (Interval(low, low + float(self.span[number])),))
        who = Values(name, "string", point(value))
        if self.boxed[number]:
            return All((Box(*self.box_of(number)), ages, who))
        path = path_of(self.place_of(number))
        return All((ages, who, Values("place", "string", inside_place(path))))


def path_of(place: Sequence[int]) -> str:
    return "/".join(["campus", *(f"{letter}{n}" for letter, n in zip("bfr", place, strict=False))])


def draw_contexts(count: int) -> list[tuple[Context, tuple[int, int, int]]]:
    """Draw people in rooms; a room has a place on the map."""
    draw = np.random.default_rng(18)
    west, south, width, height = CITY
    made = []
    for number in range(count):
        place = tuple(int(draw.integers(most)) for most in (BUILDINGS, FLOORS, ROOMS))
        x, y = (round(float(v), 6) for v in draw.random(2) * (width, height) + (west, south))
        who = {
            "class": f"c{draw.integers(CLASSES)}",
            "gender": f"g{draw.integers(GENDERS)}",
            "age": int(draw.integers(10, 90)),
        }
        made.append((Context(f"v{number}", path_of(place), (x, y), who, NOW), place))
    return made


def run(quick: bool, progress: Steps) -> Report:
    return measure(SIZES_QUICK if quick else SIZES, progress)


def measure(sizes: Sequence[int], progress: Steps) -> Report:
    """Cache so many casts, match new contexts, and start again from what is stored."""
    casts = Casts(max(sizes))
    checked = [Filter.parse(casts.text(number)) for number in range(SAMPLE)]
    for number, wanted in enumerate(checked):
        assert Asked(wanted, EVER).without_times == casts.normal(number)
    contexts = draw_contexts(CONTEXTS)
    FilterSet().warm_up()
    rows = []
    for size in sizes:
        with progress("casts stored", size) as step:
            stored = [_stored(casts, number, step) for number in range(size)]
        rows.append(_measured(casts, stored, contexts))
    parameters = {
        "contexts": CONTEXTS,
        "seconds": "of CPU, in one thread",
        "decide_us": "the whole filters of all candidates of a context that has begun",
        "restart": "filters read in normal form and compiled; beside parsing, scaled from a sample",
    }
    return Report("future", parameters, rows, _claims(rows))


def _stored(casts: Casts, number: int, step: Callable[[int], None]) -> bytes:
    if number % 1000 == 999:
        step(1000)
    return Filter.of_normal(casts.normal(number)).stored


def _measured(
    casts: Casts, stored: list[bytes], contexts: list[tuple[Context, tuple[int, int, int]]]
) -> dict[str, Any]:
    size = len(stored)
    gc.collect()
    before_mb = _resident_mb()
    began = time.process_time()
    index = _restarted(stored)
    restart_s = time.process_time() - began
    gc.collect()
    memory_mb = _resident_mb() - before_mb
    snapshot = index.snapshot()
    snapshot_s = _timed(FilterSet.load, snapshot)
    scan_us = _scanned(casts, index, contexts)
    people = [context for context, _ in contexts]
    match_us = _median_us(index.match_numbers, people)
    candidates = [(context, index.match(context)) for context in people[:64]]
    full = {name: Filter.parse(casts.text(int(name))) for _, names in candidates for name in names}
    for wanted in full.values():
        assert wanted.normal  # as it is stored: made once, not with the first decision
    decide_us = _median_us(
        lambda given: [decide(full[name], given[0], NOW) for name in given[1]], candidates
    )
    return {
        "casts": size,
        "candidates": statistics.mean(len(index.match(context)) for context in people),
        "scan_us": scan_us,
        "match_us": match_us,
        "times": scan_us / match_us,
        "contexts_a_second": 1e6 / match_us,
        "decide_us": decide_us,
        "memory_mb": memory_mb,
        "stored_bytes": statistics.mean(map(len, stored)),
        "restart_s": restart_s,
        "restart_parsed_s": restart_s + _parse_us(casts) * size / 1e6,
        "snapshot_s": snapshot_s,
    }


def _restarted(stored: list[bytes]) -> FilterSet:
    index = FilterSet()
    index.add_many((str(number), Filter.of_stored(data)) for number, data in enumerate(stored))
    return index


def _parse_us(casts: Casts) -> float:
    """Measure what parsing and normalising one cast's filter costs."""
    texts = [casts.text(number) for number in range(SAMPLE)]
    return _median_us(lambda text: Asked(Filter.parse(text), EVER).without_times, texts)


# The scan: place, longitude, latitude, class, gender, age as intervals of integers.


@njit  # not cached: Numba cannot name a module outside a package
def _scan(rows: Any, context: Any, found: Any) -> int:
    count = 0
    for row in range(len(rows)):
        holds_all = True
        for column in range(rows.shape[1]):
            value = context[column]
            if value < rows[row, column, 0] or value > rows[row, column, 1]:
                holds_all = False
                break
        if holds_all:
            found[count] = row
            count += 1
    return count


def _scan_rows(casts: Casts, size: int) -> np.ndarray:
    """Give every cast as six intervals; a place is an interval of its rooms' numbers."""
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    rows = np.empty((size, 6, 2), np.int32)
    rows[..., 0], rows[..., 1] = low, high
    width = np.array([FLOORS * ROOMS, ROOMS, 1])[casts.depth[:size] - 1]
    placed = ~casts.boxed[:size]
    first = casts.place[:size] // width * width
    rows[placed, 0, 0] = first[placed]
    rows[placed, 0, 1] = (first + width - 1)[placed]
    for number in np.flatnonzero(casts.boxed[:size]).tolist():
        west, south, east, north = casts.box_of(number)
        rows[number, 1] = round(west * MICRO), round(east * MICRO)
        rows[number, 2] = round(south * MICRO), round(north * MICRO)
    by_class = casts.by_class[:size]
    code = casts.code[:size]
    rows[by_class, 3] = (code % CLASSES)[by_class, None]
    rows[~by_class, 4] = (code % GENDERS)[~by_class, None]
    rows[:, 5, 0] = casts.age[:size]
    rows[:, 5, 1] = casts.age[:size] + casts.span[:size]
    return rows


def _coded(context: Context, place: tuple[int, int, int]) -> np.ndarray:
    assert context.point is not None
    building, floor, room = place
    who = context.attributes
    return np.array(
        [
            (building * FLOORS + floor) * ROOMS + room,
            round(context.point[0] * MICRO),
            round(context.point[1] * MICRO),
            int(str(who["class"])[1:]),
            int(str(who["gender"])[1:]),
            who["age"],
        ],
        np.int32,
    )


def _scanned(
    casts: Casts, index: FilterSet, contexts: list[tuple[Context, tuple[int, int, int]]]
) -> float:
    rows = _scan_rows(casts, len(index))
    found = np.empty(len(rows), np.int64)
    coded = [_coded(context, place) for context, place in contexts]
    for (context, _), codes in zip(contexts[:20], coded, strict=False):
        numbers = found[: _scan(rows, codes, found)].tolist()
        assert sorted(map(int, index.match(context))) == numbers
    few = max(32, min(len(coded), 20_000_000 // len(rows)))
    return _median_us(lambda codes: _scan(rows, codes, found), coded[:few])


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    last = rows[-1]
    size = f"{last['casts']:,} casts"
    parsed = last["restart_parsed_s"]
    claims = [
        Claim(f"seconds to restart with {size}", last["restart_s"], last["restart_s"] < parsed / 2,
              bar=parsed, note="the bar: every filter parsed again"),
        Claim(f"MB of memory for {size}", last["memory_mb"], last["memory_mb"] < 1000, bar=1000),
    ]  # fmt: skip
    if last["casts"] == MILLION:
        times = last["times"]
        claims.append(Claim(f"times a scan, {size}", times, times >= TIMES_BAR, bar=TIMES_BAR))
    return claims


def _timed(call: Callable[..., Any], *given: Any) -> float:
    # CPU time: one thread does it all, and a busy machine would interrupt the scan more often.
    before = time.process_time()
    call(*given)
    return time.process_time() - before


def _median_us(call: Callable[[Any], Any], each: Sequence[Any]) -> float:
    call(each[0])
    return statistics.median(_timed(call, given) for given in each) * 1e6


def _resident_mb() -> float:
    """Measure the memory this process holds, in MB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 1e6
