"""A person's vids: pools drawn ahead from the trusted node, and registered at a service one by one.

The trusted node knows the name and not the service; the service gets a credential without a name.
Pools have one size and are drawn some random time after half of one is used, so that a draw says
nothing of when a vid is first seen on a map.
"""

import asyncio
import os
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from roamcast.errors import RoamcastError, UnreachableError
from roamcast.identity.credentials import sign_registration
from roamcast.identity.key_store import KeyStore, OwnVid
from roamcast.identity.sealing import SEED_BYTES, VidSecrets
from roamcast.identity.trusted.settings import TrustSettings
from roamcast.model.machine import Draw
from roamcast.model.time import parse_instant
from roamcast.transport.address import ServiceAddress, subject_of
from roamcast.transport.http import HttpClient

POOL_SIZE: Final = TrustSettings().pool_size
LOW: Final = POOL_SIZE // 2
"""Unused vids below which the next pool is due."""

AHEAD_S_MAX: Final = 600.0
"""A pool that is due is drawn at a random time within this."""

KEYS_VARIABLE: Final = "ROAMCAST_KEYS"


class VidToken(msgspec.Struct, frozen=True):
    """A token whose subject is a vid."""

    own: OwnVid
    token: str
    expires_us: int
    receipt_key: bytes
    """What the service signs receipts with."""


class OwnVids:
    """Gives fresh vids, and registers them."""

    def __init__(self, store: KeyStore, trust: HttpClient, *, draw: Draw, hybrid: bool) -> None:
        """`trust`: the trusted node, asked with a token that has a name."""
        self.store = store
        self._trust = trust
        self._draw = draw
        self._hybrid = hybrid
        self._drawing = asyncio.Lock()
        self._ahead: asyncio.Task[None] | None = None

    async def fresh(self, now: int) -> OwnVid:
        """Give a vid that was never used; a pool is drawn now only if there is none."""
        own = self.store.take(now)
        if own is None:
            async with self._drawing:
                own = self.store.take(now)
                if own is None:
                    await self._draw_pool()
                    own = self.store.take(now)
        if own is None:
            raise UnreachableError("the trusted node issued no vid that is valid now")
        if self.store.left(now) < LOW and (self._ahead is None or self._ahead.done()):
            self._ahead = asyncio.create_task(self._draw_later(now))
        return own

    async def close(self) -> None:
        """Draw no more."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
        self.store.close()

    async def _draw_later(self, now: int) -> None:
        await asyncio.sleep(self._draw() * AHEAD_S_MAX)
        async with self._drawing:
            if self.store.left(now) < LOW:
                try:
                    await self._draw_pool()
                except RoamcastError:
                    return  # it is drawn when it is needed, and then the error is told

    async def _draw_pool(self) -> None:
        own = [VidSecrets(secrets.token_bytes(SEED_BYTES), self._hybrid) for _ in range(POOL_SIZE)]
        keys = [
            {"signing": _text(one.public.signing), "sealing": _text(one.public.sealing)}
            for one in own
        ]
        answer = await self._trust.ask("POST", "/pools", body={"keys": keys})
        self.store.add_pool(_field(answer, "credentials", list), own)


async def registered(own: OwnVid, url: str, http: HttpClient) -> VidToken:
    """Register a vid at a service; `http` shows no token, and each request is a connection."""
    answer = await http.ask("GET", "/registrations/nonce")
    nonce = b64decode(_field(answer, "nonce", str))
    signature = sign_registration(own.credential, nonce, _audience(url), own.secrets.signing)
    body = {"credential": own.credential, "nonce": _text(nonce), "signature": _text(signature)}
    answer = await http.ask("POST", "/registrations", body=body)
    expires_us = parse_instant(_field(answer, "expires", str))
    receipts = _field(_field(answer, "receipts", dict), "key", str)
    return VidToken(own, _field(answer, "token", str), expires_us, b64decode(receipts))


def keys_path(trust: ServiceAddress, environment: Mapping[str, str] = os.environ) -> Path:
    """Name a person's key store where none is given: one for each subject and trusted node."""
    given = environment.get(KEYS_VARIABLE)
    if given:
        return Path(given)
    home = environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    who = sha256(f"{trust.url}\n{subject_of(trust.key)}".encode()).hexdigest()[:24]
    return Path(home) / "roamcast" / f"{who}.keys"


def _audience(url: str) -> str:
    """Give a service's address as the header Host has it."""
    parts = urlsplit(url)
    usual = {"http": 80, "https": 443}[parts.scheme]
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return host if parts.port in (None, usual) else f"{host}:{parts.port}"


def _field(answer: Any, name: str, kind: type) -> Any:
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, kind):
        raise UnreachableError("the service does not answer as a Roamcast service does")
    return found


def _text(data: bytes) -> str:
    return b64encode(data).decode()
