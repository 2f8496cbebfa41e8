"""Which rows of a row group can satisfy a need? The scan that spares the matching kernel work."""

from typing import Any

import numpy as np

from roamcast.model.kernels import kernel


@kernel
def mark(
    t_r: Any,
    t_d: Any,
    lon: Any,
    lat: Any,
    first: int,
    last: int,
    needs: Any,
    times: Any,
    boxed: Any,
    boxes: Any,
    keep: Any,
) -> int:
    """Mark the rows from first to last that lie within some need; give how many there are."""
    found = 0
    for need in needs:
        low_r, high_r = times[need, 0], times[need, 1]
        low_d, high_d = times[need, 2], times[need, 3]
        in_box = boxed[need]
        west, east = boxes[need, 0], boxes[need, 1]
        south, north = boxes[need, 2], boxes[need, 3]
        for row in range(first, last):
            if t_r[row] < low_r or t_r[row] > high_r or t_d[row] < low_d or t_d[row] > high_d:
                continue
            # NaN, no point, is within no box
            if in_box and not (west <= lon[row] <= east and south <= lat[row] <= north):
                continue
            if not keep[row]:
                keep[row] = True
                found += 1
    return found


def warm_up() -> None:
    """Compile, or load what was compiled before."""
    whole, real = np.zeros(1, np.int64), np.zeros(1)
    needs, boxed = np.zeros(1, np.int32), np.zeros(1, np.bool_)
    mark(whole, whole, real, real, 0, 1, needs, whole.repeat(4).reshape(1, 4), boxed,
         real.repeat(4).reshape(1, 4), np.zeros(1, np.bool_))  # fmt: skip
