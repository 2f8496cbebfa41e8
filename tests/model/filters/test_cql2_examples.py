"""Every construct of the standard is evaluated, or refused by name."""

import cql2
import pytest

from roamcast.errors import FilterError
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.evaluate import evaluate
from roamcast.model.filters.holds import holds
from tests import strategies as pool
from tests.model.filters.cql2_examples import EVALUATED, REFUSED

NURSE = Context(
    "v",
    "campus/b35",
    (6.1, 46.2),
    {
        "role": "Nurse",
        "name": "Zoë Smith",
        "floor": 2,
        "steps": 12_000,
        "goal": 10_000,
        "battery": 0.1,
        "on_duty": True,
        "seen": pool.moment_of(pool.NINE),
        "hired": "2020-06-01",
        "shift_from": "2026-11-15T08:00:00Z",
        "shift_to": "2026-11-15T16:00:00Z",
    },
    pool.NINE,
    None,
)
TEXTS = [text for texts in EVALUATED.values() for text in texts]


def test_the_examples_cover_the_standard() -> None:
    assert len(TEXTS) + len(REFUSED) >= 120
    assert len(set(TEXTS)) == len(TEXTS)


@pytest.mark.parametrize("text", TEXTS)
def test_what_the_standard_writes_is_evaluated(text: str) -> None:
    cql2.parse_text(text)
    said = Filter.parse(text)
    answer = evaluate(said.expression, NURSE)
    assert answer in (True, False, None)
    assert said.matches(NURSE) is (answer is True)
    assert holds(said.normal, NURSE) is (answer is True)
    assert Filter.parse(said.text) == said
    assert Filter.parse(cql2.parse_text(text).to_json()) == said


def test_the_examples_have_every_answer() -> None:
    answers = [evaluate(Filter.parse(text).expression, NURSE) for text in TEXTS]
    assert min(answers.count(each) for each in (True, False, None)) >= 8


@pytest.mark.parametrize(("text", "names"), REFUSED)
def test_what_we_do_not_support_is_refused_by_name(text: str, names: str) -> None:
    cql2.parse_text(text)
    with pytest.raises(FilterError, match=r"^position \d+: ") as caught:
        Filter.parse(text)
    assert names in str(caught.value)
