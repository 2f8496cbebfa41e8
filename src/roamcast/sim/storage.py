"""What does a host still know after a crash? A disk that keeps what was synced, and perhaps more.

The disk is one log of checksummed records. Appended bytes are durable only once synced; a crash
keeps the synced bytes and a drawn part of the rest, which may end in the middle of a record.
Opening the log reads up to the first record that is not whole.
"""

import random
import zlib
from typing import Final

import msgspec

RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
COMPACT_BYTES_MIN: Final = 64 * 1024
_HEAD_BYTES: Final = 8

Writes = tuple[tuple[str, bytes | None], ...]

_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODER: Final = msgspec.msgpack.Decoder(Writes)


class Disk:
    """One host's log; `keys` is the state that its records lead to."""

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {}
        self._log = bytearray()
        self._synced_bytes = 0
        self._rewritten_bytes = 0  # what compactions saved, so that positions never run backwards

    @property
    def log_bytes(self) -> int:
        """The length of the log, synced or not."""
        return len(self._log)

    def append(self, writes: Writes) -> int:
        """Append one record, not yet durable; give the position to sync up to."""
        body = _ENCODE(writes)
        assert len(body) <= RECORD_BYTES_MAX
        self._log += len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body
        _apply(self.keys, writes)
        return self._rewritten_bytes + len(self._log)

    def sync(self, position: int) -> None:
        """Make the log durable up to a position; a log mostly of old values is written anew."""
        end = min(position - self._rewritten_bytes, len(self._log))
        self._synced_bytes = max(self._synced_bytes, end)
        live = sum(len(key) + len(value) + 16 for key, value in self.keys.items())
        all_synced = self._synced_bytes == len(self._log)
        if all_synced and len(self._log) > max(COMPACT_BYTES_MIN, 4 * live):
            before = self._rewritten_bytes + len(self._log)
            self._log.clear()
            self.append(tuple(sorted(self.keys.items())))
            self._synced_bytes = len(self._log)  # written beside the old log, then renamed
            self._rewritten_bytes = before - len(self._log)

    def crash(self, generator: random.Random) -> None:
        """Lose a drawn part of what was not synced, then read the log as a restart would."""
        kept = generator.randint(self._synced_bytes, len(self._log))
        del self._log[kept:]
        self.keys, whole = _replay(bytes(self._log))
        del self._log[whole:]
        self._synced_bytes = len(self._log)


def _apply(keys: dict[str, bytes], writes: Writes) -> None:
    for key, value in writes:
        if value is None:
            keys.pop(key, None)
        else:
            keys[key] = value


def _replay(log: bytes) -> tuple[dict[str, bytes], int]:
    """Read the whole records of a log; give the state and where the first torn one begins."""
    keys: dict[str, bytes] = {}
    at = 0
    while at + _HEAD_BYTES <= len(log):
        length = int.from_bytes(log[at : at + 4], "big")
        body = log[at + _HEAD_BYTES : at + _HEAD_BYTES + length]
        if len(body) < length or zlib.crc32(body).to_bytes(4, "big") != log[at + 4 : at + 8]:
            break
        _apply(keys, _DECODER.decode(body))
        at += _HEAD_BYTES + length
    return keys, at
