"""Moments: microseconds inside, RFC 3339 outside, nothing lost between."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.model import time

instants = st.integers(time.EARLIEST, time.LATEST)


@given(instants)
def test_a_moment_survives_being_written(instant: int) -> None:
    text = time.format_instant(instant)
    assert time.parse_instant(text) == instant
    assert time.as_instant(text) == instant
    assert time.from_datetime(time.to_datetime(instant)) == instant
    assert datetime.fromisoformat(text) == time.to_datetime(instant)


@given(st.lists(instants.map(lambda each: each - each % 1_000_000), min_size=2, max_size=5))
def test_whole_seconds_sort_as_their_texts(given: list[int]) -> None:
    assert sorted(given) == [
        time.parse_instant(text) for text in sorted(time.format_instant(each) for each in given)
    ]


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1)), st.integers(-23 * 60, 23 * 60))  # noqa: DTZ001
def test_a_zone_is_taken_into_account(moment: datetime, minutes: int) -> None:
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert time.parse_instant(aware.isoformat()) == time.from_datetime(aware)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T19:00:00-05:00", 0),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01T00:00:00.1Z", 100_000),
        ("1970-01-01T00:00:00.123456000Z", 123_456),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("0001-01-01T00:00:00Z", time.EARLIEST),
        ("9999-12-31T23:59:59.999999Z", time.LATEST),
    ],
)
def test_rfc_3339_is_read(text: str, expected: int) -> None:
    assert time.parse_instant(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-11-15",
        "2026-11-15T09:00:00",
        "2026-11-15 09:00:00Z",
        "2026-11-15T09:00Z",
        "2026-11-15T09:00:00.Z",
        "2026-11-15T09:00:00.1234567Z",
        "2026-02-30T00:00:00Z",
        "2026-11-15T24:00:00Z",
        "2026-06-30T23:59:60Z",
        "2026-11-15T09:00:00+1:00",
        "2026-11-15T09:00:00+24:00",
        "2026-11-15T09:00:00+00:60",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "10000-01-01T00:00:00Z",
        "２０２６-11-15T09:00:00Z",
        "2026-11-15T09:00:00Z\n",
        "x" * 10_000,
    ],
)
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        time.parse_instant(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200
    assert time.as_instant(text) == (time.parse_day(text) if text == "2026-11-15" else None)


def test_a_day_begins_at_midnight_in_utc() -> None:
    assert time.parse_day("2026-11-15") == time.parse_instant("2026-11-15T00:00:00Z")
    for bad in ("2026-11-31", "26-11-15", "2026-11-15Z", "2026/11/15"):
        with pytest.raises(InputError):
            time.parse_day(bad)


def test_a_datetime_without_a_zone_is_refused() -> None:
    with pytest.raises(InputError, match="no time zone"):
        time.from_datetime(datetime(2026, 11, 15))  # noqa: DTZ001
    assert time.from_datetime(datetime(1970, 1, 1, tzinfo=UTC)) == 0
