"""Checks of pairs of a need and a row: whatever times and boxes leave undecided, in bulk.

A lookup has few candidates for each row, so it checks pairs, column by column, and all messages
together: numbers by ranges, texts by the distinct texts of a file, circles and shapes as the
matching kernel does (decision 0156), anything else by the reference evaluator. Where that would be
too much, for many messages without a time or a box, `hold` gives up and the matching kernel decides
(decision 0250).
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from roamcast.matching.residuals import Candidates, Test, test_of, text_test
from roamcast.model.filters import values as sets
from roamcast.model.filters.atoms import Normal, Values
from roamcast.model.kernels import kernel
from roamcast.pipeline.archive.layout import Array

EXACT = 1 << 53
"""Integers below it are float64s."""

REFERENCE_MAX = 4_096
"""Candidates of a file that the reference evaluator decides one by one, some µs each."""

TRUTHS_MAX = 1 << 22
"""Pairs of a distinct text and a test that are decided for a file."""

NOWHERE = -2
"""The code of a text that a file does not hold."""


_TEXTS = {"place", "vid"}


class Columns(Protocol):
    """Columns of the row groups of a file that have candidates."""

    def numbers(self, name: str) -> Array:
        """Give an attribute's numbers, NaN where there is none."""

    def texts(self, name: str) -> tuple[Array, pa.Array]:
        """Give a property's texts: codes, -1 where there is none, and the distinct texts."""

    def table(self, parts: Sequence[Normal]) -> pa.Table:
        """Give the columns that some parts of normal forms speak of."""


@kernel
def in_ranges(which: Any, at: Any, count: int, values: Any, asked: Any, low: Any, high: Any) -> int:
    """Drop the pairs whose number lies outside its need's range; give how many are left."""
    kept = 0
    for pair in range(count):
        need, row = which[pair], at[pair]
        if asked[need] and not low[need] <= values[row] <= high[need]:  # NaN is in no range
            continue
        which[kept], at[kept] = need, row
        kept += 1
    return kept


@kernel
def with_texts(
    which: Any, at: Any, count: int, codes: Any, tests: Any, wanted: Any, truths: Any
) -> int:
    """Drop the pairs whose text fails its need's test; give how many are left.

    wanted: by test the code that it wants, or -3 minus the row of `truths` with its answers.
    """
    kept = 0
    for pair in range(count):
        need, row = which[pair], at[pair]
        test = tests[need]
        if test >= 0:
            code = codes[row]
            if code < 0:
                continue
            want = wanted[test]
            if want >= NOWHERE:
                if code != want:
                    continue
            elif not truths[-3 - want, code]:
                continue
        which[kept], at[kept] = need, row
        kept += 1
    return kept


class NumberRanges:
    """One closed range of an attribute's numbers for each need that asks."""

    def __init__(self, count: int, ranges: dict[int, tuple[float, float]]) -> None:
        self.asked: Array = np.zeros(count, bool)
        self.low: Array = np.full(count, -np.inf)
        self.high: Array = np.full(count, np.inf)
        needs = list(ranges)
        self.asked[needs] = True
        self.low[needs] = [low for low, _ in ranges.values()]
        self.high[needs] = [high for _, high in ranges.values()]


class TextTests:
    """Distinct tests of a property's text, and by need the number of its test (-1: none)."""

    def __init__(self, count: int, tests: dict[int, tuple[Normal, ...]]) -> None:
        numbers: dict[tuple[Normal, ...], int] = {}
        self.number: Array = np.full(count, -1, np.int32)
        self.number[list(tests)] = [numbers.setdefault(one, len(numbers)) for one in tests.values()]
        self._tests = list(numbers)
        self._only = [_only_text(one) for one in self._tests]

    def passing(self, which: Array, at: Array, codes: Array, texts: pa.Array) -> int | None:
        """Drop the pairs that fail; give how many are left, None if there is too much to decide."""
        used = np.unique(self.number[which])
        used = used[used >= 0].tolist()
        many = [test for test in used if self._only[test] is None]
        if len(many) * len(texts) > TRUTHS_MAX:
            return None
        wanted = np.full(len(self._tests), NOWHERE, np.int64)
        alone = [test for test in used if self._only[test] is not None]
        if alone:
            asked = pa.array([self._only[test] for test in alone], pa.string())
            wanted[alone] = np.asarray(_index_in(asked, texts))
        truths = np.zeros((max(1, len(many)), max(1, len(texts))), bool)
        for row, test in enumerate(many):
            wanted[test] = -3 - row
            truths[row, : len(texts)] = _decided(self._tests[test], texts)
        return with_texts(which, at, len(which), codes, self.number, wanted, truths)


def _index_in(asked: pa.Array, texts: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.index_in(asked, texts).fill_null(NOWHERE)


def _only_text(parts: tuple[Normal, ...]) -> str | None:
    """Give the one text that satisfies a test, if it is that simple."""
    part = parts[0]
    if len(parts) > 1 or not isinstance(part, Values) or len(part.intervals) != 1:
        return None
    low, high = part.intervals[0].low, part.intervals[0].high
    return low if isinstance(low, str) and low == high else None


def _decided(parts: tuple[Normal, ...], texts: pa.Array) -> Array:
    """Say for distinct texts whether they satisfy all parts of a test."""
    found = np.ones(len(texts), bool)
    for part in parts:
        if isinstance(part, Values):
            inside = (sets.contains(part.intervals, text) for text in texts.to_pylist())
            found &= np.fromiter(inside, bool, len(texts))
        else:
            known = text_test(part)
            assert known is not None
            found &= known[1](texts)
    return found


class Checks:
    """What is checked of each need's candidates beside times and box."""

    def __init__(self) -> None:
        self._ranges: dict[str, dict[int, tuple[float, float]]] = {}
        self._parts: dict[str, dict[int, tuple[Normal, ...]]] = {}
        self._others: dict[int, tuple[Normal, ...]] = {}
        self._tests: dict[int, tuple[list[Test], bool]] = {}
        self._numbers: dict[str, NumberRanges] = {}
        self._texts: dict[str, TextTests] = {}

    def add(self, need: int, part: Normal) -> None:
        """Note a part of a need's conjunction."""
        if isinstance(part, Values):
            if part.kind == "string":
                self._add_text(need, part.property, part)
                return
            if part.kind == "number" and len(part.intervals) == 1 and part.property not in _TEXTS:
                span = _closed(part.intervals[0])
                own = self._ranges.setdefault(part.property, {})
                if span is not None and need not in own:
                    own[need] = span
                    return
        else:
            known = text_test(part)
            if known is not None:
                self._add_text(need, known[0], part)
                return
        self._others[need] = (*self._others.get(need, ()), part)

    def _add_text(self, need: int, name: str, part: Normal) -> None:
        own = self._parts.setdefault(name, {})
        own[need] = (*own.get(need, ()), part)

    def finish(self, count: int) -> None:
        """Put what was noted into arrays over all needs."""
        self._numbers = {
            name: NumberRanges(count, one) for name, one in self._ranges.items() if one
        }
        self._texts = {name: TextTests(count, one) for name, one in self._parts.items()}
        self._has_other: Array = np.zeros(count, bool)
        self._has_other[list(self._others)] = True
        self._ranges, self._parts = {}, {}

    @property
    def texts(self) -> list[str]:
        """Properties whose distinct texts are tested."""
        return list(self._texts)

    def hold(self, which: Array, at: Array, columns: Columns) -> tuple[Array, Array] | None:
        """Give the pairs of need and row that satisfy everything; None if that is too much here."""
        for name, ranges in self._numbers.items():
            if not ranges.asked[which].any():
                continue
            values = columns.numbers(name)
            kept = in_ranges(which, at, len(which), values, ranges.asked, ranges.low, ranges.high)
            which, at = which[:kept], at[:kept]
        for name, tests in self._texts.items():
            if not (tests.number[which] >= 0).any():
                continue
            left = tests.passing(which, at, *columns.texts(name))
            if left is None:
                return None
            which, at = which[:left], at[:left]
        other = self._has_other[which]
        return self._hold_others(which, at, other, columns) if other.any() else (which, at)

    def _hold_others(
        self, which: Array, at: Array, other: Array, columns: Columns
    ) -> tuple[Array, Array] | None:
        asked = np.flatnonzero(other)
        asked = asked[np.argsort(which[asked], kind="stable")]
        own = which[asked]
        cuts = [0, *(np.flatnonzero(own[1:] != own[:-1]) + 1).tolist(), len(asked)]
        needs = own[cuts[:-1]].tolist()
        slow = sum(
            end - start
            for need, start, end in zip(needs, cuts, cuts[1:], strict=False)
            if not self._tests_of(need)[1]
        )
        if slow > REFERENCE_MAX:
            return None
        table = columns.table([part for need in needs for part in self._others[need]])
        held = ~other
        for need, start, end in zip(needs, cuts, cuts[1:], strict=False):
            mine = asked[start:end]
            candidates, chosen = Candidates(at[mine], table), np.arange(len(mine))
            for test in self._tests_of(need)[0]:
                chosen = chosen[test(candidates, chosen)]
            held[mine[chosen]] = True
        return which[held], at[held]

    def _tests_of(self, need: int) -> tuple[list[Test], bool]:
        """Give a need's tests, and whether all of them decide in bulk."""
        found = self._tests.get(need)
        if found is None:
            made = [test_of(part) for part in self._others[need]]
            found = [test for test, _ in made], all(bulk for _, bulk in made)
            self._tests[need] = found
        return found

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {
            "_tests": {}
        }  # prepared shapes and patterns are made where they run


def _closed(interval: sets.Interval) -> tuple[float, float] | None:
    """Give a range of numbers as closed float64 ends; None if they cannot say it exactly."""
    low = _end(interval.low, -np.inf, np.inf, closed=interval.low_closed)
    high = _end(interval.high, np.inf, -np.inf, closed=interval.high_closed)
    return None if low is None or high is None else (low, high)


def _end(
    value: sets.Scalar | None, unbounded: float, inwards: float, *, closed: bool
) -> float | None:
    if value is None:
        return unbounded
    if isinstance(value, str) or abs(value) >= EXACT:
        return None
    return float(value) if closed else float(np.nextafter(float(value), inwards))
