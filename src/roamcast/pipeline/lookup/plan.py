"""The plan of a lookup: which files can hold a match, and for which needs."""

import msgspec
import numpy as np

from roamcast.pipeline.archive.bounds import FileBounds
from roamcast.pipeline.archive.layout import Array
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.lookup.needs import Needs

CHUNK = 256
"""Needs compared with all files in one go: memory stays at a few megabytes."""


class Share(msgspec.Struct, frozen=True):
    """One file to read and the needs that it may satisfy."""

    path: str
    rows: int
    needs: Array


class Statistics:
    """What the table's log says of its files; made once for a snapshot."""

    def __init__(self, archive: Archive) -> None:
        self.version = archive.version
        files = archive.files()
        self.paths: list[str] = files["path"].to_pylist()
        self.bounds = FileBounds(files)


def plan(statistics: Statistics, needs: Needs) -> list[Share]:
    """Give the files to read, each with the needs that it may satisfy."""
    pairs = [np.empty((2, 0), np.int64)]
    for start in range(0, needs.count, CHUNK):
        chosen = np.arange(start, min(start + CHUNK, needs.count))
        which, files = np.nonzero(statistics.bounds.possible(needs, chosen))
        pairs.append(np.stack([which + start, files]))
    which, files = np.concatenate(pairs, axis=1)
    order = np.argsort(files, kind="stable")
    which, files = which[order], files[order]
    distinct, starts = np.unique(files, return_index=True)
    ends = np.append(starts, len(files))[1:]
    rows = statistics.bounds.rows
    return [
        Share(statistics.paths[file], int(rows[file]), which[start:end].astype(np.int32))
        for file, start, end in zip(distinct.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]
