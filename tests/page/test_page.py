"""The page in a real browser, against the real service."""

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from roamcast.live.auth.admission import SCOPES
from roamcast.live.http.page import POLICY
from roamcast.model.places import Places
from roamcast.model.time import format_instant, parse_instant
from tests.page.conftest import ROOT, WAIT_MS, Seat, Sit
from tests.running_service import RunningService

pytestmark = pytest.mark.process

ACCENT = (15, 118, 110)
BACK_S = 3.0
"""After `/readyz` of a service that was killed, the page shows the same objects."""

WRONG = (
    "type = ", "typ e = 'a'", "type = 'a' AND", "within(place)", "within(place, 3)", "(type='a'",
    "foo(x)=1", "type = 'a' OR OR b=1", "near(geometry, 3)", "during(time, 'x')", "type LIKE 3",
    "time = 3", "type = 'abc", "S_INTERSECTS(geometry, POINT(1))", "1 +", "type == 'a'", "NOT",
    "place IN ()", "a BETWEEN 1", "é = '𝄞ü' AND b =",
)  # fmt: skip


IN_HALL = "#filter=within(place,+'campus/hall')"
IN_B1 = "#filter=within(place,+'campus/b1')"
PICTURES = (
    ("map-light", "light", 1280, 760, "", "list"),
    ("cast-dark", "dark", 1280, 760, IN_HALL, "cast"),
    ("mirror", "light", 1280, 760, "", "you"),
    ("what-if", "light", 1280, 760, IN_B1, "whatif"),
    ("map-phone", "light", 390, 780, "", "list"),
)
"""Name, colours, size, fragment of the address, and which tab is looked at."""


@pytest.fixture
def seat(signed_in: Seat) -> Iterator[Seat]:
    """Somebody signed in, whose browser has complained of nothing at the end."""
    made = signed_in.anew()
    yield made
    complaints = [*made.complaints]
    made.rest()
    assert complaints == []


def test_the_list_is_what_the_service_has_and_follows_every_change(
    seat: Seat, running: RunningService, places: Places
) -> None:
    office = places.of_kind("office")[-1]
    record = running.get("/collections/contexts/items", limit=1_000).json["features"]
    at = {
        one["id"]: f"{one['properties']['type']} · {one['properties']['place']}" for one in record
    }
    assert seat.listed() == at
    assert running.put("guest", office, type="person").status == 201
    seat.count("34 objects")
    assert seat.listed()["guest"] == f"person · {office}"
    other = places.of_kind("office")[0]
    assert running.put("guest", other, type="person").status == 200
    seat.page.locator(".row", has_text="guest").locator("small", has_text=other).wait_for()
    running.ask("DELETE", "/contexts/guest", running.operator)
    seat.count("33 objects")
    assert seat.listed() == at
    seat.page.click("#tab-feed")
    assert seat.page.locator(".feed li span").all_text_contents() == [
        f"guest left {other}", f"guest went to {other}", f"guest came to {office}",
    ]  # fmt: skip


def test_texts_of_others_are_text(seat: Seat, running: RunningService) -> None:
    nasty = "<img src=x onerror=alert(1)>&amp;<b>"
    running.put("nasty", "campus/b1", type="person", note=nasty)
    seat.apply("note IS NOT NULL")
    seat.count("1 object")
    seat.page.click(".row")
    assert seat.page.locator(".details dd", has_text="onerror").text_content() == nasty
    assert seat.page.locator(".details img").count() == 0
    running.ask("DELETE", "/contexts/nasty", running.operator)
    seat.page.locator(".details", has_text="Not among the objects").wait_for()


def test_a_filter_a_floor_and_an_object_are_in_the_address_and_come_back(
    seat: Seat, running: RunningService, sit: Sit
) -> None:
    seat.apply("type = 'printer'")
    seat.count("3 objects")
    seat.page.click(".row >> nth=1")
    seat.page.locator(".details h2", has_text="printer-1").wait_for()
    seat.page.check("input[name=floor][value='2']", force=True)
    seat.page.wait_for_function("() => location.hash.includes('floor=2')")
    fragment = seat.page.evaluate("() => location.hash")
    other = sit().open(fragment=fragment)
    other.count("3 objects")
    assert other.page.input_value("#filter") == "type = 'printer'"
    assert other.page.text_content(".details h2") == "printer-1"
    assert other.page.locator("label.on", has_text="2").count() == 1
    assert other.complaints == []


def test_the_list_is_a_way_to_the_map_by_keyboard_alone(seat: Seat) -> None:
    page = seat.page
    page.keyboard.press("Tab")
    for _ in range(20):
        if page.evaluate("() => document.activeElement?.getAttribute('role')") == "listbox":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.locator(".details h2", has_text="person-01").wait_for()
    active = page.locator(".rows").get_attribute("aria-activedescendant")
    row = page.locator(f"#{active}")
    assert row.get_attribute("aria-selected") == "true"
    assert row.get_attribute("aria-posinset") == "2"
    assert row.get_attribute("aria-setsize") == "33"
    page.keyboard.press("End")
    page.locator(".details h2", has_text="printer-2").wait_for()
    page.keyboard.press("Escape")
    page.locator(".details").wait_for(state="detached")


def test_a_pseudonym_is_called_by_its_last_letters_and_shown_whole_in_uncut_details(
    seat: Seat, running: RunningService, places: Places
) -> None:
    page, office = seat.page, places.of_kind("office")[0]
    vid, known = "0654d0e6b411455eec", {"type": "person", "group": "group-7", "accuracy_m": 2.0}
    running.put(vid, office, places.centre(office), **known)
    seat.count("34 objects")
    assert seat.listed()["Person 455eec"] == office
    for written in ("455eec", vid):
        page.fill(".search input", written)
        seat.count("1 of 34")
    page.click(".row")
    page.locator(".details dd", has_text=vid).wait_for()
    assert page.text_content(".details h2") == "Person 455eec"
    assert page.locator(".details").evaluate("e => e.scrollHeight - e.clientHeight") == 0
    page.fill(".search input", "")
    running.ask("DELETE", f"/contexts/{vid}", running.operator)
    seat.count("33 objects")


def test_who_is_chosen_shows_on_the_map_where_the_list_does_not_and_fit_all_ends_following(
    seat: Seat,
) -> None:
    page, line = seat.page, seat.page.locator(".chosen-line")
    page.click(".row >> nth=2")
    page.locator(".details h2", has_text="person-02").wait_for()
    assert not line.is_visible()
    page.click("#tab-feed")
    line.filter(has_text="person-02").wait_for()
    line.locator("text=Follow").click()
    line.locator("[aria-pressed=true]").wait_for()
    page.click("[aria-label='Fit all']")
    line.locator("[aria-pressed=false]").wait_for()
    line.locator("text=person-02").click()
    page.locator(".details h2", has_text="person-02").wait_for()


def test_wrong_filters_are_underlined_where_the_service_says(
    seat: Seat, running: RunningService
) -> None:
    page = seat.page
    for text in WRONG:
        told = running.get("/count", filter=text)
        assert told.status == 400
        position = told.json["position"]
        seat.apply(text)
        page.wait_for_function(
            "([text, position]) => { const mark = document.querySelector('mark.wrong');"
            " return mark && mark.parentElement.textContent.startsWith(text)"
            " && [...(mark.previousSibling?.textContent ?? '')].length === position - 1; }",
            arg=[text, position],
        )
        assert page.get_attribute("#filter", "aria-invalid") == "true"
    seat.apply("")
    page.locator(".editor.bad").wait_for(state="detached")
    seat.count("33 objects")  # a wrong filter has changed nothing
    wrong = [one for one in seat.said() if one["type"] == "error" and one["re"] == "view"]
    assert [one["position"] for one in wrong] == [
        running.get("/count", filter=text).json["position"] for text in WRONG
    ]


def test_a_filter_that_is_being_written_says_how_many_match(seat: Seat) -> None:
    seat.page.fill("#filter", "type = 'printer'")
    seat.page.locator("#filter-says", has_text="3 match now").wait_for()
    seat.count("33 objects")


def test_standard_queries_fill_themselves_in(seat: Seat) -> None:
    seat.page.select_option(".templates select", "kind")
    seat.count("30 objects")
    assert seat.page.input_value("#filter") == "type = 'person'"


def test_a_filter_is_completed_as_it_is_written_by_keyboard(
    seat: Seat, running: RunningService
) -> None:
    page = seat.page
    page.focus("#filter")
    known = running.get("/collections/contexts/queryables").json["properties"]
    assert known["type"]["examples"] == ["person", "printer"]
    offers = page.locator("#filter-offers [role=option]")
    page.keyboard.type("ty")
    offers.first.wait_for()  # the vocabulary came with the focus
    page.keyboard.press("ArrowDown")
    assert page.get_attribute("#filter", "aria-activedescendant") == "offer-0"
    page.keyboard.press("Tab")
    page.keyboard.type(" = 'pr")
    page.locator("#filter-offers", has_text="printer").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.type(" and wit")
    page.locator("#filter-offers", has_text="everything below").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.type("campus/b1")
    page.keyboard.press("Escape")
    assert page.input_value("#filter") == "type = 'printer' and within(place, 'campus/b1')"
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash.includes('campus/b1')")
    assert seat.complaints == []


def test_a_view_is_saved_shown_again_after_a_reload_and_forgotten(seat: Seat) -> None:
    page = seat.page
    seat.apply("type = 'printer'")
    seat.count("3 objects")
    page.select_option(".views select", label="Save this view …")
    page.keyboard.type("the printers")
    page.keyboard.press("Enter")
    seat.apply("")
    seat.count("33 objects")
    page.reload()
    seat.count("33 objects")
    page.select_option(".views select", label="the printers")
    seat.count("3 objects")
    kept = page.evaluate("() => JSON.stringify(localStorage)")
    assert "printers" in kept
    assert "token" not in kept
    page.select_option(".views select", label="Forget “the printers”")
    page.locator(".views option", has_text="the printers").wait_for(state="detached")
    assert seat.complaints == []


def test_what_is_shown_can_be_taken_away(seat: Seat, running: RunningService) -> None:
    seat.apply("type = 'printer'")
    seat.count("3 objects")
    seat.page.click("text=Take this away")
    texts = seat.page.locator("dialog pre").all_text_contents()
    assert len(texts) == 4
    for text in texts:
        assert running.operator not in text
        assert "printer" in text
    seat.page.keyboard.press("Escape")
    seat.page.locator("dialog").wait_for(state="hidden")


@pytest.mark.soak
@pytest.mark.parametrize("past", [False, True], ids=["now", "past"])
def test_what_is_taken_away_gives_the_same_outside_the_page(
    seat: Seat, running: RunningService, past: bool
) -> None:
    text = "type = 'printer'"
    if past:
        at = format_instant((time.time_ns() // 10**9 - 1) * 10**6)
        text += f" AND overlaps(time, TIMESTAMP('{at}'))"
    seat.apply(text)
    seat.count("3 objects")
    seat.page.click("text=Take this away")
    recipes = seat.page.locator("dialog .recipe:has(pre)").evaluate_all(
        "all => all.map(one => [one.querySelector('h3').textContent,"
        " one.querySelector('pre').textContent])"
    )
    seat.page.keyboard.press("Escape")
    assert [name for name, _ in recipes] == ["curl", "Command", "Python", "QGIS, GDAL"]
    for name, said in recipes:
        words = [sys.executable, "-c", said] if name == "Python" else ["bash", "-c", said]
        if shutil.which("curl" if name == "curl" else "ogrinfo" if "GDAL" in name else "bash"):
            _says(words, [f"printer-{number}" for number in range(3)], running.operator)


def _says(words: list[str], wanted: list[str], token: str) -> None:
    """Run what was taken away until it has said all of that; what follows changes has no end."""
    environment = {
        **os.environ, "ROAMCAST_TOKEN": token, "PYTHONPATH": str(ROOT / "src"),
        "PYTHONUNBUFFERED": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    child = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    giving_up = threading.Timer(WAIT_MS / 1_000, child.kill)
    giving_up.start()
    assert child.stdout is not None
    told = ""
    for line in child.stdout:
        told += line
        if all(one in told for one in wanted):
            break
    giving_up.cancel()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert [one for one in wanted if one not in told] == [], (words, told)


def test_the_time_bar_writes_the_time_into_the_filter_and_shows_the_map_as_it_was(
    seat: Seat, running: RunningService
) -> None:
    page = seat.page
    began = running.put("ghost", "campus/b1", type="person").json["properties"]["t_r"]
    moment = (int(parse_instant(began)) // 1_000_000 + 1) * 1_000_000
    page.wait_for_timeout(1_500)
    running.ask("DELETE", "/contexts/ghost", running.operator)
    then = format_instant(moment)
    text = f"vid = 'ghost' AND overlaps(time, TIMESTAMP('{then}'))"
    seat.apply(text)
    seat.count("1 object")
    known = running.get("/collections/contexts/items", filter="vid = 'ghost'", datetime=then)
    assert [one["id"] for one in known.json["features"]] == ["ghost"]
    assert seat.listed() == {"ghost": "person · campus/b1"}
    assert page.locator(".pulse.past").count() == 1
    slider = page.locator(".track input")
    assert str(slider.get_attribute("aria-valuetext")).endswith("ago")
    page.click(".time button:text-is('Now')")
    assert page.input_value("#filter") == "vid = 'ghost'"
    seat.count("0 objects")
    slider.focus()
    page.keyboard.press("End")
    page.wait_for_function(
        "() => /^vid = 'ghost' AND start_by.time, INTERVAL/.test("
        "document.querySelector('#filter').value)"
    )
    assert running.put("ghost", "campus/b2", type="person").status == 201
    seat.count("1 object")  # whoever comes from now on
    page.keyboard.press("Home")  # before the service was
    page.locator(".moment", has_text="beyond the horizon").wait_for()
    seat.count("0 objects")
    assert page.locator(".horizon").count() == 1
    page.locator(".empty", has_text="as far as this service remembers").wait_for()
    running.ask("DELETE", "/contexts/ghost", running.operator)


def test_the_past_is_played_as_fast_as_chosen_until_now(
    seat: Seat, running: RunningService
) -> None:
    page = seat.page
    running.put("walker", "campus/b1", type="player")
    since = format_instant((time.time_ns() // 10**9 - 120) * 10**6)
    seat.apply(f"type = 'player' AND overlaps(time, TIMESTAMP('{since}'))")
    page.locator(".pulse.past").wait_for()
    speeds = page.locator(".time .speed select").first
    assert speeds.locator("option").all_text_contents() == ["1×", "2×", "5×", "10×", "20×"]
    speeds.select_option("5")
    began = time.monotonic()
    page.click("[aria-label=Play]")
    moment = "(/TIMESTAMP\\('(.*)'\\)/.exec(document.querySelector('#filter').value) ?? [])[1]"
    page.wait_for_function(f"since => {moment} > since", arg=since)  # the filter goes along
    page.click("[aria-label=Pause]")
    held = page.evaluate(f"() => {moment}")
    passed_s = (parse_instant(held) - parse_instant(since)) / 1_000_000
    assert 1 <= passed_s <= 5 * (time.monotonic() - began)
    page.wait_for_timeout(1_000)
    assert page.evaluate(f"() => {moment}") == held
    speeds.select_option("20")
    page.click("[aria-label=Play]")
    page.wait_for_function("() => document.querySelector('#filter').value === \"type = 'player'\"")
    seat.count("1 object")  # it has come to now, and goes on live
    assert seat.listed() == {"walker": "player · campus/b1"}
    assert page.locator(".pulse.live").count() == 1
    running.ask("DELETE", "/contexts/walker", running.operator)


def test_a_cast_is_counted_sent_explained_read_with_its_reason_and_its_sender_stopped(
    running: RunningService, places: Places, sit: Sit
) -> None:
    lon, lat = places.centre("campus/b2") or (0.0, 0.0)
    for name in ("ann", *(f"guest-{number}" for number in range(49))):  # fewer are not told
        token = running.token(name, ("read", "publish", "subscribe"))
        fix = {"_type": "location", "lat": lat, "lon": lon, "tst": time.time()}
        assert running.ask("POST", "/owntracks", token, fix).status == 200
    there_us = time.time_ns() // 1_000
    seat = sit().open(running.token("carl", SCOPES))  # who has previews of his own for a day
    page = seat.page
    seat.apply("within(place, 'campus/b2')")
    page.click("#tab-cast")
    counted = page.locator(".tense.on")
    counted.filter(has_text=re.compile(r"≈ \d\dnow")).wait_for()
    then, later = format_instant(there_us), format_instant(there_us + 3_600 * 10**6)
    seat.apply(f"within(place, 'campus/b2') AND overlaps(time, TIMESTAMP('{then}'))")
    counted.filter(has_text=re.compile(r"≈ \d\dpast")).wait_for()
    seat.apply(f"within(place, 'campus/b2') AND start_by(time, INTERVAL('{then}', '{later}'))")
    counted.filter(has_text=re.compile(r"≈ \d\dfuture")).wait_for()
    seat.apply("within(place, 'campus/b2')")
    counted.filter(has_text=re.compile(r"≈ \d\dnow")).wait_for()
    nasty = "<img src=x onerror=alert(1)> the lift is out of order"
    page.fill("#cast-text", nasty)
    page.click(".composer .main")
    page.locator(".entry", has_text=re.compile(r"≈ \d\d in a mailbox")).wait_for()
    page.click(".entry >> text=Why")
    page.locator(".why li", has_text=re.compile(r"about \d\d are with their trusted")).wait_for()
    ann = sit().open(running.token("ann", ("read", "publish", "subscribe")))
    ann.page.locator("#tab-mail .badge", has_text="1").wait_for()
    assert ann.page.locator("#tab-cast").count() == 0  # her token may not
    ann.page.click("#tab-mail")
    assert ann.page.text_content(".entry-text") == nasty
    receipt = str(ann.page.text_content(".receipt"))
    assert "within(place, 'campus/b2')" in receipt
    assert "who can not deny it" in receipt  # signed by this service's key
    ann.page.click("text=Stop this sender")
    ann.page.locator(".chips", has_text="carl").wait_for()
    told = running.ask("GET", "/me/reach", running.token("ann", ("subscribe",)))
    assert told.json["stopped"] == ["carl"]
    ann.page.click("text=Delete")
    ann.page.locator(".pane-empty").wait_for()
    assert ann.complaints == []
    page.click(".entry >> text=Stop")
    page.locator(".entry", has_text="cancelled").wait_for()
    assert seat.complaints == []


def test_what_if_shows_two_maps_with_one_time_and_counts_their_differences(
    sit: Sit, running: RunningService, places: Places
) -> None:
    here, there = places.of_kind("office")[0], places.of_kind("office")[-1]
    rules = [{"viewers": ["*"], "precision": "exact", "past": True}]
    running.ask("PUT", "/contexts/walker-own/rules", running.operator, rules)
    for vid in ("walker-a", "walker-own"):
        running.put(vid, here, type="walker")
    seat = sit().open()
    page = seat.page
    seat.apply("type = 'walker'")
    page.click("#tab-whatif")
    page.select_option("#whatif-setting", "default_precision")
    page.select_option("#whatif-value", "building")
    for vid in ("walker-a", "walker-own"):
        running.put(vid, there, type="walker")
    with page.expect_response("**/what-if") as answered:
        page.click(".composer .main")
    record = answered.value.json()
    page.locator(".whatif-counts").wait_for()
    assert page.locator(".twin").count() == 2
    assert page.locator(".twin canvas").count() == 2
    slider = page.locator("[aria-label='Moment of both maps']")
    slider.focus()
    page.keyboard.press("End")
    shown = page.locator(".twin-name").evaluate_all("all => all.map(one => one.dataset.shown)")
    assert shown == ["2", "2"]
    # at the end both are in another building: one map knows the room, the other does not
    building = "/".join(there.split("/")[:2])
    page.locator(".whatif-counts li", has_text=f"{there} → {building}").wait_for()
    assert page.locator(".whatif-counts li b").all_text_contents() == ["walker-a"]
    assert page.text_content(".time .moment small") == "1 different"
    cells = page.locator(".whatif-counts tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    )
    counted = {name: (was, would) for name, was, would in cells}
    was, would = record["was"], record["would"]
    assert counted["objects shown"] == (str(was["contexts"]), str(would["contexts"]))
    assert counted["states in them"] == (str(was["updates"]), str(would["updates"]))
    page.fill("#whatif-from", "2020-01-01T00:00:00")
    page.click(".composer .main")
    page.locator(".says.bad", has_text="the past begins at").wait_for()
    page.click("text=Back to now")
    page.locator("[aria-label='Time of the map']").wait_for()
    refused = [text for text in seat.complaints if "400" not in text]
    assert refused == []
    stranger = sit().open(running.token("ann", ("read", "subscribe")))
    assert stranger.page.locator("#tab-whatif").count() == 0
    for vid in ("walker-a", "walker-own"):
        running.ask("DELETE", f"/contexts/{vid}", running.operator)


@pytest.mark.soak
@pytest.mark.parametrize(
    "keyboard",
    [pytest.param(False, marks=pytest.mark.soak), True],  # keys press the same buttons
    ids=["clicked", "by keyboard"],
)
def test_the_six_steps_of_the_tour(
    seat: Seat, running: RunningService, places: Places, keyboard: bool
) -> None:
    page = seat.page

    def press(wanted: str) -> None:
        seat.press(wanted, keyboard=keyboard)

    def step(action: str, live: str) -> str:
        press(f".tour button:text-is('{action}')")
        page.locator(".tour-live", has_text=re.compile(live)).wait_for()
        tops = page.locator(".tour .entry-row button").evaluate_all(
            "all => all.map(one => one.offsetTop)"
        )
        assert len(set(tops)) == 1  # none is pushed below the others
        return str(page.input_value("#filter"))

    def following() -> None:
        press(".tour button:text-is('Next')")

    def someone(name: str, place: str) -> str:
        lon, lat = places.centre(place) or (0.0, 0.0)
        token = running.token(name, ("read", "publish", "subscribe"))
        fix = {"_type": "location", "lat": lat, "lon": lon, "tst": time.time()}
        fix = {**fix, "inregions": [place]}
        assert running.ask("POST", "/owntracks", token, fix).status == 200
        return token

    press("header >> text=Tour")
    people = running.get("/count", filter="type = 'person'").json["count"]
    assert step("Show everybody", f"{people} people and 3 things") == ""
    following()
    text = step("Watch the hall, as they do", "1 watchers. Waiting|1.0 a change")
    room = text.split("'")[1]
    assert text == f"within(place, '{room}')"
    for number in range(100):  # until one comes after the numbers that the step begins with
        running.put("passer", room, type="person", number=number)
        if "1.0 a change" in str(page.text_content(".tour-live")):
            break
        page.wait_for_timeout(500)
    assert "1.0 a change instead of 1" in str(page.text_content(".tour-live"))
    following()
    assert "overlaps(time, TIMESTAMP" in step("Go back, and write to them", "were there")
    press(".composer .main")
    page.locator(".tour-live", has_text="Sent.").wait_for()
    following()
    text = step("Write to the future", "would come")
    assert "start_by(time, INTERVAL" in text
    press(".composer .main")
    page.locator(".tour-live", has_text="Sent.").wait_for()
    name = f"late-{keyboard}"
    token = someone(name, text.split("'")[1])
    for _ in range(100):
        mails = running.ask("GET", "/mailbox", token).json["mails"]
        if mails:
            break
        page.wait_for_timeout(200)
    assert [one["sender"] for one in mails] == ["operator"]
    press(".entry >> text=Stop >> nth=0")  # or who comes in the next test has it, too
    page.locator(".entry", has_text="cancelled").wait_for()
    following()
    step("Stand, and look", "They: somewhere in campus/b1, once you save it")
    press(".pane .main")
    page.locator(".tour-live", has_text="from now on").wait_for()
    (own,) = running.ask("GET", "/me", running.operator).json["contexts"]
    assert own["properties"]["place"].startswith("campus/b1/")
    seen = running.get(f"/collections/contexts/items/{own['id']}").json
    assert seen["properties"]["place"] == "campus/b1"
    seat.tab("list", keyboard=keyboard)
    page.locator(".details dd", has_text=own["id"]).wait_for()
    page.locator(".details dd", has_text="to its building").wait_for()
    following()
    step("Follow the courier", "one broker, so there is no border here")
    press(".tour button:text-is('Done')")
    page.locator(".tour").wait_for(state="detached")
    for path in ("/me/contexts", "/me/rules", "/contexts/passer"):
        assert running.ask("DELETE", path, running.operator).status == 204


@pytest.mark.soak
def test_a_link_is_shared_with_a_narrower_token_that_leaves_the_address_and_can_be_revoked(
    seat: Seat, running: RunningService, sit: Sit
) -> None:
    seat.apply("type = 'printer'")
    seat.count("3 objects")
    seat.page.click("text=Take this away")
    seat.page.click("text=Make a link")
    link = str(seat.page.text_content(".link-text"))
    assert seat.page.locator(".qr").count() == 1
    assert link.startswith(f"{running.url}/#")
    guest = sit()
    guest.page.goto(link)
    guest.settled()
    guest.count("3 objects")
    token = link.split("token=")[1].split("&")[0]
    assert token not in guest.page.evaluate("() => location.href")
    assert not [url for url in guest.requests if token in url.split("#")[0]]
    assert token not in running.log
    guest.apply("type = 'person'")  # beyond what was shared
    guest.count("0 objects")
    assert guest.page.locator("[role=tab]").all_text_contents() == ["List", "Feed", "Mail"]
    seat.page.click("text=Revoke")
    seat.page.locator("text=Make a link").wait_for()
    guest.page.locator("#token").wait_for()  # signed out
    seat.page.keyboard.press("Escape")


def test_a_phone_is_added_by_a_code_that_owntracks_reads(
    seat: Seat, running: RunningService, places: Places
) -> None:
    seat.page.click("#tab-you")
    seat.page.click("text=Show the code")
    address = str(seat.page.get_attribute(".pane a", "href"))
    inline = parse_qs(urlsplit(address).query)["inline"][0]
    told = json.loads(b64decode(inline))
    assert (told["_type"], told["mode"], told["url"]) == (
        "configuration", 3, f"{running.url}/owntracks",
    )  # fmt: skip
    # within a minute on the map, though it lies still: OwnTracks' own mode waits for 500 m
    assert told["monitoring"] == 2
    assert max(told["locatorInterval"], told["moveModeLocatorInterval"]) <= 60
    lon, lat = places.centre("campus/b1") or (0.0, 0.0)
    fix = {"_type": "location", "lat": lat, "lon": lon, "tst": time.time()}
    assert running.ask("POST", "/owntracks", told["password"], fix).status == 200
    seat.page.click("#tab-list")
    seat.page.locator(".count", has_text="object").wait_for()
    me = running.ask("GET", "/me", told["password"]).json
    assert me["subject"] == told["username"]
    assert "admin" not in me["scopes"]
    assert len(me["contexts"]) == 1
    running.ask("DELETE", "/me/contexts", running.operator)


def test_a_dot_stands_where_its_object_is(
    sit: Sit, running: RunningService, places: Places
) -> None:
    box = places.polygon("campus/b1/1/1001").bounds
    lon, lat = box[0] + 0.3 * (box[2] - box[0]), box[1] + 0.3 * (box[3] - box[1])
    where = f"#filter=vid+%3D+'dot'&floor=1&map=21.00/{lat:.6f}/{lon:.6f}"
    running.put("dot", "campus/b1/1/1001", (round(lon, 6), round(lat, 6)), type="person")
    seat = sit(device_scale_factor=1).open(fragment=where)
    seat.count("1 object")
    assert _colour(seat, ACCENT)
    running.ask("DELETE", "/contexts/dot", running.operator)
    seat.count("0 objects")
    assert _colour(seat, ACCENT, there=False)
    assert seat.complaints == []


def test_the_chosen_one_has_a_circle_of_accuracy_and_leaves_a_trail(
    sit: Sit, running: RunningService, places: Places
) -> None:
    box = places.polygon("campus/b1/1/1001").bounds
    lon, lat = box[0] + 0.3 * (box[2] - box[0]), box[1] + 0.3 * (box[3] - box[1])
    where = f"#filter=vid+%3D+'dot'&floor=1&map=21.00/{lat:.6f}/{lon:.6f}"
    known = {"type": "person", "accuracy_m": 1.5}
    running.put("dot", "campus/b1/1/1001", (round(lon, 6), round(lat, 6)), **known)
    seat = sit(device_scale_factor=1).open(fragment=where)
    seat.count("1 object")
    metre_px = 2**21 * 512 / (40_075_017 * math.cos(math.radians(lat)))
    inside = round(metre_px)  # a metre to the east: in the circle, and on the way of the trail
    room = _pixel(seat, inside)
    seat.page.click(".row")
    seat.page.locator(".details h2", has_text="dot").wait_for()
    circled = _until_other(seat, inside, room)
    assert circled[0] < room[0]  # greener
    east = 2.5 / (111_320 * math.cos(math.radians(lat)))
    assert (
        running.put(
            "dot", "campus/b1/1/1001", (round(lon + east, 6), round(lat, 6)), type="person"
        ).status
        == 200
    )
    line = _until_other(seat, inside, circled)  # no circle any more: nobody says how exact it is
    assert line[0] < circled[0]
    assert _pixel(seat, inside, 20) == room  # a line, and not an area
    running.ask("DELETE", "/contexts/dot", running.operator)
    assert seat.complaints == []


def _pixel(seat: Seat, right: int = 0, down: int = 0) -> tuple[int, int, int]:
    """Give the colour of the map so many pixels beside its middle, once it has come to rest."""
    from PIL import Image

    box = seat.page.locator(".canvas").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2 + right, box["y"] + box["height"] / 2 + down
    before = None
    for _ in range(100):
        shot = seat.page.screenshot(clip={"x": x, "y": y, "width": 1, "height": 1})
        found = Image.open(BytesIO(shot)).convert("RGB").getpixel((0, 0))
        if found == before:
            break
        before = found
        seat.page.wait_for_timeout(100)
    assert isinstance(found, tuple)
    return found[0], found[1], found[2]


def _until_other(seat: Seat, right: int, before: tuple[int, int, int]) -> tuple[int, int, int]:
    for _ in range(100):
        found = _pixel(seat, right)
        if found != before:
            return found
    raise AssertionError(f"the map stays {before} there")


def test_a_filter_whose_objects_are_all_elsewhere_moves_the_map_to_them(
    sit: Sit, running: RunningService, places: Places
) -> None:
    lon, lat = places.centre("campus/b1/1/1001") or (0.0, 0.0)
    there = next(one for one in places.of_kind("office", "campus/b2") if "/1/" in one)
    running.put("afar", there, places.centre(there), type="person")
    seat = sit().open(fragment=f"#floor=1&map=21.00/{lat:.6f}/{lon:.6f}")
    seat.apply("within(place, 'campus/b1/1/1001')")  # in view: the map stays
    seat.page.wait_for_function("() => location.hash.includes('1001')")
    assert "map=21.00" in seat.page.evaluate("() => location.hash")
    seat.apply("vid = 'afar'")
    seat.count("1 object")
    seat.page.wait_for_function("() => !location.hash.includes('map=21.00')")
    running.ask("DELETE", "/contexts/afar", running.operator)
    assert seat.complaints == []


def _colour(seat: Seat, wanted: tuple[int, int, int], *, there: bool = True) -> bool:
    """Whether the middle of the map gets that colour, or loses it."""
    from PIL import Image

    box = seat.page.locator(".canvas").bounding_box()
    assert box is not None
    clip = {"x": box["x"] + box["width"] / 2 - 1, "y": box["y"] + box["height"] / 2 - 1}
    for _ in range(100):
        shot = seat.page.screenshot(clip={**clip, "width": 2, "height": 2})
        pixel = Image.open(BytesIO(shot)).convert("RGB").getpixel((1, 1))
        assert isinstance(pixel, tuple)
        near = all(abs(a - b) < 12 for a, b in zip(pixel, wanted, strict=True))
        if near == there:
            return True
        seat.page.wait_for_timeout(100)
    return False


def test_nothing_leaves_the_origin_and_the_token_is_in_no_address_and_no_lasting_storage(
    sit: Sit, running: RunningService
) -> None:
    seat = sit().open()
    seat.apply("type = 'printer'")
    seat.count("3 objects")
    seat.page.click(".row >> nth=0")
    seat.page.click("[aria-label='Dark colours']")
    host = running.url.removeprefix("http://")
    loaded = [url for url in seat.requests if not url.startswith(("blob:", "data:"))]
    assert {re.sub(r"^(\w+://[^/]*)/.*", r"\1", url) for url in loaded} == {
        f"http://{host}",
        f"ws://{host}",
    }
    assert len([url for url in loaded if url.startswith("ws:")]) == 1  # one session, all along
    assert seat.policies == [POLICY]
    assert seat.complaints == []
    token = running.operator
    lasting = seat.page.evaluate(
        "async () => JSON.stringify([location.href, document.cookie, {...localStorage},"
        " await indexedDB.databases(), await caches.keys(), history.state,"
        " document.documentElement.outerHTML])"
    )
    for part in (*token.split("."), token):
        assert part not in lasting
        assert not [url for url in seat.requests if part in url]
        assert part not in json.dumps(seat.context.cookies())
        assert part not in running.log
    other = seat.context.new_page()  # another tab knows nothing
    other.goto(running.url)
    other.locator("#token").wait_for()
    seat.page.reload()
    seat.settled()  # the same tab does


def test_a_token_that_is_not_valid_is_refused_with_the_reason(
    sit: Sit, running: RunningService
) -> None:
    seat = sit()
    seat.page.goto(running.url)
    seat.page.fill("#token", "not.a.token")
    seat.page.click("text=Open the map")
    seat.page.locator("[role=alert]").wait_for()
    assert seat.page.locator(".page").count() == 0


def test_a_viewer_of_buildings_gets_no_room_in_any_frame_or_in_the_page(
    sit: Sit, running: RunningService, places: Places
) -> None:
    rooms = places.of_kind("office", "campus/b2")[-3:]  # nobody else is there
    rule = {"viewers": ["guest-viewer"], "precision": "building"}
    points = {}
    for number, room in enumerate(rooms):
        lon, lat = places.centre(room) or (0.0, 0.0)
        points[room] = round(lon + 1.7e-6, 9), round(lat + 1.3e-6, 9)  # nobody else's
        vid = f"shy-{number}"
        path = f"/contexts/{vid}/rules"
        assert running.ask("PUT", path, running.operator, [rule]).status == 200
        running.put(vid, room, points[room], type="person")
    token = running.token("guest-viewer", ("read", "subscribe"))
    seat = sit().open(token)
    seat.apply("vid LIKE 'shy-%'")
    seat.count("3 objects")
    running.put("shy-0", rooms[2], points[rooms[2]], type="person")
    running.put("shy-9", "campus/b1", type="person")  # comes after what is hidden
    seat.count("4 objects")
    seat.page.click(".row >> nth=0")
    assert seat.page.locator(".details dd", has_text="to its building").count() == 1
    shown = seat.listed()
    assert shown["shy-0"] == "person · campus/b2"
    page = seat.page.content()
    for room in rooms:
        assert room not in page
        assert not [frame for frame in seat.frames if room in frame]
        for degrees in points[room]:
            assert not [frame for frame in seat.frames if str(degrees) in frame]
    assert [one["status"] for one in seat.said() if one["type"] == "error"] in ([], [403])
    for number in (0, 1, 2, 9):
        running.ask("DELETE", f"/contexts/shy-{number}", running.operator)
    assert seat.page.locator(".strip").count() == 0  # numbers are for administrators


def test_after_kill_9_and_a_restart_the_same_objects_come_back_without_a_reload(
    sit: Sit, running: RunningService
) -> None:
    seat = sit().open()
    seat.apply("type = 'printer'")
    seat.count("3 objects")
    seat.page.evaluate("() => { window.same = true }")
    before = seat.listed()
    running.kill()
    seat.page.locator(".lost").wait_for()
    assert seat.listed() == before  # what was known stays
    told = len(seat.frames)
    running.start()
    while running.get("/readyz").status != 200:
        seat.page.wait_for_timeout(20)
    ready = time.monotonic()
    seat.page.locator(".pulse.live").wait_for()
    seat.page.wait_for_function("() => !document.querySelector('.lost')")
    seat.count("3 objects")
    took_s = time.monotonic() - ready
    assert seat.listed() == before
    answers = [json.loads(frame) for frame in seat.frames[told:]]
    (found,) = [one for one in answers if one["type"] == "subscribed"]  # asked anew, not remembered
    assert sorted(one["id"] for one in found["features"]) == sorted(before)
    assert took_s <= BACK_S
    running.put("printer-9", "campus/b1", type="printer")
    seat.count("4 objects")
    assert sorted(seat.listed()) == ["printer-0", "printer-1", "printer-2", "printer-9"]
    running.ask("DELETE", "/contexts/printer-9", running.operator)
    seat.count("3 objects")
    assert seat.page.evaluate("() => window.same") is True


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (390, "dark"),
        pytest.param(1280, "light", marks=pytest.mark.soak),
        pytest.param(390, "light", marks=pytest.mark.soak),
        pytest.param(1280, "dark", marks=pytest.mark.soak),
    ],
)
def test_axe_finds_nothing_on_any_screen(
    sit: Sit, running: RunningService, places: Places, width: int, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    seat = sit(width=width, color_scheme=scheme, bypass_csp=True)
    found: dict[str, Any] = {}

    def look(screen: str) -> None:
        told = axe.run(seat.page).response["violations"]
        found.update(
            {screen: [(one["id"], one["nodes"][0]["html"]) for one in told]} if told else {}
        )

    seat.page.goto(running.url)
    seat.page.locator("#token").wait_for()
    look("sign in")
    seat.open(running.token(f"looker-{width}-{scheme}", SCOPES))
    look("map")
    if width < 720:
        seat.page.click("#tab-list")
    seat.page.click(".row >> nth=2")
    seat.page.locator(".details h2").wait_for()
    look("chosen")
    for tab in ("feed", "cast", "mail", "you", "network", "whatif"):
        seat.page.click(f"#tab-{tab}")
        look(tab)
    seat.page.fill("#filter", "ty")
    seat.page.press("#filter", "ArrowRight")
    seat.page.locator("#filter-offers [role=option]").first.wait_for()
    look("completion")
    seat.apply("")
    _look_at_you_and_your_mail(seat, look, places.of_kind("office", "campus/b2")[-1])
    _look_at_the_tour_and_the_past(seat, look)
    seat.page.click("#tab-whatif")
    seat.page.select_option(".composer-row select", "1")  # a minute
    seat.page.click(".composer .main")
    seat.page.locator(".whatif-counts").wait_for()
    look("what if, counted")
    if width < 720:
        seat.page.click(".map-tab")
        look("what if, two maps")
    seat.page.click("text=Back to now")
    seat.apply("type = ")
    seat.page.locator(".editor.bad").wait_for()
    look("wrong filter")
    seat.apply("")
    seat.page.locator(".editor.bad").wait_for(state="detached")
    seat.page.click("button.take")
    seat.page.locator("dialog").wait_for()
    look("take this away")
    seat.page.click("text=Make a link")
    seat.page.locator(".link-text").wait_for()
    look("a link")
    seat.page.click("text=Revoke")
    seat.page.keyboard.press("Escape")
    seat.page.locator("dialog").wait_for(state="hidden")
    running.kill()
    seat.page.locator(".lost").wait_for()
    look("the connection is lost")
    running.start()
    assert found == {}
    wide = seat.page.evaluate("() => document.documentElement.scrollWidth")
    assert wide <= width


Look = Callable[[str], None]


def _look_at_you_and_your_mail(seat: Seat, look: Look, room: str) -> None:
    """Stand in a room, add a phone, and write to whoever is there, which is you."""
    page = seat.page
    page.click("#tab-you")
    page.select_option(".pane select >> nth=0", room)
    page.locator(".theirs", has_text=room).wait_for()
    look("you and the mirror")
    page.click("text=Show the code")
    page.locator(".qr").wait_for()
    look("a phone's code")
    page.click("text=Revoke")
    seat.apply(f"within(place, '{room}')")
    page.click("#tab-cast")
    page.fill("#cast-text", "the lift is out of order")
    page.click(".composer .main")
    page.click(".entry >> text=Why")
    page.locator(".why li").first.wait_for()
    look("a cast, and why")
    page.locator("#tab-mail .badge", has_text="1").wait_for()
    page.click("#tab-mail")
    page.locator(".receipt").wait_for()
    look("a mail")
    page.click("text=Delete")
    page.click("#tab-you")
    page.click("text=Leave")
    page.locator("h2", has_text="Put yourself on the map").wait_for()
    seat.apply("")


def _look_at_the_tour_and_the_past(seat: Seat, look: Look) -> None:
    page = seat.page
    page.click("header >> text=Tour")
    look("the tour")
    page.click(".tour button:text-is('Show everybody')")  # the map shows, on a narrow screen, too
    page.locator(".tour-live").wait_for()
    look("the tour, and what it says")
    page.click("[aria-label='End the tour']")
    page.locator(".track input").fill("-30")
    page.locator(".pulse.past").wait_for()
    look("the past")
    page.locator(".track input").fill("-800")
    page.locator(".moment", has_text="beyond the horizon").wait_for()
    look("beyond the horizon")
    page.click(".time button:text-is('Now')")


@pytest.mark.soak
def test_pictures_for_the_readme(browser: Any, tmp_path: Path) -> None:
    """`PICTURES=docs/pictures pytest …` keeps them, and waits until many are in the hall."""
    wanted = os.environ.get("PICTURES")
    command = ("serve", "--demo", "--brokers", "3", "--people", "300")
    with RunningService(tmp_path, command=command) as campus:
        folder = tmp_path / "pictures" if wanted is None else Path(wanted)
        if wanted is not None:
            _gathered(campus)
        _take(browser, campus, folder, full=wanted is not None)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"docs/pictures/[\w-]+\.png", readme)
    assert shown
    taken = {f"docs/pictures/{name}.png" for name, *_ in PICTURES}
    assert set(shown) <= taken
    assert {path for path in shown if not (ROOT / path).exists()} == set()


def _gathered(running: RunningService) -> None:
    """Wait until the meeting has filled the hall, and had done so a minute ago."""
    for _ in range(300):
        if running.get("/count", filter="within(place, 'campus/hall')").json["count"] > 60:
            time.sleep(75)
            return
        time.sleep(1)
    raise AssertionError("nobody meets in the hall")


def _take(browser: Any, running: RunningService, folder: Path, *, full: bool) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    for name, scheme, width, height, fragment, tab in PICTURES:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        seat = Seat(context, running).open(fragment=fragment)
        if tab == "list" and width > 720:
            seat.page.click(".row >> nth=4")
        seat.page.wait_for_timeout(2_500)
        if tab == "cast":  # a minute ago
            seat.page.locator(".track input").fill("-60")
            seat.page.locator(".pulse.past").wait_for()
            seat.page.click("#tab-cast")
            wanted = "≈" if full else ""  # about how many, and not that they are few
            seat.page.locator(".tense.on", has_text=wanted).wait_for()
        if tab == "you":
            seat.page.click("#tab-you")
            seat.page.select_option(".pane select >> nth=0", "campus/b1/1/1003")
            seat.page.select_option("#precision", "building")
            seat.page.locator(".theirs", has_text="somewhere in campus/b1").wait_for()
            seat.page.locator(".mirror-box").scroll_into_view_if_needed()
        seat.page.click("[aria-label='Fit all']")
        seat.page.wait_for_timeout(1_500)  # the camera comes to rest, labels are drawn
        if tab == "whatif":
            seat.page.click("#tab-whatif")
            seat.page.select_option("#whatif-setting", "default_precision")
            seat.page.select_option(".composer-row select", "1")  # a minute
            seat.page.click(".composer .main")
            seat.page.locator(".whatif-counts").wait_for()
            seat.page.wait_for_timeout(1_500)
        seat.page.screenshot(path=folder / f"{name}.png")
        assert (folder / f"{name}.png").stat().st_size > 10_000
        assert seat.complaints == []
        context.close()
