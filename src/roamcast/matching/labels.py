"""Labels: integers that stand in compiled code for texts that are compared by order.

Only texts at the ends of predicates' intervals get a label. Any other text lies strictly between
two of them, which is all that a predicate distinguishes. Labels are reassigned when the room
between two runs out, so records refer to a text by number and look up its label when checked.
"""

from bisect import bisect_left, bisect_right

import numpy as np

from roamcast.errors import LimitError
from roamcast.matching.layout import HIGHEST, LOWEST, Array

FIRST, LAST = 0, 1
"""Numbers of the labels before and after all texts."""

BEFORE, AT, AFTER = 0, 1, 2
"""The position of a cut relative to its text: cut = number × 4 + one of these."""

TEXTS_MAX = 1 << 26
STEP = 4  # just before, at, just after a text, and between it and the next
SPAN = 1 << 61
STRIDE = 1 << 32
SETTLED_SINGLY_MAX = 64


class Labels:
    """The labels of the texts of all columns, by number."""

    def __init__(self) -> None:
        self.values: Array = np.zeros(64, np.int64)
        self.values[:2] = (LOWEST + STEP, HIGHEST - STEP)
        self.count = 2

    def take(self) -> int:
        """Return the next number; its label is assigned by the column's `settle`."""
        if self.count == TEXTS_MAX:
            raise LimitError(f"filters compare with at most {TEXTS_MAX} texts by order")
        if self.count == len(self.values):
            self.values = np.concatenate([self.values, np.zeros_like(self.values)])
        self.count += 1
        return self.count - 1


class TextOrder:
    """The ordered texts of one column."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self._sorted: list[str] = []
        self._waiting: list[str] = []

    def number(self, text: str, labels: Labels) -> int:
        """Return the text's number; a new text gets its label from `settle`."""
        found = self.numbers.get(text)
        if found is None:
            found = self.numbers[text] = labels.take()
            self._waiting.append(text)
        return found

    def forget_waiting(self) -> None:
        """Remove the texts that were added since the last `settle`."""
        for text in self._waiting:
            del self.numbers[text]
        self._waiting = []

    def settle(self, labels: Labels) -> None:
        """Label every new text."""
        waiting, self._waiting = self._waiting, []
        if len(waiting) > SETTLED_SINGLY_MAX:  # inserting many one by one would be quadratic
            self._sorted = sorted(self._sorted + waiting)
            self._relabel(labels)
            return
        for text in waiting:
            place = bisect_left(self._sorted, text)
            self._sorted.insert(place, text)
            label = self._between(place, labels)
            if label is None:
                self._relabel(labels)
            else:
                labels.values[self.numbers[text]] = label

    def label(self, text: str, labels: Labels) -> int:
        """Return the label of any text: its own, or one between its neighbours'."""
        place = bisect_right(self._sorted, text)
        if place == 0:
            return LOWEST + STEP + 2  # between FIRST and every known text
        before = self._sorted[place - 1]
        label = int(labels.values[self.numbers[before]])
        # An unknown text gets the odd label between its neighbour and the next, equal to no cut.
        return label if before == text else label + 2

    def _between(self, place: int, labels: Labels) -> int | None:
        """Return a label for the text at this index, None if its neighbours leave no room."""
        low = self._label_at(place - 1, labels) if place > 0 else None
        last = place == len(self._sorted) - 1
        high = None if last else self._label_at(place + 1, labels)
        if low is None and high is None:
            return 0
        if low is None or high is None:
            # At an end, take a fixed step: sorted input would otherwise halve the room each time.
            label = low + STRIDE if low is not None else (high or 0) - STRIDE
            return label if -SPAN < label < SPAN else None
        label = (low + high) // 2 // STEP * STEP
        return label if low + STEP <= label <= high - STEP else None

    def _label_at(self, place: int, labels: Labels) -> int:
        return int(labels.values[self.numbers[self._sorted[place]]])

    def _relabel(self, labels: Labels) -> None:
        """Spread all labels evenly."""
        numbers = np.array([self.numbers[text] for text in self._sorted], np.int64)
        stride = min(STRIDE, 2 * SPAN // (len(numbers) + 1)) // STEP * STEP
        start = -(len(numbers) // 2) * stride
        labels.values[numbers] = start + stride * np.arange(len(numbers), dtype=np.int64)
