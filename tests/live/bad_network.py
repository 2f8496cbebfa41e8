"""A bad network between two interfaces: it forwards multicast late, twice, and out of order.

`python tests/live/bad_network.py FROM TO PORT ADDRESS…` hears each address on the interface with
the address FROM and sends what it hears on TO. A line of input asks for its counts; the end ends
it.
"""

import asyncio
import json
import random
import socket
import struct
import sys
from collections import Counter

DELAY_S = 0.002
LATE = 0.2
LATE_S_MAX = 0.03
TWICE = 0.1
IP_MULTICAST_ALL = 49


def listening(address: str, port: int, interface: str) -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setblocking(False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * 1024 * 1024)
    one.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)
    one.bind((address, port))
    member = struct.pack("4s4s", socket.inet_aton(address), socket.inet_aton(interface))
    one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    return one


def sending(interface: str) -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setblocking(False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * 1024 * 1024)
    one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
    one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
    return one


def tell(said: object) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


async def main(source: str, target: str, port: int, addresses: list[str]) -> None:
    counts: Counter[str] = Counter()
    draw = random.Random(1).random
    out = sending(target)
    loop = asyncio.get_running_loop()

    def forward(datagram: bytes, address: str) -> None:
        try:
            out.sendto(datagram, (address, port))
        except OSError:
            counts["not sent"] += 1

    def heard(one: socket.socket, address: str) -> None:
        for _ in range(64):
            try:
                datagram = one.recv(65_507)
            except BlockingIOError:
                return
            counts["forwarded"] += 1
            copies = 2 if draw() < TWICE else 1
            counts["twice"] += copies - 1
            for _ in range(copies):
                late = draw() < LATE
                counts["late"] += late
                wait_s = DELAY_S + (draw() * LATE_S_MAX if late else 0)
                loop.call_later(wait_s, forward, datagram, address)

    for address in addresses:
        one = listening(address, port, source)
        loop.add_reader(one, heard, one, address)
    tell("ready")
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        tell(counts)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
