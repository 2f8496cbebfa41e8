"""Sealed payloads: HPKE (RFC 9180) to the key of a vid, so that a trusted node forwards blindly.

A vid's private keys come from one seed: Ed25519 signs registrations, X25519 opens payloads, in the
hybrid form together with ML-KEM-768, for those who fear that today's mail is read in twenty years.
The cast and the vid are bound into the seal: a payload moved to another mail does not open. Sizes
are padded to steps, since a length alone may tell what was said.
"""

from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from roamcast.errors import InputError, LimitError
from roamcast.identity.credentials import VidKeys, public_key
from roamcast.identity.letters import LETTER_BYTES_MAX
from roamcast.identity.trusted.settings import SEALED_BYTES_MAX
from roamcast.model.casts import PAYLOAD_BYTES_MAX

SEED_BYTES: Final = 32
X25519_BYTES: Final = 32
HYBRID_BYTES: Final = 1_216
STEP_BYTES: Final = 256
"""Payloads are padded to multiples of this."""

_LENGTH_BYTES: Final = 4
_INFO: Final = b"roamcast mail 1\n"
_PLAIN: Final = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
_HYBRID: Final = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


class VidSecrets(msgspec.Struct, frozen=True):
    """The private keys of a vid, all from one seed."""

    seed: bytes
    hybrid: bool = False

    @property
    def signing(self) -> bytes:
        """The private key that signs registrations."""
        return _derived(self.seed, b"signing", SEED_BYTES)

    @property
    def public(self) -> VidKeys:
        """What the trusted node vouches for."""
        return VidKeys(public_key(self.signing), self.sealing)

    @property
    def sealing(self) -> bytes:
        """The public key that payloads are sealed to."""
        own = self._x25519().public_key().public_bytes_raw()
        return self._mlkem().public_key().public_bytes_raw() + own if self.hybrid else own

    def open(self, sealed: bytes, cast: str, vid: str) -> bytes:
        """Open a payload that was sealed to this vid for this cast."""
        if len(sealed) > SEALED_BYTES_MAX:
            raise LimitError(f"a sealed payload has at most {SEALED_BYTES_MAX} bytes")
        try:
            if self.hybrid:
                key = MLKEM768X25519PrivateKey(self._mlkem(), self._x25519())
                padded = _HYBRID.decrypt(sealed, key, _info(cast, vid))
            else:
                padded = _PLAIN.decrypt(sealed, self._x25519(), _info(cast, vid))
        except (InvalidTag, ValueError):
            raise InputError("this mail was not sealed to this vid, or was changed") from None
        length = int.from_bytes(padded[:_LENGTH_BYTES], "big")
        if length > len(padded) - _LENGTH_BYTES:
            raise InputError("this mail says that it is longer than it is")
        return padded[_LENGTH_BYTES : _LENGTH_BYTES + length]

    def _x25519(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(_derived(self.seed, b"x25519", X25519_BYTES))

    def _mlkem(self) -> MLKEM768PrivateKey:
        return MLKEM768PrivateKey.from_seed_bytes(_derived(self.seed, b"mlkem768", 64))


def agent_secrets(secret: bytes, vid: str) -> VidSecrets:
    """Give the keys that a user agent holds for a vid of somebody whom sensors know (0221).

    They follow from the agent's one secret: nothing is stored for each vid, and the keys of one
    vid can be given away without those of another.
    """
    return VidSecrets(_derived(secret, b"of an agent " + vid.encode(), SEED_BYTES))


def seal_payload(payload: bytes, keys: VidKeys, cast: str, vid: str) -> bytes:
    """Seal a payload to a vid; the length of the key says which kind it is."""
    if len(payload) > LETTER_BYTES_MAX:
        raise LimitError(f"the payload exceeds the limit of {PAYLOAD_BYTES_MAX} bytes")
    whole = len(payload).to_bytes(_LENGTH_BYTES, "big") + payload
    padded = whole + bytes(-len(whole) % STEP_BYTES)
    info, key = _info(cast, vid), keys.sealing
    try:
        own = X25519PublicKey.from_public_bytes(key[-X25519_BYTES:])
        if len(key) == X25519_BYTES:
            return _PLAIN.encrypt(padded, own, info)
        if len(key) == HYBRID_BYTES:
            mlkem = MLKEM768PublicKey.from_public_bytes(key[:-X25519_BYTES])
            return _HYBRID.encrypt(padded, MLKEM768X25519PublicKey(mlkem, own), info)
    except ValueError:
        pass
    raise InputError(f"a key to seal to has {X25519_BYTES} or {HYBRID_BYTES} bytes")


def _info(cast: str, vid: str) -> bytes:
    return _INFO + msgspec.msgpack.encode((cast, vid))


def _derived(seed: bytes, label: bytes, length: int) -> bytes:
    assert len(seed) == SEED_BYTES
    return HKDFExpand(SHA256(), length, b"roamcast vid " + label).derive(seed)
