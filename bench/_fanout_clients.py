"""Many WebSocket clients in one process, as light as can be: they count, and time what they get.

Run as a program: `python _fanout_clients.py URL TOKEN COUNT FILTER`. It connects, prints "ready",
then answers each line on stdin: `reset` forgets, `stats` prints one JSON object.
"""

import asyncio
import base64
import json
import os
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import uvloop

MARK = b'"sent":'


class Stats:
    """What all clients together have got since the last reset."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.frames = 0
        self.events = 0
        self.bytes = 0
        self.delays_us: list[int] = []
        self.first_ns = 0
        self.last_ns = 0

    def as_json(self, last: list[int]) -> dict[str, Any]:
        delays = sorted(self.delays_us)
        seconds = max(self.last_ns - self.first_ns, 1) / 1e9

        def at(share: float) -> float:
            return delays[min(len(delays) - 1, int(len(delays) * share))] / 1e3 if delays else 0.0

        return {
            "frames": self.frames,
            "events": self.events,
            "bytes": self.bytes,
            "seconds": seconds,
            "p50_ms": at(0.5),
            "p99_ms": at(0.99),
            "max_ms": at(1.0),
            "last": sorted(set(last)),
        }


STATS = Stats()


class Client(asyncio.Protocol):
    """One WebSocket: a handshake, a subscription if there is one, then frames without end."""

    def __init__(self, request: bytes, subscribe: bytes, ready: "asyncio.Future[None]") -> None:
        self.request = request
        self.subscribe = subscribe
        self.ready = ready
        self.buffer = bytearray()
        self.open = False
        self.last = -1

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(f"closed: {bytes(self.buffer)[:200]!r}"))
        self.last = -2

    def data_received(self, data: bytes) -> None:
        buffer = self.buffer
        buffer += data
        if not self.open:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            if not buffer.startswith(b"HTTP/1.1 101"):
                self.transport.close()
                return
            self.open = True
            del buffer[: end + 4]
            if self.subscribe:
                self.transport.write(self.subscribe)
            elif not self.ready.done():
                self.ready.set_result(None)
        start = 0
        while len(buffer) - start >= 2:
            size, head = buffer[start + 1], 2
            if size == 126:
                size, head = int.from_bytes(buffer[start + 2 : start + 4], "big"), 4
            elif size == 127:
                size, head = int.from_bytes(buffer[start + 2 : start + 10], "big"), 10
            if len(buffer) - start < head + size:
                break
            self.frame(buffer[start] & 15, bytes(buffer[start + head : start + head + size]))
            start += head + size
        del buffer[:start]

    def frame(self, kind: int, payload: bytes) -> None:
        if kind == 9:  # ping → pong
            self.transport.write(masked(payload, 0x8A))
            return
        at = payload.rfind(MARK)
        if at < 0:
            if b'"current"' in payload and not self.ready.done():
                self.ready.set_result(None)
            return
        now = time.monotonic_ns()
        if not STATS.frames:
            STATS.first_ns = now
        STATS.last_ns = now
        STATS.frames += 1
        STATS.bytes += len(payload)
        begin = at + len(MARK)
        end = begin
        while payload[end] in b"0123456789":
            end += 1
        STATS.delays_us.append((now - int(payload[begin:end])) // 1000)
        STATS.events += payload.count(MARK)
        where = payload.rfind(b'"n":')
        end = begin = where + 4
        while payload[end] in b"0123456789":
            end += 1
        self.last = int(payload[begin:end])


def masked(payload: bytes, first: int = 0x81) -> bytes:
    """Frame a client's message with the mask 0, which changes nothing."""
    size = len(payload)
    head = bytes((first, 0x80 | size)) if size < 126 else (
        bytes((first, 0x80 | 126)) + size.to_bytes(2, "big")
    )  # fmt: skip
    return head + bytes(4) + payload


async def main(url: str, token: str, count: int, where: str) -> None:
    parts = urlsplit(url)
    subscribe = b""
    if where:
        said = {"type": "subscribe", "re": "w", "filter": where}
        subscribe = masked(json.dumps(said).encode())
    loop = asyncio.get_running_loop()
    clients: list[Client] = []
    for begin in range(0, count, 100):
        waiting = []
        for number in range(begin, min(begin + 100, count)):
            key = base64.b64encode(os.urandom(16)).decode()
            path = (parts.path or "/") + (f"?device=d{number}" if where else "")
            request = (
                f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\n"
                f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
                f"Sec-WebSocket-Version: 13\r\nAuthorization: Bearer {token}\r\n\r\n"
            ).encode()
            ready: asyncio.Future[None] = loop.create_future()
            client = Client(request, subscribe, ready)
            clients.append(client)
            await loop.create_connection(lambda one=client: one, parts.hostname, parts.port)
            waiting.append(ready)
        await asyncio.gather(*waiting)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        line = (await loop.run_in_executor(None, sys.stdin.readline)).strip()
        if line == "reset":
            STATS.reset()
            sys.stdout.write("{}\n")
        elif line == "stats":
            sys.stdout.write(json.dumps(STATS.as_json([one.last for one in clients])) + "\n")
        else:
            return
        sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
