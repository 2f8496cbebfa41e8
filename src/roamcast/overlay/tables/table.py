"""The protocol of all tables: offers between neighbours, and the question what lies beyond a link.

A table tells each neighbour what lies on its own side of the link: its local entries and those it
heard on its other links (split horizon). It does so in *offers*, numbered by a version that only
rises. One version is under way per link: `offer` gives its pages one after the other, then None
until the version is confirmed. The receiver applies a version as a whole when its last page is
there, so it never holds half a table.

`reset` comes first for every link: at each hello, and again whenever the tree of links changes. A
link from which no full offer was heard is named for every question: unknown means yes. Links that
the exchange no longer uses are dropped; their entries linger, then go.

Time comes by `advance` alone, which the machine calls before anything else at each input.
"""

from typing import Annotated, Any, Final, Protocol

import msgspec
from msgspec import Meta

from roamcast.model.parts import Occupancy
from roamcast.model.time import MICROSECONDS
from roamcast.model.wire import Count, Name

PAGE_BYTES_MAX: Final = 256 * 1024
"""Bytes of the entries of one page; far below a frame, so a page never delays a parcel for long."""

ENTRY_BYTES_MAX: Final = 128 * 1024
"""Bytes of one entry's value; the longest filter fits."""

PAGE_ENTRIES_MAX: Final = 1_024
"""Entries and removals of one page."""

PAGES_MAX: Final = 4_096
"""Pages of one version; a table that needs more is refused."""

LINKS_MAX: Final = 256
"""Links of one table, dropped ones that still linger included."""

LINGER_US: Final = 30 * MICROSECONDS
"""How long something stays in a table after everyone who needed to know of it does."""

EPOCH_MAX: Final = 2**31 - 1
VERSIONS_PER_EPOCH: Final = 2**32
"""Versions begin at epoch · 2³², so those of a restarted or taken-over node are newer."""


class TableEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry: its key and its value, encoded by the table itself; never a pickle."""

    key: Name
    value: Annotated[bytes, Meta(max_length=ENTRY_BYTES_MAX)]


class Offer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One page of one version. `full`: the version replaces all that was offered before."""

    version: Count
    full: bool
    page: Annotated[int, Meta(ge=0, lt=PAGES_MAX)]
    last: bool
    add: Annotated[tuple[TableEntry, ...], Meta(max_length=PAGE_ENTRIES_MAX)] = ()
    """New entries, and new values of known ones."""
    remove: Annotated[tuple[Name, ...], Meta(max_length=PAGE_ENTRIES_MAX)] = ()


class Table(Protocol):
    """What lies beyond each link of a node, by one kind of question."""

    name: str
    busy_alone: bool
    """Whether time changes it though no link ever began."""

    def reset(self, link: str) -> None:
        """Begin or begin again with a link: the next offer to it is full.

        What it offered stays until its own full offer replaces it.
        """
        ...

    def drop(self, link: str) -> None:
        """Stop offering to a link; what it offered lingers, then goes."""
        ...

    def offer(self, link: str) -> Offer | None:
        """Give the next page to send; None if nothing is new or a version waits to be confirmed.

        Ask again after each page that was sent, each confirmation, each local or heard change.
        """
        ...

    def confirmed(self, link: str, version: int) -> None:
        """Take the neighbour's word that it applied a version; others than the last are ignored."""
        ...

    def take(self, link: str, offer: Offer) -> None:
        """Take a page of a neighbour's offer; after its last page, confirm `offer.version`.

        A repeated page of the version already applied changes nothing and may be confirmed again.
        InputError or LimitError, with nothing changed: an older version, a page that is out of
        order, an entry that is malformed, more than the bounds allow.
        """
        ...

    def beyond(self, thing: Any, came_from: str | None) -> list[str]:
        """Name the links, but the one it came from, behind which the thing may matter; sorted."""
        ...

    def advance(self, now: int) -> None:
        """Let time pass: what lingered long enough goes."""
        ...

    def deadline(self) -> int | None:
        """Give the time at which `advance` has something to do and `offer` may have something."""
        ...

    def occupancy(self) -> Occupancy:
        """Give how much is held of what, and the bound of each."""
        ...
