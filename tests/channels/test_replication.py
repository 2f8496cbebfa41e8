"""Replication: answered when every follower that counts has it, whatever is lost or doubled."""

from typing import Any

import pytest

from roamcast.channels.failover.epochs import epoch_at
from roamcast.channels.failover.following import MESSAGES_MAX, Following, FollowingSettings
from roamcast.channels.failover.replica_messages import (
    ENTRIES_MAX,
    PAGE_BYTES_MAX,
    Follow,
    FollowerAck,
    OfferTaken,
    StoreChanges,
    StoreOffer,
    StorePage,
    pages,
)
from roamcast.channels.failover.replication import (
    BATCH_BYTES,
    BATCH_WRITES,
    STEPPING_DOWN,
    DropReplica,
    ReplicaGone,
    Replication,
    ReplicationSettings,
    ServerState,
)
from roamcast.channels.server.messages import ServerHere
from roamcast.model.addresses import Replica, Watchdog
from roamcast.model.machine import (
    VALUE_BYTES_MAX,
    Entry,
    Merge,
    Merged,
    PageRead,
    ReadPage,
    Received,
    Send,
    Store,
    Stored,
    StoreFailed,
)
from roamcast.model.parts import Adopt, Forward, StoreAnswer, StoreRequest
from roamcast.sim.storage import Disk

SEATS = ("a", "b", "c")
NOW = 1_000_000
EPOCH = epoch_at(NOW, 0, 0)
NEWER = epoch_at(NOW + 1, 1, 0)


class Scene:
    """A server's replication on a disk that answers at once, and what it sent."""

    def __init__(self, settings: ReplicationSettings | None = None, *, slow: bool = False) -> None:
        self.settings = settings or ReplicationSettings(
            follow_us=500, copy_us=2_000, repeat_us=100, hand_over_us=1_000, behind_max=5
        )
        self.machine = Replication(
            "a", epoch=EPOCH, replicas=SEATS, stamp=7, settings=self.settings
        )
        self.disk = Disk()
        self.slow = slow
        self.waiting: list[Store] = []
        self.now = NOW
        self.sent: list[Send] = []
        self.answers: list[StoreAnswer] = []
        self.others: list[Any] = []

    def give(self, given: Any) -> None:
        self.carry(self.machine.receive(given, self.now))

    def carry(self, effects: Any) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.sent.append(effect)
                case StoreAnswer():
                    self.answers.append(effect)
                case Store() if self.slow:
                    self.waiting.append(effect)
                case Store(token, writes, stamp):
                    self.disk.append(writes, stamp)
                    self.give(Stored(token))
                case Merge(token, entries):
                    self.give(Merged(token, self.disk.merge(entries)[1]))
                case ReadPage(token, after, until, bytes_max):
                    self.give(PageRead(token, self.disk.page(after, until, bytes_max)))
                case _:
                    self.others.append(effect)

    def write(self, key: str, value: bytes | None = b"v", token: int = 1) -> None:
        self.give(StoreRequest("part", Store(token, ((key, value),))))

    def run(self, microseconds: int) -> None:
        end = self.now + microseconds
        while (due := self.machine.deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.carry(self.machine.advance(self.now))
        self.now = end

    def last(self, kind: type) -> Any:
        return [send.message for send in self.sent if isinstance(send.message, kind)][-1]

    def ack(self, host: str = "b") -> None:
        """Confirm the newest message to a follower."""
        newest = [
            send.message
            for send in self.sent
            if send.to == Watchdog(host) and isinstance(send.message, StorePage | StoreChanges)
        ][-1]
        self.give(Received(host, FollowerAck(EPOCH, newest.number)))

    def follow(self, host: str = "b") -> None:
        """Let a host follow until it is current."""
        before = self.machine.current
        self.give(Received(host, Follow(EPOCH)))
        while self.machine.current == before:
            self.ack(host)


def test_alone_a_write_is_answered_when_it_is_on_the_own_disk() -> None:
    scene = Scene(slow=True)
    scene.write("k")
    assert not scene.answers
    scene.give(Stored(scene.waiting[0].token))
    assert scene.answers == [StoreAnswer("part", Stored(1))]
    assert scene.waiting[0].stamp == NOW


def test_stamps_are_later_than_every_stamp_seen() -> None:
    scene = Scene()
    scene.machine._stamp = NOW + 500
    scene.write("k")
    scene.write("k")
    assert scene.disk.entries["k"].stamp == NOW + 502


def test_a_write_waits_for_the_follower_that_is_current() -> None:
    scene = Scene()
    scene.follow()
    scene.write("k")
    assert not scene.answers
    assert scene.last(StoreChanges).entries[0].key == "k"
    scene.ack()
    assert scene.answers == [StoreAnswer("part", Stored(1))]


def test_a_host_that_still_copies_is_not_waited_for() -> None:
    scene = Scene()
    scene.write("k")
    scene.give(Received("b", Follow(EPOCH)))
    scene.write("l", token=2)
    assert len(scene.answers) == 2
    assert scene.machine.current == 0


def test_a_follower_is_current_only_when_what_was_written_meanwhile_is_on_its_disk() -> None:
    scene = Scene()
    scene.give(Received("b", Follow(EPOCH)))  # its first page is empty: the end of the copy
    scene.write("k")
    assert not scene.answers  # from the end of the copy on it is waited for
    scene.ack()
    assert scene.machine.current == 1
    assert not scene.answers
    scene.ack()
    assert scene.answers == [StoreAnswer("part", Stored(1))]


def test_writes_are_answered_in_their_order_whoever_has_them_first() -> None:
    scene = Scene()
    scene.follow("b")
    scene.follow("c")
    scene.write("k", token=1)
    scene.ack("c")
    scene.write("l", token=2)
    scene.ack("c")
    assert not scene.answers
    scene.ack("b")
    assert [one.answer.token for one in scene.answers] == [1]
    scene.ack("b")
    assert [one.answer.token for one in scene.answers] == [1]
    scene.ack("c")
    assert [one.answer.token for one in scene.answers] == [1, 2]


def test_what_is_written_while_a_batch_is_on_its_way_is_the_next_batch() -> None:
    scene = Scene(slow=True)
    scene.write("k", b"1", token=1)
    for token, key in enumerate(("k", "l", "k"), start=2):
        scene.write(key, bytes([token]), token=token)
    assert len(scene.waiting) == 1
    scene.give(Stored(scene.waiting[0].token))
    assert scene.answers == [StoreAnswer("part", Stored(1))]
    assert scene.waiting[1].writes == (("k", b"\x04"), ("l", b"\x03"))  # the latest of each key
    scene.give(Stored(scene.waiting[1].token))
    assert [one.answer.token for one in scene.answers] == [1, 2, 3, 4]


def test_a_batch_that_the_disk_refuses_is_refused_to_all_and_the_next_is_tried() -> None:
    scene = Scene(slow=True)
    for token in (1, 2, 3):
        scene.write(f"k{token}", token=token)
    scene.give(Stored(scene.waiting[0].token))
    scene.write("k4", token=4)
    scene.give(StoreFailed(scene.waiting[1].token, "full"))
    refused = [StoreAnswer("part", StoreFailed(token, "full")) for token in (2, 3)]
    assert scene.answers[1:] == refused
    scene.give(Stored(scene.waiting[2].token))
    assert scene.answers[-1] == StoreAnswer("part", Stored(4))


def test_a_batch_is_bounded() -> None:
    scene = Scene(slow=True)
    most = BATCH_BYTES // VALUE_BYTES_MAX
    for token in range(1, most + 3):  # the first goes at once, alone
        scene.write(f"k{token}", b"v" * VALUE_BYTES_MAX, token=token)
    for number in range(3):
        scene.give(Stored(scene.waiting[number].token))
    assert [len(effect.writes) for effect in scene.waiting] == [1, most, 1]


def test_few_writes_are_answered_at_once_however_many_wait() -> None:
    scene = Scene(slow=True)
    for token in range(1, 2 * BATCH_WRITES + 2):
        scene.write(f"k{token}", token=token)
    for number in range(3):
        before = len(scene.answers)
        scene.give(Stored(scene.waiting[number].token))
        assert len(scene.answers) - before <= BATCH_WRITES
    assert len(scene.answers) == 2 * BATCH_WRITES + 1


def test_what_is_not_confirmed_is_sent_again_and_then_the_follower_is_dropped() -> None:
    scene = Scene()
    scene.follow()
    scene.write("k")
    before = len(scene.sent)
    scene.run(250)
    assert [send.message for send in scene.sent[before:]] == [scene.last(StoreChanges)] * 2
    scene.run(300)
    assert scene.machine.current == 0
    assert any(isinstance(one, DropReplica) for one in scene.others)
    assert scene.answers == [StoreAnswer("part", Stored(1))]


def test_a_late_confirmation_of_a_dropped_follower_fits_nothing_else() -> None:
    scene = Scene()
    scene.follow()
    scene.write("k")
    old = scene.last(StoreChanges).number
    scene.give(ReplicaGone(Watchdog("b")))
    scene.follow()
    scene.write("l", token=2)
    scene.give(Received("b", FollowerAck(EPOCH, old)))
    assert [one.answer.token for one in scene.answers] == [1]
    scene.give(Received("b", FollowerAck(EPOCH + 1, scene.last(StoreChanges).number)))
    assert len(scene.answers) == 1


def test_what_waits_for_a_follower_has_one_entry_for_each_key_and_a_bound() -> None:
    scene = Scene()
    scene.write("first")
    scene.give(Received("b", Follow(EPOCH)))  # it copies: it is not waited for
    for number in range(20):
        scene.write("k", bytes([number]), token=number + 1)
    assert scene.machine.behind == 1
    scene.ack()
    assert scene.last(StoreChanges).entries[0].value == bytes([19])
    for number in range(scene.settings.behind_max):
        scene.write(f"k{number}")
    assert not scene.others
    scene.write("one more")
    assert any(isinstance(one, DropReplica) for one in scene.others)
    assert len(scene.answers) == 1 + 20 + scene.settings.behind_max + 1


def test_a_value_at_the_limit_is_stored_and_a_larger_one_refused() -> None:
    scene = Scene()
    scene.write("k", b"v" * VALUE_BYTES_MAX)
    assert scene.answers == [StoreAnswer("part", Stored(1))]
    scene.write("l", b"v" * (VALUE_BYTES_MAX + 1), token=2)
    refusal = scene.answers[-1].answer
    assert isinstance(refusal, StoreFailed)
    assert "exceeds the limit" in refusal.reason
    assert "l" not in scene.disk.entries


def test_writes_that_wait_are_bounded() -> None:
    scene = Scene(ReplicationSettings(requests_max=2), slow=True)
    for token in (1, 2, 3):
        scene.write("k", token=token)
    assert [type(one.answer) for one in scene.answers] == [StoreFailed]


def test_what_a_follower_has_newer_comes_into_force_and_goes_to_the_others() -> None:
    scene = Scene()
    scene.write("k", b"ours")
    scene.follow("c")
    newer = Entry("k", b"theirs", NOW + 10)
    scene.give(Received("b", StoreOffer(3, (newer, Entry("old", b"x", 1)))))
    assert scene.disk.entries["k"] == newer
    assert [one for one in scene.others if isinstance(one, Adopt)] == [
        Adopt((newer, Entry("old", b"x", 1)))
    ]
    assert scene.sent[-1] == Send(Watchdog("b"), OfferTaken(3))
    assert newer in scene.last(StoreChanges).entries
    scene.write("k", b"later")
    assert scene.disk.entries["k"].stamp > newer.stamp


def test_strangers_are_not_followed() -> None:
    scene = Scene()
    for host in ("mallory", "a"):
        scene.give(Received(host, Follow(EPOCH)))
    scene.give(Received("b", Follow(EPOCH - 1)))
    assert not scene.sent


def hand_over(scene: Scene) -> None:
    scene.give(Received("b", ServerHere(NEWER, 0)))


def test_a_newer_server_gets_the_whole_store_before_the_map_is_handed_over() -> None:
    scene = Scene()
    for number in range(3):
        scene.write(f"k{number}", token=number + 1)
    hand_over(scene)
    assert scene.machine.state is ServerState.OFFERING
    offer = scene.sent[-1]
    assert offer.to == Replica("b")
    assert [entry.key for entry in offer.message.entries] == ["k0", "k1", "k2"]  # type: ignore[attr-defined]
    scene.write("late", token=9)
    assert scene.answers[-1] == StoreAnswer("part", StoreFailed(9, STEPPING_DOWN))
    assert not any(isinstance(one, Forward) for one in scene.others)
    scene.give(Received("b", OfferTaken(offer.message.number)))  # type: ignore[attr-defined]
    assert scene.machine.state is ServerState.HANDED
    assert Forward(Received("b", ServerHere(NEWER, 0))) in scene.others


def test_a_late_answer_to_an_offer_that_was_given_up_is_none_to_the_next() -> None:
    scene = Scene()
    scene.write("k", token=1)
    hand_over(scene)
    given_up = scene.sent[-1].message
    scene.give(ReplicaGone(Replica("b")))
    assert scene.machine.state is ServerState.SERVING
    scene.write("written since", token=2)
    scene.now += 1
    hand_over(scene)
    scene.give(Received("b", OfferTaken(given_up.number)))  # type: ignore[attr-defined]
    assert scene.machine.state is ServerState.OFFERING
    scene.give(Received("b", OfferTaken(scene.sent[-1].message.number)))  # type: ignore[attr-defined]
    assert scene.machine.state is ServerState.HANDED


def test_a_hand_over_waits_for_writes_on_their_way() -> None:
    scene = Scene(slow=True)
    scene.write("k")
    hand_over(scene)
    assert scene.machine.state is ServerState.DRAINING
    assert not scene.sent
    effect = scene.waiting[0]
    scene.disk.append(effect.writes, effect.stamp)
    scene.give(Stored(effect.token))
    assert scene.answers == [StoreAnswer("part", Stored(1))]
    assert [entry.key for entry in scene.last(StoreOffer).entries] == ["k"]


def test_a_newer_server_that_is_gone_is_not_waited_for() -> None:
    for gone in ("told", "silent"):
        scene = Scene()
        scene.write("k")
        hand_over(scene)
        if gone == "told":
            scene.give(ReplicaGone(Replica("b")))
        else:
            scene.run(1_200)
            assert len([one for one in scene.sent if isinstance(one.message, StoreOffer)]) > 5
        assert scene.machine.state is ServerState.SERVING
        scene.write("l", token=2)
        assert scene.answers[-1] == StoreAnswer("part", Stored(2))


def test_an_epoch_that_is_not_newer_or_not_its_own_ends_no_server() -> None:
    scene = Scene()
    for host, epoch in (("b", EPOCH), ("c", NEWER), ("mallory", NEWER)):
        scene.give(Received(host, ServerHere(epoch, 0)))
    assert scene.machine.state is ServerState.SERVING


def test_entries_are_parted_into_messages_within_their_bounds() -> None:
    large = [Entry(f"k{number}", b"v" * (PAGE_BYTES_MAX // 3), 1) for number in range(7)]
    assert [len(page) for page in pages(large)] == [2, 2, 2, 1]
    small = [Entry(f"k{number}", None, 1) for number in range(ENTRIES_MAX + 1)]
    assert sum(map(len, pages(small))) == ENTRIES_MAX + 1
    assert max(map(len, pages(small))) <= ENTRIES_MAX


class Standby:
    """A host that stands by, on a disk that answers at once unless it fails."""

    def __init__(self) -> None:
        self.machine = Following(
            "b", replicas=SEATS, settings=FollowingSettings(beat_us=100, repeat_us=50)
        )
        self.disk = Disk()
        self.fails = False
        self.now = NOW
        self.sent: list[Send] = []

    def give(self, given: Any) -> None:
        self.carry(self.machine.receive(given, self.now))

    def carry(self, effects: Any) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.sent.append(effect)
                case Merge(token, _) if self.fails:
                    self.give(StoreFailed(token, "full"))
                case Merge(token, entries):
                    self.give(Merged(token, self.disk.merge(entries)[1]))
                case ReadPage(token, after, until, bytes_max):
                    self.give(PageRead(token, self.disk.page(after, until, bytes_max)))

    def here(self, host: str = "a", epoch: int = EPOCH) -> None:
        self.give(Received(host, ServerHere(epoch, 0)))

    def messages(self) -> list[Any]:
        return [send.message for send in self.sent]


def test_a_standby_asks_the_newest_server_and_repeats_it_as_a_beat() -> None:
    standby = Standby()
    standby.here()
    assert standby.sent == [Send(Replica("a"), Follow(EPOCH))]
    standby.here()  # known
    standby.here("c", NEWER)  # not of its seat
    assert len(standby.sent) == 1
    standby.now += 100
    standby.carry(standby.machine.advance(standby.now))
    assert standby.messages() == [Follow(EPOCH)] * 2
    newest = epoch_at(NOW + 5, 2, 0)
    standby.here("c", newest)
    assert standby.sent[-1] == Send(Replica("c"), Follow(newest))


def test_a_standby_confirms_what_is_on_its_disk_and_nothing_else() -> None:
    standby = Standby()
    standby.here()
    standby.fails = True
    changes = StoreChanges(EPOCH, 4, (Entry("k", b"v", 1),))
    standby.give(Received("a", changes))
    assert standby.messages() == [Follow(EPOCH)]
    standby.fails = False
    standby.give(Received("a", changes))  # the server repeats it
    assert standby.messages()[-1] == FollowerAck(EPOCH, 4)
    assert standby.disk.entries["k"].value == b"v"
    standby.give(Received("c", changes))
    standby.give(Received("a", StoreChanges(EPOCH - 1, 5, ())))
    assert len(standby.sent) == 2


def test_a_standby_offers_what_the_server_lacks_before_it_confirms_the_page() -> None:
    standby = Standby()
    standby.disk.merge((Entry("k1", b"mine", 9), Entry("k2", b"old", 1), Entry("z", b"x", 1)))
    standby.here()
    page = StorePage(EPOCH, 1, "", "k2", (Entry("k2", b"new", 5),))
    standby.give(Received("a", page))
    offer = standby.messages()[-1]
    assert offer == StoreOffer(offer.number, (Entry("k1", b"mine", 9),))
    standby.now += 50
    standby.carry(standby.machine.advance(standby.now))
    assert standby.messages()[-1] == offer  # it may have been lost
    standby.give(Received("a", OfferTaken(offer.number)))
    assert standby.messages()[-1] == FollowerAck(EPOCH, 1)
    standby.give(Received("a", StorePage(EPOCH, 2, "k2", "", ())))  # to the end of the store
    following = standby.messages()[-1]
    assert following == StoreOffer(following.number, (Entry("z", b"x", 1),))
    assert following.number > offer.number


def test_a_standby_that_stops_owes_nothing() -> None:
    standby = Standby()
    standby.here()
    standby.machine.stop()
    standby.give(Received("a", StoreChanges(EPOCH, 1, (Entry("k", b"v", 1),))))
    assert standby.machine.deadline() is None
    assert not standby.disk.entries
    standby.here()
    assert standby.messages() == [Follow(EPOCH)] * 2
    standby.give(ReplicaGone(Replica("a")))
    standby.here()
    assert standby.messages() == [Follow(EPOCH)] * 3


@pytest.mark.parametrize("times", [1, 3])
def test_doubled_messages_change_nothing(times: int) -> None:
    scene, standby = Scene(), Standby()
    standby.here()
    carried = 0
    scene.give(Received("b", Follow(EPOCH)))
    for number in range(3):
        scene.write(f"k{number}", token=number + 1)
    while carried < len(scene.sent):
        message = scene.sent[carried].message
        carried += 1
        before = len(standby.sent)
        for _ in range(times):
            standby.give(Received("a", message))
        for send in standby.sent[before:]:
            for _ in range(times):
                scene.give(Received("b", send.message))
    assert standby.disk.entries == scene.disk.entries
    assert [one.answer.token for one in scene.answers] == [1, 2, 3]
    assert scene.machine.current == 1


def test_messages_that_wait_for_a_standbys_disk_are_bounded() -> None:
    machine = Following("b", replicas=SEATS)
    machine.receive(Received("a", ServerHere(EPOCH, 0)), NOW)
    for number in range(MESSAGES_MAX + 3):  # the first is being written, and the disk is silent
        changes = StoreChanges(EPOCH, number, (Entry("k", b"v", number),))
        machine.receive(Received("a", changes), NOW)
    assert machine.occupancy()["messages"] == (MESSAGES_MAX, MESSAGES_MAX)


def test_a_message_that_waits_already_is_not_taken_again() -> None:
    machine = Following("b", replicas=SEATS)
    machine.receive(Received("a", ServerHere(EPOCH, 0)), NOW)
    for number in (1, 2, 2):  # the first is being written
        changes = StoreChanges(EPOCH, number, (Entry("k", b"v", number),))
        machine.receive(Received("a", changes), NOW)
    assert machine.occupancy()["messages"][0] == 1


def test_a_disk_that_refuses_after_a_standby_has_stopped_changes_nothing() -> None:
    machine = Following("b", replicas=SEATS)
    machine.receive(Received("a", ServerHere(EPOCH, 0)), NOW)
    changes = StoreChanges(EPOCH, 1, (Entry("k", b"v", 1),))
    (merge,) = machine.receive(Received("a", changes), NOW)
    assert isinstance(merge, Merge)
    machine.stop()
    assert machine.receive(StoreFailed(merge.token, "full"), NOW) == []
