"""Tokens of one's own identity provider (OpenID Connect), beside the service's.

The provider's discovery document names its keys (JWKS). Both are fetched when they are first needed
and again when they are old, or when a token names a key that is not known: that is how a provider
rotates. Issuer and audience must be the configured ones; scopes count only where a setting maps
them. Subjects and groups get a prefix, so that no name at the provider is one of the service's own.
"""

import asyncio
import hashlib
import http.client
import ssl
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import GuestProtocol, Key, KeySet

from roamcast.errors import AuthError, RoamcastError, StoreError
from roamcast.live.auth.admission import NAME, SCOPES, TOKEN_LENGTH_MAX, Grant
from roamcast.live.config.settings import OidcSection
from roamcast.live.observe.logs import Log
from roamcast.model.time import MICROSECONDS

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA", "Ed25519")
"""Signatures by a private key only: a shared secret could be the public key's own text."""

FETCH_S_MIN: Final = 10
"""Least time between two fetches: unknown key ids cost anybody nothing."""

KEYS_AGE_S_MAX: Final = 86_400
"""How long keys count while the provider does not answer."""

TIMEOUT_S: Final = 5.0
BYTES_MAX: Final = 1 << 20
KEYS_MAX: Final = 100
DISCOVERY: Final = "/.well-known/openid-configuration"

Fetch = Callable[[str], bytes]

_LOG = Log("provider")


class _Discovery(msgspec.Struct, frozen=True):
    issuer: str
    jwks_uri: str


class _Header(msgspec.Struct, frozen=True):
    kid: str = ""


def fetched(url: str) -> bytes:
    """Get a document; no redirect is followed."""
    parts = urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        tls = ssl.create_default_context()
        connection = http.client.HTTPSConnection(parts.netloc, timeout=TIMEOUT_S, context=tls)
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_S)
    try:
        connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else ""))
        answer = connection.getresponse()
        data = answer.read(BYTES_MAX + 1)
    finally:
        connection.close()
    if answer.status != 200 or len(data) > BYTES_MAX:
        raise OSError(f"status {answer.status}, {len(data)} bytes")
    return data


class Provider:
    """An identity provider whose tokens the service accepts."""

    def __init__(self, settings: OidcSection, *, skew_s: float, fetch: Fetch = fetched) -> None:
        self._settings = settings
        self._skew_us = round(skew_s * MICROSECONDS)
        self._fetch = fetch
        self._keys: dict[str, Key] = {}
        self._fetched_us: int | None = None
        """When the keys were last fetched with success."""
        self._tried_us: int | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def check(self, token: str, now: int) -> Grant:
        """Give what a token grants; a token that is not valid is refused (401)."""
        if len(token) > TOKEN_LENGTH_MAX:
            raise AuthError(f"a token has at most {TOKEN_LENGTH_MAX} characters")
        kid = key_id_of(token)
        await self._look(kid, now)
        if self._fetched_us is None or now - self._fetched_us > KEYS_AGE_S_MAX * MICROSECONDS:
            raise StoreError("the identity provider does not answer: try again in a moment")
        if kid not in self._keys:
            raise AuthError("this token is neither this service's nor its identity provider's")
        try:
            signed = jws.deserialize_compact(
                token.encode("ascii"), self._signer, algorithms=list(ALGORITHMS)
            )
            claims = msgspec.json.decode(signed.payload, type=dict[str, Any])
        except (JoseError, msgspec.DecodeError, ValueError):
            raise AuthError("this token's signature is wrong") from None
        return self._grant(token, kid, claims, now)

    def _signer(self, signed: GuestProtocol) -> Key:
        return self._keys[str(signed.headers().get("kid"))]

    def _grant(self, token: str, kid: str, claims: dict[str, Any], now: int) -> Grant:
        settings = self._settings
        audience = claims.get("aud")
        if claims.get("iss") != settings.issuer:
            raise AuthError("this token is another issuer's")
        if settings.audience not in (audience if isinstance(audience, list) else [audience]):
            raise AuthError(f"this token is not for {settings.audience}")
        expires, begins = claims.get("exp"), claims.get("nbf", claims.get("iat", 0))
        if not isinstance(expires, int | float) or not isinstance(begins, int | float):
            raise AuthError("this token does not say until when it is valid")
        if not 0 < expires < 1e11 or expires * MICROSECONDS + self._skew_us <= now:
            raise AuthError("this token has expired: get another from your identity provider")
        if begins * MICROSECONDS > now + self._skew_us:
            raise AuthError("this token is not valid yet: check the clocks")
        subject = settings.prefix + str(claims.get(settings.subject_claim, ""))
        groups = {settings.prefix + one for one in _texts(claims.get(settings.groups_claim))}
        if subject == settings.prefix or not all(map(NAME.fullmatch, (subject, *groups))):
            raise AuthError("this token's subject or groups are no names of 1 to 128 characters")
        named = _texts(claims.get(settings.scope_claim))
        granted = {settings.scopes[one] for one in named if one in settings.scopes}
        return Grant(
            subject,
            tuple(scope for scope in SCOPES if scope in granted),
            frozenset(groups),
            int(expires * MICROSECONDS),
            hashlib.sha256(token.encode()).hexdigest()[:24],
            kid,
            issuer=settings.issuer,
        )

    async def _look(self, kid: str, now: int) -> None:
        """Fetch the keys if they are old, or lack one; once, however many ask."""
        old = self._fetched_us is None or (
            now - self._fetched_us > self._settings.keys_s * MICROSECONDS
        )
        lately = self._tried_us is not None and now - self._tried_us < FETCH_S_MIN * MICROSECONDS
        if self._fetching is None:
            if lately or not (old or kid not in self._keys):
                return
            self._tried_us = now
            self._fetching = asyncio.get_running_loop().create_task(self._refresh(now))
        if self._fetched_us is None or kid not in self._keys:  # else the known keys still count
            await asyncio.shield(self._fetching)

    async def _refresh(self, now: int) -> None:
        try:
            self._keys = await asyncio.to_thread(self._fetch_keys)
            self._fetched_us = now
        except (OSError, http.client.HTTPException, RoamcastError, msgspec.DecodeError) as error:
            _LOG.error("the identity provider's keys cannot be fetched", error)
        except (JoseError, ValueError, KeyError) as error:
            _LOG.error("the identity provider's keys cannot be read", error)
        finally:
            self._fetching = None

    def _fetch_keys(self) -> dict[str, Key]:
        issuer = self._settings.issuer
        found = msgspec.json.decode(self._fetch(issuer.rstrip("/") + DISCOVERY), type=_Discovery)
        if found.issuer != issuer:
            raise AuthError("the discovery document is another issuer's")
        if urlsplit(found.jwks_uri).scheme != "https" and issuer.startswith("https:"):
            raise AuthError("the keys of an issuer behind https must be, too")
        document = msgspec.json.decode(self._fetch(found.jwks_uri), type=dict[str, Any])
        listed = [
            one
            for one in document.get("keys", [])
            if one.get("kty") in ("RSA", "EC", "OKP") and one.get("use", "sig") == "sig"
        ]
        return {
            str(key.kid): key
            for key in KeySet.import_key_set({"keys": listed[:KEYS_MAX]}).keys
            if key.kid
        }


def key_id_of(token: str) -> str:
    """Read which key a token says it was signed with; nothing of it is trusted."""
    try:
        header = jws.extract_compact(token.encode("ascii")).headers()
    except (JoseError, ValueError, UnicodeError):
        raise AuthError("this is no token: a JWT is expected") from None
    kid = header.get("kid")
    return kid if isinstance(kid, str) else ""


def _texts(value: Any) -> list[str]:
    """Read a claim of several names: a list, or a text with spaces (RFC 8693)."""
    if isinstance(value, str):
        return value.split()
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
