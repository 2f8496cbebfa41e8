"""The queue of one client, at its bound."""

from roamcast.channels.map_messages import Batch, Dropped, Refused, State, Superseded, parcel_of
from roamcast.channels.map_settings import MapSettings
from roamcast.channels.outbox import Outbox, Waiting


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
    assert outbox.add(Refused("s", "no filter"))
    assert told(outbox) == [Superseded("mine", 7), Refused("s", "no filter")]
    for number in range(4):
        assert outbox.add(Superseded(f"mine/{number}", 8))
    assert not outbox.add(Superseded("one too many", 8))
    assert len(told(outbox)) == 4
