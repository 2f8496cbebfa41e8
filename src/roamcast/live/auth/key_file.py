"""The file of a service's token keys: owner only, replaced as a whole, synced."""

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from roamcast import files
from roamcast.errors import InputError, LimitError

FILE_BYTES_MAX: Final = 32 << 20


class PublicKey(msgspec.Struct, frozen=True):
    """A key's public half (base64url), and when the last token it signed expires."""

    id: str
    x: str
    until_us: int


class KeyFile(msgspec.Struct, frozen=True):
    """The key file: all keys, the last of which signs; its private half; revoked tokens by id."""

    keys: tuple[PublicKey, ...] = ()
    private: str = ""
    revoked: Mapping[str, int] = {}


def save_key_file(file: KeyFile, path: Path) -> None:
    """Replace the file as a whole, readable by its owner only, and synced."""
    text = msgspec.json.format(msgspec.json.encode(file))
    files.write_whole(path, text, mode=files.OWNER_ONLY)


def load_key_file(path: Path) -> KeyFile:
    """Read the file; one that others may read is refused, because its key may have leaked."""
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
