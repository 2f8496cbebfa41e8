"""Snapshots of a filter set: its rows' words, its vocabulary and its ids (decision 0007).

Bitmaps, clusters and grids follow from the rows, so they are left out. A snapshot is small, and
loading it packs the set afresh. Numbers, and with them the order of results, are preserved.
"""

# ruff: noqa: SLF001 - part of FilterSet, in a module of its own

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from roamcast.matching.index import Index
from roamcast.matching.layout import (
    COLUMN_GRID,
    COLUMN_RENEW,
    COLUMN_SEEN,
    COLUMN_USES,
    ROW_OWNER,
    ROW_PREDICATES,
    ROW_RECORD,
    ROW_SIBLING,
    ROW_TOKENS,
    ROWS,
    TOKEN_USES,
    VERIFY,
    Array,
    Tuning,
)

if TYPE_CHECKING:
    from roamcast.matching.filter_set import FilterSet

FORMAT = 1


def freeze(filters: "FilterSet") -> dict[str, Any]:
    """Return the state that `thaw` restores."""
    index = filters._index
    index.vocabulary.mark()  # drop the undo log
    rows = index.arrays.rows[: int(index.arrays.counters[ROWS])]
    alive = np.flatnonzero(rows[:, ROW_OWNER] >= 0)
    kept = rows[alive]
    predicates = kept[:, ROW_PREDICATES].astype(np.int64)
    tokens = kept[:, ROW_TOKENS].astype(np.int64)
    place_of = {row: place for place, row in enumerate(alive.tolist())}
    count = len(filters) + len(filters._free)
    body = {
        "words": _gathered(index.arrays.records, kept[:, ROW_RECORD] + 1, 3 * predicates + tokens),
        "predicates": predicates.astype(np.int16),
        "tokens": tokens.astype(np.int16),
        "owners": kept[:, ROW_OWNER].copy(),
        "residuals": {place_of[row]: parts for row, parts in filters._residuals.parts.items()},
        "vocabulary": index.vocabulary,
        "numbers": filters._numbers,
        "free": filters._free,
        "owner_of_number": filters._owners[:count].copy(),
        "twins": index.arrays.twins[:count].copy(),
        "digests": b"".join(key or bytes(16) for key in filters._digests[:count]),
    }
    raw = pickle.dumps(body, protocol=pickle.HIGHEST_PROTOCOL)
    return {
        "format": FORMAT,
        "tuning": tuple(index.tuning),
        "filters_max": filters._filters_max,
        "size": len(raw),
        "body": pa.compress(raw, codec="zstd", asbytes=True),
    }


def thaw(filters: "FilterSet", state: dict[str, Any]) -> None:
    """Restore the set: place all rows in one bulk insertion."""
    assert state["format"] == FORMAT
    FilterSetType = type(filters)  # noqa: N806
    FilterSetType.__init__(
        filters, tuning=Tuning(*state["tuning"]), filters_max=state["filters_max"]
    )
    raw = pa.decompress(state["body"], decompressed_size=state["size"], codec="zstd")
    body = pickle.loads(raw)  # noqa: S301 – our own snapshot
    vocabulary = body["vocabulary"]
    vocabulary.columns[:, [COLUMN_USES, COLUMN_SEEN, COLUMN_RENEW]] = 0
    vocabulary.columns[:, COLUMN_GRID] = -1
    vocabulary.tokens[:, TOKEN_USES] = 0
    index = filters._index = Index(filters._index.tuning, vocabulary)
    filters._numbers, filters._free = body["numbers"], body["free"]
    _restore_ids(filters, body)
    marks = np.zeros(len(body["owners"]), np.int64)
    marks[list(body["residuals"])] = VERIFY
    rows = index.insert_words(
        body["words"],
        body["predicates"].astype(np.int64),
        body["tokens"].astype(np.int64),
        body["owners"],
        marks,
    ).tolist()
    for place, parts in body["residuals"].items():
        filters._residuals.add(rows[place], parts)
    counts = np.bincount(body["owners"], minlength=1)
    filters._split = int((counts > 1).sum())
    siblings = index.arrays.rows
    for row, owner in zip(rows, body["owners"].tolist(), strict=True):
        siblings[row, ROW_SIBLING] = filters._first_rows[owner]
        filters._first_rows[owner] = row


def _restore_ids(filters: "FilterSet", body: dict[str, Any]) -> None:
    owners, digests = body["owner_of_number"], body["digests"]
    count = len(owners)
    filters._names = np.empty(max(64, count), object)
    for name, number in filters._numbers.items():
        filters._names[number] = name
    filters._owners = np.full(len(filters._names), -1, np.int32)
    filters._owners[:count] = owners
    filters._first_rows = np.full(len(filters._names), -1, np.int32)
    filters._digests = np.empty(len(filters._names), object)
    for number in np.flatnonzero(owners == np.arange(count)).tolist():
        key = digests[16 * number : 16 * number + 16]
        filters._digests[number] = key
        filters._owner_of[key] = number
    for number, twin in enumerate(body["twins"].tolist()):
        filters._index.set_twin(number, twin)


def _gathered(records: Array, starts: Array, lengths: Array) -> Array:
    """Concatenate the rows' words."""
    if not len(starts):
        return np.empty(0, np.int64)
    ends = np.cumsum(lengths)
    within = np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths)
    gathered: Array = records[np.repeat(starts.astype(np.int64), lengths) + within]
    return gathered
