"""The law: the live index answers exactly as the reference evaluator on every context."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from roamcast.errors import FilterError
from roamcast.matching.live import LiveIndex, questions
from roamcast.matching.live.slices import run
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.price import price
from roamcast.model.nearest import nearest
from tests import strategies
from tests.strategies_matching import filters


def _check(index: LiveIndex, known: dict[str, Context], wanted: Filter) -> None:
    expected = sorted(vid for vid, context in known.items() if wanted.matches(context))
    said = price(wanted.normal, index)
    for question, answer in (
        (questions.count(index, wanted), len(expected)),
        (questions.every(index, wanted), [known[vid] for vid in expected]),
    ):
        index.steps = 0
        assert run(question) == answer, wanted.source
        assert index.steps <= said.steps
    for limit in (1, 3, 1000):
        pages, after = [], ""
        while True:
            index.steps = 0
            page = run(questions.page(index, wanted, after, limit))
            assert index.steps <= said.steps
            pages += page.contexts
            if not page.more:
                break
            after = page.contexts[-1].vid
        assert [context.vid for context in pages] == expected, wanted.source
    for to in ((0.0, 0.0), (179.9, -89.0), (8.5, 48.5)):
        for count in (1, 5):
            index.steps = 0
            found = run(questions.nearest(index, to, wanted, count=count))
            assert index.steps <= said.steps
            assert found == nearest(known.values(), to, wanted, count=count)


def _live(draw: random.Random, index: LiveIndex, known: dict[str, Context], size: int) -> None:
    for _ in range(size):
        vid = draw.choice(["v", "w", "ü", ""]) + str(draw.randrange(60))
        if draw.random() < 0.3:
            assert index.remove(vid) == known.pop(vid, None)
        else:
            known[vid] = strategies.some_context(draw, vid)
            index.put(known[vid])


@pytest.mark.parametrize("seed", range(12))
def test_every_question_is_answered_as_the_reference_evaluator_does(seed: int) -> None:
    draw = random.Random(seed)
    index, known = LiveIndex(), dict[str, Context]()
    for _ in range(4):
        _live(draw, index, known, 120)
        for _ in range(12):
            try:
                wanted = Filter.parse(strategies.some_filter(draw, depth=3))
            except FilterError:
                continue
            _check(index, known, wanted)
    for vid in list(known):
        index.remove(vid)
    assert (len(index), index.columns_count, len(index.texts)) == (0, 0, 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.none() | strategies.contexts()), max_size=25),
       st.lists(filters, min_size=1, max_size=4))  # fmt: skip
def test_few_names_and_values_meet_often(
    changes: list[tuple[int, Context | None]], wanted: list[Filter]
) -> None:
    index, known = LiveIndex(), dict[str, Context]()
    for number, context in changes:
        vid = f"v{number}"
        if context is None:
            index.remove(vid)
            known.pop(vid, None)
        else:
            known[vid] = structs.replace(context, vid=vid)
            index.put(known[vid])
    for question in wanted:
        _check(index, known, question)
