"""A guest of a relay: its states, what happens to it, and what a driver does with it.

A guest is one connection of a client to the relay, together with the client's own link to the
service. Guests have numbers: two of them have one name while one takes the other's place.
"""

import enum
from typing import Final

import msgspec

from roamcast.channels.client.link_messages import LinkWelcome
from roamcast.channels.server.settings import MapSettings
from roamcast.model.machine import Effect, Input
from roamcast.model.wire import Message


class GuestState(enum.StrEnum):
    """How a guest stands with its relay."""

    WAITING = "waiting for its class to be compared"
    SERVED = "served by the machine"
    PASSED = "passed through"
    ENDING = "sent away"
    LEAVING = "gone; its last publications are on their way"


class GuestEvent(enum.StrEnum):
    """What moves a guest from state to state."""

    SAME_CLASS = "the service says that it is of the relay's class"
    OTHER_CLASS = "it is of another class, there is no room, or nobody says"
    ENDED = "the relay ends its connection"
    GONE = "its connection is over"


GUEST_TABLE: Final = {
    (GuestState.WAITING, GuestEvent.SAME_CLASS): GuestState.SERVED,
    (GuestState.WAITING, GuestEvent.OTHER_CLASS): GuestState.PASSED,
    (GuestState.WAITING, GuestEvent.ENDED): GuestState.ENDING,
    (GuestState.SERVED, GuestEvent.ENDED): GuestState.ENDING,
    (GuestState.PASSED, GuestEvent.ENDED): GuestState.ENDING,
    (GuestState.WAITING, GuestEvent.GONE): GuestState.LEAVING,
    (GuestState.SERVED, GuestEvent.GONE): GuestState.LEAVING,
    (GuestState.PASSED, GuestEvent.GONE): GuestState.LEAVING,
    (GuestState.ENDING, GuestEvent.GONE): GuestState.LEAVING,
}


class OwnLinkUp(Input, frozen=True):
    """The relay's own link is open and the service has sent its welcome."""

    welcome: LinkWelcome


class OwnLinkDown(Input, frozen=True):
    """The relay's own link is over."""


class GuestArrived(Input, frozen=True):
    """A client has connected, and its own link to the service is open."""

    guest: int
    welcome: LinkWelcome


class GuestLinkUp(Input, frozen=True):
    """A guest's own link was away, and is open again."""

    guest: int
    welcome: LinkWelcome


class GuestLinkDown(Input, frozen=True):
    """A guest's own link is away."""

    guest: int


class GuestLinkEnded(Input, frozen=True):
    """A guest's own link has ended for good, and why."""

    guest: int
    reason: str


class GuestGone(Input, frozen=True):
    """A guest's connection to the relay is over."""

    guest: int


class GuestReceived(Input, frozen=True):
    """The service sent something by a guest's own link."""

    guest: int
    message: Message
    group: str = ""


class GoingDown(Input, frozen=True):
    """The relay ends: send everybody away."""


class ServingBegan(Effect, frozen=True):
    """There is a new `MapRelay`: links of an earlier one are over."""

    epoch: int
    settings: MapSettings


class Serve(Effect, frozen=True):
    """Connect this guest with the machine."""

    guest: int


class PassThrough(Effect, frozen=True):
    """Connect this guest with its own link."""

    guest: int


class EndGuest(Effect, frozen=True):
    """Tell a guest why its connection ends and when to come again (0: not by itself)."""

    guest: int
    reason: str
    retry_us: int


class CloseGuest(Effect, frozen=True):
    """Close a guest's own link: nothing of it is on its way any more."""

    guest: int


class Withheld(Effect, frozen=True):
    """A batch was not sent: the service does not say now that this client may see it.

    It is repeated until it may, or the client is sent away.
    """

    client: str


class GuestRecord(msgspec.Struct):
    """What is known of one guest."""

    number: int
    welcome: LinkWelcome
    state: GuestState = GuestState.WAITING
    connected: bool = True
    """Whether its own link is open."""

    @property
    def name(self) -> str:
        """The name the service knows this guest by, `subject#device`."""
        return self.welcome.client
