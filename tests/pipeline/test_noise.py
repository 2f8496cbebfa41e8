"""Noise keeps its budget: bounds of the library's proof, odds of single answers, bad budgets."""

import math
from collections import Counter

import pyarrow as pa
import pytest

from roamcast.errors import InputError, LimitError
from roamcast.pipeline.analysis import noise
from roamcast.pipeline.analysis.noise import Budget, drawn


def table(*counts: int) -> pa.Table:
    return pa.table({"place": [f"p{n}" for n in range(len(counts))], "count": pa.array(counts)})


@pytest.mark.parametrize(("epsilon", "cells"), [(0.5, 8), (1.0, 1), (3.0, 20)])
def test_the_threshold_is_the_smallest_that_the_proof_allows(epsilon: float, cells: int) -> None:
    budget = Budget(epsilon, 1e-6, cells)
    least = budget.check().threshold()
    distance = (cells, cells, 1)
    told, chance = budget.mechanism(least).map(distance)
    assert told == pytest.approx(epsilon)
    assert chance <= 1e-6 < budget.mechanism(least - 1).map(distance)[1]


def test_one_person_more_changes_the_odds_of_no_answer_beyond_the_budget() -> None:
    budget, draws = Budget(1.0, 1e-4, 1), 3_000
    told: list[Counter[int]] = []
    for count in (40, 41):
        found = drawn(table(*[count] * draws), budget, budget.threshold())
        told.append(Counter(found["count"].to_pylist()))
    for answer in set(told[0]) & set(told[1]):
        first, second = sorted((told[0][answer], told[1][answer]))
        # three standard errors of the frequencies beside e^epsilon
        assert second <= math.e * first + 3 * math.sqrt(second * (1 + math.e))


def test_cells_below_the_threshold_are_not_told_and_the_others_keep_their_names() -> None:
    budget = Budget(5.0, 1e-8, 1)
    found = drawn(table(1, 10_000, 2, 20_000), budget, budget.threshold())
    assert found["place"].to_pylist() == ["p1", "p3"]
    assert [round(count, -3) for count in found["count"].to_pylist()] == [10_000, 20_000]


@pytest.mark.parametrize(
    "wrong",
    [
        Budget(0), Budget(-1.0), Budget(math.nan), Budget(11.0), Budget(1.0, 0.0),
        Budget(1.0, 0.01), Budget(1.0, 1e-8, 0), Budget(1.0, 1e-8, 1_001),
    ],
)  # fmt: skip
def test_a_budget_that_promises_nothing_is_refused(wrong: Budget) -> None:
    with pytest.raises(InputError):
        wrong.check()


def test_a_table_with_too_many_cells_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "CELLS_MAX", 2)
    budget = Budget(1.0)
    assert drawn(table(1, 1), budget, 100).num_rows == 0
    with pytest.raises(LimitError, match="at most 2 cells"):
        drawn(table(1, 1, 1), budget, 100)
