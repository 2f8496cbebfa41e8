"""The scanner that protects the parser: limits on length, nesting and terms (decision 0003).

The parser of `cql2` is recursive: very deep input overflows its stack, and each grouping
parenthesis doubles the work when something inside does not parse. So length, nesting and the number
of operators are bounded before the parser sees the text. The scanner also finds the grouping
parentheses, which `pieces` takes apart.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from roamcast.errors import FilterError, LimitError
from roamcast.model.kinds import unusable

LENGTH_MAX = 65_536
PARENTHESES_DEPTH_MAX = 128
"""Maximum pending parentheses, NOTs, signs and operators at any character."""

TERMS_MAX = 4_096
SHAPE_DEPTH_MAX = 4
"""GEOMETRYCOLLECTION(MULTIPOLYGON(((…))))."""

EXACT_INTEGER_MAX = 2**53
NOT_CQL2 = "not CQL2"
"""Begins the problem of a text that is not in the language."""

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<text>'(?:[^'\\]|''|(?:\\\\)*\\'|(?:\\\\)+(?=')|\\+(?![\\']))*')
      | (?P<name>"(?:[^"]|"")*")
      | (?P<broken>['"])
      | (?P<shape>\b(?:(?:MULTI)?(?:POINT|LINESTRING|POLYGON)|GEOMETRYCOLLECTION)
            \s*(?:ZM|Z|M)?\s*(?=\())
      | (?P<word>[^\W\d][\w.:]*)
      | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<open>\()
      | (?P<close>\))
      | (?P<comma>,)
      | (?P<operator>[-+*/%^]|[<>=]+)
      | (?P<other>.)
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_JOINING = frozenset({"and", "or"})
_BETWEEN_VALUES = frozenset({"and", "or", "not", "in", "like", "between", "is", "div"})
_BEFORE_VALUES = _BETWEEN_VALUES | {"null"}
_IN_SHAPES = frozenset({"number", "comma", "open", "close", "shape"})


class Group(msgspec.Struct):
    """A pair of parentheses around a group or a list, not of a function or a shape."""

    start: int
    end: int
    is_list: bool
    depth: int


def check_text(text: str) -> list[Group]:
    """Raise if the text is too long, too deep, unbalanced or has too many terms; return its groups.

    Groups are in the order in which they close, inner before outer.
    """
    check_length(text)
    scanner = _Scanner(escapes="\\'" in text)
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind != "space":
            scanner.take(token, kind or "other")
    if scanner.opened:
        raise FilterError("a ( is never closed", position=scanner.opened[-1].position)
    return scanner.groups


def tokens(text: str) -> list[tuple[str, str, int, int]]:
    """Give what a text is made of: kind, as written, where it begins and ends; spaces left out."""
    return [
        (token.lastgroup or "other", token[0], token.start(), token.end())
        for token in _TOKEN.finditer(text)
        if token.lastgroup != "space"
    ]


_ESCAPED = re.compile(r"(?<!\\)(?P<pairs>(?:\\\\)*)(?P<escape>\\?)'")


def in_dialect(start: int, part: str) -> Iterator[tuple[int, str]]:
    r"""Split a text into segments, rewriting what OGC allows and `cql2` does not read.

    `.5` becomes `0.5`. In quotes `\'` becomes `''`; OGC has no way to write a backslash before a
    quote or at the end, so `\\` stands for it there, and only there.
    """
    if "." not in part and "\\'" not in part:
        yield start, part
        return
    cursor = 0
    for token in _TOKEN.finditer(part):
        written = token[0]
        if token.lastgroup == "text" and "\\'" in written:
            inner = _ESCAPED.sub(_plainly, written[1:])
            written = f"'{inner}"
        elif token.lastgroup == "number" and written[0] == ".":
            written = "0" + written
        if written != token[0]:
            yield start + cursor, part[cursor : token.start()]
            yield start + token.start(), written
            cursor = token.end()
    yield start + cursor, part[cursor:]


def _plainly(found: re.Match[str]) -> str:
    quote = "''" if found["escape"] else "'"
    return found["pairs"][::2] + quote


_WRITTEN = {"isnull": "is", "*": "-"}
"""How constructs are spelled in text, where `cql2` gives them another name."""


def position_of(text: str, visited: Sequence[str]) -> int:
    """Return the position of the last visited construct; `visited` is in the order of the text."""
    if not visited:
        return 1
    starts: dict[str, list[int]] = {}
    for token in _TOKEN.finditer(text.replace("!=", "<>")):
        starts.setdefault(token[0].lower(), []).append(token.start() + 1)
    name = visited[-1]
    # `cql2` reports no positions, so count the construct's occurrences in the text instead.
    found = starts.get(name) or starts.get(_WRITTEN.get(name, "")) or [1]
    return found[min(visited.count(name), len(found)) - 1]


class _Open(msgspec.Struct):
    """An open parenthesis, with what was pending before it."""

    position: int
    group: Group | None
    pending: int


class _Scanner:
    """Counts parentheses, operators and signs, token by token."""

    def __init__(self, *, escapes: bool) -> None:
        self.opened: list[_Open] = []
        self.groups: list[Group] = []
        self.escapes = escapes
        self._operators = 0
        self._pending = 0
        self._group_depth = 0
        self._before = "operator"
        self._shape_depth: int | None = None

    def take(self, token: re.Match[str], kind: str) -> None:
        position = token.start() + 1
        if self._shape_depth is not None:
            self._in_shape(token, kind, position)
        elif kind == "word":
            kind = self._word(token[0], position)
        elif kind == "number":
            check_number(token[0], position)
        elif kind == "operator":
            self._count(position)
            self._pending += 1
        elif kind == "broken":
            hint = r" (\' stands for a quote, \\ for a backslash before one)"
            raise FilterError(
                f"the quote {token[0]} is never closed{hint if self.escapes else ''}",
                position=position,
            )
        elif kind == "comma":
            self._comma()
        elif kind == "shape":
            self._shape_depth = len(self.opened)
        if kind == "open":
            self._open(position)
        elif kind == "close":
            self._close(position)
        self._before = kind
        if len(self.opened) + self._pending > PARENTHESES_DEPTH_MAX:
            raise LimitError(f"nested deeper than {PARENTHESES_DEPTH_MAX}", position=position)

    def _word(self, written: str, position: int) -> str:
        word = written.lower()
        if word not in _BETWEEN_VALUES:
            # `cql2` would accept `a = 1 andnot(b)`, and its ( would look like a call.
            if self._before in {"word", "text", "name", "number", "close", "other"}:
                problem = f"{written[:40]} stands where AND, OR or a comparison is expected"
                raise FilterError(f"{NOT_CQL2}: {problem}", position=position)
            return "null" if word == "null" else "word"
        self._count(position)
        if word in _JOINING:  # AND and OR end what was pending: the parser is back at this level
            self._pending = self.opened[-1].pending if self.opened else 0
        else:
            self._pending += word in {"not", "div"}
        return "in" if word == "in" else "keyword"

    def _in_shape(self, token: re.Match[str], kind: str, position: int) -> None:
        assert self._shape_depth is not None
        deepest = len(self.opened) - self._shape_depth + (kind == "open")
        if deepest > SHAPE_DEPTH_MAX or (kind not in _IN_SHAPES and token[0] not in "+-"):
            raise FilterError(
                f"{NOT_CQL2}: {token[0][:40]!r} stands inside a shape", position=position
            )

    def _open(self, position: int) -> None:
        group = None
        # After a word or a name the parenthesis is a function's; anything else groups or lists.
        if self._shape_depth is None and self._before not in {"word", "name"}:
            self._group_depth += 1
            group = Group(position - 1, -1, self._before == "in", self._group_depth)
        self.opened.append(_Open(position, group, self._pending))

    def _close(self, position: int) -> None:
        if not self.opened:
            raise FilterError("a ) without its (", position=position)
        opened = self.opened.pop()
        self._pending = opened.pending
        if opened.group is not None:
            opened.group.end = position - 1
            self.groups.append(opened.group)
            self._group_depth -= 1
        if self._shape_depth is not None and len(self.opened) <= self._shape_depth:
            self._shape_depth = None

    def _comma(self) -> None:
        if self.opened:
            self._pending = self.opened[-1].pending
            group = self.opened[-1].group
            if group is not None:
                group.is_list = True

    def _count(self, position: int) -> None:
        self._operators += 1
        if self._operators > 2 * TERMS_MAX:  # a term and its AND or OR; `parse` counts exactly
            raise LimitError(f"more than {TERMS_MAX} terms", position=position)


def check_length(text: str) -> None:
    """Raise if the text is too long or not Unicode."""
    if len(text) > LENGTH_MAX:
        raise LimitError(
            f"a filter has at most {LENGTH_MAX} characters, this one {len(text)}",
            position=LENGTH_MAX + 1,
        )
    wrong = unusable(text)
    if wrong is not None:
        raise FilterError(f"the filter {wrong[1]}", position=wrong[0] + 1)


def check_number(text: str, position: int | None = None) -> None:
    """Raise for an integer that float64, the parser's only number type, cannot represent (0004)."""
    if not text.isdigit() or len(text) < 16:  # every integer of 15 digits is exact
        return
    if len(text) > 308:
        raise FilterError("a number is too large", position=position)
    if int(float(text)) != int(text):
        raise FilterError(f"{text[:40]} is not exact in float64; compare text", position=position)
