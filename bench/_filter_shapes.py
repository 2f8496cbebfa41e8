"""Long filters of every construct, by their number of terms: what is dear to read?

`python -m bench._filter_shapes [SECONDS]` joins them at random and prints the dearest per byte.
"""

import gc
import math
import random
import sys
import time
from collections.abc import Callable
from typing import Final

from roamcast.errors import InputError
from roamcast.model.filters import Filter
from roamcast.model.filters import text as writing

Make = Callable[[int], str]


def _and(term: str) -> Make:
    return lambda count: " AND ".join(term.format(i=i) for i in range(count))


def _or(term: str) -> Make:
    return lambda count: " OR ".join(term.format(i=i) for i in range(count))


def _ring(count: int) -> str:
    angles = [2 * math.pi * i / count for i in range(count)]
    ring = [f"{10 * math.cos(a):.6f} {10 * math.sin(a):.6f}" for a in angles]
    return f"S_INTERSECTS(geometry, POLYGON(({','.join([*ring, ring[0]])})))"


def _alternating(count: int) -> str:
    """Nest AND in OR in AND, twenty deep, several times."""
    parts = []
    for number in range(max(1, count // 20)):
        inner = f"a = {number}"
        for depth in range(1, 20):
            inner = f"({inner} {'AND' if depth % 2 else 'OR'} b{depth} = {depth})"
        parts.append(inner)
    return " AND ".join(parts)


def deep(term: str, count: int, levels: int) -> str:
    """Put AND and OR in turn around one long part."""
    inner = " OR ".join(term.format(i=i) for i in range(count))
    for level in range(levels):
        inner = f"({inner}) {'OR' if level % 2 else 'AND'} z{level} = 1"
    return inner


SHAPES: Final[dict[str, Make]] = {
    "unequal": _and("a <> {i}"),
    "equal": _or("a = {i}"),
    "names": _and("a{i} = {i}"),
    "list": lambda count: f"a IN ({', '.join(map(str, range(count)))})",
    "not in a list": lambda count: f"NOT a IN ({', '.join(map(str, range(count)))})",
    "disjoint ranges": _or("a BETWEEN {i}0 AND {i}5"),
    "pairs or": _or("(a = {i} AND b = {i})"),
    "pairs and": _and("(a = {i} OR b = {i})"),
    "not pairs": _and("NOT (a = {i} AND b = {i})"),
    "patterns": _or("a LIKE '%{i}%'"),
    "wildcards": lambda count: f"a LIKE '{'%x' * min(count, 500)}'",
    "boxes": _or("S_INTERSECTS(geometry, BBOX(0.{i}, 0, 1.{i}, 1))"),
    "circles": _or("near(geometry, POINT(0.{i} 0), {i})"),
    "polygon": _ring,
    "triangles": _or("S_WITHIN(geometry, POLYGON((0.{i} 0, 1.{i} 0, 1.{i} 2, 0.{i} 0)))"),
    "times": _or("after(time, TIMESTAMP('2026-01-01T00:00:00.{i:06}Z'))"),
    "instants": _and("a <> TIMESTAMP('2026-01-01T00:00:00.{i:06}Z')"),
    "nulls": _or("a{i} IS NULL"),
    "sums": _and("a{i} + 1 > b"),
    "folded": _or("CASEI(a) = CASEI('X{i}')"),
    "places": _or("within(place, 'a/b{i}')"),
    "groups": _and("((((a = {i}))))"),
    "alternating": _alternating,
    "deep sums": lambda count: deep("a{i} + 1 > b", count, 44),
    "deep pairs": lambda count: deep("(a{i} = 1 AND b{i} = 1)", count, 44),
    "deep nulls": lambda count: deep("a{i} IS NULL", count, 44),
    "flags": _and("a{i}"),
    "parentheses": lambda count: " AND ".join(["(" * 40 + "a" + ")" * 40] * max(1, count // 20)),
    "refused at the end": lambda count: f"{_and('a <> {i}')(count)} AND unknown(a)",
    "broken at the end": lambda count: f"{_and('a <> {i}')(count)} AND (",
}


def some_filter(draw: random.Random, bytes_max: int = 16_384) -> str:
    """Join shapes at random, up to a length."""
    text = draw.choice([*SHAPES.values()])(draw.choice([10, 100, 1_000]))[:]
    for _ in range(draw.randrange(4)):
        other = draw.choice([*SHAPES.values()])(draw.choice([10, 100, 1_000]))
        joined = f"({text}) {draw.choice(['AND', 'OR', 'AND NOT', 'OR NOT'])} ({other})"
        if len(joined) <= bytes_max:
            text = joined
    return text


def _read_us(text: str) -> float:
    """Read a filter as the service does, and give its CPU time in microseconds."""
    writing.remembered.clear()
    began = time.process_time()
    try:
        wanted = Filter.parse(text)
        assert wanted.text is not None
        wanted.conjunctions()
    except InputError:
        pass
    return (time.process_time() - began) * 1e6


def main(seconds: float) -> None:
    """Look for the filter that is dearest per byte, and print each that is dearer than before.

    The least of five readings counts: others of this machine take the processor in between.
    """
    gc.disable()
    seed, worst, until = 0, 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        text = some_filter(random.Random(seed))
        taken_us = _read_us(text) / len(text)
        if taken_us > worst:
            taken_us = min(taken_us, *(_read_us(text) / len(text) for _ in range(4)))
        if taken_us > worst:
            worst = taken_us
            print(f"{taken_us:8.1f} µs a byte, {len(text)} bytes, seed {seed}: {text[:80]}")  # noqa: T201
        seed += 1
    print(f"{seed} filters, the dearest {worst:.1f} µs a byte")  # noqa: T201


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
