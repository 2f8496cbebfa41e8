"""The receiving end of a reliable channel: order, gaps, heals, snapshots, restarts."""

import pytest

from roamcast.channels.reliable.messages import (
    HEAL_SEQUENCES_MAX,
    ChannelWelcome,
    HealRequest,
    Join,
    Snapshot,
)
from roamcast.channels.reliable.receiver import (
    RECEIVER_TABLE,
    Delivered,
    ReceiverEvent,
    ReceiverState,
    Replaced,
    Stale,
)
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.model.addresses import Server
from roamcast.model.machine import Effect, Received, Send, Stored
from roamcast.model.records import Drop
from tests.strategies_channel import (
    NAME,
    SETTINGS,
    data,
    delivered,
    give,
    heal,
    messages,
    receiver,
    sync,
)

LATE = 10**9


def due(machine: object, now: int = LATE) -> list[Effect]:
    return list(machine.advance(now))  # type: ignore[attr-defined]


def test_messages_in_turn_are_delivered_at_once() -> None:
    machine = receiver()
    assert give(machine, data(1)) == [Delivered(NAME, 1, 1, b"1")]
    assert delivered(give(machine, data(2))) == [2]
    assert machine.deadline() is None


def test_early_messages_wait_and_are_delivered_in_order() -> None:
    machine = receiver()
    assert give(machine, data(3)) == []
    assert give(machine, data(2)) == []
    assert machine.state is ReceiverState.HEALING
    assert delivered(give(machine, data(1))) == [1, 2, 3]
    assert machine.state is ReceiverState.FOLLOWING
    assert machine.deadline() is None


@pytest.mark.parametrize("again", [data(1), heal(1), data(2)])
def test_nothing_is_delivered_twice(again: object) -> None:
    machine = receiver()
    give(machine, data(1))
    give(machine, data(2))
    assert give(machine, again) == []  # type: ignore[arg-type]


def test_a_gap_is_asked_for_after_the_back_off_and_not_before() -> None:
    machine = receiver()
    give(machine, data(1))
    give(machine, data(4), now=100)
    at = machine.deadline()
    assert at is not None
    assert 100 < at <= 100 + SETTINGS.backoff_interval_us
    assert machine.advance(at - 1) == ()
    assert machine.advance(at) == [Send(Server("server"), HealRequest(NAME, 1, (2, 3)))]
    assert delivered(give(machine, heal(2))) == [2]
    assert delivered(give(machine, heal(3))) == [3, 4]


def test_what_was_healed_by_anothers_request_is_not_asked_for() -> None:
    machine = receiver()
    give(machine, data(3))
    give(machine, heal(1))
    assert messages(due(machine), Send) == [HealRequest(NAME, 1, (2,))]
    machine = receiver()
    give(machine, data(2))
    give(machine, heal(1))
    assert due(machine) == []


def test_requests_are_repeated_ever_more_slowly_up_to_a_bound() -> None:
    machine = receiver()
    give(machine, data(2))
    waits = []
    now = machine.deadline() or 0
    for _ in range(12):
        assert len(machine.advance(now)) == 1
        following = machine.deadline()
        assert following is not None
        waits.append(following - now)
        now = following
    assert waits == sorted(waits)
    assert waits[0] < waits[3]
    assert waits[-1] <= SETTINGS.retry_us_max + SETTINGS.round_trip_us


def test_one_request_names_a_bounded_number_of_messages_the_oldest_first() -> None:
    machine = receiver()
    give(machine, data(200))
    (request,) = messages(due(machine), Send)
    assert isinstance(request, HealRequest)
    assert request.sequences == tuple(range(1, HEAL_SEQUENCES_MAX + 1))
    (request,) = messages(due(machine, LATE + 1), Send)
    assert isinstance(request, HealRequest)
    assert request.sequences[0] == HEAL_SEQUENCES_MAX + 1


def test_a_lost_tail_is_noticed_by_the_synchronisation_message() -> None:
    machine = receiver()
    give(machine, data(1))
    give(machine, sync(3))
    assert messages(due(machine), Send) == [HealRequest(NAME, 1, (2, 3))]


def test_each_gap_has_a_timer_of_its_own() -> None:
    draws = iter([0.9, 0.01, 0.5])
    machine = receiver(draw=lambda: next(draws))
    give(machine, data(2), now=0)
    give(machine, data(4), now=0)
    first = machine.deadline()
    assert first is not None
    assert messages(machine.advance(first), Send) == [HealRequest(NAME, 1, (3,))]


def test_a_newcomer_asks_at_once_for_everything_already_sent_and_again_until_answered() -> None:
    machine = receiver(start=None)
    assert machine.deadline() == 0
    assert machine.advance(0) == (Send(Server("server"), Join(NAME, 0, 1)),)
    again = machine.deadline()
    assert again is not None
    assert again > 0
    assert machine.advance(again) == (Send(Server("server"), Join(NAME, 0, 1)),)
    assert give(machine, data(3)) == []
    effects = give(machine, ChannelWelcome(NAME, 1, 1, 2))
    assert effects == []
    assert delivered(give(machine, heal(1))) == [1]
    assert delivered(give(machine, heal(2))) == [2, 3]


def test_who_catches_up_after_joining_asks_alone() -> None:
    machine = receiver(start=None)
    give(machine, ChannelWelcome(NAME, 1, 1, 2))
    give(machine, data(4))
    requests = messages(due(machine), Send)
    assert requests == [HealRequest(NAME, 1, (1, 2), alone=True), HealRequest(NAME, 1, (3,))]


def test_a_newcomer_does_not_take_a_live_message_for_the_beginning() -> None:
    machine = receiver(start=None)
    assert give(machine, data(1, incarnation=2)) == []
    assert give(machine, sync(1, incarnation=2)) == []
    snapshot = Snapshot(NAME, 2, 0, b"restored")
    effects = give(machine, snapshot)
    assert effects[0] == Replaced(NAME, 2, 0, b"restored", "joined")
    assert delivered(effects) == [1]


def test_an_announced_start_is_followed_from_there() -> None:
    machine = receiver(start=(3, 10))
    assert machine.deadline() is None
    assert delivered(give(machine, data(10, 3))) == [10]
    give(machine, data(12, 3))
    assert messages(due(machine), Send) == [HealRequest(NAME, 3, (11,))]


def test_falling_behind_the_buffer_is_told_and_ends_with_a_snapshot() -> None:
    machine = receiver()
    give(machine, data(1))
    assert give(machine, sync(9, first=5)) == [Stale(NAME, "fell behind")]
    assert machine.state is ReceiverState.BEHIND
    assert due(machine) == [Send(Server("server"), Join(NAME, 1, 2))]
    assert give(machine, data(10)) == []
    effects = give(machine, Snapshot(NAME, 1, 9, b"state"))
    assert effects[0] == Replaced(NAME, 1, 9, b"state", "fell behind")
    assert delivered(effects) == [10]
    assert machine.state is ReceiverState.FOLLOWING


def test_who_fell_behind_goes_on_exactly_where_the_sender_can_still_heal() -> None:
    machine = receiver()
    give(machine, sync(9, first=5))
    assert give(machine, ChannelWelcome(NAME, 1, 1, 9)) == []
    assert machine.state is ReceiverState.HEALING
    assert delivered(give(machine, heal(1))) == [1]


def test_a_restart_is_told_and_old_and_new_sequences_never_mix() -> None:
    machine = receiver()
    give(machine, data(1))
    give(machine, data(3))
    assert give(machine, data(2, incarnation=2)) == [Stale(NAME, "sender restarted")]
    assert give(machine, heal(2, incarnation=1)) == []
    assert due(machine) == [Send(Server("server"), Join(NAME, 1, 2))]
    effects = give(machine, Snapshot(NAME, 2, 1, b"anew"))
    assert effects[0] == Replaced(NAME, 2, 1, b"anew", "sender restarted")
    assert delivered(effects) == [2]
    assert give(machine, data(3, incarnation=1)) == []


def test_a_sender_that_moved_is_asked_where_it_is() -> None:
    machine = receiver()
    give(machine, sync(0, incarnation=2), sender="elsewhere")
    (effect,) = due(machine)
    assert isinstance(effect, Send)
    assert effect.to == Server("elsewhere")


def test_a_snapshot_for_others_does_not_replace_what_can_be_healed_exactly() -> None:
    machine = receiver()
    give(machine, data(1))
    give(machine, data(3))
    assert give(machine, Snapshot(NAME, 1, 3, b"state")) == []
    assert delivered(give(machine, heal(2))) == [2, 3]


def test_an_older_snapshot_never_throws_anyone_back() -> None:
    machine = receiver()
    for number in range(1, 6):
        give(machine, data(number))
    give(machine, sync(20, first=10))
    assert give(machine, Snapshot(NAME, 1, 4, b"old")) == []
    assert give(machine, Snapshot(NAME, 1, 12, b"new")) != []


def test_a_snapshot_of_what_was_last_delivered_is_taken() -> None:
    machine = receiver()
    for number in range(1, 6):
        give(machine, data(number))
    give(machine, sync(20, first=10))
    effects = give(machine, Snapshot(NAME, 1, 5, b"same"))
    assert effects[0] == Replaced(NAME, 1, 5, b"same", "fell behind")


@pytest.mark.parametrize(
    "settings",
    [
        ChannelSettings(ahead_messages_max=4, receivers_expected=1),
        ChannelSettings(ahead_bytes_max=4, receivers_expected=1),
    ],
    ids=["messages", "bytes"],
)
def test_what_waits_is_bounded_and_still_everything_comes(settings: ChannelSettings) -> None:
    machine = receiver(settings)
    for number in range(2, 40):
        give(machine, data(number))
        assert all(held <= bound for held, bound in machine.occupancy().values())
    got: list[int] = []
    now = 0
    for _ in range(200):
        now = max(now, machine.deadline() or now)
        for request in messages(machine.advance(now), Send):
            assert isinstance(request, HealRequest)
            for number in request.sequences:
                got += delivered(give(machine, heal(number), now))
                assert all(held <= bound for held, bound in machine.occupancy().values())
    assert got == list(range(1, 40))


def test_a_newcomer_keeps_a_bounded_number_while_it_waits() -> None:
    machine = receiver(ChannelSettings(ahead_messages_max=4), start=None)
    for number in range(1, 40):
        give(machine, data(number))
        assert all(held <= bound for held, bound in machine.occupancy().values())


def test_a_message_of_another_channel_is_recorded_and_changes_nothing() -> None:
    machine = receiver()
    dropped = Drop("another channel", "channel.welcome", 0, "server", "other")
    assert give(machine, ChannelWelcome("other", 1, 1, 9)) == [dropped]
    assert machine.deadline() is None


def test_what_a_receiver_does_not_declare_is_an_assertion() -> None:
    machine = receiver()
    for given in (Stored(1), Received("r", HealRequest(NAME, 1, (1,)))):
        with pytest.raises(AssertionError):
            machine.receive(given, 0)


def test_advance_before_the_deadline_does_nothing() -> None:
    machine = receiver()
    give(machine, data(2), now=5)
    before = machine.deadline()
    assert machine.advance(6) == ()
    assert machine.deadline() == before


def test_every_state_can_be_left_and_reached() -> None:
    assert {state for state, _ in RECEIVER_TABLE} == set(ReceiverState)
    reached = set(RECEIVER_TABLE.values()) | {ReceiverState.JOINING}
    assert reached == set(ReceiverState)
    assert {event for _, event in RECEIVER_TABLE} == set(ReceiverEvent)
