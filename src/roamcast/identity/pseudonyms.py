"""Vids: pseudonyms that only the trusted node can resolve, and nobody else can link.

TCC's virtual identity is `opaque@fqdn`, a new one for every context. Ours (decision 0051):

    opaque = base64url( epoch (2 bytes) ‖ AES-256_key(epoch)( handle (10) ‖ nonce (6) ) )

A person's handle is 80 random bits; only the trusted node's register maps handles to people.
Without the key, AES is indistinguishable from a random permutation, so two vids of one person have
nothing in common but the epoch, which all vids of that time share. A forged vid opens to a handle
that is not in the register. Since a vid is one AES block, one call seals a whole column, and vids
stay short (24 characters and the node's name).

Erasure: without an epoch's key (`keys.TrustedKeys.without`) no vid of that epoch opens. Without the
person's row in the register, the person's vids open to a meaningless number. That number still
links them for whoever has the key, until the vids are erased from the archive (`vids_of` lists
them) or the epoch's key is destroyed.
"""

import base64
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from roamcast.errors import InputError
from roamcast.identity.keys import RandomBytes, TrustedKeys

HANDLE_BYTES = 10
NONCE_BYTES = 6
EPOCH_BYTES = 2
BLOCK_BYTES = HANDLE_BYTES + NONCE_BYTES
SEALED_BYTES = EPOCH_BYTES + BLOCK_BYTES
OPAQUE_LENGTH = 24
"""18 bytes are 24 base64 characters without padding, so a column is encoded in one call."""

FEW = 64
"""So many vids are opened one by one."""

_OPAQUE = re.compile(f"[A-Za-z0-9_-]{{{OPAQUE_LENGTH}}}")
HANDLE = pa.binary(HANDLE_BYTES)
REGISTER = pa.schema([pa.field("person", pa.string(), False), pa.field("handle", HANDLE, False)])

Bytes = npt.NDArray[np.uint8]


def new_handles(count: int, random_bytes: RandomBytes) -> pa.Array:
    """Draw handles for people who have none yet."""
    data = random_bytes(count * HANDLE_BYTES)
    return pa.Array.from_buffers(HANDLE, count, [None, pa.py_buffer(data)])


def seal(handles: pa.Array, keys: TrustedKeys, random_bytes: RandomBytes) -> pa.Array:
    """Return a fresh vid for each handle; a handle given twice gets two unrelated vids."""
    count = len(handles)
    blocks = np.empty((count, BLOCK_BYTES), dtype=np.uint8)
    blocks[:, :HANDLE_BYTES] = _matrix(handles, HANDLE_BYTES)
    nonces = np.frombuffer(random_bytes(count * NONCE_BYTES), dtype=np.uint8)
    blocks[:, HANDLE_BYTES:] = nonces.reshape(count, NONCE_BYTES)
    sealed = np.empty((count, SEALED_BYTES), dtype=np.uint8)
    sealed[:, :EPOCH_BYTES] = np.frombuffer(keys.current.to_bytes(EPOCH_BYTES, "big"), np.uint8)
    encryptor = _cipher(keys.key).encryptor()
    encrypted = encryptor.update(blocks.tobytes()) + encryptor.finalize()
    sealed[:, EPOCH_BYTES:] = np.frombuffer(encrypted, np.uint8).reshape(count, BLOCK_BYTES)
    return _texts(base64.urlsafe_b64encode(sealed.tobytes()), count, keys.node)


def open_vids(vids: pa.Array, keys: TrustedKeys) -> pa.Array:
    """Return the handle in each vid; null if it is not ours, malformed, or its key is destroyed."""
    count = len(vids)
    handles = np.zeros((count, HANDLE_BYTES), dtype=np.uint8)
    opened = np.zeros(count, dtype=bool)
    pattern = f"^[A-Za-z0-9_-]{{{OPAQUE_LENGTH}}}@{keys.node.replace('.', '[.]')}$"
    ours = pc.fill_null(pc.match_substring_regex(vids, pattern), False)
    rows = np.flatnonzero(ours.to_numpy(zero_copy_only=False))
    opaque = pc.utf8_slice_codeunits(vids.take(pa.array(rows)), 0, OPAQUE_LENGTH)
    text = _joined(opaque)
    sealed = np.frombuffer(base64.urlsafe_b64decode(text), np.uint8).reshape(-1, SEALED_BYTES)
    epochs = sealed[:, :EPOCH_BYTES].astype(np.int64) @ np.array([256, 1])
    for epoch, key in sorted(keys.epochs.items()):
        chosen = np.flatnonzero(epochs == epoch)
        if not len(chosen):
            continue
        decryptor = _cipher(key).decryptor()
        plain = decryptor.update(sealed[chosen, EPOCH_BYTES:].tobytes()) + decryptor.finalize()
        blocks = np.frombuffer(plain, np.uint8).reshape(-1, BLOCK_BYTES)
        handles[rows[chosen]] = blocks[:, :HANDLE_BYTES]
        opened[rows[chosen]] = True
    data = pa.Array.from_buffers(HANDLE, count, [None, pa.py_buffer(handles.tobytes())])
    return pc.if_else(pa.array(opened), data, pa.scalar(None, HANDLE))


def open_few(vids: Sequence[str], keys: TrustedKeys) -> list[bytes | None]:
    """Do as `open_vids` does, for a handful of vids: a column's overhead is 500 µs, a vid's 5."""
    if len(vids) > FEW:
        found: list[bytes | None] = open_vids(pa.array(vids, pa.string()), keys).to_pylist()
        return found
    return [_open_one(vid, keys) for vid in vids]


def _open_one(vid: str, keys: TrustedKeys) -> bytes | None:
    opaque, _, node = vid.partition("@")
    if node != keys.node or not _OPAQUE.fullmatch(opaque):
        return None
    sealed = base64.urlsafe_b64decode(opaque)
    key = keys.epochs.get(int.from_bytes(sealed[:EPOCH_BYTES], "big"))
    if key is None:
        return None
    return _cipher(key).decryptor().update(sealed[EPOCH_BYTES:])[:HANDLE_BYTES]


def resolve(vids: pa.Array, keys: TrustedKeys, register: pa.Table) -> pa.Array:
    """Return the person behind each vid, null if there is none or no longer one."""
    known = register.combine_chunks()
    handles = open_vids(vids, keys)
    found = pc.index_in(handles, value_set=known["handle"].combine_chunks(), skip_nulls=True)
    return known["person"].combine_chunks().take(found)


def vids_of(person: str, vids: pa.Array, keys: TrustedKeys, register: pa.Table) -> pa.Array:
    """Return those vids that are this person's, for erasure from the archive."""
    return vids.filter(pc.fill_null(pc.equal(resolve(vids, keys, register), person), False))


def forget(person: str, register: pa.Table) -> pa.Table:
    """Return the register without this person; raise if it has no such person."""
    kept = register.filter(pc.not_equal(register["person"], person))
    if kept.num_rows == register.num_rows:
        raise InputError("there is no such person in the register")
    return kept


def trusted_node_of(vid: str) -> str:
    """Return the name after the @: which trusted node resolves this vid."""
    opaque, at, node = vid.rpartition("@")
    if not at or not opaque or not node:
        raise InputError(f"{vid[:60]!r} is not a vid such as opaque@trusted.example.org")
    return node


def _cipher(key: bytes) -> Cipher[modes.ECB]:
    # ECB is safe here (0051): each block is a vid with a random nonce, so none repeats.
    return Cipher(algorithms.AES(key), modes.ECB())  # noqa: S305


def _matrix(column: pa.Array, width: int) -> Bytes:
    if column.null_count or column.type != pa.binary(width):
        raise InputError(f"handles are {width} bytes each, none missing")
    start = column.offset * width
    data = np.frombuffer(column.buffers()[1], dtype=np.uint8)[start : start + len(column) * width]
    return data.reshape(len(column), width)


def _joined(opaque: pa.Array) -> bytes:
    """Return equally long texts as one string, without a Python object per text."""
    offsets = np.frombuffer(opaque.buffers()[1], np.int32)[opaque.offset :]
    if not len(opaque):
        return b""
    letters: bytes = opaque.buffers()[2].to_pybytes()
    return letters[offsets[0] : offsets[len(opaque)]]


def _texts(opaque: bytes, count: int, node: str) -> pa.Array:
    tail = np.frombuffer(f"@{node}".encode(), dtype=np.uint8)
    width = OPAQUE_LENGTH + len(tail)
    letters = np.empty((count, width), dtype=np.uint8)
    letters[:, :OPAQUE_LENGTH] = np.frombuffer(opaque, np.uint8).reshape(count, OPAQUE_LENGTH)
    letters[:, OPAQUE_LENGTH:] = tail
    offsets = np.arange(count + 1, dtype=np.int64) * width
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(letters.tobytes())]
    return pa.Array.from_buffers(pa.large_string(), count, buffers).cast(pa.string())
