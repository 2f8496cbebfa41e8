"""What does a node without neighbours pay? The CPU of updates with `[overlay]` and without.

Live: two services under the load of the benches `service` and `fanout`, as fast as updates are
acknowledged, in turns, so that a busy machine slows both alike; then another two, for two processes
of the same settings differ as well. And the broker alone, in one process, where no socket and no
disk hides a difference.
"""

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.fanout import WHERE, Process, Publisher, clients, serve
from roamcast.broker import Broker
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.sessions.publications import PublishFor
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect, Store, Stored
from roamcast.overlay.consumers.settings import EventSettings
from roamcast.overlay.overlay import OverlayNode
from roamcast.overlay.tables.feeding import TableSettings, standard_tables
from roamcast.sim.workloads._overlay_parts import key_pair

PEOPLE = 500
UPDATES = 500
"""Updates of one turn."""

TURNS = 41
STEP_US = 2_000
"""Between two updates: 500 a second."""

LISTENERS = {"service": 10, "fanout": 300}
"""Benches → clients that are told of every update."""

CONTEXTS = 50
PAIRS = 4
"""Pairs of services: where its memory lies makes one process some percent slower than another."""

LIVE_TURNS = 10
"""Turns of each pair."""

LIVE_S = 1.0
WARM_S = 2.0
NODE = '[overlay]\nnode = "b1"\n'
"""Settings of a node without neighbours."""


class Alone:
    """A broker, and a disk that is always there."""

    def __init__(self, node: OverlayNode | None) -> None:
        self.now = 1_700_000_000_000_000
        self._broker = Broker(
            "bench",
            epoch=self.now,
            now=self.now,
            load=lambda _: {},
            overlay=node,
            event_settings=EventSettings(),
            map_settings=MapSettings(),
        )
        self._ticket = 0
        self._draw = random.Random(7)
        self._carry(self._broker.advance(self.now))

    def turn(self, updates: int) -> float:
        """Publish so many updates; give the CPU seconds that took."""
        contexts = [self._context() for _ in range(updates)]
        began = time.process_time()
        for context in contexts:
            self.now += STEP_US
            self._ticket += 1
            self._carry(self._broker.receive(PublishFor(self._ticket, "bench", context), self.now))
            due = self._broker.deadline()
            if due is not None and due <= self.now:
                self._carry(self._broker.advance(self.now))
        return time.process_time() - began

    def _context(self) -> Context:
        person, room = self._draw.randrange(PEOPLE), self._draw.randrange(200)
        return Context(
            f"v{person}", f"campus/b1/{room}", None, {"type": "person"}, self.now + self._ticket
        )

    def _carry(self, effects: Any) -> None:
        todo: list[Effect] = list(effects)
        while todo:
            effect = todo.pop(0)
            if isinstance(effect, Store):
                todo += self._broker.receive(Stored(effect.token), self.now)


def alone() -> dict[str, Any]:
    """Give the CPU of an update without being a node, and as one without neighbours."""
    draw = random.Random(1)
    settings = TableSettings()
    node = OverlayNode(
        "b1", key_pair("b1")[0], {}, draw.random, lambda: draw.randbytes(16),
        tables=standard_tables(settings), states=True, places=("campus/b1",),
    )  # fmt: skip
    brokers = {"no node": Alone(None), "a node": Alone(node)}
    for broker in brokers.values():
        broker.turn(2 * PEOPLE)
    taken: dict[str, list[float]] = {name: [] for name in brokers}
    for _ in range(TURNS):
        for name, broker in brokers.items():
            taken[name].append(broker.turn(UPDATES))
    return _row("broker", 0, *([one / UPDATES * 1e6 for one in times] for times in taken.values()))


def alone_live(bench: str) -> dict[str, Any]:
    """Give the CPU of an update at a service that is no node, and at one that is."""
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(PAIRS):
        pair = _live_pair(LISTENERS[bench], node_first=number % 2 == 1)
        for times, more in zip(taken, pair, strict=True):
            times += more
    return _row(bench, LISTENERS[bench], *taken)


def _live_pair(listeners: int, *, node_first: bool) -> tuple[list[float], list[float]]:
    """Measure two services in turns; give the times of the one without `[overlay]` first."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        try:
            kinds = [("without", ""), ("node", NODE)]
            publishers = {}
            for name, more in reversed(kinds) if node_first else kinds:
                (Path(folder) / name).mkdir()
                service, url, token = serve(Path(folder) / name, more)
                clients(url.replace("http", "ws", 1) + "/session", token, listeners, WHERE)
                publishers[name] = service, Publisher(url, token)
            for _, publisher in publishers.values():
                publisher.flood(WARM_S, CONTEXTS)
            taken: dict[str, list[float]] = {name: [] for name in publishers}
            for _ in range(LIVE_TURNS):
                for name, (service, publisher) in publishers.items():
                    before_s = service.core_s()
                    sent, _ = publisher.flood(LIVE_S, CONTEXTS)
                    taken[name].append((service.core_s() - before_s) / sent * 1e6)
        finally:
            Process.end_all()
    return taken["without"], taken["node"]


def _row(what: str, listeners: int, without: list[float], alone: list[float]) -> dict[str, Any]:
    """Compare turn by turn: what slows the machine slows both of a turn alike."""
    ratios = [after / before for before, after in zip(without, alone, strict=True)]
    return {
        "alone": what,
        "listeners": listeners,
        "update without [overlay], us": round(statistics.median(without), 1),
        "update as a node alone, us": round(statistics.median(alone), 1),
        "ratio": round(statistics.median(ratios), 3),
    }
