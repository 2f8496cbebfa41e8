"""Addresses of machines: to whom a `Send` goes, by role and name.

A driver has one way for each role (a client's socket, the socket between replicas, the pipe to a
watchdog), so it picks the way by the address's type and never takes a name apart.
"""

import msgspec


class Address(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A role and a name that is unique within it."""

    name: str


class Client(Address, frozen=True, gc=False):
    """A client of a server or of a relay."""


class Server(Address, frozen=True, gc=False):
    """The server that a client or a relay talks to."""


class Replica(Address, frozen=True, gc=False):
    """The server part of a host that may serve the same node."""


class Watchdog(Address, frozen=True, gc=False):
    """The watchdog of a host that may serve the same node."""


class Neighbour(Address, frozen=True, gc=False):
    """A host of another node, by the address it is dialled at or the name of its connection."""
