"""What do the hosts that may serve tell each other beside the machines' own messages?

Who they are, and what is kept on disk: whole at first, page by page, then as it is written. Of two
states of an entry the later stamp is right, so pages and news may come in any order and twice.
"""

from typing import Annotated, Final

from msgspec import Meta

from roamcast.channels.failover.messages import FAILOVER_MESSAGES
from roamcast.channels.server.messages import Item, ServerHere
from roamcast.model.wire import Count, Message, Name, Registry

KEY_LENGTH_MAX: Final = 1_024
VALUE_BYTES_MAX: Final = 512 * 1024
"""What is kept in a cluster is told in one message."""

PAGE_BYTES_MAX: Final = 128 * 1024
ENTRIES_MAX: Final = 10_000

Key = Annotated[str, Meta(max_length=KEY_LENGTH_MAX)]


class StoreEntry(Item, frozen=True, tag="e", gc=False):
    """Something kept under a name, or none if it was taken away, and when."""

    key: Key
    value: Annotated[bytes, Meta(max_length=VALUE_BYTES_MAX)] | None
    stamp: Count


Entries = Annotated[tuple[StoreEntry, ...], Meta(max_length=ENTRIES_MAX)]


class ReplicaHere(Message, frozen=True, tag="replica.here", gc=False):
    """Service to a host that dialled it, first: who it is, and by which key it signs tokens."""

    host: Name
    epoch: Count
    key_id: Annotated[str, Meta(max_length=64)]
    proof: Annotated[bytes, Meta(max_length=32, description="that it knows the hosts' secret")]


class Follow(Message, frozen=True, tag="replica.follow", gc=False):
    """A host that stands by to the service: tell me all you keep, and what changes from now on."""


class StorePage(Message, frozen=True, tag="replica.page", gc=False):
    """Service to a host that follows: everything kept beyond one name, up to another."""

    number: Count
    after: Key
    until: Annotated[Key, Meta(description="empty: to the end")]
    entries: Entries


class StoreChanges(Message, frozen=True, tag="replica.changes", gc=False):
    """What was written: service to a host that follows, or what the service lacks, to it."""

    number: Count
    entries: Entries


class FollowerAck(Message, frozen=True, tag="replica.ack", gc=False):
    """The answer to a `StorePage` or `StoreChanges` when it is on disk."""

    number: Count


REPLICA_MESSAGES: Final = (ReplicaHere, Follow, StorePage, StoreChanges, FollowerAck)
REPLICA_PROTOCOL: Final = Registry((ServerHere, *FAILOVER_MESSAGES, *REPLICA_MESSAGES))
"""What the hosts that may serve speak over `/peer`."""
