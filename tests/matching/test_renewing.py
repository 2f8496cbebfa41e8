"""A renewing set answers as a plain one, and what filters occupied is given back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import LimitError
from roamcast.matching import FilterSet, renewing, vocabulary
from roamcast.matching.renewing import RenewingSet
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter

TEXTS = ["a = 1", "a > 2", "b = 'x'", "b > 'm'", "c{i} = 1", "a = 1 OR b < 'c{i}'", "d IS NULL"]


@settings(max_examples=25)
@given(st.data())
def test_it_finds_what_a_plain_set_finds_while_it_renews_itself(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(renewing, "TERMS_MIN", 2)
        patch.setattr(renewing, "LATER_MAX", data.draw(st.integers(1, 5)))
        ours, plain, known = RenewingSet(), FilterSet(), []
        for number in range(data.draw(st.integers(1, 40))):
            if known and data.draw(st.booleans()):
                name = known.pop(data.draw(st.integers(0, len(known) - 1)))
                ours.remove(name)
                plain.remove(name)
            else:
                text = data.draw(st.sampled_from(TEXTS)).format(i=number)
                ours.add(str(number), Filter.parse(text))
                plain.add(str(number), Filter.parse(text))
                known.append(str(number))
            assert ours.occupancy()["filters to place"][0] < renewing.LATER_MAX
            if data.draw(st.booleans()):
                continue  # what was added waits
            attributes = {"a": data.draw(st.integers(0, 3)), "b": data.draw(st.sampled_from("amx"))}
            context = Context("v", "lab", None, {**attributes, f"c{number}": 1})
            assert sorted(ours.match(context)) == sorted(plain.match(context))
            held, most = ours.occupancy()["removed terms"]
            assert held <= most


def test_a_set_that_removed_filters_fill_takes_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "COLUMNS_MAX", 8)
    ours = RenewingSet()
    for number in range(8):
        ours.add(str(number), Filter.parse(f"a{number} = 1"))
    with pytest.raises(LimitError):
        ours.add("one more", Filter.parse("b = 1"))
    ours.remove("3")
    ours.add("one more", Filter.parse("b = 1"))
    assert ours.match(Context("v", "lab", None, {"b": 1, "a3": 1, "a4": 1})) == ["4", "one more"]


def test_a_thousand_that_go_together_move_no_more_than_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(renewing, "TERMS_MIN", 16)
    ours = RenewingSet()
    for number in range(600):
        ours.add(str(number), Filter.parse(f"a{number} = 1"))
    ours._place()
    moved: list[int] = []
    add_many = FilterSet.add_many

    def counted(self: FilterSet, items: list[tuple[str, Filter]]) -> None:
        moved.append(len(items))
        add_many(self, items)

    monkeypatch.setattr(FilterSet, "add_many", counted)
    began = 0
    for number in range(500):
        ours.remove(str(number))
        began += ours._next is not None or bool(moved)
        assert sum(moved) <= renewing.MOVES * began
    assert moved
    assert max(moved) <= renewing.MOVED_TOGETHER
    assert len(moved) <= sum(moved) // renewing.MOVED_TOGETHER + 4  # mostly many at once
    for number in (499, 500, 599):
        found = ours.match(Context("v", "lab", None, {f"a{number}": 1}))
        assert found == ([] if number == 499 else [str(number)])


def occupied(ours: RenewingSet) -> tuple[int, int]:
    """Columns, tokens and texts that are known, and the bytes of all arrays."""
    ours._place()
    index = ours._set._index
    words = index.vocabulary
    known = words.columns_count + words.tokens_count + words.labels.count
    return known, sum(array.nbytes for array in index.arrays)


@pytest.mark.parametrize(
    ("count", "terms_min"),
    [(1_500, 256), pytest.param(200_000, 4_096, marks=[pytest.mark.soak, pytest.mark.slow])],
)
@pytest.mark.parametrize("text", ["a{i} = 1", "a > 't{i}'", "a = 't{i}'"])
def test_what_filters_occupied_is_given_back_when_they_go(
    text: str, count: int, terms_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewing, "TERMS_MIN", terms_min)
    ours = RenewingSet()
    for number in range(20):
        ours.add(f"standing {number}", Filter.parse(f"kind = {number}"))
    before = occupied(ours)
    most = 0
    for start in range(0, count, 100):
        for one in range(start, start + 100):
            ours.add(str(one), Filter.parse(text.format(i=one)))
        for one in range(start, start + 100):
            ours.remove(str(one))
        most = max(most, occupied(ours)[0])
    assert most <= before[0] + 3 * (terms_min + 300)
    kind = Filter.parse("kind = 1")
    for one in range(2 * terms_min):  # whatever is left over goes with the next removals
        ours.add(str(one), kind)
        ours._place()  # one that is removed while it waits takes nothing
        ours.remove(str(one))
    assert occupied(ours)[0] <= before[0] + 2
    assert occupied(ours)[1] <= 1.1 * before[1]
    assert ours.match(Context("v", "lab", None, {"kind": 7})) == ["standing 7"]
