"""Wants: covered filters are not forwarded, and no asker is ever missed."""

import functools
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import InputError, LimitError
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.overlay.tables import wants
from roamcast.overlay.tables.table import LINGER_US, Offer, TableEntry
from roamcast.overlay.tables.wants import Want, Wants
from tests.tables_net import Net

EDGES = [("a", "b"), ("b", "c")]
TEXTS = ["true", "n >= 0", "n >= 3", "n = 3", "n = 5", "n < 4"]
CONTEXTS = [Context("v", attributes={"n": n}) for n in (-1, 0, 3, 5)]
parse = functools.cache(Filter.parse)


def net() -> Net[Wants]:
    return Net({name: Wants(page_bytes=100) for name in "abc"}, EDGES)


def asked(table: Wants, view: str, context: Context) -> bool:
    """Whether one of this broker's own subscriptions wants a context."""
    found = (table._wants[key] for key in table._local.values())
    return any(w.view == view and parse(w.text).matches(context) for w in found)


def check_nobody_missed(found: Net[Wants], *, exact: bool) -> None:
    for name, table in found.tables.items():
        for link, state in table._links.items():
            if not exact and not state.sending.idle:
                continue
            for view in ("x", "y"):
                for context in CONTEXTS:
                    there = found.tables[link].beyond((view, context), None)
                    if exact:
                        nodes = found.side(link, name)
                        here = any(asked(found.tables[node], view, context) for node in nodes)
                        assert (name in there) is here
                    elif asked(table, view, context):
                        assert name in there


def step(found: Net[Wants], draw: random.Random) -> None:
    source, target = draw.choice(sorted(found.flying))
    table = found.tables[source]
    match draw.randrange(10):
        case 0 | 1 | 2:
            who = draw.choice("pqrs")
            if who in table._local:
                table.unsubscribe(who)
            else:
                table.subscribe(who, draw.choice("xxy"), Filter.parse(draw.choice(TEXTS)))
        case 3 | 4:
            found.send(source, target)
        case 5 | 6 | 7:
            found.carry(draw, source, target)
        case 8 if draw.random() < 0.3:
            table.reset(target)
        case _:
            found.advance(draw.choice([1, LINGER_US // 2, LINGER_US]))


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_wants_converge_over_a_bad_channel_and_miss_nobody(draw: random.Random) -> None:
    found = net()
    for _ in range(60):
        step(found, draw)
        check_nobody_missed(found, exact=False)
    found.heal()
    check_nobody_missed(found, exact=True)
    for name, table in found.tables.items():
        assert table.idle
        for link, state in table._links.items():
            assert set(state.sending.shown) == set(table._keys(link))
            assert set(found.tables[link]._links[name].hearing.entries) == set(table._keys(link))


def shown(found: Net[Wants], source: str, target: str) -> set[str]:
    entries = found.tables[target]._links[source].hearing.entries.values()
    return {f"{want.view}: {want.text}" for want in entries}


def test_a_cover_is_forwarded_alone_and_what_it_covered_follows_it() -> None:
    found = net()
    table = found.tables["a"]
    for n in range(5):
        table.subscribe(f"s{n}", "x", Filter.parse(f"n = {n}"))
    table.subscribe("other", "y", Filter.parse("n = 1"))
    table.subscribe("all", "x", Filter.parse("n >= 0"))
    found.heal()
    assert shown(found, "b", "c") == {"x: n >= 0", "y: n = 1"}, "covering is within one view"
    table.unsubscribe("all")
    while found.tables["c"].beyond(("x", CONTEXTS[2]), None) == ["b"]:
        found.settle()
        if len(shown(found, "b", "c")) == 6:
            break
        found.advance(LINGER_US // 7)
    assert len(shown(found, "b", "c")) == 6, "before the cover goes, what it covered is there"
    found.heal()
    assert shown(found, "b", "c") == {"y: n = 1", *(f"x: n = {n}" for n in range(5))}


def test_an_own_cover_does_not_hide_what_others_ask() -> None:
    found = net()
    found.tables["a"].subscribe("wide", "x", Filter.parse("n >= 0"))
    found.tables["c"].subscribe("narrow", "x", Filter.parse("n = 3"))
    found.heal()
    assert shown(found, "b", "a") == {"x: n = 3"}, "a is not told of its own, but of c's"
    assert shown(found, "b", "c") == {"x: n >= 0"}
    found.tables["b"].subscribe("mine", "x", Filter.parse("n >= 0"))
    found.heal()
    assert shown(found, "b", "a") == {"x: n >= 0"}
    found.tables["b"].unsubscribe("mine")
    found.heal()
    assert shown(found, "b", "a") == {"x: n = 3"}


def test_many_covered_filters_follow_in_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wants, "BURST", 3)
    found = net()
    table = found.tables["a"]
    table.subscribe("all", "x", Filter.parse("n >= 0"))
    for n in range(8):
        table.subscribe(f"s{n}", "x", Filter.parse(f"n = {n}"))
    found.heal()
    table.unsubscribe("all")
    assert table.deadline() == found.now + 1
    found.settle()
    assert "x: n >= 0" in shown(found, "a", "b"), "the cover stays until all have a place"
    found.heal()
    assert shown(found, "a", "b") == {f"x: n = {n}" for n in range(8)}


def test_filters_too_long_to_send_ask_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wants, "ENTRY_BYTES_MAX", 30)
    table = Wants()
    table.subscribe("s", "x", Filter.parse(f"name = '{'x' * 40}'"))
    assert [want.text for want in table._wants.values()] == [Filter.parse("true").text]


def test_bounds_and_bad_entries_are_refused_with_nothing_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def entry(view: str, text: str, key: str | None = None) -> TableEntry:
        want = Want(view, text)
        return TableEntry(key or wants._key(want), msgspec.msgpack.encode(want))

    table = Wants()
    table.reset("a")
    good = entry("x", Filter.parse("n = 1").text)
    table.take("a", Offer(1, True, 0, True, (good,)))
    for bad in (
        entry("x", "n = "),
        entry("x", "n   =  2"),
        entry("", "n = 2"),
        entry("x", "n = 2", "0" * 32),
        TableEntry("k", b"\xc1"),
    ):
        with pytest.raises(InputError):
            table.take("a", Offer(2, False, 0, True, (bad,)))
    monkeypatch.setattr(wants, "FILTERS_MAX", 1)
    with pytest.raises(LimitError, match="1 filters"):
        table.take("a", Offer(2, False, 0, True, (entry("x", "n = 2"),)))
    with pytest.raises(LimitError, match="1 filters"):
        table.subscribe("s", "x", Filter.parse("n = 2"))
    monkeypatch.setattr(wants, "VIEWS_MAX", 1)
    monkeypatch.setattr(wants, "FILTERS_MAX", 9)
    with pytest.raises(LimitError, match="1 views"):
        table.subscribe("s", "y", Filter.parse("n = 2"))
    assert table.beyond(("x", CONTEXTS[0]), None) == []
    assert list(table._links["a"].hearing.entries) == [good.key]
    assert table.occupancy()["wants.filters"][0] == 1


def test_views_that_nobody_asks_for_any_more_leave_nothing_and_are_news_when_they_return() -> None:
    found = net()
    asks, hears = found.tables["b"], found.tables["a"]
    versions = set()
    for number in range(6):
        view = f"view {number % 2}"
        asks.subscribe("p", view, Filter.parse(f"n = {number}"))
        found.heal()
        assert len(hears.asked(view)) == 1
        versions.add(hears.asked_version(view))
        asks.unsubscribe("p")
        found.heal()
        assert hears.asked(view) == {}
        assert not hears._asked_changes
    assert len(versions) == 6
