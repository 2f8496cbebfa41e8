"""Hostile clients get a clear error; the service and everybody else notice nothing.

Each test does its worst to one real service, while a bystander watches; afterwards the bystander
still hears of a change, from the same process.
"""

import asyncio
import base64
import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from roamcast.channels.client.link_messages import LINK_PROTOCOL, LinkWelcome
from roamcast.channels.server.messages import Batch, Hello, Publish, Receipt, Request, parcel_of
from roamcast.client import connect
from roamcast.live.auth.admission import TokenKeys
from roamcast.model.contexts import Context, body_of
from roamcast.model.time import parse_instant
from roamcast.transport import driver
from tests.running_service import (
    DEADLINE_S,
    Answer,
    RunningService,
    all_of,
    feature,
    hears,
    one_answer,
)

pytestmark = pytest.mark.process

SETTINGS = """
[limits]
first_bytes_s = 2
body_s = 2
ping_s = 1
pong_s = 8
requests_per_s = 10
requests_burst = 500
connections_per_subject_max = 20
slow_s_max = 2
"""
MIB = 1024 * 1024
YEAR_S = 366 * 86_400


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(tmp_path_factory.mktemp("hostile"), SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def bystander(service: RunningService) -> Iterator[ClientConnection]:
    with service.session(service.token("bystander")) as held:
        held.send(json.dumps({"type": "subscribe", "re": "watch", "filter": "type = 'canary'"}))
        hears(held, "current")
        yield held


@pytest.fixture(autouse=True)
def everybody_else_is_unaffected(
    service: RunningService, bystander: ClientConnection, request: pytest.FixtureRequest
) -> Iterator[None]:
    assert service.process is not None
    yield
    assert service.process.poll() is None, service.log
    vid = f"canary-{abs(hash(request.node.name))}"
    token = service.token("publisher")
    assert service.ask("PUT", f"/contexts/{vid}", token, feature(type="canary")).status == 201
    while hears(bystander, "changes")["events"][0]["subject"] != vid:
        pass
    assert service.ask("DELETE", f"/contexts/{vid}", token).status == 204
    assert service.ask("GET", "/readyz").status == 200
    assert not [line for line in service.log.splitlines() if " error " in line]


@pytest.fixture
def token(service: RunningService) -> str:
    return service.token("mallory")


@pytest.fixture
def session(service: RunningService, token: str) -> Iterator[ClientConnection]:
    with service.session(token) as held:
        hears(held, "welcome")
        yield held


def told(held: ClientConnection, message: object) -> dict[str, Any]:
    """Say something wrong in a session; the error it is answered with."""
    held.send(message if isinstance(message, str | bytes) else json.dumps(message))
    return hears(held, "error")


def still_works(held: ClientConnection) -> None:
    held.send(json.dumps({"type": "heartbeat", "re": "still here"}))
    assert hears(held, "alive")["re"] == "still here"


# Malformed JSON, wrong types


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b"nul", b'{"a":1}{"b":2}', b"[" * 100_000, b'"\\ud800"', b"\x00" * 99],
    ids=lambda body: repr(body[:12]),
)
def test_malformed_json_in_a_request(service: RunningService, token: str, body: bytes) -> None:
    for path in ("/contexts/m", "/contexts/m/rules"):
        answer = service.ask("PUT", path, token, body)
        assert answer.status == 400
        assert answer.problem
    assert service.ask("GET", "/contexts/m", token).status == 404


WRONG_FEATURES: list[Any] = [
    [],
    3,
    "Feature",
    {},
    {"type": "Point"},
    {**feature(), "geometry": {"type": "Polygon", "coordinates": []}},
    {**feature(), "geometry": {"type": "Point", "coordinates": ["1", 2]}},
    {**feature(), "geometry": {"type": "Point", "coordinates": [1e300, 2]}},
    {**feature(), "geometry": []},
    {**feature(), "properties": []},
    {**feature(), "properties": None},
    {**feature(), "id": 3},
    feature(place=3),
    feature(place="a//b"),
    feature(t_r="yesterday"),
    feature(t_r=12),
    feature(t_r="2026-02-30T00:00:00Z"),
    feature(t_d="2026-01-01T00:00:00Z"),
    feature(a={"nested": {"deeper": 1}}),
    feature(a=[1, 2]),
    feature(a=10**400),
    feature(**{"": 1}),
    feature(**{"k" * 100_000: 1}),
    feature(**{f"k{n}": n for n in range(50_000)}),
]


@pytest.mark.parametrize("number", range(len(WRONG_FEATURES)))
def test_a_context_of_wrong_types(service: RunningService, token: str, number: int) -> None:
    answer = service.ask("PUT", "/contexts/wrong", token, WRONG_FEATURES[number])
    assert answer.status == 400, answer
    assert answer.problem
    assert service.ask("GET", "/contexts/wrong", token).status == 404


WRONG_RULES: list[Any] = [
    {},
    3,
    [3],
    [{}],
    [{"viewers": "*", "precision": "exact"}],
    [{"viewers": ["*"], "precision": 1}],
    [{"viewers": ["*"], "precision": "fuzzy"}],
    [{"viewers": ["*"], "precision": "room", "hours": {"start_min": 9, "end_min": 3}}],
    [{"viewers": ["*"], "precision": "room"}] * 1_001,
]


@pytest.mark.parametrize("rules", WRONG_RULES, ids=lambda rules: json.dumps(rules)[:30])
def test_rules_of_wrong_types(service: RunningService, token: str, rules: Any) -> None:
    answer = service.ask("PUT", "/contexts/wrong/rules", token, rules)
    assert answer.status == 400
    assert answer.problem


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "many"},
        {"limit": "0"},
        {"limit": "-1"},
        {"offset": "-1"},
        {"offset": "9" * 400},
        {"bbox": "1,2,3"},
        {"bbox": "a,b,c,d"},
        {"bbox": "nan,nan,nan,nan"},
        {"datetime": "yesterday"},
        {"filter": "type ="},
        {"filter": "\x00"},
        {"filter-lang": "sql", "filter": "true"},
        {"filter-lang": "cql2-json", "filter": "{"},
        {"a'b": "1"},
    ],
    ids=str,
)
def test_parameters_of_wrong_types(
    service: RunningService, token: str, query: Mapping[str, str]
) -> None:
    answer = service.ask("GET", "/collections/contexts/items", token, query=query)
    assert answer.status == 400
    assert answer.problem


@pytest.mark.parametrize(
    "message",
    [
        "",
        "{",
        b"\xff\x00",
        "[" * 50_000,
        "3",
        {},
        {"type": "dance"},
        {"type": 3},
        {"type": "subscribe"},
        {"type": "subscribe", "re": 3, "filter": "true"},
        {"type": "subscribe", "re": "", "filter": "true"},
        {"type": "subscribe", "re": "r" * 129, "filter": "true"},
        {"type": "subscribe", "re": "r", "filter": "type ="},
        {"type": "subscribe", "re": "r", "filter": "true", "more": 1},
        {"type": "unsubscribe", "re": "never placed"},
        {"type": "register", "limit_bytes": -1},
        {"type": "register", "limit_bytes": 1},
        {"type": "publish", "feature": 3},
        {"type": "publish", "feature": {}},
        {"type": "publish", "re": "a", "feature": feature("a\0")},
        {"type": "unpublish", "vid": "unknown"},
        {"type": "unpublish", "vid": ""},
    ],
    ids=lambda message: str(message)[:40],
)
def test_a_wrong_message_in_a_session(session: ClientConnection, message: Any) -> None:
    answer = told(session, message)
    assert 400 <= answer["status"] < 500
    assert answer["detail"]
    still_works(session)


def test_nonsense_on_a_link_is_told_goodbye(service: RunningService, token: str) -> None:
    with service.session(token, "/link") as held:
        held.recv(DEADLINE_S)
        with contextlib.suppress(ConnectionClosed):
            for _ in range(1_000):
                held.send(os.urandom(64))
                held.send("text is not spoken here")
        _read_to_its_end(held)


# Too large


def test_a_body_of_100_mb_is_refused_and_not_kept(service: RunningService, token: str) -> None:
    before = service.memory_bytes_max
    with service.raw() as held:
        head = f"PUT /contexts/big HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
        held.sendall(f"{head}content-length: {100 * MIB}\r\n\r\n".encode())
        _send_as_long_as_it_is_read(held, b"x" * MIB, 100)
        answer = one_answer(held)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"a body has at most 1048576 bytes" in answer
    assert service.memory_bytes_max - before < 60 * MIB


def test_a_chunked_body_without_end_is_refused(service: RunningService, token: str) -> None:
    before = service.memory_bytes_max
    with service.raw() as held:
        head = f"PUT /contexts/big HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
        held.sendall(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        _send_as_long_as_it_is_read(held, b"100000\r\n" + b"x" * MIB + b"\r\n", 100)
        answer = one_answer(held)
    assert answer.startswith(b"HTTP/1.1 413")
    assert service.memory_bytes_max - before < 60 * MIB


def _send_as_long_as_it_is_read(held: socket.socket, part: bytes, times: int) -> None:
    """Send a lot; whoever refuses may close before the end."""
    try:
        for _ in range(times):
            held.sendall(part)
    except (BrokenPipeError, ConnectionResetError):
        pass


@pytest.mark.limit("limits.body_bytes_max")
def test_a_body_at_the_limit_is_read_and_a_byte_more_is_not(
    service: RunningService, token: str
) -> None:
    body = json.dumps(feature()).encode()
    at_limit = body + b" " * (MIB - len(body))
    assert service.ask("PUT", "/contexts/full", token, at_limit).status == 201
    answer = service.ask("PUT", "/contexts/full", token, at_limit + b" ")
    assert answer.status == 413
    assert answer.problem == "a body has at most 1048576 bytes"
    assert service.ask("DELETE", "/contexts/full", token).status == 204


def test_a_message_of_100_mb_closes_its_session_only(service: RunningService, token: str) -> None:
    before = service.memory_bytes_max
    with service.session(token) as held:
        with contextlib.suppress(ConnectionClosed):
            held.send("x" * (100 * MIB))
        assert _read_to_its_end(held) in (1009, None)
    assert service.memory_bytes_max - before < 60 * MIB


def test_a_head_without_end_is_refused(service: RunningService) -> None:
    with service.raw() as held:
        held.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n")
        _send_as_long_as_it_is_read(held, b"x-more: " + b"y" * 8_000 + b"\r\n", 1_000)
        answer = all_of(held)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))


@pytest.mark.parametrize(
    "junk", [b"\x00" * 500, b"\x16\x03\x01" * 99, b"GET\r\n\r\n", b"A" * 200_000]
)
def test_what_is_not_http_is_answered_and_closed(service: RunningService, junk: bytes) -> None:
    with service.raw() as held:
        _send_as_long_as_it_is_read(held, junk, 1)
        answer = all_of(held)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


# Too many


def test_a_million_subscriptions_from_one_client(
    service: RunningService, token: str, bystander: ClientConnection
) -> None:
    before = service.memory_bytes_max
    with service.session(token) as held:
        for number in range(1_000):
            held.send(
                json.dumps({"type": "subscribe", "re": f"{number}", "filter": f"n = {number}"})
            )
        for number in range(1_000):
            hears(held, "subscribed", re=f"{number}")
        answer = told(held, {"type": "subscribe", "re": "more", "filter": "n = -1"})
        assert answer["re"] == "more"
        assert "1000" in answer["detail"].replace(",", "")
        # replacing one that there is stays possible
        held.send(json.dumps({"type": "subscribe", "re": "7", "filter": "n = 'seven'"}))
        hears(held, "subscribed", re="7")
    # and now without reading a single answer: the service reads no further, and keeps no more
    with service.raw() as flood:
        _upgrade(service, flood, token)
        frames = b"".join(
            _frame(json.dumps({"type": "subscribe", "re": f"{n}", "filter": f"n = {n}"}).encode())
            for n in range(20_000)
        )
        flood.settimeout(1.0)
        sent = 0
        try:
            while sent < 50 * len(frames):  # a million
                sent += flood.send(frames[sent % len(frames) :])
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            pass
        assert sent < 50 * len(frames), "the service read a million messages without a break"
        still_works(bystander)
    assert service.memory_bytes_max - before < 100 * MIB


def test_a_flood_on_a_session_is_answered_in_part_and_ended_with_the_reason(
    service: RunningService, token: str, bystander: ClientConnection
) -> None:
    count = 100_000
    beats = _frame(json.dumps({"type": "heartbeat", "re": "r"}).encode()) * 1_000
    with service.raw() as held:
        _upgrade(service, held, token)
        sender = threading.Thread(
            target=_send_as_long_as_it_is_read, args=(held, beats, count // 1_000)
        )
        sender.start()
        said = b""
        while b"too many messages: at most 500 a second" not in said:
            part = held.recv(65_536)
            assert part, said[-500:]
            said += part
        held.shutdown(socket.SHUT_RDWR)
        sender.join()
    assert said.count(b'"alive"') < count / 2
    still_works(bystander)


def test_connections_under_one_subject_are_bounded(service: RunningService) -> None:
    token = service.token("crowd")
    with ExitStack() as stack:
        for _ in range(20):
            hears(stack.enter_context(service.session(token)), "welcome")
        with pytest.raises(InvalidStatus) as refused, service.session(token):
            pass
        response = refused.value.response
        assert response.status_code == 429
        assert b"20 connections" in bytes(response.body or b"")
        answer = service.ask("GET", "/changes", token)
        assert "20 connections" in answer.problem
    end = time.monotonic() + DEADLINE_S
    while True:  # those that closed make room again
        try:
            with service.session(token) as held:
                hears(held, "welcome")
                return
        except InvalidStatus:
            assert time.monotonic() < end


def test_requests_of_one_subject_are_bounded_by_rate(service: RunningService) -> None:
    token = service.token("eager")
    answers = []
    while not answers or answers[-1].status == 200:
        answers.append(service.ask("GET", "/count", token))
        assert len(answers) < 20_000, "there is no limit"
    assert answers[-1].status == 429
    assert "10 requests a second" in answers[-1].problem
    assert int(answers[-1].headers["retry-after"]) >= 1


# Filter bombs

BOMBS = {
    "deep": "(" * 20_000 + "true" + ")" * 20_000,
    "nested": "NOT " * 3_000 + "true",
    "many terms": " OR ".join(f"a{n} = {n}" for n in range(4_097)),
    "long": "a = '" + "x" * 100_000 + "'",
    "exponential": " AND ".join(f"(a{n} = 1 OR b{n} = 1)" for n in range(300)),
    "alternating": "(a = 1 OR (b = 2 AND " * 100 + "true" + "))" * 100,
    "patterns": " AND ".join("a LIKE '%a%a%a%a%a%a%a%a%'" for _ in range(400)),
    "vertices": "S_INTERSECTS(geometry, POLYGON(("
    + ",".join(f"{n % 90}.{n} {n % 45}.{n}" for n in range(10_001))
    + ")))",
    "not closed": "(" * 50,
    "list": "a IN (" + ",".join(map(str, range(5_000))) + ")",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_filter_bomb(
    service: RunningService, session: ClientConnection, token: str, name: str
) -> None:
    """Refused with the reason, or, where it is within the limits, simply answered."""
    bomb = BOMBS[name]
    session.send(json.dumps({"type": "subscribe", "re": "bomb", "filter": bomb}))
    answer: dict[str, Any] = {"type": ""}
    while answer["type"] not in ("error", "subscribed"):
        answer = json.loads(session.recv(DEADLINE_S))
    assert answer["re"] == "bomb"
    if name not in ("exponential", "patterns", "list"):
        assert answer["type"] == "error"
        assert answer["status"] == 400
        assert answer["detail"]
    if len(bomb) < 40_000:
        asked = service.ask("GET", "/count", token, query={"filter": bomb})
        assert asked.status in (200, 400, 414, 431)
    still_works(session)


# Clocks


@pytest.mark.parametrize("late_s", [YEAR_S, -YEAR_S])
def test_a_token_made_by_a_clock_a_year_off(service: RunningService, late_s: int) -> None:
    answer = service.ask("GET", "/count", service.token(late_s=late_s))
    assert answer.status == 401
    assert ("future" if late_s > 0 else "expired") in answer.problem


def test_a_context_from_a_clock_a_year_ahead(
    service: RunningService, session: ClientConnection, token: str
) -> None:
    ahead = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + YEAR_S))
    answer = service.ask("PUT", "/contexts/ahead", token, feature(t_r=ahead))
    assert answer.status == 400
    assert "clock" in answer.problem
    said = told(session, {"type": "publish", "re": "a", "feature": feature("ahead", t_r=ahead)})
    assert "clock" in said["detail"]
    assert service.ask("GET", "/contexts/ahead", token).status == 404


@pytest.mark.parametrize("late_s", [YEAR_S, -YEAR_S])
def test_a_client_whose_clock_is_a_year_off_goes_by_the_services(
    service: RunningService, token: str, late_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = driver.steady_clock()
    monkeypatch.setattr(driver, "steady_clock", lambda: lambda: clock() + late_s * 1_000_000)

    async def body() -> Answer:
        async with connect(f"http://127.0.0.1:{service.port}", token) as me:
            mine = await me.appear(place="hq/1", type="late")
            return await asyncio.to_thread(service.ask, "GET", f"/contexts/{mine.vid}", token)

    answer = asyncio.run(body())
    assert answer.status == 200
    late = time.time() - parse_instant(answer.json["properties"]["t_r"]) / 1e6
    assert -DEADLINE_S < late < DEADLINE_S + 900  # shown on a grid (decision 0220)


def test_a_link_whose_stamps_are_a_year_ahead(service: RunningService, token: str) -> None:
    with service.session(token, "/link") as held:
        welcome = LINK_PROTOCOL.decode(bytes(held.recv(DEADLINE_S)))
        assert isinstance(welcome, LinkWelcome)
        ahead = welcome.now + YEAR_S * 1_000_000
        puts = [
            Publish(body_of(Context(vid, "hq/1", None, {}, t_r)), stamp)
            for vid, t_r, stamp in (("a", welcome.now, ahead), ("b", ahead, welcome.now))
        ]
        request = Request(welcome.epoch, 1, 1, (Hello(), *puts))
        held.send(LINK_PROTOCOL.encode(request))
        refused = []
        while len(refused) < len(puts):
            message = LINK_PROTOCOL.decode(bytes(held.recv(DEADLINE_S)))
            if isinstance(message, Batch):
                held.send(LINK_PROTOCOL.encode(Receipt(message.epoch, 1, message.number)))
                refused += parcel_of(message.payload).items
        assert [one.name for one in refused] == ["a", "b"]  # type: ignore[union-attr]
        assert all("clock" in one.reason for one in refused)  # type: ignore[union-attr]
    assert service.ask("GET", "/contexts/a", token).status == 404


# Tokens and scopes


def test_without_a_valid_token_nothing_is_answered(service: RunningService, tmp_path: Path) -> None:
    good = service.token()
    head, claims, signature = good.split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    revoked = service.token()
    now = time.time_ns() // 1000
    TokenKeys.open(service.data).revoke(revoked, now)
    foreign = TokenKeys.open(tmp_path).issue("ada", ["admin"], lifetime_s=60, now=now)
    expired = service.token(lifetime_s=1, late_s=-600)
    forged = f"{head}.{claims}.{signature[::-1]}"
    bad = [
        "",
        "x",
        "a.b.c",
        f"{none}.{claims}.",
        forged,
        foreign,
        expired,
        revoked,
        "é",
        "x" * 9_000,
    ]
    for token in bad:
        headers = {"authorization": f"Bearer {token}".encode().decode("latin-1")}
        for path in ("/count", "/collections/contexts/items", "/nearest?to=1,1", "/metrics"):
            answer = service.ask("GET", path, headers=headers)
            assert answer.status == 401, (token[:20], path)
            assert answer.problem
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert service.ask("PUT", "/contexts/x", body=feature(), headers=headers).status == 401
        assert service.ask("GET", "/changes", headers=headers).status == 401
        for path in ("/session", "/link"):
            with service.raw() as held:
                _upgrade(service, held, token, path)
                expected = b"HTTP/1.1 400" if len(token) > 8_192 else b"HTTP/1.1 401"
                assert all_of(held).startswith(expected)
    assert service.ask("GET", "/count", good).status == 200


READS = ["/count", "/collections/contexts/items", "/nearest?to=1,1", "/contexts/x", "/templates"]


def test_a_missing_scope_is_named(service: RunningService) -> None:
    tokens = {
        scope: service.token("scoped", [scope])
        for scope in ("read", "publish", "subscribe", "cast")
    }
    needs = [("GET", path, "read") for path in READS]
    needs += [("GET", "/changes", "subscribe"), ("PUT", "/contexts/x", "publish")]
    needs += [("DELETE", "/contexts/x", "publish"), ("PUT", "/contexts/x/rules", "publish")]
    needs += [("GET", "/metrics", "admin")]
    for method, path, needed in needs:
        for scope, token in tokens.items():
            if scope == needed:
                continue
            body = feature() if method == "PUT" else None
            answer = service.ask(method, path, token, body)
            assert answer.status == 403, (method, path, scope)
            assert f"needs the scope {needed}" in answer.problem
    for path in ("/session", "/link"):
        for scope in ("read", "cast"):
            with pytest.raises(InvalidStatus) as refused, service.session(tokens[scope], path):
                pass
            assert refused.value.response.status_code == 403
    with service.session(tokens["publish"]) as held:
        answer = told(held, {"type": "subscribe", "re": "r", "filter": "true"})
        assert answer["status"] == 403
        assert "subscribe" in answer["detail"]
    with service.session(tokens["subscribe"]) as held:
        answer = told(held, {"type": "publish", "re": "r", "feature": feature("x")})
        assert answer["status"] == 403
        still_works(held)


def test_a_session_ends_when_its_token_does(service: RunningService) -> None:
    with ExitStack() as stack:
        for left_s in (3, 10, 30):  # a slow machine needs longer to begin at all
            # it has expired, but the allowed skew of a minute is not quite over
            token = service.token("brief", lifetime_s=1, late_s=left_s - 61)
            with contextlib.suppress(InvalidStatus):
                held = stack.enter_context(service.session(token))
                link = stack.enter_context(service.session(token, "/link"))
                break
        assert "expired" in hears(held, "error")["detail"]
        _read_to_its_end(held)
        _read_to_its_end(link)
    assert b"expired" in service.ask("GET", "/changes", token).body


def test_what_a_revoked_token_opened_is_ended(service: RunningService) -> None:
    token, other = service.token("leaked"), service.token("leaked")
    with ExitStack() as stack:
        held, stays = (stack.enter_context(service.session(one)) for one in (token, other))
        link = stack.enter_context(service.session(token, "/link"))
        hears(held, "welcome")
        link.recv(DEADLINE_S)
        with service.raw() as follows:
            head = f"GET /changes HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n"
            follows.sendall(head.encode())
            follows.recv(1)
            TokenKeys.open(service.data).revoke(token, time.time_ns() // 1000)
            assert b"revoked" in _read_stream(follows)
        assert "revoked" in hears(held, "error")["detail"]
        _read_to_its_end(held)
        _read_to_its_end(link)
        still_works(stays)


def _read_stream(held: socket.socket) -> bytes:
    """Read a chunked answer to its last chunk."""
    found = b""
    while not found.endswith(b"0\r\n\r\n"):
        part = held.recv(65_536)
        if not part:
            break
        found += part
    return found


def _read_to_its_end(held: ClientConnection) -> int | None:
    """Read until the service closes; its code, unless the connection was lost without one."""
    try:
        while True:
            held.recv(DEADLINE_S)
    except ConnectionClosed as closed:
        return None if closed.rcvd is None else closed.rcvd.code


# Slow


@pytest.mark.limit("limits.first_bytes_s", "limits.body_s")
def test_a_slow_loris_is_sent_away(service: RunningService, bystander: ClientConnection) -> None:
    with ExitStack() as stack:
        crowd = [stack.enter_context(service.raw()) for _ in range(100)]
        for held in crowd[:50]:
            held.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n")
        for held in crowd[50:75]:
            held.sendall(b"PUT /contexts/slow HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        open_still = dict.fromkeys(crowd[:75])
        end = time.monotonic() + DEADLINE_S
        while open_still:  # a byte now and then keeps nobody waiting
            assert time.monotonic() < end
            for held in list(open_still):
                try:
                    held.sendall(b"x")
                except (BrokenPipeError, ConnectionResetError):
                    del open_still[held]
            still_works(bystander)
        for held in crowd[75:]:  # who says nothing at all
            said = all_of(held)
            assert said == b"" or said.startswith(b"HTTP/1.1 408")


def test_half_a_websocket_frame_disturbs_nobody(
    service: RunningService, token: str, bystander: ClientConnection
) -> None:
    half = _frame(json.dumps({"type": "heartbeat", "re": "half"}).encode())[:-5]
    with service.raw() as stalls, service.raw() as leaves:
        for held in (stalls, leaves):
            _upgrade(service, held, token)
            _read_head(held)
            held.sendall(half)
        leaves.close()
        still_works(bystander)
        # who answers no ping is let go, half a frame or not
        assert all_of(stalls)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x02{}", 1002),  # not masked
        (b"\x83\x80\0\0\0\0", 1002),  # no such opcode
        (b"\xf1\x80\0\0\0\0", 1002),  # reserved bits
        (b"\x89\xfe\x00\x7e\0\0\0\0" + b"x" * 126, 1002),  # a ping larger than a ping may be
        (b"\x80\x80\0\0\0\0", 1002),  # the continuation of nothing
        (b"\x81\xff" + struct.pack("!Q", 2**63) + b"\0\0\0\0", 1009),  # a length with the sign bit
        (b"\x81\xff" + struct.pack("!Q", 2**40) + b"\0\0\0\0", 1009),  # a terabyte
        (b"\x81\x82\0\0\0\0\xff\xff", 1007),  # a text that is not UTF-8
        (b"\x01\xff" + struct.pack("!Q", 700_000) + b"\0\0\0\0" + b" " * 700_000
         + b"\x00\xff" + struct.pack("!Q", 700_000) + b"\0\0\0\0", 1009),  # too large in pieces
    ],
)  # fmt: skip
def test_frames_that_break_the_protocol_close_with_its_code(
    service: RunningService, token: str, data: bytes, code: int
) -> None:
    with service.raw() as held:
        _upgrade(service, held, token)
        _read_head(held)
        _send_as_long_as_it_is_read(held, data, 1)
        said = b""
        while struct.pack("!H", code) not in said:
            part = held.recv(65_536)
            assert part, said
            said += part
    assert b"\x88" in said


def test_a_client_that_reads_nothing_is_cut_off_and_slows_nobody(
    service: RunningService, token: str, bystander: ClientConnection
) -> None:
    before = _cut_off(service)
    heavy = feature(type="heavy", **{f"text{n}": "x" * 900 for n in range(3)})
    for number in range(50):
        assert service.ask("PUT", f"/contexts/heavy-{number}", token, heavy).status == 201
    with service.raw() as held:
        _upgrade(service, held, token)
        for number in range(200):  # 30 MB of current sets, far more than lies on the way
            message = {"type": "subscribe", "re": f"{number}", "filter": "type = 'heavy'"}
            held.sendall(_frame(json.dumps(message).encode()))
        end = time.monotonic() + DEADLINE_S
        while _cut_off(service) == before:
            assert time.monotonic() < end
            still_works(bystander)
            time.sleep(0.1)
    for number in range(50):
        assert service.ask("DELETE", f"/contexts/heavy-{number}", token).status == 204


def _cut_off(service: RunningService) -> float:
    """How many connections the service has ended."""
    page = service.ask("GET", "/metrics", service.operator)
    assert page.status == 200
    lines = page.body.decode().splitlines()
    counts = [line for line in lines if line.startswith("roamcast_cut_off_total")]
    return sum(float(line.rpartition(" ")[2]) for line in counts)


def _upgrade(
    service: RunningService, held: socket.socket, token: str, path: str = "/session"
) -> None:
    """Ask for a WebSocket by hand."""
    key = base64.b64encode(os.urandom(16)).decode()
    held.sendall(
        f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{service.port}\r\nconnection: upgrade\r\n"
        f"upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n"
        f"authorization: Bearer {token}\r\n\r\n".encode()
    )


def _read_head(held: socket.socket) -> None:
    found = b""
    while b"\r\n\r\n" not in found:
        part = held.recv(1)
        assert part, found
        found += part
    assert found.startswith(b"HTTP/1.1 101"), found


def _frame(payload: bytes) -> bytes:
    """Frame a client's text; a mask of zeros leaves it readable."""
    size = len(payload)
    head = bytes([0x81, 0x80 | size]) if size < 126 else b"\x81\xfe" + struct.pack("!H", size)
    return head + b"\0\0\0\0" + payload
