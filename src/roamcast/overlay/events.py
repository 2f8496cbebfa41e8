"""What the overlay's parts tell each other, and what a driver gives and carries out for them."""

import msgspec

from roamcast.model.machine import Effect, Input, Writes
from roamcast.model.wire import Message
from roamcast.overlay.links.settings import NeighbourSettings

# --- inputs of the driver


class WayLost(Input, frozen=True, gc=False):
    """The connection that an address stands for is over."""

    address: str
    reason: str


class Garbled(Input, frozen=True, gc=False):
    """A frame came that cannot be read."""

    address: str
    reason: str


class AddNeighbour(Input, frozen=True, gc=False):
    """This node may link with another one from now on, or with other settings."""

    node: str
    settings: NeighbourSettings


class RemoveNeighbour(Input, frozen=True, gc=False):
    """This node links with another one no longer."""

    node: str


class SendParcel(Input, frozen=True, gc=False):
    """Bring these bytes to these nodes; `Acknowledged` once custody of them is on disk."""

    ticket: int
    kind: str
    targets: tuple[str, ...]
    body: bytes


# --- effects for the driver


class HangUp(Effect, frozen=True, gc=False):
    """End the connection that an address stands for, if there is one."""

    address: str
    reason: str


# --- events between parts


class OverlayOpened(Effect, frozen=True, gc=False):
    """The node's epoch is on disk: it may speak now."""

    epoch: int


class NeighbourUp(Effect, frozen=True, gc=False):
    """A neighbour is linked, in a new session: nothing sent before counts."""

    node: str
    epoch: int
    offset_us: int
    """How far the neighbour's clock is ahead of ours, give or take a journey."""


class NeighbourDown(Effect, frozen=True, gc=False):
    """A link is over; what it had not delivered is void."""

    node: str
    reason: str


class NeighbourFull(Effect, frozen=True, gc=False):
    """Much waits for this link: pause until `NeighbourReady`, or it will be cut."""

    node: str


class NeighbourReady(Effect, frozen=True, gc=False):
    """A link that was full has room again."""

    node: str


class SendOnLink(Effect, frozen=True, gc=False):
    """Send a message to a neighbour, once and in order, as long as the link lasts."""

    node: str
    message: Message


class CameByLink(Effect, frozen=True, gc=False):
    """The neighbour's next message."""

    node: str
    message: Message


class CutLink(Effect, frozen=True, gc=False):
    """A neighbour broke the protocol of some part: end the link, with a growing delay."""

    node: str
    reason: str


class NeighbourFound(Effect, frozen=True, gc=False):
    """A search found a node that may be a neighbour."""

    node: str
    settings: NeighbourSettings


class NeighbourGone(Effect, frozen=True, gc=False):
    """A neighbour that a search had found does not answer any more."""

    node: str


class TreeChanged(Effect, frozen=True, gc=False):
    """The shared spanning tree runs over these links of ours now."""

    links: tuple[str, ...]


class TablesTouched(Effect, frozen=True, gc=False):
    """A part has changed this broker's own entries of a table: offer them."""


class ParcelId(msgspec.Struct, frozen=True, order=True, gc=False, array_like=True):
    """Which parcel: the node it comes from, that node's epoch, and a number within it."""

    origin: str
    epoch: int
    number: int


class PostParcel(Effect, frozen=True, gc=False):
    """A part's own parcel; its writes and the parcel are one transaction. See `ParcelPosted`."""

    part: str
    token: int
    kind: str
    targets: tuple[str, ...]
    body: bytes
    writes: Writes = ()


class ParcelPosted(Effect, frozen=True, gc=False):
    """A part's parcel and writes are on disk; or nothing is, without a parcel and with a reason."""

    part: str
    token: int
    parcel: ParcelId | None
    reason: str = ""


class ParcelArrived(Effect, frozen=True, gc=False):
    """A parcel for this node: the part that knows its kind answers with `HandleParcel`.

    It comes again after a crash or a failed write, until it is handled.
    """

    parcel: ParcelId
    kind: str
    body: bytes


class HandleParcel(Effect, frozen=True, gc=False):
    """Write this, and that the parcel was handled, in one transaction."""

    parcel: ParcelId
    writes: Writes = ()


class ParcelHandled(Effect, frozen=True, gc=False):
    """What `HandleParcel` asked for is on disk; it happens once for each parcel and node."""

    parcel: ParcelId


class ParcelExpired(Effect, frozen=True, gc=False):
    """A parcel outlived its time here before it could go on towards these nodes."""

    parcel: ParcelId
    targets: tuple[str, ...]
