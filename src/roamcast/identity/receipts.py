"""Receipts: why a person gets a mail, signed by the node that matched them, sealed to them alone.

A receipt is part of the letter: the filter that a pseudonym of the person's satisfied, when the
cast was sent and expires, and the signature of the access node over these, the sender, the payload,
the cast and the vid. Somebody who wants to complain about a message can show which broker said that
they were where, and that broker cannot deny it. The trusted node sees none of it (decision 0185).
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from roamcast.errors import InputError
from roamcast.identity.credentials import KEY_BYTES, public_key
from roamcast.identity.letters import Letter
from roamcast.model.areas import Patch, area_of
from roamcast.model.filters import Filter
from roamcast.model.time import format_instant

_SIGNED: Final = b"roamcast receipt 1\n"
PLACES_NAMED_MAX: Final = 3

UNSIGNED: Final = "this receipt is not signed"
FORGED: Final = "the signature of this receipt is wrong: do not believe it"


class ReceiptKey(msgspec.Struct, frozen=True):
    """A node's name and the private key that it signs receipts with."""

    node: str
    private: bytes


def sign_receipt(letter: Letter, cast: str, vid: str, sender: str, own: ReceiptKey) -> Letter:
    """Give the letter with the node's signature over everything that it says."""
    named = msgspec.structs.replace(letter, node=own.node, node_key=public_key(own.private))
    key = Ed25519PrivateKey.from_private_bytes(own.private)
    return msgspec.structs.replace(
        named, signature=key.sign(_signed_bytes(named, cast, vid, sender))
    )


def doubt_of(letter: Letter, cast: str, vid: str, sender: str, known: Mapping[bytes, str]) -> str:
    """Say why a receipt cannot be relied on, "" if it can.

    `known`: the keys of services that the person has met, with their addresses. A name alone says
    nothing: any node may call itself as another one does.
    """
    if not letter.signature:
        return UNSIGNED
    try:
        if len(letter.node_key) != KEY_BYTES:
            return FORGED
        key = Ed25519PublicKey.from_public_bytes(letter.node_key)
        key.verify(letter.signature, _signed_bytes(letter, cast, vid, sender))
    except (InvalidSignature, ValueError):
        return FORGED
    return "" if letter.node_key in known else f"signed by {letter.node!r}, a node not met before"


def explained(letter: Letter) -> str:
    """Say in words why the letter came: where and when a pseudonym of the reader's was."""
    if not letter.reason:
        return ""
    told = f"a pseudonym of yours {_where_and_when(letter.reason)}"
    if letter.expires_us:
        told += f"; this message expires on {_minute(letter.expires_us)} UTC"
    return told


def _signed_bytes(letter: Letter, cast: str, vid: str, sender: str) -> bytes:
    payload = sha256(letter.payload).digest()
    times = (letter.sent_us, letter.expires_us)
    told = (cast, vid, sender, payload, letter.media_type, *times, letter.reason, letter.node)
    return _SIGNED + msgspec.msgpack.encode(told)


def _where_and_when(text: str) -> str:
    """Describe a filter by its area if that is simple; else give the filter as it is."""
    try:
        patches = area_of(Filter.parse(text)).patches
    except InputError:
        return f"satisfied: {text}"  # it was cut: a receipt has room for so much
    places = patches[0].places if len(patches) == 1 else None
    if not places or len(places) > PLACES_NAMED_MAX:
        return f"satisfied: {text}"
    return f"was within {' or '.join(places)}{_when(patches[0])} (filter: {text})"


def _when(patch: Patch) -> str:
    """Give the time of a patch: who began before its end and ended after its begin was there."""
    (begun, before), (since, ended) = patch.begins, patch.ends
    if since is not None and before is not None:
        first, last = sorted((since, before))  # the end comes first where the whole time is meant
        return f" between {_minute(first)} and {_minute(last)} UTC"
    low, high = since or begun, before or ended
    if low is not None:
        return f" at or after {_minute(low)} UTC"
    return "" if high is None else f" at or before {_minute(high)} UTC"


def _minute(moment: int) -> str:
    return format_instant(moment)[:16].replace("T", " ")
