"""A person's rules hold for every vid that the service draws for them; the mirror tries them."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from roamcast.model.buildings import FloorPlan, campus
from roamcast.model.places_geojson import write_places
from tests.running_service import RunningService

pytestmark = pytest.mark.process

PLACES = campus("campus", 1, 2, FloorPlan(cells=3))
OFFICES = PLACES.of_kind("office")
BUILDING = [{"viewers": ["*"], "precision": "building"}]
SCOPES = ("read", "publish", "subscribe")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("presence")
    (folder / "places.json").write_bytes(write_places(PLACES))
    with RunningService(folder, f'[server]\nplaces = "{folder / "places.json"}"\n') as started:
        yield started


def stand(running: RunningService, name: str, place: str, device: str = "page") -> str:
    """Put somebody on the map as the page does; give their vid."""
    lon, lat = PLACES.centre(place) or (0.0, 0.0)
    fix = {
        "_type": "location", "lon": lon, "lat": lat, "tst": time.time(),
        "inregions": [place], "topic": f"owntracks/{name}/{device}",
    }  # fmt: skip
    assert running.ask("POST", "/owntracks", running.token(name, SCOPES), fix).status == 200
    me = running.ask("GET", "/me", running.token(name, SCOPES)).json
    assert me["subject"] == name
    return str(next(o["id"] for o in me["contexts"] if o["properties"]["place"] == place))


def place_seen(running: RunningService, viewer: str, vid: str) -> Any:
    path = f"/collections/contexts/items/{vid}"
    answer = running.ask("GET", path, running.token(viewer, ("read",)))
    return answer.json["properties"].get("place") if answer.status == 200 else None


def test_the_mirror_shows_what_rules_would_allow_and_saves_nothing(running: RunningService) -> None:
    vid = stand(running, "ann", OFFICES[0])
    token = running.token("ann", SCOPES)
    rules = [*BUILDING, {"viewers": ["bob"], "precision": "exact"}]

    def looked(**asked: Any) -> Any:
        answer = running.ask("POST", "/me/mirror", token, asked)
        assert answer.status == 200, answer.body
        (image,) = answer.json["images"]
        assert image["yours"]["id"] == vid
        assert image["yours"]["properties"]["place"] == OFFICES[0]
        return image["theirs"]

    assert looked()["properties"]["place"] == OFFICES[0]
    assert looked(rules=rules)["properties"]["place"] == "campus/b1"
    assert looked(rules=rules, viewer="bob")["properties"]["place"] == OFFICES[0]
    assert looked(rules=[{"viewers": ["staff"], "precision": "floor"}], viewer="bob") is None
    staff = {"rules": [{"viewers": ["staff"], "precision": "floor"}], "groups": ["staff"]}
    assert looked(**staff, viewer="bob")["properties"]["place"] == "campus/b1/1"
    assert place_seen(running, "eve", vid) == OFFICES[0]  # nothing was saved
    assert looked(**staff)["properties"]["place"] == "campus/b1/1"  # any of the group


def test_rules_of_a_person_hold_at_once_and_for_vids_to_come(running: RunningService) -> None:
    vid = stand(running, "cyd", OFFICES[0])
    token = running.token("cyd", SCOPES)
    assert running.ask("PUT", "/me/rules", token, BUILDING).status == 200
    assert place_seen(running, "eve", vid) == "campus/b1"
    later = stand(running, "cyd", OFFICES[1], device="phone")  # another vid, never without rules
    assert later != vid
    assert place_seen(running, "eve", later) == "campus/b1"
    running.kill()
    running.start()
    assert running.ask("GET", "/me/rules", token).json[0]["precision"] == "building"
    third = stand(running, "cyd", OFFICES[2], device="watch")
    assert place_seen(running, "eve", third) == "campus/b1"
    assert running.ask("DELETE", "/me/rules", token).status == 204
    assert place_seen(running, "eve", third) == OFFICES[2]


def test_who_leaves_is_gone_and_others_stay(running: RunningService) -> None:
    dan, fay = stand(running, "dan", OFFICES[0]), stand(running, "fay", OFFICES[0])
    token = running.token("dan", SCOPES)
    assert running.ask("DELETE", "/me/contexts", token).status == 204
    assert running.ask("GET", "/me", token).json["contexts"] == []
    assert place_seen(running, "eve", dan) is None
    assert place_seen(running, "eve", fay) == OFFICES[0]
    wrong = running.ask("PUT", "/me/rules", token, [{"viewers": ["*"], "precision": "street"}])
    assert wrong.status == 400
