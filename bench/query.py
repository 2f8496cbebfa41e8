"""How long does a one-time question over live contexts take? Beside PostgreSQL with PostGIS.

Twelve shapes of question over the same contexts: the first 100 vids that satisfy a filter, and how
many do. Both sides get a question ready to run (a parsed filter, a prepared statement), and both
answers are compared. PostgreSQL has the indexes that its planner uses best for these shapes, all
in memory, and answers over a Unix socket; ours is in the service's process, as in a broker.
"""

import random
import statistics
import string
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from bench import _postgres
from roamcast.lab.report import Claim, Report, Steps
from roamcast.matching.live import LiveIndex, questions
from roamcast.matching.live.slices import run as answer
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.time import MICROSECONDS

TITLE = "one-time questions over live contexts, beside PostgreSQL with PostGIS"

LIMIT = 100
REPEATS = 31
UPDATES = 20_000
NOW = 1_790_000_000 * MICROSECONDS
TYPES: Final = ("person",) * 16 + ("printer", "sensor", "cart", "door")
TEAMS = 2_000
BUILDINGS = 400


def run(quick: bool, progress: Steps, *, full: bool = False) -> Report:
    sizes = (2_000, 10_000) if quick else (10_000, 100_000)
    return measure((*sizes, 1_000_000) if full else sizes, progress)


class Shape(NamedTuple):
    """One shape of question: our filter, their condition, and the values that fill both."""

    name: str
    draw: Callable[[random.Random, "World"], tuple[str, str, dict[str, Any]]]
    nearest: bool = False


class World:
    """The contexts of one size, the same for both sides."""

    def __init__(self, size: int) -> None:
        self.draw = random.Random(size)
        self.contexts = [self._context(number) for number in range(size)]
        self.draw.shuffle(self.contexts)

    def _context(self, number: int) -> Context:
        draw = self.draw
        place, point = self.somewhere()
        attributes: dict[str, Any] = {
            "type": draw.choice(TYPES),
            "name": "".join(draw.choices(string.ascii_lowercase, k=10)),
            "team": f"team-{draw.randrange(TEAMS)}",
            "battery": draw.uniform(0, 100),
        }
        if draw.random() < 0.3:
            attributes["desk"] = f"desk-{draw.randrange(500)}"
        begun = NOW - draw.randrange(86_400 * MICROSECONDS)
        return Context(f"object-{number:08d}", place, point, attributes, begun)

    def somewhere(self) -> tuple[str, tuple[float, float]]:
        """Give a room and a point in its building; buildings lie in a city of 20 km."""
        draw = self.draw
        building = int(draw.random() ** 2 * BUILDINGS)  # some are fuller than others
        at = random.Random(building)
        longitude, latitude = 9.05 + 0.27 * at.random(), 48.69 + 0.18 * at.random()
        floor, room = draw.randrange(6), draw.randrange(40)
        point = (longitude + draw.gauss(0, 4e-4), latitude + draw.gauss(0, 3e-4))
        return f"city/b{building}/{floor}/{room}", point


def _quoted(values: Sequence[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)


def _vid(draw: random.Random, world: World) -> tuple[str, str, dict[str, Any]]:
    vid = draw.choice(world.contexts).vid
    return f"vid = '{vid}'", "vid = %(a)s", {"a": vid}


def _place(draw: random.Random, world: World) -> tuple[str, str, dict[str, Any]]:
    place = draw.choice(world.contexts).place or ""
    place = place.rsplit("/", 2)[0]
    theirs = "(place = %(a)s OR (place >= %(b)s AND place < %(c)s))"
    return f"within(place, '{place}')", theirs, {"a": place, "b": f"{place}/", "c": f"{place}0"}


def _box(draw: random.Random, world: World) -> tuple[str, str, dict[str, Any]]:
    x, y = draw.choice(world.contexts).point or (0, 0)
    west, south, east, north = x - 0.004, y - 0.003, x + 0.004, y + 0.003
    theirs = "ST_Intersects(geom, ST_MakeEnvelope(%(a)s, %(b)s, %(c)s, %(d)s, 4326))"
    ours = f"S_INTERSECTS(geometry, BBOX({west:.6f},{south:.6f},{east:.6f},{north:.6f}))"
    ends = [round(end, 6) for end in (west, south, east, north)]
    return ours, theirs, dict(zip("abcd", ends, strict=True))


def _polygon(draw: random.Random, world: World) -> tuple[str, str, dict[str, Any]]:
    x, y = draw.choice(world.contexts).point or (0, 0)
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    radii = [draw.uniform(0.003, 0.006) for _ in angles]
    ring = [(x + r * np.cos(a), y + r * np.sin(a)) for a, r in zip(angles, radii, strict=True)]
    wkt = ",".join(f"{lon:.6f} {lat:.6f}" for lon, lat in [*ring, ring[0]])
    theirs = "ST_Intersects(geom, ST_GeomFromText(%(a)s, 4326))"
    return f"S_INTERSECTS(geometry, POLYGON(({wkt})))", theirs, {"a": f"POLYGON(({wkt}))"}


def _nearest(draw: random.Random, world: World) -> tuple[str, str, dict[str, Any]]:
    x, y = draw.choice(world.contexts).point or (0, 0)
    theirs = "type = 'printer'"
    return theirs, theirs, {"x": x + 1e-4, "y": y}


def _equality(draw: random.Random, _: World) -> tuple[str, str, dict[str, Any]]:
    team = f"team-{draw.randrange(TEAMS)}"
    return f"team = '{team}'", "team = %(a)s", {"a": team}


def _range(draw: random.Random, _: World) -> tuple[str, str, dict[str, Any]]:
    low = round(draw.uniform(0, 99), 3)
    ours = f"battery BETWEEN {low} AND {low + 0.5:.3f}"
    return ours, "battery BETWEEN %(a)s AND %(b)s", {"a": low, "b": round(low + 0.5, 3)}


def _in(draw: random.Random, world: World) -> tuple[str, str, dict[str, Any]]:
    names = [str(context.attributes["name"]) for context in draw.sample(world.contexts, 200)]
    return f"name IN ({_quoted(names)})", "name = ANY(%(a)s)", {"a": names}


def _like(draw: random.Random, world: World) -> tuple[str, str, dict[str, Any]]:
    part = str(draw.choice(world.contexts).attributes["name"])[3:7]
    return f"name LIKE '%{part}%'", "name LIKE %(a)s", {"a": f"%{part}%"}


def _not(draw: random.Random, _: World) -> tuple[str, str, dict[str, Any]]:
    team = f"team-{draw.randrange(TEAMS)}"
    theirs = "NOT (type = 'person' OR team = %(a)s)"
    return theirs.replace("%(a)s", f"'{team}'"), theirs, {"a": team}


def _or(draw: random.Random, _: World) -> tuple[str, str, dict[str, Any]]:
    teams = [f"team-{number}" for number in draw.sample(range(TEAMS), 20)]
    low = draw.randrange(50)
    ours = " OR ".join(f"(team = '{team}' AND battery > {low})" for team in teams)
    theirs = " OR ".join(f"(team = %(t{n})s AND battery > %(low)s)" for n in range(20))
    return ours, f"({theirs})", {"low": low} | {f"t{n}": team for n, team in enumerate(teams)}


def _nulls(draw: random.Random, _: World) -> tuple[str, str, dict[str, Any]]:
    desk, low = f"desk-{draw.randrange(500)}", draw.randrange(5, 30)
    theirs = "NOT (desk = %(a)s OR battery > %(b)s)"
    return theirs.replace("%(a)s", f"'{desk}'").replace("%(b)s", str(low)), theirs, {
        "a": desk, "b": low,
    }  # fmt: skip


SHAPES: Final = (
    Shape("vid", _vid),
    Shape("place", _place),
    Shape("box", _box),
    Shape("polygon", _polygon),
    Shape("nearest", _nearest, nearest=True),
    Shape("equality", _equality),
    Shape("range", _range),
    Shape("IN 200", _in),
    Shape("LIKE", _like),
    Shape("NOT", _not),
    Shape("OR of 20 pairs", _or),
    Shape("three-valued nulls", _nulls),
)


def measure(sizes: Sequence[int], progress: Steps) -> Report:
    """Measure every shape at every size, on both sides."""
    questions.warm_up()
    rows: list[dict[str, Any]] = []
    changes: list[dict[str, Any]] = []
    with _postgres.running() as connection, progress("shapes", len(sizes) * len(SHAPES)) as step:
        for size in sizes:
            world = World(size)
            index = LiveIndex()
            began = time.perf_counter()
            for context in world.contexts:
                index.put(context)
            built_s = time.perf_counter() - began
            _load(connection, world)
            for shape in SHAPES:
                rows += _measured(shape, world, index, connection)
                step(1)
            changes.append(_updates(world, index, connection) | {"built_s": built_s})
    parameters = {
        "page": LIMIT,
        "questions": f"{REPEATS} of each shape with other values, medians in µs",
        "peer": "PostgreSQL, PostGIS, pg_trgm: prepared statements over a Unix socket",
        "growth": _growth(rows),
        "updates": changes,
    }
    return Report("query", parameters, rows, _claims(rows, changes))


def _measured(
    shape: Shape, world: World, index: LiveIndex, connection: Any
) -> list[dict[str, Any]]:
    draw = random.Random(shape.name)
    asked = [shape.draw(draw, world) for _ in range(REPEATS)]
    began = time.perf_counter()
    filters = [Filter.parse(ours) for ours, _, _ in asked]
    for wanted in filters:
        assert wanted.normal is not None
    read_us = (time.perf_counter() - began) / len(filters) * 1e6
    rows = []
    if shape.nearest:
        ways = [("nearest 10", *_ask_nearest(filters, asked, index, connection))]
    else:
        ways = [
            ("page", *_ask_page(filters, asked, index, connection)),
            ("count", *_ask_count(filters, asked, index, connection)),
        ]
    for way, ours_us, theirs_us in ways:
        rows.append(
            {
                "contexts": len(index),
                "shape": shape.name,
                "answer": way,
                "ours_us": ours_us,
                "postgis_us": theirs_us,
                "times": theirs_us / ours_us,
                "read_us": read_us,
            }
        )
    return rows


Asked = list[tuple[str, str, dict[str, Any]]]


def _ask_page(
    filters: list[Filter], asked: Asked, index: LiveIndex, connection: Any
) -> tuple[float, float]:
    ours, ours_us = _timed(
        [lambda w=wanted: answer(questions.page(index, w, "", LIMIT)) for wanted in filters]
    )
    sql = f"SELECT vid FROM live WHERE {asked[0][1]} ORDER BY vid LIMIT {LIMIT}"  # noqa: S608
    theirs, theirs_us = _timed(_statements(connection, sql, asked))
    for page, found in zip(ours, theirs, strict=True):
        assert [context.vid for context in page.contexts] == [vid for (vid,) in found], sql
    return ours_us, theirs_us


def _ask_count(
    filters: list[Filter], asked: Asked, index: LiveIndex, connection: Any
) -> tuple[float, float]:
    ours, ours_us = _timed(
        [lambda w=wanted: answer(questions.count(index, w)) for wanted in filters]
    )
    sql = f"SELECT count(*) FROM live WHERE {asked[0][1]}"  # noqa: S608
    theirs, theirs_us = _timed(_statements(connection, sql, asked))
    assert ours == [found[0][0] for found in theirs], sql
    return ours_us, theirs_us


def _ask_nearest(
    filters: list[Filter], asked: Asked, index: LiveIndex, connection: Any
) -> tuple[float, float]:
    calls = [
        lambda w=wanted, v=values: answer(questions.nearest(index, (v["x"], v["y"]), w, count=10))
        for wanted, (_, _, values) in zip(filters, asked, strict=True)
    ]
    ours, ours_us = _timed(calls)
    # On the sphere, as ours: geography's order.
    sql = (
        f"SELECT vid, ST_Distance(geog, p, false) FROM live, "  # noqa: S608
        "(SELECT ST_SetSRID(ST_MakePoint(%(x)s, %(y)s), 4326)::geography AS p) AS asked "
        f"WHERE {asked[0][1]} ORDER BY geog <-> ST_SetSRID(ST_MakePoint(%(x)s, %(y)s), 4326)"
        "::geography LIMIT 10"
    )
    theirs, theirs_us = _timed(_statements(connection, sql, asked))
    for found, rows in zip(ours, theirs, strict=True):
        # Theirs orders by the spheroid: 0.5 % of the distance decides between neighbours.
        for near, (_, metres) in zip(found, rows, strict=True):
            assert abs(near.metres - metres) <= 0.01 * metres + 0.1
    return ours_us, theirs_us


def _statements(connection: Any, sql: str, asked: Asked) -> list[Callable[[], Any]]:
    return [
        lambda v=values: connection.execute(sql, v, prepare=True).fetchall()
        for _, _, values in asked
    ]


def _timed(calls: Sequence[Callable[[], Any]]) -> tuple[list[Any], float]:
    """Make every call twice and time the second; give the answers and the median in µs."""
    answers, taken = [], []
    for call in calls:
        call()
        began = time.perf_counter()
        answers.append(call())
        taken.append((time.perf_counter() - began) * 1e6)
    return answers, statistics.median(taken)


def _load(connection: Any, world: World) -> None:
    connection.execute("DROP TABLE IF EXISTS live")
    connection.execute(
        "CREATE TABLE live (vid text NOT NULL, place text, geom geometry(Point, 4326), "
        "geog geography(Point, 4326), t_r bigint NOT NULL, type text, name text, team text, "
        "battery double precision, desk text) WITH (fillfactor = 70)"
    )
    with connection.cursor().copy(
        "COPY live (vid, place, geom, geog, t_r, type, name, team, battery, desk) FROM STDIN"
    ) as copy:
        for context in world.contexts:
            assert context.point is not None
            point = f"SRID=4326;POINT({context.point[0]!r} {context.point[1]!r})"
            values = [context.attributes.get(key) for key in ("type", "name", "team")]
            rest = [context.attributes["battery"], context.attributes.get("desk")]
            copy.write_row([context.vid, context.place, point, point, context.t_r, *values, *rest])
    for statement in (
        "CREATE UNIQUE INDEX ON live (vid)",
        "CREATE INDEX ON live (place, vid)",
        "CREATE INDEX ON live USING gist (geom)",
        "CREATE INDEX ON live USING gist (geog)",
        "CREATE INDEX ON live (type, vid)",
        "CREATE INDEX ON live (name, vid)",
        "CREATE INDEX ON live USING gin (name gin_trgm_ops)",
        "CREATE INDEX ON live (team, vid)",
        "CREATE INDEX ON live (battery)",
        "CREATE INDEX ON live (desk, vid)",
        "CREATE INDEX ON live (t_r)",
        "VACUUM ANALYZE live",
    ):
        connection.execute(statement)


def _updates(world: World, index: LiveIndex, connection: Any) -> dict[str, Any]:
    """Let objects move: place, point, battery and time change, every index is kept."""
    moved = []
    for number in range(min(UPDATES, 2 * len(world.contexts))):
        context = world.draw.choice(world.contexts)
        place, point = world.somewhere()
        attributes = context.attributes | {"battery": world.draw.uniform(0, 100)}
        moved.append(
            msgspec.structs.replace(
                context, place=place, point=point, attributes=attributes, t_r=NOW + number
            )
        )
    began = time.perf_counter()
    for context in moved:
        index.put(context)
    ours = len(moved) / (time.perf_counter() - began)
    sql = (
        "UPDATE live SET place = %s, geom = ST_SetSRID(ST_MakePoint(%s, %s), 4326), "
        "geog = ST_SetSRID(ST_MakePoint(%s, %s), 4326), battery = %s, t_r = %s WHERE vid = %s"
    )
    values = [
        (c.place, *c.point, *c.point, c.attributes["battery"], c.t_r, c.vid)
        for c in moved
        if c.point is not None
    ]
    began = time.perf_counter()
    with connection.cursor() as cursor:
        for start in range(0, len(values), 1000):  # pipelined, a transaction for 1,000
            with connection.transaction():
                cursor.executemany(sql, values[start : start + 1000])
    theirs = len(values) / (time.perf_counter() - began)
    return {"contexts": len(index), "ours_per_s": ours, "postgis_per_s": theirs}


def _growth(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Fit time ~ contexts^x for each question; give x."""
    fitted = {}
    for key in dict.fromkeys((row["shape"], row["answer"]) for row in rows):
        mine = [row for row in rows if (row["shape"], row["answer"]) == key]
        sizes = np.log([row["contexts"] for row in mine])
        times = np.log([row["ours_us"] for row in mine])
        fitted[" ".join(key)] = round(float(np.polyfit(sizes, times, 1)[0]), 2)
    return fitted


def _claims(rows: list[dict[str, Any]], changes: list[dict[str, Any]]) -> list[Claim]:
    claims = []
    for size in dict.fromkeys(row["contexts"] for row in rows):
        mine = [row for row in rows if row["contexts"] == size]
        least = min(mine, key=lambda row: row["times"])
        said = f"times PostGIS at p50 in the worst of all questions, {size:,} contexts"
        claims.append(Claim(said, least["times"], least["times"] >= 1, bar=1))
        faster = sum(row["times"] >= 5 for row in mine) / len(mine)
        said = f"of the questions are at least 5 times faster than PostGIS, {size:,} contexts"
        claims.append(Claim(said, faster, faster >= 0.5, bar=0.5))
    for change in changes:
        ratio = change["ours_per_s"] / change["postgis_per_s"]
        said = f"times PostGIS's updates a second, {change['contexts']:,} contexts"
        claims.append(Claim(said, ratio, ratio >= 1, bar=1))
    return claims
