"""Rates and counts: exactly as many as allowed, and waiting as long as was said is enough."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import LimitError, RateError
from roamcast.live.auth.admission import Bucket, Connections, Rates

SECOND = 1_000_000


@pytest.mark.limit("limits.requests_burst")
def test_a_burst_is_taken_at_once_and_not_one_more() -> None:
    bucket = Bucket(10.0, 5, now=0)
    assert [bucket.take(0) for _ in range(5)] == [0] * 5
    assert bucket.take(0) == 100_001
    assert bucket.take(100_001) == 0
    assert bucket.take(100_001) > 0


@pytest.mark.limit("limits.requests_per_s")
@given(
    st.floats(0.01, 10_000),
    st.integers(1, 50),
    st.lists(st.integers(0, 3 * SECOND), min_size=1, max_size=60),
)
def test_no_span_of_time_sees_more_than_burst_and_rate_allow(
    rate: float, burst: int, steps: list[int]
) -> None:
    bucket = Bucket(rate, burst, now=0)
    now = 0
    taken: list[int] = []
    for step in steps:
        now += step
        taken += [now for _ in range(burst // 2 + 1) if bucket.take(now) == 0]
    for first, begin in enumerate(taken):
        for last in range(first, len(taken)):
            allowed = burst + (taken[last] - begin) * rate / SECOND
            assert last - first + 1 <= allowed + 1e-6


@given(
    st.floats(0.01, 10_000),
    st.integers(1, 50),
    st.lists(st.integers(1, 50), min_size=1, max_size=9),
)
def test_who_waits_until_nothing_is_owed_never_owes_more_than_came_at_once(
    rate: float, burst: int, chunks: list[int]
) -> None:
    bucket = Bucket(rate, burst, now=0)
    now = 0
    for count in chunks:
        waits = [bucket.owe(now) for _ in range(count)]
        assert waits == sorted(waits)
        assert bucket.owed <= count + 1e-6
        now += waits[-1]
    assert sum(chunks) <= burst + now * rate / SECOND + 1e-6


@given(st.floats(0.01, 1e6), st.integers(1, 50), st.integers(0, 10**15))
def test_waiting_as_long_as_was_said_is_enough(rate: float, burst: int, now: int) -> None:
    bucket = Bucket(rate, burst, now)
    for _ in range(burst):
        assert bucket.take(now) == 0
    wait = bucket.take(now)
    assert wait > 0
    assert bucket.take(now + wait) == 0


def test_a_clock_that_goes_back_gains_nothing() -> None:
    bucket = Bucket(1.0, 1, now=10 * SECOND)
    assert bucket.take(10 * SECOND) == 0
    assert bucket.take(0) > 0
    assert bucket.take(10 * SECOND) > 0
    assert bucket.take(11 * SECOND) == 0


def test_what_is_larger_than_the_bucket_waits_for_a_full_one_and_leaves_a_debt() -> None:
    bucket = Bucket(10.0, 10, now=0)
    assert bucket.take(0, 30) == 0
    assert bucket.take(2 * SECOND) > 0
    assert bucket.take(2 * SECOND + 100_001) == 0


def test_each_subject_has_its_own_rate_and_is_told_when_to_return() -> None:
    rates = Rates(2.0, 3, what="requests")
    for _ in range(3):
        rates.take("ada", 0)
    with pytest.raises(RateError, match=r"more than 2 requests a second: try again in 0\.5 s") as e:
        rates.take("ada", 0)
    assert "ada" not in str(e.value)
    rates.take("bob", 0)
    rates.take("ada", e.value.retry_us)


def test_the_subjects_remembered_are_bounded() -> None:
    rates = Rates(1.0, 1, what="requests", subjects_max=2)
    for name in "abc":
        rates.take(name, 0)
    assert len(rates._buckets) == 2
    with pytest.raises(RateError):
        rates.take("c", 0)


@pytest.mark.limit("limits.connections_max")
def test_connections_are_taken_up_to_the_limits_and_again_after_closing() -> None:
    connections = Connections(3, 2)
    connections.open("ada")
    connections.open("ada")
    with pytest.raises(LimitError, match="this token's subject has 2 connections open"):
        connections.open("ada")
    connections.open("bob")
    with pytest.raises(LimitError, match="the service has 3 connections open"):
        connections.open("eve")
    connections.close("ada")
    connections.open("eve")
    assert connections.total == 3
    for name in ("ada", "bob", "eve"):
        connections.close(name)
    assert (connections.total, dict(connections._open)) == (0, {})
