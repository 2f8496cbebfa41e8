"""The service as people use it: publish, query, follow, and find it again after a crash."""

import asyncio
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import websockets

from tests.running_service import RunningService

DEEP = 50_000
"""Nesting far beyond what a decoder without types can read."""

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(tmp_path_factory.mktemp("live")) as one:
        yield one


def test_what_is_put_is_found_by_filter_box_time_and_attribute(running: RunningService) -> None:
    assert running.put("a1", "find/1", point=[13.4, 52.5], type="printer", n=1).status == 201
    assert running.put("a1", "find/1", point=[13.4, 52.5], type="printer", n=2).status == 200
    assert running.put("a2", "find/2", point=[2.3, 48.8], type="person").status == 201
    items = "/collections/contexts/items"
    for query, expected in (
        ({"filter": "within(place, 'find')"}, ["a1", "a2"]),
        ({"filter": "within(place, 'find') AND n = 2"}, ["a1"]),
        ({"filter": '{"op":"=","args":[{"property":"place"},"find/2"]}',
          "filter-lang": "cql2-json"}, ["a2"]),
        ({"bbox": "13,52,14,53", "place": "find/1"}, ["a1"]),
        ({"bbox": "170,-90,-170,90"}, []),
        ({"type": "person", "place": "find/2"}, ["a2"]),
        ({"n": "2", "place": "find/1"}, ["a1"]),
        ({"datetime": "2020-01-01T00:00:00Z/2020-02-01T00:00:00Z"}, []),
        ({"datetime": "../..", "place": "find/1"}, ["a1"]),
    ):  # fmt: skip
        answer = running.get(items, **query)
        assert answer.status == 200, answer.body
        assert [one["id"] for one in answer.json["features"]] == expected, query
    assert running.get("/contexts/a1").json["properties"]["n"] == 2
    assert running.get("/count", filter="within(place, 'find')").json == {"count": 2}
    near = running.get("/nearest", to="2.3,48.9", filter="within(place, 'find')", count=2).json
    assert [one["id"] for one in near["features"]] == ["a2", "a1"]
    assert near["features"][0]["properties"]["distance_m"] == pytest.approx(11_119, rel=0.01)
    assert running.ask("DELETE", "/contexts/a1", running.operator).status == 204
    assert running.get("/contexts/a1").status == 404
    assert running.ask("DELETE", "/contexts/a1", running.operator).status == 404


def test_pages_lead_to_each_other(running: RunningService) -> None:
    for number in range(5):
        running.put(f"page{number}", "pages")
    answer = running.get("/collections/contexts/items", filter="place = 'pages'", limit=2).json
    assert answer["numberMatched"] == 5
    found = [one["id"] for one in answer["features"]]
    while following := [one["href"] for one in answer["links"] if one["rel"] == "next"]:
        answer = running.get(following[0].removeprefix(running.url)).json
        found += [one["id"] for one in answer["features"]]
    assert found == [f"page{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("path", "query", "detail"),
    [
        ("/collections/contexts/items", {"filter": "within(place"}, "position 7"),
        ("/collections/contexts/items", {"limit": "0"}, "limit"),
        ("/collections/contexts/items", {"bbox": "1,2,3"}, "west,south,east,north"),
        ("/collections/contexts/items", {"filter-lang": "sql", "filter": "n=1"}, "filter-lang"),
        ("/collections/contexts/items", {"datetime": "soon"}, "soon"),
        ("/nearest", {"to": "here"}, "lon,lat"),
        ("/nearest", {"to": "500,0"}, "±180"),
    ],
)
def test_a_wrong_question_is_answered_with_what_is_wrong(
    running: RunningService, path: str, query: dict[str, str], detail: str
) -> None:
    answer = running.get(path, **query)
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert detail in answer.json["detail"]


def test_a_filter_that_reads_a_text_as_an_attribute_is_answered_with_a_hint(
    running: RunningService,
) -> None:
    written = "position 8: printer is read as the name of an attribute"
    for path in ("/count", "/collections/contexts/items", "/nearest"):
        query = {"filter": "type = printer"} | ({"to": "0,0"} if path == "/nearest" else {})
        assert running.get(path, **query).json["hint"].startswith(written)
        assert "hint" not in running.get(path, **(query | {"filter": "type = 'printer'"})).json


def test_nobody_gets_in_without_a_token_and_nobody_beyond_its_scopes(
    running: RunningService,
) -> None:
    reader = running.token("reader", ["read"])
    for path in ("/collections", "/collections/contexts/items", "/metrics", "/templates"):
        assert running.get(path, token="nonsense").status == 401
    assert running.put("x", "hq", token=reader).status == 403
    assert running.get("/metrics", token=reader).status == 403
    assert running.get("/collections", token=reader).status == 200
    assert running.get("/healthz", token="").status == 200
    assert "roamcast_held" in running.get("/metrics").body.decode()


def test_another_ones_context_is_not_ones_own(running: RunningService) -> None:
    ann = running.token("ann", ["read", "publish"])
    bob = running.token("bob", ["read", "publish"])
    assert running.put("desk", "hq", token=ann).status == 201
    assert running.put("desk", "moon", token=bob).status == 409
    assert running.ask("DELETE", "/contexts/desk", bob).status == 404
    rules = [{"viewers": ["ann"], "precision": "exact"}]
    assert running.ask("PUT", "/contexts/desk/rules", bob, rules).status == 409
    assert running.ask("PUT", "/contexts/desk/rules", ann, rules).status == 200
    assert running.get("/contexts/desk", token=bob).status == 404
    assert running.get("/contexts/desk", token=ann).status == 200
    assert running.get("/contexts/desk/rules", token=bob).status == 404
    assert running.ask("DELETE", "/contexts/desk/rules", ann).status == 204
    assert running.ask("PUT", "/contexts/free/rules", bob, rules).status == 200
    # Bob's rules would decide about ann. The words are those for a vid that is on the map (0090).
    assert "belongs to somebody else" in running.put("free", "home", token=ann).problem
    assert running.put("free", "home", token=bob).status == 201
    assert running.get("/contexts/desk", token=bob).status == 200


def test_server_sent_events_tell_the_current_set_and_then_changes(running: RunningService) -> None:
    running.put("sse1", "sse")
    address = f"{running.url}/changes?filter=place%3D%27sse%27&access_token={running.operator}"
    events: list[tuple[str, Any]] = []
    with urllib.request.urlopen(address, timeout=30) as stream:
        kind = ""
        for raw in stream:
            line = raw.decode().rstrip("\n")
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                events.append((kind, json.loads(line[6:])))
                if kind == "complete":
                    threading.Thread(target=running.put, args=("sse2", "sse")).start()
                if kind == "change":
                    break
    assert [kind for kind, _ in events] == ["current", "complete", "change"]
    assert [one["id"] for one in events[0][1]["features"]] == ["sse1"]
    assert events[2][1]["type"] == "org.roamcast.context.appeared"
    assert events[2][1]["data"]["id"] == "sse2"


async def talk(running: RunningService, *messages: Any, until: str, device: str = "d") -> list[Any]:
    """Say something on a session and listen until an answer of a type comes."""
    address = f"{running.url.replace('http', 'ws')}/session?device={device}"
    headers = {"Authorization": f"Bearer {running.operator}"}
    heard = []
    async with asyncio.timeout(60), websockets.connect(address, additional_headers=headers) as link:
        for message in messages:
            await link.send(message if isinstance(message, str | bytes) else json.dumps(message))
        async for answer in link:
            heard.append(json.loads(answer))
            if heard[-1]["type"] == until:
                break
    return heard


def test_a_session_subscribes_publishes_and_is_told(running: RunningService) -> None:
    feature = {"type": "Feature", "id": "ws1", "geometry": None, "properties": {"place": "ws"}}
    heard = asyncio.run(
        talk(
            running,
            {"type": "register", "re": "r"},
            {"type": "heartbeat", "re": "h"},
            {"type": "subscribe", "re": "s", "filter": "place = 'ws'"},
            {"type": "publish", "re": "a", "feature": feature},
            until="changes",
        )
    )
    kinds = [one["type"] for one in heard]
    assert kinds[:5] == ["welcome", "done", "alive", "subscribed", "current"]
    assert heard[3]["features"] == []
    assert heard[-1]["events"][0]["subject"] == "ws1"
    assert heard[-1]["query"] == heard[3]["query"]


@pytest.mark.parametrize(
    ("message", "status", "detail"),
    [
        ("not json", 400, "malformed"),
        ({"type": "dance", "re": "x"}, 400, "dance"),
        ({"type": "subscribe", "re": "x", "filter": "within(place"}, 400, "never closed"),
        ({"type": "subscribe", "re": "x", "filter": 7}, 400, "filter"),
        ({"type": "unsubscribe", "re": "x"}, 400, "no subscription"),
        ({"type": "unpublish", "re": "x", "vid": "nobody"}, 404, "nobody"),
        ({"type": "publish", "re": "x", "feature": {"type": "Feature"}}, 400, "id"),
        ({"type": "register", "re": "x", "limit_bytes": 7}, 400, "at least"),
        ('{"deep":' + "[" * DEEP + "]" * DEEP + ',"type":"heartbeat"}', 400, "too deeply"),
        ('{"type":"publish","feature":' + '{"a":' * DEEP + "1" + "}" * DEEP + "}", 400, ""),
        (b'{"type":"subscribe","re":"\xff","filter":"true"}', 400, "UTF-8"),
    ],
)
def test_a_wrong_message_is_answered_and_changes_nothing(
    running: RunningService, message: Any, status: int, detail: str
) -> None:
    heard = asyncio.run(talk(running, message, until="error"))
    assert heard[-1]["status"] == status
    assert detail in heard[-1]["detail"]
    if isinstance(message, dict):
        assert heard[-1]["re"] == "x"


@pytest.mark.parametrize("depth", [400, DEEP])
def test_a_body_that_is_nested_too_deeply_is_the_clients_mistake(
    running: RunningService, depth: int
) -> None:
    nested = "[" * depth + "]" * depth
    bodies = {
        "/contexts/deep": [
            nested,
            '{"type":"Feature","geometry":null,"properties":{"a":' + nested + "}}",
            '{"type":"Feature","geometry":' + nested + ',"properties":{"place":"a"}}',
            '{"beside":' + nested + ',"type":"Feature","geometry":null,"properties":{"a":[]}}',
        ],
        "/contexts/deep/rules": [nested, '{"rules":' + nested + "}", '[{"viewers":' + nested],
    }
    for path, texts in bodies.items():
        for text in texts:
            answer = running.ask("PUT", path, running.operator, text.encode())
            assert answer.status == 400, answer.json
            assert "mistake" not in answer.json["title"]
    assert running.get("/collections/contexts/items/deep").status == 404


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    with RunningService(tmp_path) as one:
        for number in range(20):
            assert one.put(f"kept{number}", "hq").status == 201
        rules = [{"viewers": ["nobody"], "precision": "exact"}]
        assert one.ask("PUT", "/contexts/kept0/rules", one.operator, rules).status == 200
        assert one.ask("DELETE", "/contexts/kept1", one.operator).status == 204
        one.kill()
        one.start()
        assert sorted(one.vids()) == sorted(f"kept{number}" for number in range(2, 20))
        assert one.get("/contexts/kept0/rules").json[0]["viewers"] == ["nobody"]


def test_the_service_ends_cleanly_when_asked(tmp_path: Path) -> None:
    with RunningService(tmp_path) as one:
        one.put("a", "hq")
        assert one.end() == 0
        assert not (one.data / "roamcast.json").exists()
        assert list((one.data / "journal").glob("*.parquet"))


COUNTING = """
import gc, os, signal, sys
from roamcast.broker import Broker
from roamcast.live.service.running import run
from roamcast.live.config.settings import ServerSection, Settings

def started(url, token):
    print(gc.get_freeze_count())
    print(any(isinstance(one, Broker) for one in gc.get_objects()))
    os.kill(os.getpid(), signal.SIGTERM)

run(Settings(server=ServerSection(port=0, data=sys.argv[1])), started=started)
"""


def test_what_was_there_at_the_start_is_not_collected_again_and_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNTING, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    set_aside, still_collected = done.stdout.split()
    assert int(set_aside) > 10_000
    assert still_collected == "False"


def test_a_port_that_is_taken_is_said_in_one_line(running: RunningService, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "roamcast", "serve", "--data", str(tmp_path)]
    done = subprocess.run(
        [*command, "--port", str(running.port)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert f"port {running.port}" in done.stderr
    assert "--port" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_nobody_but_a_host_of_the_same_cluster_may_call_as_one(running: RunningService) -> None:
    async def call() -> None:
        headers = {"Authorization": f"Bearer {running.operator}"}
        address = running.url.replace("http", "ws", 1) + "/replica"
        await websockets.connect(address, additional_headers=headers, proxy=None)

    with pytest.raises(websockets.InvalidStatus) as refused:
        asyncio.run(call())
    assert refused.value.response.status_code == 401
    assert b"none of a cluster" in refused.value.response.body
