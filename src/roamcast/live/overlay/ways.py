"""Ways to neighbours: WebSockets at `/overlay`, dialled and accepted, as the links want them.

A way is known by an address: the URL that the settings name, or a name drawn for a call that came.
What travels, who is believed and when to try again is decided in `overlay/links`; docs/overlay.md
has the contract. Nobody shows a token here: a greeting is signed with the node's key.
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, Final
from urllib.parse import urlsplit

import websockets.asyncio.client as sockets
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from roamcast.live.links.sockets import POLICY, TRY_AGAIN, Socket, binary_frame
from roamcast.live.observe.logs import Log
from roamcast.model.machine import Input, Received, Send
from roamcast.model.wire import FRAME_BYTES_MAX, Registry, Unreadable
from roamcast.overlay.events import Garbled, HangUp, WayLost
from roamcast.overlay.links.messages import LINK_MESSAGES

OVERLAY_SUBPROTOCOL: Final = "roamcast.overlay.v1"
PROTOCOL: Final = Registry(LINK_MESSAGES)
"""All that a neighbour may say outside of a frame; anything else is garbled."""

CALLS_MAX: Final = 256
"""Calls that are open at once; the oldest that is no link gives way to the next."""

FRAMES_UNPROVED: Final = 64
"""Frames of a call that has not become a link; a greeting takes two or three."""

WAITING_FRAMES_MAX: Final = 4_096
WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
"""What may wait for one way; beyond it the way is closed, and the link begins anew."""

OPEN_S: Final = 3.0
CLOSE_S: Final = 0.5

_LOG = Log("overlay")


class NeighbourCall:
    """A call that came, of somebody who says to be a neighbour."""

    def __init__(
        self, address: str, socket: Socket, take: Callable[["NeighbourCall", bytes], None]
    ) -> None:
        self.address = address
        self.socket = socket
        self.frames = 0
        self._take = take

    def received(self, data: bytes | str) -> None:
        """A frame came; a text is garbled, as nothing that is ours is one."""
        self._take(self, data if isinstance(data, bytes) else b"")

    def paused(self) -> None:
        """The connection takes no more for now; the link's own window holds the rest."""

    def resumed(self) -> None:
        """The connection takes more again."""


class NeighbourWays:
    """All connections to and from neighbours."""

    def __init__(
        self,
        *,
        tls_ca: str,
        give: Callable[[Input], None],
        proved: Callable[[], set[str]],
    ) -> None:
        """`proved` names the addresses of links that are up."""
        self._give = give
        self._proved = proved
        self._tls_ca = tls_ca
        self._numbers = count(1)
        self._calls: dict[str, NeighbourCall] = {}
        self._dialled: dict[str, asyncio.Queue[bytes]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._calls) + len(self._dialled)

    def send(self, effect: Send) -> None:
        """Carry a message; without room or a way it is lost, and the link repeats what matters."""
        address, frame = effect.to.name, PROTOCOL.encode(effect.message)
        call = self._calls.get(address)
        if call is not None:
            if call.socket.waiting_bytes > WAITING_BYTES_MAX:
                call.socket.close(TRY_AGAIN, "too slow: call again")
            else:
                call.socket.write(binary_frame(frame))
            return
        if "://" not in address or self._closed:  # a call that is over
            return
        waiting = self._dialled.get(address)
        if waiting is None:
            waiting = self._dialled[address] = asyncio.Queue(WAITING_FRAMES_MAX)
            self._spawn(address, self._dial(address, waiting))
        if waiting.full():
            self._hang_up(address)
        else:
            waiting.put_nowait(frame)

    def hang_up(self, effect: HangUp) -> None:
        """End a way."""
        call = self._calls.get(effect.address)
        if call is not None:
            call.socket.close(POLICY, effect.reason)
        self._hang_up(effect.address)

    async def serve(self, socket: Any, *, high_bytes: int, low_bytes: int) -> None:
        """Let a caller talk until its connection is over."""
        self._make_room()
        call = NeighbourCall(f"call-{next(self._numbers)}", socket, self._called)
        self._calls[call.address] = call
        try:
            await socket.serve(call, high_bytes=high_bytes, low_bytes=low_bytes)
        finally:
            del self._calls[call.address]
            self._lost(call.address, "the caller hung up")

    async def close(self) -> None:
        """End all ways."""
        self._closed = True
        for call in list(self._calls.values()):
            call.socket.close(TRY_AGAIN, "this node serves no more")
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _make_room(self) -> None:
        """Let the oldest call that is no link go: strangers must not lock neighbours out."""
        if len(self._calls) < CALLS_MAX:
            return
        proved = self._proved()
        oldest = next((call for name, call in self._calls.items() if name not in proved), None)
        if oldest is not None:
            oldest.socket.close(TRY_AGAIN, "too many calls: greet sooner")

    def _called(self, call: NeighbourCall, data: bytes) -> None:
        """Take a frame of a call; a stranger has few."""
        call.frames += 1
        if call.frames == FRAMES_UNPROVED and call.address not in self._proved():
            call.socket.close(POLICY, "no greeting of a neighbour: see [overlay.neighbours]")
            return
        self._take(call.address, data)

    def _take(self, address: str, data: bytes) -> None:
        message = PROTOCOL.decode(data)
        if isinstance(message, Unreadable):
            self._give(Garbled(address, "a frame that cannot be read"))
        else:
            self._give(Received(address, message))

    async def _dial(self, address: str, waiting: "asyncio.Queue[bytes]") -> None:
        """Open a way to a neighbour's host, and carry frames both ways until it is over."""
        reason = "the neighbour hung up"
        split = urlsplit(address)
        secure = split.scheme == "https"
        try:
            async with sockets.connect(
                f"{'wss' if secure else 'ws'}://{split.netloc}/overlay",
                subprotocols=[Subprotocol(OVERLAY_SUBPROTOCOL)],
                compression=None,
                proxy=None,
                max_size=FRAME_BYTES_MAX,
                open_timeout=OPEN_S,
                close_timeout=CLOSE_S,
                ping_interval=None,  # links notice silence
                ssl=ssl.create_default_context(cafile=self._tls_ca or None) if secure else None,
            ) as socket:
                writer = asyncio.create_task(_write(socket, waiting))
                try:
                    async for data in socket:
                        self._take(address, data if isinstance(data, bytes) else b"")
                finally:
                    writer.cancel()
        except (OSError, TimeoutError, WebSocketException) as error:
            reason = str(error) or type(error).__name__
            _LOG.debug("a neighbour does not answer")
        finally:
            if self._dialled.get(address) is waiting:
                del self._dialled[address]
        self._lost(address, reason)

    def _hang_up(self, address: str) -> None:
        task = self._tasks.get(address)
        if task is not None:
            self._dialled.pop(address, None)
            task.cancel()
            self._lost(address, "hung up")

    def _lost(self, address: str, reason: str) -> None:
        if not self._closed:
            self._give(WayLost(address, reason))

    def _spawn(self, address: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[address] = task

        def over(done: "asyncio.Task[None]") -> None:
            if self._tasks.get(address) is done:
                del self._tasks[address]

        task.add_done_callback(over)


async def _write(socket: sockets.ClientConnection, waiting: "asyncio.Queue[bytes]") -> None:
    while True:
        await socket.send(await waiting.get())
