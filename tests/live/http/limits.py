"""Boundary cases of a JSON Schema: for each limit a value at it and a value beyond it."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Schema = dict[str, Any]
Path = tuple[str | int, ...]


class Case(NamedTuple):
    """A limit of a schema: where, which keyword, an instance at it and one beyond it."""

    path: Path
    keyword: str
    at: Any
    beyond: Any


def cases(schema: Schema, base: Any, components: Schema) -> Iterator[Case]:
    """Give the cases of a schema: `base`, a valid instance, with one value replaced in each."""
    for path, keyword, at, beyond in _limits(schema, base, components, ()):
        yield Case(path, keyword, _with(base, path, at), _with(base, path, beyond))


class _Absent:
    """Stands for a member that is left out."""


ABSENT = _Absent()


_SCALARS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "maxLength": lambda most: ("a" * most, "a" * (most + 1)),
    "minLength": lambda least: ("a" * least, "a" * (least - 1)),
    "maximum": lambda most: (most, most + 1),
    "minimum": lambda least: (least, least - 1),
    "exclusiveMaximum": lambda end: (end - 1, end),
    "exclusiveMinimum": lambda end: (end + 1, end),
}


def _limits(schema: Schema, value: Any, components: Schema, path: Path) -> Iterator[Case]:
    schema = _resolved(schema, components)
    for option in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        # An option that asks for members is a condition among several, not a limit.
        if option != {"type": "null"} and (option.keys() & {"$ref", "type"} or "minimum" in option):
            yield from _limits(option, value, components, path)
    for keyword, limit in schema.items():
        if keyword in _SCALARS:
            yield Case(path, keyword, *_SCALARS[keyword](limit))
        elif keyword == "enum":
            yield from (Case(path, keyword, choice, "no such choice") for choice in limit)
    if isinstance(value, dict):
        yield from _object_limits(schema, value, path)
    if "maxItems" in schema:
        most = schema["maxItems"]
        item = sample(schema.get("items") or {"type": "number"}, components)
        yield Case(path, "maxItems", [item] * most, [item] * (most + 1))
    for step, inner, member in _parts(schema, value):
        yield from _limits(inner, member, components, (*path, step))


def _object_limits(schema: Schema, value: dict[str, Any], path: Path) -> Iterator[Case]:
    if "maxProperties" in schema:
        names = [f"a{number}" for number in range(schema["maxProperties"] + 1 - len(value))]
        whole = {**value, **dict.fromkeys(names, next(iter(value.values()), 1))}
        yield Case(path, "maxProperties", _without(whole, names[0]), whole)
    for name in schema.get("required", ()):
        yield Case((*path, name), "required", value[name], ABSENT)
    if schema.get("additionalProperties") is False:
        yield Case((*path, "unknown"), "additionalProperties", ABSENT, 1)


def _parts(schema: Schema, value: Any) -> Iterator[tuple[str | int, Schema, Any]]:
    """Give the members or items of a value, each with its schema."""
    if isinstance(value, dict):
        others = schema.get("additionalProperties")
        for name, member in value.items():
            inner = schema.get("properties", {}).get(name, others)
            if isinstance(inner, dict):
                yield name, inner, member
    if isinstance(value, list):
        for number, item in enumerate(value):
            parts = schema.get("prefixItems")
            inner = parts[number] if parts else schema.get("items")
            if isinstance(inner, dict):
                yield number, inner, item


def sample(schema: Schema, components: Schema) -> Any:
    """Give a small valid value."""
    schema = _resolved(schema, components)
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "string":
            return "a" * max(1, schema.get("minLength", 0))
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "array":
            return []
        case "object":
            named = schema["properties"]
            return {name: sample(named[name], components) for name in schema.get("required", ())}
    raise AssertionError(schema)


def _resolved(schema: Schema, components: Schema) -> Schema:
    if "$ref" not in schema:
        return schema
    name = schema["$ref"].rpartition("/")[2]
    return {**components[name], **{k: v for k, v in schema.items() if k != "$ref"}}


def _without(value: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: member for key, member in value.items() if key != name}


def _with(base: Any, path: Path, value: Any) -> Any:
    """Replace the value at a path."""
    if not path:
        return value
    made = copy.deepcopy(base)
    inner = made
    for step in path[:-1]:
        inner = inner[step]
    if value is ABSENT:
        inner.pop(path[-1], None)
    else:
        inner[path[-1]] = value
    return made
