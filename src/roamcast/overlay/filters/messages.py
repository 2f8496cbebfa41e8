"""What nodes say about filters over links."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from roamcast.model.wire import Count, Message, messages_of
from roamcast.overlay.filters.states import FilterState
from roamcast.overlay.links.messages import NodeName

REPORTS_MAX: Final = 200
"""Reports of one message: with names of 100 letters it fits a frame."""

OrderKind = Literal["activate", "passivate", "migrate", "spawn"]


class Rank(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """Which batch orders belong to: the higher number wins, among equal ones the later name.

    After a partition two roots may have given the same number.
    """

    number: Count = 0
    root: Annotated[str, Meta(max_length=100)] = ""


class NodeReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one node says of itself. Of two reports the one with the higher version is newer."""

    node: NodeName
    epoch: Count
    number: Count
    wanted: Annotated[
        Count, Meta(description="sampled items from above that its side of the tree wanted so far")
    ]
    state: FilterState
    rank: Annotated[Rank, Meta(description="the last batch it obeyed")]
    changed_us: Annotated[Count, Meta(description="when its state last changed, by its clock")] = 0

    @property
    def version(self) -> tuple[int, int]:
        """Which life of the node, and the how many-th report of it."""
        return self.epoch, self.number


class FlowReports(Message, frozen=True, tag="filters.reports", gc=False):
    """Node to its parent in the shared tree: its own report, and what its children sent."""

    reports: Annotated[tuple[NodeReport, ...], Meta(max_length=REPORTS_MAX)]


class ReportsWanted(Message, frozen=True, tag="filters.wanted", gc=False):
    """Node to a child in the shared tree, when the tree or their link is new: report everything."""


class FilterOrder(Message, frozen=True, tag="filters.order", gc=False):
    """The root to a node, hop by hop: what its filter does, and for which node."""

    rank: Rank
    to: NodeName
    kind: OrderKind
    target: NodeName


class InstallFilter(Message, frozen=True, tag="filters.install", gc=False):
    """A filter that migrates or spawns to its target, hop by hop: match from now on."""

    rank: Rank
    to: NodeName
    source: NodeName


class FilterInstalled(Message, frozen=True, tag="filters.installed", gc=False):
    """The answer: this node matches, so the source need not any more."""

    rank: Rank
    to: NodeName
    node: NodeName


FILTER_MESSAGES: Final = messages_of(__name__)
