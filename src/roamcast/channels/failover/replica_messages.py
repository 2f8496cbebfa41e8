"""Messages between the hosts that may serve one node, beside the watchdogs' and the maps'.

They carry the store: whole at first, page by page, then as it is written. Of two copies of an entry
the one with the higher rank is right, so pages and changes may arrive in any order and twice.
"""

from typing import Annotated, Final

from msgspec import Meta

from roamcast.channels.failover.messages import FAILOVER_MESSAGES
from roamcast.channels.server.messages import Epoch, ServerHere
from roamcast.model.machine import KEY_LENGTH_MAX, Entry
from roamcast.model.wire import Count, Message, Name, Registry, messages_of

PAGE_BYTES_MAX: Final = 128 * 1024
ENTRIES_MAX: Final = 10_000

Key = Annotated[str, Meta(max_length=KEY_LENGTH_MAX)]
Entries = Annotated[tuple[Entry, ...], Meta(max_length=ENTRIES_MAX)]


class ReplicaHere(Message, frozen=True, tag="replica.here", gc=False):
    """Server to a host that dialled it, first: who it is, and by which key it signs tokens."""

    host: Name
    epoch: Count
    key_id: Annotated[str, Meta(max_length=64)]
    proof: Annotated[bytes, Meta(max_length=32, description="that it knows the hosts' secret")]


class Follow(Message, frozen=True, tag="replica.follow", gc=False):
    """Host that stands by to the server of an epoch: copy your store to me; repeated as a beat."""

    epoch: Epoch


class StorePage(Message, frozen=True, tag="replica.page", gc=False):
    """Server to a follower: every entry with a key in (after, until], the whole store in turn."""

    epoch: Epoch
    number: Count
    after: Key
    until: Annotated[Key, Meta(description="empty: to the end")]
    entries: Entries


class StoreChanges(Message, frozen=True, tag="replica.changes", gc=False):
    """Server to a follower: entries that were written meanwhile."""

    epoch: Epoch
    number: Count
    entries: Entries


class FollowerAck(Message, frozen=True, tag="replica.ack", gc=False):
    """Follower to the server: the page or the changes of this number are on its disk."""

    epoch: Epoch
    number: Count


class StoreOffer(Message, frozen=True, tag="replica.offer", gc=False):
    """To the server: entries that it may lack, from a follower or from a server that steps down."""

    number: Count
    entries: Entries
    serving: Annotated[bool, Meta(description="whether a server offers, not a follower")] = False


class OfferTaken(Message, frozen=True, tag="replica.taken", gc=False):
    """The answer to a `StoreOffer` when it is on the server's disk."""

    number: Count


REPLICA_MESSAGES: Final = messages_of(__name__)
REPLICA_PROTOCOL: Final = Registry((ServerHere, *FAILOVER_MESSAGES, *REPLICA_MESSAGES))
"""What the hosts that may serve speak over `/replica`."""


def pages(entries: "list[Entry]") -> list[tuple[Entry, ...]]:
    """Part entries into what a message holds."""
    found: list[tuple[Entry, ...]] = []
    page: list[Entry] = []
    size = 0
    for entry in entries:
        size += entry.size
        if page and (size > PAGE_BYTES_MAX or len(page) >= ENTRIES_MAX):
            found.append(tuple(page))
            page, size = [], entry.size
        page.append(entry)
    if page:
        found.append(tuple(page))
    return found
