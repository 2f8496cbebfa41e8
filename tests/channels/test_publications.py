"""Objects that the service keeps, when the disk takes its time: nothing is lost, nothing stays."""

from typing import Any

import msgspec
import pytest

from roamcast.broker import Acknowledged, Failed, PublishFor, UnpublishFor
from roamcast.channels.server.contexts import ActiveMap
from roamcast.channels.sessions.publications import PREFIX, PublicationSettings, StoredPublication
from roamcast.errors import LimitError, StoreError
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect, Store, Stored, StoreFailed
from tests.strategies_hub import Desk

SECOND = 1_000_000
GRACE = PublicationSettings().session_grace_us


def published(desk: Desk) -> list[str]:
    """Name what is on disk and would be on the map after a restart; claims would not."""
    decode = msgspec.msgpack.Decoder(StoredPublication).decode
    return [key for key, value in desk.load(PREFIX).items() if decode(value).body]


class SlowDisk(Desk):
    """A broker whose disk takes what it is given only when it is told to, in order."""

    def __init__(self) -> None:
        self.queue: list[Store] = []
        super().__init__()

    def carry(self, effects: Any) -> None:
        rest: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Store):
                self.queue.append(effect)
            else:
                rest.append(effect)
        super().carry(rest)

    def sync(self) -> None:
        """Let everything that waits reach the disk, one batch after the other (0430)."""
        while self.queue:
            super().carry([self.queue.pop(0)])

    def ask(self, vid: str, *, session: str = "", lifetime_us: int | None = None) -> int:
        self.tickets += 1
        context = Context(vid, "hq/1", None, {"ticket": self.tickets}, self.now)
        self.give(PublishFor(self.tickets, "ann", context, session, lifetime_us))
        return self.tickets

    def shown(self) -> list[str]:
        return sorted(self.broker._server.map.contexts)


@pytest.mark.parametrize("writes", [1, 2])
def test_a_renewal_on_its_way_to_the_disk_is_not_undone_by_the_end_of_the_old_lifetime(
    writes: int,
) -> None:
    desk = SlowDisk()
    desk.ask("x", lifetime_us=SECOND)
    desk.sync()
    desk.run(SECOND - 1_000)
    renewals = [desk.ask("x", lifetime_us=10 * SECOND) for _ in range(writes)]
    desk.run(2 * SECOND)
    assert desk.shown() == ["x"]
    desk.sync()
    assert all(isinstance(desk.answers[one], Acknowledged) for one in renewals)
    assert [key for key in desk.disk if key.startswith(PREFIX)] == [PREFIX + "x"]
    desk.run(2 * SECOND)
    assert desk.shown() == ["x"]
    desk.run(10 * SECOND)
    desk.sync()
    assert (desk.shown(), published(desk)) == ([], [])


def test_what_could_not_be_renewed_goes_when_its_time_is_over() -> None:
    desk = SlowDisk()
    desk.ask("x", lifetime_us=SECOND)
    desk.sync()
    desk.run(SECOND - 1_000)
    renewal = desk.ask("x", lifetime_us=10 * SECOND)
    desk.run(SECOND)
    (write,) = desk.queue
    desk.queue = []
    desk.give(StoreFailed(write.token, "full"))
    failed = desk.answers[renewal]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, StoreError)
    desk.run(SECOND)
    desk.sync()
    assert (desk.shown(), published(desk)) == ([], [])


@pytest.mark.parametrize("when", ["before the write", "while it waits", "afterwards"])
def test_what_belongs_to_a_session_leaves_a_while_after_it_whenever_that_ended(when: str) -> None:
    desk = SlowDisk()
    desk.open("s")
    if when == "before the write":
        desk.close("s")
    desk.ask("x", session="s")
    if when == "while it waits":
        desk.close("s")
    desk.sync()
    if when == "afterwards":
        desk.run(10 * GRACE)
        desk.close("s")
    desk.run(GRACE - 1)
    assert desk.shown() == ["x"]
    desk.run(1)
    desk.sync()
    assert (desk.shown(), published(desk)) == ([], [])


def test_what_belongs_to_a_session_stays_if_that_comes_back_while_a_write_waits() -> None:
    desk = SlowDisk()
    desk.open("s")
    desk.ask("x", session="s")
    desk.close("s")
    desk.open("s")
    desk.sync()
    desk.run(10 * GRACE)
    assert desk.shown() == ["x"]


def test_on_a_full_map_is_refused_what_is_not_on_disk_yet_and_room_is_held_for_what_is() -> None:
    desk = SlowDisk()
    desk.broker._server.map._contexts_max = 2
    first, second, third = (desk.ask(vid) for vid in "abc")
    failed = desk.answers[third]
    assert isinstance(failed, Failed)
    assert "at most 2 contexts" in str(failed.error)
    desk.sync()
    assert {type(desk.answers[one]) for one in (first, second)} == {Acknowledged}
    assert desk.shown() == ["a", "b"]
    again = desk.ask("a")  # what is there may change
    desk.give(UnpublishFor(0, "ann", "a"))
    desk.sync()
    assert isinstance(desk.answers[again], Acknowledged)
    assert desk.shown() == ["b"]
    desk.ask("d")
    desk.give(StoreFailed(desk.queue.pop().token, "full"))
    last = desk.ask("e")
    desk.sync()
    assert isinstance(desk.answers[last], Acknowledged)
    assert desk.shown() == ["b", "e"]
    assert not desk.broker._publications._pending
    assert not desk.broker._publications._writing


def test_a_map_holds_room_for_what_was_promised_it_though_others_come_and_go() -> None:
    room = ActiveMap(3)
    for vid in "ab":
        room.put(Context(vid, "hq"), b"", 1, "ann")
    for vid in "bbc":
        room.reserve(vid)
    with pytest.raises(LimitError):
        room.put(Context("d", "hq"), b"", 1, "ann")
    room.remove("b")  # it is promised still
    with pytest.raises(LimitError):
        room.reserve("d")
    for vid in "bc":
        assert room.put(Context(vid, "hq"), b"", 2, "ann") is not None
    room.release("b")
    room.release("c")
    with pytest.raises(LimitError):
        room.put(Context("d", "hq"), b"", 1, "ann")
    room.remove("c")
    room.reserve("d")
    room.release("d")
    assert room.put(Context("e", "hq"), b"", 1, "ann") is not None
    assert sorted(room.contexts) == ["a", "b", "e"]


def test_an_answer_of_the_disk_that_nobody_asked_for_is_our_own_mistake() -> None:
    desk = SlowDisk()
    for answer in (Stored(99), StoreFailed(99, "full")):
        with pytest.raises(AssertionError, match="nobody asked the disk"):
            desk.give(answer)
    assert desk.answers == {}


def test_a_vid_stays_with_who_took_its_object_off_and_an_operator_frees_it() -> None:
    desk = Desk()
    for number, any_owner in enumerate((False, True)):
        vid = f"p{number}"
        desk.keep(vid, "hq/1")
        owner = "operator" if any_owner else "ann"
        desk.give(UnpublishFor(1_000 + number, owner, vid, any_owner))
        desk.boot()  # what is on disk counts
        assert isinstance(desk.keep(vid, "hq/1", "bob"), Acknowledged) == any_owner
