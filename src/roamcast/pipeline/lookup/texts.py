"""Distinct texts in their order, by their first eight bytes: in those most of them differ.

Hashing texts and comparing them costs some hundred nanoseconds each, sorting numbers a tenth.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roamcast.model.kernels import kernel
from roamcast.pipeline.archive.layout import Array

MIXED_MAX = 1_024
"""Groups of different texts with the same first bytes that are sorted apart; beyond, all are."""


@kernel
def first_bytes(data: Any, offsets: Any, keys: Any) -> None:
    """Write the first eight bytes of each text as a number with the order of the bytes."""
    for text in range(len(keys)):
        first, last = offsets[text], offsets[text + 1]
        key = np.uint64(0)
        for place in range(8):
            at = first + place
            key = (key << np.uint64(8)) | np.uint64(data[at] if at < last else 0)
        keys[text] = key


@kernel
def number(
    data: Any, offsets: Any, keys: Any, order: Any, ranks: Any, firsts: Any, mixed: Any
) -> tuple[int, int]:
    """Number equal neighbours of an order from 0; give how many numbers and mixed groups there are.

    firsts: a text of each number. mixed: the places in the order where another text follows with
    the same first bytes.
    """
    count, changes = 0, 0
    for place in range(len(order)):
        text = order[place]
        if place:
            before = order[place - 1]
            same = keys[text] == keys[before]
            if same:
                first, length = offsets[text], offsets[text + 1] - offsets[text]
                other = offsets[before]
                same = length == offsets[before + 1] - other
                at = 8
                while same and at < length:
                    same = data[first + at] == data[other + at]
                    at += 1
                if not same:
                    if changes < len(mixed):
                        mixed[changes] = place
                    changes += 1
            if not same:
                count += 1
        firsts[count] = text
        ranks[text] = count
    return count + 1, changes


def ranked(texts: pa.StringArray) -> tuple[Array, pa.Array]:
    """Return each text's place among the distinct ones, and those, in the order of code points."""
    if not len(texts):
        return np.zeros(0, np.int64), texts
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    data = texts.buffers()[2]
    raw = np.zeros(1, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
    keys = np.empty(len(texts), np.uint64)
    first_bytes(raw, offsets, keys)
    order = np.argsort(keys)
    ranks, firsts = np.empty(len(texts), np.int64), np.empty(len(texts), np.int64)
    mixed = np.empty(MIXED_MAX, np.int64)
    count, changes = number(raw, offsets, keys, order, ranks, firsts, mixed)
    if changes > MIXED_MAX:
        order = np.asarray(pc.sort_indices(texts)).astype(np.int64)
    elif changes:
        _sort_apart(texts, keys, order, mixed[:changes])
    if changes:
        count, _ = number(raw, offsets, keys, order, ranks, firsts, mixed)
    return ranks, texts.take(pa.array(firsts[:count]))


def _sort_apart(texts: pa.StringArray, keys: Array, order: Array, mixed: Array) -> None:
    """Sort the groups of one key that hold different texts."""
    ordered = keys[order]
    edges = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, [len(order)]])
    groups = np.unique(np.searchsorted(edges, mixed, "right") - 1)
    for start, end in ((edges[group], edges[group + 1]) for group in groups.tolist()):
        some = order[start:end]
        order[start:end] = some[np.asarray(pc.sort_indices(texts.take(pa.array(some))))]
