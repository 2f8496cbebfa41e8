"""Carries wake-ups to push services (RFC 8030), with the node's own key (VAPID, RFC 8292).

A push has no body, so there is nothing to encrypt and no key of a device to keep (decision 0186).
Its header names this node's key and the operator's contact, not the person. Only the push services
that the settings list are asked, and of those only public addresses: whoever sets an endpoint must
not reach anything else through us.
"""

import asyncio
import base64
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from joserfc import jws
from joserfc.jwk import ECKey

from roamcast import files
from roamcast.errors import InputError, NotFoundError
from roamcast.identity.trusted.waking import PushAnswered, PushWakeUp
from roamcast.live.config.identity import PushSection
from roamcast.model.machine import Input
from roamcast.model.time import MICROSECONDS
from roamcast.transport.driver import Clock
from roamcast.transport.outward import (
    OUTWARD_ERRORS,
    Resolve,
    addresses_of,
    ask_outward,
    check_outward,
)

KEY_FILE: Final = "push.key"
THREADS: Final = 8
CLAIM_S: Final = 12 * 3_600
"""Life of a signed claim; a push service accepts at most a day."""

TTL_S: Final = 24 * 3_600
"""How long a push service keeps a push for a device that is off."""

TOPIC: Final = "mail"
"""A newer push replaces an older one that was not delivered; it is the same for everybody."""

_ALGORITHM: Final = "ES256"


class PushKey:
    """The node's key for push services, in a file that its owner alone reads."""

    def __init__(self, private: ec.EllipticCurvePrivateKey) -> None:
        pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self._key = ECKey.import_key(pem)
        point = private.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        self.public = base64.urlsafe_b64encode(point).decode().rstrip("=")
        """As browsers take it: `applicationServerKey`."""

    @classmethod
    def open(cls, path: Path) -> "PushKey":
        """Read the key; the first time, make it."""
        if not path.exists():
            made = ec.generate_private_key(ec.SECP256R1())
            pem = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            files.write_whole(path, pem, mode=files.OWNER_ONLY)
        if path.stat().st_mode & 0o077:
            raise InputError("others may read this key file: chmod 600 it", source=str(path))
        try:
            private = load_pem_private_key(path.read_bytes(), None)
        except (OSError, ValueError, TypeError):
            private = None
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise InputError("not a key for push services", source=str(path))
        return cls(private)

    def authorization(self, url: str, contact: str, now_s: int) -> str:
        """Give the header that says who pushes: for this push service, for some hours."""
        parts = urlsplit(url)
        claims = {"aud": f"{parts.scheme}://{parts.netloc}", "exp": now_s + CLAIM_S, "sub": contact}
        header = {"alg": _ALGORITHM, "typ": "JWT"}
        body = msgspec.json.encode(claims)
        token = jws.serialize_compact(header, body, self._key, algorithms=[_ALGORITHM])
        return f"vapid t={token}, k={self.public}"


class Pushing:
    """Pushes of one trusted node."""

    def __init__(
        self,
        settings: PushSection,
        folder: Path,
        *,
        give: Callable[[Input], None],
        clock: Clock,
        resolve: Resolve = addresses_of,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._key = PushKey.open(folder / KEY_FILE) if settings.contact else None
        self._give = give
        self._clock = clock
        self._resolve = resolve
        self._tls = tls
        self._threads = ThreadPoolExecutor(THREADS, "pushes")
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def public_key(self) -> str:
        """What a device subscribes with; raise where this node sends no pushes."""
        if self._key is None:
            raise NotFoundError(
                "this trusted node sends no pushes: its operator sets [push] contact"
            )
        return self._key.public

    def check(self, endpoint: str) -> None:
        """Refuse an endpoint that is not at a push service of the settings."""
        assert self.public_key
        private = self._settings.private_addresses
        check_outward(endpoint, private=private)
        host = urlsplit(endpoint).hostname or ""
        listed = self._settings.services
        if not any(host == one or (one[:1] == "." and host.endswith(one)) for one in listed):
            raise InputError(f"{host[:100]} is no push service that this node asks")

    def push(self, effect: PushWakeUp) -> None:
        """Push, and report how it was answered."""
        key = self._key
        if key is None:  # the operator took the contact out: devices stay, for later
            self._give(PushAnswered(effect.device, 200))
            return

        def ask() -> int:
            now_s = self._clock() // MICROSECONDS
            headers = {
                "Authorization": key.authorization(effect.endpoint, self._settings.contact, now_s),
                "TTL": str(TTL_S),
                "Topic": TOPIC,
                "Content-Length": "0",
            }
            try:
                self.check(effect.endpoint)  # the settings may have changed since
                status, _ = ask_outward(
                    "POST",
                    effect.endpoint,
                    headers,
                    None,
                    private=self._settings.private_addresses,
                    timeout_s=self._settings.timeout_s,
                    resolve=self._resolve,
                    tls=self._tls,
                )
            except (InputError, *OUTWARD_ERRORS):
                return 0
            return status

        async def run() -> None:
            status = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
            self._give(PushAnswered(effect.device, status))

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for nobody: who was not woken is woken after the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
