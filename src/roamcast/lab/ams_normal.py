"""AMS's normal workload: the load of a unicast server on a normal day of 1,000 people.

Everybody watches only their own place. A move publishes the person at the next place and subscribes
there; those already there are notified. The delay is the wait for the core plus the server's time,
both from measured times. The paper's 11 ms unloaded are mostly its network and workstation.
"""

import random
from pathlib import Path

import numpy as np

from roamcast.channels.server.messages import Subscribe
from roamcast.channels.server.settings import MapSettings, Mode
from roamcast.lab._ams import ServerDriver, person, watching
from roamcast.lab.report import Claim, Report, Steps, near
from roamcast.sim.movement.moves import MoveFeed
from roamcast.sim.movement.workloads import AMS_MOVES_PER_MINUTE, AMS_PEOPLE, MINUTE_US, normal

TITLE = "1,000 people on a normal day by unicast: delay, encounters, load (AMS, normal workload)"


def run(quick: bool, progress: Steps) -> Report:
    """Start with everybody in their office, then follow the moves of some minutes."""
    minutes = 4 if quick else 20
    workload = normal(AMS_PEOPLE)
    feed = MoveFeed(workload.moves(random.Random(4)))
    driver = ServerDriver(MapSettings(mode=Mode.UNICAST))
    places: dict[int, str] = {}
    here: dict[str, int] = {}
    warm_us = 20 * MINUTE_US  # everybody starts in the office
    times: list[int] = []
    spent: list[float] = []
    encounters = 0
    with progress("moves") as step:
        for move in feed.until(warm_us + minutes * MINUTE_US):
            assert move.place is not None
            driver.now = max(driver.now + 1, move.time_us)
            old = places.get(move.person)
            if old is not None:
                here[old] -= 1
            busy = driver.request(
                f"c{move.person}",
                person(move.person, move.place, driver.now),
                Subscribe("here", watching(move.place)),
            )
            places[move.person] = move.place
            if move.time_us >= warm_us and old is not None:
                times.append(move.time_us)
                spent.append(busy)
                encounters += here.get(move.place, 0) > 0
            here[move.place] = here.get(move.place, 0) + 1
            step(1)
    return _report(times, spent, encounters, minutes)


def _report(times: list[int], spent: list[float], encounters: int, minutes: int) -> Report:
    free_at = 0.0
    delays = []
    for time_us, busy in zip(times, spent, strict=True):
        free_at = max(free_at, time_us / 1e6) + busy
        delays.append(free_at - time_us / 1e6)
    moves, share = len(times) / minutes, encounters / len(times)
    loaded, unloaded = float(np.mean(delays)) * 1e3, float(np.mean(spent)) * 1e3
    row = {
        "people": AMS_PEOPLE,
        "moves_per_minute": moves,
        "encounters": share,
        "delay_ms": loaded,
        "unloaded_ms": unloaded,
        "busy_share": sum(spent) / (minutes * 60),
    }
    claims = [
        near("moves a minute", moves, AMS_MOVES_PER_MINUTE, 90),
        near("share of moves with an encounter", share, 0.4, 0.1),
        Claim(
            "mean delay loaded over unloaded",
            loaded / unloaded,
            loaded <= 23 / 11 * unloaded,
            bar=23 / 11,
        ),
        Claim(
            "share of one core that 1,000 people need",
            row["busy_share"],
            row["busy_share"] < 0.5,
            paper="easily in excess of 1,000",
        ),
    ]
    return Report("ams-normal", {"minutes": minutes, "mode": Mode.UNICAST.value}, [row], claims)


def draw(report: Report, path: Path) -> None:
    """Draw the two delays beside the paper's."""
    import matplotlib.pyplot as plt

    row = report.rows[0]
    figure, axes = plt.subplots(figsize=(6, 4))
    names = ["ours, unloaded", "ours, normal day", "paper, unloaded", "paper, normal day"]
    axes.bar(names, [row["unloaded_ms"], row["delay_ms"], 11, 23])
    axes.set(yscale="log", ylabel="mean update delay, ms", title="A normal day (AMS)")
    axes.tick_params(axis="x", rotation=20)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
