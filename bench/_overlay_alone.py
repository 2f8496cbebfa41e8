"""What does a node without neighbours pay? CPU of updates at a broker that is a node, and at one
that is not, in turns within one process, so that a busy machine slows both alike.
"""

import random
import statistics
import time
from typing import Any

from roamcast.broker import Broker
from roamcast.channels.sessions.publications import PublishFor
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect, Store, Stored
from roamcast.overlay.overlay import OverlayNode
from roamcast.overlay.tables.feeding import TableSettings, standard_tables
from roamcast.sim.workloads._overlay_parts import key_pair

PEOPLE = 500
UPDATES = 500
"""Updates of one turn."""

TURNS = 41
STEP_US = 2_000
"""Between two updates: 500 a second."""


class Alone:
    """A broker, and a disk that is always there."""

    def __init__(self, node: OverlayNode | None) -> None:
        self.now = 1_700_000_000_000_000
        self._broker = Broker(
            "bench", epoch=self.now, now=self.now, load=lambda _: {}, overlay=node
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
        tables=standard_tables(settings), places=("campus/b1",),
    )  # fmt: skip
    brokers = {"no node": Alone(None), "a node": Alone(node)}
    for broker in brokers.values():
        broker.turn(2 * PEOPLE)
    taken: dict[str, list[float]] = {name: [] for name in brokers}
    for _ in range(TURNS):
        for name, broker in brokers.items():
            taken[name].append(broker.turn(UPDATES))
    least = {name: statistics.median(times) / UPDATES for name, times in taken.items()}
    return {
        "update, no node, us": round(least["no node"] * 1e6, 1),
        "update, a node alone, us": round(least["a node"] * 1e6, 1),
    }
