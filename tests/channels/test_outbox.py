"""The queue of one client, at its bound."""

from roamcast.channels.server.messages import (
    Announce,
    Band,
    Batch,
    Closing,
    Dropped,
    Opening,
    Refused,
    State,
    Superseded,
    parcel_of,
)
from roamcast.channels.server.outbox import _HEAD_BYTES, Outbox, Pager, Waiting, size_of_state
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.spread.streams import Ledger


def full() -> Outbox:
    """A queue of four that has been given up."""
    outbox = Outbox(1, 1, 0, MapSettings(outbox_items_max=4))
    for number in range(5):
        outbox.add(State(number, f"o{number}", b"x"))
    return outbox


def told(outbox: Outbox) -> list[Waiting]:
    batch = outbox.poll(0, None, 9, lambda state: state, lambda *_: ([], True))
    assert isinstance(batch, Batch)
    assert outbox.receipt(batch.number)
    return list(parcel_of(batch.payload).items)


def test_who_is_too_slow_is_told_only_that() -> None:
    outbox = full()
    assert not outbox.add(State(6, "o6", b"x"))
    (item,) = told(outbox)
    assert isinstance(item, Dropped)
    assert outbox.idle


def test_who_was_too_slow_still_hears_of_what_concerns_no_subscription() -> None:
    outbox = full()
    told(outbox)
    assert outbox.add(Superseded("mine", 7))
    assert outbox.add(Refused("subscribe", "s", "no filter"))
    assert told(outbox) == [Superseded("mine", 7), Refused("subscribe", "s", "no filter")]
    for number in range(4):
        assert outbox.add(Superseded(f"mine/{number}", 8))
    assert not outbox.add(Superseded("one too many", 8))
    assert len(told(outbox)) == 4


def announced(version: int, *bands: tuple[str, int]) -> Announce:
    return Announce(5, 1, version, tuple(Band(0, channel, 1, after) for channel, after in bands))


def test_a_channel_announced_twice_is_listened_to_from_where_it_was_first_needed() -> None:
    outbox = Outbox(1, 1, 0, MapSettings())
    first = announced(1, ("c", 3))
    outbox.add(first)
    outbox.add(announced(1, ("c", 7)))
    assert told(outbox) == [first]
    outbox.add(first)
    outbox.add(Opening("s", 9, 1, (5,), ()))
    outbox.add(announced(1, ("c", 7)), "s")
    outbox.add(Closing("s", 9))
    assert told(outbox) == [Opening("s", 9, 1, (5,), ()), first, Closing("s", 9)]


def test_a_band_that_came_or_went_is_no_later_word_on_the_others() -> None:
    outbox = Outbox(1, 1, 0, MapSettings())
    versions = [announced(1, ("c", 3)), announced(2, ("b", 1), ("c", 7)), announced(3, ("c", 9))]
    for one in versions:
        outbox.add(one)
    assert told(outbox) == versions


def test_a_batch_may_be_as_large_as_its_only_item_but_never_beyond_a_limit() -> None:
    for limit, leaves in ((5_000, True), (500, False)):
        outbox = Outbox(1, 1, 0, MapSettings(batch_bytes_max=100, outbox_items_max=4))
        outbox.add(State(1, "o", b"x" * 600))
        ledger = Ledger(limit, 96)
        batch = outbox.poll(0, ledger, 9, lambda state: state, lambda *_: ([], True))
        assert (batch is not None) is leaves


def test_what_another_may_have_sent_counts_until_it_says_so() -> None:
    second = 1_000_000
    ledger = Ledger(800, 0)
    ledger.charge(0, 300)
    ledger.assume_full(10)
    assert (ledger.room(10, control=True), ledger.spent_bytes) == (0, 800)
    assert ledger.freed_at() == second + 1
    ledger.adopt(500_000, ((200_000, 100),))
    assert ledger.spent_bytes == 400, "its own bytes still count"
    assert (ledger.room(second + 1), ledger.freed_at()) == (600, 300_000 + second + 1)
    silent = Ledger(800, 0)
    silent.assume_full(10)
    assert (silent.freed_at(), silent.room(10)) == (10 + second + 1, -100)
    assert silent.room(10 + second + 1) == 700, "whoever says nothing for a second sent nothing"


def test_a_batch_says_how_many_states_still_wait() -> None:
    outbox = Outbox(1, 1, 0, MapSettings(outbox_items_max=4))
    outbox.add(Superseded("mine", 7))
    for _ in range(2):  # of the second, everything was given up
        batch = outbox.poll(0, None, 9, lambda state: state, lambda *_: ([], True))
        assert isinstance(batch, Batch)
        assert parcel_of(batch.payload).pending == (0,)
        outbox.receipt(batch.number)
        for number in range(5):
            outbox.add(State(number, f"o{number}", b"x"))


def test_an_item_as_large_as_the_room_leaves_and_a_larger_one_waits() -> None:
    state = State(1, "o", b"x" * 100)
    exact = _HEAD_BYTES + size_of_state(state)
    for spare, leaves in ((0, True), (-1, False)):
        outbox = Outbox(1, 1, 0, MapSettings())
        outbox.add(state)
        room = Ledger(exact * 8 // 7 + 1, 0)
        room.charge(0, room.room(0) - exact - spare)
        batch = outbox.poll(0, room, 9, lambda state: state, lambda *_: ([], True))
        assert (batch is not None) is leaves


def test_a_current_set_waits_for_its_opening() -> None:
    outbox = Outbox(1, 1, 0, MapSettings(batch_bytes_max=1_000))
    outbox.add(State(1, "o", b"x" * 900))
    outbox.add(Opening("s", 1, 1, (), ()))
    outbox.list_later(Pager("s", 1, (), complete=True))
    for expected in (["State"], ["Opening", "State", "Closing"]):
        batch = outbox.poll(
            0, None, 9, lambda state: state, lambda *_: ([State(1, "p", b"x")], True)
        )
        assert isinstance(batch, Batch)
        assert [type(item).__name__ for item in parcel_of(batch.payload).items] == expected
        outbox.receipt(batch.number)


def test_nothing_leaves_until_the_receipt_or_its_time() -> None:
    settings = MapSettings()
    outbox = Outbox(1, 1, 0, settings)
    assert outbox.waits(0)
    outbox.add(State(1, "o", b"x"))
    assert not outbox.waits(0)
    batch = outbox.poll(0, None, 9, lambda state: state, lambda *_: ([], True))
    assert batch is not None
    assert outbox.due == settings.repeat_us
    assert [outbox.waits(now) for now in (settings.repeat_us - 1, settings.repeat_us)] == [
        True,
        False,
    ]
    outbox.add(State(2, "p", b"x"))
    outbox.receipt(batch.number)
    assert not outbox.waits(0), "what came meanwhile may leave"
