"""The rows of an archive that satisfy one filter, for questions that show more than vids.

The plan, the bounds and the kernel are those of a lookup; the rows come whole.
"""

from pathlib import Path

import pyarrow as pa

from roamcast.errors import LimitError
from roamcast.model.context_arrow import FIXED
from roamcast.model.filters import Filter
from roamcast.pipeline.archive.storage import GoneError
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.lookup.plan import Statistics, plan
from roamcast.pipeline.lookup.read import Reader
from roamcast.pipeline.lookup.run import PLANS_MAX

READ_MAX = 20_000_000
"""Rows in the files of a plan; more are Spark's."""


def matching(archive: str | Path, wanted: Filter, most: int) -> pa.Table:
    """Give the contexts that satisfy a filter, in the columns of `model.context_arrow`.

    Reading ends once there are more than `most`: the caller refuses those.
    """
    target = Archive.open(archive)
    reader = Reader([wanted])
    everything = [*(field.name for field in FIXED), *target.columns()]
    for _ in range(PLANS_MAX):
        shares = plan(Statistics(target), reader.needs)
        if sum(share.rows for share in shares) > READ_MAX:
            raise LimitError(
                f"this question reads more than {READ_MAX} archived contexts: ask for a shorter "
                "time, or use `roamcast pipeline lookup`"
            )
        found: list[pa.Table] = []
        try:
            for share in shares:
                found += reader.rows(target.storage, share, everything)
                if sum(part.num_rows for part in found) > most:
                    break
        except GoneError:
            target.check_there(share.path for share in shares)
            continue
        if not found:
            return pa.schema(FIXED).empty_table()
        return pa.concat_tables(found, promote_options="default")
    raise GoneError("others kept replacing files, ask again")
