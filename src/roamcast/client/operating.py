"""An operator's program at a trusted node: handles and keys for an ingest, and erasure.

An ingest knows people by the names that sensors give them. With `--trust` it asks the node of the
live service for their handles, and seals vids with the key of an epoch that the node made for it:
one person is one person everywhere, and erased everywhere (decision 0188).
"""

import asyncio
import ssl
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from roamcast.errors import InputError, UnreachableError
from roamcast.identity.keys import KEY_BYTES, TrustedKeys
from roamcast.identity.pseudonyms import HANDLE_BYTES
from roamcast.transport.address import ServiceAddress, check_url
from roamcast.transport.http import HttpClient

PEOPLE_A_REQUEST: Final = 1_000
VIDS_A_REQUEST: Final = 5_000


class TrustClient:
    """A trusted node, asked by an operator's program with a token of the scope `admin`."""

    def __init__(self, url: str, token_file: Path, tls_ca: str = "") -> None:
        try:
            if token_file.stat().st_mode & 0o077:
                raise InputError("others may read this token: chmod 600 it", source=str(token_file))
            token = token_file.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"the token can not be read: {error}", source=str(token_file)
            ) from None
        tls = ssl.create_default_context(cafile=tls_ca) if tls_ca else None
        self._http = HttpClient(ServiceAddress(check_url(url), token), tls=tls)

    def keys(self, ingest: str) -> TrustedKeys:
        """Get the key of the epoch of an ingest."""
        answer = self._ask("POST", f"/ingests/{quote(ingest, safe='')}")
        found = _read(answer, _EpochKey)
        if len(found.key) != KEY_BYTES:
            raise UnreachableError("the trusted node does not answer as ours do")
        return TrustedKeys(found.node, {found.epoch: found.key}, found.epoch)

    def handles(self, people: Sequence[str]) -> list[bytes]:
        """Get everybody's handle; who is new there is enrolled."""
        found: list[bytes] = []
        for page in _pages(people, PEOPLE_A_REQUEST):
            answer = self._ask("POST", "/people/handles", {"people": page})
            handles = [b64decode(one) for one in _read(answer, _Handles).handles]
            if len(handles) != len(page) or any(len(one) != HANDLE_BYTES for one in handles):
                raise UnreachableError("the trusted node does not answer as ours do")
            found += handles
        return found

    def departed(self, vids: Iterable[str]) -> list[str]:
        """Give those vids whose person was erased at the trusted node."""
        found: list[str] = []
        for page in _pages(vids, VIDS_A_REQUEST):
            answer = self._ask("POST", "/people/departed", {"vids": page})
            found += _read(answer, _Vids).vids
        return sorted(set(found))

    def erase(self, person: str) -> int:
        """Erase a person there; give how many entries of the mailbox went with them."""
        answer = self._ask("DELETE", f"/people/{quote(person, safe='')}")
        return int(_read(answer, _Erasure).deleted)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return asyncio.run(self._http.ask(method, path, body=body))


class _EpochKey(msgspec.Struct):
    node: str
    epoch: int
    key: bytes


class _Handles(msgspec.Struct):
    handles: list[str]


class _Vids(msgspec.Struct):
    vids: list[str]


class _Erasure(msgspec.Struct):
    deleted: int


def _read(answer: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise UnreachableError(f"the trusted node does not answer as ours do: {error}") from None


def _pages(some: Iterable[str], size: int) -> Iterator[list[str]]:
    left = iter(some)
    while page := list(islice(left, size)):
        yield page
