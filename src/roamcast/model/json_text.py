"""What does a JSON text say, and where is it broken? An error names the position, from 1."""

import re
from typing import Any

import msgspec

from roamcast.errors import InputError

_BYTE = re.compile(r"\s*\(byte (\d+)\)$")


def read(text: bytes | str, refusal: type[InputError]) -> Any:
    """Decode a JSON text, or raise the refusal."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        said = str(error).removeprefix("JSON is malformed: ")
        where = _BYTE.search(said)
        position = _characters(text, int(where[1])) + 1 if where else 1
        if "truncated" in said:
            position = len(text.rstrip()) + 1
        raise refusal(f"not JSON: {_BYTE.sub('', said)}", position=position) from None


def _characters(text: bytes | str, count: int) -> int:
    """Turn a number of bytes into one of characters."""
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    return len(raw[:count].decode(errors="ignore"))
