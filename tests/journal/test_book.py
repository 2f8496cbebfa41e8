"""The journal in memory: the digest depends on the records alone, the tail is bounded."""

from hypothesis import given
from hypothesis import strategies as st

from roamcast.journal.book import BLOCK_RECORDS, TAIL_RECORDS_MAX, Entry, Journal, line_of
from roamcast.model.records import Delivery, Drop, Record, Transmission


class Kept:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.closed = False

    def add(self, entries: list[Entry]) -> None:
        self.entries += entries

    def close(self) -> None:
        self.closed = True


def written(entries: list[Entry], sink: Kept | None = None) -> Journal:
    journal = Journal(sink)
    for entry in entries:
        journal.write(*entry)
    return journal


def numbered(count: int) -> list[Entry]:
    return [(number, "host", Drop("loss", bytes=number)) for number in range(count)]


def test_the_same_records_give_the_same_digest_and_others_another() -> None:
    entries = numbered(3 * BLOCK_RECORDS + 7)
    digest = written(entries).digest()
    assert written(entries).digest() == digest
    assert written(entries[:-1]).digest() != digest
    assert written(entries[1:]).digest() != digest
    swapped = [*entries[:5], entries[6], entries[5], *entries[7:]]
    assert written(swapped).digest() != digest
    elsewhere = [*entries[:5], (5, "other", entries[5][2]), *entries[6:]]
    assert written(elsewhere).digest() != digest


@given(st.lists(st.integers(0, 3 * BLOCK_RECORDS), max_size=3))
def test_asking_for_the_digest_does_not_change_it(asks: list[int]) -> None:
    journal = Journal()
    entries = numbered(2 * BLOCK_RECORDS + 1)
    for number, entry in enumerate(entries):
        if number in asks:
            journal.digest()
        journal.write(*entry)
    assert journal.digest() == written(entries).digest()
    assert len(journal) == len(entries)


def test_a_record_of_another_kind_with_equal_fields_differs() -> None:
    def digest(record: Record) -> str:
        return written([(1, "h", record)]).digest()

    assert digest(Transmission("a", 1)) != digest(Drop("a"))


def test_the_sink_gets_every_record_once_and_in_order() -> None:
    for count in (0, 1, BLOCK_RECORDS - 1, BLOCK_RECORDS, BLOCK_RECORDS + 1, 3 * BLOCK_RECORDS):
        sink = Kept()
        journal = written(numbered(count), sink)
        journal.close()
        assert sink.entries == numbered(count)
        assert sink.closed


def test_the_tail_is_the_last_lines_and_no_more_than_its_bound() -> None:
    journal = written(numbered(BLOCK_RECORDS + 3))
    assert journal.tail(0) == []
    assert journal.tail(2) == [line_of(entry) for entry in numbered(BLOCK_RECORDS + 3)[-2:]]
    assert journal.tail(10) == [line_of(entry) for entry in numbered(BLOCK_RECORDS + 3)[-10:]]
    assert len(journal.tail(10**6)) == TAIL_RECORDS_MAX
    assert journal._sink is None
    assert len(journal._block) + len(journal._tail) <= BLOCK_RECORDS + TAIL_RECORDS_MAX


def test_a_line_says_when_where_and_what() -> None:
    line = line_of((1_500_000, "b1", Delivery("ann", "b2", 7, delay_us=250)))
    assert line.split() == [
        "1.500000",
        "b1",
        "Delivery",
        "receiver=ann",
        "producer=b2",
        "number=7",
        "delay_us=250",
        "bytes=0",
    ]
