"""Random archives and messages for the pipeline's tests, drawn from a seed."""

import random
from collections.abc import Iterable

import msgspec
import numpy as np
import pyarrow as pa

from roamcast.model.context_arrow import from_arrow, schema
from roamcast.model.contexts import Context, to_feature
from roamcast.model.filters import Filter
from roamcast.model.filters.syntax import PREDICATES
from roamcast.model.time import MICROSECONDS, format_instant

BEGIN = 1_790_000_000 * MICROSECONDS
DAY = 86_400 * MICROSECONDS
DAYS = 120
PLACES = [f"campus/b{b}/{f}/{f}{r:02d}" for b in range(8) for f in range(4) for r in range(6)]
KINDS = ["person", "bus", "Bike", "dog"]
CONTEXTS = schema(
    ["integer:age", "float:age", "string:kind", "boolean:ill", "timestamp:seen", "string:a name"]
)


def contexts(seed: int, count: int, days: int = DAYS) -> pa.Table:
    """Contexts that last from a second to four months, some still lasting, some without a point."""
    rng = np.random.default_rng(seed)
    t_r = BEGIN + rng.integers(0, days * DAY, count)
    lasting = rng.random(count) < 0.03
    spread = np.exp(rng.uniform(np.log(MICROSECONDS), np.log(DAYS * DAY), count)).astype(np.int64)
    number = rng.integers(0, 90, count)
    drawn = rng.random(count)
    pointless = rng.random(count) < 0.25
    lon, lat = 8.5 + 0.6 * rng.random(count), 48.4 + 0.6 * rng.random(count)
    columns = {
        "vid": [f"v{i:07d}@node{i % 3}.example" for i in range(count)],
        "place": _some(rng, np.array(PLACES)[rng.integers(0, len(PLACES), count)], 0.7),
        "lon": pa.array(lon, mask=pointless),
        "lat": pa.array(lat, mask=pointless),
        "t_r": pa.array(t_r).cast(CONTEXTS.field("t_r").type),
        "t_d": pa.array(t_r + spread, mask=lasting).cast(CONTEXTS.field("t_d").type),
        "integer:age": pa.array(number, mask=drawn < 0.5),
        "float:age": pa.array(number + 0.5, mask=(drawn >= 0.5) | (drawn < 0.2)),
        "string:kind": _some(rng, np.array(KINDS)[rng.integers(0, len(KINDS), count)], 0.9),
        "boolean:ill": pa.array(rng.random(count) < 0.3, mask=rng.random(count) < 0.5),
        "timestamp:seen": pa.array(t_r + DAY, mask=rng.random(count) < 0.9).cast(
            CONTEXTS.field("t_r").type
        ),
        "string:a name": _some(rng, np.array(["x", "y"])[rng.integers(0, 2, count)], 0.01),
    }
    return pa.table(columns, schema=CONTEXTS)


def _some(rng: np.random.Generator, values: np.ndarray, share: float) -> pa.Array:
    return pa.array(values, mask=rng.random(len(values)) >= share)


def messages(seed: int, count: int) -> dict[str, Filter]:
    """Messages with all 11 temporal predicates, polygons, boxes, places and attributes."""
    draw = random.Random(seed)
    return {f"m{i}": Filter.parse(_message(draw, i)) for i in range(count)}


def _message(draw: random.Random, number: int) -> str:
    others = (_where, _place, _attribute, _attribute)
    chosen = [make(draw) for make in others if draw.random() < 0.55]
    parts = [_when(draw, PREDICATES[number % len(PREDICATES)]), *chosen]
    text = " AND ".join(f"({part})" for part in parts)
    if draw.random() < 0.2:
        text = f"({text}) OR ({_where(draw)} AND {_when(draw, 'overlaps')} AND {_place(draw)})"
    return text


def _moment(draw: random.Random, low: int = -5 * DAY, high: int = (DAYS + 10) * DAY) -> int:
    return BEGIN + draw.randrange(low, high)


def _when(draw: random.Random, name: str) -> str:
    start = _moment(draw)
    end = start + draw.choice([0, 3_600 * MICROSECONDS, DAY, 20 * DAY])
    interval = f"INTERVAL('{format_instant(start)}', '{format_instant(end)}')"
    if name == "equals":
        return f"equals(time, {interval}, {draw.choice([60, 86_400, 864_000])})"
    return f"{name}(time, {interval})"


def _where(draw: random.Random) -> str:
    x, y = 8.5 + 0.6 * draw.random(), 48.4 + 0.6 * draw.random()
    size = draw.choice([0.02, 0.1, 0.3])
    if draw.random() < 0.4:
        return f"S_INTERSECTS(geometry, BBOX({x}, {y}, {x + size}, {y + size}))"
    ring = f"{x} {y}, {x + size} {y + size / 3}, {x + size / 2} {y + size}, {x} {y}"
    return f"S_INTERSECTS(geometry, POLYGON(({ring})))"


def _place(draw: random.Random) -> str:
    path = draw.choice(PLACES).split("/")
    return f"within(place, '{'/'.join(path[: draw.randint(1, 4)])}')"


def _attribute(draw: random.Random) -> str:
    age = draw.randrange(0, 90)
    return draw.choice(
        [
            f"age < {age}",
            f"age >= {age}.25",
            f"NOT (age = {age})",
            f"kind = '{draw.choice(KINDS)}'",
            f"kind IN ('{draw.choice(KINDS)}', 'bus')",
            "kind LIKE 'p%n'",
            "casei(kind) = casei('BIKE')",
            "ill = true",
            "ill IS NULL",
            "\"a name\" = 'x'",
            "place IS NULL",
            f"seen > TIMESTAMP('{format_instant(_moment(draw))}')",
            "age * 2 < 50",
        ]
    )


def expected(table: pa.Table, asked: dict[str, Filter]) -> dict[str, list[str]]:
    """Answer by the reference evaluator, context by context."""
    every = from_arrow(table)
    return {
        name: sorted({context.vid for context in every if one.matches(context)})
        for name, one in asked.items()
    }


def lines(every: Iterable[Context]) -> bytes:
    """Write contexts as CONTEXTS.jsonl."""
    return b"".join(msgspec.json.encode(to_feature(context)) + b"\n" for context in every)
