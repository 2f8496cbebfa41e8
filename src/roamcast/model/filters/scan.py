"""Is a filter's text safe to hand to the parser? Limits are checked on the characters.

The parser of `cql2` is recursive: very deep input overflows its stack, and an unclosed
parenthesis makes it try exponentially many ways. So length, nesting, and the number of operators
are bounded here, before it sees anything.
"""

import re

from roamcast.errors import FilterError, LimitError

LENGTH_MAX = 65_536
DEPTH_MAX = 48
TERMS_MAX = 4_096
EXACT_INTEGER_MAX = 2**53

_TOKEN = re.compile(
    r"""(?P<text>'(?:[^']|'')*')
      | (?P<name>"(?:[^"]|"")*")
      | (?P<broken>['"])
      | (?P<shape>\b(?:(?:MULTI)?(?:POINT|LINESTRING|POLYGON)|GEOMETRYCOLLECTION)\s*Z?\s*(?=\())
      | (?P<word>[^\W\d][\w.:]*)
      | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
      | (?P<open>\()
      | (?P<close>\))
      | (?P<operator>[-+*/%^]|[<>=]+)
      | (?P<other>[\s\S])
    """,
    re.VERBOSE | re.IGNORECASE,
)
_PREFIX_WORDS = {"not"}
_TERM_WORDS = {"and", "or", "div", "between", "in", "like", "is"}


def check_text(text: str) -> None:
    """Raise if the text is too long, nested too deeply, unbalanced, or has too many terms."""
    check_length(text)
    scanner = _Scanner()
    for token in _TOKEN.finditer(text):
        if not (token.lastgroup == "other" and token[0].isspace()):
            scanner.take(token)
    if scanner.opened:
        raise FilterError("a ( is never closed", position=scanner.opened[-1])


class _Scanner:
    """Counts parentheses, operators and signs, token by token."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self._operators = 0
        self._prefixes = 0
        self._shape_depth: int | None = None

    def take(self, token: re.Match[str]) -> None:
        kind, position = token.lastgroup, token.start() + 1
        if kind == "broken":
            raise FilterError(f"the quote {token[0]} is never closed", position=position)
        if kind == "open":
            self.opened.append(position)
        elif kind == "close":
            self._close(position)
        if self._shape_depth is None:  # coordinates hold many signs and no operators
            self._count(token, kind, position)
        if kind == "shape":
            self._shape_depth = len(self.opened)
        if len(self.opened) + self._prefixes > DEPTH_MAX:
            raise LimitError(f"nested deeper than {DEPTH_MAX}", position=position)

    def _close(self, position: int) -> None:
        if not self.opened:
            raise FilterError("a ) without its (", position=position)
        self.opened.pop()
        if self._shape_depth is not None and len(self.opened) <= self._shape_depth:
            self._shape_depth = None

    def _count(self, token: re.Match[str], kind: str | None, position: int) -> None:
        word = token[0].lower() if kind == "word" else ""
        is_prefix = word in _PREFIX_WORDS or token[0] in "+-"
        self._prefixes = self._prefixes + 1 if is_prefix else 0
        self._operators += kind == "operator" or word in _TERM_WORDS or word in _PREFIX_WORDS
        if self._operators > 2 * TERMS_MAX:
            raise LimitError(f"more than {TERMS_MAX} terms", position=position)
        if kind == "number":
            check_number(token[0], position)


def check_length(text: str) -> None:
    """Raise if the text is too long or not Unicode."""
    if len(text) > LENGTH_MAX:
        raise LimitError(f"a filter has at most {LENGTH_MAX} characters, this one {len(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FilterError("not valid Unicode", position=error.start + 1) from None
    if "\0" in text:
        raise FilterError("a NUL character", position=text.index("\0") + 1)


def check_number(text: str, position: int | None = None) -> None:
    """Raise for a whole number that float64, the parser's only number, cannot hold exactly."""
    if text.isdigit() and len(text) <= 400:
        if int(text) > EXACT_INTEGER_MAX and int(float(text)) != int(text):
            raise FilterError(
                f"{text[:40]} is not exact in float64; compare text", position=position
            )
    elif text.isdigit():
        raise FilterError("a number is too large", position=position)
