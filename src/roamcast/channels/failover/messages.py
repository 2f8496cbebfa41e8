"""What do the hosts that may serve say to each other? Signs of life, and maps handed over."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from roamcast.channels.reliable.messages import MESSAGES
from roamcast.channels.server.messages import (
    ITEMS_MAX,
    MAP_MESSAGES,
    Body,
    Epoch,
    Item,
    Vid,
)
from roamcast.model.wire import Count, Message, Name, Registry, messages_of


class Probe(Message, frozen=True, tag="map.probe", gc=False):
    """Watchdog to the host that serves: are you there?"""


class Alive(Message, frozen=True, tag="map.alive", gc=False):
    """Server to a watchdog that asked: I am; and this is the newest epoch I have heard of.

    A client may know a newer epoch than its server: one whose server nobody hears any more.
    """

    epoch: Epoch
    newest: Epoch


class HandedContext(Item, frozen=True, tag="h", gc=False):
    """An object of a map that is handed over, who published it, and when."""

    body: Body
    stamp: Count
    owner: Name


class HandedRemoval(Item, frozen=True, tag="g", gc=False):
    """An object that was cancelled, by whom and when, and how long its server has known it."""

    vid: Vid
    stamp: Count
    owner: Name
    age_us: Count


class HandOver(Message, frozen=True, tag="map.handover", gc=False):
    """Server that steps down to the newer one: a page of its map, repeated until it is taken."""

    epoch: Epoch
    number: Count
    items: Annotated[tuple[HandedContext | HandedRemoval, ...], Meta(max_length=ITEMS_MAX)]


class HandOverTaken(Message, frozen=True, tag="map.taken", gc=False):
    """Server to the one that steps down: the page of this number is merged."""

    epoch: Epoch
    number: Count


FAILOVER_MESSAGES: Final = messages_of(__name__)
FAILOVER_PROTOCOL: Final = Registry((*MESSAGES, *MAP_MESSAGES, *FAILOVER_MESSAGES))
"""What hosts that may serve speak, with their clients and with each other."""

_ENCODER: Final = msgspec.msgpack.Encoder()


def item_size(item: HandedContext | HandedRemoval) -> int:
    """Count an item's bytes."""
    return len(_ENCODER.encode(item))
