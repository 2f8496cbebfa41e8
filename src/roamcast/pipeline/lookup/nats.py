"""Messages from a stream of NATS, read by their numbers.

A stream keeps and numbers its messages, so a range of numbers is the same messages however often it
is read: a micro-batch can be repeated after a crash. Nothing is acknowledged and nothing deleted;
how long messages stay is the stream's own setting.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from roamcast.errors import InputError, MissingError, RoamcastError

if TYPE_CHECKING:
    from nats.js import JetStreamContext

SCHEMES = ("nats://", "tls://")
PATIENCE_S = 60.0
"""How long a server may be away before a watch ends."""

PAUSE_S = 0.5
TIMEOUT_S = 5
FETCHED_TOGETHER = 1_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")
_Answer = TypeVar("_Answer")


class StreamAddress(msgspec.Struct, frozen=True):
    """Address of a stream: server, name and user."""

    server: str
    stream: str
    user: str = ""
    password_file: str = ""


class StreamState(msgspec.Struct, frozen=True):
    """Which stream it is, and the number of its newest message; 0 if there is none."""

    created: str
    newest: int


def parse_address(text: str, password_file: str = "") -> StreamAddress:
    """Read nats://user@host:port/STREAM; a password stands in a file, not in a command."""
    parts = urlsplit(text)
    stream = parts.path.removeprefix("/")
    example = "give nats://host:port/STREAM"
    try:
        port = parts.port or 4222
    except ValueError:
        raise InputError(f"the port is no number: {example}", source=text) from None
    if parts.password is not None:
        raise InputError("others can read a command's words: give --password-file instead")
    if not text.startswith(SCHEMES) or not parts.hostname or not _NAME.fullmatch(stream):
        raise InputError(f"this is no stream of NATS: {example}", source=text)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    server = f"{parts.scheme}://{host}:{port}"
    return StreamAddress(server, stream, parts.username or "", password_file)


def state_of(address: StreamAddress, patience_s: float = PATIENCE_S) -> StreamState:
    """Return when a stream was created, and the number of its newest message."""

    async def ask(stream: "JetStreamContext") -> StreamState:
        found = await stream.stream_info(address.stream)
        created = found.created.isoformat() if found.created else ""
        return StreamState(created, found.state.last_seq)

    return _asked(address, ask, patience_s)


def read_range(
    address: StreamAddress, after: int, until: int, patience_s: float = PATIENCE_S
) -> list[bytes]:
    """Give the messages with numbers above `after` up to `until`, as far as they still exist."""

    async def read(stream: "JetStreamContext") -> list[bytes]:
        return await _read(stream, address.stream, after, until)

    return _asked(address, read, patience_s)


async def _read(stream: "JetStreamContext", name: str, after: int, until: int) -> list[bytes]:
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=after + 1,
        ack_policy=AckPolicy.NONE,
        inactive_threshold=PATIENCE_S,
        mem_storage=True,
    )
    reader = await stream.pull_subscribe("", stream=name, config=config)
    found: list[bytes] = []
    left = (await reader.consumer_info()).num_pending or 0
    number = after
    while left and number < until:
        many = min(FETCHED_TOGETHER, until - number, left)
        for message in await reader.fetch(many, timeout=TIMEOUT_S):
            number, left = message.metadata.sequence.stream, message.metadata.num_pending
            if number <= until:
                found.append(message.data)
    await reader.unsubscribe()
    return found


def _asked(
    address: StreamAddress,
    work: "Callable[[JetStreamContext], Awaitable[_Answer]]",
    patience_s: float,
) -> _Answer:
    """Connect, run a request and disconnect; retry an unreachable server until the time is up."""
    from nats.errors import Error
    from nats.js.errors import NotFoundError

    end = time.monotonic() + patience_s
    where = f"{address.server}/{address.stream}"
    while True:
        try:
            return asyncio.run(_once(address, work))
        except NotFoundError:
            raise MissingError(
                f"no stream {address.stream} at {address.server}: make it, for instance by "
                f"`nats stream add {address.stream} --subjects messages`"
            ) from None
        except (Error, OSError) as error:
            if "authorization" in str(error).lower():  # the package has several errors for it
                raise MissingError(
                    f"{address.server} lets nobody in by this name: give nats://USER@… and "
                    "--password-file"
                ) from None
            if time.monotonic() >= end:
                reason = str(error) or type(error).__name__
                raise RoamcastError(f"{where} does not answer: {reason[:200]}") from None
            time.sleep(PAUSE_S)


async def _once(
    address: StreamAddress, work: "Callable[[JetStreamContext], Awaitable[_Answer]]"
) -> _Answer:
    from nats.aio.client import Client

    async def quiet(_error: Exception) -> None:
        """What matters is raised as well."""

    login: dict[str, Any] = {"user": address.user} if address.user else {}
    if address.password_file:
        try:
            login["password"] = Path(address.password_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise MissingError(
                f"cannot read the password in {address.password_file}: {error.strerror}"
            ) from None
    client = Client()
    try:
        await client.connect(
            servers=[address.server],
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=TIMEOUT_S,
            error_cb=quiet,
            **login,
        )
        return await work(client.jetstream(timeout=TIMEOUT_S))
    finally:
        await client.close()
