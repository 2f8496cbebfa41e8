"""Modules from other nodes: a home that lacks one seeks it, has its bytes, and keeps them.

Who has a module is asked over the tree; the first to answer gives it, piece by piece, each asked
for: what is lost is asked for again. A module is known by the hash of its bytes, so it does not
matter who gives it. It is fetched once, however many wait for it.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, ClassVar, Final

import msgspec

from roamcast.model.machine import Effect
from roamcast.model.parts import Occupancy, Part, Timers
from roamcast.model.records import OverlayStep
from roamcast.overlay.events import CameByLink, SendOnLink
from roamcast.overlay.modulators.events import (
    LookUpModule,
    ModuleLookedUp,
    ModuleMissing,
    ModuleReady,
    ModuleShelved,
    NeedModule,
    ShelveModule,
)
from roamcast.overlay.modulators.messages import (
    PIECE_BYTES,
    ModuleHad,
    ModulePiece,
    ModuleSought,
    ModuleWanted,
)
from roamcast.overlay.topology.messages import HOPS_MAX
from roamcast.overlay.topology.topology import NodeTopology

FETCHES_MAX: Final = 16
"""Modules that are fetched at the same time; others wait for their turn."""

WAITING_MAX: Final = 1_000
AGAIN_US: Final = 500_000
"""After so long without a word a node is asked again, …"""

TRIES_MAX: Final = 4
"""… and after so many times another is sought; a module that nobody has is missing then."""

NOBODY: Final = "no node in reach has this module: put it at one with POST /modules"
FULL: Final = "too many modules are fetched: try again"

Routed = ModuleHad | ModuleWanted | ModulePiece


class ModuleFetch:
    """One module on its way here."""

    def __init__(self) -> None:
        self.giver = ""
        """Who has it, once somebody said so."""
        self.size = 0
        self.code = bytearray()
        self.tries = 0
        """Questions since the last word."""
        self.shunned: set[str] = set()
        """Nodes that said to have it, and did not give it."""

    def shun(self) -> None:
        """Seek another node to have it from."""
        self.shunned.add(self.giver)
        self.giver, self.tries = "", 0
        self.code.clear()


class ModuleFetching(Part):
    """The modules that homes of this node lack, and what other nodes ask for."""

    part: ClassVar[str] = "modules"
    inputs: ClassVar = (NeedModule, ModuleLookedUp, ModuleShelved)
    carried: ClassVar = {CameByLink: (ModuleSought, ModuleHad, ModuleWanted, ModulePiece)}

    def __init__(self, topology: NodeTopology) -> None:
        self.node = topology.node
        self.fetches: dict[str, ModuleFetch] = {}
        self._topology = topology
        self._looking: dict[str, None] = {}
        """Needed; it may be on the shelf."""
        self._waiting: dict[str, None] = {}
        """It is not, and others are fetched before it."""
        self.timers: Timers[str] = Timers()

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take what homes need, what the shelf has, what other nodes say."""
        match given:
            case NeedModule(module):
                return self._need(module)
            case ModuleLookedUp():
                return self._looked_up(given, now)
            case ModuleShelved(module, refused):
                return self._shelved(module, refused, now)
            case CameByLink(link, ModuleSought() as sought):
                return self._sought(link, sought)
            case CameByLink(_, ModuleHad() | ModuleWanted() | ModulePiece() as routed):
                return self._routed(routed, now)
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        """Ask again."""
        effects: list[Effect] = []
        for module in list(self.timers.due(now)):
            fetch = self.fetches[module]
            if fetch.tries >= TRIES_MAX:
                if not fetch.giver:
                    effects += self._missing(module, NOBODY, now)
                    continue
                fetch.shun()
            effects += self._ask(module, now)
        return effects

    def occupancy(self) -> Occupancy:
        """How much is held of what, and the bound of each."""
        return {
            "fetches": (len(self.fetches), FETCHES_MAX),
            "waiting": (len(self._looking) + len(self._waiting), WAITING_MAX),
        }

    # --- what is needed here

    def _need(self, module: str) -> list[Effect]:
        if module in self.fetches or module in self._waiting or module in self._looking:
            return []
        if len(self._looking) + len(self._waiting) >= WAITING_MAX:
            return [ModuleMissing(module, FULL)]
        self._looking[module] = None
        return [LookUpModule(module)]

    def _looked_up(self, found: ModuleLookedUp, now: int) -> list[Effect]:
        module, to = found.module, found.to
        if to and found.size:
            if found.piece:
                return self._topology.towards(
                    ModulePiece(to, self.node, module, found.at, found.piece)
                )
            return self._topology.towards(ModuleHad(to, self.node, module, found.size))
        if to or module not in self._looking:
            return []
        del self._looking[module]
        if found.size:
            return [ModuleReady(module)]
        self._waiting[module] = None
        return self._begin(now)

    def _begin(self, now: int) -> list[Effect]:
        """Fetch what waits, as far as there is room."""
        effects: list[Effect] = []
        while self._waiting and len(self.fetches) < FETCHES_MAX:
            module = next(iter(self._waiting))
            del self._waiting[module]
            self.fetches[module] = ModuleFetch()
            effects += self._ask(module, now)
        return effects

    def _ask(self, module: str, now: int) -> list[Effect]:
        """Seek a node that has it, or ask that one for the next bytes."""
        fetch = self.fetches[module]
        self.timers.set(module, now + AGAIN_US)
        fetch.tries += 1
        if fetch.giver:
            wanted = ModuleWanted(fetch.giver, self.node, module, len(fetch.code))
            return self._topology.towards(wanted)
        links = self._topology.tree_links
        if not links:  # alone it need not be sought again
            fetch.tries = TRIES_MAX
        return [SendOnLink(link, ModuleSought(self.node, module)) for link in links]

    def _missing(self, module: str, reason: str, now: int) -> list[Effect]:
        self._end(module)
        step = OverlayStep("modules", "missing", reason=reason)
        return [ModuleMissing(module, reason), step, *self._begin(now)]

    def _end(self, module: str) -> None:
        self.fetches.pop(module, None)
        self.timers.cancel(module)

    def _had(self, found: ModuleHad, now: int) -> list[Effect]:
        fetch = self.fetches.get(found.module)
        if fetch is None or fetch.giver or found.origin in fetch.shunned or not found.size:
            return []
        fetch.giver, fetch.size, fetch.tries = found.origin, found.size, 0
        return self._ask(found.module, now)

    def _came(self, given: ModulePiece, now: int) -> list[Effect]:
        """Take the next bytes; when all are here, they must be the module's."""
        module = given.module
        fetch = self.fetches.get(module)
        if fetch is None or given.origin != fetch.giver or given.at != len(fetch.code):
            return []
        if not given.piece or len(fetch.code) + len(given.piece) > fetch.size:
            return []
        fetch.code += given.piece
        fetch.tries = 0
        if len(fetch.code) < fetch.size:
            return self._ask(module, now)
        code = bytes(fetch.code)
        if sha256(code).hexdigest() != module:
            fetch.shun()
            return [OverlayStep("modules", "forged", given.origin), *self._ask(module, now)]
        self.timers.cancel(module)
        return [ShelveModule(module, code), OverlayStep("modules", "fetched", given.origin)]

    def _shelved(self, module: str, refused: str, now: int) -> list[Effect]:
        if module not in self.fetches:
            return []
        if refused:
            return self._missing(module, refused, now)
        self._end(module)
        return [ModuleReady(module), *self._begin(now)]

    # --- what others need

    def _sought(self, link: str, sought: ModuleSought) -> list[Effect]:
        """Look whether it is here; ask on meanwhile: it is cheaper than waiting for the disk."""
        if sought.origin == self.node:
            return []
        effects: list[Effect] = [LookUpModule(sought.module, sought.origin)]
        if sought.hops < HOPS_MAX:
            onwards = msgspec.structs.replace(sought, hops=sought.hops + 1)
            effects += [
                SendOnLink(other, onwards) for other in self._topology.tree_links if other != link
            ]
        return effects

    def _routed(self, message: Routed, now: int) -> list[Effect]:
        if message.to != self.node:
            return self._topology.towards(message)
        match message:
            case ModuleHad():
                return self._had(message, now)
            case ModulePiece():
                return self._came(message, now)
        return [LookUpModule(message.module, message.origin, message.at, PIECE_BYTES)]
