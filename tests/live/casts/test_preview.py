"""Counts that senders are told: whoever asks, plants and compares, nobody is told apart."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.live.casts.preview import (
    DELTA,
    EPSILON,
    LEAST,
    MOMENTS_US,
    PLACES_MAX,
    REMEMBERED_MAX,
    K,
    NoisyCounts,
    SameAnswers,
    until_next,
    with_noise,
)
from roamcast.model.contexts import Context
from roamcast.overlay.casts.messages import CastView

PAIRS = 1_000
FAIR = math.exp(EPSILON) / (1 + math.exp(EPSILON))
"""How often the best guess by one answer is right at most, whether somebody is there."""

SLACK = 4 * math.sqrt(0.25 / PAIRS)
"""Four standard deviations of so many guesses."""


def contexts(count: int, place: str = "hq/1", name: str = "v") -> list[Context]:
    return [Context(f"{name}-{place}-{one}", place, None, {}, 0) for one in range(count)]


def progress(count: int) -> CastView:
    return CastView("c", "historic", "live", 0, 1, 1, count, count, 0, 0, 0)


ASKED: dict[str, Callable[[NoisyCounts, int], int]] = {
    "a preview": lambda counts, count: counts.counted(contexts(count)).about,
    "a preview by place": lambda counts, count: sum(
        one.about for one in counts.counted(contexts(count)).places
    ),
    "progress": lambda counts, count: with_noise(progress(count), counts).found,
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("planted", [0, K - 1, K, LEAST - 1, LEAST, 2 * LEAST + 4])
def test_a_thousand_pairs_with_planted_pseudonyms_tell_nobody_apart(
    name: str, planted: int
) -> None:
    """Who owns all others guesses by one answer whether one more person is there.

    The best guess is made with the answers themselves in view, so no attacker guesses better.
    """
    counts = NoisyCounts(random.Random(planted).random)
    answers = {
        there: [ASKED[name](counts, planted + there) for _ in range(PAIRS)] for there in (0, 1)
    }
    right = 0
    for answer in {*answers[0], *answers[1]}:
        right += max(answers[0].count(answer), answers[1].count(answer))
    assert right / (2 * PAIRS) <= FAIR + SLACK


@pytest.mark.parametrize("name", ASKED)
def test_fewer_than_k_are_told_as_nobody(name: str) -> None:
    counts = NoisyCounts(random.Random(1).random)
    for count in range(K):
        seen = [ASKED[name](counts, count) for _ in range(PAIRS)]
        assert sum(map(bool, seen)) <= PAIRS * DELTA + 4


@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_a_count_is_0_or_a_multiple_of_k_from_the_least_on(
    count: int, drawn: random.Random
) -> None:
    answer = NoisyCounts(drawn.random).about(count)
    assert answer % K == 0
    assert answer == 0 or answer >= LEAST


def test_many_are_told_about_right() -> None:
    counts = NoisyCounts(random.Random(2).random)
    answers = [counts.about(1_000) for _ in range(PAIRS)]
    assert abs(sum(answers) / PAIRS - 998) < 1
    assert max(answers) - min(answers) < 50


def test_places_with_few_are_not_named_and_others_are_few() -> None:
    many = [one for place in range(PLACES_MAX + 5) for one in contexts(90, f"hq/{place:02}")]
    alone = contexts(K - 1, "hq/alone")
    found = NoisyCounts(random.Random(3).random).counted([*many, *alone])
    assert len(found.places) == PLACES_MAX
    assert all(one.place != "hq/alone" and one.about >= LEAST for one in found.places)


def test_a_question_has_the_same_answer_for_a_while_and_the_oldest_make_room() -> None:
    answers: SameAnswers[int] = SameAnswers()
    answers.put("ann", "q", 100, 7)
    assert answers.get("ann", "q", 99) == 7
    assert answers.get("ann", "q", 100) is answers.get("bob", "q", 0) is None
    assert answers.last("ann", "q") == 7
    for number in range(REMEMBERED_MAX):
        answers.put("ann", str(number), 100, number)
    assert answers.last("ann", "q") is None
    assert answers.last("ann", "0") == 0


def test_progress_is_counted_at_a_few_moments_alone() -> None:
    moments = [until_next(0, after - 1) for after in MOMENTS_US]
    assert moments == list(MOMENTS_US)
    assert until_next(0, MOMENTS_US[-1]) == 2 * MOMENTS_US[-1]
