"""Cases for privacy rules, narrow on purpose, and whether a function differs from the oracle."""

import random
from collections.abc import Callable
from typing import Any

from roamcast.identity.rules import Hours, Rule, Viewer
from roamcast.model.contexts import Context
from roamcast.model.places import Place, Places
from tests.identity import oracle

CASES = 4_000
START = 1_700_000_000_000_000
MINUTE = 60_000_000
NOON = START - START % (1440 * MINUTE) + 720 * MINUTE
"""A noon; everything happens around it, so that hours and edges meet."""

SQUARE = {"type": "Polygon", "coordinates": [[[0, 0], [2, 0], [2, 1], [0, 0]]]}
PLACES = Places(
    [
        Place("c", "region", SQUARE),
        Place("c/b", "building", SQUARE),
        Place("c/b/w", "wing", SQUARE),
        Place("c/b/w/2", "floor", SQUARE),
        Place("c/b/w/2/7", "office"),
        Place("c/b/w/2/7/d", "desk"),
        Place("c/b/w/2/r", "wing"),
        Place("c/b/w/2/r/8", "room"),
        Place("c/b/w/2/r/8/loft", "floor"),
        Place("c/yard", "outside"),
    ]
)
VIEWERS = [Viewer("bob", frozenset({"legal"})), Viewer("cid"), Viewer("legal")]


def drawn(draw: random.Random) -> tuple[Any, ...]:
    """One case; narrow, so that rules meet on one viewer, one precision and one minute."""

    def moment() -> int:
        return NOON + draw.choice((-1500, -720, -61, -60, -1, 0, 1, 59, 60, 719, 720)) * MINUTE

    def rule() -> Rule:
        hours = None
        if draw.random() < 0.5:
            days = draw.choice(((0, 1, 2, 3, 4, 5, 6), (0, 1), (2, 3, 4), (5, 6)))
            start, end = draw.choice((0, 660, 719, 720)), draw.choice((721, 780, 1440))
            hours = Hours(days, start, end, draw.choice((0, 60, -60, 719)))
        return Rule(
            viewers=draw.choice((("*",), ("bob",), ("legal",), ("x", "cid"), ("bert",))),
            precision=draw.choice(
                ("exact", "room", "floor", "building", "region", "presence", "hidden")
            ),
            hours=hours,
            past=draw.random() < 0.5,
            attributes=draw.choice((None, (), ("role",), ("age",))),
        )

    begin = moment()
    lasts = draw.choice((None, None, MINUTE, 60 * MINUTE, 1440 * MINUTE))
    end = None if lasts is None else begin + lasts
    place = draw.choice(
        (None, "c", "c/b", "c/b/w/2/7", "c/b/w/2/7/d", "c/b/w/2/r/8", "c/b/w/2/r/8/loft", "c/yard",
         "x/y/z/1/2")
    )  # fmt: skip
    point = (1.25, 0.5)
    context = Context("v@t", place, point, {"role": "guest", "age": 5}, begin, end)
    some = [rule() for _ in range(draw.randrange(4))]
    return context, some, draw.choice(VIEWERS), moment(), draw.choice((PLACES, None))


def differs(visible: Callable[..., Context | None]) -> bool:
    draw = random.Random(1)
    for _ in range(CASES):
        case = drawn(draw)
        try:
            if visible(*case) != oracle.shown(*case):
                return True
        except (AssertionError, LookupError):
            return True
    return False
