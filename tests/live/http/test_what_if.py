"""`POST /what-if`: a real service's past lived again, under the rules of who asks."""

import json
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from roamcast.live.what_if.comparing import WhatIfAnswer
from roamcast.model.buildings import FloorPlan, campus
from roamcast.model.places_geojson import write_places
from roamcast.model.time import format_instant
from tests.running_service import RunningService

pytestmark = pytest.mark.process

PLACES = campus("campus", 2, 2, FloorPlan(cells=3))
OFFICES = PLACES.of_kind("office")
LIMIT = {"limit_bytes": 1_024}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("what-if")
    (folder / "places.json").write_bytes(write_places(PLACES))
    settings = f'[server]\nplaces = "{folder / "places.json"}"\n'
    with RunningService(folder, settings) as started:
        yield started


def now() -> str:
    return str(format_instant(time.time_ns() // 1_000))


def ask(running: RunningService, token: str | None = None, **given: Any) -> Any:
    key = running.operator if token is None else token
    return running.ask("POST", "/what-if", key, given)


def shown(answer: Any, side: str) -> dict[str, list[str | None]]:
    """Give where each vid was shown, one after the other; None: it left."""
    found: dict[str, list[str | None]] = {}
    for _, number in answer[side]["changes"]:
        feature = answer["features"][number if number >= 0 else -1 - number]
        place = feature["properties"].get("place") if number >= 0 else None
        found.setdefault(feature["id"], []).append(place)
    return found


def test_as_it_was_is_what_a_session_was_told_and_rules_hold_on_both_maps(
    running: RunningService,
) -> None:
    here, there = OFFICES[0], OFFICES[-1]
    building = "/".join(there.split("/")[:2])
    begin = now()
    told: list[tuple[str, str | None]] = []
    with running.session(running.token("ada", ("read", "subscribe"))) as socket:
        socket.recv()
        socket.send(json.dumps({"type": "subscribe", "re": "map", "filter": "type = 'person'"}))
        while json.loads(socket.recv())["type"] != "current":
            pass
        for vid in ("ann", "blurred", "hidden", "printer"):
            kind = "printer" if vid == "printer" else "person"
            assert running.put(vid, here, type=kind).status == 201
        assert running.put("ann", there, type="person").status == 200
        assert running.put("blurred", there, type="person").status == 200
        running.ask("DELETE", "/contexts/ann", running.operator)
        while ("ann", None) not in told:
            for event in json.loads(socket.recv())["events"]:
                place = event["data"] and event["data"]["properties"]["place"]
                told.append((event["subject"], place))
    end = now()
    asked = {"from": begin, "to": end, "filter": "type = 'person'"}
    whole = ask(running, **asked, settings=LIMIT)
    msgspec.json.decode(whole.body, type=WhatIfAnswer)  # as it is described
    answer = whole.json
    was = shown(answer, "was")
    assert was["ann"] == [place for vid, place in told if vid == "ann"] == [here, there, None]
    assert was.keys() == {"ann", "blurred", "hidden"}  # the watcher asked for no printer
    assert answer["was"]["contexts"] == 3
    assert answer["would"]["bytes"] <= answer["was"]["bytes"]
    assert answer["channels"] is None
    # Rules that somebody sets today hold for their past, on both maps.
    coarse = [{"viewers": ["*"], "precision": "building", "past": True}]
    assert running.ask("PUT", "/contexts/blurred/rules", running.operator, coarse).status < 300
    assert running.ask("PUT", "/contexts/hidden/rules", running.operator, []).status < 300
    tried = {"default_precision": "region"}
    other = ask(running, running.token("eve", ("admin",)), **asked, settings=tried)
    assert other.status == 200, other.body
    assert b"hidden" not in other.body
    for side in ("was", "would"):  # rules of one's own are not the default
        places = [place for place in shown(other.json, side)["blurred"] if place is not None]
        assert places[-1] == building
        assert all(place.count("/") == 1 for place in places)
    assert shown(other.json, "was")["ann"] == [here, there, None]
    assert there not in shown(other.json, "would")["ann"]
    assert other.json["differences"]["contexts_max"] == 1
    assert other.json["differences"]["seconds"] > 0
    # What is erased is on neither map.
    running.ask("DELETE", "/contexts/ann/past", running.operator)
    erased = ask(running, **asked, settings=LIMIT)
    assert b'"ann"' not in erased.body


def test_q_and_m_are_counted_from_the_journal(running: RunningService) -> None:
    begin = now()
    assert running.put("counted", OFFICES[1], type="person").status == 201
    answer = ask(running, **{"from": begin, "to": now()}, settings={"subscribers_min": 9}).json
    channels = answer["channels"]
    assert channels["was"] == channels["would"]  # nobody is on a link
    assert channels["was"]["transmissions"] == 0
    assert answer["differences"]["contexts_max"] == 0
    assert answer["steps"] >= 1


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "nothing to try: give a setting, one of limit_bytes"),
    ({"limit_bytes": 100}, "Expected `int` >= 1024"),
    ({"history_max": 0}, "Expected `int` >= 1"),
    ({"default_precision": "street"}, "Invalid enum value 'street'"),
    ({"expiry": 3}, "unknown field `expiry`"),
]


@pytest.mark.parametrize(("settings", "says"), BAD)
def test_a_wrong_setting_is_refused_in_one_line(
    running: RunningService, settings: dict[str, Any], says: str
) -> None:
    span = {"from": now(), "to": now()}
    answer = ask(running, **span, settings=settings)
    assert answer.status == 400
    assert says in answer.problem
    assert "\n" not in answer.problem


def test_a_wrong_time_filter_or_token_is_refused_in_one_line(running: RunningService) -> None:
    begin = now()
    later = format_instant(time.time_ns() // 1_000 + 3_600_000_000)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"from": begin, "to": begin}, "`from` lies before `to`"),
        ({"from": begin, "to": later}, "what has not happened can not be replayed"),
        ({"from": "2020-01-01T00:00:00Z", "to": begin}, "the past begins at "),
        ({"from": "yesterday", "to": begin}, "'yesterday' is not an RFC 3339 timestamp"),
        ({"from": begin}, "missing required field `to`"),
        ({"from": begin, "to": now(), "filter": "type = "}, ""),
    ]
    for given, says in cases:
        answer = ask(running, **given, settings=LIMIT)
        assert answer.status == 400, given
        assert says in answer.problem
        assert "\n" not in answer.problem
    assert ask(running, **cases[-1][0], settings=LIMIT).json["position"] == 8
    reader = running.token("ada", ("read", "subscribe", "publish"))
    span = {"from": begin, "to": now(), "settings": LIMIT}
    refused = ask(running, reader, **span)
    assert (refused.status, "the scope admin" in refused.problem) == (403, True)
    assert ask(running, "nonsense", **span).status == 401


@pytest.mark.process
def test_what_changed_too_often_or_costs_too_much_is_refused_with_its_price(
    tmp_path: Any,
) -> None:
    settings = "[limits]\nsteps_burst = 10_000\nsteps_per_s = 1\n"
    with RunningService(tmp_path, settings) as small:
        begin = now()
        for number in range(12):
            assert small.put(f"v{number}", "campus/b1").status == 201
        answer = ask(small, small.token("eve", ("admin",)), **{"from": begin, "to": now()},
                     settings=LIMIT)  # fmt: skip
        assert answer.status == 400
        assert "this may take 12,000 steps of work, and 10,000 at once" in answer.problem
