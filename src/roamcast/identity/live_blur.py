"""What a broker shows of the times of pseudonyms: rounded outwards, as archives store them (0220).

Contexts on the map show a begin on the grid of their vid. Questions about the past are asked of
intervals that are rounded where a stay under one vid begins and ends: to ask for many windows tells
no more than the answers say. Casts are matched with what was: nobody learns from them when.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from roamcast.model.contexts import PSEUDONYM_LETTERS_MIN, Context, is_pseudonym
from roamcast.model.time import EARLIEST, LATEST, MICROSECONDS

GRID_S: Final = 900
"""The default step, in seconds; decision 0089 has the measurements behind it."""

GRID_S_MAX: Final = 86_400
CROWD_MIN_MAX: Final = 10_000

SHIFTS_MAX: Final = 65_536


@lru_cache(SHIFTS_MAX)
def _shift(vid: str, step: int) -> int:
    """Give the offset of one vid's grid, as `rounded` does for a column."""
    value, mask = 0xCBF29CE484222325, (1 << 64) - 1
    for letter in vid.encode():
        value = ((value ^ letter) * 0x100000001B3) & mask
    value = ((value ^ (value >> 33)) * 0xFF51AFD7ED558CCD) & mask
    return int((value ^ (value >> 33)) % step)


class LiveBlur(msgspec.Struct, frozen=True):
    """What a broker shows of the times of pseudonyms, and of where they were where few are."""

    grid_s: int = GRID_S
    """Step in seconds; 0 shows exact times."""
    crowd_min: int = 0
    """Contexts that share a place or point of the past; 0 shows exact ones."""

    @property
    def step(self) -> int:
        """The step in microseconds."""
        return self.grid_s * MICROSECONDS

    @property
    def margin(self) -> tuple[int, int]:
        """By how much an interval may grow at either end, and the letters that such a vid has.

        Where few are, whoever is near in time counts, however named.
        """
        return self.step, 0 if self.crowd_min else PSEUDONYM_LETTERS_MIN

    def concerns(self, vid: str) -> bool:
        """Whether a vid stands for somebody who changes it."""
        return bool(self.grid_s) and is_pseudonym(vid)

    def begin(self, vid: str, moment: int) -> int:
        """Round the begin of an interval outwards, on the grid of its vid."""
        return max(moment - (moment - _shift(vid, self.step)) % self.step, EARLIEST)

    def end(self, vid: str, moment: int | None) -> int | None:
        """Round the end of an interval outwards; one that lasts has none."""
        if moment is None:
            return None
        return min(moment + (_shift(vid, self.step) - moment) % self.step, LATEST)

    def shown(self, context: Context) -> Context:
        """Give a context of the map as it is shown: the same object if its times are exact."""
        if not self.concerns(context.vid):
            return context
        begin, end = self.begin(context.vid, context.t_r), self.end(context.vid, context.t_d)
        if (begin, end) == (context.t_r, context.t_d):
            return context
        return msgspec.structs.replace(context, t_r=begin, t_d=end)

    def thickened(self, contexts: Sequence[Context]) -> list[Context]:
        """Give contexts with places and points that enough of them share; others' names stay."""
        if not self.crowd_min:
            return list(contexts)
        import numpy as np

        from roamcast.identity.coarsening import coarsened

        begin = np.array([one.t_r for one in contexts], np.int64)
        end = np.array([min(one.end, LATEST) for one in contexts], np.int64)
        lons, lats = (
            np.array([np.nan if one.point is None else one.point[axis] for one in contexts], float)
            for axis in (0, 1)
        )
        places, lon, lat = coarsened(
            [one.place for one in contexts], lons, lats, begin, end, self.crowd_min
        )
        assert lon is not None
        assert lat is not None
        found = []
        for number, one in enumerate(contexts):
            if self.concerns(one.vid):
                point = None
                if not np.isnan(lon[number]):
                    point = (float(lon[number]), float(lat[number]))
                one = msgspec.structs.replace(one, place=places[number], point=point)
            found.append(one)
        return found


EXACT: Final = LiveBlur(0)
"""Shows times and places as they are."""
