"""CBM's information items, represented as contexts.

CBM 3.1: an item has a major key, a minor key and subkeys, "all triples of the form (type, name,
value)". As a context, an item has the attributes `major` and `minor` (the keys' values),
`major_name` and `minor_name`, and each subkey under its own name. Filters, matching and covering
therefore need no special case for items:

    major = 'NYSE' AND minor = 'IBM' AND current_price > 100

`Criterion` is the paper's filter, (type, name, operator, value); its `text` is CQL2, to be combined
with AND, OR and NOT.
"""

from hashlib import blake2b
from typing import Any

import msgspec

from roamcast.errors import ContextError, LimitError, MessageError
from roamcast.model.contexts import Attribute, Context, check
from roamcast.model.filters.text import name_text
from roamcast.model.kinds import KINDS, KindName, attribute_literal, kind_of

SUBKEYS_MAX = 252
"""A context has at most 256 attributes; the two keys take four."""

KEY_NAMES = ("major", "major_name", "minor", "minor_name")

OPERATORS = ("=", "<>", "<", "<=", ">", ">=")


class Triple(msgspec.Struct, frozen=True, array_like=True):
    """(type, name, value); timestamps as aware datetimes."""

    type: KindName
    name: str
    value: Attribute


class InformationItem(msgspec.Struct, frozen=True):
    """One item of information."""

    major: Triple
    minor: Triple
    subkeys: tuple[Triple, ...] = ()


class Criterion(msgspec.Struct, frozen=True, array_like=True):
    """(type, name, operator, value): CBM's filter criterion."""

    type: KindName
    name: str
    operator: str
    value: Attribute

    def text(self) -> str:
        """Write the criterion as CQL2; combine texts with AND, OR, NOT."""
        if self.operator not in OPERATORS:
            raise MessageError(f"{self.operator!r} is none of the operators {' '.join(OPERATORS)}")
        check_triple(Triple(self.type, self.name, self.value))
        return f"{name_text(self.name)} {self.operator} {attribute_literal(self.value)}"


def check_triple(triple: Triple) -> Triple:
    """Return the triple if its value is of its type; an integer may stand for a float."""
    if triple.type not in KINDS:
        raise MessageError(f"{triple.type!r} is none of the types {', '.join(KINDS)}")
    kind = kind_of(triple.value)
    found = None if kind is None else kind.name
    if found != triple.type and (triple.type, found) != ("float", "integer"):
        raise MessageError(f"{triple.name!r} is not of the type {triple.type}")
    if not triple.name:
        raise MessageError("a triple has a name")
    return triple


def to_context(item: InformationItem, vid: str, t_r: int, t_d: int | None = None) -> Context:
    """Convert an item to a context that is valid from t_r to t_d."""
    if len(item.subkeys) > SUBKEYS_MAX:
        raise LimitError(f"an item has at most {SUBKEYS_MAX} subkeys")
    attributes: dict[str, Attribute] = {}
    for key, triple in (("major", item.major), ("minor", item.minor)):
        attributes[key] = _value(triple)
        attributes[f"{key}_name"] = triple.name
    for triple in item.subkeys:
        if triple.name in attributes:
            raise MessageError(f"the subkey {triple.name!r} is given twice, or is a key's name")
        attributes[triple.name] = _value(triple)
    try:
        return check(Context(vid, None, None, attributes, t_r, t_d))
    except ContextError as error:
        raise MessageError(error.problem) from None


def from_context(context: Context) -> InformationItem:
    """Convert a context made by `to_context` back to its item."""
    attributes = dict(context.attributes)
    keys = []
    for key in ("major", "minor"):
        value, name = attributes.pop(key, None), attributes.pop(f"{key}_name", None)
        if value is None or not isinstance(name, str):
            raise MessageError(f"this context is no item: it lacks {key!r} or '{key}_name'")
        keys.append(_triple(name, value))
    subkeys = tuple(_triple(name, value) for name, value in attributes.items())
    return InformationItem(keys[0], keys[1], subkeys)


def item_of(major: Triple, minor: Triple, subkeys: tuple[Triple, ...]) -> InformationItem:
    """Make an item of checked triples."""
    return InformationItem(check_triple(major), check_triple(minor), subkeys)


def is_item(context: Context) -> bool:
    """Whether a context is an item: it needs no place on the map."""
    return all(name in context.attributes for name in KEY_NAMES)


def item_vid(source: str, major: str, minor: str) -> str:
    """Name the item of a source: the same keys mean the same item."""
    keys = msgspec.msgpack.encode((major, minor))
    return f"{source}:item-{blake2b(keys, digest_size=12).hexdigest()}"


def decode_item(text: bytes | str) -> InformationItem:
    """Decode an item: `{"major": [type, name, value], "minor": […], "subkeys": [[…]]}`."""
    try:
        decoded = msgspec.json.decode(text, type=_JsonItem)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise MessageError(f"not an item: {error}") from None
    if len(decoded.subkeys) > SUBKEYS_MAX:
        raise LimitError(f"an item has at most {SUBKEYS_MAX} subkeys")
    return InformationItem(
        read_triple(decoded.major),
        read_triple(decoded.minor),
        tuple(map(read_triple, decoded.subkeys)),
    )


def encode_item(item: InformationItem) -> bytes:
    """Encode an item as JSON."""
    triples = [_written(triple) for triple in (item.major, item.minor, *item.subkeys)]
    return msgspec.json.encode(_JsonItem(triples[0], triples[1], tuple(triples[2:])))


_JsonTriple = tuple[str, str, Any]


class _JsonItem(msgspec.Struct, frozen=True):
    major: _JsonTriple
    minor: _JsonTriple
    subkeys: tuple[_JsonTriple, ...] = ()


def read_triple(triple: _JsonTriple) -> Triple:
    """Read a triple as JSON has it."""
    kind, name, value = triple
    if kind in KINDS and KINDS[kind].text is not None and isinstance(value, str):
        value = KINDS[kind].read(value)
    if kind == "float" and type(value) is int:
        value = _as_float(name, value)
    return check_triple(Triple(kind, name, value))  # type: ignore[arg-type] # checked just here


def _written(triple: Triple) -> _JsonTriple:
    return triple.type, triple.name, KINDS[triple.type].written(triple.value)


def _value(triple: Triple) -> Attribute:
    check_triple(triple)
    return _as_float(triple.name, triple.value) if triple.type == "float" else triple.value


def _as_float(name: str, value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        raise MessageError(f"{name!r} is too large for a float") from None


def _triple(name: str, value: Attribute) -> Triple:
    kind = kind_of(value)
    assert kind is not None
    return Triple(kind.name, name, value)
