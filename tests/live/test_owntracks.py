"""Phones on the map: messages of OwnTracks and Traccar Client, late, empty, forged, another's."""

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from roamcast.cli import build
from roamcast.client.inbox import MailInbox
from roamcast.errors import StoreError
from roamcast.identity.credentials import own_credential
from roamcast.identity.key_store import KeyStore
from roamcast.identity.sealing import seal_payload
from roamcast.identity.sightings import SOURCES
from roamcast.live.auth.admission import Grant
from roamcast.live.config.settings import Settings, with_server
from roamcast.live.http import phones
from roamcast.live.http.phones import Fix, fix_of, place_of
from roamcast.model.buildings import FloorPlan, campus
from roamcast.model.places_geojson import write_places
from roamcast.transport.address import ServiceAddress
from roamcast.transport.driver import wall_clock
from roamcast.transport.http import HttpClient
from tests.live.in_process import service_here
from tests.running_service import Answer, RunningService

pytestmark = pytest.mark.process

PLACES = campus("campus", 1, 2, FloorPlan(cells=3))
OFFICE = PLACES.of_kind("office")[0]
LON, LAT = PLACES.centre(OFFICE) or (0.0, 0.0)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("phones")
    (folder / "places.json").write_bytes(write_places(PLACES))
    with RunningService(folder, f'[server]\nplaces = "{folder / "places.json"}"\n') as started:
        yield started


def location(**changes: Any) -> dict[str, Any]:
    """A message as OwnTracks' booklet shows it."""
    return {
        "_type": "location", "lat": LAT, "lon": LON, "tst": int(time.time()), "acc": 12,
        "batt": 81, "vel": 0, "cog": 20, "t": "u", "conn": "w", "tid": "an",
        "inregions": [], "topic": "owntracks/ann/pixel", **changes,
    }  # fmt: skip


def post(
    running: RunningService, body: Any, token: str | None = None, user: str = "ann", **headers: str
) -> Answer:
    key = running.token(user, ("publish", "read")) if token is None else token
    basic = base64.b64encode(f"{user}:{key}".encode()).decode()
    said = {"authorization": f"Basic {basic}", "X-Limit-U": user, "X-Limit-D": "pixel", **headers}
    return running.ask("POST", "/owntracks", body=body, headers=said)


def on_the_map(running: RunningService) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = running.get("/collections/contexts/items").json["features"]
    return found


def clear(running: RunningService) -> None:
    for vid in running.vids():
        running.ask("DELETE", f"/contexts/{vid}", running.operator)


def test_a_phone_appears_under_a_vid_that_says_nothing_of_its_owner(
    running: RunningService,
) -> None:
    clear(running)
    answer = post(running, location())
    assert (answer.status, answer.json) == (200, [])
    (shown,) = on_the_map(running)
    assert shown["geometry"] == {"type": "Point", "coordinates": [LON, LAT]}
    kept = {**shown["properties"], "t_r": None}
    # a point says nothing of the storey; battery and speed would link one vid to the next
    assert kept == {"type": "person", "accuracy_m": 12.0, "place": "campus/b1", "t_r": None,
                    "t_d": None}  # fmt: skip
    assert "ann" not in json.dumps(shown)
    assert post(running, location(lat=LAT + 1e-5, tst=int(time.time()) + 1)).status == 200
    (moved,) = on_the_map(running)
    assert moved["id"] == shown["id"]
    assert moved["geometry"]["coordinates"][1] == pytest.approx(LAT + 1e-5)


def test_a_region_of_the_phone_that_is_a_place_names_the_room(running: RunningService) -> None:
    clear(running)
    now = int(time.time()) + 2
    assert post(running, location(inregions=["home", OFFICE], tst=now)).status == 200
    assert on_the_map(running)[0]["properties"]["place"] == OFFICE


@pytest.mark.parametrize(
    "body", [b"", b"  ", {"_type": "lwt", "tst": 1}, {"_type": "transition"}, {"_type": "status"},
             {"_type": "encrypted", "data": "x"}, {"_type": "waypoints", "waypoints": []}, {}],
    ids=repr)  # fmt: skip
def test_other_messages_and_empty_ones_are_taken_and_change_nothing(
    running: RunningService, body: Any
) -> None:
    before = running.vids()
    answer = post(running, body)
    assert (answer.status, answer.body) == (200, b"[]")
    assert running.vids() == before


@pytest.mark.parametrize(
    "body", [b"{", b"[1]", b"\xff", {"_type": "location"}, location(lat=91), location(lon=-181),
             location(tst=-1), location(tst=1e300), location(lat="x"), location(acc="wide"),
             location(tst=int(time.time()) + 86_400), location(inregions="home")],
    ids=lambda body: repr(body)[:40])  # fmt: skip
def test_a_wrong_fix_is_refused_and_changes_nothing(running: RunningService, body: Any) -> None:
    before = running.vids()
    answer = post(running, body)
    assert answer.status == 400
    assert answer.problem
    assert running.vids() == before


def test_anothers_name_or_no_valid_token_is_refused(running: RunningService) -> None:
    before = running.vids()
    bob = running.token("bob", ("publish",))
    assert post(running, location(), token=bob).status == 403  # ann's name, bob's token
    assert post(running, location(topic="owntracks/bob/x")).status == 403
    assert post(running, location(), **{"X-Limit-U": "bob"}).status == 403
    assert post(running, location(), token="forged").status == 401
    assert post(running, location(), authorization="Basic ???").status == 401
    assert post(running, location(), authorization="").status == 401
    reader = running.token("ann", ("read",))
    assert post(running, location(), token=reader).status == 403
    assert running.vids() == before


def test_late_fixes_become_sightings_and_are_never_on_the_map(
    running: RunningService, tmp_path: Path
) -> None:
    clear(running)
    now = int(time.time()) + 4
    assert post(running, location(tst=now)).status == 200
    (shown,) = on_the_map(running)
    for tst in (now - 3_600, now - 1):  # long ago; before what came last
        assert post(running, location(tst=tst, lat=LAT + 0.01)).status == 200
    assert on_the_map(running) == [shown]
    folder = running.data / "sightings"
    lines = [json.loads(path.read_text()) for path in folder.glob("*.jsonl")]
    assert sorted(line["time"] for line in lines) == [
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(tst)) for tst in (now - 3_600, now - 1)
    ]
    for line in lines:
        assert line["person"] == "ann"
        assert line["source"] in SOURCES
        assert line["lat"] == pytest.approx(LAT + 0.01)
    assert (folder.stat().st_mode & 0o777) == 0o700
    words = ["pipeline", "ingest", str(folder), "--archive", str(tmp_path / "a"), "--on", "driver"]
    done = CliRunner().invoke(build(), words)
    assert "2 files, 2 sightings" in done.output, done.output
    assert "of 1 people; 0 dead letters" in done.output


def test_friends_come_back_as_far_as_rules_show_them(running: RunningService) -> None:
    clear(running)
    now = int(time.time()) + 6
    rule = {"viewers": ["ann"], "precision": "hidden"}
    running.ask("PUT", "/contexts/hidden/rules", running.operator, [rule])
    running.put("hidden", "campus/b1", (LON, LAT), type="person")
    running.put("friend", "campus/b1", (LON, LAT + 1e-4), type="person")
    running.put("printer", "campus/b1", (LON, LAT), type="printer")
    answer = post(running, location(tst=now))
    (friend,) = answer.json
    assert friend["_type"] == "location"
    assert (friend["lon"], friend["lat"]) == (LON, LAT + 1e-4)
    assert friend["topic"].endswith("/friend")
    token = running.token("ann", ("publish",))
    assert post(running, location(tst=now + 1), token=token).json == []


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_traccar_client_posts_the_osmand_protocol(running: RunningService, method: str) -> None:
    clear(running)
    token = running.token(f"carl-{method}", ("publish",))
    query = {"id": token, "lat": LAT, "lon": LON, "timestamp": int(time.time()), "batt": 50,
             "accuracy": 7.5}  # fmt: skip
    assert running.ask(method, "/osmand", query=query).status == 200
    (shown,) = on_the_map(running)
    assert shown["properties"]["accuracy_m"] == 7.5
    assert running.ask(method, "/osmand", query={**query, "id": "forged"}).status == 401
    assert running.ask(method, "/osmand", query={"lat": LAT, "lon": LON}).status == 400
    assert running.ask(method, "/osmand", query={**query, "id": ""}).status == 401


def test_traccar_client_posts_json(running: RunningService) -> None:
    clear(running)
    token = running.token("dora", ("publish",))
    moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    coords = {"latitude": LAT, "longitude": LON, "accuracy": 4, "speed": -1, "heading": -1}
    body = {"location": {"timestamp": moment, "coords": coords, "battery": {"level": 0.5}},
            "device_id": token}  # fmt: skip
    assert running.ask("POST", "/osmand", body=body).status == 200
    assert on_the_map(running)[0]["properties"]["accuracy_m"] == 4


def test_a_phones_owner_gets_mail_to_its_vid_through_the_keys_that_the_service_holds(
    running: RunningService, tmp_path: Path
) -> None:
    clear(running)
    assert post(running, location(topic="owntracks/flo/x"), user="flo").status == 200
    (shown,) = on_the_map(running)
    vid = shown["id"]
    assert vid.endswith("@trust.localhost")
    token = running.token("flo", ("subscribe",))
    (held,) = running.ask("GET", "/me/keys", token).json["keys"]
    assert own_credential(held["credential"]).vid == vid
    other = running.token("ann", ("subscribe",))
    assert held["seed"] not in running.ask("GET", "/me/keys", other).body.decode()
    sealed = seal_payload(b"for flo", own_credential(held["credential"]).keys, "c1", vid)
    deposit = {
        "cast": "c1", "sender": "ann", "kind": "text",
        "expires_us": (int(time.time()) + 60) * 10**6,
        "parcels": [{"vid": vid, "sealed": base64.b64encode(sealed).decode()}],
    }  # fmt: skip
    assert running.ask("POST", "/deposits", running.operator, deposit).status == 200

    async def read() -> list[str]:
        store = KeyStore.open(tmp_path / "flo.keys")
        inbox = MailInbox(store, HttpClient(ServiceAddress(running.url, token)), wall_clock())
        return [mail.text async for mail in inbox.mails(follow=False)]

    assert asyncio.run(read()) == ["for flo"]


def _settings(folder: Path) -> Settings:
    return with_server(Settings(), host=None, port=None, data=str(folder))


def test_vids_last_an_hour_from_a_moment_of_each_devices_own(tmp_path: Path) -> None:
    async def body() -> None:
        async with service_here(tmp_path, _settings(tmp_path)) as service:
            made = phones.Phones(service)
            hour = phones.VID_LASTS_US
            start = 1_800_000_000_000_000
            changes = {}
            for device in ("a", "b", "c"):
                seen = [made.vids("ann", device, start + k * hour // 60)[0] for k in range(180)]
                assert len(set(seen)) in (3, 4)
                changes[device] = next(k for k in range(60) if seen[k] != seen[k + 1])
                for k in range(60, 180):  # the vid before is the one an hour ago
                    assert made.vids("ann", device, start + k * hour // 60)[1] == seen[k - 60]
            assert len(set(changes.values())) > 1
            again = phones.Phones(service)  # a restart changes nobody's vid
            assert again.vids("ann", "a", start) == made.vids("ann", "a", start)
            assert made.vids("an", "n a", start) != made.vids("ann", "a", start)

    asyncio.run(body())


def test_what_is_remembered_and_what_waits_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(phones, "SIGHTINGS_MAX", 2)
    monkeypatch.setattr(phones, "DEVICES_REMEMBERED", 3)

    async def body() -> None:
        async with service_here(tmp_path, _settings(tmp_path)) as service:
            made = phones.Phones(service)
            old = Fix((LON, LAT), 1)
            ann = Grant("ann", ("publish",), frozenset(), 0, "", "")
            await made.take(ann, "a", old)
            await made.take(ann, "a", old)
            with pytest.raises(StoreError, match="wait for the pipeline"):
                await made.take(ann, "a", old)
            now = service.clock()
            for device in "abcde":
                await made.take(ann, device, Fix((LON, LAT), now))
            assert [device for _, device in made._last] == ["c", "d", "e"]

    asyncio.run(body())


def test_a_place_is_claimed_only_as_far_as_a_point_says() -> None:
    fix = fix_of(LAT, LON, 0)
    assert place_of(fix, None) is None
    assert place_of(fix, PLACES) == "campus/b1"
    assert place_of(fix_of(0, 0, 0), PLACES) is None
