"""Groups by UDP multicast on the loopback interface: who listens hears, and only that."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from roamcast.channels.client.link_messages import GROUP_FRAME_BYTES_MAX
from roamcast.errors import GroupsUnavailable, InputError
from roamcast.transport.groups_udp import ADDRESSES_MAX, UdpGroups, UdpRange, udp_range
from roamcast.transport.sealing import class_key, seal_of_client, seals_of_classes

SECRET = bytes(32)
LOOPBACK = "127.0.0.1"
DEADLINE_S = 30.0


@pytest.fixture
def port() -> Iterator[int]:
    """A free UDP port; it stays taken so that no other test of this machine meets it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind((LOOPBACK, 0))
        yield one.getsockname()[1]


class Heard:
    """What a listener heard, and a way to wait for so much of it."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, bytes]] = []
        self._more = asyncio.Event()

    def __call__(self, group: str, frame: bytes) -> None:
        self.frames.append((group, frame))
        self._more.set()

    async def until(self, frame: bytes) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while all(one != frame for _, one in self.frames):
                self._more.clear()
                await self._more.wait()


def server(where: UdpRange) -> UdpGroups:
    return UdpGroups(
        where,
        seal_of=seals_of_classes(SECRET, b"serv"),
        deliver=lambda *_: None,
        interface=LOOPBACK,
    )


def client(where: UdpRange, heard: Heard, view_class: str = "") -> UdpGroups:
    seal_of = seal_of_client(class_key(SECRET, view_class), b"clie")
    return UdpGroups(where, seal_of=seal_of, deliver=heard, interface=LOOPBACK)


async def opened(*groups: UdpGroups) -> None:
    for one in groups:
        await one.start()


async def closed(*groups: UdpGroups) -> None:
    for one in groups:
        await one.close()


def test_listeners_hear_their_groups_and_nothing_else(port: int) -> None:
    async def scene() -> None:
        where = udp_range(f"239.192.7.0/30:{port}")  # 4 addresses: groups must share them
        heard, also = Heard(), Heard()
        source, one, other = server(where), client(where, heard), client(where, also)
        await opened(source, one, other)
        for group in ("a", "b"):
            one.listen(group)
        other.listen("b")
        for number in range(20):
            source.send(f"not listened to {number}", b"x")
        source.send("a", b"to a")
        source.send("b", b"to b")
        source.send("b", b"last")
        await heard.until(b"last")
        await also.until(b"last")
        assert heard.frames == [("a", b"to a"), ("b", b"to b"), ("b", b"last")]
        assert also.frames == [("b", b"to b"), ("b", b"last")]
        assert one.counts["not listened to"] > 0
        await closed(source, one, other)

    asyncio.run(scene())


def test_a_group_that_was_left_is_not_heard_and_one_on_the_same_address_still_is(port: int) -> None:
    async def scene() -> None:
        where = udp_range(f"239.192.7.0/32:{port}")
        heard = Heard()
        source, one = server(where), client(where, heard)
        await opened(source, one)
        for group in ("a", "b"):
            one.listen(group)
        one.ignore("a")
        one.ignore("never listened to")
        source.send("a", b"to a")
        source.send("b", b"to b")
        await heard.until(b"to b")
        assert heard.frames == [("b", b"to b")]
        one.ignore("b")
        assert not one._joined
        one.listen("b")
        source.send("b", b"again")
        await heard.until(b"again")
        await closed(source, one)

    asyncio.run(scene())


def test_another_view_class_and_strangers_are_neither_heard_nor_harmful(port: int) -> None:
    async def scene() -> None:
        where = udp_range(f"239.192.7.0/32:{port}")
        heard, guest = Heard(), Heard()
        source = server(where)
        one, other = client(where, heard), client(where, guest, "guest")
        await opened(source, one, other)
        one.listen("a")
        other.listen("a")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.setsockopt(
                socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK)
            )
            digest = seal_of_client(class_key(SECRET, ""), b"x123")("").digest_of("a")
            for data in (b"", b"\x00", b"\x01", b"\x01" + digest, b"\x01" + digest + bytes(60)):
                stranger.sendto(data, (str(where.first), port))
        source.send("a", b"staff only")
        source.send("a", b"for guests", "guest")
        source.send("a", b"end")
        await heard.until(b"end")
        await guest.until(b"for guests")
        assert heard.frames == [("a", b"staff only"), ("a", b"end")]
        assert guest.frames == [("a", b"for guests")]
        assert one.counts["not opened"] == 2
        assert one.counts["foreign"] == 2
        await closed(source, one, other)

    asyncio.run(scene())


def test_the_largest_frame_arrives_and_one_byte_more_is_not_sent(port: int) -> None:
    async def scene() -> None:
        where = udp_range(f"239.192.7.0/24:{port}")
        heard = Heard()
        source, one = server(where), client(where, heard)
        await opened(source, one)
        one.listen("a")
        source.send("a", bytes(GROUP_FRAME_BYTES_MAX + 1))
        source.send("a", bytes(GROUP_FRAME_BYTES_MAX))
        await heard.until(bytes(GROUP_FRAME_BYTES_MAX))
        assert source.counts["too large"] == 1
        assert len(heard.frames) == 1
        await closed(source, one)

    asyncio.run(scene())


def test_more_groups_than_a_socket_may_join_are_heard_all(port: int) -> None:
    async def scene() -> None:
        where = udp_range(f"239.192.0.0/16:{port}")
        assert where.count == ADDRESSES_MAX
        heard = Heard()
        source, one = server(where), client(where, heard)
        await opened(source, one)
        groups = [f"map/all/{number}" for number in range(100)]
        for group in groups:
            one.listen(group)
        assert len(one._joined) > 20
        for group in groups:
            source.send(group, group.encode())
            await heard.until(group.encode())
        assert [group for group, _ in heard.frames] == groups
        await closed(source, one)
        assert not one._joined

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("", "no range"),
        ("239.192.0.0/24", "no range"),
        ("239.192.0.0/24:", "no port"),
        ("239.192.0.0/24:70000", "no port"),
        ("239.192.0.1/24:5007", "host bits"),
        ("239.192.0.x/24:5007", "no range"),
        ("10.0.0.0/24:5007", "not within 224"),
        ("224.0.0.0/24:5007", "other protocols"),
        ("239.255.255.128/25:5007", "other protocols"),
        ("239.255.255.250:5007", "other protocols"),
    ],
)
def test_a_range_that_cannot_be_used_says_why(said: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        udp_range(said)


def test_groups_are_spread_over_the_range_and_stay_within_it() -> None:
    where = udp_range("239.192.4.0/22:5007")
    digest_of = seals_of_classes(SECRET, b"mark")("").digest_of
    found = {where.address_of(digest_of(str(number))) for number in range(2_000)}
    assert len(found) > ADDRESSES_MAX * 0.9
    assert all(address.startswith("239.192.4.") for address in found)


def test_an_interface_that_is_not_there_is_said_so() -> None:
    where = udp_range("239.192.0.0/24:5007")
    for interface in ("203.0.113.7", "no address"):
        groups = UdpGroups(
            where,
            seal_of=seals_of_classes(SECRET, b"mark"),
            deliver=lambda *_: None,
            interface=interface,
        )
        with pytest.raises(GroupsUnavailable, match="name the address of one that does"):
            asyncio.run(groups.start())
