"""Labels against sorted texts: every comparison by label is the comparison of the texts."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from roamcast.errors import LimitError
from roamcast.matching import FilterSet, vocabulary
from roamcast.matching.layout import HIGHEST, LOWEST
from roamcast.matching.vocabulary import AFTER, AT, BEFORE, FIRST, LAST, Labels, TextOrder
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter

words = st.text(st.sampled_from("ab\ud7ff\ue000\U0010ffff"), max_size=4)
PROBES = [
    "",
    "a",
    "aa",
    "ab",
    "b",
    "ba",
    "\ud7ff",
    "\ud7ffa",
    "\ue000",
    "\U0010ffff",
    "\U0010ffffb",
]


def check(orders: list[TextOrder], labels: Labels) -> None:
    """Cuts stand at a text, just before or just after it; a context's text has one label."""
    for order in orders:
        for probe in {*PROBES, *order.numbers}:
            label = order.label(probe, labels)
            assert labels.values[FIRST] < label < labels.values[LAST]
            assert LOWEST < label < HIGHEST
            for text, number in order.numbers.items():
                at = int(labels.values[number])
                assert (label == at) is (probe == text), (probe, text)
                # the cuts of open ends: just before and just after the text (`grids.cut_label`)
                assert (label <= at + BEFORE - AT) is (probe < text), (probe, text)
                assert (label >= at + AFTER - AT) is (probe > text), (probe, text)


class Driven(RuleBasedStateMachine):
    """Two columns share the labels; texts come singly, in bulk, and are taken back."""

    @initialize()
    def start(self) -> None:
        self.labels, self.orders = Labels(), [TextOrder(), TextOrder()]
        self.known: list[set[str]] = [set(), set()]

    @rule(column=st.integers(0, 1), added=st.lists(words, min_size=1, max_size=6))
    def settle(self, column: int, added: list[str]) -> None:
        order = self.orders[column]
        numbers = {text: order.number(text, self.labels) for text in added}
        order.settle(self.labels)
        self.known[column].update(added)
        assert {text: order.number(text, self.labels) for text in added} == numbers

    @rule(column=st.integers(0, 1), start=words)
    def settle_many(self, column: int, start: str) -> None:
        """More than are settled singly."""
        self.settle_all(
            column,
            [start + chr(0x4E00 + step) for step in range(vocabulary.SETTLED_SINGLY_MAX + 1)],
        )

    def settle_all(self, column: int, added: list[str]) -> None:
        for text in added:
            self.orders[column].number(text, self.labels)
        self.orders[column].settle(self.labels)
        self.known[column].update(added)

    @rule(column=st.integers(0, 1), added=st.lists(words, min_size=1, max_size=6))
    def take_back(self, column: int, added: list[str]) -> None:
        """As `Vocabulary.undo`: numbers are given back with the texts."""
        count = self.labels.count
        for text in added:
            self.orders[column].number(text, self.labels)
        self.orders[column].forget_waiting()
        self.labels.count = count

    @invariant()
    def labels_are_in_the_order_of_the_texts(self) -> None:
        assert [set(order.numbers) for order in self.orders] == self.known
        taken = [number for order in self.orders for number in order.numbers.values()]
        assert len(set(taken)) == len(taken)
        check(self.orders, self.labels)


Driven.TestCase.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
TestDriven = Driven.TestCase


def driven() -> None:
    """Fill a narrow span from both ends and between neighbours, singly and in bulk."""
    texts = ["a", "c", "b", "bb", "bbb", "bbbb", *(chr(0x61 + step) * 2 for step in range(20))]
    for added in (texts, [*reversed(texts)]):
        with pytest.MonkeyPatch.context() as patch:
            # with a stride of 16 a third text between two neighbours finds no room
            patch.setattr(vocabulary, "STRIDE", 16)
            patch.setattr(vocabulary, "SPAN", 256)
            labels, order = Labels(), TextOrder()
            for text in added:
                order.number("taken back", labels)
                order.forget_waiting()
                labels.count -= 1
                order.number(text, labels)
                order.settle(labels)
                check([order], labels)
            assert set(order.numbers) == set(added)
            assert all(abs(int(labels.values[n])) < 256 for n in order.numbers.values())
            for step in range(vocabulary.SETTLED_SINGLY_MAX + 1):
                order.number(chr(0x4E00 + step), labels)
            patch.setattr(vocabulary, "SPAN", 1 << 61)
            order.settle(labels)
            check([order], labels)


def test_labels_are_spread_again_when_the_room_runs_out() -> None:
    driven()


def test_a_text_between_two_neighbours_equals_no_cut_of_either() -> None:
    labels, order = Labels(), TextOrder()
    for text in ("a", "c"):
        order.number(text, labels)
    order.settle(labels)
    assert len({order.label(text, labels) for text in ("", "a", "b", "c", "d")}) == 5


def test_what_is_remembered_of_a_place_ends_with_every_change_of_the_filters() -> None:
    held, here = FilterSet(filters_max=4), Context("v", "a/b/c", attributes={"n": 1})
    standing: dict[str, Filter] = {}

    def right() -> bool:
        return held.match(here) == [name for name, one in standing.items() if one.matches(here)]

    texts = ["within(place, 'a/b')", "place > 'a'", "place = 'a/b/c'", "place < 'a/b/d'"]
    for name, text in enumerate(texts):
        standing[str(name)] = Filter.parse(text)
        held.add(str(name), standing[str(name)])
        assert right()
    with pytest.raises(LimitError):
        held.add("beyond", Filter.parse("within(place, 'a') AND place <> 'a/b/b'"))
    assert right()
    for gone in [*standing]:
        del standing[gone]
        held.remove(gone)
        assert right()


def test_of_places_as_many_are_remembered_as_may_be_and_no_long_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vocabulary, "PLACES_REMEMBERED", 4)
    held = FilterSet()
    held.add("below", Filter.parse("within(place, 'a')"))
    remembered = held._index.vocabulary.places
    for number in range(4):
        assert held.match(Context("v", f"a/{number}")) == ["below"]
    assert len(remembered) == 4
    assert held.match(Context("v", "a/4")) == ["below"]
    assert [*remembered] == ["a/4"]
    room = vocabulary.PLACE_REMEMBERED_MAX - 2
    for length, known in ((room, True), (room + 1, False)):
        place = "a/" + "b" * length
        assert held.match(Context("v", place)) == ["below"]
        assert (place in remembered) is known
