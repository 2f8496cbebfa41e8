"""A grid of radio cells in location areas, with border cells (JIT).

JIT section 2: cells with a base station in the middle, location areas of about 50 to 100 cells with
an event server each, and per server a border cell table: border cell → neighbouring servers.
Cells are hexagons (rows shifted by half a cell, six neighbours) or squares (four neighbours).
"""

import math
from functools import cached_property
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from roamcast.errors import LimitError
from roamcast.model.buildings import Ground
from roamcast.model.places import Place, Places
from roamcast.sim.topology.graph import Floats, Ints, Topology, check_size

Shape = Literal["hexagon", "square"]


class CellGridSize(msgspec.Struct, frozen=True):
    """The number of cells, their distance, and their grouping into location areas."""

    columns: int = 32
    rows: int = 32
    area_columns: int = 8
    area_rows: int = 8
    cell_m: float = 500.0
    shape: Shape = "hexagon"


class CellGrid:
    """Cells numbered row by row from 0, the location area of each, and the borders."""

    def __init__(self, size: CellGridSize) -> None:
        check_size(size.columns * size.rows)
        if min(size.columns, size.rows, size.area_columns, size.area_rows) < 1 or size.cell_m <= 0:
            raise LimitError("a grid has at least one cell, and one in each area, above 0 m wide")
        self.size = size
        self.cells = size.columns * size.rows
        cell = np.arange(self.cells)
        self._column, self._row = cell % size.columns, cell // size.columns
        self._areas_across = math.ceil(size.columns / size.area_columns)
        down = math.ceil(size.rows / size.area_rows)
        self.areas = self._areas_across * down
        self.area: Ints = (
            self._row // size.area_rows * self._areas_across + self._column // size.area_columns
        )

    @property
    def _row_m(self) -> float:
        # Hexagons whose centres are cell_m apart have rows √3/2 · cell_m apart.
        factor = math.sqrt(3) / 2 if self.size.shape == "hexagon" else 1.0
        return self.size.cell_m * factor

    @cached_property
    def centres_m(self) -> Floats:
        """Base stations in metres."""
        shift = 0.5 * (self._row % 2) if self.size.shape == "hexagon" else 0.0
        return np.column_stack([(self._column + shift) * self.size.cell_m, self._row * self._row_m])

    @cached_property
    def topology(self) -> Topology:
        """Cells joined where they share an edge."""
        found = []
        for cell in range(self.cells):
            column, row = int(self._column[cell]), int(self._row[cell])
            for next_column, next_row in self._forward(column, row):
                if 0 <= next_column < self.size.columns and next_row < self.size.rows:
                    found.append((cell, next_row * self.size.columns + next_column))
        return Topology(self.cells, np.array(found, dtype=np.int64).reshape(-1, 2))

    def _forward(self, column: int, row: int) -> list[tuple[int, int]]:
        """Neighbours to the right and below: each link once."""
        if self.size.shape == "square":
            return [(column + 1, row), (column, row + 1)]
        left = column - 1 + row % 2
        return [(column + 1, row), (left, row + 1), (left + 1, row + 1)]

    @cached_property
    def border_cells(self) -> dict[int, tuple[int, ...]]:
        """JIT's border cell table of all servers: border cell → neighbouring areas, ascending."""
        links = self.topology.links
        crossing = links[self.area[links[:, 0]] != self.area[links[:, 1]]]
        table: dict[int, set[int]] = {}
        for one, other in crossing.tolist():
            table.setdefault(one, set()).add(int(self.area[other]))
            table.setdefault(other, set()).add(int(self.area[one]))
        return {cell: tuple(sorted(table[cell])) for cell in sorted(table)}

    @cached_property
    def area_topology(self) -> Topology:
        """Event servers joined where their areas touch."""
        pairs = self.area[self.topology.links]
        pairs = np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)
        return Topology(self.areas, np.unique(pairs, axis=0))

    def cell_of(self, points_m: npt.ArrayLike) -> Ints:
        """Return the cell of each point: the nearest base station's, or -1 outside the grid.

        Among the two rows around a point, the nearest centre of either is a candidate; the plane
        is divided exactly into hexagons (or squares) by nearest centre.
        """
        points = np.asarray(points_m, dtype=np.float64).reshape(-1, 2)
        below = np.floor(points[:, 1] / self._row_m).astype(np.int64)
        best = np.full(len(points), -1, dtype=np.int64)
        nearest = np.full(len(points), np.inf)
        for row in (below, below + 1):
            shift = 0.5 * (row % 2) if self.size.shape == "hexagon" else np.zeros(len(points))
            column = np.floor(points[:, 0] / self.size.cell_m - shift + 0.5).astype(np.int64)
            x = (column + shift) * self.size.cell_m
            away = np.hypot(points[:, 0] - x, points[:, 1] - row * self._row_m)
            closer = away < nearest
            inside = (column >= 0) & (column < self.size.columns)
            inside &= (row >= 0) & (row < self.size.rows)
            cell = np.where(inside, row * self.size.columns + column, -1)
            best = np.where(closer, cell, best)
            nearest = np.where(closer, away, nearest)
        return best

    def path(self, cell: int, root: str = "network") -> str:
        """Return the place of a cell: within its location area, within the network."""
        return f"{root}/la{int(self.area[cell])}/c{cell}"

    def places(self, ground: Ground, root: str = "network") -> Places:
        """Draw the grid as places: network ⊃ location areas ⊃ cells, with neighbours."""
        made = [Place(root, "network")]
        made += [Place(f"{root}/la{area}", "location area") for area in range(self.areas)]
        for cell in range(self.cells):
            ring = [list(ground.point(*corner)) for corner in self._corners_m(cell)]
            made.append(
                Place(
                    self.path(cell, root),
                    "cell",
                    {"type": "Polygon", "coordinates": [[*ring, ring[0]]]},
                    tuple(self.path(n, root) for n in self.topology.neighbours(cell).tolist()),
                    (self.size.cell_m,) * len(self.topology.neighbours(cell)),
                )
            )
        return Places(made)

    def _corners_m(self, cell: int) -> list[tuple[float, float]]:
        x, y = self.centres_m[cell].tolist()
        half = self.size.cell_m / 2
        if self.size.shape == "square":
            return [
                (x - half, y - half),
                (x + half, y - half),
                (x + half, y + half),
                (x - half, y + half),
            ]
        side = self.size.cell_m / math.sqrt(3)
        turns = [math.radians(30 + 60 * corner) for corner in range(6)]
        return [(x + side * math.cos(turn), y + side * math.sin(turn)) for turn in turns]
