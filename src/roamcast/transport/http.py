"""HTTP requests of the SDK: each in a thread, with problem details turned into our errors."""

import asyncio
import http.client
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from roamcast.errors import (
    AuthError,
    ConflictError,
    ForbiddenError,
    InputError,
    LimitError,
    MovedError,
    NotFoundError,
    RoamcastError,
    UnreachableError,
)
from roamcast.transport.address import Hosts, ServiceAddress

RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
DETAIL_LENGTH_MAX: Final = 500
LINE_BYTES_MAX: Final = 4 * 1024 * 1024
LINES_MAX: Final = 64
"""Lines of an endless answer that wait for their reader."""

CONNECT_S_MAX: Final = 3.0
"""Longest wait for a connection where there is another host to try."""


class _NotConnectedError(UnreachableError):
    """There was no connection, so the request was certainly not sent."""


class ProblemBody(msgspec.Struct, frozen=True):
    """The fields of RFC 9457 problem details that we read."""

    title: str = ""
    detail: str = ""
    url: str = ""


class HttpClient:
    """Requests to one service; each has its own connection, so that nothing needs closing."""

    def __init__(
        self,
        where: ServiceAddress | Hosts,
        *,
        timeout_s: float = 30.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.hosts = where if isinstance(where, Hosts) else Hosts(where)
        self._timeout_s = timeout_s
        self._tls = tls

    async def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Any = None,
        kind: str = "application/json",
    ) -> Any:
        """Send a request, its body as JSON or bytes as they are, and give its answer as JSON."""
        target = f"{path}?{urlencode(query)}" if query else path
        sent = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        status, data, url = await asyncio.to_thread(self._ask_any, method, target, sent, kind)
        self.hosts.answered(url)
        if status >= 300:
            raise error_of(status, data, url)
        if not data:
            return None
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnreachableError(
                f"{url} does not answer as a Roamcast service does: {error}"
            ) from None

    def _ask_any(
        self, method: str, target: str, body: bytes | None, kind: str
    ) -> tuple[int, bytes, str]:
        """Ask the first host that takes the connection; no request is sent twice."""
        hosts = self.hosts.all()
        problem: UnreachableError | None = None
        for address in hosts:
            try:
                status, data = self._ask(address, method, target, body, kind, len(hosts) == 1)
            except _NotConnectedError as error:
                problem = problem or error
            else:
                return status, data, address.url
        assert problem is not None
        raise problem

    def _ask(
        self,
        address: ServiceAddress,
        method: str,
        target: str,
        body: bytes | None,
        kind: str,
        alone: bool,
    ) -> tuple[int, bytes]:
        headers = {**address.headers, "Accept": "application/json", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = kind
        connection = self._connected(address, alone)
        try:
            connection.request(method, urlsplit(address.url).path + target, body, headers)
            answer = connection.getresponse()
            data = answer.read(RESPONSE_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(address.url, error) from None
        finally:
            connection.close()
        if len(data) > RESPONSE_BYTES_MAX:
            raise LimitError(f"the answer has more than {RESPONSE_BYTES_MAX} bytes; ask for less")
        return answer.status, data

    def _connected(self, address: ServiceAddress, alone: bool) -> http.client.HTTPConnection:
        parts = urlsplit(address.url)
        assert parts.hostname
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            tls = self._tls or ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=self._timeout_s, context=tls
            )
        else:
            connection = http.client.HTTPConnection(
                parts.hostname, parts.port, timeout=self._timeout_s
            )
        try:
            connection.timeout = self._timeout_s if alone else min(self._timeout_s, CONNECT_S_MAX)
            connection.connect()
            connection.sock.settimeout(self._timeout_s)
        except OSError as error:
            connection.close()
            raise _NotConnectedError(str(unreachable(address.url, error))) from None
        return connection

    @asynccontextmanager
    async def lines(self, path: str, *, silence_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Read an endless answer line by line, until it ends or is silent for too long."""
        address = self.hosts.current
        loop = asyncio.get_running_loop()
        held: asyncio.Queue[bytes | RoamcastError | None] = asyncio.Queue()
        room = threading.Semaphore(LINES_MAX)
        over = threading.Event()
        connection = await asyncio.to_thread(self._connected, address, True)
        connection.sock.settimeout(silence_s)

        def put(line: bytes | RoamcastError | None) -> None:
            # The thread waits for the reader: an endless answer is never held as a whole.
            room.acquire()
            with suppress(RuntimeError):  # the loop is closed: nobody reads
                loop.call_soon_threadsafe(held.put_nowait, line)

        def read() -> None:
            try:
                headers = {**address.headers, "Connection": "close"}
                connection.request("GET", urlsplit(address.url).path + path, None, headers)
                answer = connection.getresponse()
                if answer.status >= 300:
                    data = answer.read(RESPONSE_BYTES_MAX)
                    put(error_of(answer.status, data, address.url))
                while not over.is_set() and (line := answer.readline(LINE_BYTES_MAX + 1)):
                    if len(line) > LINE_BYTES_MAX:
                        put(LimitError(f"a line has more than {LINE_BYTES_MAX} bytes"))
                    put(line)
            except (OSError, ValueError, http.client.HTTPException) as error:
                put(unreachable(address.url, error))
            put(None)

        async def given() -> AsyncIterator[bytes]:
            while (line := await held.get()) is not None:
                room.release()
                if isinstance(line, RoamcastError):
                    raise line
                yield line

        # A thread of its own: the loop's few threads are for requests that end.
        reading = threading.Thread(target=read, name="lines", daemon=True)
        reading.start()
        try:
            yield given()
        finally:
            with suppress(OSError, AttributeError):  # http.client lets go of a socket that ended
                connection.sock.shutdown(socket.SHUT_RDWR)
            over.set()
            room.release(LINES_MAX)
            await asyncio.to_thread(reading.join)
            connection.close()


def unreachable(url: str, error: BaseException) -> UnreachableError:
    """Make the error for a service that does not answer."""
    detail = str(error) or type(error).__name__
    return UnreachableError(
        f"no service answers at {url} ({detail}); is `roamcast serve` running there?"
    )


def error_of(status: int, data: bytes, url: str) -> RoamcastError:
    """Turn problem details into the matching error of our tree."""
    try:
        problem = msgspec.json.decode(data, type=ProblemBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = ProblemBody()
    detail = (problem.detail or problem.title)[:DETAIL_LENGTH_MAX] or f"{url} answered {status}"
    if status in {401, 403}:
        return AuthError(detail) if status == 401 else ForbiddenError(detail)
    if status == 404:
        return NotFoundError(detail)
    if status == 409:
        return ConflictError(detail)
    if status == 421:
        moved = MovedError(detail)
        moved.url = problem.url
        return moved
    if status in {413, 414, 429, 431}:
        return LimitError(detail)
    if status >= 500 or status < 400:
        return UnreachableError(f"{url} answered {status}: {detail}")
    return InputError(detail)
