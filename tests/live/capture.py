"""Everything that passes a process by TCP: a proxy in front of it that writes it all down.

`visible` says what a reader of the capture could read: frames of WebSockets without their mask, and
what is written as base64, as tokens and sealed payloads are.
"""

import base64
import re
import socket
import threading
from collections.abc import Iterator
from types import TracebackType

_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{12,}={0,2}")


class Capture:
    """A proxy before a port of this machine."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._lock = threading.Lock()
        self._flows: list[bytearray] = []
        self._sockets: list[socket.socket] = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def flows(self) -> list[bytes]:
        """Give each direction of each connection so far."""
        with self._lock:
            return [bytes(flow) for flow in self._flows]

    def read(self) -> bytes:
        """Give everything that could be read."""
        return b"\n".join(part for flow in self.flows() for part in visible(flow))

    def __enter__(self) -> "Capture":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                flow = bytearray()
                with self._lock:
                    self._flows.append(flow)
                threading.Thread(target=self._pump, args=(source, sink, flow), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, flow: bytearray) -> None:
        try:
            while data := source.recv(65_536):
                with self._lock:
                    flow += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def visible(flow: bytes) -> Iterator[bytes]:
    """Give what can be read of a flow: as it stands, unmasked, and decoded from base64."""
    yield flow
    head, _, rest = flow.partition(b"\r\n\r\n")
    readable = [flow]
    if b"upgrade: websocket" in head.lower():
        frames = b"".join(unmasked(rest))
        readable.append(frames)
        yield frames
    for part in readable:
        for found in _BASE64.findall(part):
            text = found.rstrip(b"=").replace(b"+", b"-").replace(b"/", b"_")
            text = text[: len(text) - (len(text) % 4 == 1)]
            yield base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))


def unmasked(data: bytes) -> Iterator[bytes]:
    """Give the payloads of WebSocket frames (RFC 6455)."""
    at = 0
    while at + 2 <= len(data):
        masked, length = data[at + 1] & 0x80, data[at + 1] & 0x7F
        at += 2
        if length >= 126:
            size = 2 if length == 126 else 8
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        mask = data[at : at + 4] if masked else b""
        at += len(mask)
        body = data[at : at + length]
        at += length
        yield bytes(byte ^ mask[n % 4] for n, byte in enumerate(body)) if mask else body
