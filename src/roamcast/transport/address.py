"""Addresses of a service: its hosts, and the key that is good on all of them.

`find` takes them from arguments, the environment or the `roamcast.json` that a local service wrote.
`Hosts` remembers in which order to try the hosts of one service, and learns of more from it.
"""

import base64
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec

from roamcast.errors import InputError, MissingError

URL_VARIABLE: Final = "ROAMCAST_URL"
TOKEN_VARIABLE: Final = "ROAMCAST_TOKEN"  # noqa: S105 — the variable's name
DATA_FOLDER: Final = Path("roamcast-data")
FILE_NAME: Final = "roamcast.json"

HOSTS_MAX: Final = 32
"""Hosts remembered of one service; a service that names more is not believed further."""

Token = str | Callable[[], str]
"""A key, or a function that gives the key for the next request."""


class ServiceFile(msgspec.Struct, frozen=True):
    """The content of `roamcast.json`, which `roamcast serve` writes when it is ready."""

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
        """The headers that authorise a request; none for somebody without a token."""
        key = self.key
        return {"Authorization": f"Bearer {key}"} if key else {}

    def link(self, device: str) -> str:
        """Give the WebSocket address of the link for a device of this name."""
        scheme, rest = self.url.split("://", 1)
        secure = "wss" if scheme == "https" else "ws"
        return f"{secure}://{rest}/link?{urlencode({'device': device})}"


class Hosts:
    """The hosts of one service in the order in which to try them, the last that answered first."""

    def __init__(self, address: ServiceAddress) -> None:
        self._token = address.token
        self._urls = dict.fromkeys((address.url, *address.others))

    @property
    def current(self) -> ServiceAddress:
        """The host that answered last, or the first given."""
        return self.all()[0]

    def all(self) -> list[ServiceAddress]:
        """Every host, in the order in which to try them."""
        return [ServiceAddress(url, self._token) for url in self._urls]

    def answered(self, url: str) -> None:
        """Try this host first from now on."""
        self._urls = dict.fromkeys((url, *self._urls))

    def passed_over(self, url: str) -> None:
        """Try this host last from now on."""
        self._urls.pop(url, None)
        self._urls[url] = None

    def learn(self, urls: Iterable[str]) -> None:
        """Add the hosts that the service named; a key that travelled by TLS never goes without."""
        secure = self.current.url.startswith("https:")
        for url in urls:
            try:
                url = check_url(url)
            except InputError:
                continue
            if len(self._urls) < HOSTS_MAX and (not secure or url.startswith("https:")):
                self._urls.setdefault(url)


class _Claims(msgspec.Struct, frozen=True):
    scopes: list[str]
    sub: str = ""


def scopes_of(key: str) -> frozenset[str] | None:
    """Read the scopes of a token without checking it; None where it is no token of ours.

    The service decides. This serves to tell a programmer at once, before the session ends for it.
    """
    claims = _claims(key)
    return None if claims is None else frozenset(claims.scopes)


def subject_of(key: str) -> str:
    """Read whose a token is without checking it; empty where it is no token of ours."""
    claims = _claims(key)
    return "" if claims is None else claims.sub


def _claims(key: str) -> _Claims | None:
    parts = key.split(".")
    if len(parts) != 3:
        return None
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(payload, type=_Claims)
    except (ValueError, msgspec.DecodeError):
        return None


def find(
    url: str | None = None,
    token: Token | None = None,
    *,
    data: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> ServiceAddress:
    """Find the address: from the arguments, then the environment, then a local service's file.

    A url may name several hosts, with commas between them.
    """
    url = url or environment.get(URL_VARIABLE)
    token = token or environment.get(TOKEN_VARIABLE)
    if url and token:
        first, *others = (check_url(part.strip()) for part in url.split(","))
        return ServiceAddress(first, token, tuple(others))
    path = (data or DATA_FOLDER) / FILE_NAME
    try:
        written = msgspec.json.decode(path.read_bytes(), type=ServiceFile)
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
        # The file's key belongs to the service that wrote it; another service must not see it.
        raise MissingError(
            f"{url} needs a token: set {TOKEN_VARIABLE} ({path} is for {written_url})"
        )
    return ServiceAddress(check_url(url) if url else written_url, token or _token_in(path, written))


def _token_in(path: Path, first: ServiceFile) -> Token:
    """Give the token that the file holds whenever it is needed: the service renews it."""
    last = first

    def token() -> str:
        nonlocal last
        with contextlib.suppress(OSError, msgspec.DecodeError):  # the service is being restarted
            found = msgspec.json.decode(path.read_bytes(), type=ServiceFile)
            last = found if found.url == first.url else last
        return last.token

    return token


def check_url(url: str) -> str:
    """Return a service's url without its trailing slash; raise `InputError` for anything else."""
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
