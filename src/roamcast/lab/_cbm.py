"""Shared parts of CBM's experiments: its tree, its users' subscriptions, means with error bars.

Section 7: a complete binary tree of seven levels, 127 vertices, 64 users at its leaves, 64 items.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roamcast.placement.flows import LeafWants, flows
from roamcast.placement.problem import Problem, traffic
from roamcast.placement.tree import Floats, Tree

USERS = 64
ITEMS = 64
INNER = 63
LINKS = 126
FIRST_USER = 63

Wanted = NDArray[np.bool_]
Chances = NDArray[np.float64]


def paper_tree() -> Tree:
    """Return the complete binary tree; user i is at vertex 63 + i."""
    return Tree.of([-1, *[(vertex - 1) // 2 for vertex in range(1, 2 * USERS - 1)]])


def generator(*numbers: int) -> np.random.Generator:
    """Return the generator of one run, determined by figure, parameters and seed."""
    return np.random.default_rng(numbers)


def uniform(chance: float) -> Chances:
    """P(i, j) = P: every user wants every item with the same probability (7.1.1)."""
    return np.full((USERS, ITEMS), chance)


def meeting_heights() -> NDArray[np.int64]:
    """Return r(i, j), the height of the lowest common ancestor of leaves i and j."""
    numbers = range(USERS)
    heights = [[(left ^ right).bit_length() for right in numbers] for left in numbers]
    return np.array(heights, dtype=np.int64)


def locality(skew: float, mean: float, *, keep_mean: bool = True) -> Chances:
    """P(i, j) = q^r / N (7.1.2), N such that the mean is a.

    Below q ≈ 0.7 some of these exceed 1. They are then clipped to 1, and with `keep_mean` N is
    chosen again so that the mean is a.
    """
    shape: Chances = np.power(skew, meeting_heights().astype(np.float64))
    low = high = mean / float(shape.mean())
    cut: Chances = np.minimum(1.0, shape * low)
    if not keep_mean:
        return cut
    while np.minimum(1.0, shape * high).mean() < mean and high < 1e12:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if np.minimum(1.0, shape * middle).mean() < mean:
            low = middle
        else:
            high = middle
    clipped: Chances = np.minimum(1.0, shape * high)
    return clipped


def commuters(skew: float, moved: int) -> Chances:
    """P(i, j) = 0.3 + q in the left half and 0.3 - q in the right (7.1.4).

    At time `moved`, the first `moved` users of each half have changed places.
    """
    half = USERS // 2
    gone = np.arange(half) < moved
    left = np.where(gone, 0.3 - skew, 0.3 + skew)
    right = np.where(gone, 0.3 + skew, 0.3 - skew)
    return np.repeat(np.concatenate((left, right))[:, None], ITEMS, axis=1)


def draw_wanted(source: np.random.Generator, chances: Chances) -> Wanted:
    """Draw which user wants which item."""
    return source.random(chances.shape) < chances


def flow_of(tree: Tree, wanted: Wanted) -> Floats:
    """Return f(v) for a table of who wants what."""
    leaves = range(FIRST_USER, FIRST_USER + USERS)
    return flows(tree, LeafWants.of_table(tree, leaves, wanted))


def traffic_of(tree: Tree, wanted: Wanted) -> Problem:
    """Return the traffic problem for a table of who wants what."""
    return traffic(tree, flow_of(tree, wanted))


def mean_error(values: Sequence[float] | NDArray[Any]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.size < 2:
        return float(numbers.mean()), 0.0
    return float(numbers.mean()), float(numbers.std(ddof=1) / math.sqrt(numbers.size))


def lines(
    path: Any,
    series: dict[str, list[tuple[float, float, float]]],
    *,
    title: str,
    across: str,
    up: str,
    mark: Callable[[Any], None] | None = None,
) -> None:
    """Draw named series of (x, mean, error) as lines with error bars into a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5.2), layout="constrained")
    shades = mpl.colormaps["viridis"](np.linspace(0, 0.88, max(1, len(series))))
    for (name, points), shade in zip(series.items(), shades, strict=True):
        x, y, error = zip(*points, strict=True)
        axes.errorbar(
            x,
            y,
            yerr=error,
            label=name,
            color=shade,
            marker="o",
            markersize=3,
            linewidth=1.4,
            capsize=2,
        )
    if mark is not None:
        mark(axes)
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", fontsize=9, frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
