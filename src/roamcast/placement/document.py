"""TREE.json: a tree with its leaves' items or its flows. Errors name the vertex (decision 0013)."""

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from roamcast.errors import LimitError, TreeError
from roamcast.placement.flows import LeafWants, checked_flows, flows
from roamcast.placement.tree import Floats, Tree

BYTES_MAX = 1 << 30
"""One gigabyte of JSON: a million leaves with a hundred items each."""

Whole = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


VERTEX = re.compile(r"0|[1-9][0-9]{0,9}")


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    parent: list[Whole]
    wants: dict[str, list[Whole]] | None = None
    flow: list[float] | None = None
    link_delay: float = 1.0


class _Placed(msgspec.Struct):
    filters: list[Whole]


@dataclass(frozen=True, eq=False)
class Demand:
    """A tree, the flow each subtree wants, and c, the delay per item and link."""

    tree: Tree
    flow: Floats
    link_delay: float
    items: int | None  # distinct items wanted, where subscriptions were given


def read_demand(text: bytes) -> Demand:
    """Parse a TREE.json; every mistake in it raises a one-line error.

    An item that a leaf lists twice is wanted once; a leaf that is not listed wants nothing.
    """
    _not_too_large(text)
    document = _decoded(text, _Document)
    _no_key_twice(text, document)
    tree = Tree.of(document.parent)
    if not math.isfinite(document.link_delay) or document.link_delay < 0:
        raise TreeError(f'"link_delay" is {document.link_delay}: it must be finite, at least 0')
    if document.wants is not None and document.flow is not None:
        raise TreeError('both "wants" and "flow" are given: give one of them')
    if document.flow is not None:
        flow = checked_flows(tree, np.asarray(document.flow, dtype=np.float64))
        return Demand(tree, flow, document.link_delay, None)
    if document.wants is None:
        raise TreeError('neither "wants" (items per leaf) nor "flow" (per vertex) is given')
    wants = {_vertex(name): items for name, items in document.wants.items()}
    subscriptions = LeafWants.of(tree, wants)
    return Demand(tree, flows(tree, subscriptions), document.link_delay, subscriptions.items)


def read_filters(text: bytes) -> tuple[int, ...]:
    """Parse the filters of an earlier result."""
    _not_too_large(text)
    return tuple(sorted(set(_decoded(text, _Placed).filters)))


def _not_too_large(text: bytes) -> None:
    if len(text) > BYTES_MAX:
        raise LimitError(f"the file has {len(text)} bytes; the limit is {BYTES_MAX}")


def _decoded(text: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TreeError(f"not a tree file: {error}") from None


def _vertex(name: str) -> int:
    if not VERTEX.fullmatch(name):
        raise TreeError(f'"wants" names vertex {name[:40]!r}, which is not a vertex number')
    return int(name)


def _no_key_twice(text: bytes, document: _Document) -> None:
    # The fast decoder silently drops the first of two equal keys (0013). All strings of a valid
    # file are keys, so counting colons after quotes counts the keys.
    known = len(document.wants or ()) + _named(text)
    if len(re.findall(rb'"\s*:', text)) == known:
        return
    doubled: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = Counter(name for name, _ in pairs)
        doubled.extend(name for name, count in names.items() if count > 1)
        return dict(pairs)

    json.loads(text, object_pairs_hook=note)
    raise TreeError(f"{doubled[0]!r} is given twice" if doubled else "a key is given twice")


def _named(text: bytes) -> int:
    return len(msgspec.json.decode(text, type=dict[str, msgspec.Raw]))
