"""What a reader of an archive can link without a key: people who move, vids, and attacks on them.

Each person moves from place to place under a new vid each time. Ours are sealed by a trusted node
(`identity.pseudonyms`); the paper's are timestamps of their issue. Both are drawn in pools. What is
stored is rounded by `identity.blurring`, and coarsened by `identity.coarsening` where few people
are. The truth comes from the trusted node's keys. Two kinds of guesses:

- *same person*: here are two vids of one person (issue order, issue time, pool, connection times);
- *next*: this context is that person's next one (boundaries, attributes, movement).

A guess is made wherever there is a candidate: precision is the share of guesses that are right,
recall the share of successions that are found. Chance is the precision of drawing two vids blindly;
for connection times, of drawing another vid that connects within the same step of the grid. Who is
there at the same time is no secret, and where ten people are, one in ten is the same (0222).
"""

import gzip
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roamcast.client.anonymous import GAP_S_MAX
from roamcast.identity.blurring import rounded
from roamcast.identity.coarsening import coarsened
from roamcast.identity.keys import new_keys
from roamcast.identity.pseudonyms import HANDLE, new_handles, open_vids, seal
from roamcast.identity.trusted.settings import TrustSettings
from roamcast.model.time import MICROSECONDS

SEED = 29
HOURS = 12
BUILDINGS = 10
ROOMS = 20
"""Rooms in a building; a third of all moves leave it."""

DWELL_MIN = 25.0
POOL = TrustSettings().pool_size
TRIED = 2_000
BEGIN_US = 1_790_000_000 * MICROSECONDS
GEOLIFE_VARIABLE = "ROAMCAST_GEOLIFE"
CELLS_A_DEGREE = 200
"""GeoLife's places: cells of about 500 m."""

Integers = npt.NDArray[np.int64]
Near = Callable[["Archived", Integers, int], Any]
"""Marks which of some rows may follow a row."""


class Stays(msgspec.Struct, frozen=True):
    """Contexts in the order of people and time; the next row of a person is the succession."""

    person: Integers
    place: list[str]
    begin: Integers
    end: Integers
    traits: Integers
    """What the attributes say, as one number for each combination."""


class Archived(msgspec.Struct, frozen=True):
    """What the reader has: vids, stored places as numbers, stored times, attributes."""

    vids: list[str]
    places: list[str]
    parent: Integers
    begin: Integers
    end: Integers
    traits: Integers
    step: int
    """The grid of the times, which the reader knows."""
    spots: npt.NDArray[np.float64]
    """Where each place is, in cells."""


def made(people: int) -> Stays:
    """Draw people who stay 25 minutes (log-normal) and then move, mostly within a building."""
    rng = np.random.Generator(np.random.PCG64(SEED))
    rows: list[tuple[int, int, int, int, int]] = []
    for person in range(people):
        # A kind, a language and a device, each with a few common values and many rare ones.
        worn = [min(int(rng.zipf(1.6)), most) for most in (4, 20, 50)]
        trait = (worn[0] * 100 + worn[1]) * 100 + worn[2]
        clock = float(rng.uniform(0, DWELL_MIN * 60))
        room = int(rng.integers(BUILDINGS * ROOMS))
        while clock < HOURS * 3_600:
            stay = float(rng.lognormal(np.log(DWELL_MIN * 60), 0.8))
            rows.append((person, room, _micro(clock), _micro(clock + stay), trait))
            clock += stay
            here = room // ROOMS * ROOMS
            moved = int(rng.integers(ROOMS)) + here
            room = moved if rng.random() < 2 / 3 else int(rng.integers(BUILDINGS * ROOMS))
    person, room, begin, end, trait = np.array(rows).T
    places = [f"campus/b{one // ROOMS}/r{one % ROOMS:02}" for one in room]
    return Stays(person, places, begin, end, trait)


def _micro(seconds: float) -> int:
    return BEGIN_US + round(seconds * MICROSECONDS)


def geolife_path() -> Path | None:
    """Find the sample of GeoLife, where it is at hand."""
    beside = Path(__file__).parents[4] / "shared" / "data" / "geolife_sample.txt.gz"
    given = Path(os.environ.get(GEOLIFE_VARIABLE) or beside)
    return given if given.exists() else None


def geolife(path: Path) -> Stays:
    """Fold the days of the real traces onto one: each day of a person is somebody of their own.

    A context lasts while the point stays in a cell of about 500 m. There are no attributes.
    """
    people: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            lat, lon, when, who = line.strip().split(",")
            moment = datetime.fromisoformat(when).replace(tzinfo=UTC)
            second = moment.hour * 3_600 + moment.minute * 60 + moment.second
            cell = int(float(lat) * CELLS_A_DEGREE), int(float(lon) * CELLS_A_DEGREE)
            people.setdefault((who, str(moment.date())), []).append((second, *cell))
    rows: list[tuple[int, str, int, int]] = []
    for number, points in enumerate(people.values()):
        since, here, last = -1, (-1, -1), -1
        for second, south, west in sorted(points):
            if (south, west) != here or second - last > 300:
                if since >= 0 and last > since:
                    until = second if second - last <= 300 else last
                    place = f"{here[0] // 8}_{here[1] // 8}/{here[0]}_{here[1]}"
                    rows.append((number, place, _micro(since), _micro(until)))
                since, here = second, (south, west)
            last = second
    whose, begin, end = (np.array([row[at] for row in rows], np.int64) for at in (0, 2, 3))
    return Stays(whose, [row[1] for row in rows], begin, end, np.zeros(len(rows), np.int64))


def vids_of(stays: Stays, *, paper: bool) -> tuple[list[str], Integers]:
    """Give each context a vid from its person's pools, and the truth: whose each vid is.

    The paper's vid is the time of its issue, a pool is issued at once. Ours is sealed, and the
    truth is read from it with the keys.
    """
    rng = np.random.Generator(np.random.PCG64(SEED + 1))
    count = len(stays.person)
    if paper:
        first = np.flatnonzero(np.diff(stays.person, prepend=-1))
        rows = np.arange(count)
        number = (rows - np.repeat(first, np.diff(np.append(first, count)))) % POOL
        issued = stays.begin[rows - number] - 60 * MICROSECONDS + number
        return [f"{one:020d}@trust.example" for one in issued], stays.person
    keys = new_keys("trust.example", rng.bytes)
    handles = new_handles(int(stays.person.max()) + 1, rng.bytes)
    vids = seal(handles.cast(HANDLE).take(pa.array(stays.person)), keys, rng.bytes)
    _, truth = np.unique(open_vids(vids, keys).to_pylist(), return_inverse=True)
    return vids.to_pylist(), truth.astype(np.int64)


def stored(stays: Stays, vids: list[str], grid_s: int, crowd_min: int = 0) -> Archived:
    """Store contexts as an archive does: rounded times, coarser places where few are."""
    begin, end = rounded(pa.array(vids), stays.begin, stays.end, grid_s)
    places = stays.place
    if crowd_min:
        shared, _, _ = coarsened(list(places), None, None, begin, end, crowd_min)
        places = [one or "" for one in shared]
    names, place = np.unique(places, return_inverse=True)
    parents = np.array([name.rpartition("/")[0] or name for name in names.tolist()])
    _, parent = np.unique(parents, return_inverse=True)
    spots = np.array([_spot(name) for name in names.tolist()])
    return Archived(
        vids, places, parent[place], begin, end, stays.traits, grid_s * MICROSECONDS, spots[place]
    )


def _spot(name: str) -> tuple[float, float]:
    """Give where a place is: rooms of a building lie in a row, cells of GeoLife on a plane."""
    last = name.rpartition("/")[2]
    if "_" in last:
        one, two = (float(part) for part in last.split("_"))
        # a cell of cells stands for its middle
        return (one * 8 + 4, two * 8 + 4) if "/" not in name else (one, two)
    numbers = [float(part[1:]) for part in name.split("/")[1:]]
    building = numbers[0] if numbers else BUILDINGS / 2
    return building * 100, numbers[1] if len(numbers) > 1 else ROOMS / 2


def chance(truth: Integers) -> float:
    """The share of all pairs of vids that are one person's."""
    _, counts = np.unique(truth, return_counts=True)
    total = len(truth)
    return float((counts * (counts - 1)).sum() / (total * (total - 1)))


def chance_then(truth: Integers, times: Integers, step: int) -> float:
    """The share of right guesses among vids that connect within a step of each other, either way.

    Each vid counts once, however many others it could be paired with.
    """
    order = np.argsort(times, kind="stable")
    at, whose = times[order], truth[order]
    low = np.searchsorted(at, at - step, side="left")
    high = np.searchsorted(at, at + step, side="right")
    shares = [
        ((whose[first:last] == whose[row]).sum() - 1) / (last - first - 1)
        for row, (first, last) in enumerate(zip(low.tolist(), high.tolist(), strict=True))
        if last - first > 1
    ]
    return float(np.mean(shares))


def connected(stays: Stays) -> Integers:
    """Give when each context's connection begins: a gap after it was decided, as the SDK draws."""
    rng = np.random.Generator(np.random.PCG64(SEED + 3))
    gaps = rng.uniform(0, GAP_S_MAX * MICROSECONDS, len(stays.begin))
    return stays.begin + gaps.astype(np.int64)


def by_vids(vids: list[str], truth: Integers, times: Integers) -> list[dict[str, Any]]:
    """Guess that two vids are one person's: by order, time and pool of issue, and connections."""
    count = len(vids)
    rng = np.random.Generator(np.random.PCG64(SEED + 2))
    order = np.argsort(np.array(vids), kind="stable")
    # Issue time: a timestamp says it. Of ours the epoch does, the same for all: draw among them.
    numbers = np.array([_issue_of(vid) for vid in vids])
    shuffled = rng.permutation(count)
    by_time = shuffled[np.argsort(numbers[shuffled], kind="stable")]
    start = np.arange(count) // POOL * POOL
    other = np.minimum(start + rng.integers(0, POOL, count), count - 1)
    begun = np.argsort(times, kind="stable")
    guesses = {
        "issue order": (order[:-1], order[1:]),
        "issue time": (by_time[:-1], by_time[1:]),
        "pool": (order, order[other]),
        "connection times": (begun[:-1], begun[1:]),
    }
    rows = []
    for name, (one, two) in guesses.items():
        apart = one != two
        right = int((truth[one[apart]] == truth[two[apart]]).sum())
        made_ = int(apart.sum())
        rows.append({"attack": name, "guesses": made_, "precision": right / made_})
    return rows


def _issue_of(vid: str) -> int:
    opaque = vid.partition("@")[0]
    return int(opaque) if opaque.isdigit() and len(opaque) == 20 else 0


def by_succession(
    archive: Archived, truth: Integers, nears: dict[str, Near | None]
) -> list[dict[str, Any]]:
    """Guess which context is the same person's next one, in every way that is named."""
    next_ = np.flatnonzero(truth[1:] == truth[:-1])
    tried = np.random.Generator(np.random.PCG64(SEED)).permutation(next_)[:TRIED]
    rows = [{"attack": "equal boundaries", **_score(archive, tried, None, exact=True)}]
    for name, near in nears.items():
        rows.append({"attack": name, **_score(archive, tried, near)})
        if name.startswith("nearest"):
            mutual = _score(archive, tried, near, mutual=True)
            rows.append({"attack": name.replace("nearest", "mutual nearest"), **mutual})
    return rows


def _score(
    archive: Archived,
    tried: Integers,
    near: Near | None,
    *,
    exact: bool = False,
    mutual: bool = False,
) -> dict[str, Any]:
    """Count right guesses: the candidate whose begin is nearest to this end, both corrected."""
    # Rounding moves a boundary by half a step on average: the reader corrects for it.
    half = 0 if exact else archive.step // 2
    within = 0 if exact else archive.step
    starts, ends = archive.begin + half, archive.end - half
    by_start, by_end = np.argsort(starts, kind="stable"), np.argsort(ends, kind="stable")
    sorted_starts, sorted_ends = starts[by_start], ends[by_end]
    right = guesses = 0
    for row in tried:
        found = _best(archive, row, ends[row], starts, by_start, sorted_starts, within, near)
        if found is None:
            continue
        if mutual and row != _best(
            archive, found, starts[found], ends, by_end, sorted_ends, within, near
        ):
            continue
        guesses += 1
        right += int(found == row + 1)
    precision = right / guesses if guesses else 0.0
    return {"guesses": guesses, "precision": precision, "recall": right / len(tried)}


def _best(
    archive: Archived, row: int, at: int, times: Integers, order: Integers, ordered: Integers,
    within: int, near: Near | None,
) -> int | None:  # fmt: skip
    low, high = np.searchsorted(ordered, [at - within, at + within + 1])
    found = order[low:high]
    found = found[found != row]
    if near is not None and len(found):
        found = found[near(archive, found, row)]
    return int(found[np.argmin(np.abs(times[found] - at))]) if len(found) else None


def same_parent(archive: Archived, found: Integers, row: int) -> Any:
    """Whether the places have the same building, or cell of cells."""
    return archive.parent[found] == archive.parent[row]


def next_places(archive: Archived, found: Integers, row: int) -> Any:
    """Whether somebody can walk from one to the other: two rooms, or one cell, away."""
    far = np.abs(archive.spots[found] - archive.spots[row]).max(axis=1)
    return far <= 2


def same_traits(archive: Archived, found: Integers, row: int) -> Any:
    """Whether the attributes are the same."""
    return archive.traits[found] == archive.traits[row]


def same_kind(archive: Archived, found: Integers, row: int) -> Any:
    """Whether the attribute that everybody shows is the same; the others are hidden by rules."""
    return archive.traits[found] // 10_000 == archive.traits[row] // 10_000


NEARS: dict[str, Near | None] = {
    "nearest, anywhere": None,
    "nearest, same building": same_parent,
    "movement": next_places,
    "attributes": same_traits,
    "attributes, kind alone": same_kind,
}
JOINS = ("equal boundaries", *(name for name in NEARS if name.startswith("nearest")))
"""Boundary joins, of which the best counts; each also as mutual nearest."""


def found_over_exact(stays: Stays, archive: Archived) -> float:
    """The price: how many times too many contexts an hour's question about a room finds."""
    hour = 3_600 * MICROSECONDS
    asked = [_micro(at * 3_600.0) for at in range(1, HOURS - 1)]
    exact = sum(int(((stays.begin < at + hour) & (stays.end > at)).sum()) for at in asked)
    found = sum(int(((archive.begin < at + hour) & (archive.end > at)).sum()) for at in asked)
    return found / exact


def places_left(stays: Stays, archive: Archived) -> float:
    """The other price: the share of contexts that a question about their room still finds."""
    depth = max(place.count("/") for place in stays.place)
    return sum(place.count("/") == depth for place in archive.places) / len(archive.places)
