"""Sealing of group messages: only clients of the intended view class can read them.

UDP multicast and NATS reach whoever listens, so every group message is sealed (ChaCha20-Poly1305)
with the key of its view class, which a client gets over its own link. A group appears as a keyed
digest of its name: without the key, neither content nor channel can be learned.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import blake2b
from itertools import count
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from roamcast.channels.client.link_messages import KEY_BYTES

MARK_BYTES: Final = 4
DIGEST_BYTES: Final = 16
NONCE_BYTES: Final = 12
SEAL_BYTES: Final = NONCE_BYTES + 16
"""The nonce before the sealed frame and the tag behind it."""

_COUNTER_BYTES: Final = NONCE_BYTES - MARK_BYTES
_DIGESTS_CACHED_MAX: Final = 4_096
_SEALS_CACHED_MAX: Final = 1_024


def nonces(mark: bytes) -> Iterator[bytes]:
    """Count nonces; `mark` is drawn anew for every sender of a key, so that none repeats."""
    assert len(mark) == MARK_BYTES
    return (mark + number.to_bytes(_COUNTER_BYTES, "big") for number in count(1))


class Seal:
    """Seals and opens what one view class may read."""

    def __init__(self, key: bytes, fresh: Iterator[bytes]) -> None:
        """`fresh` gives nonces; seals may share it."""
        assert len(key) == KEY_BYTES
        self.digest_of: Callable[[str], bytes] = lru_cache(_DIGESTS_CACHED_MAX)(self._digest)
        self._cipher = ChaCha20Poly1305(key)
        self._digest_key = blake2b(key, digest_size=KEY_BYTES, person=b"roamcast groups").digest()
        self._fresh = fresh

    def seal(self, group: str, frame: bytes) -> bytes:
        """Give the nonce and the sealed frame."""
        nonce = next(self._fresh)
        return nonce + self._cipher.encrypt(nonce, frame, group.encode())

    def open(self, group: str, sealed: bytes) -> bytes | None:
        """Give the frame, or None for what was not sealed with this key for this group."""
        if len(sealed) < SEAL_BYTES:
            return None
        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], group.encode())
        except InvalidTag:
            return None

    def _digest(self, group: str) -> bytes:
        return blake2b(group.encode(), digest_size=DIGEST_BYTES, key=self._digest_key).digest()


SealOf = Callable[[str], Seal]
"""Gives the seal of a view class; a client has only one and gives it for every class."""


def class_key(secret: bytes, view_class: str) -> bytes:
    """Derive the key of a view class from a secret that never leaves the service."""
    info = b"roamcast view class\0" + view_class.encode()
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def seals_of_classes(secret: bytes, mark: bytes) -> SealOf:
    """Make the service's seals, one for each view class.

    They share their nonces: a class that falls out of the cache and comes again repeats none.
    """
    fresh = nonces(mark)
    return lru_cache(_SEALS_CACHED_MAX)(
        lambda view_class: Seal(class_key(secret, view_class), fresh)
    )


def seal_of_client(key: bytes, mark: bytes) -> SealOf:
    """Make a client's only seal, from the key that its link brought."""
    seal = Seal(key, nonces(mark))
    return lambda _: seal
