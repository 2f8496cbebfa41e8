"""The disk of a simulated host: it keeps what was synced, and perhaps more.

The disk is one log of checksummed records. Appended bytes are durable only once synced; a crash
keeps the synced bytes and a drawn part of the rest, which may end in the middle of a record.
Opening the log reads up to the first record that is not whole. Entries have stamps, as on the disks
of replicas: a deleted key with a stamp stays as an entry without a value.
"""

import enum
import random
import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

from roamcast.model.machine import Entry, Writes

RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
COMPACT_BYTES_MIN: Final = 64 * 1024
_HEAD_BYTES: Final = 8

_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODER: Final = msgspec.msgpack.Decoder(tuple[Entry, ...])


class DiskState(enum.StrEnum):
    """What a disk does with writes."""

    WELL = "it syncs them in time"
    FAILING = "it refuses them"
    STALLED = "it takes them and syncs nothing for now"
    FULL = "it refuses values and deletes keys"


class Disk:
    """One host's log; `entries` is the state that its records lead to."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.state = DiskState.WELL
        self._log = bytearray()
        self._synced_bytes = 0
        self._rewritten_bytes = 0  # what compactions saved, so that positions never run backwards

    @property
    def keys(self) -> dict[str, bytes]:
        """The values that are there, by key."""
        return {key: one.value for key, one in self.entries.items() if one.value is not None}

    @property
    def stamp(self) -> int:
        """The newest stamp of all entries."""
        return max((entry.stamp for entry in self.entries.values()), default=0)

    @property
    def log_bytes(self) -> int:
        """The length of the log, synced or not."""
        return len(self._log)

    def open(self) -> "Disk":
        """Make durable what a process before this one appended, as opening a real store does."""
        self.sync(self._rewritten_bytes + len(self._log))
        return self

    def load(self, prefix: str) -> dict[str, bytes]:
        """Read the values whose keys begin with a prefix, in the order of the keys."""
        return {key: value for key, value in sorted(self.keys.items()) if key.startswith(prefix)}

    def page(self, after: str, until: str, bytes_max: int | None) -> tuple[Entry, ...]:
        """Read entries with keys in (after, until], as `ReadPage` asks."""
        found: list[Entry] = []
        size = 0
        for key in sorted(self.entries):
            if key <= after or (until and key > until):
                continue
            size += self.entries[key].size
            if bytes_max is not None and found and size > bytes_max:
                break
            found.append(self.entries[key])
        return tuple(found)

    def durable(self) -> dict[str, Entry]:
        """Read what a crash at this moment keeps for certain."""
        entries, _ = _replay(bytes(self._log[: self._synced_bytes]))
        return entries

    def refuses(self, writes: Writes | Sequence[Entry]) -> str:
        """Say why a write is refused now, "" if it is not."""
        if self.state is DiskState.FAILING:
            return "input/output error"
        values = [one.value if isinstance(one, Entry) else one[1] for one in writes]
        if self.state is DiskState.FULL and any(value is not None for value in values):
            return "no space left on device"
        return ""

    def append(self, writes: Writes, stamp: int = 0) -> int:
        """Append one record, not yet durable; give the position to sync up to."""
        return self._append(tuple(Entry(key, value, stamp) for key, value in writes))

    def merge(self, entries: Sequence[Entry]) -> tuple[int, tuple[Entry, ...]]:
        """Append the entries that rank higher than ours; give the position and those."""
        newer: dict[str, Entry] = {}
        for entry in entries:
            known = newer.get(entry.key) or self.entries.get(entry.key)
            if known is None or entry.rank > known.rank:
                newer[entry.key] = entry
        won = tuple(newer.values())
        return self._append(won), won

    def _append(self, entries: tuple[Entry, ...]) -> int:
        body = _ENCODE(entries)
        assert len(body) <= RECORD_BYTES_MAX
        self._log += len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body
        _apply(self.entries, entries)
        return self._rewritten_bytes + len(self._log)

    def sync(self, position: int) -> None:
        """Make the log durable up to a position; a log mostly of old values is written anew."""
        end = min(position - self._rewritten_bytes, len(self._log))
        self._synced_bytes = max(self._synced_bytes, end)
        if len(self._log) <= COMPACT_BYTES_MIN or self._synced_bytes < len(self._log):
            return
        live = sum(entry.size for entry in self.entries.values())
        if len(self._log) > 4 * live:
            before = self._rewritten_bytes + len(self._log)
            self._log.clear()
            self._append(tuple(entry for _, entry in sorted(self.entries.items())))
            self._synced_bytes = len(self._log)  # written beside the old log, then renamed
            self._rewritten_bytes = before - len(self._log)

    def crash(self, generator: random.Random) -> None:
        """Lose a drawn part of what was not synced, then read the log as a restart would."""
        survives = generator.randint(self._synced_bytes, len(self._log))
        del self._log[survives:]
        self.entries, whole = _replay(bytes(self._log))
        del self._log[whole:]
        self._synced_bytes = len(self._log)


def _apply(entries: dict[str, Entry], record: Sequence[Entry]) -> None:
    for entry in record:
        if entry.value is None and not entry.stamp:
            entries.pop(entry.key, None)
        else:
            entries[entry.key] = entry


def _replay(log: bytes) -> tuple[dict[str, Entry], int]:
    """Read the whole records of a log; give the state and where the first torn one begins."""
    entries: dict[str, Entry] = {}
    at = 0
    while at + _HEAD_BYTES <= len(log):
        length = int.from_bytes(log[at : at + 4], "big")
        body = log[at + _HEAD_BYTES : at + _HEAD_BYTES + length]
        if len(body) < length or zlib.crc32(body).to_bytes(4, "big") != log[at + 4 : at + 8]:
            break
        _apply(entries, _DECODER.decode(body))
        at += _HEAD_BYTES + length
    return entries, at
