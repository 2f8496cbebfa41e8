"""Drawings of trees with their filters: links as wide as their traffic, large trees folded.

Up to `WHOLE_MAX` vertices, all are drawn. Beyond, we draw the root, the filters that save most, the
vertices where the paths to them part, and the busiest others. Vertices between two drawn ones
become a dashed link, those below a drawn one become a wedge with their count.
"""

import heapq
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from roamcast.errors import InputError
from roamcast.placement.cost import PlacementState, stand
from roamcast.placement.optimal import Placement
from roamcast.placement.problem import Problem

WHOLE_MAX = 160
DRAWN_MAX = 110
FILTERS_DRAWN_MAX = 48
LEVELS_MAX = 24
FILL_LEVELS_MAX = 10
FILTER = "#b3261e"
PLAIN = "#4a5568"
WANTED = "#9fb3c8"
ENDINGS = (".png", ".svg", ".pdf")


@dataclass
class _Spot:
    """A drawn vertex: its position, its parent in the drawing, and what is folded below it."""

    place: int
    above: int | None  # position of the drawn vertex above
    skipped: int = 0  # vertices in between that are not drawn
    children: list[int] = field(default_factory=list)
    folded: int = 0  # vertices below that are not drawn
    folded_filters: int = 0
    x: float = 0.0
    level: int = 0


def draw_tree(problem: Problem, placement: Placement, path: Path, title: str) -> None:
    """Draw the tree with its filters marked and link widths by traffic into a file."""
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"cannot draw into {path.name}: the name must end in {', '.join(ENDINGS)}")
    standing = stand(problem, problem.tree.flags(placement.filters))
    spots = _spots(problem, standing, _drawn(problem, standing))
    _lay_out(spots)
    _paint(problem, standing, spots, path, title)


def _drawn(problem: Problem, standing: PlacementState) -> list[int]:
    """Choose the positions to draw."""
    tree = problem.tree
    if tree.vertices <= WHOLE_MAX:
        return list(range(tree.vertices))
    worth = standing.importance(problem)
    filters = np.flatnonzero(standing.filters)
    chosen = filters[np.argsort(-worth[filters], kind="stable")[:FILTERS_DRAWN_MAX]]
    drawn = _with_meetings(problem, {0, *map(int, chosen)})
    while chosen.size and _deepest(problem, standing, drawn) > LEVELS_MAX:
        chosen = chosen[: chosen.size * 3 // 4]
        drawn = _with_meetings(problem, {0, *map(int, chosen)})
    # Add the busiest children of what is drawn, so that the picture grows where traffic is; never
    # between two drawn vertices, where a dashed link is enough and keeps the tree flat.
    fixed = sorted(drawn)
    load = standing.entering * (problem.below + problem.link)
    level = {place: spot.level for place, spot in _spots(problem, standing, sorted(drawn)).items()}
    heap: list[tuple[float, int, int]] = []
    for place in sorted(drawn):
        heap += [(-load[c], c, level[place] + 1) for c in _children(problem, place)]
    heapq.heapify(heap)
    while heap and len(drawn) < DRAWN_MAX:
        _, place, depth = heapq.heappop(heap)
        following = bisect_left(fixed, place)
        end = place + int(tree.size[place])
        between = following < len(fixed) and fixed[following] < end
        if not between and depth <= FILL_LEVELS_MAX:
            drawn.add(place)
            for child in _children(problem, place):
                heapq.heappush(heap, (-load[child], child, depth + 1))
    return sorted(drawn)


def _deepest(problem: Problem, standing: PlacementState, drawn: set[int]) -> int:
    return max(spot.level for spot in _spots(problem, standing, sorted(drawn)).values())


def _children(problem: Problem, place: int, most: int = 64) -> list[int]:
    size = problem.tree.size
    found: list[int] = []
    child = place + 1
    while child < place + size[place] and len(found) < most:
        found.append(child)
        child += int(size[child])
    return found


def _with_meetings(problem: Problem, places: set[int]) -> set[int]:
    """Add the vertices where the paths from the given ones to the root meet."""
    tree = problem.tree
    ordered = sorted(places)
    drawn = set(places)
    for left, right in pairwise(ordered):
        meeting = left
        while meeting + int(tree.size[meeting]) <= right:
            meeting = int(tree.up[meeting])
        drawn.add(meeting)
    return drawn


def _spots(problem: Problem, standing: PlacementState, drawn: list[int]) -> dict[int, _Spot]:
    tree = problem.tree
    filters_before = np.concatenate(([0], np.cumsum(standing.filters)))
    spots: dict[int, _Spot] = {}
    open_spots: list[int] = []
    for place in drawn:
        while open_spots and open_spots[-1] + int(tree.size[open_spots[-1]]) <= place:
            open_spots.pop()
        above = open_spots[-1] if open_spots else None
        spot = _Spot(place, above)
        spots[place] = spot
        if above is not None:
            walk = int(tree.up[place])
            while walk != above:
                spot.skipped += 1
                walk = int(tree.up[walk])
            spots[above].children.append(place)
            spot.level = spots[above].level + (2 if spot.skipped else 1)
        open_spots.append(place)
    for spot in spots.values():
        end = spot.place + int(tree.size[spot.place])
        beneath = sum(int(tree.size[c]) + spots[c].skipped for c in spot.children)
        spot.folded = end - spot.place - 1 - beneath
        inside = sum(
            int(filters_before[c + int(tree.size[c])] - filters_before[c]) for c in spot.children
        )
        own = bool(standing.filters[spot.place])
        spot.folded_filters = int(filters_before[end] - filters_before[spot.place]) - own - inside
    return spots


def _lay_out(spots: dict[int, _Spot]) -> None:
    """Space the drawing's leaves evenly and centre the others above their children."""
    room = 0.0
    for place in sorted(spots, reverse=True):
        spot = spots[place]
        if not spot.children:
            spot.x = -room
            room += 1.0
        else:
            spot.x = (spots[spot.children[0]].x + spots[spot.children[-1]].x) / 2


def _paint(
    problem: Problem, standing: PlacementState, spots: dict[int, _Spot], path: Path, title: str
) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    ends = sum(1 for spot in spots.values() if not spot.children)
    deepest = max(spot.level for spot in spots.values())
    folded = problem.tree.vertices > WHOLE_MAX
    wide = min(28.0, max(7.5, (0.36 if folded else 0.28) * ends + 1.5))
    high = min(18.0, max(3.5, 0.8 * (deepest + 1) + 1.4))
    figure, axes = plt.subplots(figsize=(wide, high), layout="constrained")
    small = 7 if ends <= 80 else 5.5
    _paint_links(axes, problem, standing, spots)
    _paint_vertices(axes, problem, standing, spots, small)
    _legend(figure, problem)
    axes.set_title(title, fontsize=12, loc="left")
    axes.margins(x=0.02, y=0.08)
    axes.axis("off")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _paint_links(
    axes: Any, problem: Problem, standing: PlacementState, spots: dict[int, _Spot]
) -> None:
    import matplotlib as mpl
    from matplotlib.collections import LineCollection

    busiest = max(float(problem.flow[0]), 1e-9)
    shade = mpl.colormaps["YlOrRd"]
    for dashed in (False, True):
        lines, widths, colours = [], [], []
        for spot in spots.values():
            if spot.above is None or bool(spot.skipped) != dashed:
                continue
            over = spots[spot.above]
            carried = float(standing.entering[spot.place])
            wanted = float(problem.flow[spot.place])
            waste = (carried - wanted) / carried if carried else 0.0
            lines.append([(over.x, -over.level), (spot.x, -spot.level)])
            widths.append(0.3 + 7.0 * carried / busiest)
            colours.append(shade(0.12 + 0.6 * waste) if waste > 0 else WANTED)
        style = (0, (0.6, 0.4)) if dashed else "solid"
        axes.add_collection(
            LineCollection(lines, linewidths=widths, colors=colours, linestyles=style, zorder=1)
        )


def _paint_vertices(
    axes: Any, problem: Problem, standing: PlacementState, spots: dict[int, _Spot], small: float
) -> None:
    order = problem.tree.order
    for spot in spots.values():
        filtering = bool(standing.filters[spot.place])
        box = {
            "boxstyle": "round,pad=0.28" if filtering else "round,pad=0.18",
            "facecolor": FILTER if filtering else "white",
            "edgecolor": FILTER if filtering else PLAIN,
            "linewidth": 0.7,
        }
        axes.text(
            spot.x,
            -spot.level,
            _label(int(order[spot.place]), spot),
            linespacing=0.95,
            fontsize=small + (1.0 if filtering else 0.0),
            color="white" if filtering else PLAIN,
            fontweight="bold" if filtering else "normal",
            ha="center",
            va="center",
            bbox=box,
            zorder=3,
        )
        if spot.skipped:
            over = spots[spot.above] if spot.above is not None else spot
            axes.text(
                (spot.x + over.x) / 2,
                -(spot.level + over.level) / 2,
                f"({_short(spot.skipped)})",
                fontsize=small - 0.5,
                ha="center",
                va="center",
                zorder=4,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
            )


def _label(number: int, spot: _Spot) -> str:
    """Return a vertex's label: its number, then what is folded below it."""
    label = str(number)
    if spot.folded:
        label += f"\n+{_short(spot.folded)}"
    if spot.folded_filters:
        label += f"\n{_short(spot.folded_filters)} filt."
    return label


def _short(count: int) -> str:
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)


def _legend(figure: Any, problem: Problem) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    most = float(problem.flow[0])
    marks = [
        Patch(facecolor=FILTER, label="filters"),
        Patch(facecolor="white", edgecolor=PLAIN, label="passes everything on"),
        Line2D([], [], color=WANTED, linewidth=7.3, label=f"{most:,.6g} items, all wanted"),
        Line2D([], [], color=WANTED, linewidth=3.8, label=f"{most / 2:,.6g} items, all wanted"),
        Line2D([], [], color="#f4a04d", linewidth=3.8, label="redder: less of it wanted below"),
    ]
    if problem.tree.vertices > WHOLE_MAX:
        marks.append(Patch(facecolor="none", edgecolor="none", label="+N: not drawn, below"))
        marks.append(Patch(facecolor="none", edgecolor="none", label="(N): not drawn, between"))
    narrow = figure.get_size_inches()[0] < 12
    figure.legend(
        handles=marks,
        loc="outside lower center",
        ncols=2 if narrow else len(marks),
        fontsize=8,
        frameon=False,
    )
