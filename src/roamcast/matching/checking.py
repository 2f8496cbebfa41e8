"""Exact checks of a context against the predicates of a row's record."""

import numpy as np

from roamcast.matching.grids import cut_label
from roamcast.matching.layout import COLUMN_BITS, MORE, ORDERED, PREDICATE_WORDS, Array, Int
from roamcast.model.kernels import inlined, kernel


@kernel
def number_key(value: float) -> Int:
    """Map a float64 to an int64 of the same order; -0.0 and 0.0 get the same key."""
    bits = np.float64(value + 0.0).view(np.int64)  # + 0.0 turns -0.0 into 0.0
    return bits if bits >= 0 else bits ^ np.int64(0x7FFFFFFFFFFFFFFF)


@kernel
def number_keys(values: Array, keys: Array) -> None:
    """Map many numbers to their keys."""
    for i in range(len(values)):
        keys[i] = number_key(values[i])


@inlined
def satisfied_plain(records: Array, keys: Array, at: Int, predicates: Int) -> Int:
    """Check every predicate without a branch: a misprediction costs more than 5 checks (0005)."""
    ok = True
    for _ in range(predicates):
        key = keys[records[at] & COLUMN_BITS]
        ok &= (records[at + 1] <= key) & (key <= records[at + 2])
        at += PREDICATE_WORDS
    return ok


@inlined
def satisfied(records: Array, labels: Array, keys: Array, at: Int, predicates: Int) -> Int:
    """Check every predicate of a record exactly."""
    end = at + PREDICATE_WORDS * predicates
    while at < end:
        word = records[at]
        key = keys[word & COLUMN_BITS]
        found = False
        while True:
            low, high = records[at + 1], records[at + 2]
            if word & ORDERED:
                low, high = cut_label(labels, low), cut_label(labels, high)
            found |= low <= key <= high
            at += PREDICATE_WORDS
            if not word & MORE:
                break
            word = records[at]
        if not found:
            return False
    return True
