"""Encoding of Arrow batches for the kernel, column by column: a distinct text is encoded once."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roamcast.errors import ContextError
from roamcast.matching.checking import number_keys
from roamcast.matching.layout import MISSING, Array
from roamcast.matching.vocabulary import PropertyColumns, Vocabulary, places_of
from roamcast.model import kinds, time
from roamcast.model.context_arrow import check_columns
from roamcast.model.filters.atoms import T_D, T_R


class _Batch:
    """Keys and tokens of a batch, under construction."""

    def __init__(self, vocabulary: Vocabulary, rows: int) -> None:
        self.vocabulary = vocabulary
        self.keys: Array = np.empty((rows, len(vocabulary.defaults)), np.int64)
        self.keys[:] = vocabulary.defaults
        self.tokens: list[Array] = []

    def set(self, column: int, keys: Array, valid: Array | None) -> None:
        if valid is None:
            self.keys[:, column] = keys
        else:
            self.keys[valid, column] = keys[valid]


def encode_batch(vocabulary: Vocabulary, batch: pa.RecordBatch | pa.Table) -> tuple[Array, Array]:
    """Return a row of keys and a row of tokens (-1: none) for every context of the batch."""
    rows = batch.num_rows
    out = _Batch(vocabulary, rows)
    check_columns(batch.schema)
    columns = {name: _whole(batch.column(name)) for name in batch.schema.names}
    seen: dict[str, Array] = {}
    for name, column in columns.items():
        kind, colon, attribute = name.partition(":")
        known = vocabulary.properties.get(attribute)
        if colon and known is not None:
            _no_second_value(seen, attribute, column)
            _attribute(out, known, kind, column)
    for name in ("place", "vid"):
        known = vocabulary.properties.get(name)
        if known is not None:
            _texts(out, known, columns[name])
    for name in (T_R, T_D):
        known = vocabulary.properties.get(name)
        if known is not None and known.instant >= 0:
            _instants(out, known.instant, columns[name], time.FOREVER)
    _points(out, columns["lon"], columns["lat"])
    if not out.tokens:
        return out.keys, np.full((rows, 1), -1, np.int64)
    return out.keys, np.stack(out.tokens, axis=1)


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _valid(column: Any) -> Array | None:
    """Return the mask of rows that have a value; None if all have one."""
    return column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None


def _no_second_value(seen: dict[str, Array], attribute: str, column: Any) -> None:
    here = column.is_valid().to_numpy(zero_copy_only=False)
    before = seen.get(attribute)
    if before is not None:
        if (before & here).any():
            raise ContextError(f"attribute {attribute!r} has two values in one row")
        here |= before
    seen[attribute] = here


def _attribute(out: _Batch, known: PropertyColumns, kind: str, column: Any) -> None:
    compared = kinds.KINDS[kind].compared
    if compared == "string":
        _texts(out, known, column)
        return
    if compared == "boolean":
        truth = column.cast(pa.int64())
        if known.boolean >= 0:
            out.set(known.boolean, _integers(truth), _valid(column))
        _tokens(out, known.truth_tokens, column)
    elif compared == "instant":
        if known.instant >= 0:
            _instants(out, known.instant, column, None)
    else:
        _numbers(out, known.number, column)
        _tokens(out, known.number_tokens, column)
    _presence(out, known, column)


def _numbers(out: _Batch, at: int, column: Any) -> None:
    if pa.types.is_floating(column.type):
        filled = column.fill_null(0.0) if column.null_count else column
        numbers = filled.to_numpy(zero_copy_only=False)
        if not np.isfinite(numbers).all():
            raise ContextError("a number is not finite")
    else:
        numbers = _integers(column).astype(np.float64)
    if at >= 0:
        keys = np.empty(len(numbers), np.int64)
        number_keys(numbers, keys)
        out.set(at, keys, _valid(column))


def _integers(column: Any) -> Array:
    filled = column.fill_null(0) if column.null_count else column
    numbers: Array = filled.to_numpy(zero_copy_only=False)
    return numbers


def _instants(out: _Batch, at: int, column: Any, missing: int | None) -> None:
    instants = column.cast(pa.int64())
    if missing is not None:
        out.keys[:, at] = instants.fill_null(missing).to_numpy(zero_copy_only=False)
    else:
        out.set(at, _integers(instants), _valid(column))


def _presence(out: _Batch, known: PropertyColumns, column: Any) -> None:
    if known.presence >= 0:
        out.set(known.presence, np.ones(len(column), np.int64), _valid(column))


def _distinct(column: Any) -> tuple[Array, list[Any]]:
    """Return each row's index into the distinct values; -1 where there is no value."""
    coded = column.dictionary_encode()
    places = coded.indices
    if column.null_count:
        places = places.fill_null(-1)
    return places.to_numpy(zero_copy_only=False), coded.dictionary.to_pylist()


def _spread(places: Array, values: list[int], missing: int) -> Array:
    """Map each row to the entry of its distinct value; -1 selects `missing`, appended last."""
    spread: Array = np.array([*values, missing], np.int64)[places]
    return spread


def _tokens(out: _Batch, known: dict[Any, int], column: Any) -> None:
    if known:
        places, values = _distinct(column)
        out.tokens.append(_spread(places, [known.get(value, -1) for value in values], -1))


def _texts(out: _Batch, known: PropertyColumns, column: Any) -> None:
    places, values = _distinct(column)
    if known.text_tokens:
        tokens = _spread(places, [known.text_tokens.get(value, -1) for value in values], -1)
        out.tokens.append(tokens)
        out.keys[:, known.codes] = np.where(tokens < 0, MISSING, tokens)
    if not known.special:
        return
    labels = out.vocabulary.labels
    if known.order >= 0:
        found = [known.texts.label(value, labels) for value in values]
        out.keys[:, known.order] = _spread(places, found, MISSING)
    if known.within_tokens:
        within = [places_of(known, value) for value in values]
        for depth in range(max(map(len, within), default=0)):
            at_depth = [found[depth] if depth < len(found) else -1 for found in within]
            out.tokens.append(_spread(places, at_depth, -1))
    if known.instant >= 0:
        moments = (time.as_instant(value) for value in values)
        found = [MISSING if moment is None else moment for moment in moments]
        keys = _spread(places, found, MISSING)
        out.set(known.instant, keys, keys != MISSING)
    _presence(out, known, column)


def _points(out: _Batch, longitudes: Any, latitudes: Any) -> None:
    if longitudes.null_count != latitudes.null_count or (
        longitudes.null_count
        and not pc.equal(longitudes.is_valid(), latitudes.is_valid()).true_count == len(longitudes)
    ):
        raise ContextError("a row has a longitude without a latitude, or the reverse")
    _numbers(out, out.vocabulary.longitude, longitudes)
    _numbers(out, out.vocabulary.latitude, latitudes)
    known = out.vocabulary.properties.get("geometry")
    if known is not None:
        _presence(out, known, longitudes)
