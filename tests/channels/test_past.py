"""The past of a broker: steps, pieces, runs, and what is found after any sequence of events."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roamcast.broker import Broker, PublishFor, SetRules, UnpublishFor
from roamcast.channels.past import part
from roamcast.channels.past.asking import EVER, Asked, coalesced, found, runs
from roamcast.channels.past.leaving import ended as find_ended
from roamcast.channels.past.messages import (
    BatchLanded,
    BatchRefused,
    EndedFound,
    FeedArchive,
    Leaving,
    LookForEnded,
)
from roamcast.channels.past.part import (
    STEPS,
    Lives,
    Past,
    Step,
    Uptime,
    encode_step,
    key_of,
    vid_of,
    written_of,
)
from roamcast.channels.past.pieces import read
from roamcast.channels.past.settings import BATCH_PIECES_MAX, RETURN_US, PastSettings
from roamcast.channels.server.messages import (
    Answer,
    Hello,
    Publish,
    Request,
    Settled,
    Unpublish,
)
from roamcast.channels.server.settings import MapSettings
from roamcast.errors import LimitError
from roamcast.identity.rules import Rule, Viewer
from roamcast.model.contexts import Context, body_of
from roamcast.model.events import Acknowledged, Failed, RulesChanged
from roamcast.model.filters import Filter
from roamcast.model.machine import Received, Send, Store, Stored, StoreFailed
from roamcast.sim.step_log import SimStepLog
from roamcast.sim.workloads._map_parts import ScanMatcher

SECOND = 1_000_000
START = 1_000 * SECOND
ANN = Viewer("ann")
ALL = Filter.parse("TRUE")


class World:
    """One broker on a disk that syncs when it is told to, crashes included."""

    def __init__(self, **past: Any) -> None:
        self.disk: dict[str, bytes] = {}
        self.now = START
        self.epoch = 0
        self.past = PastSettings(**past)
        self.stamp = self.now
        self.waiting: list[Store] = []
        self.answered: list[Any] = []
        self.asked: list[Any] = []
        self.start()

    def start(self) -> None:
        self.epoch += 1
        self.waiting = []
        self.broker = Broker(
            "b",
            epoch=self.epoch,
            now=self.now,
            load=lambda prefix: {
                key: value for key, value in sorted(self.disk.items()) if key.startswith(prefix)
            },
            stamp=self.stamp,
            map_settings=MapSettings(client_timeout_us=5 * SECOND, server_here_us=SECOND),
            past_settings=self.past,
            make_matcher=ScanMatcher,
        )
        self._do(self.broker.advance(self.now))

    def _do(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, Store):
                self.waiting.append(effect)
            elif isinstance(effect, Acknowledged | Failed):
                self.answered.append(effect)
            elif isinstance(effect, Send) and isinstance(effect.message, Answer):
                self.answered.append(effect.message)
            elif isinstance(effect, FeedArchive | LookForEnded):
                self.asked.append(effect)

    def give(self, given: Any) -> None:
        self._do(self.broker.receive(given, self.now))

    def sync(self, *, fail: bool = False) -> None:
        """Let the disk answer everything, and what follows from it."""
        while self.waiting:
            store = self.waiting.pop(0)
            if fail:
                self.give(StoreFailed(store.token, "full"))
                continue
            self.stamp = max(self.stamp, store.stamp)
            for key, value in store.writes:
                if value is None:
                    self.disk.pop(key, None)
                else:
                    self.disk[key] = value
            self.give(Stored(store.token))

    def run(self, seconds: float) -> None:
        until = self.now + int(seconds * SECOND)
        while (due := self.broker.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self._do(self.broker.advance(self.now))
            self.sync()
        self.now = until

    def find(
        self, wanted: Filter = ALL, window: tuple[int, int] = EVER, viewer: Viewer = ANN
    ) -> dict[str, Context]:
        memory = self.broker.remembers(viewer, self.now)
        return found(
            Asked(wanted, window),
            memory.seen,
            waiting=memory.waiting,
            log=SimStepLog().of(dict(self.log())),
            archive=list,
            known=memory.known,
            whole=memory.whole,
        )

    def log(self) -> list[tuple[str, bytes]]:
        return [(key, value) for key, value in sorted(self.disk.items()) if key.startswith(STEPS)]

    def at(self, moment: int, viewer: Viewer = ANN) -> dict[str, str | None]:
        window = (moment, moment)
        return {vid: one.place for vid, one in self.find(ALL, window, viewer).items()}

    def publish(self, vid: str, place: str, **attributes: Any) -> None:
        context = Context(vid, place, None, attributes, self.now)
        self.give(PublishFor(1, "owner", context))

    def link(self, number: int, *operations: Any, session: int = 1) -> None:
        first = (Hello(),) if number == 1 else ()
        ops = (*first, *operations)
        self.give(Received("ann#1", Request(self.epoch, session, number, ops)))


def publishing(world: World, vid: str, place: str, t_r: int | None = None) -> Publish:
    t_r = world.now if t_r is None else t_r
    return Publish(body_of(Context(vid, place, None, {}, t_r)), t_r)


def test_what_was_there_is_found_with_its_interval_after_a_kill() -> None:
    world = World()
    began = world.now
    world.publish("p", "a/1")
    world.sync()
    world.now += 10 * SECOND
    world.publish("p", "a/2")
    world.sync()
    world.now += 10 * SECOND
    world.give(UnpublishFor(2, "owner", "p"))
    world.sync()
    world.start()
    world.now += SECOND
    assert world.at(began + 5 * SECOND) == {"p": "a/1"}
    assert world.at(began + 15 * SECOND) == {"p": "a/2"}
    assert world.at(began + 20 * SECOND + 1) == {}
    (last,) = world.find(window=(began + 11 * SECOND, world.now)).values()
    assert (last.t_r, last.t_d) == (began + 10 * SECOND, began + 20 * SECOND)


def test_steps_of_a_life_whose_clock_was_set_back_replace_no_earlier_step() -> None:
    world = World()
    for place in ("a/1", "a/2", "a/3"):  # at one moment: the last steps are ahead of the clock
        world.publish("p", place)
        world.publish("q", place)
    world.sync()
    world.now -= 20 * SECOND
    world.start()
    for place in ("b/1", "b/2", "b/3"):
        world.publish("p", place)
        world.publish("q", place)
    world.sync()
    pieces = read(world.log(), world.broker.remembers(ANN, world.now).known).pieces
    for vid in ("p", "q"):
        told = [one.context().place for one in pieces if one.vid == vid]
        assert told == ["a/1", "a/2", "a/3", "b/1", "b/2", "b/3"]


def test_the_same_state_again_is_the_same_piece_and_writes_no_step() -> None:
    world = World()
    began = world.now
    world.publish("p", "a/1", n=1)
    world.sync()
    world.now += SECOND
    world.publish("p", "a/1", n=1)
    assert [len(store.writes) for store in world.waiting] == [1]
    world.sync()
    assert world.find()["p"].t_r == began
    world.publish("p", "a/1", n=True)  # equal in Python, and another value
    assert [len(store.writes) for store in world.waiting] == [2]


def test_a_refused_write_leaves_no_trace_though_the_next_one_is_written() -> None:
    world = World()
    world.publish("p", "a/1")
    world.publish("p", "a/2")  # while the first is on its way
    (first,) = world.waiting
    world.waiting.clear()
    world.give(StoreFailed(first.token, "full"))  # the second goes now (0430)
    world.sync()
    assert [one.place for one in world.find().values()] == ["a/2"]
    assert len(read(world.log(), world.broker.remembers(ANN, world.now).known).pieces) == 1


def test_a_client_on_a_link_is_answered_when_what_it_published_is_on_disk() -> None:
    world = World()
    world.link(1, publishing(world, "p", "a/1"))
    assert not world.answered
    assert world.at(world.now) == {"p": "a/1"}  # shown at once
    world.sync(fail=True)
    world.link(1, publishing(world, "p", "a/1"))  # it asks again: not yet
    assert not world.answered
    world.run(1)
    assert [answer.number for answer in world.answered] == [2]
    world.answered.clear()
    world.link(3)  # a heartbeat waits for nothing
    assert [answer.number for answer in world.answered] == [2]
    world.now += SECOND
    world.link(3, Unpublish("p", world.now))
    assert [answer.number for answer in world.answered] == [2]
    world.sync()
    assert world.answered[-1].number == 3
    assert world.at(world.now + 1) == {}


def test_silence_ends_a_context_at_the_last_heartbeat() -> None:
    world = World()
    world.link(1, publishing(world, "p", "a/1"))
    world.run(2)
    world.link(3)
    heard = world.now
    world.run(30)
    (only,) = world.find().values()
    assert only.t_d == heard


def test_what_a_client_that_fell_does_not_publish_again_ended_at_its_last_heartbeat() -> None:
    world = World()
    world.link(1, publishing(world, "p", "a/1"), publishing(world, "q", "a/1"))
    world.run(2)
    world.link(4)
    heard = world.now
    world.run(3)  # not long enough to be noticed
    world.link(1, publishing(world, "p", "a/1"), Settled(), session=2)
    world.run(1)
    ended = {vid: one.t_d for vid, one in world.find().items()}
    assert ended == {"p": None, "q": heard}


def test_what_does_not_come_back_after_a_kill_ended_when_the_broker_was_last_up() -> None:
    world = World()
    began = world.now
    world.link(1, publishing(world, "p", "a/1"), publishing(world, "q", "a/2"))
    world.run(3.5)
    fell = world.now
    world.now += 5 * SECOND
    world.start()
    world.run(1)
    assert {vid: one.t_d for vid, one in world.find().items()} == {"p": None, "q": None}
    world.link(1, publishing(world, "p", "a/1", began))
    for number in range(int(RETURN_US / SECOND / 2) + 2):
        world.run(2)
        world.link(3 + number)
    answers = world.find()
    assert (answers["p"].t_r, answers["p"].t_d) == (began, None)
    end = answers["q"].t_d
    assert end is not None
    assert fell - SECOND <= end <= fell


def test_a_lifetime_ends_where_its_publisher_said() -> None:
    world = World()
    context = Context("p", "a/1", None, {}, world.now)
    world.give(PublishFor(1, "owner", context, "", 3 * SECOND))
    world.sync()
    began = world.now
    world.now += 3_600 * SECOND  # nobody looked for an hour
    world._do(world.broker.advance(world.now))
    world.sync(fail=True)  # not even the disk
    world.run(1)
    assert world.find()["p"].t_d == began + 3 * SECOND


def test_rules_of_then_and_of_now_both_hold() -> None:
    world = World()
    began = world.now
    staff = Viewer("bob", frozenset({"staff"}))
    world.give(SetRules(1, "owner", "p", (Rule(viewers=("staff",), precision="exact", past=True),)))
    world.sync()
    world.publish("p", "a/1")
    world.sync()
    world.now += 10 * SECOND
    everybody = (Rule(viewers=("*",), precision="exact", past=True),)
    world.give(SetRules(2, "owner", "p", everybody))
    world.sync()
    world.now += 10 * SECOND
    assert world.at(began + SECOND) == {}
    assert world.at(began + SECOND, staff) == {"p": "a/1"}
    assert world.at(world.now) == {"p": "a/1"}
    world.start()
    assert world.at(began + SECOND) == {}
    assert world.at(began + SECOND, staff) == {"p": "a/1"}
    world.give(SetRules(3, "owner", "p", (Rule(viewers=("*",), precision="hidden"),)))
    world.sync()
    assert world.at(began + SECOND, staff) == {}


def test_states_under_a_clock_that_was_set_back_have_times_of_their_own() -> None:
    world = World()
    world.publish("p", "a/1")
    world.sync()
    began, world.now = world.now, world.now - 100 * SECOND
    for number in range(3):
        viewers = ("staff",) if number % 2 == 0 else ("*",)
        world.give(SetRules(1, "owner", "p", (Rule(viewers=viewers, precision="exact"),)))
        world.sync()
    world.publish("p", "a/2")
    world.give(UnpublishFor(2, "owner", "p"))
    world.sync()
    world.publish("p", "a/2")
    world.sync()
    log = read(world.log(), world.broker.remembers(ANN, world.now).known)
    times = [(piece.begin, piece.end) for piece in log.pieces]
    ends: list[int | None] = [*range(began + 1, began + 6), None]
    assert times == list(zip(range(began, began + 6), ends, strict=True))


def test_the_present_alone_shows_nothing_of_the_past() -> None:
    world = World()
    world.give(SetRules(1, "owner", "p", (Rule(viewers=("*",), precision="exact"),)))
    world.sync()
    world.publish("p", "a/1")
    world.sync()
    world.now += 10 * SECOND
    assert world.at(world.now - SECOND) == {}
    assert world.at(world.now) == {"p": "a/1"}


def test_a_change_cuts_an_interval_and_not_a_stay() -> None:
    world = World()
    began = world.now
    for mood in ("well", "tired", "asleep"):
        world.publish("p", "a/1", mood=mood)
        world.sync()
        world.now += 600 * SECOND
    world.give(UnpublishFor(2, "owner", "p"))
    world.sync()
    low, high = began + 100 * SECOND, began + 1_700 * SECOND

    def asks(text: str) -> bool:
        return bool(world.find(Filter.parse(text.format(*map(_instant, (low, high))))))

    assert asks("place = 'a/1' AND contains(time, INTERVAL('{}', '{}'))")
    assert not asks("mood = 'tired' AND contains(time, INTERVAL('{}', '{}'))")
    assert asks("mood = 'tired' AND during(time, INTERVAL('{}', '{}'))")
    assert not asks("place = 'a/1' AND during(time, INTERVAL('{}', '{}'))")
    assert not asks("place = 'a/1' AND before(time, INTERVAL('{1}', '{1}'))")


def _instant(moment: int) -> str:
    from roamcast.model.time import format_instant

    return format_instant(moment)


def test_what_rules_hide_cuts_nothing() -> None:
    one = Context("p", "a", None, {}, 0, 5)
    assert coalesced([one, Context("p", "a", None, {}, 5, 9)]) == [
        Context("p", "a", None, {}, 0, 9)
    ]
    assert len(coalesced([one, Context("p", "a", None, {}, 6, 9)])) == 2
    assert len(coalesced([one, Context("p", "b", None, {}, 5, 9)])) == 2


def test_keys_name_their_step() -> None:
    key = key_of(12, "a/b c")
    assert (vid_of(key), written_of(key)) == ("a/b c", 12)
    assert key_of(9, "z") < key_of(10, "a")


def test_reading_is_that_of_a_life_that_ended() -> None:
    body = body_of(Context("p", "a"))
    rows = [(key_of(10, "p"), encode_step(Step(10, body, "", 1)))]
    known = Lives(2, {1: Uptime(0, 50), 2: Uptime(60, 60)}, (), 60)
    assert read(rows, known).pieces[0].end is None
    late = msgspec.structs.replace(known, now=61 + RETURN_US)
    assert read(rows, late).pieces[0].end == 50
    assert read(rows, msgspec.structs.replace(late, present={"p"})).pieces[0].end is None


def test_what_a_broker_stores_does_not_end_with_its_life() -> None:
    """A client on a link publishes it next, long after a restart: it lasted until then."""
    here, there = (body_of(Context("p", place)) for place in ("a", "b"))
    late = 61 + RETURN_US
    rows = [
        (key_of(10, "p"), encode_step(Step(10, here))),
        (key_of(late, "p"), encode_step(Step(late, there, "", 2))),
    ]
    known = Lives(2, {2: Uptime(60, late)}, {"p"}, late)
    assert [(one.begin, one.end) for one in read(rows, known).pieces] == [(10, late), (late, None)]


def test_a_log_that_is_too_long_lets_the_first_to_end_go() -> None:
    body = body_of(Context("p", "a"))
    rows = []
    for number in range(3):
        at = 10 * number
        rows.append((key_of(at, f"p{number}"), encode_step(Step(at, body))))
        rows.append((key_of(at + 5, f"p{number}"), encode_step(Step(at + 5))))
    known, log = Lives(1, {}, (), 100), SimStepLog().of(dict(rows))
    for steps_max, gone in ((6, 0), (5, 1), (4, 1), (3, 2), (0, 3)):
        found = find_ended(log, known, LookForEnded(0, steps_max))
        assert [one.end for one in found.pieces] == [5, 15, 25][:gone], steps_max
    assert len(find_ended(log, known, LookForEnded(16, 6)).pieces) == 2


@pytest.mark.parametrize("depending", [0, 1])
def test_a_life_is_noted_while_something_ends_with_it(depending: int) -> None:
    past = Past(
        epoch=7,
        now=START,
        settings=PastSettings(),
        stamp=lambda now: now,
        rules_of=lambda _: None,
    )
    past.depends(lambda: depending)
    written = [key for store in past.advance(START) for key, _ in store.writes]  # type: ignore[attr-defined]
    assert written == ["past/life/7"] * depending


# --- any sequence of events ------------------------------------------------------------------

VIDS = ("p", "q")
events = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(VIDS), st.sampled_from("ab")),
        st.tuples(st.just("leave"), st.sampled_from(VIDS), st.just("")),
        st.tuples(st.sampled_from(("crash", "sync", "fail", "wait")), st.just(""), st.just("")),
    ),
    max_size=14,
)


@settings(deadline=None)
@given(events)
@example([("put", "p", "a"), ("put", "p", "b"), ("fail", "", ""), ("put", "p", "b")])
@example([("put", "p", "a"), ("leave", "p", ""), ("sync", "", ""), ("put", "p", "a")])
def test_the_past_is_what_a_plain_record_says(steps: list[tuple[str, str, str]]) -> None:
    """Whatever is asked, refused and lost: at every moment what was acknowledged, nothing else."""
    world = World()
    record: dict[str, list[tuple[int, str | None]]] = {vid: [] for vid in VIDS}
    asked: list[tuple[str, int, str | None]] = []
    for kind, vid, place in [*steps, ("sync", "", "")]:
        world.now += SECOND
        if kind in ("put", "leave"):
            asked.append((vid, world.now, place or None))
            if place:
                world.publish(vid, place)
            else:
                world.give(UnpublishFor(1, "owner", vid))
            if world.answered:  # refused at once: nothing to take away
                asked.pop()
                world.answered.clear()
        elif kind == "wait":
            world.now += 10 * SECOND
        else:
            if kind == "crash":
                world.start()
            else:
                world.sync(fail=kind == "fail")
                for (one, moment, where), answer in zip(asked, world.answered, strict=True):
                    if isinstance(answer, Acknowledged):
                        record[one].append((moment, where))
            asked.clear()
            world.answered.clear()
    moments = sorted({moment for one in record.values() for moment, _ in one})
    for moment in moments:
        assert world.at(moment + 1) == stated(record, moment)
    world.start()
    for moment in moments[-1:]:
        assert world.at(moment + 1) == stated(record, moment)


def stated(record: dict[str, list[tuple[int, str | None]]], moment: int) -> dict[str, str]:
    """Give who is where at a moment, by the plain record."""
    right = {}
    for vid, one in record.items():
        state = [where for when, where in one if when <= moment]
        if state and state[-1] is not None:
            right[vid] = state[-1]
    return right


# --- what leaves the log ---------------------------------------------------------------------


def ended(world: World, count: int = 1) -> None:
    for number in range(count):
        world.publish(f"p{number}", "a/1")
        world.sync()
        world.give(UnpublishFor(2, "owner", f"p{number}"))
        world.sync()


def leaving(world: World, before: int | None = None) -> EndedFound:
    log = read(world.log(), world.broker.remembers(ANN, world.now).known)
    pieces = [
        Leaving(tuple(piece.keys), piece.begin, piece.end)
        for piece in log.pieces
        if piece.end is not None and (before is None or piece.end < before)
    ]
    return EndedFound(tuple(pieces), tuple(log.strays))


def looked(world: World, kind: type) -> Any:
    (only,) = [effect for effect in world.asked if isinstance(effect, kind)]
    world.asked.clear()
    return only


def test_a_piece_leaves_the_log_after_the_archive_has_it() -> None:
    world = World(archive=True, store_us=10 * SECOND, look_us=SECOND)
    ended(world)
    world.run(1)
    assert looked(world, LookForEnded).before == world.now - 10 * SECOND
    world.give(leaving(world))
    assert not world.asked  # not before the batch is on disk
    world.sync()
    batch = looked(world, FeedArchive).batch
    assert (batch.after, len(batch.pieces)) == (0, 1)
    assert len(world.log()) == 2
    world.start()
    assert looked(world, FeedArchive).batch == batch  # the same after a crash
    world.give(BatchRefused(batch.number, "others feed it"))
    assert len(world.log()) == 2
    world.run(1)
    assert looked(world, FeedArchive).batch == batch
    world.give(BatchLanded(batch.number))
    world.sync(fail=True)
    assert len(world.log()) == 2
    world.run(1)
    assert world.log() == []
    ended(world)
    world.asked.clear()
    world.run(1)
    world.give(leaving(world))
    world.sync()
    assert looked(world, FeedArchive).batch.after == batch.number


def test_a_batch_whose_steps_died_with_another_host_is_named_anew() -> None:
    """0132: it would block the feed for good."""
    world = World(archive=True, store_us=0, look_us=SECOND, patience_us=3 * SECOND)
    ended(world, 2)
    world.run(1)
    looked(world, LookForEnded)
    world.give(leaving(world))
    world.sync()
    first = looked(world, FeedArchive).batch
    lost = world.log()[0][0]
    world.disk.pop(lost)
    for _ in range(4):  # not at once: the other host's store may still be coming
        world.give(BatchRefused(first.number, "steps are missing", lacking=True))
        world.run(1)
    world.sync()
    looked(world, LookForEnded)
    world.start()  # it stays given up after a crash
    world.run(1)
    looked(world, LookForEnded)
    world.give(leaving(world))
    world.sync()
    batch = looked(world, FeedArchive).batch
    assert batch.after == first.after
    assert lost not in {key for piece in batch.pieces for key in piece.keys}
    world.give(BatchLanded(batch.number))
    world.sync()
    assert world.log() == []


def test_without_an_archive_the_past_is_forgotten_in_the_end() -> None:
    world = World(look_us=SECOND)
    ended(world)
    world.run(1)
    looked(world, LookForEnded)
    world.give(leaving(world))
    world.sync()
    assert world.log() == []


def test_a_batch_is_bounded_and_the_next_follows_at_once() -> None:
    world = World(look_us=SECOND)
    ended(world, BATCH_PIECES_MAX + 1)
    world.run(1)
    looked(world, LookForEnded)
    world.give(leaving(world))
    world.sync()
    assert len(world.log()) == 2
    world.run(0)
    looked(world, LookForEnded)


def test_publications_are_refused_while_too_much_waits_for_the_disk() -> None:
    past = Past(
        epoch=1,
        now=0,
        settings=PastSettings(rows_max=2),
        stamp=lambda now: now,
        rules_of=lambda _: None,
    )
    for number in range(2):
        past.check_room()
        past.begin(Context(f"p{number}", "a"), b"", "ann", 0)
    with pytest.raises(LimitError, match="wait for the disk"):
        past.check_room()
    assert past.occupancy()["rows"][0] == 2


def test_ends_that_are_remembered_are_bounded() -> None:
    make: Callable[[int], Past] = lambda most: Past(  # noqa: E731
        epoch=1,
        now=0,
        settings=PastSettings(gone_max=most),
        stamp=lambda now: now,
        rules_of=lambda _: None,
    )
    past = make(2)
    for number in range(4):
        past.begin(Context(f"p{number}", "a"), b"", "ann", 0)
        past.end(f"p{number}", "ann", 5, 5)
    assert past.occupancy()["gone"] == (2, 2)


def test_rules_that_are_the_same_as_before_write_no_step() -> None:
    past = Past(
        epoch=1,
        now=0,
        settings=PastSettings(),
        stamp=lambda now: now,
        rules_of=lambda _: b"rules",
    )
    past.begin(Context("p", "a"), b"", "ann", 0)
    (before,) = past.waiting
    past.receive(RulesChanged("p", ()), 5)
    assert past.waiting == [before]


def test_sets_of_rules_are_bounded_and_a_known_one_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part, "RULES_MAX", 2)
    past = Past(epoch=1, now=0, settings=PastSettings(), stamp=lambda now: now, rules_of=str.encode)
    for vid in ("p", "q", "p"):
        past.begin(Context(vid, "a"), b"", "ann", 0)
    with pytest.raises(LimitError, match="at most 2 sets of rules"):
        past.begin(Context("r", "a"), b"", "ann", 0)
    assert past.occupancy()["rules"] == (2, 2)


@pytest.mark.parametrize(("whole", "begin"), [(True, 0), (False, 10)])
def test_what_the_archive_has_shows_no_times_beyond_the_question_if_rules_hide_some(
    whole: bool, begin: int
) -> None:
    archived = [Context("p", "a", None, {}, 0, 15)]
    asked = Asked(ALL, (10, 20))
    ((_, run),) = runs(asked, lambda one, _: one, [], archived, whole=lambda *_: whole)
    assert run == [Context("p", "a", None, {}, begin, 15)]


@pytest.mark.parametrize(("end", "shown"), [(20, 20), (21, None)])
def test_an_end_shows_if_the_question_reaches_it(end: int, shown: int | None) -> None:
    archived = [Context("p", "a", None, {}, 15, end)]
    asked = Asked(ALL, (10, 20))
    ((_, run),) = runs(asked, lambda one, _: one, [], archived, whole=lambda *_: False)
    assert run == [Context("p", "a", None, {}, 15, shown)]
