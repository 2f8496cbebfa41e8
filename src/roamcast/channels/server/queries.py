"""Queries: the distinct filters that subscriptions share, and who placed them (AMS, query records).

A *query* is one canonical filter in one view class. A client's *subscription* is taken apart into
queries, and equal parts of many subscriptions are one query. All clients of a query may see the
same bytes of a context, so one transmission can serve them all. A disjunction is taken apart, so
that its parts meet other people's standard queries (AMS, "disassembles").
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import product
from typing import Any, Final, Protocol

import msgspec

from roamcast.channels.server.messages import State
from roamcast.channels.spread.streams import Stream
from roamcast.errors import LimitError
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.syntax import And, Comparison, Expression, In, Or
from roamcast.model.machine import Effect

Matched = tuple[int, ...]
"""The numbers of the queries that a context satisfies, in ascending order."""

SETS_MAX: Final = 4_096
"""How many sets of queries, and of each class changes between two of them, are cached (0068)."""

NUMBERS_MAX: Final = 1 << 20
"""How many numbers of queries these sets have together, and these changes: a few dozen megabytes.
Somebody who watches much may satisfy as many with one context."""


def is_among(matched: Matched, query: int) -> bool:
    """Whether a query is one of these; `in` would walk through all of them."""
    at = bisect_left(matched, query)
    return at < len(matched) and matched[at] == query


class Matcher(Protocol):
    """What a record table needs of `matching.FilterSet`."""

    def add(self, name: str, wanted: Filter, /) -> None:
        """Add a filter under an id."""

    def remove(self, name: str) -> None:
        """Remove a filter."""

    def match_numbers(self, context: Context) -> Any:
        """Give the filters a context satisfies as an array of the matcher's own numbers."""

    def name_of(self, number: int) -> str:
        """Give the id that a number stands for until a filter is added or removed."""


class QueryRecord(msgspec.Struct):
    """One query: the clients that placed it, the contexts that satisfy it, and its channels.

    `count` is how many contexts satisfy it, `members` which they are while they are few.
    """

    number: int
    view_class: str
    filter: Filter
    clients: dict[str, int]
    """Client → how many of its subscriptions contain this query."""
    remote: dict[str, None]
    """Clients that no channel of the query or its sets serves."""
    stream: Stream | None = None
    """The query's own channel, if it has earned one."""
    set_streams: dict[int, Stream] = {}
    """The channels of recurring sets with this query."""
    wide: Stream | None = None
    """The wide-area group the query rides on, if it does."""
    riders: dict[str, None] = {}
    """Those of the remote clients that listen to it there; the others get unicast."""
    count: int = 0
    members: dict[str, None] | None = None
    fresh: list[str] | None = None
    """Vids that entered since a carousel's last page, while a carousel carries the current set."""

    @property
    def local(self) -> int:
        """How many clients a local channel would serve."""
        return len(self.clients) - len(self.remote)


class QueryChange(msgspec.Struct, frozen=True):
    """From the queries that a context satisfied to those it satisfies now.

    `queries` is the update query set u_q, `records` are its records.
    """

    before: Matched
    after: Matched
    queries: Matched
    records: tuple[QueryRecord, ...]
    left: tuple[QueryRecord, ...]
    entered: tuple[QueryRecord, ...]


class LocalUpdate(Effect, frozen=True, gc=False):
    """An update for queries placed in this process: those satisfied before it, and after it.

    `context`: what the view class sees now, decoded, None if it sees nothing any more. `only`: it
    is for this viewer of the class alone; `without`: for all but these (0320).
    """

    view_class: str
    state: State
    before: Matched
    after: Matched
    context: Context | None = None
    only: str = ""
    without: frozenset[str] = frozenset()


class SharedQueries:
    """The queries of all view classes in one matcher (0096).

    A form of a context that several classes see is matched once for all of them, and a class with
    no query that it satisfies costs nothing.
    """

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self._classes: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        """Ids at the matcher → numbers, the same object in every set."""
        self._sets: dict[bytes, tuple[tuple[str, Matched], ...]] = {}
        self._held = 0

    def __len__(self) -> int:
        return len(self._classes)

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held, and its bound."""
        return {
            "named queries": (len(self._numbers), len(self._classes)),
            "query sets": (len(self._sets), SETS_MAX),
            "numbers in query sets": (self._held, NUMBERS_MAX),
        }

    def add(self, number: int, view_class: str, wanted: Filter) -> None:
        """Add a query of a view class."""
        name = str(number)
        self.matcher.add(name, wanted)
        self._classes[number] = view_class
        self._numbers[name] = number
        self._forget()

    def remove(self, number: int) -> None:
        """Remove a query."""
        name = str(number)
        self.matcher.remove(name)
        del self._classes[number], self._numbers[name]
        self._forget()

    def _forget(self) -> None:
        self._sets.clear()
        self._held = 0

    def match(self, context: Context) -> tuple[tuple[str, Matched], ...]:
        """Give the queries that a context satisfies, by view class, in ascending order.

        0068: contexts satisfy the same queries together again and again, so each set is made once.
        The matcher's numbers, as bytes, name it until a query is added or removed.
        """
        found = self.matcher.match_numbers(context)
        key = found.tobytes()
        known = self._sets.get(key)
        if known is None:
            name_of, numbers = self.matcher.name_of, self._numbers
            sets: dict[str, list[int]] = {}
            for query in sorted([numbers[name_of(at)] for at in found.tolist()]):
                sets.setdefault(self._classes[query], []).append(query)
            known = tuple((name, tuple(queries)) for name, queries in sets.items())
            size = len(found)
            if len(self._sets) >= SETS_MAX or self._held + size > NUMBERS_MAX:
                self._forget()
            if size <= NUMBERS_MAX:
                self._sets[key] = known
                self._held += size
        return known


class QueryTable:
    """The records of one view class."""

    def __init__(self, view_class: str, shared: SharedQueries, members_max: int) -> None:
        self.view_class = view_class
        self.records: dict[int, QueryRecord] = {}
        self._shared = shared
        self._numbers: dict[str, int] = {}
        self._changes: dict[tuple[Matched, Matched], QueryChange] = {}
        self._held = 0
        self._members_max = members_max

    def __len__(self) -> int:
        return len(self.records)

    def known(self, text: str) -> QueryRecord | None:
        """Give the record of a canonical text."""
        number = self._numbers.get(text)
        return None if number is None else self.records[number]

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is cached of what, and the bound of each."""
        return {
            "query changes": (len(self._changes), SETS_MAX),
            "numbers in query changes": (self._held, NUMBERS_MAX),
        }

    def add(self, number: int, wanted: Filter, satisfied_by: Sequence[str]) -> QueryRecord:
        """Make a record for a query nobody had placed, with the contexts that satisfy it now."""
        self._shared.add(number, self.view_class, wanted)
        record = QueryRecord(number, self.view_class, wanted, {}, {}, set_streams={}, riders={})
        record.count = len(satisfied_by)
        if record.count <= self._members_max:
            record.members = dict.fromkeys(satisfied_by)
        self.records[number] = record
        self._numbers[wanted.text] = number
        return record

    def remove(self, record: QueryRecord) -> None:
        """Forget a query that nobody subscribes to any more."""
        assert not record.clients
        self._shared.remove(record.number)
        self._forget()
        del self.records[record.number]
        del self._numbers[record.filter.text]

    def change(self, before: Matched, after: Matched) -> QueryChange:
        """Give the change from a context's queries to those of its next state, made once (0068).

        People go the same ways again and again (AMS, recurring update query sets). Queries of
        before that nobody subscribes to any more are left out.
        """
        known = self._changes.get((before, after))
        if known is None:
            records = self.records
            standing = tuple([query for query in before if query in records])
            was, now = set(standing), set(after)
            queries = tuple(sorted(was | now))
            known = QueryChange(
                standing,
                after,
                queries,
                tuple([records[query] for query in queries]),
                tuple([records[query] for query in standing if query not in now]),
                tuple([records[query] for query in after if query not in was]),
            )
            size = len(before) + len(after)
            if len(self._changes) >= SETS_MAX or self._held + size > NUMBERS_MAX:
                self._forget()
            if size <= NUMBERS_MAX:
                self._changes[before, after] = known
                self._held += size
        return known

    def _forget(self) -> None:
        self._changes.clear()
        self._held = 0

    def enter(self, record: QueryRecord, vid: str) -> None:
        """Count in a context that satisfies the query from now on."""
        record.count += 1
        if record.fresh is not None:
            record.fresh.append(vid)
        if record.members is not None:
            record.members[vid] = None
            if len(record.members) > self._members_max:
                record.members = None  # looked up again when they are asked for and few

    def leave(self, record: QueryRecord, vid: str) -> None:
        """Count out a context that no longer satisfies the query."""
        record.count -= 1
        if record.members is not None:
            del record.members[vid]


def take_apart(wanted: Filter, parts_max: int) -> list[Filter]:
    """Give the filters of which one must hold, or the filter itself if they would be too many."""
    parts = _alternatives(wanted.expression, parts_max)
    if parts is None or len(parts) == 1:
        return [wanted]
    made = {part.text: part for part in (Filter(part, wanted.source) for part in parts)}
    if len(made) > parts_max:
        return [wanted]
    return [made[text] for text in sorted(made)]


def _alternatives(expression: Expression, limit: int) -> list[Expression] | None:
    """Distribute AND over OR, which three-valued logic allows; None beyond the limit."""
    match expression:
        case Or(parts):
            found: list[Expression] = []
            for part in parts:
                inner = _alternatives(part, limit)
                if inner is None or len(found) + len(inner) > limit:
                    return None
                found += inner
            return found
        case And(parts):
            choices: list[list[Expression]] = []
            total = 1
            for part in parts:
                inner = _alternatives(part, limit)
                total *= len(inner) if inner is not None else limit + 1
                if inner is None or total > limit:
                    return None
                choices.append(inner)
            if total == 1:
                return [expression]
            return [And(tuple(chosen)) for chosen in product(*choices)]
        case In(operand, options):
            if len(options) > limit:
                return None
            return [Comparison("=", operand, option) for option in options]
        case _:
            return [expression]


def check_room(records: int, more: int, limit: int) -> None:
    """Refuse a subscription that would need more records than there may be."""
    if records + more > limit:
        raise LimitError(f"the server has at most {limit} distinct queries: end some first")
