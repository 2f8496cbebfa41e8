"""Where is the service, and with which key? Said, in the environment, or in `roamcast.json`."""

import base64
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec

from roamcast.errors import InputError, MissingError

URL_VARIABLE: Final = "ROAMCAST_URL"
TOKEN_VARIABLE: Final = "ROAMCAST_TOKEN"  # noqa: S105 — the variable's name
DATA_FOLDER: Final = Path("roamcast-data")
FILE_NAME: Final = "roamcast.json"

Token = str | Callable[[], str]
"""A key, or a function that gives the one to use next time."""


class Written(msgspec.Struct, frozen=True):
    """What `roamcast serve` writes into its data folder when it is ready."""

    url: str
    token: str


class ServiceAddress(msgspec.Struct, frozen=True):
    """A service's url, `http://host:port`, and the key to use there."""

    url: str
    token: Token
    others: tuple[str, ...] = ()
    """Other hosts where the same service may be."""

    @property
    def key(self) -> str:
        """The token as it is now."""
        return self.token if isinstance(self.token, str) else self.token()

    @property
    def headers(self) -> dict[str, str]:
        """What every request says of itself."""
        return {"Authorization": f"Bearer {self.key}"}

    def link(self, device: str) -> str:
        """Give the link's WebSocket address for a device of this name."""
        scheme, rest = self.url.split("://", 1)
        secure = "wss" if scheme == "https" else "ws"
        return f"{secure}://{rest}/link?{urlencode({'device': device})}"


class _Claims(msgspec.Struct, frozen=True):
    scopes: list[str]


def scopes_of(key: str) -> frozenset[str] | None:
    """Read what a token says it allows, unchecked; None where it is no token of ours.

    The service decides. This is to tell a programmer at once, and not by the end of the session.
    """
    parts = key.split(".")
    if len(parts) != 3:
        return None
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return frozenset(msgspec.json.decode(payload, type=_Claims).scopes)
    except (ValueError, msgspec.DecodeError):
        return None


def find(
    url: str | None = None,
    token: Token | None = None,
    *,
    data: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> ServiceAddress:
    """Find the address: what is given, then the environment, then what a local service wrote.

    A url may name several hosts, with commas between them.
    """
    url = url or environment.get(URL_VARIABLE)
    token = token or environment.get(TOKEN_VARIABLE)
    if url and token:
        first, *others = (check_url(one.strip()) for one in url.split(","))
        return ServiceAddress(first, token, tuple(others))
    path = (data or DATA_FOLDER) / FILE_NAME
    try:
        written = msgspec.json.decode(path.read_bytes(), type=Written)
    except FileNotFoundError:
        if url:
            raise MissingError(f"{url} needs a token: set {TOKEN_VARIABLE}") from None
        raise MissingError(
            f"no service is known: start one with `roamcast serve`, or set {URL_VARIABLE} and "
            f"{TOKEN_VARIABLE} ({path} is not there)"
        ) from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = f"this is not what `roamcast serve` writes: {error}"
        raise InputError(problem, source=str(path)) from None
    written_url = check_url(written.url)
    if url and check_url(url) != written_url and not token:
        # A key goes to the service that gave it and nowhere else.
        raise MissingError(
            f"{url} needs a token: set {TOKEN_VARIABLE} ({path} is for {written_url})"
        )
    return ServiceAddress(check_url(url) if url else written_url, token or written.token)


def check_url(url: str) -> str:
    """Return the url without its last slash if it is one of a service."""
    parts = urlsplit(url)
    try:
        port_known = parts.port is None or parts.port > 0
    except ValueError:
        port_known = False
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_known:
        raise InputError(f"{url[:100]!r} is no address such as http://127.0.0.1:8080")
    if parts.query or parts.fragment or parts.username:
        raise InputError(f"{url[:100]!r} has more than scheme, host, port and path")
    return url.rstrip("/")
