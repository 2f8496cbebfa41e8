"""Items through a tree of seven brokers: filters everywhere, nowhere, and where two pay most.

The root publishes items of 32 major keys in batches, each on its disk; at each of four leaves a
session wants two of the keys. A run is over when every session has what it wants. CPU is that of
each service's process. Beside it one NATS server carries the same items to four subscribers that
have no content filters, so each gets all of them; it keeps nothing on a disk.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench._processes import Watch
from roamcast.lab.report import Claim, Report, Steps
from tests.nats_server import NatsServer
from tests.overlay_services import View, overlay, settings, tree, until
from tests.running_service import RunningService

TITLE = "filters: items a second through seven brokers, matched everywhere, nowhere, and placed"

PARENTS = {"a": "", "b": "a", "c": "a", "d": "b", "e": "b", "f": "c", "g": "c"}
LEAVES = "defg"
MAJORS = 32
BATCH = 500
PLACED_S = 150.0
"""Reports, a batch and its signals."""


def run(quick: bool, progress: Steps) -> Report:
    """Send the same items under each setting, and through NATS."""
    items = 2_000 if quick else 20_000
    rows: list[dict[str, Any]] = []
    with progress("runs", 4) as step:
        for filters in ("all", "0", "2"):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(_ours(Path(folder), filters, items))
            step(1)
        with tempfile.TemporaryDirectory() as folder:
            rows.append(asyncio.run(_nats(Path(folder), items)))
        step(1)
    return Report("filters", {"items": items, "nodes": 7, "majors": MAJORS}, rows, _claims(rows))


def _feature(number: int) -> dict[str, Any]:
    properties = {"place": "campus/a/1", "major": number % MAJORS, "number": number}
    return {
        "type": "Feature",
        "id": f"operator:{number}",
        "geometry": None,
        "properties": properties,
    }


def _publish(root: RunningService, items: range) -> None:
    for start in range(items.start, items.stop, BATCH):
        some = [_feature(number) for number in items[start - items.start :][:BATCH]]
        body = {"type": "FeatureCollection", "features": some}
        answer = root.ask("POST", "/contexts", root.operator, body)
        assert answer.status == 200, answer.body


def _ours(folder: Path, filters: str, items: int) -> dict[str, Any]:
    limits = "[limits]\nrequests_per_s = 1000000\nrequests_burst = 1000000\n"
    limits += "publications_per_client_max = 100000\n"
    more = f'filters = "{filters}"\n'
    with ExitStack() as within:
        nodes = tree(
            folder,
            PARENTS,
            within,
            lambda name, *near: settings(name, *near, more=more) + limits,
        )
        for node in nodes.values():
            until(lambda node=node: len(overlay(node)["graph"]) == len(PARENTS), "not in reach")
        views = {}
        for number, name in enumerate(LEAVES):
            held = within.enter_context(nodes[name].session(nodes[name].operator))
            views[name] = View(held, f"major IN ({2 * number}, {2 * number + 1})")
        warm = MAJORS * 20
        _publish(nodes["a"], range(warm))
        _read(views, warm)
        if filters == "2":
            _wait_for_placement(nodes["a"])
        watches = {name: Watch(node.process.pid) for name, node in nodes.items()}
        before = {name: _looked(watch) for name, watch in watches.items()}
        began = time.perf_counter()
        _publish_and_read(nodes["a"], range(warm, warm + items), views)
        seconds = time.perf_counter() - began
        spent = {name: _looked(watch) - before[name] for name, watch in watches.items()}
    return {
        "filters": filters,
        "items_per_s": items / seconds,
        "cpu_root_s": spent["a"],
        "cpu_inner_s": (spent["b"] + spent["c"]) / 2,
        "cpu_leaf_s": sum(spent[name] for name in LEAVES) / len(LEAVES),
        "received_by_a_leaf": 2 * items // MAJORS,
    }


def _looked(watch: Watch) -> float:
    watch.look()
    return watch.core_s


def _read(views: dict[str, View], items: int) -> None:
    for number, view in enumerate(views.values()):
        keys = (2 * number, 2 * number + 1)
        owed = sum(one % MAJORS in keys for one in range(items))
        view.until(lambda seen, owed=owed: len(seen) == owed, f"{owed} items are owed")


def _publish_and_read(root: RunningService, items: range, views: dict[str, View]) -> None:
    """Read while another thread publishes: who reads nothing for long is hung up."""
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(_publish, root, items)
        while not publishing.done():
            for view in views.values():
                view.read(0.05)
        publishing.result()
    _read(views, items.stop)


def _wait_for_placement(root: RunningService) -> None:
    """Wait until the root has planned, and two nodes match."""
    end = time.monotonic() + PLACED_S
    while True:
        plan = root.ask("GET", "/placement", root.operator).json["placement"]
        if sum(row["state"] == "active" for row in plan["nodes"]) == 2:
            return
        assert time.monotonic() < end, plan["reason"]
        time.sleep(0.5)


async def _nats(folder: Path, items: int) -> dict[str, Any]:
    import nats

    with NatsServer(folder) as server:
        clients = [await nats.connect(server.url) for _ in range(len(LEAVES) + 1)]
        counts = [0] * len(LEAVES)
        over = asyncio.Event()

        def taker(number: int) -> Callable[[Any], Awaitable[None]]:
            async def take(message: Any) -> None:
                del message
                counts[number] += 1
                if all(count == items for count in counts):
                    over.set()

            return take

        for number, client in enumerate(clients[1:]):
            await client.subscribe("items.>", cb=taker(number))
            await client.flush()
        watch = Watch(server.process.pid)
        before = _looked(watch)
        began = time.perf_counter()
        for number in range(items):
            body = json.dumps(_feature(number)).encode()
            await clients[0].publish(f"items.{number % MAJORS}", body)
        await clients[0].flush()
        await asyncio.wait_for(over.wait(), 120)
        seconds = time.perf_counter() - began
        spent = _looked(watch) - before
        for client in clients:
            await client.close()
    return {
        "filters": "NATS",
        "items_per_s": items / seconds,
        "cpu_root_s": spent,
        "cpu_inner_s": 0.0,
        "cpu_leaf_s": 0.0,
        "received_by_a_leaf": items,
    }


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    found = {row["filters"]: row for row in rows}
    leaf = {name: row["cpu_leaf_s"] for name, row in found.items()}
    return [
        Claim(
            "a leaf works less with filters everywhere than with none (CPU, all over none)",
            leaf["all"] / leaf["0"],
            leaf["all"] < leaf["0"],
            bar=1.0,
        ),
        Claim(
            "two filters in the right places spare leaves work (CPU, two over none)",
            leaf["2"] / leaf["0"],
            leaf["2"] < leaf["0"],
            bar=1.0,
        ),
    ]
