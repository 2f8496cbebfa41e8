"""The overlay's parts of one broker, made together, in the order in which they hear events."""

from collections.abc import Callable, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from roamcast.model.machine import Draw
from roamcast.model.parts import Part
from roamcast.model.wire import Registry
from roamcast.overlay.custody.custody import Custody, CustodySettings
from roamcast.overlay.custody.messages import CUSTODY_MESSAGES
from roamcast.overlay.filters.forwarding import SwitchedForwarding
from roamcast.overlay.filters.messages import FILTER_MESSAGES
from roamcast.overlay.filters.part import NodeFilters
from roamcast.overlay.filters.planning import FilterSettings
from roamcast.overlay.flows.flows import Flows
from roamcast.overlay.flows.messages import FLOWS_MESSAGES
from roamcast.overlay.flows.settings import FlowSettings
from roamcast.overlay.handoff.handoff import Handoff, HandoffNode
from roamcast.overlay.handoff.messages import HANDOFF_MESSAGES
from roamcast.overlay.homes.homes import Homes, HomeView
from roamcast.overlay.homes.managers import HomeSettings
from roamcast.overlay.homes.messages import HOMES_MESSAGES
from roamcast.overlay.homes.records import ServedView
from roamcast.overlay.homes.serving import KIND, Serving
from roamcast.overlay.links.links import NodeLinks
from roamcast.overlay.links.neighbour import LinkView
from roamcast.overlay.links.proof import Sign, Verify, key_text, verify
from roamcast.overlay.links.settings import LinkSettings, NeighbourSettings
from roamcast.overlay.modulators.fetching import ModuleFetching
from roamcast.overlay.modulators.messages import MODULE_MESSAGES
from roamcast.overlay.states.plane import StatePlane
from roamcast.overlay.states.table import States
from roamcast.overlay.tables.directory import NodeEntry
from roamcast.overlay.tables.exchange import Exchange
from roamcast.overlay.tables.feeding import NodeView, TableFeeding, TableSettings
from roamcast.overlay.tables.messages import TABLES_MESSAGES
from roamcast.overlay.tables.table import Table
from roamcast.overlay.tables.wants import Wants
from roamcast.overlay.topology.discovery import (
    DISCOVERY_MESSAGES,
    Discovery,
    DiscoverySettings,
)
from roamcast.overlay.topology.messages import TOPOLOGY_MESSAGES
from roamcast.overlay.topology.topology import NodeTopology, TopologySettings

CARRIED: Final = Registry(
    (
        *TOPOLOGY_MESSAGES,
        *DISCOVERY_MESSAGES,
        *TABLES_MESSAGES,
        *CUSTODY_MESSAGES,
        *FILTER_MESSAGES,
        *FLOWS_MESSAGES,
        *HANDOFF_MESSAGES,
        *HOMES_MESSAGES,
        *MODULE_MESSAGES,
    )
)
"""What parts say to each other inside frames."""


class OverlaySettings(msgspec.Struct, frozen=True):
    """The settings of all layers."""

    links: LinkSettings = LinkSettings()
    topology: TopologySettings = TopologySettings()
    custody: CustodySettings = CustodySettings()
    tables: TableSettings = TableSettings()
    filters: FilterSettings = FilterSettings()


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
    flows: FlowSettings | None = None
    """How events flow; None: this node neither publishes nor delivers any, and passes none on."""
    wants: Wants | None = None
    """The table that events are routed by, if others fill it, too."""
    states: bool = False
    """Whether sessions may watch other nodes' maps, and others this one's."""
    handoff: HandoffNode | None = None
    """How consumers of events are handed over; None: each comes by its vector alone."""
    homes: HomeSettings | None = None
    """How clients' homes are chosen; None: they stay where they are."""
    verify: Verify = verify
    public_key: bytes = b""
    """What its neighbours know it by, for people to read."""
    addresses: tuple[str, ...] = ()
    """Where others that search for neighbours dial this node."""
    keys: Mapping[str, bytes] = {}
    """Nodes that may link with this one unasked, and their public keys; empty: no search."""
    discovery: DiscoverySettings = DiscoverySettings()
    may_dial: Callable[[str], bool] = lambda _: True
    """Whether an address that others told may be dialled."""
    places: tuple[str, ...] = ()
    """The places and polygons that it serves; none for all."""
    has_past: bool = False
    """Whether an archive that it reads may hold more than its store knows of."""
    url: str = ""
    """Where people reach it."""


def lone_events(
    name: str, flows: FlowSettings, handoff: HandoffNode, homes: HomeSettings, *, epoch: int
) -> tuple[Flows, Handoff, Serving, Homes, ModuleFetching]:
    """Make the event plane of a broker that is no node: it publishes and subscribes to itself."""
    topology = NodeTopology(name, TopologySettings())
    wants = Wants()
    made = Flows(topology, Exchange((wants,)), wants, flows, alone=epoch)
    alone = Serving(topology, homes), Homes(topology, homes, draw=lambda: 0.5)
    return made, Handoff(topology, made, handoff), *alone, ModuleFetching(topology)


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
    loads: Annotated[
        dict[str, float], Meta(description="how loaded this node and others are, as they say")
    ] = {}
    homes: Annotated[
        list[HomeView], Meta(description="clients whose home this is, and why it changed or stays")
    ] = []
    modulators: Annotated[
        list[ServedView], Meta(description="consumers with modulators, by consumer")
    ] = []


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
            known=node.keys,
            carried=CARRIED,
            draw=node.draw,
            nonce=node.nonce,
            sign=node.sign,
            verify=node.verify,
        )
        self.topology = NodeTopology(node.name, settings.topology)
        self.flows: Flows | None = None
        self.handoff: Handoff | None = None
        tables = node.tables
        wants = node.wants or next((one for one in tables if isinstance(one, Wants)), Wants())
        if (node.flows is not None or node.states) and wants not in tables:
            tables = (*tables, wants)
        self.filters = NodeFilters(self.topology, settings.filters, now=now)
        self.states: StatePlane | None = None
        if node.states:
            linger_us = settings.tables.linger_us
            states = States(wants, lambda: self.filters.matches, linger_us=linger_us)
            tables = (*tables, states)
            self.states = StatePlane(node.name, wants, states, self.filters, linger_us=linger_us)
        own = NodeEntry.of(node.name, node.url, node.places)
        self.feeding = TableFeeding(tables, own, settings.tables, has_past=node.has_past)
        self.exchange = Exchange(tables)
        serves = node.homes is not None and node.flows is not None
        kinds = node.kinds | {KIND} if serves else node.kinds
        self.custody = Custody(self.topology, settings.custody, draw=node.draw, kinds=kinds)
        if node.flows is not None:
            self.flows = Flows(self.topology, self.exchange, wants, node.flows)
            here = self.flows.home.wants
            self.flows.relay.forwarding = SwitchedForwarding(self.filters, wants, here)
            if node.handoff is not None:
                self.handoff = Handoff(self.topology, self.flows, node.handoff)
        self.homes: Homes | None = None
        self.serving: Serving | None = None
        self.modules: ModuleFetching | None = None
        if node.homes is not None and node.flows is not None:
            self.serving = Serving(self.topology, node.homes)
            self.modules = ModuleFetching(self.topology)
        if node.homes is not None:
            self.homes = Homes(self.topology, node.homes, draw=node.draw)
        search = Discovery(
            node.name,
            addresses=node.addresses,
            keys=node.keys,
            settings=node.discovery,
            draw=node.draw,
            configured=node.neighbours,
            may_dial=node.may_dial,
            listed=lambda: ((one.node, one.url) for one in self.feeding.nodes()),
        )
        self.parts: tuple[Part, ...] = (
            self.links,
            search,
            self.topology,
            self.feeding,
            self.exchange,
            self.custody,
            self.filters,
            *((self.states,) if self.states is not None else ()),
            *((self.flows,) if self.flows is not None else ()),
            *((self.handoff,) if self.handoff is not None else ()),
            *((self.serving,) if self.serving is not None else ()),
            *((self.homes,) if self.homes is not None else ()),
            *((self.modules,) if self.modules is not None else ()),
            *node.users,
        )

    def view(self) -> OverlayView:
        """Describe the node, its links, and what it knows of the others."""
        return OverlayView(
            self.links.node,
            key_text(self._public_key),
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
            {} if self.homes is None else self.homes.loads(),
            [] if self.homes is None else self.homes.view(),
            [] if self.serving is None else self.serving.view(),
        )
