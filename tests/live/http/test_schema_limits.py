"""The limits in the API's schemas are those that the service enforces: at them, and beyond them."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from jsonschema_rs import Draft202012Validator
from websockets.sync.client import ClientConnection

from roamcast.channels.sessions import messages
from roamcast.identity.sealing import VidSecrets
from roamcast.identity.trusted.settings import TrustSettings
from roamcast.live.http.routes import ROUTES, route_of
from tests.live import in_process  # noqa: F401 — imports the application, which registers its routes
from tests.live.http.limits import cases
from tests.running_service import DEADLINE_S, Answer, RunningService

pytestmark = pytest.mark.process

FEATURE = {
    "type": "Feature",
    "id": "a",
    "geometry": {"type": "Point", "coordinates": [0.0, 0.0]},
    "properties": {
        "place": "a",
        "t_r": None,
        "t_d": None,
        "note": "x",
        "when": {"timestamp": "2020-01-01T00:00:00Z"},
    },
}
HOURS = {"days": [0], "start_min": 0, "end_min": 1_440, "offset_min": 0}
RULE = {"viewers": ["a"], "precision": "room", "hours": HOURS, "attributes": ["a"], "past": True}
EVENT = {name: value for name, value in FEATURE.items() if name != "id"}
PRODUCED = {"producer": "p", "life": 1, "number": 1}
BODIES: dict[str, Any] = {
    "putContext": FEATURE,
    "postEvent": {"feature": EVENT, **PRODUCED},
    "patchContext": {"geometry": FEATURE["geometry"], "properties": {"place": "a"}},
    "putRules": [RULE],
    "putOwnRules": [RULE],
    "postMirror": {"rules": [RULE], "viewer": "a", "groups": ["a"]},
    "putReach": {"senders": ["a"], "stopped": ["a"], "kinds": ["a"], "past_s": 0, "quiet": [HOURS]},
}
"""A valid body of each operation that has one, with every member there is."""

MEANT = (
    *("makeToken", "revokeToken", "putContexts", "makeWebhook"),
    *("postRegistration", "postDeposit", "postCast", "postUpdate", "postDrain"),
    *("putDevice", "putItem", "postHandles", "postDeparted", "postWhatIf"),
)
"""Operations whose bodies mean something beyond their schema: their own tests have the limits."""

MESSAGES: dict[str, Any] = {
    "register": {"re": "r", "limit_bytes": 0},
    "heartbeat": {"re": "r"},
    "publish": {"re": "r", "feature": FEATURE},
    "change": {"re": "r", "feature": FEATURE},
    "unpublish": {"re": "r", "vid": "a"},
    "subscribe": {"re": "r", "filter": "true"},
    "unsubscribe": {"re": "r"},
    "count": {"re": "r", "filter": "true"},
    "numbers": {"re": "r"},
    "publish_event": {"re": "r", "feature": EVENT, **PRODUCED},
    "subscribe_events": {"re": "r", "filter": "true", "place": "a", "previous": "", "expires_s": 1},
    "brokers": {"here": 1, "found": {}},
    "confirm_events": {"re": "r", "vector": {"limits": [0, 0]}},
    "unsubscribe_events": {"re": "r"},
    "place": {"re": "r", "place": "a"},
    "part": {
        "re": "r",
        "text": json.dumps({"type": "publish_event", "feature": EVENT}),
        "last": True,
    },
}
APART = {"cast", "preview", "progress", "cancel", "subscribe_many"}
"""Messages with another answer: `test_session_casts.py` and `test_session_limits.py` have them."""

QUERIES: dict[str, Callable[[int], str]] = {"filter": "true".ljust}
"""Parameters whose text means something: how to make one of a length."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("limits")
    # Far from the defaults, so that a limit that ignores the settings is found.
    settings = (
        "[limits]\nfilter_length_max = 2_000\nnearest_max = 7\ncontext_lifetime_s_max = 5_000\n"
        '[overlay]\nnode = "limits"\n[push]\ncontact = "mailto:operator@example.org"\n'
    )
    with RunningService(folder, settings) as started:
        own = [
            VidSecrets(bytes([number] * 32)).public for number in range(TrustSettings().pool_size)
        ]
        keys = [{"signing": text(one.signing), "sealing": text(one.sealing)} for one in own]
        assert started.ask("POST", "/pools", started.operator, {"keys": keys}).status == 201
        yield started


@pytest.fixture(scope="module")
def document(running: RunningService) -> Any:
    return running.ask("GET", "/openapi.json").json


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def test_bodies_are_taken_at_every_limit_and_refused_beyond_it(
    running: RunningService, document: Any
) -> None:
    components = document["components"]["schemas"]
    found = 0
    for path, method, operation in operations(document):
        if "requestBody" not in operation or operation["operationId"] in MEANT:
            continue
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        for case in cases(schema, BODIES[operation["operationId"]], components):
            answers = []
            for body in (case.at, case.beyond):
                vid = body.get("id", "a") if isinstance(body, dict) else "a"
                target = path.replace("{vid}", vid or "a")
                answers.append(running.ask(method, target, running.operator, body))
            assert answers[0].status in (200, 201), (case[:2], answers[0].body[:200])
            assert answers[1].status == 400, (case[:2], answers[1].body[:200])
            found += 1
    assert found > 50


def test_parameters_are_taken_at_every_limit_and_refused_beyond_it(
    running: RunningService, document: Any
) -> None:
    found = 0
    for path, method, operation in operations(document):
        if method != "GET":
            continue
        for parameter in operation.get("parameters", ()):
            name = parameter["name"]
            if parameter["in"] != "query" or name in ("to", "filter-lang"):
                continue
            needed = {"to": "0,0"} if "to" in str(operation["parameters"]) else {}
            for case in cases(parameter["schema"], None, {}):
                values = [case.at, case.beyond]
                if name in QUERIES:
                    values = [QUERIES[name](len(value)) for value in values]
                at, beyond = [
                    running.get(path, **{**needed, name: value}).status for value in values
                ]
                assert (at, beyond) == (200, 400), (path, name, case[1])
                found += 1
    assert found >= 10


@pytest.mark.limit("limits.context_lifetime_s_max")
def test_a_lifetime_is_taken_at_its_limits_and_refused_beyond_them(
    running: RunningService, document: Any
) -> None:
    (lifetime,) = (
        parameter["schema"]
        for parameter in document["paths"]["/contexts/{vid}"]["put"]["parameters"]
        if parameter["name"] == "lifetime"
    )

    def put(seconds: float) -> Answer:
        query = {"lifetime": seconds}
        return running.ask("PUT", "/contexts/l", running.operator, {**FEATURE, "id": "l"},
                           query=query)  # fmt: skip

    assert lifetime["maximum"] == 5_000
    assert put(lifetime["maximum"]).status in (200, 201)
    assert put(lifetime["maximum"] + 1).status == 400
    assert put(lifetime["minimum"]).status in (200, 201)
    assert put(lifetime["minimum"] / 2).status == 400
    assert put(float("nan")).status == put(float("inf")).status == 400


def test_messages_of_a_session_are_taken_at_every_limit_and_refused_beyond_it(
    running: RunningService, document: Any
) -> None:
    components = document["components"]["schemas"]
    found = 0
    with running.session(running.operator) as held:
        for option in components["SessionMessage"]["anyOf"]:
            schema = components[option["$ref"].rpartition("/")[2]]
            (kind,) = schema["properties"]["type"]["enum"]
            if kind in APART:
                continue
            base = {"type": kind, **MESSAGES[kind]}
            for case in cases(schema, base, components):
                if case.path == ("type",):
                    continue  # which message it is
                for message, refused in ((case.at, False), (case.beyond, True)):
                    assert (answer(held, message) == "error") is refused, (kind, case[:2])
                found += 1
    assert set(MESSAGES) | APART == {
        one.__struct_config__.tag for one in messages.Anything.__args__
    }
    assert found > 50


def answer(held: ClientConnection, message: Any) -> str:
    """Send a message and give the type of its answer; what it needs is prepared first."""
    if message["type"].startswith("unsubscribe") and isinstance(message.get("re"), str):
        kind = message["type"].removeprefix("un")
        prepare = {"type": kind, "re": message["re"] or "r", "filter": "true"}
        assert talk(held, prepare) in ("subscribed", "standing", "error")
    if message["type"] == "unpublish":
        vid = message.get("vid") or "a"
        assert talk(held, {"type": "publish", "feature": {**FEATURE, "id": vid}}) in (
            "done",
            "error",
        )
    if message["type"] in ("subscribe", "subscribe_events", "count") and set(
        message.get("filter", "")
    ) == {"a"}:
        message = {**message, "filter": QUERIES["filter"](len(message["filter"]))}
    return talk(held, message)


ANSWERS = {"done", "error", "alive", "subscribed", "count", "numbers", "published", "standing"}


def talk(held: ClientConnection, message: Any) -> str:
    held.send(json.dumps(message))
    if message["type"] in ("confirm_events", "brokers"):  # answered only if it is wrong
        held.send(json.dumps({"type": "heartbeat", "re": "after"}))
        first = heard(held)
        assert first == "alive" or heard(held) == "alive"
        return first
    return heard(held)


def heard(held: ClientConnection) -> str:
    while True:
        kind = json.loads(held.recv(DEADLINE_S))["type"]
        if kind in ANSWERS:
            return str(kind)


def test_every_frame_of_a_session_satisfies_the_schema_of_answers(
    running: RunningService, document: Any
) -> None:
    components = document["components"]
    schema = {**components["schemas"]["SessionAnswer"], "components": components}
    is_answer = Draft202012Validator(schema)
    place = {**FEATURE["properties"], "place": "frames"}  # type: ignore[dict-item]
    feature = {**FEATURE, "id": "framed", "properties": place}
    kinds: dict[str, None] = {}
    changes: list[str] = []
    with running.session(running.operator) as held:
        for wanted, message in (
            ({"welcome", "alive"}, {"type": "heartbeat", "re": "h"}),
            ({"current"}, {"type": "subscribe", "re": "s", "filter": "place = 'frames'"}),
            # The answer and the change that follows from it have no order.
            ({"done", "changes"}, {"type": "publish", "feature": feature}),
            ({"done", "changes"}, {"type": "change", "feature": {**feature, "geometry": None}}),
            ({"done", "changes"}, {"type": "unpublish", "vid": "framed"}),
            ({"count"}, {"type": "count", "re": "c", "filter": "place = 'frames'"}),
            ({"numbers"}, {"type": "numbers", "re": "n"}),
            ({"preview"}, {"type": "preview", "re": "p", "filter": "place = 'frames'"}),
            ({"cast"}, {"type": "cast", "re": "k", "filter": "place = 'frames'", "text": "x"}),
            ({"error"}, {"type": "unpublish", "vid": ""}),
            ({"standing"}, {"type": "subscribe_events", "re": "e", "filter": "place = 'frames'"}),
            ({"published", "events"}, {"type": "publish_event", "feature": feature}),
            ({"part"}, {"type": "publish_event", "feature": feature, "data": "AAAA" * 20_000}),
            # Of a log that began before this one nothing is left.
            ({"lost"}, {"type": "subscribe_events", "re": "l", "vector": {"limits": [0, 1]}}),
        ):
            held.send(json.dumps(message))
            while wanted:
                data = held.recv(DEADLINE_S)
                is_answer.validate(json.loads(data))
                described = msgspec.json.decode(data, type=messages.Answer)
                assert json.loads(msgspec.json.encode(described)) == json.loads(data)
                kind = type(described).__struct_config__.tag
                kinds[str(kind)] = None
                wanted -= {str(kind)}
                if isinstance(described, messages.Changes):
                    changes += [event.type.rpartition(".")[2] for event in described.events]
    tags = {str(one.__struct_config__.tag) for one in messages.Answer.__args__}
    assert set(kinds) == tags - {"moved", "modulators"}  # those take another node, and a module
    assert changes == ["appeared", "changed", "left"]


def test_every_answer_is_of_the_struct_that_describes_it(running: RunningService) -> None:
    assert running.put("shown", "hq/1", [1.0, 2.0], when={"timestamp": "2020-01-01T00:00:00Z"},
                       n=1, on=True).status == 201  # fmt: skip
    rules = [{"viewers": ["*"], "precision": "exact", "past": True}]
    assert running.ask("PUT", "/contexts/shown/rules", running.operator, rules).status == 200
    cast = {"filter": "within(place, 'hq')", "text": "hello", "id": "shown"}
    assert running.ask("POST", "/casts", running.operator, cast).status == 201
    found = 0
    for handler in ROUTES:
        route = route_of(handler)
        (path,) = handler.paths
        if route is None or route.endless or route.answer in (None, bytes):
            continue
        if handler.http_methods != {"GET"}:
            continue
        query = {"/nearest": {"to": "0,0"}, "/where": {"client": "nobody"}}.get(path, {})
        path = path.replace("{vid:str}", "shown").replace("{cast:str}", "shown")
        answer = running.get(path, **query)
        assert answer.status == 200, (path, answer.body)
        assert answer.headers["content-type"].startswith(route.kind.partition(";")[0])
        decoded = msgspec.json.decode(answer.body, type=route.answer)
        assert msgspec.json.decode(msgspec.json.encode(decoded)) == answer.json
        found += 1
    assert found >= 15


def test_a_context_needs_a_place_or_a_point(running: RunningService, document: Any) -> None:
    schema = document["paths"]["/contexts/{vid}"]["put"]["requestBody"]["content"]
    assert len(schema["application/json"]["schema"]["anyOf"]) == 2
    point = {"type": "Point", "coordinates": [0, 0]}
    for geometry, properties, status in (
        (point, None, 201),
        (None, {"place": "hq"}, 200),
        (point, {"place": "hq"}, 200),
        (None, None, 400),
        (None, {"place": None}, 400),
    ):
        body = {"type": "Feature", "geometry": geometry, "properties": properties}
        answer = running.ask("PUT", "/contexts/somewhere", running.operator, body)
        assert answer.status == status, answer.body


def test_rules_show_hours_and_ten_thousand_viewers(document: Any) -> None:
    rule = document["components"]["schemas"]["Rule"]["properties"]
    assert {"$ref": "#/components/schemas/Hours"} in rule["hours"]["anyOf"]
    assert rule["viewers"]["maxItems"] == 10_000


def test_a_whole_number_may_be_written_with_decimals(running: RunningService) -> None:
    rules = [{"viewers": ["a"], "precision": "room", "hours": {"days": [1.0], "end_min": 60.0}}]
    answer = running.ask("PUT", "/contexts/decimals/rules", running.operator, rules)
    assert answer.status == 200
    assert answer.json[0]["hours"]["days"] == [1]
    rules[0]["hours"] = {"days": [1.5]}
    assert running.ask("PUT", "/contexts/decimals/rules", running.operator, rules).status == 400


def test_a_wrong_attribute_is_named(running: RunningService) -> None:
    for value in ([], "x" * 2_000, 2**60, {"timestamp": 3}):
        answer = running.put("wrong", "hq", note=value)
        assert answer.status == 400
        assert "'note'" in answer.problem
