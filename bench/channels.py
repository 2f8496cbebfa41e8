"""How much does disseminating an update cost beside matching it?"""

from time import process_time
from typing import Any

from roamcast.channels.map_messages import Subscribe
from roamcast.channels.map_settings import MapSettings
from roamcast.lab._ams import Driver, person
from roamcast.lab.report import Claim, Report, Steps
from roamcast.matching import FilterSet
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.sim.movement.workloads import located_object

TITLE = "an update through matching, query set, channel choice and encoding, beside matching alone"

PLACES = 1_000
UPDATES = 1_000


def run(quick: bool, progress: Steps) -> Report:
    """Measure both in the same run for each number of subscriptions."""
    counts = (100, 2_000) if quick else (100, 10_000, 100_000, 1_000_000)
    rows: list[dict[str, Any]] = []
    with progress("subscriptions", len(counts)) as step:
        for count in counts:
            rows.append(_row(count))
            step(1)
    worst = max(row["times_matching"] for row in rows)
    claims = [
        Claim("an update takes at most so many times matching alone", worst, worst <= 3, bar=3)
    ]
    parameters = {"places": PLACES, "updates": UPDATES, "subscriptions_per_client": 10}
    return Report("channels", parameters, rows, claims)


def _row(count: int) -> dict[str, Any]:
    """Everybody asks for ten places and kinds; objects move from place to place."""
    driver = Driver(MapSettings())
    filters = FilterSet()
    texts = [_text(number) for number in range(count)]
    for start in range(0, count, 10):
        asked = enumerate(texts[start : start + 10])
        driver.request(f"c{start}", *(Subscribe(f"s{number}", text) for number, text in asked))
    for number, text in enumerate(dict.fromkeys(texts)):
        filters.add(str(number), Filter.parse(text))
    contexts = [
        Context(f"p{number:06d}", _place(number * 7), None, located_object(number), 1)
        for number in range(UPDATES)
    ]
    filters.match(contexts[0])
    started = process_time()
    for context in contexts:
        filters.match(context)
    matching = (process_time() - started) / UPDATES
    for number in range(100):  # the first updates earn the sets' channels
        driver.request("c0", person(number, _place(number), driver.now))
    before = driver.update_transmissions
    moves = [
        person(number % 100, _place(number * 7), driver.now + number + 1)
        for number in range(UPDATES)
    ]
    started = process_time()
    for move in moves:
        driver.now += 1
        driver.request("c0", move)
    whole = (process_time() - started) / UPDATES
    return {
        "subscriptions": count,
        "queries": driver.server.subscriptions.records,
        "matching_us": matching * 1e6,
        "update_us": whole * 1e6,
        "times_matching": whole / matching,
        "updates_per_s": 1 / whole,
        "channel_messages_per_update": (driver.update_transmissions - before) / UPDATES,
    }


def _place(number: int) -> str:
    return f"lab/{number % PLACES // 50}/{number % PLACES}"


def _text(number: int) -> str:
    if number % 10 == 0:
        return f"within(place, 'lab/{number % 20}')"
    return f"place = '{_place(number)}'"
