"""Counts with differential privacy: noise and a threshold, within a stated budget (OpenDP).

One vid counts in at most `cells` cells, so with it or without it at most so many counts differ,
each by one. Noise hides that, and cells whose noisy count lies below a threshold are left out: that
a cell is there at all would tell that somebody was. The threshold follows from the budget. The
mechanism and its proof are OpenDP's (`make_laplace_threshold`, decision 0252).
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from roamcast.errors import InputError, LimitError, MissingError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CELLS = 8
"""Cells that one vid may count in; its others are dropped, chosen by a hash of vid and cell."""

DELTA = 1e-8
EPSILON_MAX = 10.0
THRESHOLD_MAX = 1_000_000_000
CELLS_MAX = 5_000_000
"""Cells of one table: their noise is drawn in one task, which has to see all of them."""


class Budget(msgspec.Struct, frozen=True):
    """What one table may tell of one vid: odds change by e^epsilon at most, but for delta."""

    epsilon: float
    delta: float = DELTA
    cells: int = CELLS

    def check(self) -> "Budget":
        """Return the budget if it can be kept; nothing starts before."""
        if not 0 < self.epsilon <= EPSILON_MAX:
            raise InputError(f"epsilon lies above 0, and up to {EPSILON_MAX:g}")
        if not 0 < self.delta <= 1e-4:
            raise InputError(
                "delta lies above 0, and up to 0.0001: it is the chance of telling all"
            )
        if not 1 <= self.cells <= 1_000:
            raise InputError("one vid counts in 1 to 1000 cells")
        self.threshold()
        return self

    def threshold(self) -> int:
        """Give the noisy count from which a cell is told."""
        dp = _opendp()

        def suffices(threshold: float) -> bool:
            return bool(self.mechanism(int(threshold)).map(self._distance)[1] <= self.delta)

        return int(dp.binary_search(suffices, bounds=(1, THRESHOLD_MAX)))

    def mechanism(self, threshold: int) -> Any:
        """Make OpenDP's measurement over counts by the numbers of their cells."""
        dp = _opendp()
        counts = dp.map_domain(dp.atom_domain(T="i64"), dp.atom_domain(T="i64"))
        distance = dp.l01inf_distance(dp.absolute_distance(T="i64"))
        made = dp.m.make_laplace_threshold(
            counts, distance, scale=self.cells / self.epsilon, threshold=threshold
        )
        told = made.map(self._distance)[0]
        assert told <= self.epsilon * (1 + 1e-9), "the library's proof is the budget"
        return made

    @property
    def _distance(self) -> tuple[int, int, int]:
        """How counts differ by one vid: in how many cells, in sum, and in one cell."""
        return self.cells, self.cells, 1


def _opendp() -> Any:
    try:
        import opendp.prelude as dp
    except ImportError:
        raise MissingError("noise needs OpenDP: pip install 'roamcast[privacy]'") from None
    dp.enable_features("contrib")
    return dp


def noisy(seen: "DataFrame", cell: Sequence[str], budget: Budget) -> "DataFrame":
    """Count the vids of each cell, with noise; `seen` has a row for each vid and cell, or more."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    _opendp()
    threshold = budget.check().threshold()
    each = seen.select("vid", *cell).distinct()
    # which cells of a vid count depends on nothing but that vid
    chosen = Window.partitionBy("vid").orderBy(f.xxhash64("vid", *cell), *cell)
    bounded = each.withColumn("turn", f.row_number().over(chosen)).where(
        f.col("turn") <= budget.cells
    )
    counted = bounded.groupBy(*cell).agg(f.count("*").alias("count"))

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = list(batches)
        if held:
            yield from drawn(pa.Table.from_batches(held), budget, threshold).to_batches()

    return counted.repartition(1).mapInArrow(work, counted.schema).select(*cell, "count")


def drawn(counted: pa.Table, budget: Budget, threshold: int) -> pa.Table:
    """Draw the noise of a table of counts; give the cells from the threshold on, in no order."""
    if counted.num_rows > CELLS_MAX:
        raise LimitError(
            f"a table with noise has at most {CELLS_MAX} cells: count by fewer segments"
        )
    counts = dict(enumerate(counted["count"].to_pylist()))
    told = sorted(budget.mechanism(threshold)(counts).items())
    rows = np.array([row for row, _ in told], np.int64)
    numbers = pa.array([count for _, count in told], pa.int64())
    at = counted.schema.get_field_index("count")
    return counted.take(pa.array(rows)).set_column(at, counted.schema.field(at), numbers)
