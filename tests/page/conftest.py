"""A real service with places, and Debian's Chromium in front of it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from roamcast.model.buildings import FloorPlan, campus
from roamcast.model.places import Places
from roamcast.model.places_geojson import write_places
from tests.running_service import RunningService

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "src" / "roamcast" / "page" / "index.html.gz"
WEB = ROOT / "web"
CHROMIUM = shutil.which("chromium")
WAIT_MS = 120_000
"""Long, for a busy machine; nothing here waits for it on purpose."""


@pytest.fixture(scope="session")
def built() -> None:
    """The page, built once where it is missing or older than what it is made from."""
    sources = [*WEB.glob("*.*"), *(WEB / "src").rglob("*")]
    if BUILT.exists() and BUILT.stat().st_mtime >= max(one.stat().st_mtime for one in sources):
        return
    made = subprocess.run(
        [sys.executable, ROOT / "scripts" / "build_page.py"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"the page could not be built: {made.stderr.strip()[-200:]}")


@pytest.fixture(scope="session")
def places() -> Places:
    return campus("campus", 2, 2, FloorPlan(cells=3))


@pytest.fixture(scope="module")
def browser(built: None) -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: scripts/tools.sh installs it on Debian")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--enable-unsafe-swiftshader"]
        )
        yield made
        made.close()


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, places: Places, browser: Any
) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "places.json").write_bytes(write_places(places))
    settings = f'[server]\nplaces = "{folder / "places.json"}"\n'
    with RunningService(folder, settings) as started:
        people(started, places)
        yield started


def people(running: RunningService, places: Places) -> None:
    """Publish thirty people, every other one with a point, and three printers."""
    offices = places.of_kind("office")
    for number in range(30):
        office = offices[number % len(offices)]
        point = places.centre(office) if number % 2 == 0 else None
        answer = running.put(f"person-{number:02}", office, point, type="person", team="a")
        assert answer.status == 201, answer.body
    for number in range(3):
        office = offices[number]
        running.put(f"printer-{number}", office, places.centre(office), type="printer")


TABS_MAX = 120
"""Presses of the key Tab that lead through everything on the page."""


class Seat:
    """Somebody in front of the page, and what their browser loaded, received and complained of."""

    def __init__(self, context: Any, running: RunningService) -> None:
        self.context = context
        self.page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.running = running
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.frames: list[str] = []
        self.policies: list[str | None] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._console)
        self.page.on("websocket", self._websocket)
        self.page.on("response", self._response)

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def _websocket(self, socket: Any) -> None:
        self.requests.append(socket.url)
        socket.on("framereceived", lambda frame: self.frames.append(str(frame)))

    def _response(self, response: Any) -> None:
        if response.request.resource_type == "document":
            self.policies.append(response.headers.get("content-security-policy"))

    def open(self, token: str | None = None, fragment: str = "") -> "Seat":
        """Sign in, and wait for the whole current set."""
        self.page.goto(f"{self.running.url}/{fragment}")
        self.page.fill("#token", self.running.operator if token is None else token)
        self.page.click("text=Open the map")
        self.settled()
        return self

    def anew(self) -> "Seat":
        """Begin anew in the same tab: as after signing in, and nothing is remembered."""
        for noted in (self.requests, self.complaints, self.frames, self.policies):
            noted.clear()
        self.page.goto(f"{self.running.url}/")
        self.settled()
        return self

    def rest(self) -> None:
        """Forget what was saved, and draw nothing until `anew`."""
        self.page.evaluate(
            "kept => { localStorage.clear(); const token = sessionStorage.getItem(kept);"
            " sessionStorage.clear(); if (token) sessionStorage.setItem(kept, token); }",
            "roamcast.token",
        )
        self.page.goto("about:blank")

    def settled(self) -> None:
        self.page.wait_for_function(
            "() => document.querySelector('.pulse.live')"
            " && /object|of/.test(document.querySelector('.count')?.textContent ?? '')"
        )

    def listed(self) -> dict[str, str]:
        """Read the whole list, scrolling: vid → the line below it."""
        found: dict[str, str] = {}
        rows = self.page.locator(".rows")
        top = 0
        rows.evaluate("e => e.scrollTop = 0")
        while True:
            self.page.wait_for_timeout(80)
            seen = self.page.eval_on_selector_all(
                ".row",
                "rows => rows.map(r => [r.querySelector('b').textContent,"
                " r.querySelector('small').textContent])",
            )
            found.update(seen)
            height, whole = rows.evaluate("e => [e.clientHeight, e.scrollHeight]")
            if top + height >= whole:
                rows.evaluate("e => e.scrollTop = 0")
                return found
            top += height
            rows.evaluate("(e, y) => e.scrollTop = y", top)

    def apply(self, text: str) -> None:
        self.page.fill("#filter", text)
        self.page.press("#filter", "Enter")

    def press(self, wanted: str, *, keyboard: bool) -> None:
        """Press a button, with the pointer or with the keyboard alone."""
        button = self.page.locator(wanted)
        if not keyboard:
            button.click()
            return
        button.wait_for()
        for _ in range(TABS_MAX):
            if button.evaluate("button => button === document.activeElement"):
                self.page.keyboard.press("Enter")
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"the keyboard does not lead to {wanted}")

    def tab(self, name: str, *, keyboard: bool) -> None:
        """Open a panel; with the keyboard by arrows from the one that is open."""
        if not keyboard:
            self.page.click(f"#tab-{name}")
            return
        self.press("[role=tab][aria-selected=true]", keyboard=True)
        for _ in range(TABS_MAX):
            if self.page.locator(f"#tab-{name}[aria-selected=true]").count():
                return
            self.page.keyboard.press("ArrowRight")
        raise AssertionError(f"the arrows do not lead to {name}")

    def count(self, text: str) -> None:
        """Wait until the list counts so many."""
        self.page.locator(".count", has_text=text).wait_for()

    def said(self) -> list[dict[str, Any]]:
        return [json.loads(frame) for frame in self.frames]


Sit = Callable[..., Seat]


# Pictures are drawn by the processor here: a quarter of the points, and no moving camera.
CHEAP: dict[str, Any] = {"device_scale_factor": 0.5, "reduced_motion": "reduce"}


@pytest.fixture(scope="module")
def signed_in(browser: Any, running: RunningService) -> Iterator[Seat]:
    """Somebody signed in, for all tests that need nothing of their own: a browser is dear."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, **CHEAP)
    made = Seat(context, running).open()
    made.rest()
    yield made
    context.close()


@pytest.fixture
def sit(browser: Any, running: RunningService) -> Iterator[Sit]:
    """Make seats; each is a browser of its own, without memory of others."""
    contexts = []

    def make(*, width: int = 1280, height: int = 800, **options: Any) -> Seat:
        options = {"viewport": {"width": width, "height": height}, **CHEAP, **options}
        context = browser.new_context(**options)
        contexts.append(context)
        return Seat(context, running)

    yield make
    for context in contexts:
        context.close()
