"""Laws of flows: vectors merge, readers lose nothing in any order, cursors take each event once."""

from hypothesis import given
from hypothesis import strategies as st

from roamcast.model.contexts import Context, body_of
from roamcast.model.machine import Store
from roamcast.overlay.flows.cursor import ConsumerCursor, ProducerCursor
from roamcast.overlay.flows.events import EventsDelivered, EventsStanding
from roamcast.overlay.flows.log import OriginLog
from roamcast.overlay.flows.messages import BATCH_BYTES, Event
from roamcast.overlay.flows.reader import NUMBERS_MAX, LogInterval, LogReader, Numbers
from roamcast.overlay.flows.vector import Position, covers, merge, pairs
from roamcast.overlay.flows.writing import LogWriter

EPOCH = 7
POSITIONS = st.builds(Position, st.integers(0, 3), st.integers(0, 9))
VECTORS = st.dictionaries(st.sampled_from("abcd"), POSITIONS)
BODY = body_of(Context("event"))


def at(number: int) -> Position:
    return Position(EPOCH, number)


def event(number: int) -> tuple[int, Event]:
    return number, Event("p", 1, number, BODY)


def interval(after: int, upto: int, wanted: frozenset[int]) -> LogInterval:
    events = tuple(event(one) for one in range(after + 1, upto + 1) if one in wanted)
    return LogInterval(at(after), at(upto), events)


@given(VECTORS, VECTORS, VECTORS)
def test_merging_is_commutative_associative_and_idempotent(
    one: dict, two: dict, three: dict
) -> None:  # type: ignore[type-arg]
    assert merge(one, two) == merge(two, one)
    assert merge(one, merge(two, three)) == merge(merge(one, two), three)
    assert merge(one, one) == one
    assert covers(merge(one, two), pairs(one))
    assert covers(merge(one, two), pairs(two))


@given(
    st.frozensets(st.integers(1, 20)),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=12),
    st.randoms(use_true_random=False),
)
def test_a_reader_gives_every_event_once_in_order_whatever_comes_first(
    wanted: frozenset[int], parts: list[tuple[int, int]], draw: object
) -> None:
    """Flows come in any order and with holes; the log answers what is missing, whenever asked."""
    reader = LogReader(bytes_max=1_000, hold_us=10)
    reader.begin("a", at(0))
    reader.prove("a", at(0))
    given_on: list[int] = []

    def release() -> None:
        for _, one in reader.release(0):
            given_on.extend(number for number, _ in one.events)

    for first, second in parts:
        reader.take("a", interval(min(first, second), max(first, second), wanted))
        if draw.random() < 0.5:  # type: ignore[attr-defined]
            release()
    reader.reaches("a", at(20))
    for _ in range(100):
        release()
        missing = reader.missing("a")
        if missing is None:
            break
        after = missing[0].number
        upto = min(missing[1].number, after + 3)
        reader.take("a", interval(after, upto, wanted), proven=True)
    release()
    assert given_on == sorted(wanted)
    assert reader.vector == {"a": at(20)}
    assert reader.bytes == 0


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=30))
def test_a_cursor_takes_each_event_once_and_says_when_one_is_missing(
    parts: list[tuple[int, int]],
) -> None:
    cursor = ConsumerCursor()
    cursor.standing(EventsStanding("c", (("a", at(0)),)))
    reached = 0
    for first, second in parts:
        after, upto = min(first, second), max(first, second)
        events = interval(after, upto, frozenset(range(1, 16))).events
        taken = cursor.take(EventsDelivered("c", "a", at(after), at(upto), events))
        assert taken.missing == (after > reached)
        if not taken.missing:
            assert [one.number for one in taken.events] == list(range(reached + 1, upto + 1))
            reached = max(reached, upto)
        assert cursor.vector["a"] == at(reached)


@given(st.lists(st.tuples(st.sampled_from("pq"), st.integers(1, 5)), max_size=20))
def test_numbers_drop_what_was_sent_again(sent: list[tuple[str, int]]) -> None:
    numbers = Numbers()
    last: dict[str, int] = {}
    for producer, number in sent:
        fresh = numbers.is_new(Event(producer, 1, number, BODY))
        assert fresh == (number > last.get(producer, 0))
        last[producer] = max(number, last.get(producer, 0))


@given(st.lists(st.tuples(st.sampled_from("pq"), st.integers(0, 5_000)), max_size=20))
def test_numbers_that_may_be_late_come_once_each(sent: list[tuple[str, int]]) -> None:
    numbers = Numbers()
    had: dict[str, set[int]] = {"p": set(), "q": set()}
    for producer, number in sent:
        fresh = numbers.is_new(Event(producer, 1, number, BODY), late=True)
        known = number > max(had[producer], default=0) - NUMBERS_MAX
        assert fresh == (known and number not in had[producer])
        had[producer].add(number)


def test_numbers_of_too_many_producers_are_forgotten() -> None:
    numbers = Numbers(producers_max=3)
    for number in range(5):
        assert numbers.is_new(Event(f"p{number}", 1, 1, BODY))
    assert len(numbers) == 3


def test_a_producer_needs_all_that_it_published_elsewhere() -> None:
    cursor = ProducerCursor(life=3)
    assert (cursor.following(), cursor.needs()) == (1, ())
    cursor.published("a", at(4))
    cursor.published("b", at(1))
    assert cursor.needs() == (("a", at(4)), ("b", at(1)))
    assert cursor.needs({"a": at(9), "c": at(2)}) == (("a", at(9)), ("b", at(1)), ("c", at(2)))


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.data())
def test_a_log_releases_a_prefix_and_ends_with_an_event(
    stored: list[bool], data: st.DataObject
) -> None:
    """In whatever order the disk answers, and whatever it refuses."""
    log = OriginLog(age_us_max=1_000, bytes_max=10_000)
    log.epoch = EPOCH
    numbers = [log.append(Event("p", 1, one, BODY), 0)[0] for one in range(len(stored))]
    released: list[int] = []
    for number in data.draw(st.permutations(numbers)):
        (log.written if stored[number - 1] else log.refused)(number)
        flow = log.release()
        if flow is not None:
            released += [one for one, _ in flow.events]
            assert flow.upto == released[-1]
    assert released == [number for number in numbers if stored[number - 1]]


def paced(pace_us: int) -> tuple[OriginLog, LogWriter, int]:
    """Give a log that had an event in so many microseconds, and the time of its last write."""
    log = OriginLog(age_us_max=10**9, bytes_max=10**9)
    writer, now = LogWriter(log, gather_us=10_000), 0
    for number in range(1, 31):
        now += pace_us
        assert writer.add(Event("before", 1, number, BODY), number, now) == now
        writer.write(number, now)
        writer.written(number)
    return log, writer, now


def test_who_is_alone_with_an_event_writes_at_once_and_others_together() -> None:
    log, writer, now = paced(500)
    assert writer.add(Event("p", 1, 0, BODY), 70, now) == now
    writer.write(101, now)
    assert writer.add(Event("p", 1, 1, BODY), 71, now + 1) == now + 10_000
    assert writer.add(Event("p", 1, 2, BODY), 72, now + 9) == now + 10_000
    writer.join(33, 73)
    assert writer.written(101) == [(31, 70)]
    together = writer.write(102, now + 10_000)
    assert isinstance(together, Store)
    assert len(together.writes) == 2
    later = now + 30_000
    assert writer.add(Event("p", 1, 3, BODY), 74, later) < later, "it is due: it need not wait"
    assert writer.refused(102) == [(32, 71), (33, 72), (33, 73)]
    assert [number for number in log._entries if number > 30] == [31, 34]
    writer.write(103, later)
    assert writer.written(103) == [(34, 74)]
    assert not len(writer)
    assert writer.add(Event("p", 1, 4, BODY), 75, later + 1) == later + 1


def test_the_fewer_events_there_are_the_shorter_others_wait_for_company() -> None:
    waits = []
    for pace_us in (500, 6_000, 12_000, 60_000, 1_000_000):
        _, writer, now = paced(pace_us)
        writer.add(Event("p", 1, 0, BODY), 70, now)
        waits.append(writer.add(Event("p", 1, 1, BODY), 71, now) - now)
    assert waits == [10_000, 2_499, 624, 24, 0]


def test_events_that_gather_are_bounded() -> None:
    writer = LogWriter(OriginLog(age_us_max=1_000, bytes_max=10**9), gather_us=10)
    large = b"x" * (BATCH_BYTES // 3)
    due = [writer.add(Event("p", 1, one, BODY, large), one, now=5) for one in range(3)]
    assert due[0] == due[2] == 5
