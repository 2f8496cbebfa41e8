"""Who watches much, or names many, makes nobody wait: it costs as much more, and not the square.

Calls and comparisons of queries' numbers are counted, nothing is timed.
"""

import sys
from collections.abc import Callable

import pytest

from roamcast.channels.server import notes, queries
from roamcast.channels.server.map_context import ClassView
from roamcast.channels.server.queries import Matched, is_among
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.sessions import hub
from roamcast.channels.sessions.matches import PAUSE_US
from roamcast.channels.sessions.settings import HubSettings
from roamcast.channels.spread.dissemination import Dissemination
from roamcast.identity.rules import Rule, Viewer
from tests.strategies_hub import Desk

CONTEXTS = 20
GROWTH_MAX = 2.4
"""Twice as many queries: twice the comparisons, and a little for searching."""


class Number(int):
    """A number that counts how often it is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Number.compared += 1
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        Number.compared += 1
        return int(self) < int(other)

    __hash__ = int.__hash__


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Dissemination.take_number
    monkeypatch.setattr(Dissemination, "take_number", lambda self: Number(take(self)))


def comparisons(action: Callable[[], object]) -> int:
    before = Number.compared
    action()
    return Number.compared - before


def watched(many: int, notes_max: int) -> Desk:
    """A map of some contexts, nearly all of which satisfy each of many queries of Eve's."""
    desk = Desk(map_settings=MapSettings(notes_max=notes_max))
    for number in range(CONTEXTS):
        desk.keep(f"v{number}", "hq/1", level=-1)
    desk.rules("v1", (Rule(viewers=("eve",), precision="exact"),))
    desk.open("eve", Viewer("eve"))
    for number in range(many):
        desk.watch("eve", f"level <> {number}", str(number))
    desk.run(1_000_000)
    return desk


def costs(many: int, notes_max: int) -> dict[str, int]:
    desk = watched(many, notes_max)

    def place() -> None:
        desk.watch("eve", "level <> -7", "another")
        desk.run(1_000_000)

    return {
        "a change": comparisons(lambda: desk.keep("v0", "hq/1", level=3)),
        "a change of what lies apart": comparisons(lambda: desk.keep("v1", "hq/1", level=4)),
        "placing": comparisons(place),
        "leaving": comparisons(lambda: desk.release("v0")),
    }


@pytest.mark.parametrize("notes_max", [1, 512])
def test_twice_the_queries_cost_twice_the_comparisons(notes_max: int) -> None:
    few, many = costs(60, notes_max), costs(120, notes_max)
    for what, before in few.items():
        assert many[what] <= GROWTH_MAX * before + 400, (what, before, many[what])


def test_sessions_that_are_too_much_end_one_after_the_other() -> None:
    desk = Desk(HubSettings(matches_max=1))
    for number in range(4):
        desk.open(f"eve#{number}", Viewer("eve"))
        desk.watch(f"eve#{number}", f"level <> {number}")
    desk.open("bob")
    desk.watch("bob", "level <> 0")
    desk.keep("x", "hq/1", level=9)
    over = []
    for _ in range(4):
        over.append(sum(bool(reader.cut) for reader in desk.readers.values()))
        desk.keep("x", "hq/1", level=9 + len(over))  # they wait for their end, and are told nothing
        desk.run(PAUSE_US)
    assert over == [0, 1, 2, 3]
    assert desk.readers["eve#0"].frames  # the subscription's answer
    assert set(desk.broker._hub.sessions) == {"eve#3", "bob"}
    assert desk.sees("eve#3") == desk.sees("bob") == {"x": "hq/1"}
    assert len(desk.broker._hub.queries) == 2


def told_apart(many: int) -> int:
    """Count the calls of an update that many viewers are told, each alone."""
    desk = Desk()
    names = [f"viewer-{number}" for number in range(many)]
    named = Rule(viewers=tuple(names), precision="exact")
    desk.rules("x", (named, Rule(viewers=("*",), precision="floor")))
    for name in names:
        desk.open(name, Viewer(name))
        desk.watch(name, "within(place, 'campus')")
    for room in "12":
        desk.keep("x", f"campus/b/1/r{room}")
        desk.run(1_000_000)
    calls = 0

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    outer = sys.getprofile()
    sys.setprofile(profile)
    try:
        desk.keep("x", "campus/b/1/r3")
    finally:
        sys.setprofile(outer)
    desk.run(1_000_000)
    assert all(desk.sees(name) == {"x": "campus/b/1/r3"} for name in names)
    return calls


def test_an_object_that_names_twice_as_many_watchers_costs_twice_as_much() -> None:
    assert told_apart(120) <= 2.2 * told_apart(60)


def test_contexts_that_satisfy_the_same_queries_share_one_set_of_them() -> None:
    desk = watched(30, 512)
    contexts = desk.broker._server.map.contexts.values()
    sets = [view.matched for one in contexts for view in one.views.values() if view.matched]
    assert len(sets) >= CONTEXTS - 1
    assert len({id(one) for one in sets}) <= 2  # beside it what was there as rules came


@pytest.mark.parametrize("placed", [(3,), (9, 5), (1, 12), (4, 2, 7)])
def test_what_is_noted_ascends_whatever_the_order_it_was_placed_in(placed: Matched) -> None:
    desk = watched(0, 512)
    noting = desk.broker._server.contexts.notes
    found = noting._added((2, 4, 8), list(placed), range(20))
    assert found == tuple(sorted({2, 4, 8, *placed}))
    assert [query for query in range(20) if is_among(found, query)] == [*found]


def test_queries_that_are_gone_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "GONE_MAX", 4)
    desk = watched(2, 512)
    most = 0
    for number in range(50):
        desk.watch("eve", f"level <> {100 + number}", "passing")
        desk.unwatch("eve", "passing")
        views: list[ClassView] = []
        for one in desk.broker._server.map.contexts.values():
            views += [*one.views.values(), *(one.apart or {}).values()]
        most = max(most, *(len(view.matched) for view in views))
    assert most <= 2 * 3 + 4 + 1


@pytest.mark.parametrize("most", [40, 8])
def test_what_is_cached_of_sets_is_bounded_by_their_size(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "NUMBERS_MAX", most)
    desk = watched(10, 512)
    held = desk.broker._server.dissemination
    for level in (1, 2, 3, 4, -1, 1):
        desk.keep("v0", "hq/1", level=level)
        desk.run(1_000_000)
        for what in (held.shared, *(view.table for view in held.classes.values())):
            assert all(count <= bound for count, bound in what.occupancy().values())
        assert ("v0" in desk.sees("eve", "1")) == (level != 1)
    assert bool(held.shared.occupancy()["query sets"][0]) == (most == 40)


def test_what_is_remembered_of_long_contexts_is_bounded_by_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub, "FEATURES_BYTES_MAX", 9_000)
    monkeypatch.setattr(hub, "EVENTS_BYTES_MAX", 8_000)
    desk = Desk()
    desk.open("eve")
    desk.watch("eve", "within(place, 'hq')")
    for number in range(20):
        text = "x" * (3_000 if number % 5 == 4 else 300)
        desk.keep(f"v{number % 3}", f"hq/{number}", note=text)
        desk.run(1_000_000)
        held = desk.broker._hub.writer.occupancy()
        assert all(count <= bound for count, bound in held.values()), held
    assert desk.sees("eve") == {"v0": "hq/18", "v1": "hq/19", "v2": "hq/17"}


@pytest.mark.limit("limits.matches_per_subject_max")
@pytest.mark.parametrize("named", [False, True])
def test_an_object_satisfies_so_many_subscriptions_of_one_subject_and_not_one_more(
    named: bool,
) -> None:
    desk = Desk(HubSettings(matches_max=3))
    if named:
        desk.rules("x", (Rule(viewers=("eve", "*"), precision="exact"),))
    for name in ("eve#1", "eve#2", "eve#3", "bob"):
        desk.open(name, Viewer(name.partition("#")[0]))
    for number in range(2):
        desk.watch("eve#1", f"level <> {number}", str(number))
        desk.watch("bob", f"level <> {number}", str(number))
    desk.watch("bob", "level > 1", "2")
    desk.watch("eve#2", "level <> 0")
    desk.watch("eve#3", "level = 7")
    desk.keep("x", "hq/1", level=1)
    desk.keep("x", "hq/1", level=9)
    desk.watch("eve#2", "level <> 0", "again")  # the same query of the same session is one
    desk.keep("x", "hq/1", level=8)
    assert not any(reader.cut for reader in desk.readers.values())
    before = list(desk.readers["eve#1"].frames)
    desk.keep("x", "hq/1", level=7)
    desk.run(1_000_000)
    assert desk.readers["eve#1"].frames == before  # nothing of what is too much is told
    assert desk.readers["eve#1"].cut == (
        "too many subscriptions: one object satisfies more than 3 of yours, join filters with OR"
    )
    assert [name for name, reader in desk.readers.items() if reader.cut] == ["eve#1"]
    assert set(desk.broker._hub.sessions) == {"eve#2", "eve#3", "bob"}
    assert desk.sees("eve#3") == desk.sees("eve#2") == desk.sees("bob", "2") == {"x": "hq/1"}
