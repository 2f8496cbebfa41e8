"""Power laws on bounded integers, fitted by maximum likelihood.

Straight lines through log-log plots mislead (Clauset, Shalizi, Newman 2009), and degrees are
bounded on both sides, so the law is p(k) ∝ k^-λ on low…high (Hanel et al. 2017), which is defined
for every λ. The distance between law and data is Kolmogorov and Smirnov's.
"""

import math
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Fit(msgspec.Struct, frozen=True):
    """A law on low…high: its exponent, its largest distance to the data, and their number."""

    exponent: float
    low: int
    high: int
    distance: float
    count: int


def fit_power(values: Ints, low: int, high: int) -> Fit:
    """Fit p(k) ∝ k^-λ to the values in low…high."""
    inside = values[(values >= low) & (values <= high)]
    support = np.arange(low, high + 1)
    exponent = _best(np.log(support), float(np.log(inside).mean()))
    law = np.cumsum(_law(np.log(support), exponent))
    seen = np.cumsum(np.bincount(inside - low, minlength=len(support))) / len(inside)
    return Fit(exponent, low, high, float(np.abs(law - seen).max()), len(inside))


def fit_body(values: Ints, low: int = 2, covering: float = 0.95) -> Fit:
    """Fit from `low` up to the `covering` quantile; the largest degrees bunch and are left out."""
    above = values[values >= low]
    return fit_power(values, low, max(int(np.quantile(above, covering)), low + 1))


def power_over_exponential(values: Ints, low: int = 2) -> float:
    """Return the mean log-likelihood gain per value of a power law over an exponential law.

    Both are fitted on low…max. Above 0 the tail is heavy, below 0 it is not.
    """
    inside = values[values >= low]
    support = np.arange(low, int(inside.max()) + 1)
    power = _likelihood(inside - low, np.log(support))
    return power - _likelihood(inside - low, support.astype(np.float64))


def _likelihood(at: Ints, score: Floats) -> float:
    exponent = _best(score, float(score[at].mean()))
    return float(_log_law(score, exponent)[at].mean())


def _log_law(score: Floats, exponent: float) -> Floats:
    logs: Floats = -exponent * score
    logs -= logs.max()
    logs -= np.log(np.exp(logs).sum())
    return logs


def _law(score: Floats, exponent: float) -> Floats:
    law: Floats = np.exp(_log_law(score, exponent))
    return law


def _best(score: Floats, mean: float) -> float:
    """Return the maximum-likelihood exponent: there the law's mean score equals the data's."""

    def excess(exponent: float) -> float:
        return float(_law(score, exponent) @ score) - mean

    return _root(excess, -20.0, 50.0)


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return math.fsum((low, high)) / 2
