"""What a journal's updates would have cost under another q and m (0045).

The steps are those of `pipeline/journals/replay.py`, which a test holds to what a real server
sends. Only link clients count: sessions share frames in the broker's own process.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from roamcast.errors import InputError, LimitError
from roamcast.live.what_if.timeline import Window
from roamcast.model.records import QueryStep, UpdateMatched, kind_of
from roamcast.pipeline.journals.replay import Replay

SEGMENTS_MAX: Final = 2_000
"""Segments that one question reads: a week of a quiet service."""

_MATCHED: Final = kind_of(UpdateMatched)
_KINDS: Final = (_MATCHED, kind_of(QueryStep))
_COLUMNS: Final = ("time_us", "kind", "epoch", "matched", "query", "step", "receiver")


class ThresholdSetting(msgspec.Struct, frozen=True):
    """AMS's q and m."""

    subscribers_min: int
    history_max: int


class ChannelCost(msgspec.Struct, frozen=True):
    """What link clients' updates cost in a window."""

    updates: int
    """Updates that somebody on a link wanted."""
    transmissions: int
    """Messages that carried them: one on a channel, or one to a client."""
    announcements: int
    """Messages that told clients of channels."""
    channels_max: int
    """Channels at once."""


def cost_of(segments: Sequence[Path], window: Window, setting: ThresholdSetting) -> ChannelCost:
    """Replay a journal from its first segment on, and count what falls into the window."""
    begin, end = window
    replay = Replay(setting.subscribers_min, setting.history_max)
    epoch, counting, updates = 0, False, 0
    for row in _rows(segments):
        if row["time_us"] > end:
            break
        if not counting and row["time_us"] >= begin:
            counting = True
            replay.count_anew()
        if row["epoch"] != epoch:
            epoch = row["epoch"]
            replay.restart()
        if row["kind"] == _MATCHED:
            before = replay.transmissions
            replay.update(map(int, row["matched"].split()))
            updates += counting and replay.transmissions > before
        elif row["step"] == "placed":
            replay.placed(row["query"], row["view_class"], row["receiver"], remote=row["remote"])
        else:
            replay.withdrawn(row["query"], row["receiver"])
    if not counting:
        replay.count_anew()
    return ChannelCost(updates, replay.transmissions, replay.announcements, replay.channels_max)


def check_segments(segments: Sequence[Path]) -> None:
    """Refuse a journal that is empty, or too long for one question."""
    if not segments:
        raise InputError("the journal has no segment yet: see [journal] in the settings")
    if len(segments) > SEGMENTS_MAX:
        raise LimitError(
            f"the journal has {len(segments):,} segments, and {SEGMENTS_MAX:,} are read for one "
            "question: `roamcast pipeline plan` reads them all"
        )


def records_in(segments: Sequence[Path]) -> int:
    """Count the records of segments by their footers."""
    return sum(pq.read_metadata(path).num_rows for path in segments)


def _rows(segments: Sequence[Path]) -> Iterator[dict[str, Any]]:
    wanted = pa.array(_KINDS)  # not at import: it loads pandas, a tenth of a service's start
    for path in segments:
        table = pq.ParquetFile(path).read([*_COLUMNS, "view_class", "remote"])
        kinds = table["kind"].cast(pa.string())
        yield from table.filter(pc.is_in(kinds, wanted)).to_pylist()
