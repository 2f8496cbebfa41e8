"""Covering: the index of witnesses against comparing pairs, and the false positives of summaries.

Subscriptions are skewed and nested: popular buildings, storeys and rooms within them, ranges and
boxes of all sizes. They are placed one by one; the time of the last ones, with all others there, is
measured, and that of removing some of any age. Comparing pairs is measured on a sample of the same
pairs in the same run: a new filter is compared with the forwarded ones until one covers it, else it
is compared with all of them in both directions; a removed one with all filters that are held.

Summaries are asked with filters made from contexts of other brokers: a yes of a summary of which no
member satisfies the filter is a false positive, and costs one message. So are archives' days: casts
that ask for an hour or a day of the past go to brokers with somebody on such a day.
"""

import gzip
import random
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from roamcast.lab._linkability import geolife_path
from roamcast.lab.report import Claim, Report, Steps
from roamcast.matching.aggregate import summarise
from roamcast.matching.cover_index import CoverIndex
from roamcast.matching.covering import covers
from roamcast.model.areas import area_of
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.time import LATEST, MICROSECONDS, format_instant, from_datetime
from roamcast.overlay.tables.days import Days, areas_of
from roamcast.sim.movement.workloads import MINUTE_US, located_context, normal

TITLE = "Covering: an index of witnesses against comparing pairs; false positives of summaries"

SEED = 15
SUBSCRIPTIONS = 100_000
QUICK = 5_000
CHANGES = 500
"""Subscribes and unsubscribes that are measured at the full size."""

PAIRS = 20_000
"""Pairs that are compared to estimate what comparing all of them takes."""

BURST = 256
BUDGETS = (1_024, 4_096, 16_384)
FILTERS = 200
HOUR_US = 3_600 * MICROSECONDS
DAY_US = 24 * HOUR_US
TIMES_MIN = 100


def subscription(draw: random.Random) -> str:
    """Draw a filter; few buildings and groups are popular, wide filters are rare."""
    building = min(int(draw.paretovariate(0.9)), 200)
    depth = draw.choices((1, 2, 3), (1, 8, 40))[0]
    path = "/".join(["campus", f"b{building}", f"{draw.randint(1, 20)}", f"{draw.randint(1, 45)}"])
    place = "/".join(path.split("/")[: depth + 1])
    group = f"group-{min(int(draw.paretovariate(1.0)), 400):03}"
    match draw.choices(("place", "range", "box", "person"), (35, 25, 20, 20))[0]:
        case "place":
            return f"within(place, '{place}') AND \"group\" = '{group}'"
        case "range":
            width = min(int(draw.paretovariate(0.8) * 3), 3_000)
            low = 4_000 + draw.randint(0, 6_000)
            return f"extension BETWEEN {low} AND {low + width} AND \"group\" = '{group}'"
        case "box":
            size = min(draw.paretovariate(1.0) * 1e-4, 0.05)
            west, south = 9 + draw.random() / 10, 48 + draw.random() / 10
            west, south = round(west, 5), round(south, 5)
            east, north = round(west + size, 5), round(south + size, 5)
            return f"S_INTERSECTS(geometry, BBOX({west},{south},{east},{north}))"
        case _:
            name = f"person {draw.randint(0, 9_999):05}"
            return f"name = '{name}' AND within(place, '{place}')"


def covering(size: int, progress: Steps) -> dict[str, Any]:
    """Place and remove subscriptions; give the CPU time of each beside that of comparing pairs."""
    draw = random.Random(SEED)
    changes = min(CHANGES, size // 10)
    texts: dict[str, None] = {}
    while len(texts) < size:
        texts[subscription(draw)] = None
    index = CoverIndex()
    held: dict[str, Filter] = {}
    subscribing: list[float] = []
    with progress("subscriptions", size) as step:
        for number, text in enumerate(texts):
            wanted = Filter.parse(text)
            _ = wanted.normal  # read before the clock starts, as for the pairs
            name = f"f{number}"
            before = time.process_time()
            index.add(name, wanted)
            subscribing.append(time.process_time() - before)
            held[name] = wanted
            step(1)
    roots = list(index.roots())
    pair_s = _pair(draw, [held[name] for name in roots], list(held.values()))
    gone = draw.sample(sorted(held), changes)
    covered = len(held) - len(roots)
    unsubscribing = []
    for name in gone:
        before = time.process_time()
        index.remove(name, BURST)
        while index.ghosts:
            index.settle(BURST)
        unsubscribing.append(time.process_time() - before)
    share = covered / len(held)
    subscribe_s = statistics.mean(subscribing[-changes:])
    unsubscribe_s = statistics.mean(unsubscribing)
    compare_s = pair_s * len(roots) * (share / 2 + (1 - share) * 2)
    compare_gone_s = pair_s * len(held)
    return {
        "subscriptions": len(held),
        "forwarded": len(roots),
        "not_forwarded_share": round(share, 3),
        "subscribe_us": round(subscribe_s * 1e6, 1),
        "pairwise_subscribe_us": round(compare_s * 1e6, 1),
        "subscribe_times": round(compare_s / subscribe_s, 1),
        "unsubscribe_us": round(unsubscribe_s * 1e6, 1),
        "unsubscribe_us_max": round(max(unsubscribing) * 1e6, 1),
        "pairwise_unsubscribe_us": round(compare_gone_s * 1e6, 1),
        "unsubscribe_times": round(compare_gone_s / unsubscribe_s, 1),
    }


def _pair(draw: random.Random, wide: list[Filter], narrow: list[Filter]) -> float:
    pairs = [(draw.choice(wide), draw.choice(narrow)) for _ in range(PAIRS)]
    before = time.process_time()
    for one, other in pairs:
        covers(one, other)
    return (time.process_time() - before) / PAIRS


def campus(people: int, depth: int) -> tuple[dict[str, list[Context]], list[str]]:
    """Let people walk a campus for ten minutes; each building, or storey, has a broker."""
    workload = normal(people)
    places = workload.places
    where: dict[int, str] = {}
    for move in workload.moves(random.Random(SEED), end_us=10 * MINUTE_US):
        if move.place is not None:
            where[move.person] = move.place
    brokers: dict[str, list[Context]] = {}
    for person, path in where.items():
        attributes = located_context(person)
        context = Context(f"v{person}", path, places.centre(path), attributes, person)
        brokers.setdefault("/".join(path.split("/")[:depth]), []).append(context)
    draw = random.Random(SEED)
    texts = []
    for _ in range(FILTERS):
        one = draw.choice(draw.choice(list(brokers.values())))
        storey = "/".join((one.place or "").split("/")[:3])
        group = one.attributes["group"]
        texts.append(
            draw.choice(
                (
                    f"within(place, '{storey}') AND \"group\" = '{group}'",
                    f"name = '{one.attributes['name']}'",
                    f"extension = {one.attributes['extension']} AND \"group\" = '{group}'",
                    f"place = '{one.place}' AND \"group\" <> '{group}'",
                )
            )
        )
    return brokers, texts


def geolife(path: Path) -> tuple[dict[str, list[Context]], list[str]]:
    """Make contexts of the real traces: a cell of 500 m each; a broker has 20 km by 20 km."""
    stays: dict[tuple[str, int, int, int], list[tuple[int, float, float]]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            lat, lon, when, who = line.strip().split(",")
            moment = from_datetime(datetime.fromisoformat(when).replace(tzinfo=UTC))
            cell = int(float(lat) * 200), int(float(lon) * 200)
            hour = moment // HOUR_US
            stays.setdefault((who, *cell, hour), []).append((moment, float(lon), float(lat)))
    brokers: dict[str, list[Context]] = {}
    for number, ((who, row, column, _), points) in enumerate(stays.items()):
        times = [at for at, _, _ in points]
        context = Context(
            f"v{number}", None, points[0][1:], {"person": who}, min(times), max(times)
        )
        brokers.setdefault(f"{row // 40}, {column // 40}", []).append(context)
    draw = random.Random(SEED)
    most = sorted(brokers, key=lambda name: -len(brokers[name]))[:20]
    brokers = {name: brokers[name] for name in most}
    texts = []
    for _ in range(FILTERS):
        one = draw.choice(draw.choice(list(brokers.values())))
        assert one.point is not None
        x, y = one.point
        box = f"S_INTERSECTS(geometry, BBOX({x - 0.01},{y - 0.01},{x + 0.01},{y + 0.01}))"
        span = f"'{format_instant(one.t_r - HOUR_US)}','{format_instant(one.t_r + HOUR_US)}'"
        during = f"overlaps(time, INTERVAL({span}))"
        person = f"person = '{one.attributes['person']}'"
        texts.append(draw.choice((box, f"{box} AND {during}", f"{person} AND {during}", during)))
    return brokers, texts


def summaries(
    data: str, brokers: dict[str, list[Context]], texts: list[str]
) -> list[dict[str, Any]]:
    """Ask each broker's summary of each size; count the answers that nobody's context bears out."""
    filters = [Filter.parse(text) for text in texts]
    true = {
        (name, number): any(wanted.matches(member) for member in members)
        for name, members in brokers.items()
        for number, wanted in enumerate(filters)
    }
    rows = []
    for budget in BUDGETS:
        made = {name: summarise(members, budget=budget) for name, members in brokers.items()}
        said = {
            (name, number): summary.admits(wanted)
            for name, summary in made.items()
            for number, wanted in enumerate(filters)
        }
        assert all(said[pair] for pair, holds in true.items() if holds), "a member was missed"
        vain = [pair for pair, holds in true.items() if not holds]
        rows.append(
            {
                "data": data,
                "summary_bytes_max": budget,
                "brokers": len(brokers),
                "contexts": sum(map(len, brokers.values())),
                "true_share": round(sum(true.values()) / len(true), 3),
                "false_positive_rate": round(sum(said[pair] for pair in vain) / len(vain), 3),
            }
        )
    return rows


def archive_days(brokers: dict[str, list[Context]]) -> dict[str, Any]:
    """Ask each broker's days with filters about hours and days; count the answers in vain."""
    draw = random.Random(SEED)
    offered = {}
    for name, members in brokers.items():
        days = Days((one.t_r // DAY_US, one.end // DAY_US) for one in members)
        areas = areas_of({"": days}, (), LATEST // DAY_US, day_us=DAY_US, margin_us=2 * HOUR_US)
        offered[name] = areas[""]
    asked, vain, wrong = 0, 0, 0
    for _ in range(FILTERS):
        moment = draw.choice(draw.choice(list(brokers.values()))).t_r
        begin, end = draw.choice(
            (
                (moment - HOUR_US, moment + HOUR_US),
                (moment // DAY_US * DAY_US, (moment // DAY_US + 1) * DAY_US),
            )
        )
        span = f"INTERVAL('{format_instant(begin)}','{format_instant(end)}')"
        wanted = Filter.parse(draw.choice((f"overlaps(time, {span})", f"during(time, {span})")))
        area = area_of(wanted)
        for name, members in brokers.items():
            holds = any(wanted.matches(member) for member in members)
            said = offered[name].meets(area)
            assert said or not holds, "somebody was missed"
            asked, vain, wrong = asked + 1, vain + (not holds), wrong + (said and not holds)
    return {
        "data": "GeoLife, days of the past",
        "summary_bytes_max": max(len(msgspec.msgpack.encode(one)) for one in offered.values()),
        "brokers": len(brokers),
        "contexts": sum(map(len, brokers.values())),
        "true_share": round(1 - vain / asked, 3),
        "false_positive_rate": round(wrong / vain, 3),
    }


def run(quick: bool, progress: Steps) -> Report:
    """Measure the index, then summaries on the campus and, where they are at hand, real traces."""
    measured = covering(QUICK if quick else SUBSCRIPTIONS, progress)
    rows = [measured]
    people = 2_000 if quick else 8_000
    rows += summaries("campus, a broker per building", *campus(people, 2))
    rows += summaries("campus, a broker per storey", *campus(people, 3))
    sample = geolife_path()
    if sample is not None:
        traces = geolife(sample)
        rows += summaries("GeoLife", *traces)
        rows.append(archive_days(traces[0]))
    claims = [
        Claim(
            f"{what}: times faster than comparing pairs",
            measured[f"{what}_times"],
            measured[f"{what}_times"] >= TIMES_MIN,
            bar=TIMES_MIN,
            note="at the smaller size of --quick" if quick else "",
        )
        for what in ("subscribe", "unsubscribe")
    ]
    return Report("covering", {"quick": quick, "seed": SEED}, rows, claims)
