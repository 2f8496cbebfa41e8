"""Modules between nodes: sought over the tree, had in pieces, kept once, whoever lies or falls."""

from collections import deque
from hashlib import sha256
from random import Random

import pytest

from roamcast.overlay.events import CameByLink, SendOnLink
from roamcast.overlay.modulators import fetching
from roamcast.overlay.modulators.events import (
    LookUpModule,
    ModuleLookedUp,
    ModuleMissing,
    ModuleReady,
    ModuleShelved,
    NeedModule,
    ShelveModule,
)
from roamcast.overlay.modulators.fetching import AGAIN_US, FETCHES_MAX, WAITING_MAX, ModuleFetching
from roamcast.overlay.modulators.messages import ModuleHad, ModulePiece
from roamcast.overlay.topology.topology import NodeTopology

CODE = b"\0asm" + Random(1).randbytes(130_000)
NAME = sha256(CODE).hexdigest()


class Line:
    """The topology of nodes a - b - c, as one of them sees it."""

    def __init__(self, node, names="abc"):
        self.node = node
        self._names = names

    def hop(self, to):
        here, there = self._names.index(self.node), self._names.index(to)
        return self._names[here + (1 if there > here else -1)] if here != there else None

    towards = NodeTopology.towards

    @property
    def tree_links(self):
        at = self._names.index(self.node)
        return tuple(self._names[k] for k in (at - 1, at + 1) if 0 <= k < len(self._names))


class Nodes:
    """Parts in a line with shelves; messages may be lost, and shelves may lie."""

    def __init__(self, names="abc", loss=0.0):
        self.parts = {name: ModuleFetching(Line(name, names)) for name in names}
        self.shelves = {name: {} for name in names}
        self.out = []
        self.now = 0
        self.loss = loss
        self.draw = Random(3)
        self.pieces = 0
        self._flying = deque()

    def give(self, name, given):
        self._do(name, self.parts[name].receive(given, self.now))

    def _do(self, name, effects):
        for effect in effects:
            match effect:
                case SendOnLink(to, message):
                    self.pieces += isinstance(message, ModulePiece) and message.to == to
                    if self.draw.random() >= self.loss:
                        self._flying.append((to, CameByLink(name, message)))
                case LookUpModule(module, to, at, most):
                    code = self.shelves[name].get(module, b"")
                    piece = code[at : at + most]
                    self.give(name, ModuleLookedUp(module, to, at, len(code), piece))
                case ShelveModule(module, code):
                    self.shelves[name][module] = code
                    self.give(name, ModuleShelved(module))
                case ModuleReady() | ModuleMissing():
                    self.out.append((name, effect))

    def run(self, tries=1):
        for _ in range(tries):
            while self._flying:
                self.give(*self._flying.popleft())
            self.now += AGAIN_US
            for name, part in self.parts.items():
                self._do(name, part.advance(self.now))


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_a_module_comes_over_two_hops_once_for_all_who_need_it(loss):
    nodes = Nodes(loss=loss)
    nodes.shelves["c"][NAME] = CODE
    nodes.give("a", NeedModule(NAME))
    nodes.give("a", NeedModule(NAME))
    nodes.run(60)
    assert nodes.out == [("a", ModuleReady(NAME))]
    assert nodes.shelves["a"] == {NAME: CODE}
    assert not nodes.shelves["b"]
    if not loss:
        assert nodes.pieces == 3
    nodes.give("a", NeedModule(NAME))
    assert nodes.out[1:] == [("a", ModuleReady(NAME))]
    assert nodes.pieces == 3 or loss
    assert not nodes.parts["a"].fetches


def test_a_module_that_nobody_has_is_missing_after_a_while_and_alone_sooner():
    nodes = Nodes()
    nodes.give("a", NeedModule(NAME))
    assert not nodes.out
    nodes.run(5)
    assert nodes.out == [("a", ModuleMissing(NAME, fetching.NOBODY))]
    alone = Nodes("a")
    alone.give("a", NeedModule(NAME))
    alone.run(1)
    assert alone.out == [("a", ModuleMissing(NAME, fetching.NOBODY))]


def test_bytes_that_are_not_the_module_are_shunned_and_another_node_gives_it():
    nodes = Nodes()
    nodes.shelves["b"][NAME] = CODE[:-1] + b"?"
    nodes.give("a", NeedModule(NAME))
    nodes.run(5)
    assert nodes.out == [("a", ModuleMissing(NAME, fetching.NOBODY))]
    assert NAME not in nodes.shelves["a"]
    nodes.shelves["c"][NAME] = CODE
    nodes.give("a", NeedModule(NAME))
    nodes.run(5)
    assert nodes.out[1:] == [("a", ModuleReady(NAME))]
    assert nodes.shelves["a"] == {NAME: CODE}


def test_a_node_that_says_it_has_it_and_gives_nothing_is_left():
    nodes = Nodes()
    nodes.give("a", NeedModule(NAME))
    nodes.give("a", CameByLink("b", ModuleHad("a", "b", NAME, len(CODE))))
    nodes.run(3)
    assert nodes.parts["a"].fetches[NAME].giver == "b"
    nodes.shelves["c"][NAME] = CODE
    nodes.run(10)
    assert nodes.out == [("a", ModuleReady(NAME))]


def test_what_was_not_asked_for_changes_nothing():
    part = ModuleFetching(Line("a"))
    piece = ModulePiece("a", "b", NAME, 0, CODE[:100])
    assert not part.receive(CameByLink("b", piece), 0)
    part.receive(NeedModule(NAME), 0)
    part.receive(ModuleLookedUp(NAME, "", 0), 0)
    part.receive(CameByLink("b", ModuleHad("a", "b", NAME, 50)), 0)
    assert not part.receive(CameByLink("b", piece), 0), "it is longer than was said"
    assert not part.fetches[NAME].code


def test_fetches_and_waiting_modules_are_bounded():
    part = ModuleFetching(Line("a"))
    names = [f"{n:064x}" for n in range(WAITING_MAX + FETCHES_MAX + 1)]
    for name in names[: WAITING_MAX + FETCHES_MAX]:
        part.receive(NeedModule(name), 0)
        part.receive(ModuleLookedUp(name, "", 0), 0)
    assert part.occupancy() == {
        "fetches": (FETCHES_MAX, FETCHES_MAX),
        "waiting": (WAITING_MAX, WAITING_MAX),
    }
    assert list(part.receive(NeedModule(names[-1]), 0)) == [ModuleMissing(names[-1], fetching.FULL)]
    for _ in range(8):
        part.advance(10**12)
    assert len(part.fetches) == FETCHES_MAX
