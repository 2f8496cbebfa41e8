"""The overlay's parts of one broker, made together, in the order in which they hear events."""

import base64
from collections.abc import Callable, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from roamcast.model.machine import Draw
from roamcast.model.parts import Part
from roamcast.model.wire import Registry
from roamcast.overlay.custody.custody import Custody, CustodySettings
from roamcast.overlay.custody.messages import CUSTODY_MESSAGES
from roamcast.overlay.links.links import NodeLinks
from roamcast.overlay.links.neighbour import LinkView
from roamcast.overlay.links.proof import Sign, Verify, verify
from roamcast.overlay.links.settings import LinkSettings, NeighbourSettings
from roamcast.overlay.tables.directory import NodeEntry
from roamcast.overlay.tables.exchange import Exchange
from roamcast.overlay.tables.feeding import NodeView, TableFeeding, TableSettings
from roamcast.overlay.tables.messages import TABLES_MESSAGES
from roamcast.overlay.tables.table import Table
from roamcast.overlay.topology.discovery import Discovery, DiscoverySettings
from roamcast.overlay.topology.messages import TOPOLOGY_MESSAGES
from roamcast.overlay.topology.topology import NodeTopology, TopologySettings

CARRIED: Final = Registry((*TOPOLOGY_MESSAGES, *TABLES_MESSAGES, *CUSTODY_MESSAGES))
"""What parts say to each other inside frames."""


class OverlaySettings(msgspec.Struct, frozen=True):
    """The settings of all layers."""

    links: LinkSettings = LinkSettings()
    topology: TopologySettings = TopologySettings()
    custody: CustodySettings = CustodySettings()
    tables: TableSettings = TableSettings()


class OverlayNode(msgspec.Struct, frozen=True):
    """What makes a broker a node: its name and key, its neighbours, its tables and their users."""

    name: str
    sign: Sign
    neighbours: Mapping[str, NeighbourSettings]
    draw: Draw
    nonce: Callable[[], bytes]
    settings: OverlaySettings = OverlaySettings()
    tables: tuple[Table, ...] = ()
    users: tuple[Part, ...] = ()
    """Parts that handle parcels and ask tables; they hear events last."""
    kinds: frozenset[str] = frozenset()
    """The kinds of parcels that they handle."""
    verify: Verify = verify
    public_key: bytes = b""
    """What its neighbours know it by, for people to read."""
    address: str = ""
    """Where others dial this node; needed if it looks for neighbours."""
    keys: Mapping[str, bytes] = {}
    """Nodes that a search may make neighbours, and their public keys; empty: no search."""
    discovery: DiscoverySettings = DiscoverySettings()
    places: tuple[str, ...] = ()
    """The places that it serves; none for all."""
    url: str = ""
    """Where people reach it."""


class OverlayView(msgspec.Struct, frozen=True):
    """The overlay as one node sees it, for people."""

    node: str
    key: Annotated[str, Meta(description="what its neighbours set as its key")]
    epoch: Annotated[int, Meta(description="which life of the node this is")]
    links: list[LinkView]
    graph: Annotated[dict[str, list[str]], Meta(description="who is linked with whom")]
    tree: Annotated[list[str], Meta(description="our links of the tree that all share")]
    nodes: Annotated[list[NodeView], Meta(description="who serves which places, and where")]
    held: Annotated[dict[str, tuple[int, int]], Meta(description="what is held, and its bound")]


class Overlay:
    """The parts of one node."""

    def __init__(self, node: OverlayNode, *, epoch: int, now: int) -> None:
        settings = node.settings
        self._public_key = node.public_key
        self.links = NodeLinks(
            node.name,
            epoch=epoch,
            now=now,
            settings=settings.links,
            neighbours=node.neighbours,
            carried=CARRIED,
            draw=node.draw,
            nonce=node.nonce,
            sign=node.sign,
            verify=node.verify,
        )
        self.topology = NodeTopology(node.name, settings.topology)
        self.feeding = TableFeeding(
            node.tables, NodeEntry(node.name, node.url, node.places), settings.tables
        )
        self.exchange = Exchange(node.tables)
        self.custody = Custody(self.topology, settings.custody, draw=node.draw, kinds=node.kinds)
        search = Discovery(
            node.name,
            address=node.address,
            keys=node.keys,
            settings=node.discovery,
            draw=node.draw,
        )
        self.parts: tuple[Part, ...] = (
            self.links,
            *((search,) if node.keys else ()),
            self.topology,
            self.feeding,
            self.exchange,
            self.custody,
            *node.users,
        )

    def view(self) -> OverlayView:
        """Describe the node, its links, and what it knows of the others."""
        return OverlayView(
            self.links.node,
            "ed25519:" + base64.b64encode(self._public_key).decode(),
            self.links.epoch,
            self.links.view(),
            {node: sorted(others) for node, others in sorted(self.topology.graph().items())},
            sorted(self.topology.tree_links),
            self.feeding.nodes(),
            {
                f"{part.part}: {what}": (int(held), int(bound))
                for part in self.parts
                for what, (held, bound) in part.occupancy().items()
            },
        )
