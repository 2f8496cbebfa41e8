"""The reference evaluator gives what `cql2` gives, wherever both define a meaning."""

import random
from datetime import datetime
from typing import Any

import cql2
import pytest
from hypothesis import given, settings

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


def plain(context: Context) -> Context:
    attributes = {
        name: pool.stamp(pool.time.from_datetime(value)) if isinstance(value, datetime) else value
        for name, value in context.attributes.items()
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


DIFFERENCES: list[tuple[str, dict[str, Any], bool | None, bool | None]] = [
    # text, attributes, ours, theirs
    ("seen = DATE('2026-11-15')", {"seen": "2026-11-15T09:00:00Z"}, True, False),
    ("seen <= DATE('2026-11-15')", {"seen": "2026-11-15T09:00:00Z"}, True, False),
    ("seen < DATE('2026-11-16')", {"seen": "2026-11-15T09:00:00Z"}, True, False),
    # a day ends with its last microsecond, theirs with its last nanosecond
    ("T_METBY(seen, DATE('2026-11-15'))", {"seen": "2026-11-15T23:59:59.999999Z"}, True, False),
    (
        "T_AFTER(INTERVAL(seen, DATE('2026-11-15')), DATE('2026-11-14'))",
        {"seen": "2026-11-15"},
        True,
        None,
    ),
    ("age NOT BETWEEN 1 AND 2", {"age": "old"}, None, True),
    ("age NOT IN (1, 2)", {"age": "old"}, None, True),
    ("age IN (0, 2)", {"age": -0.0}, True, False),
    ("age / 0 > 1", {"age": 5}, None, True),
    ("age % 0 <> 1", {"age": 5}, None, True),
    ('"a.b" = 1', {"a.b": 1}, True, None),
]


@pytest.mark.parametrize(("text", "attributes", "our", "their"), DIFFERENCES)
def test_differences_from_cql2_are_these(
    text: str, attributes: dict[str, Any], our: bool | None, their: bool | None
) -> None:
    context = Context("v", attributes=attributes)
    assert ours(text, context) is our
    assert theirs(text, context) is their


def test_a_box_across_the_antimeridian_is_two_halves_to_us_and_the_rest_of_the_world_to_cql2() -> (
    None
):
    text = "S_INTERSECTS(geometry, BBOX(170,-10,-170,10))"
    fiji, africa = Context("v", point=(179.0, 0.0)), Context("v", point=(20.0, 0.0))
    assert (ours(text, fiji), ours(text, africa)) == (True, False)
    assert (theirs(text, fiji), theirs(text, africa)) == (False, True)


def test_a_box_without_width_is_a_line_to_us_and_has_nothing_but_a_border_to_cql2() -> None:
    text = "S_WITHIN(geometry, BBOX(0,0,0,1))"
    context = Context("v", point=(0.0, 0.5))
    assert (ours(text, context), theirs(text, context)) == (True, False)


def test_a_timestamp_attribute_is_no_text_to_us() -> None:
    moment = pool.moment_of(pool.NINE)
    assert ours("seen > 'a'", Context("v", attributes={"seen": moment})) is None
    assert ours("seen LIKE '2026%'", Context("v", attributes={"seen": moment})) is None
    assert ours("seen LIKE '2026%'", Context("v", attributes={"seen": "2026-11-15"})) is True


def test_words_run_together_are_refused_though_cql2_reads_them() -> None:
    from roamcast.errors import FilterError

    assert cql2.parse_text("a = 1 andb = 2").matches({"properties": {"a": 1, "b": 2}})
    with pytest.raises(FilterError, match="position 7: not CQL2: andb stands where"):
        Filter.parse("a = 1 andb = 2")


def test_folding_escapes_and_powers_are_ogcs_and_not_those_of_cql2() -> None:
    context = Context("v", attributes={"a": "STRASSE", "c": "x\\", "d": 512})
    for text, our, their in (
        ("casei(a) = casei('straße')", True, False),
        (r"c = 'x\\'", True, False),
        ("d = 2 ^ 3 ^ 2", True, False),
        (r"a = 'it\'s'", False, None),
        ("d > .5", True, None),
    ):
        assert (ours(text, context), theirs(text, context)) == (our, their), text
