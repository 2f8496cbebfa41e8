"""Predicates that a row's place settles are not checked again: what is found stays the same."""

import random

import pytest

from roamcast.matching import FilterSet
from roamcast.matching.layout import Tuning
from roamcast.model.context_arrow import to_arrow
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter

TUNINGS = [
    Tuning(),
    Tuning(root_rows=1 << 30, chain_rows=0),
    Tuning(root_rows=8, cluster_rows=8, chain_rows=2),
    Tuning(root_rows=1, cluster_rows=1, chain_rows=1 << 30, depth=2),
]


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("values", [3, 40, 150], ids=lambda count: f"{count} values")
def test_values_beyond_the_lines_of_a_page_are_told_apart(tuning: Tuning, values: int) -> None:
    draw = random.Random(values)
    index, held = FilterSet(tuning=tuning), {}
    contexts = [
        Context(
            f"v{number}",
            attributes={
                "name": f"n{draw.randrange(values + 2)}",
                "level": draw.randrange(values + 2),
                "open": draw.random() < 0.5,
                "share": draw.choice([0.5, draw.uniform(0, values)]),
            },
        )
        for number in range(60)
    ]
    parts = [
        lambda: f"name = 'n{draw.randrange(values)}'",
        lambda: f"level = {draw.randrange(values)}",
        lambda: f"level BETWEEN {draw.randrange(values)} AND {values}",
        lambda: f"share < {draw.uniform(0, values)}",
        lambda: f"share >= {draw.choice([0.5, 1.0])}",
        lambda: f"open = {draw.choice(['true', 'false'])}",
        lambda: f"name IN ('n{draw.randrange(values)}', 'n{draw.randrange(values)}')",
    ]
    for number in range(300):  # one by one: early pages keep the coarse grids they began with
        text = " AND ".join(make() for make in draw.sample(parts, draw.randint(1, 3)))
        held[f"f{number}"] = Filter.parse(text)
        index.add(f"f{number}", held[f"f{number}"])
        if number % 3 == 2:
            gone = draw.choice(list(held))
            index.remove(gone)
            del held[gone]
    for loaded in (index, FilterSet.load(index.snapshot())):
        pairs = loaded.match_batch(to_arrow(contexts))
        found = set(zip(pairs.rows.tolist(), pairs.ids.tolist(), strict=True))
        for row, context in enumerate(contexts):
            want = {name for name, one in held.items() if one.matches(context)}
            assert set(loaded.match(context)) == want
            assert {name for at, name in found if at == row} == want


@pytest.mark.parametrize("tuning", TUNINGS)
def test_an_equality_that_contradicts_the_clusters_own_is_not_taken_for_it(tuning: Tuning) -> None:
    index = FilterSet(tuning=tuning)
    index.add("split", Filter.parse("(x = 3 OR y = 1) AND (x = 4 OR z = 2)"))
    for number in range(40):
        index.add(f"other{number}", Filter.parse(f"x = 3 AND w = {number}"))
    assert index.match(Context("v", attributes={"x": 3, "y": 0, "z": 0, "w": -1})) == []
    assert index.match(Context("v", attributes={"x": 3, "y": 0, "z": 2, "w": -1})) == ["split"]
    assert index.match(Context("v", attributes={"x": 4, "y": 1, "z": 0, "w": -1})) == ["split"]
