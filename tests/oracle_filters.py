"""Filters read a second time: a generator and an evaluator that share no code with `roamcast`.

A filter is a tree of tuples, written as CQL2 by `write` and answered by `truth` over a context that
is a plain dict. Nothing here parses: texts that are moments are a table, geometry is exact in
rationals, and each rule follows docs/filters.md. `tests/oracle_backends.py` compares the two.
"""

# ruff: noqa: ARG005 - the rows of a table share one signature

import math
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

Node = tuple[Any, ...]
Record = dict[str, Any]
"""vid, place, point, attributes, t_r, t_d: as in a context."""


class Stamp(NamedTuple):
    """A moment as an attribute."""

    us: int


class Undecidable(Exception):  # noqa: N818 - not an error: the pair is left out
    """A distance so close to its bound that rounding decides."""


HOUR = 3_600_000_000
DAY = 24 * HOUR
MIDNIGHT = 1_794_700_800_000_000  # 2026-11-15T00:00:00Z
NINE = MIDNIGHT + 9 * HOUR
MOMENTS = [NINE - DAY, NINE - 1, NINE, NINE + 1, NINE + 2, NINE + HOUR, MIDNIGHT + DAY - 1]
MOMENTS += [MIDNIGHT + DAY, NINE + 2 * DAY]
DAYS = {"2026-11-14": MIDNIGHT - DAY, "2026-11-15": MIDNIGHT, "2026-11-16": MIDNIGHT + DAY}
READINGS: dict[str, int | None] = {
    "2026-11-15T09:00:00Z": NINE,
    "2026-11-15T10:00:00+01:00": NINE,
    "2026-11-15t09:00:00.000001z": NINE + 1,
    "2026-11-15T09:00:00.0000020Z": NINE + 2,
    "2026-11-15": MIDNIGHT,
    "2026-11-15T24:00:00Z": None,
    "2026-11-15T09:00:00": None,
    "2026-11-31": None,
}
"""Texts that are moments, or look like one."""

NUMBERS = [-1, 0, 1, 2, 2.5, 3, -0.0, 0.5, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**62, 1e300]
WRITABLE = ["-1", "0", ".5", "0.5", "1", "2", "2.5", "3", "9007199254740992", "9007199254740994"]
WRITABLE += ["1e300", "-.25"]
TEXTS = ["", "a", "ab", "abc", "b", "A", "it's", "a\\", "a\\b", "a%", "a_b", "é", "e\u0301", "e"]
TEXTS += [
    "ß",
    "SS",
    "ς",
    "Σ",
    "각",
    "\ud7ff",
    "\ud7ffa",
    "\ue000",
    "\uffff",
    "a\U0010ffff",
    "😀",
    "a😀b",
]
PATTERNS = ["a%", "%b", "%", "", "_", "a_b", "ab", "_b%", "a\\%", "a\\_%", "a\\", "a\\\\", "%\\"]
PATTERNS += [
    "\ud7ff%",
    "\U0010ffff%",
    "a\U0010ffff%",
    "_a%",
    "😀",
    "a_%b",
    "%a%b%",
    "E%",
    "SS",
    "각_",
]
EDGES = ["a\\", "a\\%", "%\\", "\ud7ff%", "a\U0010ffff%", "\ue000%", "a😀%"]
"""Patterns that end in an escape, or whose prefix ends beside the surrogates or all characters."""

FOLDED = {"A": "a", "B": "b", "E": "e", "S": "s", "ß": "ss", "Σ": "σ", "ς": "σ"}
BARE = {"é": "e", "É": "E", "\u0301": ""}
PLACES = ["campus", "campus/b3", "campus/b35", "campus/b35/2", "campus/b35-a", "campus/b36"]
COORDINATES = [0.0, 0.1, 0.25, 0.3, 0.5, 1.0, 1.5, 2.0]
LONGITUDES = [*COORDINATES, *[-180.0, 180.0] * 3, 179.5, -179.5]
LATITUDES = [*COORDINATES, *[0.5, 1.0] * 4, 90.0, -90.0]
COMPARATORS = ["=", "<>", "<", "<=", ">", ">="]
RELATIONS: dict[str, Callable[[Any, Any, Any, Any], bool]] = {
    "AFTER": lambda s, e, a, b: s > b,
    "BEFORE": lambda s, e, a, b: e < a,
    "CONTAINS": lambda s, e, a, b: s < a and b < e,
    "DISJOINT": lambda s, e, a, b: e < a or b < s,
    "DURING": lambda s, e, a, b: a < s and e < b,
    "EQUALS": lambda s, e, a, b: (s, e) == (a, b),
    "FINISHEDBY": lambda s, e, a, b: s < a and e == b,
    "FINISHES": lambda s, e, a, b: a < s and e == b,
    "INTERSECTS": lambda s, e, a, b: not (e < a or b < s),
    "MEETS": lambda s, e, a, b: e == a,
    "METBY": lambda s, e, a, b: s == b,
    "OVERLAPPEDBY": lambda s, e, a, b: a < s < b < e,
    "OVERLAPS": lambda s, e, a, b: s < a < e < b,
    "STARTEDBY": lambda s, e, a, b: s == a and b < e,
    "STARTS": lambda s, e, a, b: s == a and e < b,
}
PREDICATES: dict[str, Callable[[Any, Any, Any, Any, int], bool]] = {
    "before": lambda r, d, a, b, z: d < a,
    "after": lambda r, d, a, b, z: b < r,
    "starts_only": lambda r, d, a, b, z: a <= r <= b <= d,
    "ends_only": lambda r, d, a, b, z: r <= a <= d <= b,
    "start_by": lambda r, d, a, b, z: a <= r <= b,
    "end_by": lambda r, d, a, b, z: a <= d <= b,
    "overlaps": lambda r, d, a, b, z: r <= b and a <= d,
    "excludes": lambda r, d, a, b, z: d < a or b < r,
    "equals": lambda r, d, a, b, z: _close(r, a, z) and _close(d, b, z),
    "during": lambda r, d, a, b, z: a <= r and d <= b,
    "contains": lambda r, d, a, b, z: r <= a and b <= d,
}
SPATIAL = ["INTERSECTS", "EQUALS", "DISJOINT", "TOUCHES"]
SPATIAL += ["WITHIN", "OVERLAPS", "CROSSES", "CONTAINS"]


def _close(x: Any, y: Any, z: int) -> bool:
    return bool(x == y or abs(x - y) <= z)


# --- answers: True, False or None for unknown


def truth(node: Node, record: Record) -> bool | None:
    answer = _ANSWERS[node[0]](record, *node[1:])
    assert answer is None or isinstance(answer, bool)
    return answer


def _both(answers: list[bool | None]) -> bool | None:
    return False if False in answers else None if None in answers else True


def _opposite(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def _any(answers: list[bool | None]) -> bool | None:
    return _opposite(_both([_opposite(answer) for answer in answers]))


def _value(record: Record, node: Node) -> Node | None:  # noqa: C901 - one case a node
    """n: a number; s: a text; b: a boolean; i: a moment of the context; d: one of the filter."""
    match node:
        case ("attr", "place" | "vid" as name):
            return None if record[name] is None else ("s", record[name])
        case ("attr", name):
            found = record["attributes"].get(name)
            if found is None:
                return None
            if isinstance(found, Stamp):
                return ("i", found.us, found.us)
            if isinstance(found, bool):
                return ("b", found)
            return ("s", found) if isinstance(found, str) else ("n", Fraction(found))
        case ("number", written):
            return ("n", Fraction(float(written)))
        case ("text", text):
            return ("s", text)
        case ("truth", value):
            return ("b", value)
        case ("moment", us):
            return ("d", us, us)
        case ("date", us):
            return ("d", us, us + DAY - 1)
        case ("fold", name, inner):
            value = _value(record, inner)
            return ("s", fold(name, value[1])) if value and value[0] == "s" else None
        case ("calc", op, left, right):
            return _calculated(op, _value(record, left), _value(record, right))
    raise AssertionError(node)


def fold(name: str, text: str) -> str:
    """By tables for the characters above; all else has neither case nor accents."""
    table = FOLDED if name == "casei" else BARE
    return "".join(table.get(character, character) for character in text)


def _calculated(op: str, left: Node | None, right: Node | None) -> Node | None:
    if not left or not right or left[0] != "n" or right[0] != "n":
        return None
    try:
        # every operand is a float64, and each result is the exact one, rounded
        a, b = Fraction(float(left[1])), Fraction(float(right[1]))
        if op == "^":
            exact: Any = math.pow(a, b)
        elif op in ("/", "div"):
            exact = float(a / b)
            exact = math.trunc(exact) if op == "div" else exact
        elif op == "%":
            exact = a - b * math.trunc(a / b)
        else:
            exact = a + b if op == "+" else a - b if op == "-" else a * b
        return ("n", Fraction(float(exact)))
    except (ZeroDivisionError, OverflowError, ValueError):
        return None


def _compared(record: Record, op: str, left: Node, right: Node) -> bool | None:
    a, b = _value(record, left), _value(record, right)
    if a is None or b is None:
        return None
    if "d" in (a[0], b[0]):
        spans = [_moments(a), _moments(b)]
        if None in spans:
            return None
        (s, e), (t, f) = spans  # type: ignore[misc]
        before, after = e < t, f < s
    elif a[0] != b[0]:
        return None
    elif a[0] == "s":
        one, other = [ord(c) for c in a[1]], [ord(c) for c in b[1]]
        before, after = one < other, one > other
    else:
        before, after = a[1] < b[1], a[1] > b[1]
    same = not before and not after
    return {
        "=": same,
        "<>": not same,
        "<": before,
        ">": after,
        "<=": not after,
        ">=": not before,
    }[op]


def _moments(value: Node | None) -> tuple[Any, Any] | None:
    if value is None:
        return None
    if value[0] in "id":
        return (value[1], value[2])
    us = READINGS.get(value[1]) if value[0] == "s" else None
    return None if us is None else (us, us)


def _like(record: Record, operand: Node, pattern: str, folds: tuple[str, ...]) -> bool | None:
    value = _value(record, operand)
    if value is None or value[0] != "s":
        return None
    for name in folds:
        pattern = fold(name, pattern)
    tokens: list[str] = []
    rest = list(pattern)
    while rest:
        character = rest.pop(0)
        if character == "\\" and rest:
            tokens.append("=" + rest.pop(0))
        else:
            tokens.append(character if character in "%_" else "=" + character)
    reached = {0}  # how far into the text the tokens so far can reach
    text = value[1]
    for token in tokens:
        if token == "%":
            reached = set(range(min(reached), len(text) + 1)) if reached else set()
        else:
            reached = {
                at + 1
                for at in reached
                if at < len(text) and (token == "_" or token[1:] == text[at])
            }
    return len(text) in reached


def _null(record: Record, name: str) -> bool:
    if name in ("place", "vid"):
        return record[name] is None
    if name == "geometry":
        return record["point"] is None
    return name not in record["attributes"]


def _within(record: Record, path: str) -> bool | None:
    if record["place"] is None:
        return None
    return bool(record["place"].split("/")[: path.count("/") + 1] == path.split("/"))


def _near(record: Record, lon: float, lat: float, metres: float) -> bool | None:
    if record["point"] is None:
        return None
    x, y = record["point"]
    if y == lat and ((x - lon) % 360 == 0 or abs(y) == 90):
        return True
    a, b = ((math.radians(p), math.radians(q)) for p, q in ((x, y), (lon, lat)))
    u, v = ((math.cos(q) * math.cos(p), math.cos(q) * math.sin(p), math.sin(q)) for p, q in (a, b))
    away = 2 * 6_371_008.8 * math.asin(min(1.0, math.dist(u, v) / 2))
    if abs(away - metres) <= 1e-6 * (1 + metres):
        raise Undecidable
    return away <= metres


def _spatial(record: Record, op: str, shape: Node, point_first: bool) -> bool | None:
    if record["point"] is None:
        return None
    place = where(record["point"], shape)
    is_point = place == "in" and _is_point(shape)
    if not point_first:
        op = {"WITHIN": "CONTAINS", "CONTAINS": "WITHIN"}.get(op, op)
    return {
        "INTERSECTS": place != "out",
        "DISJOINT": place == "out",
        "WITHIN": place == "in",
        "TOUCHES": place == "on",
        "EQUALS": is_point,
        "CONTAINS": is_point,
    }.get(op, False)


def _is_point(shape: Node) -> bool:
    if shape[0] == "BBOX":
        west, south, east, north = shape[1]
        return south == north and (west == east or (west, east) == (180, -180))
    return shape[0] == "POINT"


def where(point: tuple[float, float], shape: Node) -> str:
    """Where a point lies: in, on (its border) or out."""
    kind, parts = shape
    if kind == "BBOX":
        return _in_box(point, parts)
    x, y = Fraction(point[0]), Fraction(point[1])
    if kind == "POINT":
        return "in" if (x, y) == parts else "out"
    if kind == "MULTIPOINT":
        return "in" if any((x, y) == part for part in parts) else "out"
    if kind in ("LINESTRING", "MULTILINESTRING"):
        lines = [parts] if kind == "LINESTRING" else parts
        if not any(_on(x, y, line) for line in lines):
            return "out"
        ends = sum((x, y) == line[0] for line in lines) + sum((x, y) == line[-1] for line in lines)
        return "on" if ends % 2 else "in"
    polygons = [parts] if kind == "POLYGON" else parts
    if any(_on(x, y, ring) for rings in polygons for ring in rings):
        return "on"
    crossed = [sum(_crossings(x, y, ring) for ring in rings) for rings in polygons]
    return "in" if any(count % 2 for count in crossed) else "out"


def _in_box(point: tuple[float, float], box: tuple[float, float, float, float]) -> str:
    (lon, lat), (west, south, east, north) = point, box
    if west > east:
        east += 360
        lon = lon + 360 if lon < west else lon
    if not (west <= lon <= east and south <= lat <= north):
        return "out"
    at_border = (west < east and lon in (west, east)) or (south < north and lat in (south, north))
    return "on" if at_border else "in"


def _on(x: Fraction, y: Fraction, line: Any) -> bool:
    for (ax, ay), (bx, by) in pairwise(line):
        cross = (Fraction(bx) - Fraction(ax)) * (y - Fraction(ay)) - (
            Fraction(by) - Fraction(ay)
        ) * (x - Fraction(ax))
        if cross == 0 and min(ax, bx) <= x <= max(ax, bx) and min(ay, by) <= y <= max(ay, by):
            return True
    return False


def _crossings(x: Fraction, y: Fraction, ring: Any) -> int:
    """How often a ray to the east crosses the ring; the point is not on it."""
    count = 0
    for (ax, ay), (bx, by) in pairwise(ring):
        if (ay > y) != (by > y):
            at = Fraction(ax) + (y - Fraction(ay)) * (Fraction(bx) - Fraction(ax)) / (
                Fraction(by) - Fraction(ay)
            )
            count += at > x
    return count


def _span(record: Record, node: Node) -> tuple[Any, Any] | None:
    if node[0] == "time":
        return (record["t_r"], math.inf if record["t_d"] is None else record["t_d"])
    if node[0] != "interval":
        return _moments(_value(record, node))
    ends = []
    for end, unbounded in zip(node[1:], (-math.inf, math.inf), strict=True):
        if end is None:
            ends.append(unbounded)
            continue
        found = _moments(_value(record, end))
        if found is None:
            return None
        ends.append(found[0])  # a date as an end is its first instant
    return (ends[0], ends[1])


def _related(record: Record, op: str, left: Node, right: Node) -> bool | None:
    one, other = _span(record, left), _span(record, right)
    return None if one is None or other is None else RELATIONS[op](*one, *other)


def _predicate(record: Record, name: str, span: Node, tolerance: int) -> bool:
    lifetime, asked = _span(record, ("time",)), _span(record, span)
    assert lifetime is not None
    assert asked is not None
    return PREDICATES[name](*lifetime, *asked, tolerance)


_ANSWERS: dict[str, Callable[..., bool | None]] = {
    "true": lambda record: True,
    "false": lambda record: False,
    "and": lambda record, parts: _both([truth(part, record) for part in parts]),
    "or": lambda record, parts: _any([truth(part, record) for part in parts]),
    "not": lambda record, part: _opposite(truth(part, record)),
    "compare": _compared,
    "flag": lambda record, name: _compared(record, "=", ("attr", name), ("truth", True)),
    "between": lambda record, x, low, high: _both(
        [_compared(record, ">=", x, low), _compared(record, "<=", x, high)]
    ),
    "in": lambda record, x, options: _any([_compared(record, "=", x, o) for o in options]),
    "like": _like,
    "null": _null,
    "within": _within,
    "near": _near,
    "spatial": _spatial,
    "related": _related,
    "predicate": _predicate,
}

# --- CQL2


def stamp_text(us: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"


def _quoted(text: str, draw: random.Random) -> str:
    """Write a text: \\' or '' for a quote, and backslashes doubled before one and at the end."""
    out, waiting = "", 0
    for character in [*text, ""]:
        if character == "\\":
            waiting += 1
            continue
        out += "\\" * (waiting * 2 if character in ("'", "") else waiting)
        waiting = 0
        out += draw.choice(["''", "\\'"]) if character == "'" else character
    return f"'{out}'"


def write(node: Node, draw: random.Random) -> str:  # noqa: C901 - one case a node
    """Write a tree as CQL2 text, in one of several spellings."""
    match node:
        case ("true" | "false" as word,):
            return draw.choice([word, word.upper()])
        case ("and" | "or" as word, parts):
            spelled = draw.choice([word, word.upper()])
            return "(" + f" {spelled} ".join(write(part, draw) for part in parts) + ")"
        case ("not", ("between" | "in" | "like" | "null" as word, *_) as part) if (
            draw.random() < 0.7
        ):
            text = write(part, draw)
            if word == "null":
                return text.replace(" IS NULL", " IS NOT NULL")
            # the operand comes first and holds no keyword of these
            keyword = f" {word.upper()} "
            at = text.index(keyword)
            return text[:at] + " NOT" + text[at:]
        case ("not", part):
            return f"NOT ({write(part, draw)})"
        case ("compare", op, left, right):
            return f"{_operand(left, draw)} {op} {_operand(right, draw)}"
        case ("flag", name):
            return str(name)
        case ("between", x, low, high):
            ends = f"{_operand(low, draw)} AND {_operand(high, draw)}"
            return f"{_operand(x, draw)} BETWEEN {ends}"
        case ("in", x, options):
            listed = ", ".join(_operand(option, draw) for option in options)
            return f"{_operand(x, draw)} IN ({listed})"
        case ("like", x, pattern, folds):
            text = _quoted(pattern, draw)
            for name in folds:
                text = f"{name}({text})"
            return f"{_operand(x, draw)} LIKE {text}"
        case ("null", name):
            return f"{name} IS NULL"
        case ("within", path):
            return f"within(place, '{path}')"
        case ("near", lon, lat, metres):
            return f"near(geometry, POINT({lon} {lat}), {metres})"
        case ("spatial", op, shape, point_first):
            pair = ["geometry", _shape(shape)]
            return f"S_{op}({', '.join(pair if point_first else pair[::-1])})"
        case ("related", op, left, right):
            return f"T_{op}({_operand(left, draw)}, {_operand(right, draw)})"
        case ("predicate", name, span, tolerance):
            more = f", {tolerance / 1e6:.6f}" if name == "equals" and tolerance else ""
            return f"{name}(time, {_operand(span, draw)}{more})"
    raise AssertionError(node)


def _operand(node: Node, draw: random.Random) -> str:
    match node:
        case ("attr", name):
            return str(name)
        case ("number", written):
            return str(written)
        case ("text", text):
            return _quoted(text, draw)
        case ("truth", value):
            return "true" if value else "false"
        case ("moment", us):
            return f"TIMESTAMP('{stamp_text(us)}')"
        case ("date", us):
            return f"DATE('{stamp_text(us)[:10]}')"
        case ("fold", name, inner):
            return f"{draw.choice([name, name.upper()])}({_operand(inner, draw)})"
        case ("calc", "^", left, ("calc", "^", *_) as right) if draw.random() < 0.7:
            return f"({_operand(left, draw)} ^ {_operand(right, draw)[1:-1]})"  # from the right
        case ("calc", op, left, right):
            return f"({_operand(left, draw)} {op} {_operand(right, draw)})"
        case ("time",):
            return "time"
        case ("interval", *ends):
            return f"INTERVAL({', '.join(_end(end, draw) for end in ends)})"
    raise AssertionError(node)


def _end(node: Node | None, draw: random.Random) -> str:
    if node is None:
        return "'..'"
    return f"'{stamp_text(node[1])}'" if node[0] == "moment" else _operand(node, draw)


def _shape(shape: Node) -> str:
    kind, parts = shape
    if kind == "BBOX":
        return f"BBOX({', '.join(map(str, parts))})"
    return f"{kind}({f'{parts[0]} {parts[1]}' if kind == 'POINT' else _listed(parts)})"


def _listed(parts: Any) -> str:
    if isinstance(parts[0][0], float):
        return ", ".join(f"{x} {y}" for x, y in parts)
    return ", ".join(f"({_listed(part)})" for part in parts)


# --- filters: several terms on the same few attributes, by topic


def _number(draw: random.Random) -> Node:
    return ("number", draw.choice(WRITABLE))


def _text(draw: random.Random) -> Node:
    return ("text", draw.choice([*TEXTS, *READINGS]))


def _moment(draw: random.Random) -> Node:
    if draw.random() < 0.25:
        return ("date", draw.choice(list(DAYS.values())))
    return ("moment", draw.choice(MOMENTS))


def _constant(draw: random.Random) -> Node:
    kind = draw.choice([_number, _text, _text, _moment, lambda d: ("truth", d.random() < 0.5)])
    return kind(draw)


def _comparison(name: str, make: Callable[[random.Random], Node], draw: random.Random) -> Node:
    x: Node = ("attr", name)
    choice = draw.random()
    if choice < 0.5:
        pair = [x, make(draw)]
        if draw.random() < 0.2:
            pair.reverse()
        return ("compare", draw.choice(COMPARATORS), *pair)
    if choice < 0.7:
        return ("between", x, make(draw), make(draw))
    return ("in", x, tuple(make(draw) for _ in range(draw.randint(1, 4))))


def _numbers(draw: random.Random) -> Node:
    if draw.random() < 0.1:  # 2 ^ 3 ^ 2 is 512, and not 64
        tower = ("calc", "^", ("attr", "n"), ("number", "2"))
        return (
            "compare",
            draw.choice(COMPARATORS),
            ("calc", "^", ("number", "2"), tower),
            ("number", draw.choice(["5", "100", "512"])),
        )
    if draw.random() < 0.3:
        return ("compare", draw.choice(COMPARATORS), _calculation(draw, 2), _calculation(draw, 1))
    return _comparison(draw.choice("nnm"), _number, draw)


def _calculation(draw: random.Random, depth: int) -> Node:
    if depth == 0 or draw.random() < 0.3:
        return draw.choice(
            [("attr", "n"), ("attr", "m"), ("attr", "x"), ("number", "2"), _number(draw)]
        )
    op = draw.choice(["+", "-", "*", "/", "%", "^", "^", "div"])
    return ("calc", op, _calculation(draw, depth - 1), _calculation(draw, depth - 1))


def _words(draw: random.Random) -> Node:
    name = draw.choice(["w", "w", "w", "v", "vid", "place"])
    operand: Node = ("attr", name)
    folds: tuple[str, ...] = ()
    if draw.random() < 0.35:
        folds = draw.choice([("casei",), ("accenti",), ("casei", "accenti"), ("accenti", "casei")])
        for fold_name in folds:
            operand = ("fold", fold_name, operand)
    if draw.random() < 0.5:
        pattern = draw.choice([draw.choice(EDGES), draw.choice([*PATTERNS, *TEXTS])])
        return ("like", operand, pattern, folds if draw.random() < 0.7 else ())
    if folds:
        constant: Node = ("text", draw.choice(TEXTS))
        for fold_name in folds:
            constant = ("fold", fold_name, constant)
        return ("compare", draw.choice(COMPARATORS), operand, constant)
    return _comparison(name, _text, draw)


def _kinds(draw: random.Random) -> Node:
    """Terms of every kind on one attribute."""
    choice = draw.random()
    if choice < 0.15:
        return ("like", ("attr", "x"), draw.choice([*PATTERNS, "2026%", "%Z"]), ())
    if choice < 0.25:
        return ("null", "x")
    if choice < 0.3:
        return ("flag", "x")
    return _comparison("x", _constant, draw)


def _instants(draw: random.Random) -> Node:
    name = draw.choice("ttux")
    choice = draw.random()
    if choice < 0.5:
        return _comparison(name, _moment, draw)
    if choice < 0.6:
        return _comparison(name, _text, draw)  # text beside instants
    if choice < 0.7:
        return ("compare", draw.choice(COMPARATORS), ("attr", name), ("attr", draw.choice("tuxw")))
    pair = [draw.choice([("attr", name), _loose(draw)]), _constant_span(draw)]
    if draw.random() < 0.3:
        pair.reverse()
    return ("related", draw.choice(list(RELATIONS)), *pair)


def _loose(draw: random.Random) -> Node:
    ends = [("attr", "t"), ("attr", draw.choice("tu")), None, _moment(draw)]
    return ("interval", ("attr", draw.choice("tu")), draw.choice(ends))


def _constant_span(draw: random.Random) -> Node:
    if draw.random() < 0.4:
        return _moment(draw)
    low, high = sorted(draw.choices(MOMENTS, k=2))
    return (
        "interval",
        None if draw.random() < 0.15 else ("moment", low),
        None if draw.random() < 0.15 else ("moment", high),
    )


def _ends(name: str, draw: random.Random) -> Node:
    """Several stretches of one end of the lifetime."""
    stretches = [("predicate", name, _constant_span(draw), 0) for _ in range(2)]
    return draw.choice([("or", tuple(stretches)), ("not", stretches[0])])


def _lifetimes(draw: random.Random) -> Node:
    choice = draw.random()
    if choice < 0.2:  # tied to one another, for no end lies before its begin
        return ("and", (_ends("start_by", draw), _ends("end_by", draw)))
    if choice < 0.65:
        tolerance = draw.choice([0, 0, 1, 2, HOUR])
        name = draw.choice(list(PREDICATES))
        return ("predicate", name, _constant_span(draw), tolerance if name == "equals" else 0)
    other = draw.choice([_constant_span, _constant_span, _loose, lambda d: ("attr", "t")])(draw)
    pair = [("time",), ("time",) if choice > 0.97 else other]
    if draw.random() < 0.3:
        pair.reverse()
    return ("related", draw.choice(list(RELATIONS)), *pair)


def _space(draw: random.Random) -> Node:
    choice = draw.random()
    if choice < 0.25:
        longitude, latitude = draw.choice(LONGITUDES), draw.choice(LATITUDES)
        metres = draw.choice([0.0, 1.0, 30_000.0, 60_000.0, 1.2e5, 2e7])
        if abs(longitude) == 180 and draw.random() < 0.5:
            metres = 0.0  # one point, or two?
        return ("near", longitude, latitude, metres)
    if choice < 0.35:
        return ("null", "geometry")
    op = draw.choice([*SPATIAL, *["INTERSECTS", "WITHIN"] * 3, "TOUCHES"])
    return ("spatial", op, some_shape(draw), draw.random() < 0.75)


def some_shape(draw: random.Random) -> Node:
    def corner() -> tuple[float, float]:
        return (draw.choice(COORDINATES), draw.choice(COORDINATES))

    kind = draw.choice([*["BBOX", "ACROSS", "POLYGON"] * 3, "POINT", "LINES", "FIXED"])
    south, north = sorted(draw.choices(COORDINATES, k=2))
    if kind == "BBOX":
        west, east = sorted(draw.choices(LONGITUDES, k=2))
        return ("BBOX", (west, south, east, north))
    if kind == "ACROSS":
        west = draw.choice([179.5, 179.5, 1.0, 180.0])
        east = draw.choice([-179.5, -179.5, 0.0, -180.0])
        south, north = sorted(draw.choices([0.0, 0.0, 0.5, 2.0], k=2))
        return ("BBOX", (west, south, east, north))
    if kind == "POINT":
        pair = [corner(), corner()]
        return (
            ("POINT", pair[0])
            if pair[0] == pair[1] or draw.random() < 0.5
            else ("MULTIPOINT", pair)
        )
    if kind == "LINES":
        line = list(dict.fromkeys(corner() for _ in range(3)))
        if len(line) < 3 or _area(line) == 0:
            return ("LINESTRING", [(0.0, 0.0), (0.3, 0.1), (2.0, 2.0)])
        return ("LINESTRING", line)
    if kind == "POLYGON":
        triangle = [corner() for _ in range(3)]
        if _area(triangle):
            return ("POLYGON", [[*triangle, triangle[0]]])
    return draw.choice(FIXED)


def _area(points: list[tuple[float, float]]) -> Fraction:
    (ax, ay), (bx, by), (cx, cy) = (tuple(map(Fraction, point)) for point in points)
    return (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)


def _ring(*numbers: float) -> list[tuple[float, float]]:
    points = list(zip(map(float, numbers[::2]), map(float, numbers[1::2]), strict=True))
    return [*points, points[0]]


FIXED: list[Node] = [
    ("POLYGON", [_ring(0, 0, 2, 0, 2, 1, 1, 1, 1, 2, 0, 2)]),
    ("POLYGON", [_ring(-1, -1, 3, -1, 3, 3, -1, 3), _ring(0, 0, 1, 0, 1, 1, 0, 1)]),
    ("MULTIPOLYGON", [[_ring(0, 0, 1, 0, 1, 1)], [_ring(1.5, 1.5, 3, 1.5, 3, 3)]]),
    (
        "MULTILINESTRING",
        [[(0.0, 0.0), (1.0, 1.0)], [(1.0, 1.0), (2.0, 0.0)], [(2.0, 2.0), (3.0, 2.0)]],
    ),
]


def _places(draw: random.Random) -> Node:
    choice = draw.random()
    if choice < 0.6:
        return ("within", draw.choice(PLACES))
    if choice < 0.7:
        return ("null", "place")
    return _comparison("place", lambda d: ("text", d.choice(PLACES)), draw)


def _flags(draw: random.Random) -> Node:
    choice = draw.random()
    if choice < 0.3:
        return ("flag", "k")
    if choice < 0.5:
        return ("null", draw.choice(["k", "n", "w", "vid"]))
    if choice < 0.6:
        return (draw.choice(["true", "false"]),)
    return _comparison("k", lambda d: ("truth", d.random() < 0.5), draw)


TOPICS: dict[str, Callable[[random.Random], Node]] = {
    "numbers": _numbers,
    "words": _words,
    "kinds": _kinds,
    "instants": _instants,
    "lifetimes": _lifetimes,
    "space": _space,
    "places": _places,
    "flags": _flags,
}


def some_filter(draw: random.Random, topics: list[str], depth: int = 2) -> Node:
    """A filter whose terms are mostly of one topic, and so on the same attributes."""
    topic = draw.choice(topics)
    leaves: list[Node] = []

    def grown(left: int) -> Node:
        if left == 0 or draw.random() < 0.25:
            if leaves and draw.random() < 0.2:
                return draw.choice(leaves)  # again, so that something is absorbed
            other = topic if draw.random() < 0.85 else draw.choice(topics)
            leaves.append(TOPICS[other](draw))
            return leaves[-1]
        if draw.random() < 0.3:
            return ("not", grown(left - 1))
        parts = tuple(grown(left - 1) for _ in range(draw.randint(2, 4 if left == 1 else 3)))
        return (draw.choice(["and", "or"]), parts)

    return grown(depth)


def narrowed(node: Node, draw: random.Random, topics: list[str]) -> Node:
    """A filter that the first one covers."""
    return ("and", (node, some_filter(draw, topics, 1)))


# --- contexts


def some_record(draw: random.Random, vid: str) -> Record:
    t_r = draw.choice(MOMENTS)
    moments = [*map(Stamp, MOMENTS), *READINGS]
    pools: dict[str, list[Any]] = {
        "n": NUMBERS,
        "m": NUMBERS,
        "w": TEXTS,
        "v": [*TEXTS, *READINGS],
        "k": [True, False],
        "t": moments,
        "u": moments,
        "x": [*NUMBERS[:8], *TEXTS, True, False, *moments],
    }
    return {
        "vid": vid,
        "place": draw.choice([None, *PLACES]),
        "point": draw.choice([None, *[(draw.choice(LONGITUDES), draw.choice(LATITUDES))] * 5]),
        "attributes": {
            name: draw.choice(pool) for name, pool in pools.items() if draw.random() < 0.85
        },
        "t_r": t_r,
        "t_d": draw.choice([None, *[moment for moment in MOMENTS if moment >= t_r]]),
    }


def moments_of(node: Any, record: Record) -> set[int]:
    """Every moment at which an answer over the context can change, and its neighbours."""
    found = set(_inside(node))
    for value in record["attributes"].values():
        us = (
            value.us
            if isinstance(value, Stamp)
            else READINGS.get(value)
            if isinstance(value, str)
            else None
        )
        if us is not None:
            found.add(us)
    found.add(record["t_r"])
    return {moment + step for moment in found for step in (-1, 0, 1)}


def _inside(node: Any) -> Iterator[int]:
    if not isinstance(node, tuple):
        return
    if node[:1] == ("moment",):
        yield node[1]
    elif node[:1] == ("date",):
        yield from (node[1], node[1] + DAY - 1)
    elif node[:1] == ("predicate",):
        for moment in _inside(node[2]):
            yield from (moment - node[3], moment, moment + node[3])
    else:
        for part in node:
            yield from _inside(part)
