"""Which filters and contexts is matching measured on? A friendly workload and an unfriendly one.

The friendly one is the published comparison's: 5 predicates each over 20 attributes, equalities on
few values and integer ranges, about 0.093 % of filters match a context. Smaller sizes are prefixes
of larger ones. The unfriendly one has what indexes dislike: filters of ranges alone, skewed values,
boxes and polygons, and one third with OR or NOT.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from roamcast.model.contexts import Context
from roamcast.model.filters import Filter, syntax
from roamcast.model.filters.atoms import All, Values
from roamcast.model.filters.values import Interval

DISTINCT = [3, 4, 4, 5, 6, 8, 4, 5, 8, 10] + [10_000] * 10
NAMES = (
    [f"s{i}" for i in range(6)] + [f"i{i}" for i in range(6, 10)] + [f"r{i}" for i in range(10, 20)]
)
TEXTS, EQUALITIES = 6, 10  # attributes below these are texts, are compared by equality
FILTERS_SEED, CONTEXTS_SEED = 20261115, 20261116
CHUNK = 50_000
PREDICATES = 5

Predicate = tuple[str, str, Any]
"""Attribute, operator (=, range, <, <=, >, >=), value; a range's is [low, high], both included."""


def coded_filters(count: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Give chunks of (attributes, operators, low, high), a row for each filter.

    Operators are 0 for =, 1 for range, 2 to 5 for <, <=, >, >=; low and high are what is drawn.
    """
    random = np.random.Generator(np.random.PCG64(FILTERS_SEED))
    distinct = np.array(DISTINCT)
    for start in range(0, count, CHUNK):
        kept = min(CHUNK, count - start)
        attributes = np.argsort(random.random((CHUNK, len(NAMES))), axis=1)[:, :PREDICATES]
        where = random.random((CHUNK, PREDICATES))
        width = ((0.05 + 0.5 * random.random((CHUNK, PREDICATES))) * 10_000).astype(np.int64)
        shape = random.random((CHUNK, PREDICATES))
        operators = 1 + sum((shape >= edge).astype(np.int64) for edge in (0.6, 0.7, 0.8, 0.9))
        equal = attributes < EQUALITIES
        operators[equal] = 0
        low = np.where(operators == 1, (where * (10_000 - width)).astype(np.int64), 9999 - width)
        high = np.where(operators == 1, low + width, width)
        value = (where * distinct[attributes]).astype(np.int64)
        low[equal] = high[equal] = value[equal]
        yield attributes[:kept], operators[:kept], low[:kept], high[:kept]


def filters(count: int) -> Iterator[list[Predicate]]:
    """Give the friendly filters as lists of predicates."""
    spoken = ("=", "range", "<", "<=", ">", ">=")
    for chunk in coded_filters(count):
        for attributes, operators, lows, highs in zip(
            *(part.tolist() for part in chunk), strict=True
        ):
            yield [
                (NAMES[a], spoken[o], _said(a, o, low, high))
                for a, o, low, high in zip(attributes, operators, lows, highs, strict=True)
            ]


def _said(attribute: int, operator: int, low: int, high: int) -> Any:
    if operator == 0:
        return f"v{low}" if attribute < TEXTS else low
    if operator == 1:
        return [low, high]
    return high if operator < 4 else low


def contexts(count: int) -> list[dict[str, Any]]:
    """Give the friendly contexts' attributes."""
    random = np.random.Generator(np.random.PCG64(CONTEXTS_SEED))
    made = []
    for _ in range(count):
        values = [int(random.random() * distinct) for distinct in DISTINCT]
        made.append(
            {
                name: f"v{value}" if number < TEXTS else value
                for number, (name, value) in enumerate(zip(NAMES, values, strict=True))
            }
        )
    return made


def text_of(predicates: list[Predicate]) -> str:
    """Write a friendly filter as CQL2."""
    parts = []
    for name, operator, value in predicates:
        if operator == "range":
            parts.append(f"{name} BETWEEN {value[0]} AND {value[1]}")
        else:
            parts.append(f"{name} {operator} {value!r}")
    return " AND ".join(parts)


def filter_of(predicates: list[Predicate]) -> Filter:
    """Make a friendly filter from its normal form, as parsing its text would.

    Parsing a million texts takes minutes; the bench checks on a sample that this is the same.
    """
    atoms = []
    for name, operator, value in sorted(predicates):
        if operator == "range":
            interval = Interval(float(value[0]), float(value[1]))
        elif operator == "=":
            value = value if isinstance(value, str) else float(value)
            interval = Interval(value, value)
        elif operator in ("<", "<="):
            interval = Interval(None, float(value), high_closed=operator == "<=")
        else:
            interval = Interval(float(value), None, low_closed=operator == ">=")
        kind = "string" if isinstance(interval.low, str) else "number"
        atoms.append(Values(name, kind, (interval,)))
    made = Filter(syntax.Truth(True), "")
    made.normal = All(tuple(atoms))
    return made


UNFRIENDLY_SEED = 20261117
SCENES = 400
CITY = (9.0, 48.6, 9.4, 48.9)


def unfriendly_texts(count: int) -> list[str]:
    """Write unfriendly filters as CQL2."""
    random = np.random.Generator(np.random.PCG64(UNFRIENDLY_SEED))
    return [_unfriendly(random) for _ in range(count)]


def unfriendly_contexts(count: int) -> list[Context]:
    """Give contexts for the unfriendly filters: skewed values, points crowded in the middle."""
    random = np.random.Generator(np.random.PCG64(UNFRIENDLY_SEED + 1))
    made = []
    for number in range(count):
        attributes: dict[str, Any] = {
            f"m{i}": round(float(random.beta(2, 5)) * 1000, 2) for i in range(8)
        }
        attributes |= {"topic": _skewed(random, "t"), "class": _skewed(random, "c")}
        made.append(Context(f"v{number}", None, _somewhere(random), attributes))
    return made


def _unfriendly(random: np.random.Generator) -> str:
    """Write one filter: ranges alone, or a shape and a range, or skewed equalities."""
    shape = random.random()
    if shape < 0.4:
        parts = _ranges(random, 4)
    elif shape < 0.6:
        parts = [_box(random), *_ranges(random, 2)]
    elif shape < 0.75:
        parts = [_polygon(random), *_ranges(random, 1)]
    else:
        equal = f"topic = '{_skewed(random, 't')}'"
        parts = [equal, f"class <> '{_skewed(random, 'c')}'", *_ranges(random, 2)]
    if random.random() < 1 / 3:
        if random.random() < 0.5:
            parts[-1] = f"({parts[-1]} OR {_ranges(random, 1)[0]})"
        else:
            low, high = _span(random)
            parts.append(f"NOT (m{random.integers(8)} BETWEEN {low} AND {high})")
    return " AND ".join(parts)


def _ranges(random: np.random.Generator, count: int) -> list[str]:
    chosen = random.permutation(8)[:count]
    said = []
    for i in chosen:
        low, high = _span(random)
        said.append(f"m{i} BETWEEN {low} AND {high}")
    return said


def _span(random: np.random.Generator) -> tuple[float, float]:
    middle, width = random.beta(2, 5) * 1000, 20 + random.random() * 300
    return round(middle - width / 2, 2), round(middle + width / 2, 2)


def _skewed(random: np.random.Generator, letter: str) -> str:
    """Draw a value of which the commonest is a third of all, and thousands are rare."""
    return f"{letter}{min(int(random.zipf(1.4)), 5000)}"


def _somewhere(random: np.random.Generator) -> tuple[float, float]:
    west, south, east, north = CITY
    return (
        round(west + (east - west) * float(random.beta(3, 3)), 6),
        round(south + (north - south) * float(random.beta(3, 3)), 6),
    )


def _box(random: np.random.Generator) -> str:
    x, y = _somewhere(random)
    w, h = 0.002 + random.random() * 0.04, 0.002 + random.random() * 0.03
    return f"S_INTERSECTS(geometry, BBOX({x - w:.6f},{y - h:.6f},{x + w:.6f},{y + h:.6f}))"


def _polygon(random: np.random.Generator) -> str:
    x, y = _somewhere(random)
    radius = 0.002 + random.random() * 0.02
    turns = np.sort(random.random(7)) * 2 * np.pi
    corners = [f"{x + radius * np.cos(turn):.6f} {y + radius * np.sin(turn):.6f}" for turn in turns]
    return f"S_INTERSECTS(geometry, POLYGON(({','.join([*corners, corners[0]])})))"
