"""The canonical JSON text of a person's attributes.

`{"integer:age":5,"string:role":"guest"}` has the columns of `model.context_arrow` in sorted order.
Equal attributes have equal texts, so a text serves as a key, and Spark reads the values with their
types.
"""

from collections.abc import Mapping, Sequence

import msgspec

from roamcast.identity.sightings import decode_attributes
from roamcast.model.contexts import Attribute
from roamcast.model.kinds import KINDS, kind_of

NOTHING = "{}"
"""The text of no attributes at all."""


def to_text(attributes: Mapping[str, Attribute]) -> str:
    """Write attributes as their canonical text."""
    columns = {}
    for name, value in attributes.items():
        kind = kind_of(value)
        assert kind is not None
        columns[f"{kind.name}:{name}"] = kind.written(value)
    return msgspec.json.encode(dict(sorted(columns.items()))).decode()


def from_text(text: str) -> dict[str, Attribute]:
    """Parse a canonical text; only for texts written by `to_text`."""
    attributes: dict[str, Attribute] = {}
    written = msgspec.json.decode(text, type=dict[str, str | int | float | bool])
    for column, value in written.items():
        kind, _, name = column.partition(":")
        attributes[name] = KINDS[kind].read(value)
    return attributes


def canonical(text: str) -> str:
    """Convert a source's JSON to the canonical text; raise if it is invalid."""
    return to_text(decode_attributes(text))


def merged(texts: Sequence[str | None], reliability: Sequence[int]) -> str:
    """Merge the attributes of several sources; for the same name the most reliable source wins."""
    spoken = [text for text in texts if text not in (None, NOTHING)]
    if len(spoken) <= 1:
        return spoken[0] or NOTHING if spoken else NOTHING
    attributes: dict[str, Attribute] = {}
    for index in sorted(range(len(texts)), key=lambda i: (reliability[i], -i)):
        attributes.update(from_text(texts[index] or NOTHING))
    return to_text(attributes)
