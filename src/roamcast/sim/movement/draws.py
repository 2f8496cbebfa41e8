"""Random draws, one stream per person (decision 0032).

Draw k of person p is a function of (key, p, k), by SplitMix64 (Steele, Lea, Flood 2014). Adding
people, sampling at other times or calling a meeting changes nobody else's draws, and whole arrays
of people draw at once.
"""

import math
import random

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_UNIT = 2.0**-53

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]


class Draws:
    """Numbers in [0, 1) by person and count; the same numbers singly or in arrays."""

    def __init__(self, people: int, generator: random.Random) -> None:
        key = np.uint64(generator.getrandbits(64))
        with np.errstate(over="ignore"):
            seeds = _mixed(key + np.arange(1, people + 1, dtype=np.uint64) * np.uint64(_MIX_2))
        self._seeds = seeds
        self._seed_list: list[int] = seeds.tolist()

    def unit(self, person: int, count: int) -> float:
        """Return draw `count` of one person."""
        word = (self._seed_list[person] + (count + 1) * _GAMMA) & _MASK
        word = ((word ^ (word >> 30)) * _MIX_1) & _MASK
        word = ((word ^ (word >> 27)) * _MIX_2) & _MASK
        return ((word ^ (word >> 31)) >> 11) * _UNIT

    def units(self, people: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Floats:
        """Return draw `counts[i]` of `people[i]`."""
        with np.errstate(over="ignore"):
            steps = (counts + 1).astype(np.uint64) * np.uint64(_GAMMA)
            words = _mixed(self._seeds[people] + steps)
        return (words >> np.uint64(11)).astype(np.float64) * _UNIT


def exponential(unit: float, mean: float) -> float:
    """Map a draw to the exponential distribution ("Poisson-distributed sleep time", AMS)."""
    return -mean * math.log1p(-unit)


def _mixed(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_MIX_1)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_MIX_2)
    return words ^ (words >> np.uint64(31))
