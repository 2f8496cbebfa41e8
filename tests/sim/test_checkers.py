"""Checkers: each accepts what it promises and catches the smallest break of it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.sim.checkers import (
    AtMostOncePerUser,
    BandwidthLimit,
    DeliveryLedger,
    OnlyMatching,
    OrderPerProducer,
    SequenceOrSnapshot,
    Violation,
    check_bounds,
)


def test_the_ledger_finds_a_loss_and_a_duplicate() -> None:
    ledger = DeliveryLedger()
    for item in ("a", "b"):
        ledger.expect("ann", item)
    ledger.deliver("ann", "a")
    with pytest.raises(Violation, match="ann lacks 1: b"):
        ledger.finish()
    ledger.deliver("ann", "b")
    ledger.finish()
    with pytest.raises(Violation, match="no duplicate"):
        ledger.deliver("ann", "a")


def test_who_was_told_is_owed_nothing() -> None:
    ledger = DeliveryLedger()
    ledger.expect("ann", "a")
    ledger.excuse("ann", "a")
    ledger.finish()


@given(st.lists(st.integers(0, 20), max_size=10))
def test_order_is_kept_exactly_when_numbers_rise(numbers: list[int]) -> None:
    checker = OrderPerProducer()
    rising = all(one < other for one, other in itertools.pairwise(numbers))

    def deliver() -> None:
        for number in numbers:
            checker.deliver("ann", "p", number)
            checker.deliver("ann", f"another {number}", 0)

    if rising:
        deliver()
    else:
        with pytest.raises(Violation):
            deliver()


def test_one_user_gets_one_cast_once_and_two_users_each() -> None:
    checker = AtMostOncePerUser()
    checker.deliver("ann", "cast")
    checker.deliver("bob", "cast")
    with pytest.raises(Violation, match="at most once"):
        checker.deliver("ann", "cast")


@given(st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 60)), max_size=12).map(sorted))
def test_the_bandwidth_limit_holds_in_every_second(sent: list[tuple[int, int]]) -> None:
    def worst() -> int:
        ends = [time for time, _ in sent]
        return max(
            (sum(size for t, size in sent if end - 1_000_000 < t <= end) for end in ends), default=0
        )

    checker = BandwidthLimit({"ann": 100})

    def deliver() -> None:
        for time, size in sent:
            checker.deliver("ann", size, time)
            checker.deliver("unlimited", 10**9, time)

    if worst() <= 100:
        deliver()
    else:
        with pytest.raises(Violation, match="bandwidth"):
            deliver()


def test_only_matching_contexts_may_be_delivered_to() -> None:
    checker = OnlyMatching(lambda context, wanted: context == wanted)
    checker.deliver("here", "here")
    with pytest.raises(Violation, match="does not match"):
        checker.deliver("there", "here")


class Holding:
    def __init__(self, count: int) -> None:
        self.count = count

    def occupancy(self) -> dict[str, tuple[int, int]]:
        return {"things": (self.count, 3)}


def test_state_at_its_bound_is_fine_and_one_more_is_not() -> None:
    check_bounds("b1", Holding(3))
    with pytest.raises(Violation, match="b1 holds 4 things, bound 3"):
        check_bounds("b1", Holding(4))


def following() -> SequenceOrSnapshot:
    checker = SequenceOrSnapshot()
    for number in range(1, 6):
        checker.sent(1, number, bytes([number]))
    checker.starts("ann", 0, 0)
    checker.delivered("ann", 1, 1, b"\x01")
    return checker


def test_the_sequence_in_turn_is_accepted() -> None:
    checker = following()
    checker.delivered("ann", 1, 2, b"\x02")
    assert checker.position("ann") == (1, 2)


@pytest.mark.parametrize(
    ("incarnation", "sequence", "payload"),
    [(1, 3, b"\x03"), (1, 1, b"\x01"), (1, 2, b"other"), (2, 2, b"\x02"), (2, 1, b"\x01")],
    ids=["skipped", "repeated", "other bytes", "other life", "new life unannounced"],
)
def test_anything_but_the_next_message_is_caught(
    incarnation: int, sequence: int, payload: bytes
) -> None:
    with pytest.raises(Violation, match="sequence or snapshot"):
        following().delivered("ann", incarnation, sequence, payload)


def test_after_a_snapshot_the_sequence_goes_on_from_there() -> None:
    checker = following()
    checker.replaced("ann", 1, 4)
    checker.delivered("ann", 1, 5, b"\x05")
    with pytest.raises(Violation, match="thrown back"):
        checker.replaced("ann", 1, 3)


def test_a_sender_that_misnumbers_is_caught() -> None:
    with pytest.raises(Violation, match="out of turn"):
        following().sent(1, 7, b"")
    with pytest.raises(Violation, match="out of turn"):
        following().sent(1, 5, b"")
