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

_TERM: Final = re.compile(
    r" *([A-Za-z][A-Za-z0-9_]*) *= *'([ !#-&(-\[\]-~]*)' *(?:(?:AND|and) |(\Z))"
)
"""A name, a text in printable ASCII without quotes and backslashes, and what follows."""

_END: Final = 3
"""The group of a term that nothing follows."""

_names: dict[str, bool] = {}
_NAMES_MAX: Final = 4_096


class Plain(msgspec.Struct, frozen=True, gc=False):
    """What is derived from a plain filter."""

    equations: dict[str, str]
    """Names and their texts, in the order as written."""
    normal: Normal
    text: str

    @property
    def expression(self) -> syntax.Expression:
        """The expression as written: made when it is asked for, which a compiled set never does."""
        parts = tuple(
            syntax.Comparison("=", syntax.Property(name), syntax.Constant(value))
            for name, value in self.equations.items()
        )
        return parts[0] if len(parts) == 1 else syntax.And(parts)


def read(text: str) -> Plain | None:
    """Read a plain filter; None if it is another, or wrong."""
    if len(text) > LENGTH_MAX:
        return None
    found: dict[str, str] = {}
    at, end = 0, None
    while end != _END:
        term = _TERM.match(text, at)
        if term is None:
            return None
        name, value = term.group(1, 2)
        if name in found or not _is_plain(name):
            return None
        found[name] = value
        at, end = term.end(), term.lastindex
    written = sorted([(f"{name} = '{value}'", name, value) for name, value in found.items()])
    atoms = tuple([Values(name, "string", point(value)) for _, name, value in written])
    if len(atoms) == 1:
        return Plain(found, atoms[0], written[0][0])
    return Plain(found, All(atoms), " AND ".join([term for term, _, _ in written]))


def _is_plain(name: str) -> bool:
    known = _names.get(name)
    if known is None:
        if len(_names) >= _NAMES_MAX:
            _names.clear()
        reserved = name in RESERVED and name not in {"place", "vid"}
        known = _names[name] = is_plain_name(name) and not reserved
    return known
