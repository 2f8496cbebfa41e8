"""CBM's items: typed triples that filters see as a context."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roamcast.errors import FilterError, InputError, LimitError, MessageError
from roamcast.model.filters import Filter
from roamcast.model.items import (
    KEY_NAMES,
    SUBKEYS_MAX,
    Criterion,
    InformationItem,
    Triple,
    decode_item,
    encode_item,
    from_context,
    is_item,
    item_vid,
    to_context,
)

# The paper's own example, section 3.1.
QUOTE = InformationItem(
    Triple("string", "financial", "NYSE"),
    Triple("string", "symbol", "IBM"),
    (
        Triple("float", "prior_closing_price", 95.0),
        Triple("float", "current_price", 98.0),
        Triple("float", "52_week_high", 110.0),
    ),
)

names = st.text(alphabet="abcxyz_52 é\"'", min_size=1, max_size=6).filter(
    lambda name: name not in KEY_NAMES
)
values: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(
        st.just("string"),
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5),
    ),
    st.tuples(st.just("integer"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("float"), st.floats(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just("boolean"), st.booleans()),
    st.tuples(
        st.just("timestamp"),
        st.datetimes(min_value=datetime(1, 1, 2), timezones=st.just(UTC)),  # noqa: DTZ001
    ),
)


@st.composite
def items(draw: st.DrawFn) -> InformationItem:
    def triple(name: str) -> Triple:
        kind, value = draw(values)
        return Triple(kind, name, value)  # type: ignore[arg-type]

    subkeys = draw(st.lists(names, unique=True, max_size=4))
    return InformationItem(triple(draw(names)), triple(draw(names)), tuple(map(triple, subkeys)))


@given(items())
def test_an_item_survives_as_a_context_and_as_json(item: InformationItem) -> None:
    context = to_context(item, "item-1", 5, 9)
    assert (context.vid, context.place, context.t_r, context.t_d) == ("item-1", None, 5, 9)
    assert from_context(context) == item
    assert decode_item(encode_item(item)) == item


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("major = 'NYSE' AND minor = 'IBM' AND current_price > 100", False),
        ("major = 'NYSE' AND minor = 'IBM' AND current_price > 97", True),
        ("major_name = 'financial' AND (minor = 'SUN' OR NOT current_price >= 100)", True),
        ('"52_week_high" BETWEEN 100 AND 120', True),
        ("volume > 1", False),
    ],
)
def test_filters_with_logical_operators_work_on_items(text: str, wanted: bool) -> None:
    assert Filter.parse(text).matches(to_context(QUOTE, "q", 0)) is wanted


def test_the_papers_criterion_is_a_filter() -> None:
    over = Criterion("float", "current_price", ">", 100.0)
    assert Filter.parse(over.text()) == Filter.parse("current_price > 100")
    either = f"{over.text()} OR {Criterion('string', 'minor', '=', 'IBM').text()}"
    assert Filter.parse(either).matches(to_context(QUOTE, "q", 0))


@given(items(), st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
@example(InformationItem(QUOTE.major, QUOTE.minor, (Triple("integer", "n", 2**53 + 1),)), "=")
def test_a_criterion_holds_as_its_operator_does(item: InformationItem, operator: str) -> None:
    context = to_context(item, "q", 0)
    for triple in item.subkeys:
        if isinstance(triple.value, str) and not triple.value.isprintable():
            continue
        criterion = Criterion(triple.type, triple.name, operator, triple.value)
        if type(triple.value) is int and int(float(triple.value)) != triple.value:
            with pytest.raises(FilterError, match="not exact in float64"):  # and never rounded
                Filter.parse(criterion.text())
            continue
        assert Filter.parse(criterion.text()).matches(context) is (operator in {"=", "<=", ">="})


@pytest.mark.parametrize(
    "item",
    [
        InformationItem(QUOTE.major, QUOTE.minor, (Triple("float", "major", 1.0),)),
        InformationItem(
            QUOTE.major, QUOTE.minor, (Triple("float", "x", 1.0), Triple("float", "x", 2.0))
        ),
        InformationItem(QUOTE.major, QUOTE.minor, (Triple("float", "place", 1.0),)),
        InformationItem(QUOTE.major, QUOTE.minor, (Triple("float", "x", "1"),)),
        InformationItem(QUOTE.major, QUOTE.minor, (Triple("integer", "x", True),)),
        InformationItem(QUOTE.major, QUOTE.minor, (Triple("integer", "x", 2**63),)),
        InformationItem(QUOTE.major, QUOTE.minor, (Triple("float", "x", float("nan")),)),
        InformationItem(QUOTE.major, Triple("colour", "x", "red")),  # type: ignore[arg-type]
        InformationItem(Triple("string", "", "x"), QUOTE.minor),
    ],
)
def test_a_wrong_item_is_refused(item: InformationItem) -> None:
    with pytest.raises(MessageError):
        to_context(item, "q", 0)


def test_an_integer_may_stand_for_a_float() -> None:
    item = InformationItem(QUOTE.major, QUOTE.minor, (Triple("float", "x", 3),))
    assert type(to_context(item, "q", 0).attributes["x"]) is float
    with pytest.raises(MessageError, match="too large"):
        to_context(
            InformationItem(QUOTE.major, QUOTE.minor, (Triple("float", "x", 10**400),)), "q", 0
        )


def test_subkeys_stop_at_their_limit() -> None:
    most = tuple(Triple("integer", f"k{n}", n) for n in range(SUBKEYS_MAX))
    assert (
        len(
            from_context(
                to_context(InformationItem(QUOTE.major, QUOTE.minor, most), "q", 0)
            ).subkeys
        )
        == 252
    )
    more = InformationItem(QUOTE.major, QUOTE.minor, (*most, Triple("integer", "one more", 1)))
    with pytest.raises(LimitError):
        to_context(more, "q", 0)
    with pytest.raises(LimitError):
        decode_item(encode_item(more))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"major": ["string", "a"], "minor": ["string", "b", "c"]}',
        b'{"major": ["string", "a", 1], "minor": ["string", "b", "c"]}',
        b'{"major": ["timestamp", "a", "noon"], "minor": ["string", "b", "c"]}',
        b'{"major": ["float", "a", 1' + b"0" * 400 + b'], "minor": ["string", "b", "c"]}',
        b'{"major": ["string", "a", null], "minor": ["string", "b", "c"]}',
    ],
)
def test_json_that_is_no_item_is_refused(text: bytes) -> None:
    with pytest.raises(InputError):
        decode_item(text)


def test_a_context_that_is_no_item_is_refused() -> None:
    context = to_context(QUOTE, "q", 0)
    for missing in ("major", "minor_name"):
        attributes = {k: v for k, v in context.attributes.items() if k != missing}
        with pytest.raises(MessageError, match="no item"):
            from_context(type(context)("q", None, None, attributes))
    with pytest.raises(MessageError, match="operators"):
        Criterion("float", "x", "~", 1.0).text()


def test_an_item_needs_no_place_and_its_keys_name_it_within_its_source() -> None:
    context = to_context(QUOTE, item_vid("ada", "NYSE", "IBM"), 0)
    assert is_item(context)
    assert not is_item(type(context)("q", "campus", None, {"major": "NYSE"}))
    vids = {item_vid(*one) for one in (("ada", "a", "b"), ("bob", "a", "b"), ("ada", "ab", ""))}
    assert len(vids) == 3
    assert item_vid("ada", "a", "b") in vids
