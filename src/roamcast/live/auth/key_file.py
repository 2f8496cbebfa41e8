"""Where do the service's signing keys lie? In one file for its owner only, whole or absent."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from roamcast.errors import InputError, LimitError

FILE_BYTES_MAX: Final = 32 << 20


class PublicKey(msgspec.Struct, frozen=True):
    """A key's public half (base64url), and when the last token it signed expires."""

    id: str
    x: str
    until_us: int


class KeyFile(msgspec.Struct, frozen=True):
    """All keys, the last one signs with the private half; and the revoked tokens' ids."""

    keys: tuple[PublicKey, ...] = ()
    private: str = ""
    revoked: Mapping[str, int] = {}


def save_key_file(file: KeyFile, path: Path) -> None:
    """Write the file whole or not at all, readable by its owner only, and on disk."""
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as opened:
        opened.write(msgspec.json.format(msgspec.json.encode(file)))
        opened.flush()
        os.fsync(opened.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load_key_file(path: Path) -> KeyFile:
    """Read the file; one that others may read is refused, for its secrets may be out."""
    try:
        status = path.stat()
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise InputError(
                "others may read this key file: chmod 600 it, then `roamcast token rotate`",
                source=str(path),
            )
        if status.st_size > FILE_BYTES_MAX:
            raise LimitError(f"larger than {FILE_BYTES_MAX} bytes", source=str(path))
        file = msgspec.json.decode(path.read_bytes(), type=KeyFile)
    except OSError as error:
        raise InputError(f"cannot read the key file: {error.strerror}", source=str(path)) from None
    except msgspec.DecodeError as error:
        raise InputError(f"not a key file: {error}", source=str(path)) from None
    if not file.keys or not file.private:
        raise InputError("not a key file: it has no key", source=str(path))
    return file
