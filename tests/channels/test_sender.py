"""The sending end of a reliable channel: numbering, healing, synchronising, snapshots."""

import pytest

from roamcast.channels.reliable.messages import (
    HEAL_SEQUENCES_MAX,
    PAYLOAD_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    ChannelWelcome,
    HealRequest,
    Join,
    Snapshot,
    Synchronisation,
)
from roamcast.channels.reliable.sender import (
    SENDER_TABLE,
    Audience,
    SenderEvent,
    SenderState,
    SnapshotTaken,
    SnapshotWanted,
    Transmit,
)
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.errors import LimitError
from roamcast.model.addresses import Client
from roamcast.model.machine import Multicast, Received, Send, Stored
from roamcast.model.records import Drop
from tests.strategies_channel import NAME, SETTINGS, give, heal, messages, publish, sender, sync


def ask(*sequences: int, incarnation: int = 1, alone: bool = False) -> HealRequest:
    return HealRequest(NAME, incarnation, sequences, alone)


def test_messages_are_numbered_from_one_and_go_to_the_group_once() -> None:
    machine = sender(scope="campus")
    (effect,) = machine.receive(Transmit(b"a"), 0)
    assert effect == Multicast(NAME, effect.message, "campus")  # type: ignore[attr-defined]
    assert [message.sequence for message in publish(machine, 3)] == [2, 3, 4]


def test_a_quiet_interval_ends_with_a_synchronisation_message_again_and_more_slowly() -> None:
    machine = sender()
    publish(machine, 2, now=100)
    quiet = SETTINGS.sync_interval_us
    assert machine.deadline() == 100 + quiet
    assert machine.advance(100 + quiet - 1) == []
    assert messages(machine.advance(100 + quiet), Multicast) == [sync(2)]
    waits, now = [], 100 + quiet
    for _ in range(5):
        following = machine.deadline()
        assert following is not None
        waits.append(following - now)
        now = following
        assert messages(machine.advance(now), Multicast) == [sync(2)]
    slowest = SETTINGS.sync_interval_us_max
    assert waits == [min(quiet << doublings, slowest) for doublings in range(1, 6)]
    publish(machine, 1, now=now + 1)
    assert machine.deadline() == now + 1 + quiet


def test_a_channel_on_which_nothing_was_said_synchronises_too() -> None:
    machine = sender()
    assert messages(machine.advance(SETTINGS.sync_interval_us), Multicast) == [sync(0)]


def test_the_audience_is_told_so_that_receivers_can_spread_their_requests() -> None:
    machine = sender()
    machine.receive(Audience(5_000), 0)
    (message,) = messages(machine.advance(SETTINGS.sync_interval_us), Multicast)
    assert isinstance(message, Synchronisation)
    assert message.receivers == 5_000


def test_a_heal_goes_to_everyone_and_is_not_repeated_within_a_round_trip() -> None:
    machine = sender()
    publish(machine, 5)
    assert messages(give(machine, ask(2, 4), 0, "ann"), Multicast) == [heal(2), heal(4)]
    assert give(machine, ask(2, 4), SETTINGS.round_trip_us - 1, "bob") == []
    assert messages(give(machine, ask(4), SETTINGS.round_trip_us, "bob"), Multicast) == [heal(4)]


def test_one_who_catches_up_alone_is_healed_alone() -> None:
    machine = sender()
    publish(machine, 2)
    effects = give(machine, ask(1, 2, alone=True), 0, "ann")
    assert effects == [Send(Client("ann"), heal(1)), Send(Client("ann"), heal(2))]


def test_what_was_never_sent_is_not_healed() -> None:
    machine = sender()
    publish(machine, 1)
    assert give(machine, ask(2, 10**9), 0) == []


def test_a_request_from_another_incarnation_learns_of_this_one() -> None:
    machine = sender(incarnation=2)
    assert give(machine, ask(1), 0, "ann") == [Send(Client("ann"), sync(0, incarnation=2))]


@pytest.mark.parametrize(
    "settings",
    [ChannelSettings(buffer_messages_max=3), ChannelSettings(buffer_bytes_max=3)],
    ids=["messages", "bytes"],
)
def test_the_buffer_keeps_its_bound_and_the_newest(settings: ChannelSettings) -> None:
    machine = sender(settings)
    for number in range(1, 10):
        machine.receive(Transmit(b"x"), 0)
        assert machine.first == max(1, number - 2)
    assert all(count <= bound for count, bound in machine.occupancy().values())
    assert [m.sequence for m in messages(give(machine, ask(7, 9), 0), Multicast)] == [7, 9]  # type: ignore[attr-defined]


def test_a_request_beyond_the_buffer_tells_everyone_once_a_round_trip() -> None:
    settings = ChannelSettings(buffer_messages_max=2, receivers_expected=1)
    machine = sender(settings)
    publish(machine, 5)
    assert messages(give(machine, ask(1, 2, 3), 0, "ann"), Multicast) == [sync(5, first=4)]
    assert give(machine, ask(1), 1, "bob") == []


def test_a_newcomer_gets_everything_already_sent() -> None:
    machine = sender()
    publish(machine, 3)
    effects = give(machine, Join(NAME, 0, 1), 0, "ann")
    expected = [ChannelWelcome(NAME, 1, 1, 3), heal(1), heal(2), heal(3)]
    assert effects == [Send(Client("ann"), message) for message in expected]


def test_the_answer_to_a_join_is_bounded_and_says_how_much_more_there_is() -> None:
    machine = sender()
    publish(machine, HEAL_SEQUENCES_MAX + 10)
    first, *heals = messages(give(machine, Join(NAME, 0, 1), 0, "ann"), Send)
    assert first == ChannelWelcome(NAME, 1, 1, HEAL_SEQUENCES_MAX + 10)
    assert len(heals) == HEAL_SEQUENCES_MAX


def test_one_who_has_everything_is_welcome_and_gets_nothing() -> None:
    machine = sender()
    publish(machine, 3)
    assert messages(give(machine, Join(NAME, 1, 4), 0), Send) == [ChannelWelcome(NAME, 1, 4, 3)]


@pytest.mark.parametrize(
    "join",
    [Join(NAME, 1, 1), Join(NAME, 7, 4), Join(NAME, 1, 99), Join(NAME, 0, 1)],
    ids=["beyond the buffer", "other incarnation", "ahead of us", "newcomer"],
)
def test_who_cannot_be_healed_gets_a_snapshot_after_a_moment(join: Join) -> None:
    settings = ChannelSettings(buffer_messages_max=2)
    machine = sender(settings)
    publish(machine, 5)
    assert give(machine, join, 10, "ann") == []
    assert machine.state is SenderState.GATHERING
    assert machine.deadline() == 10 + settings.gather_us
    assert machine.advance(10 + settings.gather_us) == [SnapshotWanted(NAME)]
    effects = machine.receive(SnapshotTaken(b"state"), 10 + settings.gather_us)
    assert effects == [Send(Client("ann"), Snapshot(NAME, 1, 5, b"state"))]
    assert machine.state is SenderState.STEADY


def test_a_sender_that_restarted_with_a_state_gives_newcomers_a_snapshot() -> None:
    machine = sender(starts_empty=False)
    assert give(machine, Join(NAME, 0, 1), 0, "ann") == []
    assert machine.state is SenderState.GATHERING


def snapshot_for(count: int, payload: bytes, settings: ChannelSettings) -> list[object]:
    machine = sender(settings, starts_empty=False)
    for number in range(count):
        give(machine, Join(NAME, 0, 1), 0, f"listener-{number}")
        give(machine, Join(NAME, 0, 1), 0, f"listener-{number}")
        assert all(held <= bound for held, bound in machine.occupancy().values())
    machine.advance(settings.gather_us)
    return list(machine.receive(SnapshotTaken(payload), settings.gather_us))


def test_few_get_the_snapshot_each_and_many_get_it_together() -> None:
    settings = ChannelSettings(snapshot_unicasts_max=3)
    assert len(snapshot_for(3, b"state", settings)) == 3
    (together,) = snapshot_for(4, b"state", settings)
    assert isinstance(together, Multicast)


def test_a_crowd_is_not_kept_waiting_for_more_to_come() -> None:
    settings = ChannelSettings(snapshot_unicasts_max=3)
    machine = sender(settings, starts_empty=False)
    for number in range(4):
        give(machine, Join(NAME, 0, 1), 100 + number, f"listener-{number}")
    assert machine.deadline() == 103
    assert machine.advance(103) == [SnapshotWanted(NAME)]


def test_requests_that_crossed_the_shared_snapshot_are_not_answered_again() -> None:
    settings = ChannelSettings(snapshot_unicasts_max=1)
    machine = sender(settings, starts_empty=False)
    for name in ("ann", "bob"):
        give(machine, Join(NAME, 0, 1), 0, name)
    machine.advance(0)
    machine.receive(SnapshotTaken(b"state"), 0)
    give(machine, Join(NAME, 0, 1), settings.round_trip_us - 1, "cat")
    assert machine.state is SenderState.STEADY
    give(machine, Join(NAME, 0, 1), settings.round_trip_us, "cat")
    assert machine.state is SenderState.GATHERING


def test_a_snapshot_too_large_for_a_datagram_goes_to_those_that_fit_the_bound() -> None:
    settings = ChannelSettings(snapshot_unicasts_max=3, snapshot_multicast_bytes_max=4)
    assert [type(effect) for effect in snapshot_for(9, b"state", settings)] == [Send] * 3


def test_who_asks_while_the_snapshot_is_taken_is_answered_with_it() -> None:
    machine = sender(starts_empty=False)
    give(machine, Join(NAME, 0, 1), 0, "ann")
    machine.advance(SETTINGS.gather_us)
    give(machine, Join(NAME, 0, 1), SETTINGS.gather_us, "bob")
    assert machine.state is SenderState.TAKING
    effects = machine.receive(SnapshotTaken(b"state"), SETTINGS.gather_us)
    assert [effect.to.name for effect in effects if isinstance(effect, Send)] == ["ann", "bob"]
    assert machine.deadline() == SETTINGS.sync_interval_us


def test_payloads_are_held_to_their_limits() -> None:
    machine = sender()
    assert machine.receive(Transmit(bytes(PAYLOAD_BYTES_MAX)), 0)
    with pytest.raises(LimitError):
        machine.receive(Transmit(bytes(PAYLOAD_BYTES_MAX + 1)), 0)
    assert machine.last == 1
    with pytest.raises(LimitError):
        snapshot_for(1, bytes(SNAPSHOT_BYTES_MAX + 1), SETTINGS)
    assert snapshot_for(1, bytes(SNAPSHOT_BYTES_MAX), SETTINGS)


def test_a_snapshot_nobody_asked_for_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="cannot happen"):
        sender().receive(SnapshotTaken(b""), 0)


def test_requests_for_other_channels_are_recorded_and_not_answered() -> None:
    machine = sender()
    publish(machine, 1)
    asked = HealRequest("other", 1, (1,)), Join("other", 0, 1)
    assert [give(machine, message, 0) for message in asked] == [
        [Drop("another channel", tag, 0, "server", "other")]
        for tag in ("channel.ask", "channel.join")
    ]


def test_what_a_sender_does_not_declare_is_an_assertion() -> None:
    machine = sender()
    for given in (Stored(1), Received("r", heal(1))):
        with pytest.raises(AssertionError):
            machine.receive(given, 0)


def test_every_state_can_be_left_and_reached() -> None:
    assert {state for state, _ in SENDER_TABLE} == set(SenderState)
    assert set(SENDER_TABLE.values()) == set(SenderState)
    assert {event for _, event in SENDER_TABLE} == set(SenderEvent)
