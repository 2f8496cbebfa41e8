"""The expression tree of filters, somewhat smaller than CQL2's own.

BETWEEN is two comparisons, a bare boolean property is a comparison with true, and dates and
timestamps are spans of microseconds: fewer kinds of node, each with one meaning.
"""

from typing import Literal as Choice

import msgspec

Comparator = Choice["=", "<>", "<", "<=", ">", ">="]
SPATIAL = (
    "s_intersects",
    "s_equals",
    "s_disjoint",
    "s_touches",
    "s_within",
    "s_overlaps",
    "s_crosses",
    "s_contains",
)
PREDICATES = (
    "before",
    "after",
    "starts_only",
    "ends_only",
    "start_by",
    "end_by",
    "overlaps",
    "excludes",
    "equals",
    "during",
    "contains",
)
"""The 11 predicates of TCC figure 4, in its order."""

BEGINNING = -(2**63)
"""The open start of an interval, as a number; its open end is `time.FOREVER`."""


class Node(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all nodes: frozen, so they can be hashed and shared."""


class Property(Node, frozen=True):
    """The value of an attribute, or of `place` or `vid`."""

    name: str


class Constant(Node, frozen=True):
    """A text, a number or a truth value."""

    value: str | int | float | bool


class Span(Node, frozen=True):
    """A time span, both ends included: an instant, a day, or an interval."""

    start: int
    end: int


class SpanOf(Node, frozen=True):
    """A time span whose ends are attributes or constants: INTERVAL(begins, ends)."""

    start: "Property | Span"
    end: "Property | Span"


class Lifetime(Node, frozen=True):
    """The context's own interval from t_r to t_d: the property `time`."""


class Arithmetic(Node, frozen=True):
    """A calculation in float64: + - * / % ^ div."""

    op: str
    left: "Operand"
    right: "Operand"


class Folded(Node, frozen=True):
    """A text without its case (casei) or its accents (accenti)."""

    name: str
    operand: "Operand"


Operand = Property | Constant | Span | Arithmetic | Folded


class Truth(Node, frozen=True):
    """The constant true or false."""

    value: bool


class And(Node, frozen=True):
    """Conjunction."""

    parts: "tuple[Expression, ...]"


class Or(Node, frozen=True):
    """Disjunction."""

    parts: "tuple[Expression, ...]"


class Not(Node, frozen=True):
    """Negation; NOT unknown is unknown."""

    part: "Expression"


class Comparison(Node, frozen=True):
    """A comparison of two values."""

    op: Comparator
    left: Operand
    right: Operand


class In(Node, frozen=True):
    """A value is equal to one of several."""

    operand: Operand
    options: tuple[Operand, ...]


class Like(Node, frozen=True):
    r"""A text matches a pattern: % any run, _ any one character, \ quotes the next."""

    operand: Operand
    pattern: str


class IsNull(Node, frozen=True):
    """A property has no value."""

    name: str


class Within(Node, frozen=True):
    """The context's place is this place or lies within it."""

    path: str


class Near(Node, frozen=True):
    """The context's point is at most `metres` away, along the sphere."""

    longitude: float
    latitude: float
    metres: float


class Spatial(Node, frozen=True):
    """A spatial relation between the context's point and a shape (WKB), or the other way round."""

    op: str
    shape: bytes
    point_first: bool


class Temporal(Node, frozen=True):
    """One of CQL2's relations between two time spans, t_after to t_starts."""

    op: str
    left: "Lifetime | Property | Span | SpanOf"
    right: "Lifetime | Property | Span | SpanOf"


class TimePredicate(Node, frozen=True):
    """One of TCC's 11 predicates on the context's lifetime; `tolerance` (µs) is for equals."""

    name: str
    span: Span
    tolerance: int = 0


Expression = (
    Truth
    | And
    | Or
    | Not
    | Comparison
    | In
    | Like
    | IsNull
    | Within
    | Near
    | Spatial
    | Temporal
    | TimePredicate
)
