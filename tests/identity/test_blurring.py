"""Rounded intervals: they cover the true ones, are stable, and tell no two vids together."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.identity.blurring import rounded
from roamcast.identity.live_blur import GRID_S
from roamcast.model.time import EARLIEST, LATEST, MICROSECONDS

TIMES = st.integers(EARLIEST, LATEST)
VIDS = st.text(max_size=40)
STEP = GRID_S * MICROSECONDS


@given(
    st.lists(st.tuples(VIDS, TIMES, TIMES), max_size=20),
    st.sampled_from([0, 1, 60, 900, 86_400]),
    st.integers(0, 3),
)
def test_an_interval_is_rounded_outwards_by_less_than_a_step(
    rows: list[tuple[str, int, int]], grid_s: int, skipped: int
) -> None:
    vids = pa.array([row[0] for row in rows], pa.string()).slice(skipped)
    begin = np.array([min(row[1:]) for row in rows], np.int64)[skipped:]
    end = np.array([max(row[1:]) for row in rows], np.int64)[skipped:]
    lower, upper = rounded(vids, begin, end, grid_s)
    step = grid_s * MICROSECONDS
    assert (lower <= begin).all()
    assert (begin - lower < max(step, 1)).all()
    assert (upper >= end).all()
    assert (upper - end < max(step, 1)).all()
    assert (lower >= EARLIEST).all()
    assert (upper <= LATEST).all()
    again = rounded(vids, lower, upper, grid_s)
    assert (again[0] == lower).all()
    assert (again[1] == upper).all()


def test_the_offset_is_the_vids_own_and_spread_evenly() -> None:
    vids = pa.array([f"{number:024d}@trust.example.org" for number in range(20_000)])
    times = np.full(len(vids), 1_790_000_000 * MICROSECONDS, np.int64)
    lower, upper = rounded(vids, times, times, GRID_S)
    for moved in (times - lower, upper - times):
        counts, _ = np.histogram(moved, bins=20, range=(0, STEP))
        assert counts.min() > 850
        assert counts.max() < 1_150


def test_a_succession_no_longer_shares_a_moment() -> None:
    rng = np.random.default_rng(1)
    cut = rng.integers(0, 10**15, 5_000)
    first = pa.array([f"a{number}" for number in range(5_000)])
    second = pa.array([f"b{number}" for number in range(5_000)])
    _, ends = rounded(first, cut - 1, cut, GRID_S)
    begins, _ = rounded(second, cut, cut + 1, GRID_S)
    assert (ends == begins).mean() < 0.001
    assert ((ends - begins >= 0) & (ends - begins < 2 * STEP)).all()


@pytest.mark.parametrize("vids", [pa.array([], pa.string()), pa.array([], pa.large_string())])
def test_no_rows_are_no_rows(vids: pa.Array) -> None:
    empty = np.array([], np.int64)
    assert len(rounded(vids, empty, empty, 60)[0]) == 0
