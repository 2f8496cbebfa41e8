"""How does the SDK ask a question over HTTP? One request in a thread; problems become errors."""

import asyncio
import http.client
import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from roamcast.errors import (
    AuthError,
    ConflictError,
    ForbiddenError,
    InputError,
    LimitError,
    NotFoundError,
    RoamcastError,
    UnreachableError,
)
from roamcast.transport.address import ServiceAddress
from roamcast.transport.hosts import Hosts

RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
DETAIL_LENGTH_MAX: Final = 500
CONNECT_S_MAX: Final = 3.0
"""Where there is another host to ask, one that does not answer is not waited for longer."""


class _NobodyError(UnreachableError):
    """Nothing was asked: there was no connection."""


class ProblemBody(msgspec.Struct, frozen=True):
    """RFC 9457 problem details, as far as we read them."""

    title: str = ""
    detail: str = ""


class HttpClient:
    """Asks one service; every request has its own connection, so that nothing needs closing."""

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
        """Send a request and give the JSON of its answer, none if it has none."""
        target = f"{path}?{urlencode(query)}" if query else path
        sent = None if body is None else msgspec.json.encode(body)
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
        """Ask the first host that takes the question; nobody is asked twice."""
        hosts = self.hosts.all()
        problem: UnreachableError | None = None
        for address in hosts:
            try:
                status, data = self._ask(address, method, target, body, kind, len(hosts) == 1)
            except _NobodyError as error:
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
        headers = {**address.headers, "Accept": "application/json", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = kind
        try:
            connection.timeout = self._timeout_s if alone else min(self._timeout_s, CONNECT_S_MAX)
            connection.connect()
            connection.sock.settimeout(self._timeout_s)
        except OSError as error:
            connection.close()
            raise _NobodyError(str(unreachable(address.url, error))) from None
        try:
            connection.request(method, parts.path + target, body, headers)
            answer = connection.getresponse()
            data = answer.read(RESPONSE_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(address.url, error) from None
        finally:
            connection.close()
        if len(data) > RESPONSE_BYTES_MAX:
            raise LimitError(f"the answer has more than {RESPONSE_BYTES_MAX} bytes; ask for less")
        return answer.status, data


def unreachable(url: str, error: BaseException) -> UnreachableError:
    """Say that nobody answered, and what to do."""
    said = str(error) or type(error).__name__
    return UnreachableError(
        f"no service answers at {url} ({said}); is `roamcast serve` running there?"
    )


def error_of(status: int, data: bytes, url: str) -> RoamcastError:
    """Turn a problem into the error of our tree that says the same."""
    try:
        problem = msgspec.json.decode(data, type=ProblemBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = ProblemBody()
    said = (problem.detail or problem.title)[:DETAIL_LENGTH_MAX] or f"{url} answered {status}"
    if status in {401, 403}:
        return AuthError(said) if status == 401 else ForbiddenError(said)
    if status == 404:
        return NotFoundError(said)
    if status == 409:
        return ConflictError(said)
    if status in {413, 414, 429, 431}:
        return LimitError(said)
    if status >= 500 or status < 400:
        return UnreachableError(f"{url} answered {status}: {said}")
    return InputError(said)
