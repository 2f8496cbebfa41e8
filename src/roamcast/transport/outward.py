"""Requests to addresses that strangers have named, such as webhooks and push services.

Whoever names an address must not reach this machine's neighbours through us: it is on the public
network and reached by https, unless the operator allows otherwise. A name is resolved once, every
address it has is checked, and the connection goes to a checked one; no redirect is followed.
"""

import http.client
import ipaddress
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from roamcast.errors import InputError

URL_LENGTH_MAX: Final = 2_048
ANSWER_BYTES_MAX: Final = 65_536
"""Bytes of an answer that are read; what it says does not matter."""

Resolve = Callable[[str, int], list[str]]


class OutwardRefusedError(Exception):
    """A receiver was not asked: its address is not one to ask."""


OUTWARD_ERRORS: Final = (OutwardRefusedError, OSError, http.client.HTTPException)
"""What asking may raise."""


def addresses_of(host: str, port: int) -> list[str]:
    """Give the addresses of a name."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def check_outward(url: str, *, private: bool) -> None:
    """Refuse an address that nobody may name; its host is resolved with each request."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InputError("url is not an address") from None
    if len(url) > URL_LENGTH_MAX or any(ord(one) <= 32 or ord(one) > 126 for one in url):
        raise InputError(f"url has at most {URL_LENGTH_MAX} printable ASCII characters")
    if parts.scheme not in ("https", "http") or not parts.hostname or port == 0:
        raise InputError("url is an address such as https://example.org/hook")
    if parts.username is not None or parts.fragment:
        raise InputError("url has neither a user nor a fragment")
    if parts.scheme == "http" and not private:
        raise InputError("url begins with https://")


def ask_outward(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
    *,
    private: bool,
    timeout_s: float,
    resolve: Resolve = addresses_of,
    tls: ssl.SSLContext | None = None,
) -> tuple[int, dict[str, str]]:
    """Ask once, over a connection of its own; give the status and the headers of the answer."""
    parts = urlsplit(url)
    assert parts.hostname
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    address = _public(resolve(parts.hostname, port), private=private)
    taken: Any = socket.create_connection((address, port), timeout=timeout_s)
    try:
        if secure:
            context = tls or ssl.create_default_context()
            taken = context.wrap_socket(taken, server_hostname=parts.hostname)
        connection = http.client.HTTPConnection(parts.netloc)
        connection.sock = taken
        target = parts.path or "/"
        target += f"?{parts.query}" if parts.query else ""
        connection.request(method, target, body, {**headers, "Connection": "close"})
        answer = connection.getresponse()
        answer.read(ANSWER_BYTES_MAX)
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}
    finally:
        taken.close()


def _public(found: list[str], *, private: bool) -> str:
    inside = [one for one in found if not ipaddress.ip_address(one.partition("%")[0]).is_global]
    if inside and not private:
        raise OutwardRefusedError("its address is not public")
    if not found:
        raise OutwardRefusedError("its name has no address")
    return found[0]
