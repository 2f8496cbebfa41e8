"""The exchange of tables as a part of a broker: offers go over the links of the shared tree.

A tree has no cycle, so what a table offers to one link from what it knows by the others (split
horizon) never comes back. When the tree begins to run over a link, both ends ask for everything and
offer everything; afterwards only changes travel, for a link keeps their order. An offer that comes
over a link outside the tree is not taken: the trees of two nodes differ while news travels.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

import msgspec

from roamcast.errors import InputError, LimitError
from roamcast.model.machine import Effect, earliest
from roamcast.model.parts import Occupancy, Part
from roamcast.model.records import OverlayStep
from roamcast.model.wire import Message
from roamcast.overlay.events import (
    CameByLink,
    CutLink,
    NeighbourDown,
    NeighbourFull,
    NeighbourReady,
    NeighbourUp,
    SendOnLink,
    TablesTouched,
    TreeChanged,
)
from roamcast.overlay.links.chunks import Assembly, chunks_of
from roamcast.overlay.tables.messages import (
    TABLES_MESSAGES,
    TableChunk,
    TableReceipt,
    TablesWanted,
)
from roamcast.overlay.tables.table import PAGE_BYTES_MAX, PAGE_ENTRIES_MAX, Offer, Table

OFFER_BYTES_MAX: Final = 2 * PAGE_BYTES_MAX + 16 * PAGE_ENTRIES_MAX
"""A page whose last entry is as large as can be, and the heads of its entries."""

PATIENCE_US: Final = 60_000_000
"""The chunks of a page are sent together: a neighbour whose next one takes longer has stalled."""

PAGES_BURST: Final = 8
"""Pages to one link at once; the rest follows in the next moment, unless the link is full."""

_READ: Final = msgspec.msgpack.Decoder(Offer)


class _Incoming:
    """What one neighbour offers of one table while the tree runs over the link."""

    def __init__(self, upto: int) -> None:
        self.upto = upto
        """The last version that was given to the table; versions of its own life are lower."""
        self.shift: int | None = None
        """Added to the neighbour's versions; None until its offer began from the start."""


class _Coming:
    """A page of an offer whose last chunk is not there yet."""

    def __init__(self, table: str, now: int) -> None:
        self.table = table
        self.until = now + PATIENCE_US
        self.number = 0
        self.assembly = Assembly(OFFER_BYTES_MAX)


class Exchange(Part):
    """All tables of this broker, and the links they are offered to."""

    part: ClassVar[str] = "exchange"
    inputs: ClassVar = (
        NeighbourUp, NeighbourDown, NeighbourFull, NeighbourReady, TreeChanged, TablesTouched,
    )  # fmt: skip
    carried: ClassVar = {CameByLink: TABLES_MESSAGES}

    def __init__(self, tables: Iterable[Table]) -> None:
        self.tables = {table.name: table for table in tables}
        self.links: dict[str, None] = {}
        """Links of the tree that are up."""
        self._up: dict[str, None] = {}
        self._tree: tuple[str, ...] = ()
        self._full: set[str] = set()
        self._incoming: dict[tuple[str, str], _Incoming] = {}
        self._coming: dict[str, _Coming] = {}
        self._more_at: int | None = None
        self._busy = [table for table in self.tables.values() if table.busy_alone]

    # --- the part

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take what happened to links and tree, and what neighbours offer."""
        if isinstance(given, CameByLink) and given.node not in self.links:
            return ()  # before time passes: what that makes due is sent in the same step
        for table in self.tables.values():
            table.advance(now)
        effects: list[Effect] = []
        match given:
            case CameByLink(node, message):
                effects = self._came(node, message, now)
            case TreeChanged(links):
                self._tree = links
                effects = self._choose()
            case NeighbourUp(node):
                self._up[node] = None
                effects = self._choose()
            case NeighbourDown(node):
                self._up.pop(node, None)
                self._full.discard(node)
                effects = self._choose()
            case NeighbourFull(node):
                self._full.add(node)
            case NeighbourReady(node):
                self._full.discard(node)
        return [*effects, *self._pump(now)]

    def _came(self, link: str, message: Message, now: int) -> list[Effect]:
        if isinstance(message, TableChunk):
            return self._chunk(link, message, now)
        if isinstance(message, TablesWanted):
            self._begin(link)
        elif isinstance(message, TableReceipt) and message.table in self.tables:
            self.tables[message.table].confirmed(link, message.version)
        return []

    def advance(self, now: int) -> Sequence[Effect]:
        """Let entries that have lingered go, and offer what that changes; notice who stalls."""
        for table in self.tables.values():
            table.advance(now)
        stalled = [link for link, coming in self._coming.items() if coming.until <= now]
        for link in stalled:
            del self._coming[link]
        cut = [CutLink(link, "stalled in the middle of an offer") for link in stalled]
        return [*cut, *self._pump(now)]

    def deadline(self) -> int | None:
        """When some table has something to do."""
        # Asked after every input of the broker: without links only some tables have work.
        first = self._more_at
        if self._coming:
            first = earliest(first, *(one.until for one in self._coming.values()))
        tables = self.tables.values() if self._incoming else self._busy
        for table in tables:
            due = table.deadline()
            if due is not None and (first is None or due < first):
                first = due
        return first

    def occupancy(self) -> Occupancy:
        """How much all tables hold."""
        held: Occupancy = {}
        for table in self.tables.values():
            held |= table.occupancy()
        most = max((len(one.assembly) for one in self._coming.values()), default=0)
        return {**held, "coming in": (most, OFFER_BYTES_MAX)}

    # --- which links

    def _choose(self) -> list[Effect]:
        """Use the links of the tree that are up; a link in a new session begins anew."""
        wanted = [link for link in self._tree if link in self._up]
        for link in [link for link in self.links if link not in wanted]:
            del self.links[link]
            self._coming.pop(link, None)
            for table in self.tables.values():
                table.drop(link)
        effects: list[Effect] = []
        for link in wanted:
            if link not in self.links:
                self.links[link] = None
                for name in self.tables:
                    known = self._incoming.get((name, link))
                    self._incoming[name, link] = _Incoming(known.upto if known else 0)
                self._begin(link)
                effects.append(SendOnLink(link, TablesWanted()))
                effects.append(OverlayStep("tables", "begun", link))
        return effects

    def _begin(self, link: str) -> None:
        for table in self.tables.values():
            table.reset(link)

    # --- offers

    def _pump(self, now: int) -> list[Effect]:
        """Send what tables have to offer, as far as links allow."""
        effects: list[Effect] = []
        self._more_at = None
        for link in self.links:
            if link in self._full:
                continue
            for table in self.tables.values():
                for _ in range(PAGES_BURST):
                    offer = table.offer(link)
                    if offer is None:
                        break
                    effects += [
                        SendOnLink(link, TableChunk(table.name, number, chunk, last))
                        for number, (chunk, last) in enumerate(
                            chunks_of(msgspec.msgpack.encode(offer))
                        )
                    ]
                else:
                    self._more_at = now + 1
        return effects

    def _chunk(self, link: str, message: TableChunk, now: int) -> list[Effect]:
        coming = self._coming.get(link)
        if message.number == 0:
            coming = self._coming[link] = _Coming(message.table, now)
        elif coming is None:
            return []  # its beginning came before the tree ran over this link for us
        if (coming.table, coming.number) != (message.table, message.number):
            return [CutLink(link, "garbage: an offer within an offer")]
        coming.number += 1
        coming.until = now + PATIENCE_US
        try:
            whole = coming.assembly.add(message.chunk, message.last)
            if whole is None:
                return []
            del self._coming[link]
            if message.table not in self.tables:
                return []  # a table of a newer version: never confirmed, so never built upon
            return self._offered(link, message.table, _READ.decode(whole))
        except (InputError, LimitError, msgspec.DecodeError) as error:
            return [CutLink(link, f"{message.table}: {error}"[:200])]

    def _offered(self, link: str, name: str, offer: Offer) -> list[Effect]:
        incoming = self._incoming[name, link]
        if incoming.shift is None:
            if not (offer.full and offer.page == 0):
                return []  # sent before the tree ran over this link for us: all of it follows
            incoming.shift = max(0, incoming.upto + 1 - offer.version)
        # 0103: versions count within one session; a neighbour's next life goes on above its last.
        version = offer.version + incoming.shift
        self.tables[name].take(link, msgspec.structs.replace(offer, version=version))
        incoming.upto = max(incoming.upto, version)
        if not offer.last:
            return []
        return [SendOnLink(link, TableReceipt(name, offer.version))]
