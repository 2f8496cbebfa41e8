"""A WebSocket link that dials, checks whom it reached, talks, and dials again.

`ReconnectingLink` carries frames of one registry and waits as its `LinkPolicy` says. A subclass
says what is dialled, how the other side proves itself and what its messages mean. Frames that
cannot be sent are dropped: the machines on both ends repeat what matters.
"""

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import websockets.asyncio.client as sockets
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from roamcast.errors import RoamcastError, UnreachableError
from roamcast.model.machine import Draw
from roamcast.model.wire import FRAME_BYTES_MAX, Message, Registry, Unreadable

FRAMES_MAX: Final = 4_096
"""Frames that wait to be written; beyond it they are dropped, and repeated by the machine."""


class EndedError(UnreachableError):
    """The other side ended the link for good; dialling again would not help."""


class LinkPolicy(msgspec.Struct, frozen=True):
    """How long a link waits, and for what."""

    wait_s_min: float
    """Shortest pause before dialling again."""
    wait_s_max: float
    outage_part: float = 0.0
    """Pause as a part of the outage so far, within the two bounds above (decision 0075)."""
    open_s: float = 10.0
    """For the connection to open, and again for its first message."""
    close_s: float = 1.0
    stagger_s: float = 0.3
    """A target that neither answers nor refuses for this long does not delay the next one."""
    first_must_open: bool = False
    """Whether `run` raises when the first round of dials reaches nobody."""

    def wait_s(self, outage_s: float, draw: Draw) -> float:
        """Give the pause after this much outage; drawn, so that clients do not come all at once."""
        wait = min(max(outage_s * self.outage_part, self.wait_s_min), self.wait_s_max)
        return wait * (0.5 + draw() / 2)


class LinkTarget(msgspec.Struct, frozen=True):
    """One address to dial."""

    url: str
    """Of the WebSocket, `ws://…` or `wss://…`."""
    headers: dict[str, str]
    name: str = ""
    """For the subclass: which host this is."""
    subprotocol: str = ""
    tls: ssl.SSLContext | None = None


Dial = asyncio.Task[tuple[sockets.ClientConnection, Message]]


class ReconnectingLink(ABC):
    """One link, in `run` until cancelled or ended for good.

    An error that `check_first` raises makes the link try its other targets; one that `opened` or
    `received` raises ends it for good.
    """

    def __init__(self, registry: Registry, policy: LinkPolicy, *, draw: Draw) -> None:
        self.policy = policy
        self.connected = False
        self.dialled = 0
        self.dropped = 0
        self.unreadable = 0
        self.pause_s = 0.0
        """The other side asks to stay away for up to this long; for the pause that follows."""
        self._registry = registry
        self._draw = draw
        self._outgoing: asyncio.Queue[bytes] | None = None

    @abstractmethod
    def targets(self) -> Sequence[LinkTarget]:
        """Give the addresses to dial now, the most promising first; at least one."""

    @abstractmethod
    def dial_error(self, target: LinkTarget, error: Exception) -> RoamcastError:
        """Say why a dial failed; anything but `UnreachableError` ends the link for good."""

    @abstractmethod
    def check_first(self, target: LinkTarget, first: Message | Unreadable) -> None:
        """Raise unless the first message is that of whom we dialled."""

    @abstractmethod
    def opened(self, target: LinkTarget, first: Message) -> float | None:
        """Take the first message; give how many seconds of silence mean that the link is dead.

        None: this is not the right target; what was sent to it meanwhile is still delivered.
        """

    @abstractmethod
    def received(self, message: Message) -> None:
        """Take every further message that can be read."""

    @abstractmethod
    def closed(self) -> None:
        """A link that had been opened is over; another one is dialled."""

    def send(self, message: Message) -> None:
        """Send a message if there is a link and room in it."""
        if self._outgoing is None or self._outgoing.full():
            self.dropped += 1
            return
        self._outgoing.put_nowait(self._registry.encode(message))

    async def run(self, ready: "asyncio.Future[None] | None" = None) -> None:
        """Dial, talk and dial again until cancelled; `ready` is done with the first open link."""
        loop = asyncio.get_running_loop()
        lost_at: float | None = None
        while True:
            self.pause_s = 0.0
            try:
                socket, first, target = await self._dial_any()
            except UnreachableError as error:
                first_round = lost_at is None and self.policy.first_must_open
                if first_round or isinstance(error, EndedError):
                    raise
            else:
                if await self._talk(socket, target, first, ready):
                    lost_at = loop.time()
            outage_s = 0.0 if lost_at is None else loop.time() - lost_at
            wait_s = self.policy.wait_s(outage_s, self._draw)
            await asyncio.sleep(max(wait_s, self.pause_s * self._draw()))

    async def _dial_any(self) -> tuple[sockets.ClientConnection, Message, LinkTarget]:
        """Open a socket to the first target whose first message is right."""
        targets = list(self.targets())
        assert targets, "there is nothing to dial"
        dials: dict[Dial, LinkTarget] = {}
        errors: list[RoamcastError] = []
        try:
            while targets or not all(dial.done() for dial in dials):
                if targets:
                    target = targets.pop(0)
                    dials[asyncio.create_task(self._dial(target))] = target
                waiting = [dial for dial in dials if not dial.done()]
                patience = self.policy.stagger_s if targets else None
                done, _ = await asyncio.wait(
                    waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED
                )
                for dial in done:
                    error = dial.exception()
                    if error is None:
                        target = dials.pop(dial)
                        return (*dial.result(), target)
                    if not isinstance(error, RoamcastError):
                        raise error
                    errors.append(error)
        finally:
            await _hang_up(dials)
        # An error that dialling again does not help against says more than that nobody answered.
        final = (error for error in errors if not isinstance(error, UnreachableError))
        raise next(final, errors[0])

    async def _dial(self, target: LinkTarget) -> tuple[sockets.ClientConnection, Message]:
        """Open a socket and check its first message."""
        policy = self.policy
        self.dialled += 1
        try:
            socket = await sockets.connect(
                target.url,
                additional_headers=target.headers,
                subprotocols=[Subprotocol(target.subprotocol)] if target.subprotocol else None,
                compression=None,
                proxy=None,  # HTTP requests to the same hosts use none either
                max_size=FRAME_BYTES_MAX,
                open_timeout=policy.open_s,
                close_timeout=policy.close_s,
                ping_interval=None,  # `opened` says how long silence may last
                ssl=(target.tls or True) if target.url.startswith("wss:") else None,
            )
        except (OSError, TimeoutError, WebSocketException) as error:
            raise self.dial_error(target, error) from None
        try:
            async with asyncio.timeout(policy.open_s):
                first = self._registry.decode(await socket.recv(decode=False))
            self.check_first(target, first)
        except (TimeoutError, ConnectionClosed) as error:
            await socket.close()
            raise self.dial_error(target, error) from None
        except RoamcastError:
            await socket.close()
            raise
        except asyncio.CancelledError:
            socket.transport.abort()  # another target was faster: no closing handshake
            raise
        assert not isinstance(first, Unreadable), "check_first lets nothing unreadable pass"
        return socket, first

    async def _talk(
        self,
        socket: sockets.ClientConnection,
        target: LinkTarget,
        first: Message,
        ready: "asyncio.Future[None] | None",
    ) -> bool:
        """Carry frames both ways until the link breaks or falls silent.

        False: this was not the right target.
        """
        # Before `opened`, which may answer the first message at once.
        self._outgoing = asyncio.Queue(FRAMES_MAX)
        writer = asyncio.create_task(_write(socket, self._outgoing))
        loop = asyncio.get_running_loop()
        try:
            silence_s = self.opened(target, first)
            if silence_s is None:
                while not self._outgoing.empty():
                    await socket.send(self._outgoing.get_nowait())
                return False
            self.connected = True
            if ready is not None and not ready.done():
                ready.set_result(None)
            async with asyncio.timeout(silence_s) as patience:
                while True:
                    data = await socket.recv(decode=False)
                    patience.reschedule(loop.time() + silence_s)
                    message = self._registry.decode(data)
                    if isinstance(message, Unreadable):
                        self.unreadable += 1
                    else:
                        self.received(message)
        except (ConnectionClosed, OSError, TimeoutError):
            return self.connected
        finally:
            # First of all: `closed` may make the machine send, and that must not wait in a queue
            # that nobody reads.
            self._outgoing = None
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            if self.connected:
                self.connected = False
                self.closed()
            await socket.close()


async def _write(socket: sockets.ClientConnection, outgoing: "asyncio.Queue[bytes]") -> None:
    try:
        while True:
            await socket.send(await outgoing.get())
    except ConnectionClosed:
        return  # the reader notices, too


async def _hang_up(dials: Iterable[Dial]) -> None:
    """End the dials that were too late."""
    dials = list(dials)
    for dial in dials:
        dial.cancel()
    for ended in await asyncio.gather(*dials, return_exceptions=True):
        if isinstance(ended, tuple):
            ended[0].transport.abort()
