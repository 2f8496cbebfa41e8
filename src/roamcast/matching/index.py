"""The rows of a filter set: places and removes them, and grows the arrays that hold them.

`Index` knows rows and numbers. `Searcher` finds the rows of a context. `FilterSet` maps numbers to
ids and calls the reference evaluator where the index cannot decide.
"""

from collections.abc import Sequence

import numpy as np

from roamcast.errors import LimitError
from roamcast.matching import clustering, grids, hashing, layout
from roamcast.matching.layout import Array, Arrays, Tuning, grown
from roamcast.matching.vocabulary import PREDICATES_MAX, Row, Vocabulary

ROWS_MAX = 1 << 26
ROW_SPARE = 64
DEPTH_SPARE = 8
JOIN_SPARE = layout.SLOTS_MAX * (layout.LINES_MAX * layout.WIDTH_MAX + layout.CACHE_LINE)
"""Words of the pool that a page may take when the last rows of another are merged into it."""


class Index:
    """Rows in clusters, pages and records, with the vocabulary that encodes them."""

    def __init__(self, tuning: Tuning, vocabulary: Vocabulary | None = None) -> None:
        self.tuning = tuning
        self.vocabulary = vocabulary or Vocabulary()
        self.arrays: Arrays = layout.empty(tuning)
        self.rows = 0
        self._dropped: Array = np.empty(PREDICATES_MAX * 2, np.int64)

    def check_room(self, rows: int) -> None:
        """Raise LimitError if so many more rows would exceed the limit. Changes nothing."""
        if self.rows + rows > ROWS_MAX:
            raise LimitError(f"a set of filters has at most {ROWS_MAX} conjunctions")

    def roomy(self, rows: int, terms: int) -> bool:
        """Whether so many more rows surely fit, with so many terms."""
        return self.rows + rows <= ROWS_MAX and self.vocabulary.roomy(terms)

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
            pool = grown(self.arrays.pool, used + clustering.POOL_SPARE, used)
            self.arrays = self.arrays._replace(pool=pool)
        count = clustering.delete(self.arrays, row, self._dropped)
        if count:
            self.vocabulary.forget(self._dropped[:count].tolist())
        self.rows -= 1

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
        pool = int(counters[layout.POOL])
        self.arrays = arrays._replace(
            rows=grown(arrays.rows, int(counters[layout.ROWS]) + max(rows, ROW_SPARE)),
            records=grown(arrays.records, int(counters[layout.RECORD_WORDS]) + need),
            clusters=clusters,
            cluster_masks=grown(arrays.cluster_masks, len(clusters)),
            pages=pages,
            page_slots=grown(arrays.page_slots, len(pages) * layout.SLOTS_MAX * 2),
            pool=grown(arrays.pool, pool + clustering.POOL_SPARE, pool),
        )
        # At most half full, and a row may add a cluster per level.
        hashed = 2 * (int(counters[layout.HASHED]) + self.tuning.depth) + 2
        if hashed >= len(arrays.hash_keys):
            keys = np.full(2 * len(arrays.hash_keys), -1, np.int64)
            clusters_of = np.full(len(keys), -1, np.int32)
            hashing.rehash(arrays.hash_keys, arrays.hash_clusters, keys, clusters_of)
            self.arrays = self.arrays._replace(hash_keys=keys, hash_clusters=clusters_of)
