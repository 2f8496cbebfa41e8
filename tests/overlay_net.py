"""Nodes joined by hand: messages are values in a list, disks are dicts, time is a number."""

import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from roamcast.model.machine import Effect, Input, Received, Send, Store, Stored, StoreFailed
from roamcast.model.parts import Part, Router
from roamcast.overlay.flows.settings import FlowSettings
from roamcast.overlay.handoff.handoff import HandoffNode
from roamcast.overlay.homes.managers import HomeSettings
from roamcast.overlay.links.settings import NeighbourSettings
from roamcast.overlay.overlay import Overlay, OverlayNode, OverlaySettings
from roamcast.overlay.tables.table import Table
from roamcast.overlay.tables.wants import Wants
from roamcast.overlay.topology.discovery import DiscoverySettings
from roamcast.sim.workloads._overlay_parts import key_pair
from roamcast.sim.workloads.overlay import LINGER_US, SETTINGS

EPOCH = 1_000_000


class OneNode(Router):
    """A node with a disk; it sees the events of its parts as effects, too."""

    def __init__(
        self,
        name: str,
        neighbours: Mapping[str, NeighbourSettings],
        *,
        now: int = 0,
        epoch: int = EPOCH,
        disk: dict[str, bytes] | None = None,
        settings: OverlaySettings = SETTINGS,
        tables: tuple[Table, ...] = (),
        users: tuple[Part, ...] = (),
        sign: Any = None,
        flows: FlowSettings | None = None,
        handoff: HandoffNode | None = None,
        homes: HomeSettings | None = None,
        addresses: tuple[str, ...] = (),
        keys: Mapping[str, bytes] | None = None,
        discovery: DiscoverySettings | None = None,
    ) -> None:
        draw = random.Random(f"{name} {epoch}")
        node = OverlayNode(
            name,
            sign or key_pair(name)[0],
            neighbours,
            draw.random,
            lambda: draw.randbytes(16),
            settings,
            tables,
            users,
            frozenset({"note"}),
            flows,
            None if flows is None else Wants(linger_us=LINGER_US),
            handoff=handoff,
            homes=homes,
            addresses=addresses,
            keys=keys or {},
            discovery=discovery or DiscoverySettings(),
        )
        self.name = name
        self.disk = {} if disk is None else disk
        self.refuses = False
        self.overlay = Overlay(node, epoch=epoch, now=now)
        super().__init__(self.overlay.parts)
        self.restore(
            lambda prefix: {k: v for k, v in self.disk.items() if k.startswith(prefix)}, now
        )


class Net:
    """Nodes by name; what they send arrives a millisecond later, unless the net is cut or lossy."""

    def __init__(self, *nodes: OneNode, loss: float = 0.0) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.now = 0
        self.out: list[tuple[str, Effect]] = []
        self.cut: set[tuple[str, str]] = set()
        self.frames: list[tuple[str, str, Any]] = []
        self._flying: deque[tuple[str, str, Any]] = deque()
        self._loss = loss
        self._draw = random.Random(7)

    def give(self, name: str, given: Input) -> list[Effect]:
        node = self.nodes[name]
        return self._perform(node, node.receive(given, self.now))

    def run(self, duration_us: int, step_us: int = 1_000) -> None:
        """Let time pass, a millisecond at a time while anything is on its way."""
        end = self.now + duration_us
        while self.now < end:
            for _ in range(len(self._flying)):
                source, to, message = self._flying.popleft()
                reached = to in self.nodes and (source, to) not in self.cut
                if reached and self._draw.random() >= self._loss:
                    self.give(to, Received(source, message))
            for node in self.nodes.values():
                due = node.deadline()
                if due is not None and due <= self.now:
                    self._perform(node, node.advance(self.now))
            due = [node.deadline() for node in self.nodes.values()]
            soon = min((at for at in due if at is not None), default=end)
            self.now += step_us if self._flying else max(1, min(soon, end) - self.now)

    def _perform(self, node: OneNode, effects: Sequence[Effect]) -> list[Effect]:
        seen = list(effects)
        for effect in effects:
            self.out.append((node.name, effect))
            if isinstance(effect, Send):
                self.frames.append((node.name, effect.to.name, effect.message))
                to = effect.to.name.removeprefix("http://")
                self._flying.append((node.name, to, effect.message))
            elif isinstance(effect, Store):
                if node.refuses:
                    answer: Input = StoreFailed(effect.token, "full")
                else:
                    for key, value in effect.writes:
                        if value is None:
                            node.disk.pop(key, None)
                        else:
                            node.disk[key] = value
                    answer = Stored(effect.token)
                seen += self._perform(node, node.receive(answer, self.now))
        return seen

    def steps(self, name: str) -> list[str]:
        """What the journal says of a node: step and reason."""
        return [
            f"{effect.step}: {effect.reason}" if effect.reason else effect.step
            for who, effect in self.out
            if who == name and type(effect).__name__ == "OverlayStep"
        ]


def beside(*names: str, dialled: bool = True) -> dict[str, NeighbourSettings]:
    """Neighbours with their right keys."""
    return {
        name: NeighbourSettings(key_pair(name)[1], (name,) if dialled else ()) for name in names
    }


def pair(**settings: Any) -> Net:
    """Two nodes that dial each other."""
    return Net(OneNode("a", beside("b"), **settings), OneNode("b", beside("a"), **settings))
