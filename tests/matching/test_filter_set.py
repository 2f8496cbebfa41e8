"""The compiled set finds exactly what the reference finds, however filters come and go."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from roamcast.errors import InputError, LimitError
from roamcast.matching import FilterSet
from roamcast.matching import filter_set as module
from roamcast.matching.layout import Tuning
from roamcast.model.context_arrow import to_arrow
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from tests.strategies_matching import contexts, filters

STRATEGIES = {
    "as measured": Tuning(),
    "chains alone": Tuning(root_rows=1 << 30, chain_rows=1 << 30),
    "pages alone": Tuning(root_rows=1 << 30, chain_rows=0),
    "clusters of chains": Tuning(root_rows=0, cluster_rows=1, chain_rows=1 << 30),
    "clusters of pages": Tuning(root_rows=1, cluster_rows=2, chain_rows=0, depth=5),
}


def expected(held: dict[str, Filter], context: Context) -> set[str]:
    return {name for name, one in held.items() if one.matches(context)}


def made(held: dict[str, Filter], tuning: Tuning | None = None) -> FilterSet:
    index = FilterSet(tuning=tuning)
    index.add_many(held.items())
    return index


def parsed(*texts: str) -> dict[str, Filter]:
    return {f"f{number}": Filter.parse(text) for number, text in enumerate(texts)}


@settings(max_examples=300)
@given(st.lists(filters, max_size=12), st.lists(contexts(), min_size=1, max_size=5))
def test_a_match_is_what_the_reference_says_one_by_one_and_in_a_batch(
    given_filters: list[Filter], given_contexts: list[Context]
) -> None:
    held = {f"f{number}": one for number, one in enumerate(given_filters)}
    index = made(held)
    singles = [index.match(context) for context in given_contexts]
    for context, found in zip(given_contexts, singles, strict=True):
        assert len(found) == len(set(found))
        assert set(found) == expected(held, context)
    pairs = index.match_batch(to_arrow(given_contexts))
    listed = [(row, name) for row, found in enumerate(singles) for name in found]
    rows = pairs.rows.tolist()
    assert rows == sorted(rows)
    assert sorted(zip(rows, pairs.ids.tolist(), strict=True)) == sorted(listed)


@settings(max_examples=60)
@given(st.lists(filters, max_size=20), contexts())
def test_every_strategy_finds_the_same_in_the_same_order(
    given_filters: list[Filter], context: Context
) -> None:
    held = {f"f{number}": one for number, one in enumerate(given_filters)}
    answers = {name: made(held, tuning).match(context) for name, tuning in STRATEGIES.items()}
    assert set(answers["as measured"]) == expected(held, context)
    assert len({tuple(found) for found in answers.values()}) == 1


@settings(max_examples=60)
@given(st.lists(filters, max_size=12), st.data(), contexts())
def test_a_snapshot_matches_like_the_set_it_was_taken_of(
    given_filters: list[Filter], data: st.DataObject, context: Context
) -> None:
    held = {f"f{number}": one for number, one in enumerate(given_filters)}
    index = made(held)
    for name in data.draw(st.lists(st.sampled_from(sorted(held)), unique=True)) if held else []:
        index.remove(name)
        del held[name]
    for loaded in (FilterSet.load(index.snapshot()), pickle.loads(pickle.dumps(index))):
        assert list(loaded.ids) == list(index.ids)
        assert loaded.match(context) == index.match(context)
        for name, one in list(held.items()):  # and it can be changed like the first
            loaded.remove(name)
            loaded.add(name + "+", one)
        assert set(loaded.match(context)) == {name + "+" for name in expected(held, context)}


class Coming(RuleBasedStateMachine):
    """Filters come and go in any order; small clusters and pages, so that all paths are walked."""

    def __init__(self) -> None:
        super().__init__()
        self.index = FilterSet(tuning=Tuning(root_rows=2, cluster_rows=2, chain_rows=1))
        self.held: dict[str, Filter] = {}
        self.count = 0

    @rule(one=filters)
    def add(self, one: Filter) -> None:
        name = f"f{self.count}"
        self.count += 1
        self.index.add(name, one)
        self.held[name] = one

    @rule(some=st.lists(filters, max_size=8))
    def add_many(self, some: list[Filter]) -> None:
        named = {f"f{self.count + number}": one for number, one in enumerate(some)}
        self.count += len(some)
        self.index.add_many(named.items())
        self.held |= named

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.held:
            name = data.draw(st.sampled_from(sorted(self.held)))
            self.index.remove(name)
            del self.held[name]

    @rule(context=contexts())
    def match(self, context: Context) -> None:
        found = self.index.match(context)
        assert len(found) == len(set(found))
        assert set(found) == expected(self.held, context)

    @invariant()
    def ids_are_those_held(self) -> None:
        assert list(self.index.ids) == list(self.held)
        assert len(self.index) == len(self.held)


TestComing = Coming.TestCase
TestComing.settings = settings(max_examples=60, stateful_step_count=25)


def test_a_known_id_is_refused_and_nothing_changes() -> None:
    index = made(parsed("a = 1"))
    with pytest.raises(InputError, match="already"):
        index.add_many([("g", Filter.parse("a = 1")), ("f0", Filter.parse("a = 2"))])
    with pytest.raises(InputError, match="same id"):
        index.add_many([("g", Filter.parse("a = 1")), ("g", Filter.parse("a = 2"))])
    assert list(index.ids) == ["f0"]
    assert "g" not in index
    assert index.match(Context("v", attributes={"a": 1})) == ["f0"]


def test_add_many_is_all_or_nothing_over_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    index = made(parsed("a = 1"))
    items = [(f"g{number}", Filter.parse(f"a = {number}")) for number in range(5)]
    with pytest.raises(InputError):
        index.add_many([*items, ("f0", Filter.parse("a = 9"))])
    assert list(index.ids) == ["f0"]
    index.add_many(items)
    assert index.match(Context("v", attributes={"a": 1})) == ["f0", "g1"]


def test_an_unknown_id_cannot_be_removed() -> None:
    with pytest.raises(InputError, match="no filter has the id 'x'"):
        FilterSet().remove("x")


def test_ids_with_one_meaning_are_found_together_and_leave_one_by_one() -> None:
    index = FilterSet()
    for name in ("a", "b", "c"):
        index.add(name, Filter.parse("k = 'x' AND n > 1"))
    context = Context("v", attributes={"k": "x", "n": 2})
    assert sorted(index.match(context)) == ["a", "b", "c"]
    index.remove("a")  # the owner leaves: another takes over
    assert sorted(index.match(context)) == ["b", "c"]
    index.remove("c")
    assert sorted(index.match(context)) == ["b"]
    index.add("d", Filter.parse("n > 1 AND k = 'x'"))
    assert sorted(index.match(context)) == ["b", "d"]
    index.remove("b")
    index.remove("d")
    assert sorted(index.match(context)) == []


def test_results_come_in_the_order_of_addition() -> None:
    index = made(parsed(*[f"n > {-number}" for number in range(50)]))
    assert index.match(Context("v", attributes={"n": 1})) == [f"f{n}" for n in range(50)]


def test_a_set_holds_as_many_filters_as_its_limit_and_no_more() -> None:
    index = FilterSet(filters_max=2)
    index.add("a", Filter.parse("n = 1"))
    index.add("b", Filter.parse("n = 1"))
    with pytest.raises(LimitError, match="at most 2 filters"):
        index.add("c", Filter.parse("n = 1"))
    index.remove("a")
    index.add("c", Filter.parse("n = 1"))
    assert sorted(index.match(Context("v", attributes={"n": 1}))) == ["b", "c"]


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_disjunctions_up_to_the_limit_are_indexed_and_beyond_it_still_right(extra: int) -> None:
    count = module.CONJUNCTIONS_MAX + extra
    text = " OR ".join(f"(n = {number} AND k = 'k{number}')" for number in range(count))
    held = parsed(text, f"w = 'x' AND ({text})")
    index = made(held)
    assert index._index.rows == (2 * count if extra <= 0 else 2)
    for number in (0, count - 1, count):
        for kind in (f"k{number}", "other"):
            context = Context("v", attributes={"n": number, "k": kind, "w": "x"})
            assert set(index.match(context)) == expected(held, context)


def test_warming_up_leaves_no_trace() -> None:
    index = made(parsed("n = 1"))
    index.warm_up(batches=True)
    assert len(index) == 1
