"""The trusted node's keys, one per epoch, in a file that only its owner can read.

Rotation adds a key and seals with it from then on. Destroying an epoch's key makes all its vids
permanently unresolvable, even for the trusted node.
"""

import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from roamcast import files
from roamcast.errors import InputError, LimitError

KEY_BYTES = 32
EPOCH_MAX = 2**16 - 1
FILE_BYTES_MAX = 8 << 20
NAME_LENGTH_MAX = 200
"""Leaves room for the opaque part within the maximum length of a vid."""

_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*")

RandomBytes = Callable[[int], bytes]
"""A source of randomness: `secrets.token_bytes` in a service, a seeded one in tests."""


class TrustedKeys(msgspec.Struct, frozen=True):
    """A trusted node's name, and the keys of all epochs not yet destroyed."""

    node: str
    epochs: Mapping[int, bytes]
    current: int

    @property
    def key(self) -> bytes:
        """The key of the current epoch."""
        if self.current not in self.epochs:
            raise InputError(f"the key of epoch {self.current} is destroyed: rotate first")
        return self.epochs[self.current]

    def rotated(self, random_bytes: RandomBytes) -> "TrustedKeys":
        """Return keys with a new epoch, which seals from now on; older keys still resolve."""
        if self.current >= EPOCH_MAX:
            raise LimitError(f"a trusted node has at most {EPOCH_MAX} epochs")
        number = self.current + 1
        return TrustedKeys(self.node, {**self.epochs, number: random_bytes(KEY_BYTES)}, number)

    def without(self, epoch: int) -> "TrustedKeys":
        """Return keys without an epoch's key."""
        if epoch not in self.epochs:
            raise InputError(f"there is no key of epoch {epoch}")
        kept = {number: key for number, key in self.epochs.items() if number != epoch}
        return TrustedKeys(self.node, kept, self.current)


def new_keys(node: str, random_bytes: RandomBytes) -> TrustedKeys:
    """Return the first key of a trusted node, named by its fully qualified domain name."""
    if len(node) > NAME_LENGTH_MAX or not _NAME.fullmatch(node):
        raise InputError(f"{node[:60]!r} is not a domain name such as trusted.example.org")
    return TrustedKeys(node, {1: random_bytes(KEY_BYTES)}, 1)


def save_keys(keys: TrustedKeys, path: Path) -> None:
    """Write the key file whole or not at all, readable by its owner only, and on disk."""
    document = {
        "node": keys.node,
        "current": keys.current,
        "epochs": {str(number): key.hex() for number, key in sorted(keys.epochs.items())},
    }
    text = msgspec.json.format(msgspec.json.encode(document))
    # on disk, or a power cut may bring the old file back, and vids lose their key
    files.write_whole(path, text, mode=files.OWNER_ONLY)


def load_keys(path: Path) -> TrustedKeys:
    """Read a key file; raise if others may read it, since its secrets may have leaked."""
    try:
        status = path.stat()
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise InputError("others may read this key file: chmod 600 it", source=str(path))
        if status.st_size > FILE_BYTES_MAX:
            raise LimitError(f"larger than {FILE_BYTES_MAX} bytes", source=str(path))
        document = msgspec.json.decode(path.read_bytes(), type=_KeyFile)
        epochs = {int(number): bytes.fromhex(key) for number, key in document.epochs.items()}
    except OSError as error:
        raise InputError(f"cannot read the key file: {error.strerror}", source=str(path)) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise InputError(f"not a key file: {error}", source=str(path)) from None
    wrong = [n for n, key in epochs.items() if len(key) != KEY_BYTES or not 0 < n <= EPOCH_MAX]
    if wrong or not 0 < document.current <= EPOCH_MAX or not _NAME.fullmatch(document.node):
        raise InputError("not a key file: a name, an epoch or a key is wrong", source=str(path))
    return TrustedKeys(document.node, epochs, document.current)


class _KeyFile(msgspec.Struct):
    node: str
    current: int
    epochs: dict[str, str]
