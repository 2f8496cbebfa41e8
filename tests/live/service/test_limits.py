"""Limits of the settings, on a running service: taken at the limit, refused one past it."""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from websockets.exceptions import ConnectionClosed

from tests.running_service import Answer, RunningService, feature, hears, one_answer

pytestmark = pytest.mark.process

ITEMS = "/collections/contexts/items"
HEADER_BYTES_MAX = 8_192
FRAME_BYTES_MAX = 4_096
FILTER_LENGTH_MAX = 64
SETTINGS = f"""
[limits]
header_bytes_max = {HEADER_BYTES_MAX}
frame_bytes_max = {FRAME_BYTES_MAX}
filter_length_max = {FILTER_LENGTH_MAX}
items_default = 2
items_max = 3
nearest_max = 2
publications_per_client_max = 4
rule_names_per_client_max = 3
connections_per_subject_max = 2
idle_s = 1
ping_s = 0.2
pong_s = 0.2
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(tmp_path_factory.mktemp("limits"), SETTINGS) as service:
        for number in range(4):
            assert service.put(f"p{number}", "hq", point=[number, 0]).status == 201
        yield service


@pytest.mark.limit("limits.items_default", "limits.items_max")
def test_a_page_has_the_default_and_at_most_the_maximum(running: RunningService) -> None:
    def returned(**query: int) -> int:
        return int(running.get(ITEMS, **query).json["numberReturned"])

    assert returned() == 2
    assert returned(limit=3) == 3
    assert returned(limit=4) == 3  # OGC API – Features: a larger limit is lowered, not refused


@pytest.mark.limit("limits.nearest_max")
def test_nearest_gives_at_most_the_maximum(running: RunningService) -> None:
    assert running.get("/nearest", to="0,0", count=2).json["numberReturned"] == 2
    answer = running.get("/nearest", to="0,0", count=3)
    assert answer.status == 400
    assert answer.problem == "count is at most 2"


@pytest.mark.limit("limits.filter_length_max")
def test_a_filter_is_read_up_to_its_length(running: RunningService) -> None:
    text = "a = '" + "x" * (FILTER_LENGTH_MAX - 6) + "'"
    assert len(text) == FILTER_LENGTH_MAX
    assert running.get("/count", filter=text).json == {"count": 0}
    longer = text + " "
    assert running.get("/count", filter=longer).problem == "a filter has at most 64 characters"
    with running.session(running.operator) as held:
        held.send(json.dumps({"type": "subscribe", "re": "at", "filter": text}))
        assert hears(held, "subscribed")["re"] == "at"
        held.send(json.dumps({"type": "subscribe", "re": "past", "filter": longer}))
        assert hears(held, "error")["detail"] == "a filter has at most 64 characters"


@pytest.mark.limit("limits.publications_per_client_max")
def test_a_subject_publishes_up_to_the_maximum(running: RunningService) -> None:
    token = running.token("many", ["publish"])
    for number in range(4):
        assert running.ask("PUT", f"/contexts/m{number}", token, feature()).status == 201
    refused = running.ask("PUT", "/contexts/m4", token, feature())
    assert refused.status == 400
    assert "4" in refused.problem
    assert running.ask("DELETE", "/contexts/m0", token).status == 204
    assert running.ask("PUT", "/contexts/m4", token, feature()).status == 201


@pytest.mark.limit("limits.rule_names_per_client_max")
def test_the_rules_of_a_subject_name_up_to_the_maximum(running: RunningService) -> None:
    token = running.token("ruler", ["publish"])

    def ask(*viewers: str) -> Answer:
        rules = [{"viewers": viewers, "precision": "exact"}]
        return running.ask("PUT", "/contexts/mine/rules", token, rules)

    assert ask("a", "b", "c").status == 200
    refused = ask("a", "b", "c", "d")
    assert refused.status == 400
    assert "at most 3 names of viewers and attributes" in refused.problem


@pytest.mark.limit("limits.header_bytes_max")
def test_a_head_is_read_up_to_its_size(running: RunningService) -> None:
    def ask(size: int) -> bytes:
        path = b"/healthz"
        fixed = len(path) + len(b"host") + len(b"x") + 4 + len(b"pad") + 4
        with running.raw() as held:
            pad = b"x" * (size - fixed)
            held.sendall(b"GET %b HTTP/1.1\r\nhost: x\r\npad: %b\r\n\r\n" % (path, pad))
            return one_answer(held)

    assert ask(HEADER_BYTES_MAX).startswith(b"HTTP/1.1 200")
    assert ask(HEADER_BYTES_MAX + 1).startswith(b"HTTP/1.1 431")


@pytest.mark.limit("limits.frame_bytes_max")
def test_a_message_is_read_up_to_its_size(running: RunningService) -> None:
    text = json.dumps({"type": "heartbeat", "re": "x"})
    with running.session(running.operator) as held:
        held.send(text + " " * (FRAME_BYTES_MAX - len(text)))
        assert hears(held, "alive")["re"] == "x"
        held.send(text + " " * (FRAME_BYTES_MAX + 1 - len(text)))
        with pytest.raises(ConnectionClosed) as closed:
            hears(held, "alive")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


@pytest.mark.limit("limits.connections_per_subject_max")
def test_a_subject_has_at_most_so_many_connections(running: RunningService) -> None:
    token = running.token("crowd", ["subscribe"])
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(running.session(token))
        answer = running.ask("GET", "/changes", token)
        assert answer.status == 429
        assert "2 connections open" in answer.problem


@pytest.mark.limit("limits.idle_s")
def test_an_idle_connection_is_closed(running: RunningService) -> None:
    with running.raw() as held:
        held.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert one_answer(held).startswith(b"HTTP/1.1 200")
        assert held.recv(1) == b""  # the socket's own timeout would raise


@pytest.mark.limit("limits.ping_s", "limits.pong_s")
def test_who_does_not_answer_pings_is_closed(running: RunningService) -> None:
    head = (
        "GET /session HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        f"authorization: Bearer {running.operator}\r\n\r\n"
    )
    with running.raw() as held:
        held.sendall(head.encode())
        received = b""
        while True:
            try:
                data = held.recv(4_096)
            except ConnectionResetError:
                break
            if not data:
                break
            received += data
        assert received.startswith(b"HTTP/1.1 101")
        assert b"\x89" in received  # a ping, then the end
