"""The vocabulary of a filter set: maps property names and values to columns, keys and tokens.

A property has one column for each way it is compared: as a number, as a text by code (equality) or
by order, as a boolean, as an instant, and by presence. `Vocabulary.row` encodes a conjunction of a
filter, `encode` a context.

Texts compared by order are labelled: integers that stand for them in compiled code. Only texts at
the ends of predicates' intervals get a label. Any other text lies strictly between two of them,
which is all that a predicate distinguishes. Labels are reassigned when the room between two runs
out, so records refer to a text by number and look up its label when checked.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from roamcast.errors import LimitError
from roamcast.matching.keys import is_point, number_ends, number_key, whole_ends
from roamcast.matching.layout import (
    CODES,
    COLUMN_ORDINALS,
    HIGHEST,
    LOWEST,
    MISSING,
    MORE,
    ORDERED,
    ORDERS,
    RANGES,
    Array,
    grown,
)
from roamcast.model import kinds, time
from roamcast.model.contexts import Context
from roamcast.model.filters.atoms import T_D, T_R, Box, Normal, Presence, Residual, Values
from roamcast.model.filters.values import Interval, Intervals, inside_place

COLUMNS_MAX = 1 << 16
WAYS_MAX = 8
"""Columns, values or texts that one term may add, at most."""

PLACES_REMEMBERED = 2048
PLACE_REMEMBERED_MAX = 128
"""Places whose encoding is remembered until a filter is added or removed, and their length."""

TOKENS_KNOWN_MAX = 1 << 29
PREDICATES_MAX = 4096
"""Maximum intervals in one row; further atoms are left to the reference evaluator."""

FIRST, LAST = 0, 1
"""Numbers of the labels before and after all texts."""

BEFORE, AT, AFTER = 0, 1, 2
"""The position of a cut relative to its text: cut = number × 4 + one of these."""

TEXTS_MAX = 1 << 26
STEP = 4  # just before, at, just after a text, and between it and the next
SPAN = 1 << 61
STRIDE = 1 << 32
SETTLED_SINGLY_MAX = 64

Event = tuple[list[float], list[int], list[int]]
"""An encoded context: alternating columns and numbers; tokens; alternating columns and keys."""


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


class PropertyColumns:
    """A property's columns (-1: not compared that way) and the tokens of its values."""

    __slots__ = (
        "boolean",
        "codes",
        "instant",
        "number",
        "number_tokens",
        "order",
        "presence",
        "special",
        "text_tokens",
        "texts",
        "truth_tokens",
        "within",
        "within_tokens",
    )

    def __init__(self) -> None:
        self.number = self.codes = self.order = self.boolean = self.instant = -1
        self.presence = self.within = -1
        self.number_tokens: dict[Any, int] = {}
        self.text_tokens: dict[Any, int] = {}
        self.truth_tokens: dict[Any, int] = {}
        self.within_tokens: dict[Any, int] = {}
        self.texts = TextOrder()
        self.special = False  # compared by more than a text's code or a number


class Row:
    """One conjunction, encoded for the kernel."""

    __slots__ = ("residual", "tokens", "words")

    def __init__(self) -> None:
        self.words: list[int] = []
        self.tokens: list[int] = []
        self.residual: list[Normal] = []


class Vocabulary:
    """All properties, columns and tokens that the filters of a set use."""

    def __init__(self) -> None:
        self.properties: dict[str, PropertyColumns] = {}
        self.columns: Array = np.zeros((16, 6), np.int64)
        self.columns_count = 0
        self.defaults: Array = np.zeros(0, np.int64)
        self.tokens: Array = np.zeros((64, 4), np.int32)
        self.tokens_count = 0
        self.labels = Labels()
        self.longitude = self.latitude = -1
        self._unsettled: dict[int, TextOrder] = {}
        self._token_homes: list[tuple[dict[Any, int], Any]] = []
        self._tokens_free: list[int] = []
        self.mark()

    def mark(self) -> None:
        """Set the point that `undo` returns to."""
        self.places: dict[str, tuple[list[int], list[int]]] = {}
        self._marked = (self.columns_count, self.defaults, self.labels.count)
        self._columns_made: list[tuple[PropertyColumns | Vocabulary, str]] = []
        self._properties_made: list[str] = []
        self._tokens_made: list[int] = []

    def roomy(self, terms: int) -> bool:
        """Whether so many terms surely fit: each takes WAYS_MAX columns, values and texts."""
        most = WAYS_MAX * terms
        return (
            self.columns_count + most <= COLUMNS_MAX
            and self.tokens_count + most <= TOKENS_KNOWN_MAX
            and self.labels.count + most <= TEXTS_MAX
        )

    def undo(self) -> None:
        """Remove everything added since `mark`; no row that uses it may have been placed."""
        self.forget(self._tokens_made)
        for owner, way in self._columns_made:
            setattr(owner, way, -1)
        for name in self._properties_made:
            del self.properties[name]
        for texts in self._unsettled.values():
            texts.forget_waiting()
        self._unsettled.clear()
        self.columns_count, self.defaults, self.labels.count = self._marked
        self.mark()

    def settle(self) -> None:
        """Label new texts; required before rows that use them are placed."""
        self.places.clear()
        for texts in self._unsettled.values():
            texts.settle(self.labels)
        self._unsettled.clear()

    def forget(self, tokens: Sequence[int]) -> None:
        """Remove tokens that no row uses any more."""
        self.places.clear()
        for token in tokens:
            home, value = self._token_homes[token]
            del home[value]
            self._token_homes[token] = ({}, None)
            self._tokens_free.append(token)

    def row(self, conjunction: Sequence[Normal]) -> Row | None:
        """Encode a conjunction; None if it can never hold."""
        row = Row()
        for atom in conjunction:
            if isinstance(atom, Values):
                if atom.kind == "string" and self._text(atom, row):  # most terms are of one text
                    continue
                if not atom.intervals:
                    return None
                self._values(atom, row)
            elif isinstance(atom, Presence):
                key = int(atom.present)
                _write(row, self._presence(atom.property), [(key, key)])
            elif isinstance(atom, Box):
                self._box(atom, row)
            else:
                # The envelope is a necessary condition: it keeps most contexts from the evaluator.
                if isinstance(atom, Residual) and atom.envelope is not None:
                    self._box(atom.envelope, row)
                row.residual.append(atom)
        return row

    def property(self, name: str) -> PropertyColumns:
        """Return the property with this name, creating it if needed."""
        found = self.properties.get(name)
        if found is None:
            found = self.properties[name] = PropertyColumns()
            self._properties_made.append(name)
        return found

    def _text(self, atom: Values, row: Row) -> bool:
        """Encode a term that is of one text, if its property is compared so already."""
        known = self.properties.get(atom.property)
        if known is None or known.codes < 0 or len(atom.intervals) != 1:
            return False
        interval, codes = atom.intervals[0], known.codes
        if interval.low is None or interval.low != interval.high:
            return False
        if len(row.words) >= 3 * PREDICATES_MAX:
            return False
        code = known.text_tokens.get(interval.low)
        if code is None:
            code = self._token(known.text_tokens, interval.low, codes, sets=codes)
        row.words += (codes, code, code)
        row.tokens.append(code)
        return True

    def _values(self, atom: Values, row: Row) -> None:
        if len(row.words) // 3 + len(atom.intervals) > PREDICATES_MAX:
            row.residual.append(atom)
            return
        known = self.property(atom.property)
        if atom.kind == "string":
            self._texts(known, atom.intervals, row)
        elif atom.kind == "number":
            self._numbers(known, atom, row)
        elif atom.kind == "boolean":
            self._column(known, "boolean", RANGES)
            known.special = True
            _write(row, known.boolean, [whole_ends(interval) for interval in atom.intervals])
            self._token_of_point(known.truth_tokens, known.boolean, atom.intervals, row)
        else:
            self._column(known, "instant", RANGES)
            known.special = True
            _write(row, known.instant, [whole_ends(interval) for interval in atom.intervals])

    def _numbers(self, known: PropertyColumns, atom: Values, row: Row) -> None:
        self._column(known, "number", RANGES)
        ends = [number_ends(interval) for interval in atom.intervals]
        _write(row, known.number, [(low, high) for low, high, _ in ends])
        if not all(exact for _, _, exact in ends):
            row.residual.append(atom)
        self._token_of_point(known.number_tokens, known.number, atom.intervals, row)

    def _token_of_point(
        self, home: dict[Any, int], column: int, intervals: Intervals, row: Row
    ) -> None:
        if len(intervals) == 1 and is_point(intervals[0]):
            row.tokens.append(self._token(home, intervals[0].low, column, sets=-1))

    def _texts(self, known: PropertyColumns, intervals: Intervals, row: Row) -> None:
        if all(is_point(interval) for interval in intervals):
            self._column(known, "codes", CODES)
            codes = [
                self._token(known.text_tokens, interval.low, known.codes, sets=known.codes)
                for interval in intervals
            ]
            _write(row, known.codes, [(code, code) for code in codes])
            if len(codes) == 1:  # a context with another value never needs to see this row
                row.tokens.append(codes[0])
            return
        self._column(known, "order", ORDERS)
        known.special = True
        self._unsettled[id(known.texts)] = known.texts
        cuts = [self._cuts(known.texts, interval) for interval in intervals]
        _write(row, known.order, cuts, ORDERED)
        # The set of a place and everything within it is a token as well: contexts list their
        # places from the path upwards (`places_of`).
        path = intervals[0].low
        if len(intervals) == 2 and isinstance(path, str) and inside_place(path) == intervals:
            self._column(known, "within", RANGES)
            row.tokens.append(self._token(known.within_tokens, path, known.within, sets=-1))

    def _cuts(self, texts: TextOrder, interval: Interval) -> tuple[int, int]:
        low, high = FIRST * 4 + AT, LAST * 4 + AT
        if interval.low is not None:
            assert isinstance(interval.low, str)
            side = AT if interval.low_closed else AFTER
            low = texts.number(interval.low, self.labels) * 4 + side
        if interval.high is not None:
            assert isinstance(interval.high, str)
            side = AT if interval.high_closed else BEFORE
            high = texts.number(interval.high, self.labels) * 4 + side
        return low, high

    def _presence(self, name: str) -> int:
        known = self.property(name)
        if known.presence < 0:
            self._column(known, "presence", RANGES)
            self.defaults[known.presence] = 0  # absent unless the context says otherwise
            known.special = True
        return known.presence

    def _box(self, box: Box, row: Row) -> None:
        self._column(self, "longitude", RANGES)
        self._column(self, "latitude", RANGES)
        _write(row, self.longitude, [(number_key(box.west), number_key(box.east))])
        _write(row, self.latitude, [(number_key(box.south), number_key(box.north))])

    def _column(self, owner: "PropertyColumns | Vocabulary", way: str, kind: int) -> None:
        """Ensure that there is a column for comparing the property this way."""
        if getattr(owner, way) >= 0:
            return
        column = self.columns_count
        if column == COLUMNS_MAX:
            raise LimitError(f"the filters of a set compare at most {COLUMNS_MAX} columns")
        self.columns_count += 1
        self.columns = grown(self.columns, column + 1)
        self.columns[column] = 0
        self.columns[column, :2] = (kind, -1)
        self.defaults = np.append(self.defaults, MISSING)
        setattr(owner, way, column)
        self._columns_made.append((owner, way))

    def _token(self, home: dict[Any, int], value: Any, column: int, *, sets: int) -> int:
        """Return the token of a value, creating it if needed."""
        token = home.get(value)
        if token is not None:
            return token
        if self._tokens_free:
            token = self._tokens_free.pop()
            self._token_homes[token] = (home, value)
        else:
            token = self.tokens_count
            if token == TOKENS_KNOWN_MAX:
                raise LimitError(f"the filters of a set have at most {TOKENS_KNOWN_MAX} values")
            self.tokens_count += 1
            self._token_homes.append((home, value))
            self.tokens = grown(self.tokens, token + 1)
        home[value] = token
        self._tokens_made.append(token)
        self.tokens[token] = (column, sets, self.columns[column, COLUMN_ORDINALS] & 0x7FFFFFFF, 0)
        self.columns[column, COLUMN_ORDINALS] += 1
        return token


def encode(vocabulary: Vocabulary, context: Context) -> Event:
    """Encode a context with the vocabulary; attributes that no filter mentions are left out."""
    numbers: list[float] = []
    tokens: list[int] = []
    other: list[int] = []
    properties = vocabulary.properties
    mentioned = context.attributes
    if len(properties) < len(mentioned):  # most filters mention few attributes: ask for those alone
        mentioned = {name: mentioned[name] for name in properties if name in mentioned}
    for name, value in mentioned.items():
        known = properties.get(name)
        if known is None:
            continue
        kind = type(value)
        if kind is str:
            token = known.text_tokens.get(value)
            if token is not None:
                tokens.append(token)
        else:
            number: Any = value
            if kind is not float and kind is not int:  # these are what they are compared as
                number = kinds.scalar(value, "number")
            if number is not None and known.number >= 0:
                numbers += (known.number, number)
                if known.number_tokens:
                    token = known.number_tokens.get(number)
                    if token is not None:
                        tokens.append(token)
        if known.special:
            _special(vocabulary, known, value, other, tokens)
    _frame(vocabulary, context, numbers, other, tokens)
    return numbers, tokens, other


def _frame(
    vocabulary: Vocabulary,
    context: Context,
    numbers: list[float],
    other: list[int],
    tokens: list[int],
) -> None:
    """Add the properties beside the attributes: place, vid, time and point."""
    properties = vocabulary.properties
    known = properties.get("place")
    if known is not None and context.place is not None:
        found = vocabulary.places.get(context.place)
        if found is None:
            found = _place(vocabulary, known, context.place)
        tokens += found[0]
        other += found[1]
    known = properties.get("vid")
    if known is not None:
        _text(vocabulary, known, context.vid, other, tokens)
    known = properties.get(T_R)
    if known is not None and known.instant >= 0:
        other += (known.instant, context.t_r)
    known = properties.get(T_D)
    if known is not None and known.instant >= 0:
        other += (known.instant, context.end)
    if context.point is None:
        return
    if vocabulary.longitude >= 0:
        longitude, latitude = context.point
        numbers += (vocabulary.longitude, longitude, vocabulary.latitude, latitude)
    known = properties.get("geometry")
    if known is not None and known.presence >= 0:
        other += (known.presence, 1)


def _place(
    vocabulary: Vocabulary, known: PropertyColumns, path: str
) -> tuple[list[int], list[int]]:
    """Encode a place: its tokens, its columns and keys. Many contexts are at few places."""
    tokens: list[int] = []
    other: list[int] = []
    _text(vocabulary, known, path, other, tokens)
    if len(path) <= PLACE_REMEMBERED_MAX:
        if len(vocabulary.places) >= PLACES_REMEMBERED:
            vocabulary.places.clear()
        vocabulary.places[path] = tokens, other
    return tokens, other


def _text(
    vocabulary: Vocabulary, known: PropertyColumns, text: str, other: list[int], tokens: list[int]
) -> None:
    token = known.text_tokens.get(text)
    if token is not None:
        tokens.append(token)
    if known.special:
        _special(vocabulary, known, text, other, tokens)


def _special(
    vocabulary: Vocabulary, known: PropertyColumns, value: Any, other: list[int], tokens: list[int]
) -> None:
    """Add columns for comparisons beyond equality: order, place, boolean, instant, presence."""
    if known.presence >= 0:
        other += (known.presence, 1)
    if isinstance(value, str):
        if known.order >= 0:
            other += (known.order, known.texts.label(value, vocabulary.labels))
        if known.within_tokens:
            tokens += places_of(known, value)
        if known.instant >= 0:
            instant = time.as_instant(value)
            if instant is not None:
                other += (known.instant, instant)
        return
    kind = kinds.kind_of(value)
    assert kind is not None
    if kind.compared == "boolean" and known.boolean >= 0:
        truth: Any = kind.scalar(value)
        other += (known.boolean, truth)
        if truth in known.truth_tokens:
            tokens.append(known.truth_tokens[truth])
    elif kind.compared == "instant" and known.instant >= 0:
        moment: Any = kind.scalar(value)
        other += (known.instant, moment)


def places_of(known: PropertyColumns, path: str) -> list[int]:
    """Return the tokens of the places that contain a path, from the path itself upwards."""
    found = []
    end = len(path)
    while end >= 0:
        token = known.within_tokens.get(path[:end])
        if token is not None:
            found.append(token)
        end = path.rfind("/", 0, end)
    return found


def _write(row: Row, column: int, ends: Sequence[tuple[int, int]], flags: int = 0) -> None:
    last = len(ends) - 1
    for i, (low, high) in enumerate(ends):
        row.words += (column | flags | (MORE if i < last else 0), low, high)
