"""`FilterSet`: the compiled set of filters. Add, remove, match one context or a batch."""

import pickle
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from roamcast.errors import InputError, LimitError
from roamcast.matching import hashing
from roamcast.matching.index import Index
from roamcast.matching.layout import ROW_OWNER, ROW_SIBLING, VERIFY, Array, Tuning, grown
from roamcast.matching.residuals import Residuals
from roamcast.matching.searching import Searcher
from roamcast.matching.vocabulary import Row, encode
from roamcast.model.context_arrow import to_arrow
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.atoms import All, Conjunction, Normal, conjunctions
from roamcast.model.filters.normal import merge

FILTERS_MAX = 1 << 24
CONJUNCTIONS_MAX = 32
"""Maximum rows of one disjunction; beyond it, the reference evaluator decides the filter."""

CHUNK = 16_384
"""Filters compiled together by `add_many`."""

BATCH_ROWS = 1024
"""Contexts searched together by `match_batch`."""


class Pairs(NamedTuple):
    """The result of `match_batch`: rows of the batch, ascending, and a filter's number for each.

    The filters of one row are in no particular order. A number stands for an id until a filter is
    added or removed. Group by number where possible: reading a million ids costs more than finding
    them (decision 0005).
    """

    rows: Array
    numbers: Array
    names: Array

    @property
    def ids(self) -> Array:
        """The filter ids, one for each row."""
        ids: Array = self.names[self.numbers]
        return ids

    def to_arrow(self) -> pa.Table:
        """Return the pairs as an Arrow table with the columns `row` and `id`."""
        return pa.table({"row": self.rows, "id": pa.array(self.ids, pa.string())})


class FilterSet:
    """Filters by id. Ids with equivalent filters share one compiled filter (they are *twins*).

    `match` returns ids in the order of the filters' numbers. A filter gets the number freed last,
    else the next unused one; a removal may move a twin's id to the freed number. Without removals
    this is the order of addition. The same calls always give the same order.
    """

    def __init__(self, *, tuning: Tuning | None = None, filters_max: int = FILTERS_MAX) -> None:
        self._index = Index(tuning or Tuning())
        self._searcher = Searcher()
        self._filters_max = filters_max
        self._numbers: dict[str, int] = {}
        self._names: Array = np.empty(64, object)
        self._free: list[int] = []
        self._owners: Array = np.full(64, -1, np.int32)  # number → number whose rows it shares
        self._first_rows: Array = np.full(64, -1, np.int32)
        self._digests: Array = np.empty(64, object)
        self._owner_of: dict[bytes, int] = {}
        self._residuals = Residuals()
        self._split = 0  # filters of several rows, whose ids can be found more than once

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    @property
    def ids(self) -> Iterator[str]:
        """The ids, in the order they were added."""
        return iter(self._numbers)

    def add(self, name: str, wanted: Filter) -> None:
        """Add a filter under a new id."""
        self._add_chunk([(name, wanted)])

    def roomy(self, filters: int, terms: int) -> bool:
        """Whether so many filters of so many terms each surely fit, whatever they say."""
        room = len(self) + filters <= self._filters_max
        return room and self._index.roomy(filters * CONJUNCTIONS_MAX, filters * terms)

    def add_many(self, items: Iterable[tuple[str, Filter]]) -> None:
        """Add many filters, much faster than one at a time. If one is invalid, none is added."""
        added: list[str] = []
        chunk: list[tuple[str, Filter]] = []
        try:
            for item in items:
                chunk.append(item)
                if len(chunk) == CHUNK:
                    self._add_chunk(chunk)
                    added += (name for name, _ in chunk)
                    chunk = []
            self._add_chunk(chunk)
        except BaseException:  # also KeyboardInterrupt: the set must not stay half extended
            for name in added:
                self.remove(name)
            raise

    def remove(self, name: str) -> None:
        """Remove the filter with this id."""
        number = self._numbers.pop(name, None)
        if number is None:
            raise InputError(f"no filter has the id {name!r}")
        owner = int(self._owners[number])
        twins = self._index.arrays.twins
        freed = int(twins[owner])
        if freed < 0:
            self._delete_rows(owner)
            del self._owner_of[self._digests[owner]]
            self._digests[owner] = None
            freed = owner
        else:  # remove the owner's first twin, and give the freed number to the twin's id
            twins[owner] = twins[freed]
            self._names[number] = moved = self._names[freed]
            if freed != number:
                self._numbers[moved] = number
            self._name_owner(owner)
        twins[freed] = -1
        self._names[freed] = None
        self._owners[freed] = self._first_rows[freed] = -1
        self._free.append(freed)

    def match(self, context: Context) -> list[str]:
        """Return the ids of the filters that the context satisfies."""
        ids: list[str] = self._names[self.match_numbers(context)].tolist()
        return ids

    def match_numbers(self, context: Context) -> Array:
        """Return the numbers of the filters that the context satisfies, ascending.

        A number stands for an id (`name_of`) until a filter is added or removed. The next call
        reuses the array. For callers that store data of their own per filter.
        """
        index = self._index
        event = encode(index.vocabulary, context)
        found = self._searcher.search(index.arrays, index.vocabulary.defaults, event)
        if self._residuals.parts:
            found = self._verified(found, context)
        if len(found) < 2:
            return found
        found.sort()
        return _distinct(found) if self._split else found

    def number_of(self, name: str) -> int:
        """Return the number of an id; InputError if unknown."""
        number = self._numbers.get(name)
        if number is None:
            raise InputError(f"no filter has the id {name!r}")
        return number

    def name_of(self, number: int) -> str:
        """Return the id of a number."""
        name: str = self._names[number]
        return name

    def match_batch(self, batch: pa.RecordBatch | pa.Table) -> Pairs:
        """Match contexts in the schema of `model.context_arrow`; return (row, filter) pairs."""
        from roamcast.matching.events_arrow import encode_batch

        index = self._index
        rows: list[Array] = []
        numbers: list[Array] = []
        for start in range(0, batch.num_rows, BATCH_ROWS):
            part = batch.slice(start, BATCH_ROWS)
            keys, given = encode_batch(index.vocabulary, part)
            found = self._searcher.search_batch(
                index.arrays, index.vocabulary.defaults, keys, given
            )
            if self._residuals.parts:
                found = self._verified(found, part)
            if self._residuals.parts or self._split:  # otherwise rows are in order already
                found.sort()
            if self._split and len(found) > 1:
                found = _distinct(found)
            rows.append(found >> 32 if start == 0 else (found >> 32) + start)
            numbers.append(found & 0xFFFFFFFF)
        if len(rows) == 1:
            return Pairs(rows[0], numbers[0], self._names)
        if not rows:
            return Pairs(np.empty(0, np.int64), np.empty(0, np.int64), self._names)
        return Pairs(np.concatenate(rows), np.concatenate(numbers), self._names)

    def warm_up(self, *, batches: bool = False) -> None:
        """Load the compiled code now, so that the first call does not wait for it.

        A throw-away set calls every kernel once; this set does not change. `batches`: also what
        matches Arrow tables, which no service does: making one loads pandas.
        """
        filters = FilterSet()
        filters.add("a", Filter.parse("a = 'x' AND b > 1 AND near(geometry, POINT(0 0), 1)"))
        context = Context("v", None, (0.0, 0.0), {"a": "x", "b": 2})
        assert filters.match(context) == ["a"]
        if batches:
            assert len(filters.match_batch(to_arrow([context])).rows) == 1
        filters.remove("a")
        # The hash table of so small a set is never rebuilt, so call that kernel directly.
        keys, clusters = np.full(2, -1, np.int64), np.full(2, -1, np.int32)
        hashing.rehash(keys, clusters, keys.copy(), clusters.copy())

    def snapshot(self) -> bytes:
        """Return the set as bytes for `load`, without what can be derived (decision 0007).

        It is a pickle: load only snapshots from trusted processes.
        """
        return pickle.dumps(self, protocol=pickle.HIGHEST_PROTOCOL)

    @classmethod
    def load(cls, data: bytes) -> "FilterSet":
        """Restore a set from the bytes of `snapshot`."""
        loaded = pickle.loads(data)  # noqa: S301 – our own snapshot
        assert isinstance(loaded, cls)
        return loaded

    def __getstate__(self) -> dict[str, Any]:
        from roamcast.matching.snapshots import freeze

        return freeze(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        from roamcast.matching.snapshots import thaw

        thaw(self, state)

    def _add_chunk(self, chunk: list[tuple[str, Filter]]) -> None:
        """Compile and place filters. If one is invalid, nothing changes."""
        names = [name for name, _ in chunk]
        for name in names:
            if name in self._numbers:
                raise InputError(f"the id {name!r} is already in use")
        if len(set(names)) < len(names):
            raise InputError("two of the filters to add have the same id")
        if len(self) + len(names) > self._filters_max:
            raise LimitError(f"a set has at most {self._filters_max} filters")
        # Everything that can fail comes first; from `_take_number` on nothing raises.
        digests = [digest(wanted.normal) for _, wanted in chunk]
        made = self._compiled(chunk, digests)
        rows: list[Row] = []
        owners: list[int] = []
        for name, key in zip(names, digests, strict=True):
            number = self._take_number(name)
            owner = self._owner_of.setdefault(key, number)
            if owner == number:
                self._owners[number] = number
                self._digests[number] = key
                self._split += len(made[key]) > 1
                rows += made[key]
                owners += [number] * len(made[key])
            else:
                self._add_twin(owner, number)
        if rows:
            self._place(rows, owners)

    def _compiled(
        self, chunk: list[tuple[str, Filter]], digests: list[bytes]
    ) -> dict[bytes, list[Row]]:
        """Return the rows of filters that are new; on failure the vocabulary is restored."""
        made: dict[bytes, list[Row]] = {}
        self._index.vocabulary.mark()
        try:
            for (_, wanted), key in zip(chunk, digests, strict=True):
                if key not in self._owner_of and key not in made:
                    made[key] = self._rows(wanted.normal)
            self._index.check_room(sum(map(len, made.values())))
        except BaseException:
            self._index.undo()
            raise
        return made

    def _place(self, rows: list[Row], owners: list[int]) -> None:
        marks = np.array([VERIFY if row.residual else 0 for row in rows], np.int64)
        placed = self._index.insert(rows, np.array(owners, np.int32), marks)
        siblings = self._index.arrays.rows
        for row, number, owner in zip(rows, placed.tolist(), owners, strict=True):
            if row.residual:
                self._residuals.add(number, row.residual)
            siblings[number, ROW_SIBLING] = self._first_rows[owner]
            self._first_rows[owner] = number

    def _rows(self, normal: Normal) -> list[Row]:
        """Return a filter's disjunctive normal form as rows."""
        found = conjunctions(normal, CONJUNCTIONS_MAX)
        parts: list[Conjunction] | list[tuple[Normal, ...]]
        if found is None:  # too many rows: index the common conjuncts, verify the rest by reference
            parts = [normal.parts if isinstance(normal, All) else (normal,)]
        elif len(found) > 1:  # merge to one atom per property, as `settling.implied` requires
            merged = (merge(part) for part in found)
            parts = list(dict.fromkeys(part for part in merged if part is not None))
        else:
            parts = found
        made = (self._index.vocabulary.row(part) for part in parts)
        return [row for row in made if row is not None]

    def _take_number(self, name: str) -> int:
        number = self._free.pop() if self._free else len(self._numbers)
        self._numbers[name] = number
        if number >= len(self._names):
            self._names = grown(self._names, number + 1)
            self._digests = grown(self._digests, len(self._names))
            self._owners = grown(self._owners, len(self._names))
            self._first_rows = grown(self._first_rows, len(self._names))
        self._names[number] = name
        self._first_rows[number] = -1
        self._index.set_twin(number, -1)
        return number

    def _add_twin(self, owner: int, number: int) -> None:
        twins = self._index.arrays.twins
        self._owners[number] = owner
        twins[number] = twins[owner]
        twins[owner] = number
        self._name_owner(owner)

    def _name_owner(self, owner: int) -> None:
        row = int(self._first_rows[owner])
        while row >= 0:
            self._index.name_owner(row, owner)
            row = int(self._index.arrays.rows[row, ROW_SIBLING])

    def _delete_rows(self, number: int) -> None:
        row, count = int(self._first_rows[number]), 0
        while row >= 0:
            following = int(self._index.arrays.rows[row, ROW_SIBLING])
            self._index.delete(row)
            self._residuals.drop(row)
            row = following
            count += 1
        self._split -= count > 1

    def _verified(self, found: Array, contexts: "Context | pa.RecordBatch | pa.Table") -> Array:
        """Verify candidates that the index cannot decide; return the owners of all matches."""
        unsure = found < 0
        rows = -1 - found[unsure]
        if not len(rows):
            return found
        if isinstance(contexts, Context):
            rows = rows[self._residuals.hold(rows, contexts)]
            base = np.zeros(len(rows), np.int64)
        else:
            rows, where = rows & 0xFFFFFFFF, rows >> 32
            held = self._residuals.hold_batch(rows, where, contexts)
            rows, base = rows[held], where[held] << 32
        arrays = self._index.arrays
        numbers = arrays.rows[rows, ROW_OWNER].astype(np.int64)
        sure = [found[~unsure], base | numbers]
        while True:  # an owner, its first twin, and so on
            numbers = arrays.twins[numbers].astype(np.int64)
            more = numbers >= 0
            if not more.any():
                return np.concatenate(sure)
            base, numbers = base[more], numbers[more]
            sure.append(base | numbers)


def digest(normal: Normal) -> bytes:
    """Hash a normal form: filters with equal normal forms are compiled once."""
    try:
        encoded = msgspec.msgpack.encode(normal)
    except OverflowError:  # an integer beyond 64 bits
        encoded = repr(normal).encode()
    return blake2b(encoded, digest_size=16).digest()


def _distinct(ascending: Array) -> Array:
    distinct: Array = ascending[np.concatenate([[True], ascending[1:] != ascending[:-1]])]
    return distinct
