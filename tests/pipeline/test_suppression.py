"""Published counts give away no count below k, whichever tables are compared."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.pipeline.analysis.questions import BY_PLACE
from roamcast.pipeline.analysis.suppression import attack, published, shown

K = 5
HOUR_US = 3_600_000_000
Cell = tuple[str, int]

visits = st.lists(
    st.tuples(
        st.sampled_from(["a/1/x", "a/1/y", "a/2/x", "a/2/y", "a/2", "b/1/x", "b/1/y"]),
        st.integers(20, 27),
    ),
    max_size=120,
)


def table_of(counts: Counter[Cell]) -> dict[Cell, int]:
    """Publish a table as `occupancy` does, without Spark."""
    cells = sorted(counts)
    table = pa.table(
        {
            "place": pa.array([place for place, _ in cells], pa.string()),
            "hour": pa.array([hour * HOUR_US for _, hour in cells], pa.timestamp("us", "UTC")),
            "count": pa.array([counts[cell] for cell in cells], pa.int64()),
        }
    )
    turned = table.take(pa.array(range(len(cells) - 1, -1, -1), pa.int64()))
    told = shown(table, BY_PLACE, K)
    assert told.equals(shown(turned, BY_PLACE, K)), "two runs tell the same cells"
    names = zip(told["place"].to_pylist(), told["hour"].cast(pa.int64()).to_pylist(), strict=True)
    return {cell: counts[cell] for cell in ((place, us // HOUR_US) for place, us in names)}


def short(place: str, level: int) -> str:
    return "/".join(place.split("/")[:level])


@given(visits)
@settings(max_examples=100)
def test_no_two_tables_of_any_levels_and_hours_give_a_count_away(seen: list[Cell]) -> None:
    levels = {
        level: table_of(Counter((short(place, level), hour) for place, hour in seen))
        for level in (1, 2, 3)
    }
    days = {
        level: table_of(Counter((short(place, level), hour // 24 * 24) for place, hour in seen))
        for level in (1, 2, 3)
    }
    compared: list[Any] = [
        (levels[fine], lambda cell, up=coarse: (short(cell[0], up), cell[1]), levels[coarse])
        for fine, coarse in ((2, 1), (3, 1), (3, 2))
    ]
    compared += [
        (levels[level], lambda cell: (cell[0], cell[1] // 24 * 24), days[level])
        for level in (1, 2, 3)
    ]
    assert attack(compared, K) == []
    for table in (*levels.values(), *days.values()):
        assert min(table.values(), default=K) >= K


@given(visits)
def test_who_knows_the_totals_of_rows_and_columns_learns_nothing_below_k(seen: list[Cell]) -> None:
    counts = Counter(seen)
    shown = table_of(counts)
    for margin in (lambda cell: cell[0], lambda cell: cell[1]):
        totals: Counter[Any] = Counter()
        for cell, count in counts.items():
            totals[margin(cell)] += count
        known = {key: total for key, total in totals.items() if total >= K}
        assert attack([(shown, margin, known)], K) == []


def test_what_is_all_large_is_all_published() -> None:
    counts = np.full(100, K)
    assert published(counts, [np.arange(100) % 7, np.arange(100) % 11], K).all()


def test_one_small_cell_takes_another_of_its_row_and_column_along() -> None:
    counts = np.array([1, 9, 9, 9, 9, 8, 9, 7, 9])
    rows, columns = np.arange(9) // 3, np.arange(9) % 3
    keep = published(counts, [rows, columns], K)
    assert not keep[0]
    for group in (rows, columns):
        missing = np.bincount(group, ~keep)
        assert not (missing == 1).any()
    assert keep.sum() >= 3


def test_an_empty_table_stays_empty() -> None:
    assert table_of(Counter()) == {}
