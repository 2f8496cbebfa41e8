"""How much does the map page cost a browser, beside MapLibre's own ways to move points?

5,000 objects on a real service, 500 updates a second. In one run Debian's Chromium shows in turn an
empty map that is drawn as often as it can be, a GeoJSON source that follows by `updateData`, one by
`setData`, and our page. Renders are animation frames in which WebGL drew something; CPU is that of
the renderer's process. Then our page alone, for as long as its heap must stay flat.
"""

import functools
import http.server
import json
import math
import random
import shutil
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from bench.subscriptions import served
from roamcast.errors import MissingError
from roamcast.lab.report import Claim, Report, Steps
from roamcast.model.buildings import FloorPlan, campus
from roamcast.model.places_geojson import write_places

TITLE = "page: 5,000 moving objects on the map page, beside MapLibre's setData and updateData"
ROOT = Path(__file__).parents[1]
OBJECTS, PER_S, BATCH_S = 5_000, 500, 0.1
SETTINGS = """
[server]
places = "{places}"
[limits]
requests_per_s = 100000.0
requests_burst = 1000000
steps_per_s = 1e12
steps_burst = 1000000000000
[journal]
on = false
"""
COUNT_FRAMES = """
(() => {
  let drew = false;
  window.renders = 0;
  for (const name of ["drawArrays", "drawElements", "clear"]) {
    const own = WebGL2RenderingContext.prototype[name];
    WebGL2RenderingContext.prototype[name] = function (...given) {
      drew = true;
      return own.apply(this, given);
    };
  }
  const look = () => {
    if (drew) window.renders++;
    drew = false;
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})();
"""


class Crowd:
    """Publishes objects around a point, and moves some of them ten times a second."""

    def __init__(self, url: str, token: str, centre: tuple[float, float]) -> None:
        self._url, self._token = f"{url}/contexts?lifetime=3600", token
        self._centre = centre
        self._draw = random.Random(1)
        self._over = threading.Event()
        self.sent = 0

    def place(self) -> None:
        """Put all objects on the map."""
        for first in range(0, OBJECTS, 1_000):
            self._put(range(first, first + 1_000))

    def _put(self, numbers: Any) -> None:
        features = []
        for number in numbers:
            turn, reach = self._draw.random() * math.tau, self._draw.random() ** 0.5 * 5e-4
            lon, lat = self._centre
            point = [lon + 1.5 * reach * math.cos(turn), lat + reach * math.sin(turn)]
            features.append(
                {"type": "Feature", "id": f"v{number}", "properties": {"type": "person"},
                 "geometry": {"type": "Point", "coordinates": point}}
            )  # fmt: skip
        body = json.dumps({"type": "FeatureCollection", "features": features}).encode()
        asked = urllib.request.Request(self._url, body, method="POST")  # noqa: S310 - our own
        asked.add_header("Authorization", f"Bearer {self._token}")
        asked.add_header("Content-Type", "application/geo+json")
        with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310 - as above
            answer.read()
        self.sent += len(features)

    @contextmanager
    def walking(self) -> Iterator[None]:
        """Move objects in a thread for as long as the block lasts."""
        thread = threading.Thread(target=self._walk)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _walk(self) -> None:
        due = time.monotonic()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due += BATCH_S
            self._put(self._draw.sample(range(OBJECTS), int(PER_S * BATCH_S)))


class _Files(http.server.SimpleHTTPRequestHandler):
    extensions_map = {  # noqa: RUF012 - as the library has it
        **http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript",
    }  # fmt: skip

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Say nothing."""


@contextmanager
def peers(folder: Path) -> Iterator[str]:
    """Serve the peers' page beside MapLibre as npm installed it; give its address."""
    library = ROOT / "web" / "node_modules" / "maplibre-gl" / "dist"
    if not library.exists():
        raise MissingError("the peers need MapLibre in web/node_modules: make web")
    shutil.copytree(ROOT / "bench" / "page_peers", folder / "peers")
    shutil.copytree(library, folder / "peers" / "maplibre")
    handler = functools.partial(_Files, directory=str(folder / "peers"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class Window:
    """One page of a browser of its own: what it drew, and what it cost."""

    def __init__(self, playwright: Any) -> None:
        chromium = shutil.which("chromium")
        if chromium is None:
            raise MissingError("chromium is not installed: scripts/tools.sh installs it on Debian")
        self._browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--enable-unsafe-swiftshader"]
        )
        self._cost = self._browser.new_browser_cdp_session()
        context = self._browser.new_context(viewport={"width": 1280, "height": 800})
        context.add_init_script(COUNT_FRAMES)
        self.page = context.new_page()
        self.page.set_default_timeout(120_000)
        self._heap = context.new_cdp_session(self.page)

    def close(self) -> None:
        """End the browser."""
        self._browser.close()

    def _cpu_s(self) -> float:
        told = self._cost.send("SystemInfo.getProcessInfo")["processInfo"]
        return float(sum(one["cpuTime"] for one in told if one["type"] == "renderer"))

    def look(self, seconds: float, crowd: Crowd) -> dict[str, float]:
        """Watch for a while: renders a second, and the renderer's CPU for each update."""
        renders, cpu_s, sent = self.page.evaluate("renders"), self._cpu_s(), crowd.sent
        began = time.monotonic()
        self.page.wait_for_timeout(seconds * 1_000)
        took = time.monotonic() - began
        cpu_s = self._cpu_s() - cpu_s
        return {
            "renders_per_s": (self.page.evaluate("renders") - renders) / took,
            "renderer_cores": cpu_s / took,
            "cpu_us_an_update": cpu_s * 1e6 / max(1, crowd.sent - sent),
        }

    def heap_mb(self) -> float:
        """Give the heap after a collection."""
        self._heap.send("HeapProfiler.collectGarbage")
        return float(self._heap.send("Runtime.getHeapUsage")["usedSize"]) / 2**20


def run(quick: bool, progress: Steps) -> Report:
    """Show the same objects four ways, one after the other."""
    from playwright.sync_api import sync_playwright

    seconds, flat_s = (10.0, 30.0) if quick else (30.0, 300.0)
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="roamcast-bench-") as made,
        sync_playwright() as playwright,
        progress("windows", 5) as step,
    ):
        folder = Path(made)
        places = campus("campus", 2, 2, FloorPlan(cells=3))
        (folder / "places.json").write_bytes(write_places(places))
        centre = places.centre("campus/b1") or (0.0, 0.0)
        settings = SETTINGS.format(places=folder / "places.json")
        with (
            served(folder, ROOT / "src", settings) as (_, url, token),
            peers(folder) as peer,
        ):
            crowd = Crowd(url, token, centre)
            crowd.place()
            asked = {
                "token": token,
                "session": url.replace("http", "ws", 1) + "/session",
                "center": ",".join(map(str, centre)),
                "zoom": "18",
            }
            with crowd.walking():
                for way in ("empty", "updateData", "setData", "page"):
                    window = Window(playwright)
                    try:
                        page = window.page
                        if way == "page":
                            page.goto(url)
                            page.fill("#token", token)
                            page.keyboard.press("Enter")
                            page.locator(".row").first.wait_for()
                        else:
                            page.goto(f"{peer}/peer.html?{urlencode({**asked, 'way': way})}")
                            page.wait_for_function("window.ready")
                        if way in ("updateData", "setData"):
                            page.wait_for_function(f"window.applied >= {OBJECTS}")
                        page.wait_for_timeout(3_000)
                        rows.append({"map": way, **window.look(seconds, crowd)})
                        step(1)
                        if way == "page":
                            first = window.heap_mb()
                            page.wait_for_timeout(flat_s * 1_000)
                            grown = window.heap_mb() / first
                            step(1)
                    finally:
                        window.close()
    at = {row["map"]: row for row in rows}
    drawn = {name: row["renders_per_s"] for name, row in at.items()}
    cost = at["page"]["cpu_us_an_update"] / at["setData"]["cpu_us_an_update"]
    faster, full = drawn["page"] / drawn["updateData"], drawn["page"] / drawn["empty"]
    return Report(
        "page",
        {"objects": OBJECTS, "updates_per_s": PER_S, "seconds": seconds, "flat_s": flat_s},
        rows,
        [
            Claim(
                "renders beside MapLibre's updateData", faster, faster >= 1.5, bar=">= 1.5 times"
            ),
            Claim("renders beside an empty map", full, full >= 0.5, bar=">= 0.5 times"),
            Claim("renderer CPU an update beside setData", cost, cost <= 0.35, bar="<= 0.35 times"),
            Claim("heap at the end beside its beginning", grown, grown <= 1.1, bar="<= 1.1 times"),
        ],
    )
