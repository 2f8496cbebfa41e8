"""The audit log of casts: what was done, when and where, and nobody's name.

Lines of JSON in files that are only ever appended to, one file a day, and more if one grows large.
A line is with the operating system before the request is answered. Whoever acted is a handle: a
keyed hash whose key belongs to the file and is replaced with it. Within a file it is seen that the
same person acted; across files, or by guessing names later, nothing is.
"""

import hashlib
import hmac
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from roamcast.errors import StoreError
from roamcast.files import write_whole
from roamcast.model.areas import Area
from roamcast.model.time import MICROSECONDS, format_instant

FOLDER: Final = "audit"
FILE_BYTES_MAX: Final = 16 << 20
"""Bytes of one file; then another begins."""

FIRST: Final = ".0001.jsonl"
"""How the name of a day's first file ends: refusals are only noted there."""

PLACES_MAX: Final = 16
KEY: Final = "key"

AuditAct = Literal[
    "sent", "refused", "cancelled", "updated", "asked for consent", "consented", "not consented"
]


class AuditLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was done with a cast."""

    at: str
    act: AuditAct
    by: str
    """A handle of who did it, good for this file only."""
    cast: str = ""
    tense: str = ""
    priority: str = ""
    places: tuple[str, ...] = ()
    """Where it goes; none: not bound to places."""
    bytes: int = 0
    reason: str = ""
    """Why it was refused, in general terms: what people wrote is not repeated."""


class AuditKey(msgspec.Struct, frozen=True):
    """The key of the handles in one file."""

    file: str
    key: bytes


class AuditLog:
    """The files of one service."""

    def __init__(self, folder: Path, days: int) -> None:
        """`days`: how long files are kept; 0: no log is written."""
        self._folder = folder
        self._days = days
        self._name = ""
        self._key = b""
        self._file: int | None = None

    def note(self, now: int, act: AuditAct, subject: str, **more: Any) -> None:
        """Append a line; StoreError if the disk refuses it."""
        if not self._days:
            return
        try:
            file = self._current(now)
            if act == "refused" and not self._name.endswith(FIRST):
                return  # who is refused again and again shall not fill the disk
            by = hmac.new(self._key, subject.encode(), hashlib.blake2b).hexdigest()[:16]
            line = AuditLine(format_instant(now), act, by, **more)
            os.write(file, msgspec.json.encode(line) + b"\n")
        except OSError as error:
            raise StoreError(f"the audit log can not be written: {error.strerror}") from None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _current(self, now: int) -> int:
        """Give the file of today, that has room."""
        day = datetime.fromtimestamp(now // MICROSECONDS, UTC).strftime("%Y-%m-%d")
        if (
            self._file is not None
            and self._name.startswith(day)
            and os.fstat(self._file).st_size < FILE_BYTES_MAX
        ):
            return self._file
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        number = 1
        while self._is_full(name := f"{day}.{number:04}.jsonl"):
            number += 1
        self._key = self._key_of(name)
        self._name = name
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(self._folder / name, flags, 0o600)
        self._forget(now)
        return self._file

    def _is_full(self, name: str) -> bool:
        path = self._folder / name
        return path.exists() and path.stat().st_size >= FILE_BYTES_MAX

    def _key_of(self, name: str) -> bytes:
        """Give a file's key: the last one's is destroyed when a new file begins."""
        path = self._folder / KEY
        if path.exists():
            known = msgspec.json.decode(path.read_bytes(), type=AuditKey)
            if known.file == name:
                return known.key
        made = AuditKey(name, secrets.token_bytes(32))
        write_whole(path, msgspec.json.encode(made), mode=0o600)
        return made.key

    def _forget(self, now: int) -> None:
        """Delete files of days that need not be kept any more."""
        oldest = datetime.fromtimestamp(now // MICROSECONDS - self._days * 86_400, UTC)
        for path in self._folder.glob("*.jsonl"):
            if path.name[:10] < oldest.strftime("%Y-%m-%d"):
                path.unlink(missing_ok=True)


def places_of(area: Area) -> tuple[str, ...]:
    """Name the places that an area lies in, as far as they are few."""
    if any(patch.places is None for patch in area.patches):
        return ()
    found = {place for patch in area.patches for place in patch.places or ()}
    return tuple(sorted(found)[:PLACES_MAX])
