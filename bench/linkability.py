"""Can an archive's reader chain a person's vids by time? Boundary joins against grids and density.

Each person moves from room to room under a new vid each time. A reader without any key takes the
end of a context and guesses which context is the same person's next one: by equal boundaries, by
the nearest beginning anywhere, in the same building, and among the rooms next to it. Times are
stored as `identity.blurring` rounds them; the reader knows the grid and corrects for it. The truth
comes from the generator. A guess is made wherever there is a candidate: precision is the share of
guesses that are right, recall the share of successions that are found.
"""

import gzip
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roamcast.identity.blurring import GRID_S, rounded
from roamcast.lab.report import Claim, Report, Steps
from roamcast.model.time import MICROSECONDS

TITLE = "Linkability: what a reader of the archive can chain by times, against grid and density"

SEED = 29
HOURS = 12
BUILDINGS = 10
ROOMS = 20
"""Rooms in a building; a third of all moves leave it."""

DWELL_MIN = 25.0
GRIDS_S = (0, 60, 300, 900, 1_800, 3_600)
TRIED = 2_000
PEOPLE_IN_CELL = 20
GEOLIFE = Path(__file__).parents[2] / "shared" / "data" / "geolife_sample.txt.gz"

Integers = npt.NDArray[np.int64]


class Stays:
    """Contexts in the order of people and time; the next row of a person is the succession."""

    def __init__(self, person: Any, room: Any, begin: Any, end: Any, seed: int = SEED) -> None:
        self.person = np.asarray(person, np.int64)
        self.room = np.asarray(room, np.int64)
        self.begin = np.asarray(begin, np.int64)
        self.end = np.asarray(end, np.int64)
        drawn = np.random.Generator(np.random.PCG64(seed)).integers(0, 2**63, len(self.person))
        self.vids = pa.array([f"{number:020d}@trust.example" for number in drawn])

    def successions(self) -> Integers:
        """Give the rows whose next row is the same person's, without a gap."""
        same = (self.person[1:] == self.person[:-1]) & (self.begin[1:] == self.end[:-1])
        return np.flatnonzero(same)


def made(people: int) -> Stays:
    """Draw people who stay 25 minutes (log-normal) and then move, mostly within a building."""
    rng = np.random.Generator(np.random.PCG64(SEED))
    rows: list[tuple[int, int, int, int]] = []
    for person in range(people):
        clock = float(rng.uniform(0, DWELL_MIN * 60))
        room = int(rng.integers(BUILDINGS * ROOMS))
        while clock < HOURS * 3_600:
            stay = float(rng.lognormal(np.log(DWELL_MIN * 60), 0.8))
            rows.append((person, room, _micro(clock), _micro(clock + stay)))
            clock += stay
            here = room // ROOMS * ROOMS
            room = (
                here + int(rng.integers(ROOMS))
                if rng.random() < 2 / 3
                else int(rng.integers(BUILDINGS * ROOMS))
            )
    return Stays(*np.array(rows).T)


def _micro(seconds: float) -> int:
    return 1_790_000_000 * MICROSECONDS + round(seconds * MICROSECONDS)


def geolife(path: Path) -> Stays:
    """Fold the days of the real traces onto one: each day of a person is somebody of their own.

    A context lasts while the point stays in a cell of about 500 m.
    """
    people: dict[tuple[str, str], list[tuple[int, int]]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            lat, lon, when, who = line.strip().split(",")
            moment = datetime.fromisoformat(when).replace(tzinfo=UTC)
            second = moment.hour * 3_600 + moment.minute * 60 + moment.second
            cell = int(float(lat) * 200) * 100_000 + int(float(lon) * 200)
            people.setdefault((who, str(moment.date())), []).append((second, cell))
    rows = []
    for number, points in enumerate(people.values()):
        since, cell, last = -1, -1, -1
        for second, here in sorted(points):
            if here != cell or second - last > 300:
                if since >= 0 and last > since:
                    until = second if second - last <= 300 else last
                    rows.append((number, cell, _micro(since), _micro(until)))
                since, cell = second, here
            last = second
    return Stays(*np.array(rows).T)


def attacked(stays: Stays, grid_s: int, near: dict[str, Any]) -> list[dict[str, Any]]:
    """Guess successions in every way; give precision and recall of each."""
    begin, end = rounded(stays.vids, stays.begin, stays.end, grid_s)
    step = grid_s * MICROSECONDS
    truth = stays.successions()
    order = np.random.Generator(np.random.PCG64(SEED)).permutation(truth)[:TRIED]
    # Rounding moves a boundary by half a step on average: the reader corrects for it.
    starts, ends = begin + step // 2, end - step // 2
    rows = []
    equal = {"attack": "equal boundaries", **_score(stays, order, begin, end, 0, None)}
    rows.append({"grid_s": grid_s, **equal})
    for name, group in near.items():
        score = _score(stays, order, starts, ends, step, group)
        rows.append({"grid_s": grid_s, "attack": name, **score})
    return rows


def _score(
    stays: Stays, tried: Integers, starts: Integers, ends: Integers, within: int, group: Any
) -> dict[str, Any]:
    by_start = np.argsort(starts, kind="stable")
    sorted_starts = starts[by_start]
    right = guesses = 0
    for row in tried:
        low, high = np.searchsorted(sorted_starts, [ends[row] - within, ends[row] + within + 1])
        found = by_start[low:high]
        found = found[found != row]
        if group is not None:
            found = found[group(stays.room[found], stays.room[row])]
        if len(found):
            guesses += 1
            right += int(found[np.argmin(np.abs(starts[found] - ends[row]))] == row + 1)
    return {
        "guesses": guesses,
        "precision": round(right / guesses, 3) if guesses else 0.0,
        "recall": round(right / len(tried), 3),
    }


CAMPUS_NEAR = {
    "nearest, anywhere": None,
    "nearest, same building": lambda rooms, room: rooms // ROOMS == room // ROOMS,
    "nearest, next rooms": lambda rooms, room: np.abs(rooms - room) <= 2,
}
GEOLIFE_NEAR = {
    "nearest, anywhere": None,
    "nearest, next cells": lambda rooms, room: (
        (np.abs(rooms // 100_000 - room // 100_000) <= 1)
        & (np.abs(rooms % 100_000 - room % 100_000) <= 1)
    ),
}


def extra_matched(stays: Stays, grid_s: int) -> float:
    """The price: how many times too many contexts an hour's question finds, rounded over exact."""
    begin, end = rounded(stays.vids, stays.begin, stays.end, grid_s)
    asked = [_micro(hour * 3_600.0) for hour in range(1, HOURS - 1)]
    hour = 3_600 * MICROSECONDS
    exact = sum(int(((stays.begin < at + hour) & (stays.end > at)).sum()) for at in asked)
    found = sum(int(((begin < at + hour) & (end > at)).sum()) for at in asked)
    return round(found / exact, 3)


def run(quick: bool, progress: Steps) -> Report:
    """Attack made people at several densities, and the real traces where they are at hand."""
    densities = (20, 100) if quick else (5, 20, 100, 500)
    rows: list[dict[str, Any]] = []
    with progress("grids", len(GRIDS_S) * len(densities)) as step:
        for each in densities:
            stays = made(each * BUILDINGS)
            for grid_s in GRIDS_S:
                price = extra_matched(stays, grid_s)
                rows += [
                    {"data": f"campus, {each} a building", **row, "found_over_exact": price}
                    for row in attacked(stays, grid_s, CAMPUS_NEAR)
                ]
                step(1)
    if GEOLIFE.exists():
        traces = geolife(GEOLIFE)
        for grid_s in GRIDS_S:
            rows += [{"data": "GeoLife", **row} for row in attacked(traces, grid_s, GEOLIFE_NEAR)]
    return Report(
        "linkability",
        {"quick": quick, "hours": HOURS, "dwell_min": DWELL_MIN, "default_grid_s": GRID_S},
        rows,
        _claims(rows),
    )


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    def worst(attacks: tuple[str, ...], grid_s: int, data: str) -> float:
        return max(
            row["precision"]
            for row in rows
            if row["attack"] in attacks and row["grid_s"] == grid_s and row["data"] == data
        )

    joins = ("equal boundaries", "nearest, anywhere", "nearest, same building")
    crowd = f"campus, {PEOPLE_IN_CELL} a building"
    exact, default = worst(joins, 0, crowd), worst(joins, GRID_S, crowd)
    return [
        Claim(
            "exact times chain vids: precision of the best boundary join",
            exact,
            exact > 0.9,
            bar=0.9,
        ),
        Claim(
            f"at the default grid with {PEOPLE_IN_CELL} people in a building: precision",
            default,
            default <= 0.1,
            bar=0.1,
        ),
    ]
