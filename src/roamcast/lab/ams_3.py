"""How large a meeting can one broker carry? AMS's figure 3: unicast, one channel, many channels."""

import random
from pathlib import Path
from typing import Any

from roamcast.channels.map_settings import MapSettings, Mode
from roamcast.lab._ams import (
    DELAY_S_MAX,
    HEARTBEAT_US,
    MEETING_S,
    ROOM,
    Driver,
    arrival,
    largest_meeting,
    level,
    line,
    mean_delay_s,
    move_s,
    watching,
)
from roamcast.lab.report import Claim, Report, Steps

TITLE = "mean update time against meeting size: unicast, one channel, many channels (AMS 3)"

SAMPLES = 30


def run(quick: bool, progress: Steps) -> Report:
    """Measure one update at each size and mode, then let a whole meeting arrive."""
    sizes = (50, 200, 800) if quick else (50, 200, 800, 3_200)
    rows: list[dict[str, Any]] = []
    largest: dict[str, int] = {}
    with progress("sizes and modes", len(sizes) * len(Mode)) as step:
        for mode in Mode:
            times = []
            for people in sizes:
                service = move_s(MapSettings(mode=mode), people, [watching(ROOM)], SAMPLES)
                times.append(service)
                delay = mean_delay_s(service, people, random.Random(7))
                rows.append(
                    {
                        "mode": mode.value,
                        "people": people,
                        "update_us": service * 1e6,
                        "mean_delay_ms": delay * 1e3,
                    }
                )
                step(1)
            if mode is not Mode.MANY:
                by_size = line(sizes, times) if mode is Mode.UNICAST else level(times)
                largest[mode.value] = largest_meeting(by_size)
    meeting = whole_meeting(5_000 if quick else 100_000, progress)
    # The carousel's pace is fixed, so its share of the core is too; the rest is for arrivals.
    free = max(1e-9, 1 - meeting["carousel_share"])
    largest[Mode.MANY.value] = largest_meeting(level([meeting["seconds_per_arrival"] / free]))
    shares = [share_row(share, 400 if quick else 4_000) for share in (0, 10, 25, 50, 100)]
    return Report(
        "ams-3",
        {"meeting_s": MEETING_S, "delay_bar_s": DELAY_S_MAX, "largest": largest, **meeting},
        rows + shares,
        _claims(largest, meeting),
    )


def whole_meeting(people: int, progress: Steps) -> dict[str, Any]:
    """Let everybody arrive within four minutes at a server that starts empty."""
    driver = Driver(MapSettings())
    random_moments = random.Random(11)
    moments = sorted(int(random_moments.random() * MEETING_S * 1e6) + 1 for _ in range(people))
    free_at = wait_max = busy = beats = arriving = paging = 0.0
    sum_late = last = 0
    with progress("arrivals", people) as step:
        for number, moment in enumerate(moments):
            background = driver.advance(moment)
            paged = background
            paging += paged
            beats += number * (moment - last) / HEARTBEAT_US
            last = moment
            while beats >= 1:
                beats -= 1
                background += driver.request(f"c{random_moments.randrange(number)}")
            spent = arrival(driver, number, watching(ROOM))
            free_at = max(free_at, moment / 1e6) + background + spent
            busy += background + spent
            arriving += background + spent - paged
            wait = free_at - moment / 1e6
            wait_max = max(wait_max, wait)
            sum_late += wait > DELAY_S_MAX
            step(1)
    seconds = moments[-1] / 1e6
    return {
        "people": people,
        "seconds_per_arrival": arriving / people,
        "carousel_share": paging / seconds,
        "busy_share": busy / seconds,
        "wait_s_max": wait_max,
        "late_share": sum_late / people,
        "transmissions_per_update": driver.update_transmissions / people,
        "all_transmissions_per_update": driver.transmissions / people,
        "broker_megabytes": driver.bytes_sent / 1e6,
        "carousel_megabytes": driver.page_bytes / 1e6,
        "unicast_kilobytes_per_client": driver.bytes_unicast / people / 1e3,
        "megabytes_heard_per_client_max": (
            driver.bytes_sent - driver.bytes_unicast - driver.page_bytes + 2 * people * 500
        )
        / 1e6,
        "current_sets_one_by_one_megabytes": people * (people - 1) / 2 * 450 / 1e6,
    }


def share_row(percent: int, people: int) -> dict[str, Any]:
    """Measure an update when some of the people ask in words of their own."""
    own = people * percent // 100
    queries = [
        f"{watching(ROOM)} AND extension >= {number}" if number < own else watching(ROOM)
        for number in range(people)
    ]
    service = move_s(MapSettings(), people, queries, 10)
    return {
        "mode": f"many channels, {percent} % own queries",
        "people": people,
        "update_us": service * 1e6,
        "mean_delay_ms": mean_delay_s(service, people, random.Random(7)) * 1e3,
    }


def _claims(largest: dict[str, int], meeting: dict[str, Any]) -> list[Claim]:
    unicast = largest[Mode.UNICAST.value]
    single, many = largest[Mode.SINGLE.value], largest[Mode.MANY.value]
    return [
        Claim(
            "one channel carries a larger meeting than unicast, times",
            single / unicast,
            single >= 10 * unicast,
            paper=10.6,
        ),
        Claim(
            "many channels carry at least 100 times the unicast meeting",
            many / unicast,
            many >= 100 * unicast,
            bar=100,
            note="unicast by its updates alone; channels by whole arrivals: subscribing, the "
            "current set's pages, heartbeats",
        ),
        Claim(
            f"{meeting['people']} people in four minutes keep one core busy for the share",
            meeting["busy_share"],
            meeting["busy_share"] < 1,
            bar=1,
        ),
        Claim(
            "nobody waits longer than the bar, seconds",
            meeting["wait_s_max"],
            meeting["wait_s_max"] <= DELAY_S_MAX,
            bar=DELAY_S_MAX,
        ),
        Claim(
            "transmissions per update with standard queries",
            meeting["transmissions_per_update"],
            meeting["transmissions_per_update"] < 2,
            bar=2,
            note="messages that carry the update; answers, pages and heartbeats are beside",
        ),
    ]


def draw(report: Report, path: Path) -> None:
    """Draw the mean delay of each mode."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    for mode in Mode:
        rows = [row for row in report.rows if row["mode"] == mode.value]
        axes.plot(
            [row["people"] for row in rows],
            [row["mean_delay_ms"] for row in rows],
            marker="o",
            label=f"{mode.value}: up to {report.parameters['largest'][mode.value]:,} people",
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="people in the meeting",
        ylabel="mean update delay, ms",
        title="Meetings on one core (AMS, figure 3)",
    )
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
