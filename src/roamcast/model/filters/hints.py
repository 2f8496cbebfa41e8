"""Hints for people who write filters: what was probably meant, in words of the language.

`cql2` names its grammar's rules, which no user knows. `expectation` says the same in words,
`advice` recognises habits from SQL, C and word processors by the text around the mistake, and
`unquoted` finds `type = printer`, which is valid CQL2 (a comparison of two attributes) and rarely
meant.
"""

import difflib
import re
from collections.abc import Iterable, Iterator

from roamcast.model.filters import syntax

_VALUE = "a value or a property is expected here"
_JOIN = "AND, OR or a comparison is expected here"
_KEYWORDS = ("and", "or", "not", "in", "like", "between", "is")

_HABITS = {
    "==": "equality is written =",
    "=>": "at least is written >=",
    "=<": "at most is written <=",
    "&&": "write AND",
    "||": "write OR",
    "&": "write AND",
    "|": "write OR",
    "!": "write NOT",
    "~": "write LIKE with a pattern such as 'x%'",
    ";": "a filter is one expression, without ;",
    "@": "a text stands in single quotes, such as 'me@home'",
} | dict.fromkeys("“”„‘’«»`", "a text stands in straight single quotes, such as 'printer'")
"""What people write from habit → what CQL2 has; the longest that fits comes first."""

_WORDS = {
    "ilike": "to ignore case write casei(name) LIKE casei('a%')",
    "lower": "to ignore case use casei",
    "upper": "to ignore case use casei",
    "startswith": "use LIKE 'x%'",
    "starts_with": "use LIKE 'x%'",
    "endswith": "use LIKE '%x'",
    "ends_with": "use LIKE '%x'",
    "st_intersects": "use s_intersects",
    "st_within": "use s_within",
    "st_contains": "use s_contains",
    "st_dwithin": "use near(geometry, POINT(longitude latitude), metres)",
    "distance": "use near(geometry, POINT(longitude latitude), metres)",
}

_BEFORE = re.compile(r"(\S{1,2})\s*$")
_WORD = re.compile(r"[^\W\d][\w.:]*")
_TEXT_OR_NAME = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[^\W\d][\w.:]*""")


def expectation(rules: str) -> str:
    """Say in words which of the grammar's rules were expected."""
    if "SingleQuotedString" in rules:
        return _VALUE
    if "EOI" in rules or "And" in rules.split(", "):
        return _JOIN
    if "NotFlag" in rules:
        return "IS takes NULL or NOT NULL"
    if "Expr" in rules:
        return "a filter such as type = 'printer' is expected here"
    if "Add" in rules:
        return "a value ends too early here; BETWEEN takes two: a BETWEEN 1 AND 2"
    return "this is no part of the language"


def advice(text: str, position: int) -> str:
    """Give what was probably meant at a position, as an ending of the error's line, or nothing."""
    start = position - 1
    before = _BEFORE.search(text, max(0, start - 40), start)
    previous = before[1] if before else ""
    # an operator of two characters may begin before, at, or end before the position
    nearby = (text[start : start + 2], text[max(0, start - 1) : start + 1], previous)
    for written in (*nearby, text[start : start + 1], previous[-1:]):
        if written in _HABITS:
            return f"; {_HABITS[written]}"
    word = _WORD.match(text, start)
    if word is None:
        return ""
    if start and text[start - 1] == "'":
        return "; a quote inside a text is written twice, such as 'it''s'"
    if word[0].lower() == "is":
        return "; IS takes NULL or NOT NULL"
    return meant(word[0], _KEYWORDS) or _comparison(text, start, word[0])


def meant(name: str, known: Iterable[str]) -> str:
    """Give the known name that is closest to an unknown one, as an ending of the error's line."""
    name = name.lower()
    if name in _WORDS:
        return f"; {_WORDS[name]}"
    close = difflib.get_close_matches(name[:60], list(known), n=1, cutoff=0.65)
    found = close[0].upper() if close and close[0] in _KEYWORDS else close[0] if close else ""
    return f"; did you mean {found}?" if found else ""


def _comparison(text: str, start: int, word: str) -> str:
    """Propose `type = 'printer'` for `type printer`."""
    before = text[:start].split()[-1:]
    if before and _WORD.fullmatch(before[0]) and before[0].lower() not in _KEYWORDS:
        return f"; a comparison is written {before[0][:40]} = '{word[:40]}'"
    return ""


def unquoted(expression: syntax.Expression, text: str) -> str:
    """Give a hint for an attribute where a text was probably meant, with its position, or nothing.

    It depends on the filter alone: whether an attribute is on the map is not everybody's to know.
    """
    name = next(_compared(expression), None)
    if name is None:
        return ""
    written = {name, f'"{name}"'}
    places = [token for token in _TEXT_OR_NAME.finditer(text) if token[0] in written]
    where = f"position {places[-1].start() + 1}: " if places else ""
    return (
        f"{where}{name[:60]} is read as the name of an attribute; "
        f"for a text write '{name[:60]}' in single quotes"
    )


def _compared(expression: syntax.Expression) -> Iterator[str]:
    """Give the attributes that another property is compared with, in the order of the text."""
    match expression:
        case syntax.And(parts) | syntax.Or(parts):
            for part in parts:
                yield from _compared(part)
        case syntax.Not(part):
            yield from _compared(part)
        case syntax.Comparison(_, syntax.Property(), syntax.Property(name)):
            yield name
        case syntax.In(syntax.Property(), options):
            yield from (each.name for each in options if isinstance(each, syntax.Property))
        case _:
            return
