"""Contexts: a Feature in and out without loss; anything else is refused in one line."""

import json
import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from roamcast.errors import ContextError, InputError, LimitError
from roamcast.model import contexts as module
from roamcast.model import time
from roamcast.model.contexts import (
    ATTRIBUTES_MAX,
    ENCODED_LEAST,
    ENCODED_WEIGHT,
    NAME_LENGTH_MAX,
    PATH_LENGTH_MAX,
    VID_LENGTH_MAX,
    Context,
    FeatureInput,
    check,
    decode,
    encode,
    from_feature,
    to_context,
    to_feature,
)
from roamcast.model.kinds import INTEGER_MAX, TEXT_LENGTH_MAX
from tests.strategies import any_context, some_context


def typed(context: Context) -> list[tuple[str, str, str]]:
    """The attributes with their exact types and digits (1, 1.0 and True are equal in Python)."""
    return [(name, type(value).__name__, repr(value)) for name, value in context.attributes.items()]


@settings(max_examples=300)
@given(any_context())
def test_a_context_survives_as_a_feature(context: Context) -> None:
    assert check(context) is context
    again = decode(encode(context))
    assert again == context
    assert typed(again) == typed(context)
    assert from_feature(json.loads(json.dumps(to_feature(context)))) == context
    assert encode(again) == encode(context) == msgspec.json.encode(to_feature(context))


def test_every_pooled_context_is_valid() -> None:
    draw = random.Random(1)
    for number in range(300):
        context = check(some_context(draw, f"v{number}"))
        assert decode(encode(context)) == context


def test_a_feature_is_geojson() -> None:
    context = Context("v", "a/b", (1.5, -2.0), {"age": 3}, 0, 1_500_000)
    assert to_feature(context) == {
        "type": "Feature",
        "id": "v",
        "geometry": {"type": "Point", "coordinates": [1.5, -2.0]},
        "properties": {
            "age": 3,
            "place": "a/b",
            "t_r": "1970-01-01T00:00:00Z",
            "t_d": "1970-01-01T00:00:01.500000Z",
        },
    }


def test_a_published_feature_says_when_it_began_or_begins_now() -> None:
    began = FeatureInput("Feature", None, {"t_r": "1970-01-01T00:00:05Z"}, "v")
    assert to_context(began, 9_000_000, ahead_us_max=0).t_r == 5_000_000
    for unsaid in ({}, {"t_r": None}):
        given = FeatureInput("Feature", None, unsaid, "v")
        assert to_context(given, 9_000_000, ahead_us_max=0).t_r == 9_000_000
    with pytest.raises(ContextError, match="t_r lies in the future"):
        to_context(began, 4_000_000, ahead_us_max=999_999)


def test_a_null_attribute_is_a_missing_one_and_t_d_may_be_left_out() -> None:
    given = feature(properties={"t_r": "2026-11-15T09:00:00Z", "age": None, "place": None})
    assert from_feature(given).attributes == {}
    assert from_feature(given).t_d is None
    assert from_feature({**given, "geometry": None}).point is None


def test_other_zones_are_the_same_moment() -> None:
    east = datetime(2026, 11, 15, 10, tzinfo=timezone(timedelta(hours=1)))
    context = Context("v", attributes={"seen": east})
    assert decode(encode(context)) == context
    assert decode(encode(context)).attributes["seen"] == datetime(2026, 11, 15, 9, tzinfo=UTC)


def feature(**changed: Any) -> dict[str, Any]:
    return {
        "type": "Feature",
        "id": "v",
        "geometry": {"type": "Point", "coordinates": [0, 0]},
        "properties": {"t_r": "2026-11-15T09:00:00Z"},
        **changed,
    }


def with_properties(**properties: Any) -> dict[str, Any]:
    return feature(properties={"t_r": "2026-11-15T09:00:00Z", **properties})


REFUSED: list[tuple[Any, str]] = [
    (None, '"type": "Feature"'),
    ([], '"type": "Feature"'),
    ({}, '"type": "Feature"'),
    ({"type": "Point"}, '"type": "Feature"'),
    (feature(properties=None), '"properties"'),
    (feature(properties=[]), '"properties"'),
    (feature(properties={}), "t_r is missing"),
    (feature(id=None), '"id"'),
    (feature(id=5), '"id"'),
    (feature(id=""), "needs a vid"),
    (feature(id="\ud800"), "not valid Unicode"),
    (feature(geometry={"type": "LineString", "coordinates": [[0, 0], [1, 1]]}), "a Point or null"),
    (feature(geometry=[0, 0]), "a Point or null"),
    (feature(geometry={"type": "Point"}), "two numbers"),
    (feature(geometry={"type": "Point", "coordinates": [0]}), "two numbers"),
    (feature(geometry={"type": "Point", "coordinates": [0, 0, 5]}), "two numbers"),
    (feature(geometry={"type": "Point", "coordinates": ["0", 0]}), "two numbers"),
    (feature(geometry={"type": "Point", "coordinates": [True, 0]}), "two numbers"),
    (feature(geometry={"type": "Point", "coordinates": [181, 0]}), "not a WGS84"),
    (feature(geometry={"type": "Point", "coordinates": [0, -90.5]}), "not a WGS84"),
    (feature(geometry={"type": "Point", "coordinates": [float("nan"), 0]}), "not a WGS84"),
    (feature(geometry={"type": "Point", "coordinates": [10**400, 0]}), "too large"),
    (with_properties(place=5), "place is not a string"),
    (with_properties(place=""), "is not a place"),
    (with_properties(place="a//b"), "is not a place"),
    (with_properties(place="/a"), "is not a place"),
    (with_properties(place="a/"), "is not a place"),
    (with_properties(place="a\nb"), "is not a place"),
    (with_properties(t_r=None), "t_r is missing"),
    (with_properties(t_r=5), "t_r is not an RFC 3339 timestamp"),
    (with_properties(t_r="yesterday"), "t_r: 'yesterday' is not an RFC 3339 timestamp"),
    (with_properties(t_d="2026-11-15"), "t_d: '2026-11-15' is not"),
    (with_properties(t_d="2026-11-15T08:00:00Z"), "t_d lies before t_r"),
    (with_properties(tags=["a"]), "attribute 'tags' is none of"),
    (with_properties(tags={}), "attribute 'tags' is an object"),
    (with_properties(seen={"timestamp": 5}), "attribute 'seen' is an object"),
    (with_properties(seen={"timestamp": "soon"}), "attribute 'seen': 'soon' is not an RFC 3339"),
    (with_properties(**{"": 5}), "empty or not printable"),
    (with_properties(**{"a\0": 5}), "U+0000"),
    (with_properties(geometry=5), "'geometry' is reserved"),
    (with_properties(time=5), "'time' is reserved"),
    (with_properties(vid="x"), "'vid' is reserved"),
    (with_properties(age=2**63), "does not fit in 64 bits"),
    (with_properties(age=float("inf")), "not a finite number"),
    (with_properties(age=float("nan")), "not a finite number"),
    (with_properties(name="a\0b"), "attribute 'name' holds the character U+0000"),
    (with_properties(name="é\0"), "attribute 'name' holds the character U+0000"),
    (with_properties(place="campus/\0"), "is not a place such as"),
    (with_properties(name="\udc00"), "not valid Unicode"),
]


@pytest.mark.parametrize(("given", "says"), REFUSED, ids=range(len(REFUSED)))
def test_a_malformed_feature_is_refused_in_one_line(given: Any, says: str) -> None:
    with pytest.raises(ContextError) as caught:
        from_feature(given)
    line = str(caught.value)
    assert says in line
    assert "\n" not in line
    assert len(line) < 300


@pytest.mark.parametrize(
    "line", [b"", b"{", b"nonsense", b"\xff", b"[" * 100_000, b'{"type": "Feature"', b"{}{}"]
)
def test_a_line_that_is_no_json_is_refused(line: bytes) -> None:
    with pytest.raises(ContextError) as caught:
        decode(line)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (lambda n: Context("v" * n), VID_LENGTH_MAX),
        (lambda n: Context("v", place="p" * n), PATH_LENGTH_MAX),
        (lambda n: Context("v", attributes={"n" * n: 1}), NAME_LENGTH_MAX),
        (lambda n: Context("v", attributes={"n": "x" * n}), TEXT_LENGTH_MAX),
        (lambda n: Context("v", attributes={f"n{i}": i for i in range(n)}), ATTRIBUTES_MAX),
    ],
)
def test_every_limit_holds_at_the_limit_and_not_beyond(make: Any, limit: int) -> None:
    at = check(make(limit))
    assert decode(encode(at)) == at
    with pytest.raises(LimitError, match=str(limit)):
        check(make(limit + 1))


def test_integers_and_moments_hold_at_their_limits() -> None:
    for value in (INTEGER_MAX, -INTEGER_MAX - 1):
        assert decode(encode(Context("v", attributes={"n": value}))).attributes["n"] == value
    for beyond in (INTEGER_MAX + 1, -INTEGER_MAX - 2):
        with pytest.raises(ContextError, match="64 bits"):
            check(Context("v", attributes={"n": beyond}))
    for t_r, t_d in ((time.EARLIEST, time.EARLIEST), (time.LATEST, None)):
        assert decode(encode(Context("v", t_r=t_r, t_d=t_d))) == Context("v", t_r=t_r, t_d=t_d)
    for t_r, t_d in ((time.EARLIEST - 1, None), (0, time.LATEST + 1), (1, 0)):
        with pytest.raises(ContextError, match="t_"):
            check(Context("v", t_r=t_r, t_d=t_d))


def test_a_huge_integer_in_json_is_refused_not_rounded() -> None:
    line = json.dumps(with_properties(n=7))
    assert decode(line).attributes["n"] == 7
    for digits in (str(2**63), "1" + "0" * 30, "1" + "0" * 400):
        with pytest.raises(InputError):
            decode(line.replace('"n": 7', f'"n": {digits}'))


def test_a_context_is_encoded_once_and_the_remembered_ones_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = ENCODED_LEAST + ENCODED_WEIGHT * len(encode(Context("a")))
    monkeypatch.setattr(module, "_encoded", module._Encoded())
    monkeypatch.setattr(module, "ENCODED_BYTES", 2 * weight - 1)
    first, twin, third = Context("a"), Context("a"), Context("c")
    assert encode(first) is encode(first)
    assert encode(twin) == encode(first)
    assert encode(twin) is not encode(first), "remembered by identity: attributes differ in type"
    assert (len(module._encoded), module._encoded.bytes) == (2, 2 * weight)
    encode(third)
    assert len(module._encoded) == 1
    assert decode(encode(first)) == first


def test_names_are_checked_once_and_the_remembered_ones_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_names_checked", set())
    monkeypatch.setattr(module, "NAMES_REMEMBERED", 3)
    for count in (3, 4, 9):
        check(Context("v", attributes={f"name{number}": 1 for number in range(count)}))
        assert 0 < len(module._names_checked) <= 3
    for wrong in ("place", "a\tb", ""):
        for _ in range(2):  # what is refused is not remembered
            with pytest.raises(ContextError):
                check(Context("v", attributes={"good": 1, wrong: 1}))
