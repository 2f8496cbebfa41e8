"""Crowd: summaries exchanged over any channel miss nobody, at any moment and any size."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import InputError, LimitError
from roamcast.matching.aggregate import Summary, pack, summarise
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.overlay.tables import crowd
from roamcast.overlay.tables.crowd import CROWD, REBUILD_US, WATERMARK, Crowd
from roamcast.overlay.tables.table import LINGER_US, Offer, TableEntry
from tests.tables_net import Net

EDGES = [("a", "b"), ("b", "c"), ("b", "d")]
FILTERS = {n: Filter.parse(f"n = {n}") for n in range(12)}


def net(budget: int = 1_024) -> Net[Crowd]:
    return Net({name: Crowd(budget=budget) for name in "abcd"}, EDGES)


def member(n: int, t_r: int = 0) -> Context:
    return Context(f"v{n}", f"hq/{n}", attributes={"n": n}, t_r=t_r)


def step(found: Net[Crowd], draw: random.Random) -> None:
    source, target = draw.choice(sorted(found.flying))
    table = found.tables[source]
    match draw.randrange(10):
        case 0 | 1:
            table.put(member(draw.randrange(12), found.now))
        case 2:
            table.end(f"v{draw.randrange(12)}")
        case 3 | 4:
            found.send(source, target)
        case 5 | 6 | 7:
            found.carry(draw, source, target)
        case 8 if draw.random() < 0.3:
            table.reset(target)
        case _:
            found.advance(draw.choice([1, LINGER_US // 2, LINGER_US]))


def check_nobody_missed(found: Net[Crowd]) -> None:
    """A neighbour that confirmed our last version, which holds all we know, names us for it."""
    for name, table in found.tables.items():
        for link, state in table._links.items():
            if not state.sending.idle:
                continue
            for context in table._members.values():
                wanted = FILTERS[int(context.vid[1:])]
                assert name in found.tables[link].beyond(wanted, None)


def check_converged(found: Net[Crowd], budget: int) -> None:
    for name, table in found.tables.items():
        for link, state in table._links.items():
            behind = [
                m for node in found.side(name, link) for m in found.tables[node]._members.values()
            ]
            heard = state.hearing.entries[CROWD]
            assert isinstance(heard, Summary)
            exact = summarise(behind, budget=budget)
            assert heard.covers(exact)
            # Only what is behind the link is left in it: nothing of those who ended.
            for n, wanted in FILTERS.items():
                here = any(m.attributes["n"] == n for m in behind)
                assert heard.admits(wanted) is here, (name, link, n)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_crowds_converge_over_a_bad_channel_and_miss_nobody(draw: random.Random) -> None:
    found = net(8_192)
    for _ in range(60):
        step(found, draw)
        check_nobody_missed(found)
    found.heal()
    found.settle()
    check_converged(found, 8_192)
    assert all(table.idle for table in found.tables.values())


def pair() -> Net[Crowd]:
    return Net({"a": Crowd(), "b": Crowd()}, [("a", "b")])


def test_who_begins_and_ends_between_two_offers_is_known_until_it_has_lingered() -> None:
    found = pair()
    found.settle()
    found.tables["a"].put(member(1))
    found.tables["a"].end("v1")
    found.advance(REBUILD_US)  # rebuilt without them before anything was offered
    assert found.tables["a"]._grown.count == 0
    found.settle()
    assert found.tables["b"].beyond(FILTERS[1], None) == ["a"]
    found.advance(LINGER_US - 1)
    found.settle()
    assert found.tables["b"].beyond(FILTERS[1], None) == ["a"]
    found.advance(1)
    found.settle()
    assert found.tables["b"].beyond(FILTERS[1], None) == []


def test_those_who_stay_are_never_out_of_the_table_while_it_shrinks() -> None:
    found = pair()
    for n in range(10):
        found.tables["a"].put(member(n))
    found.settle()
    for n in range(9):
        found.tables["a"].end(f"v{n}")
    for _ in range(30):
        found.advance(LINGER_US // 10)
        found.settle()
        assert found.tables["b"].beyond(FILTERS[9], None) == ["a"]
    assert found.tables["b"].beyond(FILTERS[3], None) == []


def test_growth_that_never_pauses_does_not_stop_the_shrinking() -> None:
    found = pair()
    table = found.tables["a"]
    table.put(member(0))
    table.put(Context("old", attributes={"old": 1}))
    found.settle()
    table.end("old")
    wanted = Filter.parse("old = 1")
    for n in range(200):
        found.advance(LINGER_US // 10)
        table.put(Context(f"w{n}", attributes={"n": 1_000 * n}))
        found.settle()
    assert found.tables["b"].beyond(wanted, None) == []


def test_split_horizon_nobody_hears_of_their_own_crowd() -> None:
    found = net()
    found.tables["a"].put(member(1))
    found.heal()
    assert found.tables["a"].beyond(FILTERS[1], None) == []
    assert found.tables["b"].beyond(FILTERS[1], None) == ["a"]
    assert found.tables["b"].beyond(FILTERS[1], "a") == []
    assert found.tables["c"].beyond(FILTERS[1], None) == ["b"]


def test_unknown_means_yes_and_a_dropped_link_lingers() -> None:
    table = Crowd()
    table.reset("a")
    assert table.beyond(FILTERS[1], None) == ["a"]
    table.take("a", Offer(1, True, 0, True))
    assert table.beyond(FILTERS[1], None) == []
    entry = TableEntry(CROWD, pack(summarise([member(1)])))
    table.take("a", Offer(2, False, 0, True, (entry,)))
    table.drop("a")
    table.advance(LINGER_US - 1)
    assert table.beyond(FILTERS[1], None) == ["a"]
    table.advance(LINGER_US)
    assert table.beyond(FILTERS[1], None) == []
    assert table.occupancy()["crowd.links"][0] == 0


def test_a_watermark_falls_when_a_slower_node_joins() -> None:
    """0181: there is more beyond the link now, and that is not accounted for."""
    step_us = 1_000
    table = Crowd(watermark_us=step_us)
    for name in ("a", "b"):
        table.reset(name)
    table.advance(9 * step_us)
    mark = msgspec.msgpack.encode(9 * step_us)
    table.take("a", Offer(1, True, 0, True, (TableEntry(WATERMARK, mark),)))
    offered = table.offer("b")
    assert offered is not None
    assert {one.key: one.value for one in offered.add}[WATERMARK] == mark
    table.confirmed("b", offered.version)
    slower = msgspec.msgpack.encode(4 * step_us)
    table.take("a", Offer(2, False, 0, True, (TableEntry(WATERMARK, slower),)))
    assert table.watermark("a") == 4 * step_us
    offered = table.offer("b")
    assert offered is not None
    assert {one.key: one.value for one in offered.add}[WATERMARK] == slower


def test_the_watermark_of_a_link_is_the_lowest_beyond_it() -> None:
    step_us = 1_000
    found = Net({name: Crowd(watermark_us=step_us) for name in "abc"}, [("a", "b"), ("b", "c")])
    for _ in range(4):
        found.advance(step_us)
        found.settle()
    assert found.tables["a"].watermark("b") == 4 * step_us
    # c stands still: what a hears of b must not run ahead of it.
    for at in (5, 6):
        for name in "ab":
            found.tables[name].advance(at * step_us)
        found.settle()
    assert found.tables["b"].watermark("c") == 4 * step_us
    assert found.tables["a"].watermark("b") == 4 * step_us
    assert found.tables["b"].watermark("a") == 6 * step_us


@pytest.mark.parametrize(
    "entry",
    [
        TableEntry(CROWD, b"\xc1"),
        TableEntry(CROWD, pack(summarise([member(1)]))[:-1]),
        TableEntry(WATERMARK, b"\xa1x"),
        TableEntry("other", b""),
    ],
)
def test_malformed_entries_are_refused_and_change_nothing(entry: TableEntry) -> None:
    table = Crowd()
    table.reset("a")
    table.take("a", Offer(1, True, 0, True, (TableEntry(CROWD, pack(summarise([member(1)]))),)))
    with pytest.raises(InputError):
        table.take("a", Offer(2, False, 0, True, (entry,)))
    assert table.beyond(FILTERS[1], None) == ["a"]
    assert table.beyond(FILTERS[2], None) == []
    assert table._links["a"].hearing.version == 1


def test_members_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "MEMBERS_MAX", 2)
    monkeypatch.setattr(crowd, "NEW_MAX", 2)
    table = Crowd()
    table.reset("b")
    assert not table.admits(FILTERS[1])
    table.put(member(1))
    table.put(member(2))
    assert len(table._new) < 2
    table.put(msgspec.structs.replace(member(2), t_r=5))
    with pytest.raises(LimitError, match="2 contexts"):
        table.put(member(3))
    assert not table.admits(FILTERS[3])
