"""How do a person's attributes travel between sources and contexts? As one canonical JSON text.

`{"integer:age":5,"string:role":"guest"}`: the columns of `model.context_arrow` in sorted order,
so equal attributes are equal texts, a text can stand for them as a key, and Spark reads the values
with their types.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from roamcast.identity.sightings import decode_attributes
from roamcast.model import time
from roamcast.model.context_arrow import column_of
from roamcast.model.contexts import Attribute

NOTHING = "{}"
"""The text of no attributes at all."""


def to_text(attributes: Mapping[str, Attribute]) -> str:
    """Write attributes as their canonical text."""
    columns = {
        column_of(name, value): time.format_instant(time.from_datetime(value))
        if isinstance(value, datetime)
        else value
        for name, value in attributes.items()
    }
    return msgspec.json.encode(dict(sorted(columns.items()))).decode()


def from_text(text: str) -> dict[str, Attribute]:
    """Read the canonical text again; only ever given what `to_text` wrote."""
    attributes: dict[str, Attribute] = {}
    for column, value in msgspec.json.decode(
        text, type=dict[str, str | int | float | bool]
    ).items():
        kind, _, name = column.partition(":")
        if kind == "timestamp":
            attributes[name] = time.to_datetime(time.parse_instant(str(value)))
        else:
            attributes[name] = float(value) if kind == "float" else value
    return attributes


def canonical(text: str) -> str:
    """Turn the JSON that a source wrote into the canonical text, or raise with what is wrong."""
    return to_text(decode_attributes(text))


def merged(texts: Sequence[str | None], reliability: Sequence[int]) -> str:
    """Join what several sources say; where two speak of one name, the more reliable is right."""
    spoken = [text for text in texts if text not in (None, NOTHING)]
    if len(spoken) <= 1:
        return spoken[0] or NOTHING if spoken else NOTHING
    attributes: dict[str, Attribute] = {}
    for index in sorted(range(len(texts)), key=lambda i: (reliability[i], -i)):
        attributes.update(from_text(texts[index] or NOTHING))
    return to_text(attributes)
