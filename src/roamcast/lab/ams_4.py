"""AMS figure 4: the largest meeting as a function of messages per update.

Channels of recurring query sets are off, and the meeting uses 1, 2, 4, … different queries. Each
query has its own channel, so an update takes as many messages.
"""

from pathlib import Path

import numpy as np

from roamcast.channels.server.settings import MapSettings
from roamcast.lab._ams import ROOM, largest_meeting, level, move_s, watching
from roamcast.lab.report import Claim, Report, Steps

TITLE = "largest meeting against messages per update, query-set channels off (AMS 4)"


def run(quick: bool, progress: Steps) -> Report:
    """Measure an update for each number of distinct queries, with and without set channels."""
    counts = (1, 2, 4, 8, 16) if quick else (1, 2, 4, 8, 16, 32, 64)
    sizes = (200, 400) if quick else (400, 1_600)
    rows = []
    with progress("distinct queries", len(counts)) as step:
        for count in counts:
            queries = [f"{watching(ROOM)} AND extension >= {number}" for number in range(count)]
            row: dict[str, float] = {"messages_per_update": count}
            for name, sets in (("queries alone", False), ("with sets", True)):
                settings = MapSettings(query_sets=sets)
                times = [move_s(settings, people, queries, 30) for people in sizes]
                row[f"update_us, {name}"] = float(np.median(times)) * 1e6
                row[f"largest_meeting, {name}"] = largest_meeting(level(times))
            rows.append(row)
            step(1)
    first, last = rows[0], rows[-1]
    falls = first["largest_meeting, queries alone"] / last["largest_meeting, queries alone"]
    gain = last["largest_meeting, with sets"] / last["largest_meeting, queries alone"]
    claims = [
        Claim(
            f"{counts[-1]} messages per update carry a smaller meeting than one, times",
            falls,
            falls > 1,
            paper="falls steeply",
        ),
        Claim(
            f"at {counts[-1]} queries, channels of recurring sets carry a larger meeting, times",
            gain,
            gain > 1,
            paper="the benefit of merging client update sets",
        ),
    ]
    parameters = {
        "sizes_measured": list(sizes),
        "largest_meeting": "calculated from the time of an update alone, at a mean delay of 1 s",
    }
    return Report("ams-4", parameters, rows, claims)


def draw(report: Report, path: Path) -> None:
    """Draw the largest meeting over messages per update."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    across = [row["messages_per_update"] for row in report.rows]
    for name in ("queries alone", "with sets"):
        largest = [row[f"largest_meeting, {name}"] for row in report.rows]
        axes.plot(across, largest, "o-", label=name)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="distinct queries = messages per update without set channels",
        ylabel="largest meeting on one core",
        title="Largest meeting (AMS, figure 4)",
    )
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
