"""Query records and the history of sets: the paper's steps, and what a disjunction becomes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.channels.server.queries import QueryTable, SharedQueries, take_apart
from roamcast.channels.server.view_class import History
from roamcast.channels.spread.streams import Pool
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.sim.workloads._map_parts import ScanMatcher

LEAVES = ("place = 'a'", "place = 'b'", "within(place, 'a')", "kind = 1", "kind > 2", "open")


def texts() -> st.SearchStrategy[str]:
    def joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        parts = st.lists(inner, min_size=2, max_size=3)
        return st.one_of(
            parts.map(lambda some: "(" + " OR ".join(some) + ")"),
            parts.map(lambda some: "(" + " AND ".join(some) + ")"),
            inner.map(lambda one: f"(NOT {one})"),
        )

    return st.recursive(st.sampled_from(LEAVES), joined, max_leaves=6)


@given(
    texts(),
    st.builds(
        Context,
        st.just("v"),
        st.sampled_from(["a", "b", "a/x", None]),
        st.none(),
        st.fixed_dictionaries({}, optional={"kind": st.integers(0, 4), "open": st.booleans()}),
    ),
)
def test_one_part_of_a_disjunction_holds_exactly_when_it_holds(text: str, one: Context) -> None:
    wanted = Filter.parse(text)
    parts = take_apart(wanted, 16)
    assert any(part.matches(one) for part in parts) == wanted.matches(one)
    assert len(parts) <= 16


def test_parts_are_equal_to_the_standard_queries_they_are_made_of() -> None:
    parts = take_apart(Filter.parse("place = 'l2' OR place IN ('l1', 'l3')"), 16)
    assert {part.text for part in parts} == {
        Filter.parse(f"place = 'l{number}'").text for number in (1, 2, 3)
    }


def test_at_the_limit_of_parts_a_disjunction_stays_whole() -> None:
    wanted = Filter.parse(" OR ".join(f"kind = {number}" for number in range(16)))
    assert len(take_apart(wanted, 16)) == 16
    assert take_apart(wanted, 15) == [wanted]


def test_the_history_counts_recurrences_and_discards_the_least_recently_used() -> None:
    history = History(2)
    assert history.note((1, 2))[0].count == 1
    assert history.note((3,))[0].count == 1
    assert history.note((1, 2))[0].count == 2
    entry, discarded = history.note((4, 5))
    assert entry.count == 1
    assert discarded is not None
    assert discarded.queries == (3,)  # used before (1, 2) was used again
    assert len(history) == 2
    history.forget((1, 2))
    assert history.note((1, 2))[0].count == 1
    history.clear()
    assert len(history) == 0


@given(st.data())
def test_a_step_between_queries_is_right_however_queries_come_and_go(data: st.DataObject) -> None:
    shared = SharedQueries(ScanMatcher())
    table = QueryTable("", shared, 10)
    texts = [f"kind = {number}" for number in range(4)] + ["kind > 1", "kind < 2"]
    next_number, before = 0, ()
    for _ in range(data.draw(st.integers(1, 25))):
        text = data.draw(st.sampled_from(texts))
        known = table.known(text)
        if known is None:
            next_number += 1
            table.add(next_number, Filter.parse(text), ())
        elif data.draw(st.booleans()):
            known.members = None
            table.remove(known)
        context = Context("v", "lab", None, {"kind": data.draw(st.integers(0, 3))})
        standing = table.records.items()
        right = {number for number, one in standing if one.filter.matches(context)}
        after = dict(shared.match(context)).get("", ())
        assert after == tuple(sorted(right))
        step = table.change(before, after)
        still = {query for query in before if query in table.records}
        assert step.queries == tuple(sorted(still | right))
        assert (set(step.before), step.after) == (still, after)
        assert [one.number for one in step.records] == list(step.queries)
        assert {one.number for one in step.left} == still - right
        assert {one.number for one in step.entered} == right - set(before)
        before = after


def test_at_the_limit_of_remembered_sets_and_steps_they_are_put_together_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("roamcast.channels.server.queries.SETS_MAX", 2)
    shared = SharedQueries(ScanMatcher())
    table = QueryTable("", shared, 10)
    for number in range(4):
        table.add(number + 1, Filter.parse(f"kind = {number}"), ())
    before = ()
    for kind in (0, 1, 2, 3, 0, 1):
        after = dict(shared.match(Context("v", "lab", None, {"kind": kind}))).get("", ())
        assert after == (kind + 1,)
        assert table.change(before, after).queries == tuple(sorted({*before, *after}))
        before = after
        assert shared.occupancy()["query sets"][0] <= 2
        assert table.occupancy()["query changes"][0] <= 2


def test_a_pool_has_so_many_channels_at_a_time_and_uses_no_name_again() -> None:
    pool = Pool("", 2)
    names = {pool.take(), pool.take()}
    assert pool.take() is None
    for _ in range(5):
        pool.give_back()
        assert pool.free
        name = pool.take()
        assert name is not None
        assert name not in names
        names.add(name)
        assert not pool.free
    assert pool.used == 2
    assert Pool("guest", 1).take() != Pool("staff", 1).take()
    assert Pool("guest", 1, epoch=1).take() != Pool("guest", 1, epoch=2).take()
