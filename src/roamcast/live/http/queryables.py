"""Which attributes do contexts have, and which values are frequent? For menus and completion."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from roamcast.model.contexts import Context

SAMPLE_CONTEXTS: Final = 1_000
ATTRIBUTES_MAX: Final = 100
VALUES_MAX: Final = 10
TEXT_LENGTH_MAX: Final = 100
"""Longer texts are nobody's choice in a menu."""


def attribute_schemas(contexts: Iterable[Context]) -> dict[str, Any]:
    """Give a JSON schema for each attribute of some contexts, the most frequent ones first."""
    values: dict[str, Counter[Any]] = {}
    for context in contexts:
        for name, value in context.attributes.items():
            values.setdefault(name, Counter())[type(value), value] += 1
    frequent = sorted(values.items(), key=lambda entry: (-entry[1].total(), entry[0]))
    return {name: _schema(counts) for name, counts in frequent[:ATTRIBUTES_MAX]}


def _schema(counts: Counter[Any]) -> dict[str, Any]:
    kinds = sorted({_type(kind) for kind, _ in counts})
    schema: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
    frequent = sorted(counts.items(), key=lambda entry: (-entry[1], str(entry[0][1])))
    texts = [value for (kind, value), _ in frequent if kind is str]
    short = [text for text in texts if len(text) <= TEXT_LENGTH_MAX]
    if short:
        schema["examples"] = short[:VALUES_MAX]
    return schema


def _type(kind: type) -> str:
    if kind is bool:
        return "boolean"
    return {int: "integer", float: "number"}.get(kind, "string")
