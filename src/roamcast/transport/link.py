"""How does a client stay in touch? One WebSocket link that comes back by itself.

The link carries frames and holds no policy but its own: how long to wait before it dials again. It
waits a quarter of the outage so far, so a service that was away for T is found again within T/4,
and one that is away for long is not pestered. What cannot be sent is dropped: the machines repeat.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Final

import websockets.asyncio.client as sockets
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from roamcast.channels.client.link_messages import LINK_PROTOCOL, Goodbye, Grouped, LinkWelcome
from roamcast.errors import AuthError, ForbiddenError, RoamcastError, UnreachableError
from roamcast.model.machine import Draw
from roamcast.model.wire import FRAME_BYTES_MAX, Message, Unreadable
from roamcast.transport.address import ServiceAddress
from roamcast.transport.hosts import Hosts
from roamcast.transport.http import error_of, unreachable

SILENCE_BEATS: Final = 5
"""A link on which the service missed so many of its own beats is dead."""

SUBPROTOCOL: Final = Subprotocol("roamcast.link.v1")
FRAMES_MAX: Final = 4_096
"""Waiting to be written; more are dropped, and repeated by the machine."""

WAIT_S_MIN: Final = 0.05
WAIT_S_MAX: Final = 15.0
OUTAGE_PART: Final = 0.25
CLOSE_S: Final = 1.0
STAGGER_S: Final = 0.3
"""A host that neither answers nor refuses for so long does not keep us from asking the next."""

Dial = asyncio.Task[tuple[sockets.ClientConnection, LinkWelcome]]

Welcomed = Callable[[LinkWelcome], float | None]
"""Takes the first message of a link; gives how many seconds of silence mean that it is dead.

None: this host serves an older map than the client has seen, so that it looks for another one.
"""

Told = Callable[[str, Message], None]
"""Takes a message and the group it came by, "" for unicast."""


class EndedError(UnreachableError):
    """The service ended the link for good; coming again would not help."""


class ReconnectingLink:
    """One client's link to its service."""

    def __init__(
        self,
        where: ServiceAddress | Hosts,
        device: str,
        *,
        welcomed: Welcomed,
        told: Told,
        renewed: Callable[[LinkWelcome], None],
        draw: Draw,
        open_s: float = 10.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.hosts = where if isinstance(where, Hosts) else Hosts(where)
        self.device = device
        self.connected = False
        self.dialled = 0
        self.dropped = 0
        self.unreadable = 0
        self.key = ""
        """The token of this link, or of the last one."""
        self.outage_s = 0.0
        """How long the link was away before it came back."""
        self._welcomed = welcomed
        self._told = told
        self._renewed = renewed
        self._draw = draw
        self._open_s = open_s
        self._tls = tls
        self._outgoing: asyncio.Queue[bytes] | None = None
        self._come_again_s = 0.0

    def send(self, message: Message) -> None:
        """Send a message if there is a link and room in it."""
        if self._outgoing is None or self._outgoing.full():
            self.dropped += 1
            return
        self._outgoing.put_nowait(LINK_PROTOCOL.encode(message))

    async def run(self, ready: asyncio.Future[None]) -> None:
        """Dial, carry, and dial again until cancelled; `ready` when the first welcome was taken.

        The first time every error counts; later only those that waiting does not help against.
        """
        loop = asyncio.get_running_loop()
        lost_at: float | None = None
        while True:
            try:
                socket, welcome, url = await self._dial_any()
            except UnreachableError as error:
                if lost_at is None or isinstance(error, EndedError):
                    raise
                await asyncio.sleep(self._wait_s(loop.time() - lost_at))
                continue
            self.outage_s = 0.0 if lost_at is None else loop.time() - lost_at
            if not await self._carry(socket, welcome, ready):
                self.hosts.passed_over(url)
                await asyncio.sleep(self._wait_s(self.outage_s))
                continue
            lost_at = loop.time()
            await asyncio.sleep(max(self._wait_s(0.0), self._come_again_s * self._draw()))

    def _wait_s(self, outage_s: float) -> float:
        wait = min(max(outage_s * OUTAGE_PART, WAIT_S_MIN), WAIT_S_MAX)
        return wait * (0.5 + self._draw() / 2)

    async def _dial_any(self) -> tuple[sockets.ClientConnection, LinkWelcome, str]:
        """Open a socket to the first host that says welcome."""
        hosts = self.hosts.all()
        dials: dict[Dial, str] = {}
        errors: list[RoamcastError] = []
        try:
            while hosts or not all(dial.done() for dial in dials):
                if hosts:
                    address = hosts.pop(0)
                    dials[asyncio.create_task(self._dial(address))] = address.url
                waiting = [dial for dial in dials if not dial.done()]
                patience = STAGGER_S if hosts else None
                done, _ = await asyncio.wait(
                    waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED
                )
                for dial in done:
                    error = dial.exception()
                    if error is None:
                        url = dials.pop(dial)
                        self.hosts.answered(url)
                        return (*dial.result(), url)
                    if not isinstance(error, RoamcastError):
                        raise error
                    errors.append(error)
        finally:
            await _hang_up(dials)
        # What asking again does not help against comes first.
        raise next((one for one in errors if not isinstance(one, UnreachableError)), errors[0])

    async def _dial(self, address: ServiceAddress) -> tuple[sockets.ClientConnection, LinkWelcome]:
        """Open a socket and hear its first message."""
        url = address.url
        self.dialled += 1
        self.key = address.key
        try:
            socket = await sockets.connect(
                address.link(self.device),
                additional_headers={"Authorization": f"Bearer {self.key}"},
                subprotocols=[SUBPROTOCOL],
                compression=None,
                proxy=None,  # as the HTTP side of the SDK
                max_size=FRAME_BYTES_MAX,
                open_timeout=self._open_s,
                close_timeout=CLOSE_S,
                ping_interval=None,  # the service says every second that it is there
                ssl=(self._tls or True) if url.startswith("https:") else None,
            )
        except InvalidStatus as refusal:
            answer = refusal.response
            error = error_of(answer.status_code, bytes(answer.body or b""), url)
            raise error if isinstance(error, AuthError) else UnreachableError(str(error)) from None
        except (OSError, TimeoutError, WebSocketException) as error:
            raise unreachable(url, error) from None
        try:
            async with asyncio.timeout(self._open_s):
                first = LINK_PROTOCOL.decode(await socket.recv(decode=False))
        except (TimeoutError, ConnectionClosed) as error:
            await socket.close()
            raise unreachable(url, error) from None
        except asyncio.CancelledError:
            socket.transport.abort()
            raise
        if isinstance(first, LinkWelcome):
            return socket, first
        await socket.close()
        if isinstance(first, Goodbye):
            self._part(first)
            raise UnreachableError(f"{url} said goodbye at once: {first.reason}")
        raise UnreachableError(f"{url} does not speak {SUBPROTOCOL}; is it a Roamcast service?")

    async def _carry(
        self, socket: sockets.ClientConnection, welcome: LinkWelcome, ready: asyncio.Future[None]
    ) -> bool:
        """Carry frames both ways until the link breaks or falls silent; False: it was not kept."""
        self._come_again_s = 0.0
        self._outgoing = asyncio.Queue(FRAMES_MAX)
        writer = asyncio.create_task(self._write(socket, self._outgoing))
        loop = asyncio.get_running_loop()
        try:
            silence_s = self._welcomed(welcome)
            if silence_s is None:
                while not self._outgoing.empty():
                    await socket.send(self._outgoing.get_nowait())
                return False
            self.connected = True
            if not ready.done():
                ready.set_result(None)
            async with asyncio.timeout(silence_s) as patience:
                while True:
                    data = await socket.recv(decode=False)
                    patience.reschedule(loop.time() + silence_s)
                    self._take(data)
        except (ConnectionClosed, OSError, TimeoutError):
            return True
        finally:
            self.connected = False
            self._outgoing = None
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            await socket.close()

    async def _write(
        self, socket: sockets.ClientConnection, outgoing: asyncio.Queue[bytes]
    ) -> None:
        try:
            while True:
                await socket.send(await outgoing.get())
        except ConnectionClosed:
            return  # the reader notices, too

    def _take(self, data: bytes) -> None:
        message = LINK_PROTOCOL.decode(data)
        group = ""
        if isinstance(message, Grouped):
            group = message.group
            message = LINK_PROTOCOL.decode(message.frame)
        if isinstance(message, Unreadable):
            self.unreadable += 1
        elif isinstance(message, Goodbye):
            self._part(message)
        elif isinstance(message, LinkWelcome):
            self._renewed(message)
        else:
            self._told(group, message)

    def _part(self, goodbye: Goodbye) -> None:
        """Come again when the service says so; never, if it says that."""
        if goodbye.reason.startswith("scope:"):
            raise ForbiddenError(goodbye.reason.removeprefix("scope:").strip())
        if goodbye.reason.startswith("token:"):
            # Another key opens another link; the same one would be refused.
            if self.hosts.current.key == self.key:
                raise AuthError(goodbye.reason.removeprefix("token:").strip())
            return
        if goodbye.retry_us == 0:
            raise EndedError(f"the service ended the session: {goodbye.reason}")
        self._come_again_s = goodbye.retry_us / 1_000_000


async def _hang_up(
    dials: "Iterable[asyncio.Task[tuple[sockets.ClientConnection, LinkWelcome]]]",
) -> None:
    """End the calls to hosts that were too late."""
    dials = list(dials)
    for dial in dials:
        dial.cancel()
    for ended in await asyncio.gather(*dials, return_exceptions=True):
        if isinstance(ended, tuple):
            ended[0].transport.abort()
