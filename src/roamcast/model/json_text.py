"""JSON decoding whose errors name the position of the mistake, in characters from 1."""

import re
from typing import Any

import msgspec

from roamcast.errors import InputError

TOO_DEEP = "the JSON is nested too deeply"
_BYTE = re.compile(r"\s*\(byte (\d+)\)$")


def read(text: bytes | str, refusal: type[InputError]) -> Any:
    """Decode a JSON text, or raise `refusal` with the position of the mistake."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise refusal(TOO_DEEP) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = str(error).removeprefix("JSON is malformed: ")
        where = _BYTE.search(problem)
        position = _characters(text, int(where[1])) + 1 if where else 1
        if "truncated" in problem:  # msgspec gives no position here
            position = len(text.rstrip()) + 1
        raise refusal(f"not JSON: {_BYTE.sub('', problem)}", position=position) from None


def _characters(text: bytes | str, count: int) -> int:
    """Convert a byte offset to a character offset."""
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    return len(raw[:count].decode(errors="ignore"))
