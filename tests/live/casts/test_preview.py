"""Counts that senders are told: nothing below k, nothing by asking twice or by a pair."""

import random

from hypothesis import given
from hypothesis import strategies as st

from roamcast.live.casts.preview import PLACES_MAX, K, Rounding
from roamcast.model.contexts import Context

VIDS = st.sets(st.text("abcdefgh", min_size=1, max_size=4), max_size=40)


@given(VIDS, st.binary(min_size=32, max_size=32))
def test_a_count_is_0_below_k_and_else_a_multiple_of_k_that_is_near(
    vids: set[str], secret: bytes
) -> None:
    told = Rounding(secret).about(vids)
    assert told % K == 0
    assert (told == 0) == (len(vids) < K)
    assert told == 0 or abs(told - len(vids)) < K


@given(VIDS, st.binary(min_size=32, max_size=32))
def test_the_same_people_give_the_same_answer_in_any_order(vids: set[str], secret: bytes) -> None:
    rounding = Rounding(secret)
    shuffled = list(vids)
    random.Random(1).shuffle(shuffled)
    assert rounding.about(vids) == rounding.about(shuffled)


def test_a_thousand_pairs_that_differ_by_one_person_tell_no_count_below_k() -> None:
    """The attacker asks for a crowd with and without one person, and guesses the difference."""
    drawn, rounding = random.Random(7), Rounding(b"s" * 32)
    with_, without = 0, 0
    for number in range(1_000):
        crowd = {f"{number}-{one}" for one in range(drawn.randrange(0, 40))}
        person = {f"{number}-target"} if number % 2 else set()
        difference = rounding.about(crowd | person) - rounding.about(crowd)
        assert difference % K == 0
        if number % 2:
            with_ += difference > 0
        else:
            without += difference > 0
    # Without the person the crowd is the same set and gives the same answer: nothing to see. With
    # them a difference shows now and then, and it is never 1.
    assert without == 0
    assert 0 < with_ < 400


def test_two_descriptions_of_different_people_differ_though_the_counts_are_equal() -> None:
    """So a difference of 5 may be nobody at all: the shift depends on who was found."""
    rounding = Rounding(b"s" * 32)
    answers = {rounding.about({f"{crowd}-{one}" for one in range(12)}) for crowd in range(50)}
    assert answers == {10, 15}


def test_places_with_fewer_than_k_are_not_named_and_others_are_few() -> None:
    contexts = [
        Context(f"{place}-{one}", f"hq/{place:02}", None, {}, 0)
        for place in range(PLACES_MAX + 5)
        for one in range(K)
    ]
    contexts += [Context(f"x-{one}", "hq/alone", None, {}, 0) for one in range(K - 1)]
    told = Rounding(b"s" * 32).counted([*contexts, Context("p", None, (9.0, 48.0), {}, 0)])
    assert len(told.places) == PLACES_MAX
    assert all(one.place != "hq/alone" and one.about >= K for one in told.places)
