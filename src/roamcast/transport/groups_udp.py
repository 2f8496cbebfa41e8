"""Groups by UDP multicast: names are hashed to addresses, and datagrams are sealed.

Several groups may share an address, so a datagram carries a keyed digest of its group, and whoever
does not listen to that group drops it unopened. A datagram is a version byte, the digest, the nonce
and the sealed frame. Each address joined has its own socket, because Linux lets a socket join only
twenty.
"""

import asyncio
import socket
import struct
from collections import Counter
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError
from typing import Final

import msgspec

from roamcast.channels.client.link_messages import GROUP_FRAME_BYTES_MAX
from roamcast.errors import GroupsUnavailable, InputError
from roamcast.transport.groups import Deliver
from roamcast.transport.sealing import DIGEST_BYTES, SEAL_BYTES, SealOf

ADDRESSES_MAX: Final = 256
"""Most addresses that groups share, and so most sockets of a client."""

GROUPS_MAX: Final = 65_536
BUFFER_BYTES: Final = 4 * 1024 * 1024
READS_MAX: Final = 64
"""Datagrams read from one socket before the loop gets a turn."""

_VERSION: Final = b"\x01"
_HEAD_BYTES: Final = 1 + DIGEST_BYTES
_DATAGRAM_BYTES_MAX: Final = 65_507
_RESERVED: Final = (IPv4Network("224.0.0.0/24"), IPv4Network("239.255.255.0/24"))
"""Routing protocols; SSDP and SLP, which other programs on a LAN listen to."""
_IP_MULTICAST_ALL: Final = 49
"""From linux/in.h; if not off, a socket also receives groups that other sockets have joined."""

assert _HEAD_BYTES + SEAL_BYTES + GROUP_FRAME_BYTES_MAX <= _DATAGRAM_BYTES_MAX


class UdpRange(msgspec.Struct, frozen=True):
    """The addresses groups are hashed to, and their port."""

    first: IPv4Address
    count: int
    port: int

    def address_of(self, digest: bytes) -> str:
        """Give the address of a group."""
        return str(self.first + int.from_bytes(digest[:4], "big") % self.count)


def udp_range(text: str) -> UdpRange:
    """Read a range and a port such as 239.192.0.0/24:5007."""
    span, _, port = text.rpartition(":")
    try:
        network = IPv4Network(span)
    except (AddressValueError, NetmaskValueError, ValueError) as error:
        raise InputError(f"{text!r} is no range such as 239.192.0.0/24:5007: {error}") from None
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise InputError(f"{text!r} names no port from 1 to 65535 behind a colon")
    if not network.is_multicast:
        raise InputError(f"{span} is not within 224.0.0.0/4, where multicast lives")
    count = min(network.num_addresses, ADDRESSES_MAX)
    used = (network.network_address, network.network_address + (count - 1))
    for reserved in _RESERVED:
        if used[0] <= reserved.broadcast_address and reserved.network_address <= used[1]:
            raise InputError(f"{span} meets {reserved}, which other protocols use: choose another")
    return UdpRange(used[0], count, int(port))


class UdpGroups:
    """Sends to groups and listens to them by UDP multicast, within one hop."""

    def __init__(
        self, where: UdpRange, *, seal_of: SealOf, deliver: Deliver, interface: str = ""
    ) -> None:
        """`interface`: the address of the interface that sends and joins; "": the system's."""
        self.counts: Counter[str] = Counter()
        self._where = where
        self._seal_of = seal_of
        self._deliver = deliver
        self._interface = interface
        self._sending: socket.socket | None = None
        self._joined: dict[str, socket.socket] = {}
        self._groups: dict[bytes, str] = {}

    async def start(self) -> None:
        """Open the socket that sends."""
        try:
            self._sending = self._open_sending()
        except (OSError, AddressValueError) as error:
            raise GroupsUnavailable(
                f"UDP multicast does not work on interface {self._interface or 'of the system'!r}: "
                f"{error}; name the address of one that does, or use NATS or the socket"
            ) from None

    def _open_sending(self) -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            opened.setblocking(False)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
            if self._interface:
                own = IPv4Address(self._interface).packed
                opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
        except BaseException:
            opened.close()
            raise
        return opened

    def listen(self, group: str) -> None:
        """Join the group's address, unless another group on it is listened to already."""
        if len(self._groups) >= GROUPS_MAX:
            self.counts["too many groups"] += 1
            return
        digest = self._seal_of("").digest_of(group)
        self._groups[digest] = group
        address = self._where.address_of(digest)
        if address in self._joined:
            return
        try:
            joined = self._join(address)
        except OSError:
            self.counts["join failed"] += 1  # the probe does not come, so the client falls back
            return
        self._joined[address] = joined
        asyncio.get_running_loop().add_reader(joined, self._readable, joined)

    def _join(self, address: str) -> socket.socket:
        joined = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            joined.setblocking(False)
            joined.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            joined.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            joined.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
            joined.bind((address, self._where.port))
            own = IPv4Address(self._interface or "0.0.0.0").packed  # noqa: S104 — the system's
            member = struct.pack("4s4s", IPv4Address(address).packed, own)
            joined.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        except BaseException:
            joined.close()
            raise
        return joined

    def ignore(self, group: str) -> None:
        """Drop the group's datagrams; leave its address with the last group on it."""
        digest = self._seal_of("").digest_of(group)
        if self._groups.pop(digest, None) is None:
            return
        address = self._where.address_of(digest)
        if any(self._where.address_of(other) == address for other in self._groups):
            return
        joined = self._joined.pop(address, None)
        if joined is not None:
            self._leave(joined)

    def _leave(self, joined: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(joined)
        joined.close()

    def send(self, group: str, frame: bytes, key_class: str = "") -> None:
        """Send one datagram; when the system takes no more it is lost, and healed."""
        if len(frame) > GROUP_FRAME_BYTES_MAX:
            self.counts["too large"] += 1
            return
        assert self._sending is not None, "start it first"
        seal = self._seal_of(key_class)
        digest = seal.digest_of(group)
        datagram = b"".join((_VERSION, digest, seal.seal(group, frame)))
        try:
            self._sending.sendto(datagram, (self._where.address_of(digest), self._where.port))
        except OSError:
            self.counts["not sent"] += 1
        else:
            self.counts["sent"] += 1

    def _readable(self, joined: socket.socket) -> None:
        for _ in range(READS_MAX):
            if joined.fileno() < 0:
                return  # the last datagram made us leave its address
            try:
                datagram = joined.recv(_DATAGRAM_BYTES_MAX)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.counts["not received"] += 1
                return
            self._received(datagram)

    def _received(self, datagram: bytes) -> None:
        if not datagram.startswith(_VERSION):
            self.counts["foreign"] += 1
            return
        group = self._groups.get(datagram[1:_HEAD_BYTES])
        if group is None:
            self.counts["not listened to"] += 1
            return
        frame = self._seal_of("").open(group, datagram[_HEAD_BYTES:])
        if frame is None:
            self.counts["not opened"] += 1
            return
        self.counts["received"] += 1
        self._deliver(group, frame)

    async def close(self) -> None:
        """Close all sockets; the system leaves their groups."""
        for joined in self._joined.values():
            self._leave(joined)
        self._joined.clear()
        self._groups.clear()
        if self._sending is not None:
            self._sending.close()
            self._sending = None
