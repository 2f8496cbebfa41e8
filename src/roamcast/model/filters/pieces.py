"""Parsing of deeply nested texts in pieces, one for each pair of grouping parentheses.

`cql2` tries what follows a `(` as an expression and then as a list. If something inside does not
parse, nested parentheses cost 2 to the power of their depth. So beyond a small depth every group
is parsed by itself, and a placeholder property stands for it in the text around it (decision 0003).
"""

import re
from typing import Any

import cql2

from roamcast.errors import FilterError
from roamcast.model.filters.hints import expectation
from roamcast.model.filters.scan import NOT_CQL2, Group, in_dialect

DIRECT_DEPTH_MAX = 3
"""Up to this depth the parser gets the whole text: at worst 2³ = 8 times the work."""

_WHERE = re.compile(r"-->\s*(\d+):(\d+)")
_PRIVATE = range(0xE000, 0xF900)

Segment = tuple[int, str]
"""A part of a piece, with its position in the whole text."""


def parse(text: str, groups: list[Group]) -> Any:
    """Return the tree of CQL2 JSON; an error names the position, counted in characters from 1."""
    # Powers group from the right, and `cql2` from the left. Its tree does not tell (a ^ b) ^ c from
    # a ^ b ^ c, unless each group is parsed by itself.
    if all(group.depth <= DIRECT_DEPTH_MAX for group in groups) and text.count("^") < 2:
        return _parse([(0, text)])
    return _Pieces(text, groups).parse()


class _Pieces:
    def __init__(self, text: str, groups: list[Group]) -> None:
        self._text = text
        used = set(text)
        self._mark = next(chr(code) for code in _PRIVATE if chr(code) not in used)
        self._trees: dict[str, Any] = {}
        self._lists = [group for group in groups if group.is_list]
        self._ends = {group.end: group for group in groups if not group.is_list}
        self._starts = {group.start for group in self._ends.values()}

    def parse(self) -> Any:
        self._refuse_nested_lists()
        frames: list[list[Segment]] = [[]]
        cursor = 0
        for position in sorted(self._starts | self._ends.keys()):
            frames[-1].append((cursor, self._text[cursor:position]))
            if position in self._starts:
                frames.append([])
            else:
                name = f"{self._mark}{len(self._trees)}"
                self._trees[name] = self._filled(_parse(frames.pop()))
                frames[-1].append((self._ends[position].start, f'"{name}"'))
            cursor = position + 1
        frames[-1].append((cursor, self._text[cursor:]))
        return self._filled(_parse(frames.pop()))

    def _refuse_nested_lists(self) -> None:
        """Reject lists in lists: a list stays in its piece, so they would be exponential again."""
        inner_end = -1
        for group in sorted(self._lists, key=lambda group: group.start):
            if group.start < inner_end:
                raise FilterError("a list inside a list is not supported", position=group.start + 1)
            inner_end = group.end

    def _filled(self, tree: Any) -> Any:
        """Replace the placeholder properties by the trees of their groups."""
        if isinstance(tree, list):
            return [self._filled(part) for part in tree]
        if not isinstance(tree, dict):
            return tree
        name = tree.get("property")
        if isinstance(name, str) and name in self._trees:
            return self._trees[name]
        return {key: self._filled(part) for key, part in tree.items()}


def _parse(segments: list[Segment]) -> Any:
    segments = [rewritten for segment in segments for rewritten in in_dialect(*segment)]
    text = "".join(part for _, part in segments)
    try:
        return _powers_from_right(cql2.parse_text(text).to_json())
    except Exception as error:  # noqa: BLE001 - `cql2` also raises bare Exceptions
        raise _error(segments, text, str(error)) from None


def _powers_from_right(tree: Any) -> Any:
    """Turn ((a ^ b) ^ c) into (a ^ (b ^ c)); groups in parentheses are placeholders by now."""
    if isinstance(tree, list):
        return [_powers_from_right(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    chain = []
    while tree.get("op") == "^" and _is_power(tree["args"][0]):
        tree, exponent = tree["args"]
        chain.append(_powers_from_right(exponent))
    turned = {key: _powers_from_right(part) for key, part in tree.items()}
    if chain:
        base, exponent = turned["args"]
        # collected from the last exponent to the second: ((a ^ b) ^ c) ^ d gives d, c
        power = chain[0]
        for part in (*chain[1:], exponent):
            power = {"op": "^", "args": [part, power]}
        turned = {"op": "^", "args": [base, power]}
    return turned


def _is_power(tree: Any) -> bool:
    return isinstance(tree, dict) and tree.get("op") == "^"


def _error(segments: list[Segment], text: str, message: str) -> FilterError:
    where = _WHERE.search(message)
    problem = f"{NOT_CQL2}: {expectation(message.rsplit('= ', 1)[-1])}"
    if where is None:
        return FilterError(problem)
    lines = text.split("\n")
    line, column = int(where[1]), int(where[2])
    offset = sum(len(before) + 1 for before in lines[: line - 1]) + column - 1
    for start, part in segments:
        if offset < len(part):
            return FilterError(problem, position=start + offset + 1)
        offset -= len(part)
    start, part = segments[-1]
    return FilterError(problem, position=start + len(part) + 1)
