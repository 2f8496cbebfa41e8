"""Registrations: a credential without a name is exchanged for a token whose subject is the vid.

The client asks for a nonce, signs it with the vid's key for this service's address, and shows the
credential. The token that it gets is an ordinary one, so that rates, connections and publications
are limited by credential, without a name (decision 0111). A nonce serves once.
"""

import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from roamcast.errors import AuthError, RateError
from roamcast.identity.credentials import (
    NONCE_BYTES,
    Credential,
    check_credential,
    check_registration,
)
from roamcast.identity.pseudonyms import OPAQUE_LENGTH
from roamcast.live.auth.admission import Scope, TokenKeys
from roamcast.live.auth.audiences import Audiences
from roamcast.live.config.settings import Settings
from roamcast.model.time import MICROSECONDS

NONCE_US: Final = 60 * MICROSECONDS
USED_MAX: Final = 100_000
"""Nonces that were used and have not expired; more registrations a minute are refused."""

TOKEN_S_MAX: Final = 3_600
SCOPES: Final[tuple[Scope, ...]] = ("read", "publish", "subscribe")
"""What somebody without a name may do; casting needs a name that people can stop."""

_TIME_BYTES: Final = 8
_RANDOM_BYTES: Final = 8
_MAC_BYTES: Final = NONCE_BYTES - _TIME_BYTES - _RANDOM_BYTES


class Registrations:
    """Accepts credentials of these trusted nodes."""

    def __init__(
        self,
        keys: TokenKeys,
        nodes: Mapping[str, bytes],
        *,
        audiences: Audiences,
        random_bytes: Callable[[int], bytes],
        skew_us: int,
    ) -> None:
        """`nodes`: trusted nodes by name, with their public keys; `audiences`: our own names."""
        self.nodes = dict(nodes)
        self._keys = keys
        self._audiences = audiences
        self._random = random_bytes
        self._secret = random_bytes(32)
        self._skew_us = skew_us
        self._used: dict[bytes, int] = {}

    def is_vid(self, subject: str) -> bool:
        """Whether a token's subject is a vid that was registered, and so nobody by name."""
        opaque, at, node = subject.rpartition("@")
        return bool(at) and node in self.nodes and len(opaque) == OPAQUE_LENGTH

    def nonce(self, now: int) -> bytes:
        """Give a nonce; nothing is stored for it, so asking costs us nothing."""
        body = (now + NONCE_US).to_bytes(_TIME_BYTES, "big") + self._random(_RANDOM_BYTES)
        return body + self._mac(body)

    def check(
        self, text: str, nonce: bytes, signature: bytes, audience: str, now: int
    ) -> Credential:
        """Give what a registration shows, or say by name what is wrong with it."""
        self._check_nonce(nonce, now)
        credential = check_credential(text, self.nodes, now, self._skew_us)
        check_registration(text, credential, nonce, self._audiences.check(audience), signature)
        self._use(nonce, now)
        return credential

    def token(self, credential: Credential, now: int) -> tuple[str, int]:
        """Give a token for a vid that has registered, and when the token expires."""
        left_s = (credential.expires_us + self._skew_us - now) / MICROSECONDS
        lifetime_s = max(1, min(TOKEN_S_MAX, int(left_s)))
        token = self._keys.issue(credential.vid, SCOPES, (), lifetime_s=lifetime_s, now=now)
        return token, now + lifetime_s * MICROSECONDS

    def _check_nonce(self, nonce: bytes, now: int) -> None:
        body, mac = nonce[:-_MAC_BYTES], nonce[-_MAC_BYTES:]
        if len(nonce) != NONCE_BYTES or not hmac.compare_digest(mac, self._mac(body)):
            raise AuthError("foreign nonce: ask this service for one")
        if int.from_bytes(body[:_TIME_BYTES], "big") <= now:
            raise AuthError("expired nonce: ask for another and register at once")
        if nonce in self._used:
            raise AuthError("replayed registration: a nonce serves once, ask for another")

    def _use(self, nonce: bytes, now: int) -> None:
        while self._used and self._used[first := next(iter(self._used))] <= now:
            del self._used[first]
        if len(self._used) >= USED_MAX:
            raise RateError("too many registrations: try again in a minute")
        self._used[nonce] = int.from_bytes(nonce[:_TIME_BYTES], "big")

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._secret, body, "sha256")[:_MAC_BYTES]


def registrations_of(
    settings: Settings, keys: TokenKeys, nodes: Mapping[str, bytes]
) -> Registrations:
    """Accept credentials of these trusted nodes, signed for a name that the settings have."""
    return Registrations(
        keys,
        nodes,
        audiences=Audiences(settings.server, settings.identity.hosts),
        random_bytes=secrets.token_bytes,
        skew_us=int(settings.limits.clock_skew_s_max * MICROSECONDS),
    )
