"""A relay on a simulated host: `RelayAdmission` with simulated sockets, and rights that change.

In life a guest's own link to the service is a socket of the relay. Here it is a host of its own, a
`Port`, under the name by which the service knows the guest; so faults of the network and of hosts
break it as they break everything else. `RelayHost` does what `live/relay` does: it says which
message came by which socket, and sends by the socket that an effect names.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from roamcast.channels.client.link_messages import LinkWelcome
from roamcast.channels.relay.admission import RelayAdmission
from roamcast.channels.relay.guests import (
    CloseGuest,
    EndGuest,
    GuestGone,
    GuestReceived,
    OwnLinkDown,
    OwnLinkUp,
    Serve,
)
from roamcast.channels.relay.publishers import SendUp
from roamcast.channels.server.desk import Public
from roamcast.channels.server.messages import WELL_KNOWN
from roamcast.model.addresses import Client, Server
from roamcast.model.contexts import Context
from roamcast.model.machine import Effect, Input, Listen, Received, Send

PORT: Final = "#relay"
"""Ends the name by which the service knows a guest: a device of the same subject."""


def subject_of(client: str) -> str:
    """Give who is behind the name of a client."""
    return client.partition("#")[0]


class Rights(Public):
    """Subjects with limited rights do not see private contexts; rights may change."""

    def __init__(self) -> None:
        self.limited: set[str] = set()

    def view_class(self, client: str) -> str:
        """There are two classes."""
        return "limited" if subject_of(client) in self.limited else ""

    def visible(self, context: Context, view_class: str, now: int) -> Context | None:
        """Hide what is private from those with limited rights."""
        del now
        return None if view_class and context.attributes.get("private") else context

    def forms(self, context: Context, now: int) -> tuple[str, ...]:
        """Each class has one."""
        del context, now
        return "", "limited"

    def may_take(self, client: str, owner: str) -> bool:
        """A publication is its subject's, whichever device publishes it."""
        return subject_of(client) == subject_of(owner)

    def restricted(self) -> None:
        """Any context may look otherwise to some."""


class Port:
    """A guest's own link: carries messages between the service and the relay as they are."""

    def __init__(self, server: str, relay: str) -> None:
        self._server = server
        self._relay = relay
        self._listens = False

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Hand a message on to the other end."""
        del now
        assert isinstance(given, Received)
        up = given.sender == self._relay
        return [Send(Server(self._server) if up else Client(self._relay), given.message)]

    def advance(self, now: int) -> Sequence[Effect]:
        """A link carries the well-known group."""
        del now
        listens, self._listens = self._listens, True
        return [] if listens else [Listen(WELL_KNOWN)]

    def deadline(self) -> int | None:
        """Nothing is ever due."""
        return None


class OpenOwnLink(Input, frozen=True):
    """A guest's own link is open; what comes by the port is this guest's."""

    guest: int
    port: str


class RelayHost:
    """`RelayAdmission` on a host, with the sockets of its guests."""

    def __init__(self, server: str, admission: RelayAdmission) -> None:
        self.admission = admission
        self._server = server
        self._own_up = False
        self._ports: dict[str, int] = {}
        """Ports → the guest whose own link it is."""
        self._devices: dict[str, int] = {}
        """Clients whose connection the machine serves → the guest."""

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Take a message by the socket it came by, or what happened to a socket."""
        match given:
            case OpenOwnLink(number, port):
                self._ports[port] = number
                return ()
            case Received(sender, message) if sender.endswith(PORT):
                if sender not in self._ports:
                    return ()
                given = GuestReceived(self._ports[sender], message)
            case Received(sender, message, group) if sender != self._server:
                if sender not in self._devices:
                    return ()  # it came by a connection that is over
                given = Received(sender + PORT, message, group)
            case Received() if not self._own_up:
                return ()  # it came by a link that is over
            case OwnLinkUp() | OwnLinkDown():
                self._own_up = isinstance(given, OwnLinkUp)
            case GuestGone(number):
                self._disconnect(number)
            case _:
                pass
        return self._carry(self.admission.receive(given, now))

    def advance(self, now: int) -> Sequence[Effect]:
        """Do what is due."""
        return self._carry(self.admission.advance(now))

    def deadline(self) -> int | None:
        """The next thing due."""
        return self.admission.deadline()

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held of what, and the bound of each."""
        return self.admission.occupancy()

    def _disconnect(self, number: int) -> None:
        self._devices = {name: one for name, one in self._devices.items() if one != number}

    def _carry(self, effects: Iterable[Effect]) -> list[Effect]:
        out: list[Effect] = []
        for effect in effects:
            match effect:
                case Send(Client(name), message) if name.endswith(PORT):
                    device = subject_of(name)
                    if device in self._devices:
                        out.append(Send(Client(device), message))
                case Send(Server()) if not self._own_up:
                    pass  # there is no link to send it by; the machine repeats it
                case SendUp(number, message):
                    ports = [name for name, one in self._ports.items() if one == number]
                    out += [Send(Client(port), message) for port in ports]
                case Serve(number):
                    (port,) = (name for name, one in self._ports.items() if one == number)
                    self._devices[subject_of(port)] = number
                    out.append(effect)
                case EndGuest(number):
                    self._disconnect(number)
                    out.append(effect)
                case CloseGuest(number):
                    self._ports = {name: one for name, one in self._ports.items() if one != number}
                    out.append(effect)
                case _:
                    out.append(effect)
        return out


class GuestLink(msgspec.Struct):
    """The links of one client behind a relay, as the workload opens and breaks them."""

    guest: int = 0
    """Number of the guest at the relay, 0 for none."""
    served: bool = False
    """Whether the relay serves it; otherwise it is passed through, or waits."""
    up: bool = False
    """Whether the client has been welcomed."""
    client_boots: int = 0
    relay_boots: int = 0
    dial_at: int = 0
    own_up: bool = False
    """Whether the guest's own link to the service is open."""
    own_boots: tuple[int, int] = (0, 0)
    """Lives of the service and of the port that the own link joins."""
    own_dial_at: int = 0
    welcome: LinkWelcome | None = None
    """What the service has sent by the own link."""
