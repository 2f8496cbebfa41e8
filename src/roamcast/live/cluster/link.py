"""How does a host stay in touch with the service of another? It dials, and dials again.

Both parts of a host do: its watchdog to probe and to follow what is kept, its server to hear of a
newer one and to hand over. A host that stands by takes no calls, so most calls are refused at once.
"""

import asyncio
import secrets
import ssl
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import websockets.asyncio.client as sockets
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from roamcast.channels.failover.replica_messages import REPLICA_PROTOCOL, ReplicaHere
from roamcast.errors import AuthError
from roamcast.live.cluster.proof import NONCE_BYTES, Part, call, check_answer
from roamcast.live.config.settings import Cluster
from roamcast.live.observe.logs import Log
from roamcast.model.wire import FRAME_BYTES_MAX, Message, Unreadable
from roamcast.transport.driver import Clock
from roamcast.transport.http import error_of

DIAL_S: Final = 0.3
OPEN_S: Final = 3.0
SILENCE_S: Final = 5.0
"""A service says every second that it is there."""

FRAMES_MAX: Final = 4_096
CLOSE_S: Final = 0.5

_LOG = Log("replicas")


class ReplicaLink:
    """One part of this host and the service of another host."""

    def __init__(
        self,
        to: str,
        *,
        own: str,
        part: Part,
        cluster: Cluster,
        clock: Clock,
        on_here: Callable[[ReplicaHere], None],
        on_message: Callable[[str, Message], None],
        on_lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.to = to
        self._own = own
        self._part = part
        self._url = cluster.replicas[to]
        self._secret = cluster.secret()
        self._tls = tls_of(cluster) if self._url.startswith("https:") else None
        self._clock = clock
        self._on_here = on_here
        self._on_message = on_message
        self._on_lost = on_lost
        self._outgoing: asyncio.Queue[bytes] | None = None
        self._problem = ""

    def send(self, message: Message) -> None:
        """Send a message if there is a connection and room in it; the machines repeat."""
        if self._outgoing is not None and not self._outgoing.full():
            self._outgoing.put_nowait(REPLICA_PROTOCOL.encode(message))

    @property
    def connected(self) -> bool:
        """Whether the service there has proved itself and talks."""
        return self._outgoing is not None

    async def run(self) -> None:
        """Dial, talk and dial again until cancelled."""
        while True:
            nonce = secrets.token_bytes(NONCE_BYTES)
            try:
                socket = await self._dial(nonce)
            except (OSError, TimeoutError, WebSocketException) as error:
                self._refused(error)
            else:
                await self._talk(socket, nonce)
            await asyncio.sleep(DIAL_S * (0.5 + secrets.randbelow(1_000) / 1_000))

    async def _dial(self, nonce: bytes) -> sockets.ClientConnection:
        parts = urlsplit(self._url)
        scheme = "wss" if self._tls else "ws"
        said = call(self._secret, self._own, self._part, self.to, now=self._clock(), nonce=nonce)
        return await sockets.connect(
            f"{scheme}://{parts.netloc}/replica",
            additional_headers={"Authorization": said},
            compression=None,
            proxy=None,
            max_size=FRAME_BYTES_MAX,
            open_timeout=OPEN_S,
            close_timeout=CLOSE_S,
            ping_interval=None,
            ssl=self._tls,
        )

    def _refused(self, error: Exception) -> None:
        """Tell what an operator can mend, once; that nobody is there is as it should be."""
        problem = ""
        if isinstance(error, InvalidStatus):
            body = bytes(error.response.body or b"")
            refusal = error_of(error.response.status_code, body, self._url)
            problem = "this host is refused by another: compare secret_file and [cluster.replicas]"
            if not isinstance(refusal, AuthError):
                problem = "another service answers where a host should be"
        elif isinstance(error, ssl.SSLError):
            problem = "another host's certificate is not accepted: see tls_ca"
        if problem and problem != self._problem:
            _LOG.error(problem, error)
        self._problem = problem

    async def _talk(self, socket: sockets.ClientConnection, nonce: bytes) -> None:
        loop = asyncio.get_running_loop()
        outgoing: asyncio.Queue[bytes] = asyncio.Queue(FRAMES_MAX)
        writer = asyncio.create_task(_write(socket, outgoing))
        try:
            async with asyncio.timeout(SILENCE_S) as patience:
                first = REPLICA_PROTOCOL.decode(await socket.recv(decode=False))
                if not self._proved(first, nonce):
                    return
                assert isinstance(first, ReplicaHere)
                self._problem = ""
                self._outgoing = outgoing
                self._on_here(first)
                while True:
                    data = await socket.recv(decode=False)
                    patience.reschedule(loop.time() + SILENCE_S)
                    message = REPLICA_PROTOCOL.decode(data)
                    if not isinstance(message, Unreadable):
                        self._on_message(self.to, message)
        except (ConnectionClosed, OSError, TimeoutError):
            return
        finally:
            writer.cancel()
            if self._outgoing is not None:
                self._outgoing = None
                self._on_lost(self.to)
            socket.transport.abort()
            await asyncio.gather(writer, return_exceptions=True)

    def _proved(self, first: Message | Unreadable, nonce: bytes) -> bool:
        genuine = (
            isinstance(first, ReplicaHere)
            and first.host == self.to
            and check_answer(self._secret, nonce, self.to, first.proof)
        )
        if not genuine and self._problem != "false":
            self._problem = "false"
            _LOG.error("whoever answers for another host does not know the hosts' secret")
        return genuine


async def _write(socket: sockets.ClientConnection, outgoing: "asyncio.Queue[bytes]") -> None:
    try:
        while True:
            await socket.send(await outgoing.get())
    except ConnectionClosed:
        return  # the reader notices, too


def tls_of(cluster: Cluster) -> ssl.SSLContext:
    """Trust who signs the hosts' certificates."""
    return ssl.create_default_context(cafile=cluster.tls_ca or None)
