"""How a node proves who it is: Ed25519 over a greeting's fields and both sides' nonces."""

import base64
from collections.abc import Callable
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from roamcast.overlay.links.messages import Greeting

Sign = Callable[[bytes], bytes]
"""Signs with the node's own key."""

Verify = Callable[[bytes, bytes, bytes], bool]
"""Whether a public key made a signature of a text: (key, signature, text)."""

_PURPOSE: Final = b"roamcast overlay greeting\n"
_ENCODE: Final = msgspec.msgpack.Encoder().encode


def signed_text(greeting: Greeting) -> bytes:
    """Give what a greeting's proof signs: all its fields but the proof, the other's nonce too."""
    return _PURPOSE + _ENCODE(msgspec.structs.replace(greeting, proof=b""))


def signer(private_key: bytes) -> tuple[Sign, bytes]:
    """Make the signing end of 32 private bytes, and its public key."""
    key = Ed25519PrivateKey.from_private_bytes(private_key)
    return key.sign, key.public_key().public_bytes_raw()


def key_text(key: bytes) -> str:
    """Write a public key as settings have it."""
    return "ed25519:" + base64.b64encode(key).decode()


def verify(key: bytes, signature: bytes, text: bytes) -> bool:
    """Check a signature; a key that is none verifies nothing."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True
