"""Areas: exchanged over any channel they converge, and they never miss an archive."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import InputError, LimitError
from roamcast.model.areas import Area, Patch, area_of
from roamcast.model.filters import Filter
from roamcast.overlay.tables import areas, digest_table, link_table
from roamcast.overlay.tables.areas import Areas
from roamcast.overlay.tables.hearing import TableBounds
from roamcast.overlay.tables.sending import _pages
from roamcast.overlay.tables.table import LINGER_US, Offer, TableEntry
from tests.tables_net import Net

EDGES = [("a", "b"), ("b", "c"), ("b", "d")]
PLACES = ["campus/b1", "campus/b2", "campus/b2/1", "lab"]


def at(place: str) -> Area:
    return Area((Patch(places=(place,)),))


def net() -> Net[Areas]:
    return Net({name: Areas(page_bytes=40) for name in "abcd"}, EDGES)


def local(table: Areas) -> set[str]:
    return set(table._local.values())


def check_converged(found: Net[Areas]) -> None:
    for name, table in found.tables.items():
        for link, state in table._links.items():
            behind = {key for node in found.side(name, link) for key in local(found.tables[node])}
            assert set(state.hearing.entries) == behind


def step(found: Net[Areas], draw: random.Random) -> None:
    source, target = draw.choice(sorted(found.flying))
    match draw.randrange(8):
        case 0:
            found.tables[source].put(draw.choice("xyz"), at(draw.choice(PLACES)))
        case 1:
            found.tables[source].remove(draw.choice("xyz"))
        case 2 | 3:
            found.send(source, target)
        case 4 | 5 | 6:
            found.carry(draw, source, target)
        case 7 if draw.random() < 0.3:
            found.tables[source].reset(target)
        case _:
            found.advance(draw.choice([1, LINGER_US // 2, LINGER_US]))


def check_nothing_missed(found: Net[Areas]) -> None:
    """A neighbour that confirmed what is local here names us for it."""
    for name, table in found.tables.items():
        for link, state in table._links.items():
            if state.sending._waits or state.sending._full:
                continue
            for key in local(table) & state.sending.shown.keys():
                area = areas._decode(table._values[key])
                assert name in found.tables[link].beyond(area, None)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_areas_converge_over_a_bad_channel_and_miss_nothing_meanwhile(draw: random.Random) -> None:
    found = net()
    for _ in range(80):
        step(found, draw)
        check_nothing_missed(found)
    found.heal()
    check_converged(found)
    assert all(table.idle for table in found.tables.values())


def pair(page_bytes: int = 40) -> Net[Areas]:
    return Net({name: Areas(page_bytes=page_bytes) for name in "ab"}, [("a", "b")])


def test_a_version_is_applied_as_a_whole_when_its_last_page_is_there() -> None:
    found = pair()
    for number, place in enumerate(PLACES):
        found.tables["a"].put(str(number), at(place))
    found.settle()
    found.tables["a"].reset("b")
    found.send("a", "b")
    pages = list(found.flying["a", "b"])
    assert len(pages) == len(PLACES)
    for page in pages:  # a table that is rebuilt is never smaller meanwhile
        for place in PLACES:
            assert found.tables["b"].beyond(at(place), None) == ["a"]
        found.deliver("a", "b", page)


def test_a_removal_waits_for_the_confirmation_and_then_lingers() -> None:
    found = pair()
    found.settle()
    table = found.tables["a"]
    table.put("x", at("lab"))
    found.send("a", "b")
    table.remove("x")
    found.advance(3 * LINGER_US)
    assert table.offer("b") is None, "nothing new while a version waits"
    found.settle()
    for wait in (0, LINGER_US - 1):
        found.advance(wait)
        found.settle()
        assert found.tables["b"].beyond(at("lab"), None) == ["a"]
    found.advance(1)
    found.settle()
    assert found.tables["b"].beyond(at("lab"), None) == []


def test_the_word_on_an_earlier_version_does_not_confirm_this_one() -> None:
    found = pair(1_000)
    table = found.tables["a"]
    found.settle()
    earlier = table._links["b"].sending.version
    table.put("x", at("lab"))
    offer = table.offer("b")
    assert offer is not None
    table.confirmed("b", earlier)
    assert not table.settled("b")
    table.confirmed("b", offer.version)
    assert table.settled("b")


def test_a_page_is_filled_to_the_last_byte() -> None:
    entries = {"a": b"123", "b": b"456"}
    for page_bytes, pages in ((8, 1), (7, 2)):
        assert len(_pages(1, True, entries, [], page_bytes)) == pages


def test_after_a_reset_everything_is_offered_again_what_lingers_included() -> None:
    found = pair(1_000)
    table = found.tables["a"]
    table.put("x", at("lab"))
    table.put("y", at("campus/b1"))
    found.settle()
    table.remove("x")
    found.settle()
    table.reset("b")
    offer = table.offer("b")
    assert offer is not None
    assert offer.full
    assert {entry.key for entry in offer.add} == set(table._links["b"].sending.shown)
    assert len(offer.add) == 2


def test_older_repeated_and_torn_versions_change_nothing() -> None:
    table = Areas()
    table.reset("a")
    lab, hall = (
        TableEntry(digest_table.digest_of(value), value) for value in map(encoded, ("lab", "hall"))
    )
    with pytest.raises(InputError, match="does not follow"):
        table.take("a", Offer(1, False, 0, True, (lab,)))
    table.take("a", Offer(5, True, 0, True, (lab,)))
    table.take("a", Offer(5, True, 0, True, ()))  # repeated: applied already
    for offer, why in (
        (Offer(4, True, 0, True, (hall,)), "older"),
        (Offer(7, False, 0, True, (hall,)), "does not follow"),
        (Offer(6, False, 1, True, (hall,)), "out of order"),
        (Offer(6, False, 0, True, (hall, hall)), "twice"),
        (Offer(6, False, 0, True, (), ("nothing",)), "never offered"),
        (Offer(6, True, 0, True, (hall,), (lab.key,)), "removes nothing"),
        (Offer(6, False, 0, True, (TableEntry(hall.key, b"\xc1"),)), "malformed"),
        (Offer(6, False, 0, True, (TableEntry(lab.key, hall.value),)), "twice|digest"),
    ):
        with pytest.raises(InputError, match=why):
            table.take("a", offer)
        assert table.beyond(at("lab"), None) == ["a"]
        assert table.beyond(at("hall"), None) == []
    with pytest.raises(InputError, match="not in use"):
        table.take("b", Offer(1, True, 0, True, (lab,)))


def encoded(place: str) -> bytes:
    return msgspec.msgpack.encode(at(place))


def test_a_neighbours_table_is_bounded_by_entries_and_bytes() -> None:
    class Small(Areas):
        bounds = TableBounds(2, 1_000)

    values = [encoded(f"lab/{n}") for n in range(3)]
    entries = tuple(TableEntry(digest_table.digest_of(value), value) for value in values)
    table = Small()
    table.reset("a")
    table.take("a", Offer(1, True, 0, False, entries[:2]))
    with pytest.raises(LimitError, match="2 entries"):
        table.take("a", Offer(1, True, 1, True, entries[2:]))
    table.take("a", Offer(2, True, 0, True, entries[:2]))
    with pytest.raises(LimitError, match="2 entries"):
        table.take("a", Offer(3, False, 0, True, entries[2:]))
    table.take("a", Offer(3, False, 0, True, entries[2:], (entries[0].key,)))
    long = encoded("/".join(["x" * 31] * 32))
    with pytest.raises(LimitError, match="1000 bytes"):
        table.take("a", Offer(4, True, 0, True, (TableEntry(digest_table.digest_of(long), long),)))
    assert len(table._links["a"].hearing.entries) == 2


def test_local_areas_and_links_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_table, "LOCAL_MAX", 1)
    monkeypatch.setattr(link_table, "LINKS_MAX", 1)
    table = Areas()
    table.put("x", at("lab"))
    table.put("x", at("hall"))
    with pytest.raises(LimitError, match="1 areas"):
        table.put("y", at("lab"))
    table.reset("a")
    with pytest.raises(LimitError, match="1 links"):
        table.reset("b")


def test_an_area_that_changed_leaves_what_was_archived_in_it() -> None:
    found = pair()
    table = found.tables["a"]
    table.put("own", at("campus/b1"))
    table.put("archive 2026-11", Area((Patch(places=("campus/b1",), ends=(0, 100)),)))
    found.heal()
    table.put("own", at("campus/b2"))
    found.heal()
    past = area_of(Filter.parse("within(place, 'campus/b1') AND before(time, DATE('1970-01-01'))"))
    assert found.tables["b"].beyond(past, None) == []
    past = Area((Patch(places=("campus/b1/3",), ends=(None, 50)),))
    assert found.tables["b"].beyond(past, None) == ["a"]
    assert found.tables["b"].beyond(at("campus/b2"), None) == ["a"]


def test_a_node_that_was_restarted_has_newer_versions() -> None:
    old, new = Areas(epoch=1), Areas(epoch=2)
    other = Areas()
    other.reset("a")
    for table in (old, new):
        table.put("x", at("lab"))
        table.reset("b")
        offer = table.offer("b")
        assert offer is not None
        other.take("a", offer)
    assert other.beyond(at("lab"), None) == ["a"]
