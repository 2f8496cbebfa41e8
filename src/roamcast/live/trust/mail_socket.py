"""A mailbox over a WebSocket: mail as it comes, acknowledgements back, on one connection.

`WS /mailbox` is where the mailbox is: at the trusted node, inside a service or as its own process.
It is not a part of `/session`: that is a broker's, which must not learn whose mail comes when.
"""

import asyncio
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from roamcast.channels.sessions.messages import AnsweredRe, Re
from roamcast.errors import ForbiddenError, NotFoundError, RoamcastError
from roamcast.identity.trusted.mailboxes import Mail
from roamcast.live.auth.admission import Bucket, Grant
from roamcast.live.auth.grants import OpenGrants
from roamcast.live.config.settings import Settings
from roamcast.live.links.sockets import EXTENSION, GOING_AWAY, TRY_AGAIN, WebSocket, text_frame
from roamcast.live.observe.metrics import Metrics
from roamcast.live.trust.host import RunningTrust
from roamcast.model.casts import ID_LENGTH_MAX
from roamcast.model.json_text import TOO_DEEP
from roamcast.model.time import MICROSECONDS, format_instant
from roamcast.transport.driver import Clock

MAILBOX = "/mailbox"
SUBPROTOCOL = "roamcast.mail.v1"
ACKS_MAX = 256
"""Acknowledgements of one connection that may wait for the disk; then it is not read."""


class MailBody(msgspec.Struct, frozen=True):
    """One sealed mail; the key of `vid` opens it."""

    id: str
    vid: str
    sender: str
    kind: str
    sealed: bytes
    arrived: str
    seen_until_us: int


class MailFrame(MailBody, frozen=True, tag_field="type", tag="mail"):
    """A mail comes; what is not acknowledged comes again with the next connection."""


class AckMailRequest(
    msgspec.Struct, frozen=True, tag_field="type", tag="ack", forbid_unknown_fields=True
):
    """Delete a mail that is on your own disk; repeats are harmless."""

    id: Annotated[str, Meta(min_length=1, max_length=ID_LENGTH_MAX)]
    re: Re = ""


class MailAcked(msgspec.Struct, frozen=True, tag_field="type", tag="done"):
    """The mail is deleted, on disk, too."""

    re: AnsweredRe
    id: str


class MailProblem(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """The request has been refused, and nothing has changed."""

    re: AnsweredRe
    status: int
    title: str
    detail: str


_decode = msgspec.json.Decoder(AckMailRequest).decode
_encode = msgspec.json.Encoder().encode


def as_body(mail: Mail) -> MailBody:
    """Give a mail as people's programs read it."""
    arrived = format_instant(mail.arrived_us)
    told = (mail.vid, mail.sender, mail.kind, mail.sealed, arrived, mail.seen_until_us)
    return MailBody(mail.cast, *told)


class MailHost(Protocol):
    """What a mailbox needs of the process that has it."""

    settings: Settings
    metrics: Metrics
    clock: Clock
    standing: OpenGrants

    @property
    def trust(self) -> RunningTrust | None:
        """The trusted node in this process."""

    async def grant_of(self, token: str) -> Grant:
        """Check a token."""

    def count_connection(self, subject: str, by: int) -> None:
        """Count a connection in or out."""


def person_of(host: Any, grant: Grant) -> str:
    """Give who asks by name; a vid is nobody at a trusted node."""
    registrations = getattr(host, "registrations", None)
    if registrations is not None and registrations.is_vid(grant.subject):
        # Each vid would draw pools of its own, and each of theirs again (decision 0189).
        raise ForbiddenError("a vid is nobody: ask with a token that has your name")
    return grant.subject


async def serve_mailbox(host: MailHost, scope: Any, send: Any, token: str) -> None:
    """Admit somebody by their token, and push their mail until the connection is over."""
    trust = host.trust
    if trust is None:
        raise NotFoundError("this service runs no trusted node: ask yours")
    grant = await host.grant_of(token)
    grant.require("subscribe")
    host.count_connection(grant.subject, +1)
    try:
        await trust.welcome(person_of(host, grant))
        chosen = SUBPROTOCOL if SUBPROTOCOL in scope["subprotocols"] else None
        await send({"type": "websocket.accept", "subprotocol": chosen})
        socket: WebSocket = scope["extensions"][EXTENSION]
        with host.metrics.sockets.labels("mailbox").track_inprogress():
            await MailSocket(host, trust, socket, grant).run()
    finally:
        host.count_connection(grant.subject, -1)


class MailSocket:
    """One person's mailbox on one WebSocket; the machine's window bounds what waits to be read."""

    def __init__(
        self, host: MailHost, trust: RunningTrust, socket: WebSocket, grant: Grant
    ) -> None:
        self._host = host
        self._trust = trust
        self._socket = socket
        self._grant = grant
        limits = host.settings.limits
        self._bucket = Bucket(limits.frames_per_s, limits.frames_burst, host.clock())
        self._acks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Push and acknowledge until the connection is over."""
        limits = self._host.settings.limits
        inbox = ""
        try:
            inbox = await self._trust.connect(self._grant.subject, self)
            with self._host.standing.held(self._grant, self.cut):
                await self._socket.serve(
                    self, high_bytes=limits.socket_high_bytes, low_bytes=limits.socket_low_bytes
                )
        except RoamcastError as error:  # too late for a status
            self._socket.close(TRY_AGAIN, str(error))
        finally:
            self._trust.disconnect(inbox)
            for task in self._acks:
                task.cancel()

    def push(self, mail: Mail) -> None:
        """Write a mail."""
        body = as_body(mail)
        fields = (getattr(body, name) for name in body.__struct_fields__)
        self._say(MailFrame(*fields))

    def end(self) -> None:
        """Another connection of the person takes over, or the node goes down."""
        self._socket.close(GOING_AWAY, "another connection reads this mailbox now")

    def cut(self, reason: str) -> None:
        """End it: its token is no longer valid, or it sends too much."""
        self._socket.close(TRY_AGAIN, reason)

    def received(self, data: bytes | str) -> None:
        """Take an acknowledgement; a wrong message is answered and changes nothing."""
        limits = self._host.settings.limits
        wait_us = self._bucket.owe(self._host.clock())
        if self._bucket.owed > limits.frames_burst:
            self.cut(f"too many messages: at most {limits.frames_per_s:g} a second")
            return
        if wait_us:
            self._socket.hold(wait_us / MICROSECONDS)
        try:
            given = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._say(MailProblem("", 400, "the message can not be read", str(error)[:1_000]))
            return
        except RecursionError:
            self._say(MailProblem("", 400, "the message can not be read", TOO_DEEP))
            return
        task = asyncio.get_running_loop().create_task(self._ack(given))
        self._acks.add(task)
        task.add_done_callback(self._acked)
        self._socket.halt(len(self._acks) >= ACKS_MAX)

    def paused(self) -> None:
        """Nothing more comes than the machine's window."""

    def resumed(self) -> None:
        """Nothing waits here."""

    async def _ack(self, given: AckMailRequest) -> None:
        try:
            await self._trust.ack(self._grant.subject, given.id)
        except RoamcastError as error:
            self._say(MailProblem(given.re, error.status, error.title, str(error)[:1_000]))
        else:
            self._say(MailAcked(given.re, given.id))

    def _acked(self, task: asyncio.Task[None]) -> None:
        self._acks.discard(task)
        self._socket.halt(len(self._acks) >= ACKS_MAX)

    def _say(self, message: msgspec.Struct) -> None:
        self._socket.write(text_frame(_encode(message)))
