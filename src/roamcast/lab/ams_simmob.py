"""AMS, SimMob: the shape of our normal workload beside the paper's, and how meetings converge.

Rates are not tuned: the travel rate and the mean pause follow from the building, 12 % and 600
(`sim.movement.workloads`). This measures what people then do: where they choose to go, how many
walk, how often they are sighted, whom they meet.
"""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roamcast.lab.report import Claim, Report, Steps, near
from roamcast.model.contexts import Context, encode
from roamcast.sim.movement import workloads
from roamcast.sim.movement.modes import MovementMode, Row
from roamcast.sim.movement.moves import MoveFeed
from roamcast.sim.movement.workloads import MINUTE_US, BuildingWorkload

TITLE = "AMS SimMob: 1,000 people on a normal day, and meetings that converge in 3 to 5 minutes"

SEEDS, SEEDS_QUICK = 10, 3
MINUTES, MINUTES_QUICK = 120, 40
WARM_UP_MINUTES = 30
MEETING_PEOPLE = 500
MEETING_MINUTES = (3, 4, 5)
KINDS = ("corridor", "office", "meeting", "kitchen")
SIGHTED_EVERY_S_PAPER = 8.9


class _Counting:
    """A mode that counts how often the office is chosen."""

    def __init__(self, mode: MovementMode, offices: Sequence[int]) -> None:
        self._mode, self._offices = mode, offices
        self.decisions = self.office = 0

    def goal(self, person: int, here: int, unit: float, /) -> int:
        """Choose as the mode does."""
        goal = self._mode.goal(person, here, unit)
        self.decisions += 1
        self.office += goal == self._offices[person]
        return goal

    def row(self, person: int, here: int, /) -> Row:
        """Return the mode's row."""
        return self._mode.row(person, here)


def run(quick: bool, progress: Steps) -> Report:
    """Measure the normal workload over several seeds, then one meeting for each length."""
    seeds, minutes = (SEEDS_QUICK, MINUTES_QUICK) if quick else (SEEDS, MINUTES)
    work = workloads.normal()
    with progress("days", seeds) as step:
        days = []
        for seed in range(seeds):
            days.append(_day(work, minutes, seed))
            step(1)
    rows = [_row(name, days, paper) for name, paper in PAPER.items()]
    rows += [_row(f"encounters: {kind}", days, None) for kind in KINDS]
    called = workloads.brisk(work)
    meetings = {within: _meeting(called, within, seeds) for within in MEETING_MINUTES}
    for within, arrivals in meetings.items():
        rows += [
            {
                "quantity": f"arrived, {within}-minute meeting",
                "after_min": after,
                "ours": float(np.mean(arrivals <= after)),
            }
            for after in np.arange(0.5, within + 0.6, 0.5).tolist()
        ]
    return Report("ams-simmob", _parameters(work, seeds, minutes), rows, _claims(rows, meetings))


PAPER: dict[str, float | None] = {
    "probability of the office": workloads.AMS_STAY,
    "mobile": workloads.AMS_MOBILE,
    "moves a minute": workloads.AMS_MOVES_PER_MINUTE,
    "encounters": 0.4,
    "sighted every, s": SIGHTED_EVERY_S_PAPER,
    "time sighted in the own office": None,
}


def _day(work: BuildingWorkload, minutes: int, seed: int) -> dict[str, float]:
    """Run one seed and measure it after the warm-up."""
    counting = _Counting(work.mode, work.offices)
    counted = BuildingWorkload(work.places, work.offices, counting, work.rates)
    simulation = counted.moves(random.Random(seed))
    feed = MoveFeed(simulation)
    paths, kinds = work.places.paths, {path: work.places[path].kind for path in work.places.paths}
    people = len(work.offices)
    homes = [paths[home] for home in work.offices]
    where = [""] * people
    since = [0] * people
    crowd: Counter[str] = Counter()
    start, end = WARM_UP_MINUTES * MINUTE_US, (WARM_UP_MINUTES + minutes) * MINUTE_US
    for move in feed.until(start):
        assert move.place is not None
        crowd[where[move.person]] -= 1
        crowd[move.place] += 1
        where[move.person] = move.place
    walked = simulation.walking_us
    counting.decisions = counting.office = 0
    moved: Counter[str] = Counter()
    met: Counter[str] = Counter()
    at_home_us = 0
    since = [start] * people
    for move in feed.until(end):
        assert move.place is not None
        left = where[move.person]
        at_home_us += (move.time_us - since[move.person]) * (left == homes[move.person])
        crowd[left] -= 1
        moved[kinds[move.place]] += 1
        met[kinds[move.place]] += crowd[move.place] > 0
        crowd[move.place] += 1
        where[move.person], since[move.person] = move.place, move.time_us
    for person in range(people):
        at_home_us += (end - since[person]) * (where[person] == homes[person])
    walking_us = simulation.walking_us - walked
    total = sum(moved.values())
    measured = {
        "probability of the office": counting.office / counting.decisions,
        "mobile": walking_us / (people * minutes * MINUTE_US),
        "moves a minute": total / minutes,
        "encounters": sum(met.values()) / total,
        "sighted every, s": walking_us / 1e6 / total,
        "time sighted in the own office": at_home_us / (people * minutes * MINUTE_US),
    }
    return measured | {f"encounters: {kind}": met[kind] / moved[kind] for kind in KINDS}


def _meeting(work: BuildingWorkload, within: int, seed: int) -> np.ndarray:
    """Call some of the people to one room; return their arrivals in minutes after the call."""
    called = range(0, len(work.offices), len(work.offices) // MEETING_PEOPLE)
    # A central room, so that those furthest away can arrive in time.
    rooms = work.places.of_kind("meeting")
    activity = workloads.meeting(
        work, called, place=rooms[len(rooms) // 2], within_us=within * MINUTE_US
    )
    arrived: dict[int, int] = {}
    chosen = set(called)
    end_us = activity.time_us + 30 * MINUTE_US
    last: dict[int, tuple[int, str | None]] = {}
    for move in work.moves(random.Random(seed), [activity], end_us):
        last[move.person] = (move.time_us, move.place)
    for person in sorted(chosen):
        time_us, place = last[person]
        assert place == rooms[len(rooms) // 2]
        arrived[person] = time_us - activity.time_us
    return np.array(list(arrived.values())) / MINUTE_US


def _row(name: str, days: list[dict[str, float]], paper: float | None) -> dict[str, Any]:
    found = [day[name] for day in days]
    return {
        "quantity": name,
        "ours": float(np.mean(found)),
        "lowest": min(found),
        "highest": max(found),
        "paper": paper,
    }


def _parameters(work: BuildingWorkload, seeds: int, minutes: int) -> dict[str, Any]:
    sizes = _context_bytes()
    return {
        "people": len(work.offices),
        "storeys": workloads.FLOORS,
        "offices a storey": workloads.PLAN.offices,
        "places": len(work.places),
        "travel rate, m/s": work.rates.speed_m_s,
        "travel rate to a meeting, m/s": workloads.BRISK_M_S,
        "mean pause, s": work.rates.pause_us / 1e6,
        "sighting interval that follows, s": work.rates.sighting_s,
        "venture weights": ", ".join(f"{k} {v:g}" for k, v in workloads.ROOM_WEIGHTS.items()),
        "object bytes": f"{min(sizes)} to {max(sizes)}",
        "warm-up, min": WARM_UP_MINUTES,
        "measured, min": minutes,
        "seeds": seeds,
    }


def _context_bytes() -> list[int]:
    sizes = []
    for person in range(workloads.AMS_PEOPLE):
        said = workloads.located_context(person)
        sizes.append(len(encode(Context("k3x9q@tn1.example.org", "lab/12/12034", None, said))))
    return sizes


def _claims(rows: list[dict[str, Any]], meetings: dict[int, np.ndarray]) -> list[Claim]:
    ours = {row["quantity"]: row["ours"] for row in rows if "paper" in row}

    def close(name: str, claim: str, room: float, note: str = "") -> Claim:
        paper = PAPER[name]
        assert paper is not None
        return near(claim, ours[name], paper, room, note)

    contradiction = "12 % of 1,000 people sighted every 8.9 s would be 809 moves a minute, not 600"
    claims = [
        close("probability of the office", "destinations are the own office", 0.01),
        close("mobile", "share of people mobile at any time", 0.006),
        close("moves a minute", "moves a minute", 18.0),
        close("encounters", "share of moves with an encounter", 0.04),
        close(
            "sighted every, s", "seconds between sightings of a mobile person", 0.5, contradiction
        ),
    ]
    for within, arrivals in meetings.items():
        share = float(np.mean(arrivals <= within))
        claims.append(near(f"people who converged in a {within}-minute meeting", share, 1.0, 0.0))
    sizes = _context_bytes()
    fits = min(sizes) >= 400 and max(sizes) <= 500
    claims.append(Claim("bytes of an object", [min(sizes), max(sizes)], fits, paper=[400, 500]))
    return claims


def draw(report: Report, path: Path) -> None:
    """Draw ours beside the paper's, encounters by kind of place, and arrivals at meetings."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    _draw_beside(left, [row for row in report.rows if row.get("paper") is not None])
    _draw_encounters(middle, report.rows)
    for within in MEETING_MINUTES:
        name = f"arrived, {within}-minute meeting"
        points = [(0.0, 0.0)]
        points += [(r["after_min"], r["ours"]) for r in report.rows if r["quantity"] == name]
        right.plot(*zip(*points, strict=True), marker="o", ms=3, label=f"{within} minutes")
    right.set(xlabel="minutes after the call", ylabel="share of people arrived", ylim=(0, 1.05))
    right.set_title(f"A meeting of {MEETING_PEOPLE} converges", loc="left", fontsize=10)
    right.legend(frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_beside(axes: Any, rows: list[dict[str, Any]]) -> None:
    for height, row in enumerate(rows):
        paper = row["paper"]
        spread = [[(row["ours"] - row["lowest"]) / paper], [(row["highest"] - row["ours"]) / paper]]
        axes.errorbar(row["ours"] / paper, height, xerr=spread, fmt="o", color="#1f5a93", capsize=3)
        text = f"{row['ours']:.3g} (paper {paper:g})"
        axes.annotate(
            text, (row["ours"] / paper, height), (0, 7), textcoords="offset points", ha="center",
            fontsize=8,
        )  # fmt: skip
    axes.axvline(1.0, color="#b3261e", lw=1)
    axes.set_yticks(range(len(rows)), [row["quantity"] for row in rows])
    axes.set(xlim=(0.8, 1.45), ylim=(len(rows) - 0.5, -0.7), xlabel="ours ÷ paper's")
    axes.set_title("1,000 people, normal workload", loc="left", fontsize=10)


def _draw_encounters(axes: Any, rows: list[dict[str, Any]]) -> None:
    named = {row["quantity"]: row for row in rows}
    bars = [named[f"encounters: {kind}"] for kind in KINDS] + [named["encounters"]]
    low = [row["ours"] - row["lowest"] for row in bars]
    high = [row["highest"] - row["ours"] for row in bars]
    colours = ["#9fb3c8"] * len(KINDS) + ["#1f5a93"]
    axes.bar([*KINDS, "all"], [row["ours"] for row in bars], yerr=[low, high], color=colours)
    axes.axhline(0.4, color="#b3261e", lw=1, label="paper, all moves")
    axes.set(ylabel="share of moves with an encounter", ylim=(0, 1))
    axes.set_title("Encounters by the place moved to", loc="left", fontsize=10)
    axes.legend(frameon=False)
