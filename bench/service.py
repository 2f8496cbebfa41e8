"""How long from a publication to its delivery, with 100,000 subscriptions standing?

One publisher's WebSocket session, listeners on one hot query, and other sessions with distinct
standing queries that do not match. The baseline in the same run is the same service with the
listeners alone; the load is half of what saturates it.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

from bench.fanout import WHERE, Process, Publisher, clients, row, serve, settle
from roamcast.lab.report import Claim, Report, Steps

TITLE = "service: publish to delivery, unloaded and at half of saturation, beside 100,000 queries"
LISTENERS = 10
PER_SESSION = 1_000
BAR = 3.0
"""The delay with all subscriptions, beside the delay without them."""


@contextmanager
def ended() -> Iterator[None]:
    """End all processes of the bench, whatever happens."""
    try:
        yield
    finally:
        Process.end_all()


def crowd(
    url: str, token: str, subscriptions: int, step: Any, first: int = 0, *, together: int = 1
) -> list[Any]:
    """Place distinct queries through sessions that then only keep their connection.

    So many `together` in a message, whose answers are awaited before the next.
    """
    links = []
    address = url.replace("http", "ws", 1) + "/session?device=crowd"
    headers = {"Authorization": f"Bearer {token}"}
    for session in range(first, first + subscriptions // PER_SESSION):
        link = connect(
            f"{address}{session}", additional_headers=headers, compression=None, ping_interval=None
        )
        links.append(link)
        for start in range(0, PER_SESSION, together):
            numbers = range(start, min(start + together, PER_SESSION))
            link.send(json.dumps(_placing(session, numbers)))
            answered = 0
            while answered < 2 * len(numbers):  # the current set, and that it is complete
                answered += json.loads(link.recv())["type"] in ("subscribed", "current")
        step(PER_SESSION)
    return links


def _placing(session: int, numbers: range) -> dict[str, Any]:
    filters = {
        str(number): f"type = 'printer' AND place = 'b{session}/{number}'" for number in numbers
    }
    if len(filters) > 1:
        return {"type": "subscribe_many", "filters": filters}
    ((name, text),) = filters.items()
    return {"type": "subscribe", "re": name, "filter": text}


def measured(
    readers: Any, publisher: Publisher, rate: float, seconds: float, rows: list[Any], who: str
) -> dict[str, Any]:
    readers.ask("reset")
    sent = publisher.publish(rate, seconds, 50)
    got = settle(readers)
    rows.append(row(who, rate, sent, LISTENERS, got))
    return {**got, "sent": sent}


def saturation(
    service: Process, readers: Any, publisher: Publisher, rows: list[Any], who: str
) -> tuple[float, float]:
    """Publish as fast as the service acknowledges; updates a second, and core time of each."""
    readers.ask("reset")
    before_s = service.core_s()
    sent, seconds = publisher.flood(3.0, 50)
    core_s = service.core_s() - before_s
    got = settle(readers)
    rows.append(row(who, round(sent / seconds), sent, LISTENERS, got))
    return sent / seconds, core_s / sent * 1e6


def run(quick: bool, progress: Steps) -> Report:
    subscriptions = 5_000 if quick else 100_000
    seconds = 3.0 if quick else 10.0
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, ended():
        service, url, token = serve(Path(folder))
        readers = clients(url.replace("http", "ws", 1) + "/session", token, LISTENERS, WHERE)
        publisher = Publisher(url, token)
        publisher.publish(20, 1.0, 5)
        settle(readers)
        alone = measured(readers, publisher, 20, seconds, rows, "listeners alone, 20/s")
        with progress("subscriptions", subscriptions) as step:
            links = crowd(url, token, subscriptions, step, together=PER_SESSION)
        unloaded = measured(readers, publisher, 20, seconds, rows, "all subscriptions, 20/s")
        most, core_us = saturation(service, readers, publisher, rows, "all, saturated")
        half = measured(readers, publisher, most / 2, seconds, rows, "all, half of saturation")
        memory = service.memory_mb()
        for link in links:
            link.close()
        readers.end()
        service.end()
    ratio = unloaded["p50_ms"] / alone["p50_ms"]
    return Report(
        "service",
        {"subscriptions": subscriptions, "listeners": LISTENERS, "quick": quick,
         "saturation_per_s": round(most), "core_us_per_update": round(core_us),
         "memory_mb": round(memory)},
        rows,
        [
            Claim("p50 unloaded with all subscriptions, beside without", round(ratio, 2),
                  ratio <= BAR, bar=BAR),
            Claim("at half of saturation the p99 stays below a second, ms",
                  round(half["p99_ms"], 1), half["p99_ms"] < 1_000, bar=1_000),
        ],
    )  # fmt: skip
