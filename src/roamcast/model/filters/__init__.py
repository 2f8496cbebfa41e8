"""Filters: OGC CQL2 expressions over a context, with one canonical form.

In: CQL2 text or JSON. Out: a `Filter` with its expression tree (as written), its normal form
(without NOT) and its canonical text (equal for all filters we recognise as equivalent).
"""

from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any

import msgspec

from roamcast.errors import FilterError
from roamcast.model.contexts import Context
from roamcast.model.filters import plain
from roamcast.model.filters import text as writing
from roamcast.model.filters.atoms import Conjunction, Normal, conjunctions
from roamcast.model.filters.evaluate import evaluate
from roamcast.model.filters.hints import unquoted
from roamcast.model.filters.normal import merge, normalise
from roamcast.model.filters.parse import parse_json, parse_text
from roamcast.model.filters.price import standing, steps, terms_of
from roamcast.model.filters.syntax import And, Expression

__all__ = ["CONJUNCTIONS_MAX", "Filter"]

CONJUNCTIONS_MAX = 64
"""Maximum conjunctions of a disjunctive normal form; it can grow exponentially with the filter."""

_decode_stored = msgspec.msgpack.Decoder(Normal | str).decode


class Filter:
    """One filter. Filters are equal if their canonical texts are, and then they are equivalent."""

    at_a_glance: plain.Plain | None = None
    """What is known of a plain filter, if it was read as one."""

    def __init__(self, expression: Expression, source: str, given: Any = None) -> None:
        self.expression = expression
        self.source = source
        self._given = source if given is None else given

    @classmethod
    def parse(cls, source: Any) -> "Filter":
        """Parse CQL2: text, or decoded JSON."""
        if isinstance(source, str):
            known = plain.read(source)
            if known is None:
                return cls(parse_text(source), source)
            return cls._of_plain(known, source)
        if isinstance(source, dict | bool):
            made = cls(parse_json(source), "", source)
            made.source = made.text
            return made
        raise FilterError("a filter is CQL2 text, or a CQL2 JSON object")

    @classmethod
    def _of_plain(cls, known: plain.Plain, source: str) -> "Filter":
        made, terms = cls.__new__(cls), len(known.equations)
        made.at_a_glance, made.source = known, source
        made.normal, made.text = known.normal, known.text
        # Each term is of one row, is looked at once and has one value.
        made.terms = made.looks = made.standing_steps = terms
        return made

    @classmethod
    def of_normal(cls, normal: Normal) -> "Filter":
        """Make a filter of a normal form, made by `normalise` or from such ones.

        Its expression is parsed when it is needed: a set of filters compiles normal forms.
        """
        made = cls.__new__(cls)
        made.normal = normal
        return made

    @classmethod
    def of_stored(cls, data: bytes) -> "Filter":
        """Read a filter from the bytes of `stored`, from our own disk: it is not checked again."""
        try:
            found = _decode_stored(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FilterError(f"this is no stored filter: {error}") from None
        return cls.parse(found) if isinstance(found, str) else cls.of_normal(found)

    @cached_property
    def stored(self) -> bytes:
        """The normal form as bytes, which need no parsing when they are read."""
        try:
            return msgspec.msgpack.encode(self.normal)
        except OverflowError:  # MessagePack's integers end at 64 bits
            return msgspec.msgpack.encode(self.text)

    @cached_property
    def expression(self) -> Expression:
        """The expression tree, as written; of a normal form the one of its canonical text."""
        known = self.at_a_glance
        return parse_text(self.text) if known is None else known.expression

    @cached_property
    def source(self) -> str:
        """The text it was parsed from, or its canonical text."""
        return self.text

    @cached_property
    def _given(self) -> Any:
        return self.source

    @classmethod
    def all_of(cls, parts: "Sequence[Filter]") -> "Filter":
        """Join filters that must hold together, without reading any of them again."""
        if len(parts) == 1:
            return parts[0]
        joined = And(tuple(part.expression for part in parts))
        return cls(joined, " AND ".join(f"({part.source})" for part in parts))

    @cached_property
    def normal(self) -> Normal:
        """The normal form: atoms joined by All and Any, without negation."""
        return normalise(self.expression)

    @cached_property
    def text(self) -> str:
        """The canonical text."""
        return writing.of(self.normal)

    @cached_property
    def digest(self) -> str:
        """A 128-bit hash of the canonical text, in hex: the same on every machine."""
        return blake2b(self.text.encode(), digest_size=16).hexdigest()

    @cached_property
    def terms(self) -> int:
        """How many terms its normal form has; each value of a list counts."""
        return terms_of(self.normal)

    @cached_property
    def looks(self) -> int:
        """The steps of looking at one context."""
        return steps(self.normal)

    @cached_property
    def standing_steps(self) -> int:
        """What a subscription with this filter may cost every update, in steps."""
        return standing(self.normal)

    @cached_property
    def hint(self) -> str:
        """What was probably meant instead, with its position; empty where nothing looks odd."""
        return unquoted(self.expression, self._given) if isinstance(self._given, str) else ""

    def matches(self, context: Context) -> bool:
        """Return whether the context satisfies the filter. Unknown counts as no."""
        return evaluate(self.expression, context) is True

    def conjunctions(self, limit: int = CONJUNCTIONS_MAX) -> list[Conjunction] | None:
        """Return the filter's disjunctive normal form, without contradictory conjunctions (AMS 10).

        None if it would have more than `limit` conjunctions.
        """
        found = self._conjunctions if limit == CONJUNCTIONS_MAX else _merged(self.normal, limit)
        return None if found is None else list(found)

    @cached_property
    def _conjunctions(self) -> list[Conjunction] | None:
        # Kept: an index of covers asks for them at every comparison.
        return _merged(self.normal, CONJUNCTIONS_MAX)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Filter({self.source!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle the source: smaller than the trees, and it stays valid when they change.
        return (Filter.parse, (self._given,))


def _merged(normal: Normal, limit: int) -> list[Conjunction] | None:
    found = conjunctions(normal, limit)
    if found is None:
        return None
    merged = (merge(conjunction) for conjunction in found)
    return list(dict.fromkeys(part for part in merged if part is not None))
