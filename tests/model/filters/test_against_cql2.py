"""The reference evaluator gives what `cql2` gives, wherever both define a meaning."""

import random
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import cql2
import pytest
from hypothesis import given, settings

from roamcast.errors import FilterError
from roamcast.model.contexts import Context, to_feature
from roamcast.model.filters import Filter
from roamcast.model.filters.evaluate import evaluate
from tests import strategies as pool

# cql2 reads a dot in a name as a path, and JSON knows no timestamps and no -0.0: contexts for the
# comparison have timestamps as texts, and none of the rest.
LAST = pool.stamp(pool.INSTANTS[6])
"""The last microsecond of a day."""

SHARED = [
    pool.comparison,
    pool.texts,
    pool.pairs_of_attributes,
    pool.between,
    pool.within_list,
    pool.like,
    pool.is_null,
    pool.arithmetic,
    pool.boolean,
    pool.spatial,
    pool.moments,
    pool.temporal,
]


def with_texts(context: Context) -> Context:
    attributes = {
        name: pool.stamp(pool.time.from_datetime(value)) if isinstance(value, datetime) else value
        for name, value in context.attributes.items()
    }
    return Context(context.vid, context.place, context.point, attributes, context.t_r, context.t_d)


def plain(context: Context) -> Context:
    attributes = {
        name: value
        for name, value in with_texts(context).attributes.items()
        if name != "x.y:z" and not (value == 0 and str(value).startswith("-"))
    }
    return Context(context.vid, context.place, context.point, attributes, context.t_r, context.t_d)


def theirs(text: str, context: Context) -> bool | None:
    feature = to_feature(context)
    feature["properties"]["vid"] = context.vid
    try:
        return bool(cql2.parse_text(text).matches(feature))
    except Exception:  # noqa: BLE001 - `cql2` raises bare Exceptions
        return None  # what it cannot reduce, or cannot read as a time, is what we call unknown


def ours(text: str, context: Context) -> bool | None:
    return evaluate(Filter.parse(text).expression, context)


def mismatched(text: str, context: Context) -> bool:
    """Whether we differ on this predicate on purpose; each difference is tested below."""
    return (
        "-0.0" in text
        or "x.y:z" in text
        or "BBOX(1.5" in text
        or "BBOX(180" in text
        or any(box in text and "INTERSECTS" not in text for box in pool.THIN_BOXES)
        or "INTERVAL(DATE" in text
        or "INTERVAL(since, DATE" in text
        or ("DATE(" in text and not text.startswith("T_"))
        or ("DATE(" in text and LAST in text + str(context.attributes))
        or (pool.MIXED in text and ("BETWEEN" in text or " IN " in text))
    )


@pytest.mark.parametrize("make", SHARED, ids=lambda make: make.__name__)
def test_every_construct_means_what_cql2_means(make: pool.Make) -> None:
    draw = random.Random(make.__name__)
    answers = {True: 0, False: 0, None: 0}
    for _ in range(1_500):
        text, context = make(draw), plain(pool.some_context(draw))
        if mismatched(text, context):
            continue
        expected = theirs(text, context)
        if make is pool.arithmetic and ours(text, context) is None:
            continue  # what has no finite result is unknown to us: below
        assert ours(text, context) is expected, (text, context)
        answers[expected] += 1
    assert min(answers[True], answers[False]) > 50, answers


def _shared(draw: random.Random) -> str:
    # a text that is no time makes cql2 fail as a whole, where we go on with unknown
    makes = [make for make in SHARED if make not in (pool.arithmetic, pool.moments)]
    while mismatched(text := draw.choice(makes)(draw), Context("v")) or "DATE(" in text:
        pass
    return text


@settings(max_examples=600)
@given(pool.filter_texts([_shared], depth=3), pool.contexts())
def test_and_or_not_mean_what_cql2_means(text: str, context: Context) -> None:
    assert ours(text, plain(context)) is theirs(text, plain(context))


REFUSED = "refused"
"""The answer to what is no filter."""


def at(lon: float, lat: float) -> Context:
    return Context("v", point=(lon, lat))


def having(**attributes: Any) -> Context:
    return Context("v", attributes=attributes)


MOMENT = pool.moment_of(pool.NINE)
DIFFERENCES: dict[str, list[tuple[str, Context, Any, Any]]] = {
    # a row of docs/filters.md: text, context, ours, theirs
    "`DATE` against a timestamp": [
        ("seen = DATE('2026-11-15')", having(seen="2026-11-15T09:00:00Z"), True, False),
        ("seen <= DATE('2026-11-15')", having(seen="2026-11-15T09:00:00Z"), True, False),
        ("seen < DATE('2026-11-16')", having(seen="2026-11-15T09:00:00Z"), True, False),
    ],
    "end of a day": [
        (
            "T_METBY(seen, DATE('2026-11-15'))",
            having(seen="2026-11-15T23:59:59.999999Z"),
            True,
            False,
        ),
    ],
    "`IN`, `BETWEEN` with another kind": [
        ("age NOT BETWEEN 1 AND 2", having(age="old"), None, True),
        ("age NOT IN (1, 2)", having(age="old"), None, True),
    ],
    "`-0.0 IN (0)`": [("age IN (0, 2)", having(age=-0.0), True, False)],
    "`x / 0`, overflow": [
        ("age / 0 > 1", having(age=5), None, True),
        ("age % 0 <> 1", having(age=5), None, True),
        ("age * 1e308 * 10 > 1", having(age=5), None, True),
    ],
    "integers beyond 2^53": [("age > 9007199254740992", having(age=2**53 + 1), True, False)],
    "a name with a dot": [('"a.b" = 1', having(**{"a.b": 1}), True, None)],
    "box with west beyond east": [
        ("S_INTERSECTS(geometry, BBOX(170,-10,-170,10))", at(179, 0), True, False),
        ("S_INTERSECTS(geometry, BBOX(170,-10,-170,10))", at(-180, 0), True, False),
        ("S_INTERSECTS(geometry, BBOX(170,-10,-170,10))", at(20, 0), False, True),
    ],
    "box without width or height": [
        ("S_WITHIN(geometry, BBOX(0,0,0,1))", at(0, 0.5), True, False),
    ],
    "`INTERVAL(seen, DATE(…))`": [
        (
            "T_AFTER(INTERVAL(seen, DATE('2026-11-15')), DATE('2026-11-14'))",
            having(seen="2026-11-15"),
            True,
            None,
        ),
    ],
    "timestamp attribute against a text": [
        ("seen > 'a'", having(seen=MOMENT), None, False),
        ("seen LIKE '2026%'", having(seen=MOMENT), None, True),
    ],
    "comparison of an instant with a text that is not a time": [
        (
            "seen > TIMESTAMP('2026-11-15T09:00:00Z') OR age = 1",
            having(seen="never", age=1),
            True,
            None,
        ),
        ("seen < TIMESTAMP('2026-11-15T09:00:00Z')", having(seen="never"), None, None),
    ],
    "a text with a leap second, or finer than a microsecond": [
        ("T_BEFORE(seen, DATE('2026-11-15'))", having(seen="2016-12-31T23:59:60Z"), None, True),
        (
            "T_AFTER(seen, TIMESTAMP('2026-11-15T09:00:00Z'))",
            having(seen="2026-11-15T09:00:00.0000001Z"),
            None,
            True,
        ),
    ],
    "words run together (`1 andb = 2`)": [("a = 1 andb = 2", having(a=1, b=2), REFUSED, True)],
    "`casei`": [("casei(a) = casei('straße')", having(a="STRASSE"), True, False)],
    "`casei(a) IN (casei('X'))`": [("casei(a) IN (casei('X'))", having(a="x"), True, None)],
    "`'it\\'s'`, `.5`": [
        (r"a = 'it\'s'", having(a="it's"), True, None),
        ("a > .4", having(a=0.5), True, None),
    ],
    r"`'a\\'`": [(r"a = 'x\\'", having(a="x\\"), True, False)],
    "`a ^ b ^ c`": [("a = 2 ^ 3 ^ 2", having(a=512), True, False)],
}


@pytest.mark.parametrize(
    ("text", "context", "our", "their"), [one for rows in DIFFERENCES.values() for one in rows]
)
def test_differences_from_cql2_are_these(
    text: str, context: Context, our: bool | str | None, their: bool | None
) -> None:
    if our == REFUSED:
        with pytest.raises(FilterError, match="position"):
            Filter.parse(text)
    else:
        assert ours(text, context) is our
    assert theirs(text, with_texts(context)) is their


def test_the_page_has_a_row_for_each_difference_and_no_other() -> None:
    page = (Path(__file__).parents[3] / "docs" / "filters.md").read_text()
    _, _, table = page.partition("## Where we differ from `cql2`, and why")
    rows = re.findall(r"^\| ([^|].*?) \| ", table, flags=re.MULTILINE)
    assert rows == list(DIFFERENCES)
