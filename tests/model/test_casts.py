"""Casts: valid or refused, and their parts in time."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roamcast.errors import FilterError, InputError, LimitError, MessageError
from roamcast.model import time
from roamcast.model.areas import Area, Patch
from roamcast.model.casts import (
    LIFETIME_MAX,
    PAYLOAD_BYTES_MAX,
    Cast,
    check,
    split,
    target,
    tense,
)
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.lasting import decide
from roamcast.model.filters.syntax import PREDICATES
from roamcast.model.filters.temporal import RELATIONS

NOW = 1_000
MINUTES = Cast(
    id="minutes-17",
    filter="within(place, 'campus/b35/1/1138') AND overlaps(time, "
    "INTERVAL('2026-11-12T13:00:00Z','2026-11-12T15:00:00Z'))",
    payload=b"what we decided",
    sent=time.parse_instant("2026-11-15T09:00:00Z"),
)


def box(*edges: float) -> Area:
    west, south, east, north = edges
    return Area((Patch(((west, south, east, north),)),))


def test_a_cast_is_routed_by_its_filters_area_unless_it_names_a_narrower_one() -> None:
    area = target(MINUTES, check(MINUTES))
    assert area.meets(Area((Patch(places=("campus/b35",)),)))
    assert not area.meets(Area((Patch(places=("campus/b36",)),)))
    narrow = msgspec.structs.replace(MINUTES, target=box(9.10, 48.74, 9.11, 48.75))
    assert target(narrow, check(narrow)) == narrow.target


def spoken(a: int, b: int, name: str) -> str:
    return f"{name}(time, INTERVAL('{time.format_instant(a)}','{time.format_instant(b)}'))"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("type = 'person'", "present"),
        ("within(place, 'campus')", "present"),
        (spoken(10, 20, "before"), "historic"),
        (spoken(10, 20, "during"), "historic"),
        (spoken(2_000, 3_000, "after"), "future"),
        (spoken(2_000, 3_000, "start_by"), "future"),
        (spoken(2_000, 3_000, "starts_only"), "future"),
        (spoken(2_000, 3_000, "before"), "hybrid"),
        (spoken(10, 20, "excludes"), "hybrid"),
        (spoken(2_000, 3_000, "excludes"), "hybrid"),
        (spoken(10, 20, "start_by"), "historic"),  # who began then may still be there: known now
        (spoken(10, 20, "overlaps"), "historic"),
        (spoken(10, 2_000, "overlaps"), "hybrid"),
        (spoken(10, 2_000, "contains"), "future"),
        (f"{spoken(10, 20, 'end_by')} OR {spoken(2_000, 3_000, 'start_by')}", "hybrid"),
    ],
)
def test_a_filter_addresses_the_past_the_present_or_the_future(text: str, expected: str) -> None:
    assert tense(Filter.parse(text), NOW) == expected


instants = st.integers(0, 2 * NOW)


@given(
    st.sampled_from(PREDICATES), instants, instants, instants, st.none() | instants, st.booleans()
)
def test_a_split_filter_means_the_same_in_two_parts(
    name: str, x: int, y: int, t_r: int, length: int | None, negated: bool
) -> None:
    text = spoken(min(x, y), max(x, y), name)
    wanted = Filter.parse(f"NOT {text}" if negated else text)
    check_split(wanted, Context("v", t_r=t_r, t_d=None if length is None else t_r + length))


@given(
    st.sampled_from(list(RELATIONS)),
    st.sampled_from(["seen", "INTERVAL(seen, '..')", "time"]),
    st.sampled_from(["", "NOT "]),
    instants,
    instants,
    st.none() | instants,
)
@example("t_before", "seen", "", NOW + 100, NOW - 10, 60)
def test_a_filter_split_by_what_only_a_context_knows_means_the_same(
    name: str, other: str, no: str, seen: int, t_r: int, length: int | None
) -> None:
    attributes = {"seen": time.to_datetime(seen)}
    end = None if length is None else t_r + length
    wanted = Filter.parse(f"{no}{name}(time, {other})")
    check_split(wanted, Context("v", t_r=t_r, t_d=end, attributes=attributes))


def check_split(wanted: Filter, context: Context) -> None:
    past, future = split(wanted, NOW)
    matches = wanted.matches(context)
    assert matches == (past.matches(context) or future.matches(context))
    if past.matches(context):  # the archive must be able to know it by now
        assert context.t_r < NOW
        if context.end >= NOW:
            assert decide(wanted, msgspec.structs.replace(context, t_d=None), NOW).answer is True
    if future.matches(context):  # a broker must still be able to see it
        assert context.end >= NOW
    kind = tense(wanted, NOW)
    if matches and kind == "historic":
        assert past.matches(context)
    if matches and kind == "future":
        assert future.matches(context)


def test_a_filter_of_too_many_alternatives_is_hybrid_and_still_split_rightly() -> None:
    parts = [
        f"(a{i} = 1 OR {spoken(i, 10 * i + 500, 'before')} OR {spoken(i, 2_000 + i, 'after')})"
        for i in range(1, 6)
    ]
    wanted = Filter.parse(" AND ".join(parts))
    assert wanted.conjunctions() is None
    assert tense(wanted, NOW) == "hybrid"
    past, future = split(wanted, NOW)
    for t_r, t_d in [(0, 0), (0, 400), (900, None), (3_000, None), (3_000, 3_001)]:
        context = Context("v", t_r=t_r, t_d=t_d)
        ended = context.end < NOW
        assert past.matches(context) == (ended and wanted.matches(context))
        assert future.matches(context) == (not ended and wanted.matches(context))


def test_the_papers_minutes_go_to_the_past() -> None:
    assert tense(check(MINUTES), MINUTES.sent) == "historic"


def changed(**fields: object) -> Cast:
    return msgspec.structs.replace(MINUTES, **fields)


def test_limits_hold_at_the_limit_and_not_beyond() -> None:
    check(changed(payload=bytes(PAYLOAD_BYTES_MAX)))
    with pytest.raises(LimitError, match="102400 bytes"):
        check(changed(payload=bytes(PAYLOAD_BYTES_MAX + 1)))
    check(changed(expires=MINUTES.sent + LIFETIME_MAX))
    with pytest.raises(MessageError, match="60 days"):
        check(changed(expires=MINUTES.sent + LIFETIME_MAX + 1))
    check(changed(id="x" * 128))
    with pytest.raises(MessageError, match="128"):
        check(changed(id="x" * 129))


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"id": ""}, MessageError, "id"),
        ({"filter": "a ="}, FilterError, "position"),
        ({"filter": "a = 1 AND a = 2"}, MessageError, "contradicts itself"),
        ({"target": box(10.0, 50.0, 11.0, 40.0)}, MessageError, "west, south, east, north"),
        ({"target": box(float("nan"), 0.0, 1.0, 1.0)}, MessageError, "west"),
        ({"expires": MINUTES.sent}, MessageError, "expires after"),
        ({"sent": 2**62}, MessageError, "9999"),
    ],
)
def test_a_bad_cast_is_refused(fields: dict[str, object], error: type, says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        check(changed(**fields))
    assert isinstance(caught.value, InputError)
    assert "\n" not in str(caught.value)
