"""One hostile client, as a program: WAY URL TOKEN SECONDS; prints what it was told."""

import http.client
import json
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any, Final
from urllib.parse import quote, urlsplit

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from bench import _filter_shapes as shapes

FILTER_MAX = 16_000
STRANGERS = 3_000
BROAD_SESSIONS = 20
PER_SESSION = 999


def _filling(make: Callable[[int], str]) -> str:
    """Make a filter of a shape as long as a service reads."""
    terms = 10
    while len(make(terms * 5 // 4)) < FILTER_MAX:
        terms = terms * 5 // 4
    return make(terms)


def _asked(url: str, token: str, filters: Iterator[str], until: float) -> Counter[str]:
    """Ask for counts with one filter after the other."""
    told: Counter[str] = Counter()
    there = http.client.HTTPConnection(urlsplit(url).netloc)
    headers = {"Authorization": f"Bearer {token}"}
    for text in filters:
        if time.monotonic() > until:
            break
        there.request("GET", f"/count?filter={quote(text)}", headers=headers)
        answer = there.getresponse()
        answer.read()
        told[str(answer.status)] += 1
    return told


def _subscribed(url: str, token: str, filters: Iterator[str], until: float) -> Counter[str]:
    """Place one subscription after the other, with a hundred standing."""
    told: Counter[str] = Counter()
    headers = {"Authorization": f"Bearer {token}"}
    address = url.replace("http", "ws", 1) + "/session?device=attacker"
    with connect(address, additional_headers=headers, compression=None) as there:
        there.recv()
        for number, text in enumerate(filters):
            if time.monotonic() > until:
                break
            said: dict[str, Any] = {"type": "subscribe", "re": str(number % 100), "filter": text}
            there.send(json.dumps(said))
            kind = ""
            while kind not in ("subscribed", "problem", "error"):
                kind = json.loads(there.recv())["type"]
            told[kind] += 1
    return told


def _moved(url: str, token: str, until: float) -> Counter[str]:
    """Want one's own context by thousands of filters that it nearly always satisfies; change it."""
    told: Counter[str] = Counter()
    address = url.replace("http", "ws", 1) + "/session?device=broad-"
    headers = {"Authorization": f"Bearer {token}"}
    with ExitStack() as sessions:
        for device in range(BROAD_SESSIONS):
            opened = connect(
                f"{address}{device}", additional_headers=headers, compression=None, max_queue=None
            )
            there = sessions.enter_context(opened)
            for number in range(PER_SESSION):
                text = f"mine <> {device * PER_SESSION + number}"
                there.send(json.dumps({"type": "subscribe", "re": str(number), "filter": text}))
            there.send(json.dumps({"type": "subscribe", "re": "last", "filter": "vid = 'mine'"}))
        moves = ({"mine": number % 997} for number in count())
        features = (
            {"type": "Feature", "geometry": None, "properties": {"place": "b/1", **mine}}
            for mine in moves
        )
        told += _sent(url, token, (("PUT", "/contexts/mine", one) for one in features), until)
    return told


def _stood(url: str, seconds: float) -> Counter[str]:
    """Open connections and say nothing."""
    netloc = urlsplit(url)
    held, told = [], Counter[str]()
    for _ in range(STRANGERS):
        try:
            held.append(socket.create_connection((netloc.hostname, netloc.port), 5))
            told["open"] += 1
        except OSError as error:
            told[type(error).__name__] += 1
    time.sleep(seconds)
    for one in held:
        one.close()
    return told


def _sent(
    url: str, token: str, requests: Iterator[tuple[str, str, Any]], until: float
) -> Counter[str]:
    """Send one request with a JSON body after the other."""
    told: Counter[str] = Counter()
    there = http.client.HTTPConnection(urlsplit(url).netloc)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    for method, path, body in requests:
        if time.monotonic() > until:
            break
        there.request(method, path, json.dumps(body), headers)
        answer = there.getresponse()
        answer.read()
        told[str(answer.status)] += 1
    return told


def _naming() -> Iterator[tuple[str, str, Any]]:
    """Name other people in rules, as many as a rule may name."""
    for number in count():
        viewers = [f"person-{number}-{other}" for other in range(100)]
        yield "PUT", f"/contexts/mine-{number}/rules", [{"viewers": viewers, "precision": "exact"}]


def _batches() -> Iterator[tuple[str, str, Any]]:
    for turn in count():
        features = [
            {
                "type": "Feature",
                "id": f"mine-{number}",
                "geometry": None,
                "properties": {"place": f"b/{turn}", f"a{turn % 50}": turn},
            }
            for number in range(1_000)
        ]
        yield "POST", "/contexts", {"type": "FeatureCollection", "features": features}


def _tokens() -> Iterator[tuple[str, str, Any]]:
    for number in count():
        wanted = " OR ".join(f"(a{number} = {other} AND b = {other})" for other in range(40))
        yield "POST", "/tokens", {"scopes": ["read"], "filter": wanted}


def _deep() -> Iterator[str]:
    for number in count():
        text = _filling(lambda terms: shapes.deep("(a{i} = 1 AND b{i} = 1)", terms, 44))
        yield f"({text}) OR c{number} = 1"


def _unequal() -> Iterator[str]:
    text = _filling(shapes.SHAPES["unequal"])
    return (f"{text} AND c <> {number}" for number in count())


def _fuzzed() -> Iterator[str]:
    return (shapes.some_filter(random.Random(number), FILTER_MAX) for number in count())


WAYS: Final[dict[str, Callable[[str, str, float], Counter[str]]]] = {
    "long filters": lambda url, token, s: _asked(url, token, _unequal(), time.monotonic() + s),
    "deep filters": lambda url, token, s: _asked(url, token, _deep(), time.monotonic() + s),
    "fuzzed filters": lambda url, token, s: _asked(url, token, _fuzzed(), time.monotonic() + s),
    "a dear question": lambda url, token, s: _asked(
        url, token, (f"level + 1 > {number}" for number in count()), time.monotonic() + s
    ),
    "dear subscriptions": lambda url, token, s: _subscribed(
        url, token, _deep(), time.monotonic() + s
    ),
    "new attributes": lambda url, token, s: _subscribed(
        url, token, (f"a{number} = 1" for number in count()), time.monotonic() + s
    ),
    "whole current sets": lambda url, token, s: _subscribed(
        url, token, (f"level >= 0 OR a{number} = 1" for number in count()), time.monotonic() + s
    ),
    "one object, many filters": lambda url, token, s: _moved(url, token, time.monotonic() + s),
    "rules that name people": lambda url, token, s: _sent(
        url, token, _naming(), time.monotonic() + s
    ),
    "batches": lambda url, token, s: _sent(url, token, _batches(), time.monotonic() + s),
    "tokens with filters": lambda url, token, s: _sent(url, token, _tokens(), time.monotonic() + s),
    "silent connections": lambda url, _token, s: _stood(url, s),
}

if __name__ == "__main__":
    way, url, token, seconds = sys.argv[1:]
    try:
        print(json.dumps(WAYS[way](url, token, float(seconds))))  # noqa: T201
    except (OSError, http.client.HTTPException, WebSocketException) as error:
        print(json.dumps({type(error).__name__: 1}))  # noqa: T201
