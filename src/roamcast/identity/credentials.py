"""Credentials without a name: a trusted node vouches for a vid and its keys, and for nobody.

A credential is {vid, the vid's public keys, expiry}, signed by the trusted node (Ed25519). A
service accepts it instead of a token with a subject. Whoever registers also signs the service's
nonce with the vid's key, so a credential that was read serves nobody else, and neither does a vid
that was read off the map (decision 0111).
"""

import base64
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Meta

from roamcast.errors import AuthError, InputError
from roamcast.identity.pseudonyms import trusted_node_of
from roamcast.model.time import format_instant

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
SEALING_KEY_BYTES_MAX: Final = 1_216
"""ML-KEM-768 with X25519; X25519 alone has 32."""

CREDENTIAL_LENGTH_MAX: Final = 2_400
NONCE_BYTES: Final = 32
VID_LENGTH_MAX: Final = 128

_PREFIX: Final = "vid1."
_SIGNED: Final = b"roamcast credential 1\n"
_PROVED: Final = b"roamcast registration 1\n"


class VidKeys(msgspec.Struct, frozen=True, array_like=True):
    """The public keys of a vid: one that its registrations are signed with, one to seal to."""

    signing: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    sealing: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=SEALING_KEY_BYTES_MAX)]


class Credential(msgspec.Struct, frozen=True, array_like=True):
    """What a trusted node vouches for."""

    vid: Annotated[str, Meta(max_length=VID_LENGTH_MAX)]
    keys: VidKeys
    expires_us: int


def sign_credential(credential: Credential, private: bytes) -> str:
    """Give the credential's text, signed by a trusted node's private key."""
    body = msgspec.msgpack.encode(credential)
    signature = Ed25519PrivateKey.from_private_bytes(private).sign(_SIGNED + body)
    return _PREFIX + base64.urlsafe_b64encode(signature + body).decode().rstrip("=")


def public_key(private: bytes) -> bytes:
    """Give the public half of a signing key."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def is_credential(text: str) -> bool:
    """Whether a text claims to be a credential, rather than a token with a name."""
    return text.startswith(_PREFIX)


def check_credential(text: str, nodes: Mapping[str, bytes], now: int, skew_us: int) -> Credential:
    """Give what a credential vouches for; `nodes` are the accepted trusted nodes' public keys."""
    credential, signature, body = _read(text)
    node = trusted_node_of(credential.vid)
    key = nodes.get(node)
    if key is None:
        raise AuthError(f"foreign credential: this service does not accept {node[:100]}")
    if not _verifies(key, signature, _SIGNED + body):
        raise AuthError("forged credential: the trusted node did not sign it")
    if credential.expires_us + skew_us <= now:
        expired = format_instant(credential.expires_us)
        raise AuthError(f"expired credential: it was valid until {expired}, draw another")
    return credential


def sign_registration(text: str, nonce: bytes, audience: str, private: bytes) -> bytes:
    """Sign a registration with the vid's key; `audience` is the service's address."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(_proved(text, nonce, audience))


def check_registration(
    text: str, credential: Credential, nonce: bytes, audience: str, signature: bytes
) -> None:
    """Refuse a registration that the vid's key did not sign for this service and nonce."""
    if not _verifies(credential.keys.signing, signature, _proved(text, nonce, audience)):
        raise AuthError(
            "stolen credential: the registration is not signed by the vid's key for this service "
            "and its nonce"
        )


def own_credential(text: str) -> Credential:
    """Read a credential of one's own; nothing is verified."""
    return _read(text)[0]


def vid_of(text: str) -> str:
    """Give the vid of a credential of one's own; nothing is verified."""
    return own_credential(text).vid


def _proved(text: str, nonce: bytes, audience: str) -> bytes:
    # The address keeps a service from passing a signature on to another one.
    return _PROVED + msgspec.msgpack.encode((text, nonce, audience))


def _read(text: str) -> tuple[Credential, bytes, bytes]:
    try:
        if not is_credential(text) or len(text) > CREDENTIAL_LENGTH_MAX:
            raise ValueError
        padded = text[len(_PREFIX) :] + "=" * (-(len(text) - len(_PREFIX)) % 4)
        data = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)
        signature, body = data[:SIGNATURE_BYTES], data[SIGNATURE_BYTES:]
        credential = msgspec.msgpack.decode(body, type=Credential)
        trusted_node_of(credential.vid)
    except (ValueError, msgspec.DecodeError, InputError):
        raise AuthError("malformed credential: draw one from your trusted node") from None
    return credential, signature, body


def _verifies(key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
