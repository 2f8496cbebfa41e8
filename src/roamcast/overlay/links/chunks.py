"""Bytes that exceed a frame travel as chunks, one after the other, and are joined again."""

from typing import Final

from roamcast.errors import LimitError

CHUNK_BYTES: Final = 48_000
"""A chunk and its head fit a frame of a link."""


def chunks_of(data: bytes) -> list[tuple[bytes, bool]]:
    """Divide bytes into chunks, each with whether it is the last one."""
    starts = range(0, max(len(data), 1), CHUNK_BYTES)
    return [(data[at : at + CHUNK_BYTES], at + CHUNK_BYTES >= len(data)) for at in starts]


class Assembly:
    """Joins the chunks that come by one link; links keep their order."""

    def __init__(self, bytes_max: int) -> None:
        self._data = bytearray()
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        return len(self._data)

    def add(self, chunk: bytes, last: bool) -> bytes | None:
        """Take the next chunk; give everything after the last one."""
        if len(self._data) + len(chunk) > self._bytes_max:
            raise LimitError(f"chunks of more than {self._bytes_max} bytes")
        self._data += chunk
        if not last:
            return None
        whole = bytes(self._data)
        self._data.clear()
        return whole
