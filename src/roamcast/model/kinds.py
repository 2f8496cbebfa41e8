"""Attribute kinds: the one table of what an attribute's value can be.

A *kind* is a type of value: its Python type, how it is written in JSON, its column in Arrow and
Delta, its limits. A *comparison* is how filters compare it: integers and floats are two kinds with
one comparison, `number`. What is stored in a column is what is compared, so a column needs no
conversion on its way into the matching kernel.

Contexts, items, filters, Arrow batches, the archive, lookups and ingest all read this table, so a
kind that is compared in one of the ways below is added here and nowhere else (docs/matching.md).
A new *comparison* has an order of its own, which no table can give: it needs a literal in the
filter language (`filters.parse`), its place in the normal form (`filters.normal`) and its columns
in the matching kernel (`matching.vocabulary`, `events`, `events_arrow`).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Literal, get_args

import msgspec

from roamcast.errors import ContextError, LimitError
from roamcast.model import time

Attribute = str | int | float | bool | datetime
"""A typed value: string, integer, float, boolean or timestamp (an aware datetime)."""

KindName = Literal["string", "integer", "float", "boolean", "timestamp"]
Comparison = Literal["number", "string", "boolean", "instant"]
"""What is compared: numbers, texts by code point, false and true as 0 and 1, microseconds."""

Scalar = int | float | str
"""A value as it is stored in a column and compared."""

DISCRETE: Final[frozenset[Comparison]] = frozenset({"boolean", "instant"})
"""Comparisons over integers: open ends become closed ones, neighbours merge."""

TEXT_LENGTH_MAX: Final = 65_536
INTEGER_MAX: Final = 2**63 - 1
_BEFORE_QUOTE: Final = re.compile(r"(?<!\\)\\+(?='|\Z)")


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of attribute.

    name: stands in column names (`integer:age`), in JSON and in items.
    type: the Python type of a value.
    compared: how filters compare it.
    delta: the Delta type; `arrow` gives the Arrow type, which Delta must be able to hold.
    scalar, value: to what is stored and compared, and back.
    check: raise, naming what it is given first, if a value of this type is beyond its limits.
    text: to and from the text by which JSON carries it; None if JSON has the type itself.
    also: other comparisons under which some values can be read, with the reading.
    """

    name: KindName
    type: type
    compared: Comparison
    arrow: Callable[[Any], Any]  # from the pyarrow module: importing it here would cost the SDK
    delta: str
    scalar: Callable[[Any], Scalar]
    value: Callable[[Any], Attribute]
    check: Callable[[str, Any], None]
    text: tuple[Callable[[Any], str], Callable[[str], Attribute]] | None = None
    also: Mapping[Comparison, Callable[[Any], Scalar | None]] = {}

    def written(self, value: Any) -> Any:
        """Give a value as JSON carries it inside something that names the kind."""
        return value if self.text is None else self.text[0](value)

    def read(self, written: Any) -> Attribute:
        """Take a value from what `written` gave; InputError if a text is none of this kind."""
        return self.value(written) if self.text is None else self.text[1](str(written))


def _same(value: Any) -> Any:
    return value


def check_text(what: str, text: str, limit: int = TEXT_LENGTH_MAX) -> None:
    """Raise unless a text is Unicode without U+0000 and within the limit."""
    if len(text) > limit:
        raise LimitError(f"{what} is longer than {limit} characters")
    wrong = unusable(text)
    if wrong is not None:
        raise ContextError(f"{what} {wrong[1]}")


def unusable(text: str) -> tuple[int, str] | None:
    """Return the index and the problem of what no context, item or filter may hold, if any.

    U+0000 ends a text in SQL, C and many formats, so a text with one would be cut on its way.
    """
    at = text.find("\0")
    if at >= 0:
        return at, "holds the character U+0000"
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start, "is not valid Unicode"
    return None


def is_finite(number: float) -> bool:
    """Return whether contexts, items and filters may hold a number: NaN and ∞ have no order."""
    return -math.inf < number < math.inf


def _check_integer(what: str, value: int) -> None:
    if not -INTEGER_MAX - 1 <= value <= INTEGER_MAX:
        raise ContextError(f"{what} does not fit in 64 bits")


def _check_float(what: str, value: float) -> None:
    if not is_finite(value):
        raise ContextError(f"{what} is not a finite number")


def _check_moment(what: str, value: datetime) -> None:
    if value.tzinfo is None:
        raise ContextError(f"{what} is a moment without a time zone")
    if not time.EARLIEST <= time.from_datetime(value) <= time.LATEST:
        raise ContextError(f"{what} lies outside the years 1 to 9999 in UTC")


def _no_limit(_what: str, _value: Any) -> None:
    """Every boolean is valid."""


KINDS: Final[dict[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind(
            name="boolean",
            type=bool,
            compared="boolean",
            arrow=lambda pa: pa.bool_(),
            delta="boolean",
            scalar=int,
            value=bool,
            check=_no_limit,
        ),
        Kind(
            name="string",
            type=str,
            compared="string",
            arrow=lambda pa: pa.string(),
            delta="string",
            scalar=_same,
            value=_same,
            check=check_text,
            also={"instant": time.as_instant},  # a text may be an RFC 3339 timestamp, as in cql2
        ),
        Kind(
            name="integer",
            type=int,
            compared="number",
            arrow=lambda pa: pa.int64(),
            delta="long",
            scalar=_same,
            value=_same,
            check=_check_integer,
        ),
        Kind(
            name="float",
            type=float,
            compared="number",
            arrow=lambda pa: pa.float64(),
            delta="double",
            scalar=_same,
            value=float,
            check=_check_float,
        ),
        Kind(
            name="timestamp",
            type=datetime,
            compared="instant",
            arrow=lambda pa: pa.timestamp("us", tz="UTC"),
            delta="timestamp",
            scalar=time.from_datetime,
            value=time.to_datetime,
            check=_check_moment,
            text=(
                lambda value: time.format_instant(time.from_datetime(value)),
                lambda text: time.to_datetime(time.parse_instant(text)),
            ),
        ),
    )
}
assert set(KINDS) == set(get_args(KindName))

_BY_TYPE: Final = {kind.type: kind for kind in KINDS.values()}


def kind_of(value: object) -> Kind | None:
    """Give the kind of a value, None if no attribute can have it."""
    found = _BY_TYPE.get(type(value))
    if found is None:  # a subclass; bool stands first in the table because it is one of int
        found = next((kind for kind in KINDS.values() if isinstance(value, kind.type)), None)
    return found


def scalar(value: object, compared: Comparison) -> Scalar | None:
    """Give a value as it is compared in one way, or None if it cannot be."""
    kind = kind_of(value)
    if kind is None:
        return None
    if kind.compared == compared:
        return kind.scalar(value)
    other = kind.also.get(compared)
    return None if other is None else other(value)


def scalars(value: Attribute) -> Iterator[tuple[Comparison, Scalar]]:
    """Give a value in every way that it can be compared, its own first."""
    kind = kind_of(value)
    assert kind is not None
    yield kind.compared, kind.scalar(value)
    for compared, reading in kind.also.items():
        found = reading(value)
        if found is not None:
            yield compared, found


def holding(compared: Comparison) -> tuple[str, ...]:
    """Name the kinds whose values can be compared in this way."""
    return tuple(
        kind.name for kind in KINDS.values() if kind.compared == compared or compared in kind.also
    )


def literal(value: Scalar, compared: Comparison) -> str:
    """Write what is compared as the filter language does."""
    if compared == "boolean":
        return "true" if value else "false"
    if compared == "instant":
        assert isinstance(value, int)
        return f"TIMESTAMP('{time.format_instant(value)}')"
    return quoted(value) if isinstance(value, str) else number(value)


def attribute_literal(value: Attribute) -> str:
    """Write an attribute's value as the filter language does."""
    compared, found = next(scalars(value))
    if compared == "number" and isinstance(found, int):
        return str(found)  # every digit: the parser refuses what float64 cannot hold exactly
    return literal(found, compared)


def number(value: float) -> str:
    """Write a number so that it reads back to the same float64."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(float(value))


def quoted(text: str) -> str:
    """Write a text literal: quotes are doubled, and so are backslashes before a quote.

    CQL2 takes a backslash before a quote for an escape (`filters.scan`).
    """
    return "'" + _BEFORE_QUOTE.sub(r"\g<0>\g<0>", text).replace("'", "''") + "'"
