"""The table of child clusters against a dict: collisions, full runs, gaps and extreme keys."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from roamcast.matching import hashing

SMALLEST = 8
EXTREMES = [0, 1, 2**31 - 1, 2**29 - 1]
"""Clusters and tokens are 32-bit numbers from 0."""


class HashTable:
    """The table as the index drives it: at most half full, doubled when it would be more.

    The kernels run as plain Python, so that a planted defect runs as well (test_filter_defects).
    """

    def __init__(self) -> None:
        self.keys = np.full(SMALLEST, -1, np.int64)
        self.values = np.zeros(SMALLEST, np.int64)
        self.count = 0

    def enter(self, cluster: int, token: int, value: int) -> None:
        if 2 * (self.count + 1) > len(self.keys):
            keys = np.full(2 * len(self.keys), -1, np.int64)
            values = np.zeros(2 * len(self.keys), np.int64)
            plain(hashing.rehash)(self.keys, self.values, keys, values)
            self.keys, self.values = keys, values
        plain(hashing.enter)(self.keys, self.values, (cluster << 32) | token, value)
        self.count += 1

    def leave(self, cluster: int, token: int) -> None:
        plain(hashing.leave)(self.keys, self.values, (cluster << 32) | token)
        self.count -= 1

    def find(self, cluster: int, token: int) -> int:
        return int(plain(hashing.find_child)(self.keys, self.values, cluster, token))


def plain(kernel: Any) -> Callable[..., Any]:
    """The Python function of a kernel."""
    return getattr(kernel, "py_func", kernel)  # type: ignore[no-any-return]


pairs = st.tuples(
    st.integers(0, 5) | st.sampled_from(EXTREMES), st.integers(0, 5) | st.sampled_from(EXTREMES)
)


def home(pair: tuple[int, int], size: int) -> int:
    """Where a key goes, by the multiplication written out."""
    mixed = ((pair[0] << 32) | pair[1]) * 0x9E3779B97F4A7C15 % 2**64
    return (mixed ^ (mixed >> 29)) & (size - 1)


COLLIDING = [pair for pair in ((c, t) for c in range(40) for t in range(40)) if home(pair, 64) < 2]
AT_THE_END = [
    pair for pair in ((c, t) for c in range(40) for t in range(40)) if home(pair, 64) > 61
]
"""Keys whose runs go around the end of the table."""


class Driven(RuleBasedStateMachine):
    """Entered and left keys, looked up after every step."""

    @initialize()
    def start(self) -> None:
        self.table, self.model = HashTable(), dict[tuple[int, int], int]()

    @rule(
        pair=pairs | st.sampled_from(COLLIDING) | st.sampled_from(AT_THE_END),
        value=st.integers(0, 2**31 - 1),
    )
    def enter(self, pair: tuple[int, int], value: int) -> None:
        if pair not in self.model:
            self.table.enter(*pair, value)
            self.model[pair] = value

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        pair = data.draw(st.sampled_from(sorted(self.model)))
        self.table.leave(*pair)
        del self.model[pair]

    @invariant()
    def finds_what_was_entered_and_nothing_else(self) -> None:
        for pair, value in self.model.items():
            assert self.table.find(*pair) == value
        for pair in [(0, 0), (5, 5), *COLLIDING[:4], *AT_THE_END[:4]]:
            assert self.table.find(*pair) == self.model.get(pair, -1)
        assert (self.table.keys >= 0).sum() == len(self.model)


Driven.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestDriven = Driven.TestCase


def churned(pairs: list[tuple[int, int]]) -> None:
    """Enter all, then delete one by one, looking all up after each: every gap is closed once."""
    for first in range(len(pairs)):
        order = pairs[first:] + pairs[:first]
        table, model = HashTable(), {}
        for value, pair in enumerate(pairs):
            table.enter(*pair, value)
            model[pair] = value
        assert {pair: table.find(*pair) for pair in pairs} == model
        for pair in order:
            table.leave(*pair)
            del model[pair]
            for other in pairs:
                assert table.find(*other) == model.get(other, -1), (pair, other)


def test_gaps_close_in_runs_of_colliding_keys_also_around_the_end() -> None:
    churned(COLLIDING[:9] + AT_THE_END[:9])


def test_a_table_that_grows_keeps_every_key() -> None:
    table = HashTable()
    for number in range(200):
        table.enter(number, 2**29 - 1 - number, number)
    assert [table.find(number, 2**29 - 1 - number) for number in range(200)] == list(range(200))
    assert table.find(200, 0) == -1
    assert len(table.keys) == 512


def test_compiled_and_plain_kernels_agree() -> None:
    table = HashTable()
    for number, pair in enumerate(COLLIDING[:12]):
        table.enter(*pair, number)
    for pair in COLLIDING[:14]:
        assert hashing.find_child(table.keys, table.values, *pair) == table.find(*pair)
