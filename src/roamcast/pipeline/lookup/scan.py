"""The scan of a file's times and points: which rows lie within which needs.

Rows of a row group are sorted by place and time, so a block of neighbours has narrow bounds. Where
several needs ask for a group, they are first compared with the bounds of its blocks.
"""

from typing import Any

import numpy as np

from roamcast.model.kernels import kernel

ASK_STARTS, ASK_ENDS, ASK_POINT = 1, 2, 4
"""What of a row a need has to be compared with; the row group's own bounds decide the rest."""

BLOCK_ROWS = 64
BLOCKED_NEEDS_MIN = 4
"""Needs of a row group from which the bounds of blocks pay."""


@kernel
def candidates(  # noqa: C901 - a call for each row would count references of all arrays
    starts: Any,
    needs: Any,
    asked: Any,
    t_r: Any,
    t_d: Any,
    lon: Any,
    lat: Any,
    times: Any,
    boxes: Any,
    bounds: Any,
    which: Any,
    at: Any,
) -> int:
    """Write the pairs of a need and a row that lies within it; -1 if there is no room for them.

    starts: the first row of each row group, and the end. asked: for each need and group what has to
    be compared, -1 where the group cannot match. bounds: room for those of a group's blocks.
    """
    found = 0
    for group in range(len(starts) - 1):
        first, last = starts[group], starts[group + 1]
        count, asks = 0, 0
        for number in range(len(needs)):
            if asked[number, group] >= 0:
                count += 1
                asks |= asked[number, group]
        blocked = count >= BLOCKED_NEEDS_MIN and asks != 0
        if blocked:
            # Rounding to float64 keeps order, so these bounds exclude no match.
            for begin in range(first, last, BLOCK_ROWS):
                block = (begin - first) // BLOCK_ROWS
                low_r = low_d = west = south = np.inf
                high_r = high_d = east = north = -np.inf
                for row in range(begin, min(last, begin + BLOCK_ROWS)):
                    if asks & ASK_STARTS:
                        low_r, high_r = min(low_r, t_r[row]), max(high_r, t_r[row])
                    if asks & ASK_ENDS:
                        low_d, high_d = min(low_d, t_d[row]), max(high_d, t_d[row])
                    if asks & ASK_POINT and lon[row] == lon[row]:  # not NaN
                        west, east = min(west, lon[row]), max(east, lon[row])
                        south, north = min(south, lat[row]), max(north, lat[row])
                bounds[block, 0], bounds[block, 1] = low_r, high_r
                bounds[block, 2], bounds[block, 3] = low_d, high_d
                bounds[block, 4], bounds[block, 5] = west, east
                bounds[block, 6], bounds[block, 7] = south, north
        for number in range(len(needs)):
            asks = asked[number, group]
            if asks < 0:
                continue
            need = needs[number]
            from_r, to_r = times[need, 0], times[need, 1]
            from_d, to_d = times[need, 2], times[need, 3]
            from_x, to_x = boxes[need, 0], boxes[need, 1]
            from_y, to_y = boxes[need, 2], boxes[need, 3]
            starts_asked, ends_asked = asks & ASK_STARTS != 0, asks & ASK_ENDS != 0
            point_asked = asks & ASK_POINT != 0
            for begin in range(first, last, BLOCK_ROWS):
                if blocked:
                    block = (begin - first) // BLOCK_ROWS
                    if starts_asked and (bounds[block, 0] > to_r or bounds[block, 1] < from_r):
                        continue
                    if ends_asked and (bounds[block, 2] > to_d or bounds[block, 3] < from_d):
                        continue
                    if point_asked and (
                        bounds[block, 4] > to_x
                        or bounds[block, 5] < from_x
                        or bounds[block, 6] > to_y
                        or bounds[block, 7] < from_y
                    ):
                        continue
                end = min(last, begin + BLOCK_ROWS)
                if found + end - begin > len(which):
                    return -1
                for row in range(begin, end):
                    # NaN, no point, is within no box
                    if (
                        (not starts_asked or from_r <= t_r[row] <= to_r)
                        and (not ends_asked or from_d <= t_d[row] <= to_d)
                        and (
                            not point_asked
                            or (from_x <= lon[row] <= to_x and from_y <= lat[row] <= to_y)
                        )
                    ):
                        which[found], at[found] = need, row
                        found += 1
    return found
