"""A batch of few rows, in this process: the people it touches, and those whose time has come.

Reading, scan and files are those of a large batch, without Spark's jobs. Whether rows are few is
guessed from the files before they are read; it is a large batch if too many people turn out to be
due, or the layers have become too many.
"""

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from roamcast.identity import agent_core as core
from roamcast.identity.agent_settings import HEARTBEAT
from roamcast.pipeline.ingest import job, rows
from roamcast.pipeline.ingest.files import Reading, SightingFile
from roamcast.pipeline.ingest.layers import LAYERS_MAX, taken_over
from roamcast.pipeline.ingest.pack import sorted_rows
from roamcast.pipeline.ingest.read import read_file
from roamcast.pipeline.ingest.scan import EVER, UNSEEN
from roamcast.pipeline.ingest.state import HandlesOf, IngestState
from roamcast.pipeline.ingest.write import ScanAndWrite, WriteTask

HERE_ROWS = 50_000
"""Up to so many sightings, and people with them, a batch is done here (decision 0371)."""

STATE_ROWS = 200_000
"""A layer that is written here has at most so many people."""


class FewRows(msgspec.Struct, frozen=True):
    """A batch's rows, and what is remembered of its people; `layers` stay as they are."""

    table: pa.Table
    before: dict[str, int]
    layers: tuple[int, ...]

    def written(self, task: WriteTask, counted: dict[str, int]) -> job.Written:
        """Scan the rows and write a layer; `counted` is what the last batch counted of all."""
        told = ScanAndWrite(task).written(self.table)
        done = job.taken(pa.Table.from_batches([told]))
        kept = {
            kind: counted.get(kind, 0) - count + done.counts[kind]
            for kind, count in self.before.items()
        }
        return msgspec.structs.replace(done, counts=done.counts | kept)


def few_rows(
    state: IngestState,
    files: Sequence[SightingFile],
    reading: Reading,
    latest: int,
    unreadable: Sequence[tuple[str, str]],
    task: WriteTask,
    most: int,
) -> FewRows | None:
    """Give what a batch works on if that is little; None if it is not."""
    if job.expected(files, reading) > most:
        return None
    until = task.scan.release_until
    heartbeat = int(task.scan.settings.vector()[HEARTBEAT])
    layers = state.layers
    due = layers.due(until if until == EVER else until - heartbeat, until, most)
    if due is None or len(layers.folders) >= LAYERS_MAX:
        return None
    read = [part for file in files for part in read_file(file, reading, latest)]
    fresh = pa.concat_tables([*read, _dead_files(unreadable)])
    alive = fresh.filter(pc.is_null(fresh["reason"]))
    people = set(alive["person"].to_pylist())
    if fresh.num_rows > most:
        return None
    sizes = layers.sizes()
    count = taken_over(sizes, len(people | due), STATE_ROWS)
    stay = len(sizes) - count
    people |= layers.people(range(stay, len(sizes)))
    remembered = layers.of(people | due)
    remembered = _without_idle(remembered, people, until, heartbeat)
    table = pa.concat_tables([fresh, remembered])
    if state.handles_of is not None:
        table = pa.concat_tables([table, _strangers(people, remembered, state.handles_of)])
    ranks = remembered["rank"].to_numpy()
    before = {
        "people": int((ranks == rows.RANK_PERSON).sum()),
        "open": int((ranks == rows.RANK_OPEN).sum()),
        "pending": int((ranks == rows.RANK_SIGHTING).sum()),
    }
    told = tuple(state.numbers[:stay])
    return FewRows(sorted_rows(table.combine_chunks()), before, told)


def _dead_files(unreadable: Sequence[tuple[str, str]]) -> pa.Table:
    told = [
        {"reason": reason, "raw": path, "rank": rows.RANK_DEAD, "fresh": True}
        for path, reason in unreadable
    ]
    return pa.Table.from_pylist(told, schema=rows.TAKEN)


def _without_idle(table: pa.Table, people: set[str], until: int, heartbeat: int) -> pa.Table:
    """Leave out those whom a newer layer shows not to be due, and who have no rows."""
    if not table.num_rows:
        return table
    rank, time = table["rank"].to_numpy(), table["time"].fill_null(core.NEVER).to_numpy()
    ended = (rank == rows.RANK_OPEN) & ((until == EVER) | (time < until - heartbeat))
    ended |= (rank == rows.RANK_SIGHTING) & (time <= until)
    due = set(table["person"].filter(pa.array(ended)).to_pylist())
    wanted = pa.array(sorted(people | due), pa.string())
    return table.filter(pc.is_in(table["person"].cast(pa.string()), wanted))


def _strangers(people: set[str], remembered: pa.Table, handles_of: HandlesOf) -> pa.Table:
    """Give lines of the register for people who have none, with their handles."""
    new = sorted(people - set(remembered["person"].to_pylist()))
    told = [
        {
            "person": name,
            "handle": handle,
            "time": core.NEVER,
            "file": UNSEEN,
            "rank": rows.RANK_PERSON,
            "fresh": False,
        }
        for name, handle in zip(new, handles_of(new), strict=True)
    ]
    return pa.Table.from_pylist(told, schema=rows.TAKEN)
