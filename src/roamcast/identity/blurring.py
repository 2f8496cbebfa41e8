"""Blurred intervals: the times of a context must not link the vids of a person.

A person's next context begins when the last one ends. Stored exactly, t_d of one equals t_r of the
next, and a self-join on them follows the person from vid to vid without any key. So what is stored
is the interval rounded outwards to a grid (decision 0089). Each vid has its own offset of the grid,
so that boundaries of different people do not fall together, and a person's successive intervals
overlap by anything up to two steps of the grid.

A broker does the same with what it shows (`live_blur.py`).

Whoever was there is still found. Who left, or came, within one step of the grid beyond the asked
interval may be found as well. The meaning of a filter is its meaning on the stored interval.

The offset is a hash of the vid: the same context gets the same interval whenever it is written, so
that a batch can be repeated, and an archive rewritten. It need not be secret, for the rounded times
show it anyway. They do not show where in its step the true time lies.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roamcast.model.kernels import kernel
from roamcast.model.time import EARLIEST, LATEST, MICROSECONDS

Integers = npt.NDArray[np.int64]


def rounded(
    vids: pa.Array, begin: Integers, end: Integers, grid_s: int
) -> tuple[Integers, Integers]:
    """Round intervals outwards, each on the grid of its vid; with a step of 0 they stay exact.

    Rounding twice changes nothing. Times are microseconds since 1970.
    """
    if grid_s == 0 or not len(vids):
        return begin, end
    step = grid_s * MICROSECONDS
    texts = vids.cast(pa.large_string())
    _, offsets, letters = texts.buffers()
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(letters if letters is not None else b"", np.uint8)
    shift = (_hashes(data, bounds) % np.uint64(step)).astype(np.int64)
    lower = begin - (begin - shift) % step
    upper = end + (shift - end) % step
    return np.maximum(lower, EARLIEST), np.minimum(upper, LATEST)


@kernel
def _hashes(data: Any, bounds: Any) -> Any:
    """Hash each text: FNV-1a over its bytes, mixed once more so that the low bits are good."""
    found = np.empty(len(bounds) - 1, np.uint64)
    for row in range(len(found)):
        value = np.uint64(0xCBF29CE484222325)
        for at in range(bounds[row], bounds[row + 1]):
            value = (value ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
        value = (value ^ (value >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        found[row] = value ^ (value >> np.uint64(33))
    return found
