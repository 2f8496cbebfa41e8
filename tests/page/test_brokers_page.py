"""The page at one of three brokers: the tour's border, the panel of brokers, places of others."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.page.conftest import Seat
from tests.running_service import RunningService

pytestmark = [pytest.mark.process, pytest.mark.soak]


@pytest.fixture
def seat(browser: Any, tmp_path: Path) -> Iterator[Seat]:
    """Somebody at the page of the demo's first broker."""
    command = ("serve", "--demo", "--brokers", "3", "--people", "30")
    with RunningService(tmp_path, command=command) as campus:
        context = browser.new_context(
            viewport={"width": 1280, "height": 800}, reduced_motion="reduce", bypass_csp=True
        )
        made = Seat(context, campus).open()
        yield made
        context.close()
    refused = [text for text in made.complaints if "421" not in text]
    assert refused == []


def test_the_courier_is_followed_across_a_border_and_misses_nothing(seat: Seat) -> None:
    page = seat.page
    seat.page.locator(".count", has_text=re.compile(r"4\d objects")).wait_for()  # of all brokers
    for keyboard in (False, True):
        seat.press("header >> text=Tour", keyboard=keyboard)
        for _ in range(5):
            seat.press(".tour button:text-is('Next')", keyboard=keyboard)
        seat.press(".tour button:text-is('Follow the courier')", keyboard=keyboard)
        says = page.locator(".tour-live")
        for broker in ("b1", "b2"):
            wanted = re.compile(rf"served by {broker}\..* 0 missed, 0 twice")
            says.filter(has_text=wanted).wait_for()
    box = page.locator(".graph").bounding_box()
    assert box is not None
    assert box["height"] > 100
    brokers = page.locator("[aria-label=Brokers] li").all_text_contents()
    assert [text[:2] for text in brokers] == ["b1", "b2", "b3"]
    assert page.locator("[aria-label='Links of this broker'] .up").count() == 2
    assert page.locator(".loads dt", has_text="virtual consumers").count() == 1
    assert page.evaluate("() => location.hash").count("object=courier") == 1
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    assert [one["id"] for one in axe.run(page).response["violations"]] == []


def test_the_past_says_whose_it_is(seat: Seat) -> None:
    page = seat.page
    page.locator(".track input").fill("-30")
    page.locator(".map-note", has_text="The past of broker b1 alone").wait_for()
    page.click("#tab-cast")
    page.locator(".audience", has_text="Broker b1 counts those that it knows").wait_for()
    page.click("#tab-whatif")
    page.locator(".composer", has_text="the past of broker b1 alone").wait_for()
    page.click(".time button:text-is('Now')")
    page.locator(".map-note").wait_for(state="detached")


def test_a_place_of_another_broker_is_answered_with_who_serves_it(seat: Seat) -> None:
    page = seat.page
    page.click("#tab-you")
    page.select_option(".pane select >> nth=0", "campus/b2/1/1001")
    told = str(page.locator(".pane [role=alert]").text_content())
    assert re.search(r"Another broker serves that place: open http://127.0.0.1:\d+ with", told)
    page.select_option(".pane select >> nth=0", "campus/b1/1/1001")
    page.locator(".pane h2", has_text="You are on the map").wait_for()
    page.locator(".pane [role=alert]").wait_for(state="detached")
