"""Plain filters, read at a glance: `type = 'printer' AND place = 'b35/2/2104'`, and nothing else.

Most subscriptions of programs are equations of attributes with texts. Their expression, normal form
and canonical text can be written down as they are read, for a tenth of what the whole way takes.
A text that is not quite so simple goes the whole way; the two agree (0321), which tests compare.
"""

import re
from typing import Final

import msgspec

from roamcast.model.contexts import RESERVED
from roamcast.model.filters import syntax
from roamcast.model.filters.atoms import All, Normal, Values
from roamcast.model.filters.text import is_plain_name
from roamcast.model.filters.values import point

LENGTH_MAX: Final = 512

_EQUATION: Final = re.compile(r" *([A-Za-z][A-Za-z0-9_]*) *= *'([ !#-&(-\[\]-~]*)' *")
"""A name and a text in printable ASCII, without quotes and backslashes."""

_AND: Final = re.compile(r"(?<=[' ])(?:AND|and) ")

_names: dict[str, bool] = {}
_NAMES_MAX: Final = 4_096


class Plain(msgspec.Struct, frozen=True):
    """What is derived from a plain filter."""

    expression: syntax.Expression
    normal: Normal
    text: str


def read(text: str) -> Plain | None:
    """Read a plain filter; None if it is another, or wrong."""
    if len(text) > LENGTH_MAX:
        return None
    found: dict[str, str] = {}
    at, end = 0, len(text)
    while True:
        equation = _EQUATION.match(text, at)
        if equation is None:
            return None
        name, value = equation.groups()
        if name in found or not _is_plain(name):
            return None
        found[name] = value
        at = equation.end()
        if at == end:
            break
        joined = _AND.match(text, at)
        if joined is None:
            return None
        at = joined.end()
    parts = tuple(
        syntax.Comparison("=", syntax.Property(name), syntax.Constant(value))
        for name, value in found.items()
    )
    written = sorted((f"{name} = '{value}'", name, value) for name, value in found.items())
    atoms = tuple(Values(name, "string", point(value)) for _, name, value in written)
    if len(parts) == 1:
        return Plain(parts[0], atoms[0], written[0][0])
    return Plain(syntax.And(parts), All(atoms), " AND ".join(term for term, _, _ in written))


def _is_plain(name: str) -> bool:
    known = _names.get(name)
    if known is None:
        if len(_names) >= _NAMES_MAX:
            _names.clear()
        reserved = name in RESERVED and name not in {"place", "vid"}
        known = _names[name] = is_plain_name(name) and not reserved
    return known
