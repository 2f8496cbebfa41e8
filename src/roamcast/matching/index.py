"""The bridge between Python and compiled code: grows the arrays and calls the kernels.

`Index` knows rows and numbers. `FilterSet` maps numbers to ids and calls the reference evaluator
where the index cannot decide.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from roamcast.errors import LimitError
from roamcast.matching import clustering, grids, hashing, layout, searching
from roamcast.matching.events import Event
from roamcast.matching.layout import Array, Arrays, Tuning, grown
from roamcast.matching.vocabulary import PREDICATES_MAX, Row, Vocabulary

ROWS_MAX = 1 << 26
PAIRS_MAX = 1 << 24
"""Maximum pairs found at once; a batch with more is split in half."""

ROW_SPARE = 64
DEPTH_SPARE = 8
JOIN_SPARE = layout.SLOTS_MAX * (layout.LINES_MAX * layout.WIDTH_MAX + layout.CACHE_LINE)
"""Words of the pool that a page may take when the last rows of another are merged into it."""


@lru_cache(maxsize=1024)
def _packer(kind: str, count: int) -> Callable[..., None]:
    """Return a packer of `count` numbers into a buffer: three times as fast as making an array."""
    return struct.Struct(f"{count}{kind}").pack_into


class Index:
    """Rows in clusters, pages and records, with the vocabulary that encodes them."""

    def __init__(self, tuning: Tuning, vocabulary: Vocabulary | None = None) -> None:
        self.tuning = tuning
        self.vocabulary = vocabulary or Vocabulary()
        self.arrays: Arrays = layout.empty(tuning)
        self.rows = 0
        self._pairs: Array = np.empty(1 << 12, np.int64)
        self._scratch: tuple[Array, ...] = ()
        self._words_max = -1
        self._defaults: Array = self.vocabulary.defaults
        self._table: Array = np.empty(0, np.int64)
        self._tabled: Arrays | None = None  # the arrays whose addresses are in the table
        self._listed: Array = np.empty(searching.LISTED_MAX, np.int64)
        self._dropped: Array = np.empty(PREDICATES_MAX * 2, np.int64)

    def check_room(self, rows: int) -> None:
        """Raise LimitError if so many more rows would exceed the limit. Changes nothing."""
        if self.rows + rows > ROWS_MAX:
            raise LimitError(f"a set of filters has at most {ROWS_MAX} conjunctions")

    def undo(self) -> None:
        """Undo the vocabulary's additions for rows that were not placed."""
        self.vocabulary.undo()
        self._adopt_vocabulary()  # its arrays may have been reallocated

    def insert(self, rows: Sequence[Row], owners: Array, marks: Array) -> Array:
        """Place rows; return their numbers."""
        words = np.array([word for row in rows for word in (*row.words, *row.tokens)], np.int64)
        predicates = np.array([len(row.words) // 3 for row in rows], np.int64)
        tokens = np.array([len(row.tokens) for row in rows], np.int64)
        return self.insert_words(words, predicates, tokens, owners, marks)

    def insert_words(
        self, words: Array, predicates: Array, tokens: Array, owners: Array, marks: Array
    ) -> Array:
        """Place rows that are already flat arrays."""
        self.vocabulary.settle()
        self._adopt_vocabulary()
        grids.survey(self.arrays, words, predicates, tokens)
        grids.renew_all(self.arrays, words, predicates, tokens)
        numbers = np.empty(len(owners), np.int32)
        done, word = 0, 0
        while done < len(owners):  # the kernel stops when an array is full; grow and go on
            length = int(3 * predicates[done] + tokens[done])
            self._make_room(length, (len(words) - word) * 5 // 4, len(owners) - done)
            done, word = clustering.insert(
                self.arrays, done, word, words, predicates, tokens, owners, marks, numbers
            )
        self.rows += len(owners)
        return numbers

    def delete(self, row: int) -> None:
        """Remove a row, and the vocabulary's values that no row uses any more."""
        used = int(self.arrays.counters[layout.POOL])
        if len(self.arrays.pool) - used < JOIN_SPARE:  # a removal may merge pages
            pool = grown(self.arrays.pool, used + clustering.POOL_SPARE)
            self.arrays = self.arrays._replace(pool=pool)
        count = clustering.delete(self.arrays, row, self._dropped)
        if count:
            self.vocabulary.forget(self._dropped[:count].tolist())
        self.rows -= 1

    def search(self, event: Event) -> Array:
        """Return the owners that one context satisfies, and -1 - row for rows yet to verify.

        The next search reuses the array.
        """
        numbers, tokens, other = event
        size = len(numbers) + len(tokens)
        while True:
            # Arrays are replaced as a whole (`_replace`), so identity tells whether the table of
            # addresses is stale.
            if self._tabled is not self.arrays or size + len(other) > self._words_max:
                self._write_table(size + len(other))
            _packer("d", size)(self._floats, 0, *numbers, *tokens)
            if other:
                _packer("q", len(other))(self._words, 0, *other)
            found = searching.search_context(self._table, len(numbers), len(tokens), len(other))
            if found <= len(self._pairs):
                return self._pairs[:found]
            self._grow_pairs(found)

    def search_batch(self, keys: Array, given: Array) -> Array:
        """Return what many contexts satisfy: context × 2³² + owner, or -1 - (… + row) to verify."""
        while True:
            if self._tabled is not self.arrays or given.shape[1] > self._words_max:
                self._write_table(given.shape[1])
            found = searching.search_batch(self._table, keys, given)
            if found <= len(self._pairs):
                return self._pairs[:found]
            if found > PAIRS_MAX and len(keys) > 1:
                half = len(keys) // 2
                first = self.search_batch(keys[:half], given[:half]).copy()
                second = self.search_batch(keys[half:], given[half:])
                # Shift the contexts' numbers; pairs to verify are stored negated.
                moved = second + np.where(second < 0, -1, 1) * (half << 32)
                return np.concatenate([first, moved])
            self._grow_pairs(found)

    def _grow_pairs(self, count: int) -> None:
        self._pairs = np.empty(count * 3 // 2, np.int64)
        self._tabled = None

    def _write_table(self, words: int) -> None:
        """Make room for a context of so many words, and rewrite the table of addresses."""
        columns, grids_count = (
            len(self.vocabulary.defaults),
            int(self.arrays.counters[layout.GRIDS]),
        )
        self._words_max = 2 * words
        tokens = self._words_max + layout.LEVELS * grids_count + 16
        self._floats: Array = np.empty(self._words_max, np.float64)
        self._words: Array = np.empty(self._words_max, np.int64)
        self._scratch = (
            np.empty(columns, np.int64),
            np.zeros(grids_count, np.int32),
            np.empty((tokens, 2), np.int64),
            np.empty(tokens * DEPTH_SPARE, np.int32),
            self._floats,
            self._words,
        )
        self._defaults = self.vocabulary.defaults
        self._table = searching.search_table(
            self.arrays, self._defaults, self._scratch, self._listed, self._pairs
        )
        self._tabled = self.arrays

    def set_twin(self, number: int, twin: int) -> None:
        """Link `twin` behind `number`: both have the same filter. -1 ends the chain."""
        if number >= len(self.arrays.twins):
            twins = grown(self.arrays.twins, number + 1)
            self.arrays = self.arrays._replace(twins=twins)
        self.arrays.twins[number] = twin

    def name_owner(self, row: int, owner: int) -> None:
        """Set a row's owner, and flag whether the owner has twins."""
        clustering.name_owner(self.arrays, row, owner)

    def _adopt_vocabulary(self) -> None:
        vocabulary, arrays = self.vocabulary, self.arrays
        room = int(arrays.counters[layout.GRIDS]) + vocabulary.columns_count
        self.arrays = arrays._replace(
            columns=vocabulary.columns,
            tokens=vocabulary.tokens,
            labels=vocabulary.labels.values,
            samples=grown(arrays.samples, vocabulary.columns_count),
            grids=grown(arrays.grids, room),
            grid_bounds=grown(arrays.grid_bounds, room * layout.LINES_MAX),
        )

    def _make_room(self, next_words: int, words: int, rows: int) -> None:
        """Grow the arrays that are too small for the next row, allowing for all remaining rows."""
        arrays, counters = self.arrays, self.arrays.counters
        clusters = grown(
            arrays.clusters, int(counters[layout.CLUSTERS]) + DEPTH_SPARE + self.tuning.depth
        )
        pages = grown(arrays.pages, int(counters[layout.PAGES]) + 2)
        need = max(words, 2 * next_words + 512)
        self.arrays = arrays._replace(
            rows=grown(arrays.rows, int(counters[layout.ROWS]) + max(rows, ROW_SPARE)),
            records=grown(arrays.records, int(counters[layout.RECORD_WORDS]) + need),
            clusters=clusters,
            cluster_masks=grown(arrays.cluster_masks, len(clusters)),
            pages=pages,
            page_slots=grown(arrays.page_slots, len(pages) * layout.SLOTS_MAX * 2),
            pool=grown(arrays.pool, int(counters[layout.POOL]) + clustering.POOL_SPARE),
        )
        # At most half full, and a row may add a cluster per level.
        hashed = 2 * (int(counters[layout.HASHED]) + self.tuning.depth) + 2
        if hashed >= len(arrays.hash_keys):
            keys = np.full(2 * len(arrays.hash_keys), -1, np.int64)
            clusters_of = np.full(len(keys), -1, np.int32)
            hashing.rehash(arrays.hash_keys, arrays.hash_clusters, keys, clusters_of)
            self.arrays = self.arrays._replace(hash_keys=keys, hash_clusters=clusters_of)
