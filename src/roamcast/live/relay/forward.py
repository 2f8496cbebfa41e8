"""HTTP requests of a relay's clients, forwarded to the service as they are.

The service checks the client's own token and answers; the relay stores and interprets nothing.
"""

import asyncio
import http.client
import ssl
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from roamcast.errors import LimitError, MissingError
from roamcast.transport.http import RESPONSE_BYTES_MAX, unreachable

FORWARDED_MAX: Final = 32
"""Requests in flight at once; further ones wait."""

REQUEST_HEADERS: Final = (b"authorization", b"accept", b"content-type", b"host", b"origin")
RESPONSE_HEADERS: Final = ("content-type", "www-authenticate", "retry-after", "location", "allow")


class ForwardedRequest(msgspec.Struct, frozen=True):
    """A request as it came."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


ForwardedAnswer = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers and body."""


class Forwarding:
    """Forwards requests to one service."""

    def __init__(self, url: str, *, timeout_s: float, tls: ssl.SSLContext | None) -> None:
        self._url = urlsplit(url)
        self._timeout_s = timeout_s
        self._tls = tls
        self._threads = ThreadPoolExecutor(FORWARDED_MAX, thread_name_prefix="forward")

    async def ask(self, scope: Any, receive: Any, body_bytes_max: int) -> ForwardedAnswer:
        """Read a request to its end, and give the service's answer."""
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise LimitError("the request was not sent to its end")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > body_bytes_max:
                raise LimitError(f"a body has at most {body_bytes_max} bytes")
            more = message.get("more_body", False)
        query = scope["query_string"]
        path = scope.get("raw_path") or scope["path"].encode()
        request = ForwardedRequest(
            scope["method"],
            (path + (b"?" + query if query else b"")).decode("latin-1"),
            tuple(
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in scope["headers"]
                if name in REQUEST_HEADERS
            ),
            b"".join(parts),
        )
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._ask, request)

    def close(self) -> None:
        """Forward nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self, request: ForwardedRequest) -> ForwardedAnswer:
        url = self._url
        assert url.hostname
        connection: http.client.HTTPConnection
        if url.scheme == "https":
            tls = self._tls or ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                url.hostname, url.port, timeout=self._timeout_s, context=tls
            )
        else:
            connection = http.client.HTTPConnection(url.hostname, url.port, timeout=self._timeout_s)
        try:
            connection.putrequest(
                request.method, url.path + request.target, skip_host=True, skip_accept_encoding=True
            )
            for name, value in request.headers:
                connection.putheader(name, value)
            connection.putheader("connection", "close")
            connection.putheader("content-length", str(len(request.body)))
            connection.endheaders(request.body)
            answer = connection.getresponse()
            body = answer.read(RESPONSE_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise MissingError(str(unreachable(url.geturl(), error))) from None
        finally:
            connection.close()
        if len(body) > RESPONSE_BYTES_MAX:
            raise LimitError(f"the answer has more than {RESPONSE_BYTES_MAX} bytes; ask for less")
        headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in answer.getheaders()
            if name.lower() in RESPONSE_HEADERS
        ]
        return answer.status, headers, body
