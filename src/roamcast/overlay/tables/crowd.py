"""`Crowd`: bounded summaries of the contexts beyond each link, asked with a filter.

Between two rebuilds the summary of a broker's own contexts only grows, so a context that begins and
ends between two offers is in the second one. A rebuild leaves out those that ended; what it leaves
out is shown once more, and goes when it is confirmed and has lingered (`sending`).

While there is no link, nobody is told: contexts are held, and nothing is summarised. The first link
has them summarised at once. Casts find who was there meanwhile through the past (decision 0121).

With `watermark_us`, each link also learns the time up to which everything beyond it is accounted
for: the lowest of this broker's and of those heard on its other links.

What rules hide from anybody is no member. A *veil* stands for it: anything within some places,
whether somebody is there or not (decision 0130). A summary does not bound when members began: that
is asked of a run of states, of its last state, or of what its publisher says, which differ.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import msgspec

from roamcast.errors import InputError, LimitError
from roamcast.matching.aggregate import (
    BUDGET,
    BUDGET_MIN,
    EMPTY,
    Summary,
    begun_any_time,
    combine,
    pack,
    summarise,
    unpack,
)
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.parts import Occupancy
from roamcast.model.time import MICROSECONDS
from roamcast.overlay.tables.hearing import Changes, TableBounds
from roamcast.overlay.tables.link_table import LinkTable
from roamcast.overlay.tables.sending import FIXED, Algebra, Value
from roamcast.overlay.tables.table import TableEntry

MEMBERS_MAX: Final = 1_000_000
NEW_MAX: Final = 1_024
"""Contexts outside the summary's bounds that wait to be merged into it."""

REBUILD_US: Final = 10 * MICROSECONDS
REBUILD_MEMBERS: Final = 5_000
"""Up to so many members, a rebuild comes 10 s after the first end; twice as many, 20 s."""

BYTES_MAX: Final = 64 * 1024
"""Bytes that one neighbour may offer; its budget may be larger than ours."""

CROWD: Final = "crowd"
WATERMARK: Final = "watermark"

_read = lru_cache(256)(unpack)


class Crowd(LinkTable[Summary | int]):
    """Who is beyond each link, in bounds that miss nobody."""

    name = "crowd"
    bounds = TableBounds(2, BYTES_MAX)

    def __init__(
        self, *, budget: int = BUDGET, watermark_us: int | None = None, **settings: Any
    ) -> None:
        super().__init__(**settings)
        assert BUDGET_MIN <= budget <= BYTES_MAX // 2
        self._budget = budget
        self._members: dict[str, Context] = {}
        self._grown: Summary | None = None
        """Bounds on all members but the new ones; None: not made, for nobody is told."""
        self._new: list[Context] = []
        self._veil = EMPTY
        self._rebuild_at: int | None = None
        self._watermark_us = watermark_us
        self._values = Algebra(
            lambda one, other: _read(one).covers(_read(other)),
            lambda one, other: pack(combine(_read(one), _read(other), budget=budget)),
        )

    def put(self, context: Context) -> bool:
        """Take a context of this broker: a new one, or a new state of a known one.

        Return whether neighbours must be told.
        """
        known = context.vid in self._members
        if not known and len(self._members) >= MEMBERS_MAX:
            raise LimitError(f"a crowd exceeds the limit of {MEMBERS_MAX} contexts")
        self._members[context.vid] = context
        if not self._links:
            if self._grown is not None or self._rebuild_at is not None:
                self._unmake()
            return False
        if known:
            self._ended()
        if self._grown is not None:
            if self._grown.holds(context):
                return False
            self._new.append(context)
            if len(self._new) >= NEW_MAX:
                self._local()
        self._mark(CROWD, None)
        return True

    def end(self, vid: str) -> None:
        """A context of this broker ended; its summary keeps it for a while."""
        if self._members.pop(vid, None) is not None:
            if self._links:
                self._ended()
            else:
                self._unmake()

    def veil(self, veil: Summary) -> None:
        """Admit what the veil does, whoever the members are; an empty one takes it away."""
        if veil != self._veil:
            self._veil = veil
            self._mark(CROWD, None)

    def beyond(self, thing: Filter, came_from: str | None) -> list[str]:
        """Name the links behind which a context may satisfy the filter, now or once it ends."""
        found = self._unknown(came_from)
        for name, link in self._links.items():
            summary = link.hearing.entries.get(CROWD)
            if name != came_from and isinstance(summary, Summary) and summary.admits(thing):
                found.add(name)
        return sorted(found)

    def admits(self, wanted: Filter) -> bool:
        """Return whether a context of this broker itself may satisfy the filter."""
        return self._local().admits(wanted) or self._veil.admits(wanted)

    def members(self) -> Iterable[Context]:
        """Give this broker's own contexts, as they are now."""
        return self._members.values()

    @property
    def has_watermarks(self) -> bool:
        """Whether links tell up to when everything beyond them is accounted for."""
        return self._watermark_us is not None

    def summary(self, link: str) -> Summary | None:
        """Give what a link has offered of who is beyond it."""
        found = self._links.get(link)
        summary = None if found is None else found.hearing.entries.get(CROWD)
        return summary if isinstance(summary, Summary) else None

    def watermark(self, link: str) -> int | None:
        """Give the time up to which everything beyond a link is accounted for, if known."""
        found = self._links.get(link)
        mark = None if found is None else found.hearing.entries.get(WATERMARK)
        return mark if isinstance(mark, int) else None

    def advance(self, now: int) -> None:
        """Let time pass: rebuild the summary where contexts ended, move the watermark."""
        step = self._watermark_us
        if step is not None and now // step > self._now // step:
            self._mark(WATERMARK, None)
        super().advance(now)
        if self._rebuild_at is not None and self._rebuild_at <= self._now:
            self._rebuild()

    def deadline(self) -> int | None:
        """Give the time of the next rebuild, step of the watermark, or end of a linger."""
        if not self._links:
            return None
        times = [super().deadline(), self._rebuild_at]
        if self._watermark_us is not None:
            times.append((self._now // self._watermark_us + 1) * self._watermark_us)
        return min((time for time in times if time is not None), default=None)

    def occupancy(self) -> Occupancy:
        """Give how much is held of what, and the bound of each."""
        return super().occupancy() | {
            "crowd.members": (len(self._members), MEMBERS_MAX),
            "crowd.new": (len(self._new), NEW_MAX),
        }

    def _local(self) -> Summary:
        """Give the summary of our own contexts; between two rebuilds it only grows."""
        if self._grown is None:
            self._grown = self._summarised(self._members.values())
        elif self._new:
            new = self._summarised(self._new)
            self._grown = new if not self._grown.parts else self._joined(self._grown, new)
            self._new.clear()
        return self._grown

    def _unmake(self) -> None:
        """Hold no summary until somebody asks."""
        self._grown = self._rebuild_at = None
        self._new.clear()

    def _summarised(self, contexts: Iterable[Context]) -> Summary:
        return begun_any_time(summarise(contexts, budget=self._budget))

    def _joined(self, first: Summary, other: Summary) -> Summary:
        return combine(first, other, budget=self._budget)

    def _ended(self) -> None:
        if self._rebuild_at is None:
            self._rebuild_at = self._now + REBUILD_US * max(
                1, len(self._members) // REBUILD_MEMBERS
            )

    def _rebuild(self) -> None:
        if not self._links:
            self._unmake()
            return
        self._rebuild_at = None
        before = self._local()
        self._grown = self._summarised(self._members.values())
        for link in self._links.values():
            link.sending.passed(CROWD, pack(before))

    def _read(self, entry: TableEntry) -> Summary | int:
        if entry.key == CROWD:
            return _read(entry.value)
        if entry.key != WATERMARK:
            raise InputError(f"a crowd has no entry {entry.key!r}"[:200])
        try:
            return msgspec.msgpack.decode(entry.value, type=int)
        except msgspec.DecodeError as error:
            raise InputError(f"a watermark is malformed: {error}") from None

    def _keys(self, link: str) -> Iterable[str]:  # noqa: ARG002 — every link has the same keys
        return (CROWD, WATERMARK)

    def _algebra(self, key: str) -> Algebra:
        return self._values if key == CROWD else FIXED

    def _wanted(self, link: str, key: str) -> Value:
        others = [found.hearing for name, found in self._links.items() if name != link]
        if key == WATERMARK:
            return self._mark_for(others)
        total = self._local()
        for summary in (self._veil, *(hearing.entries.get(CROWD) for hearing in others)):
            if isinstance(summary, Summary) and summary.parts:
                total = self._joined(total, summary) if total.parts else summary
        return pack(self._joined(total, EMPTY))

    def _mark_for(self, others: list[Any]) -> Value:
        step = self._watermark_us
        if step is None:
            return None
        marks = [hearing.entries.get(WATERMARK) for hearing in others]
        if None in marks:
            return None  # what is not known of one link is not known of all
        return msgspec.msgpack.encode(min([self._now // step * step, *marks]))

    def _changed(self, link: str, changes: Changes[Summary | int]) -> None:
        for key, (old, _) in changes.items():
            for name, found in self._links.items():
                if name == link:
                    continue
                found.sending.changed.add(key)
                if isinstance(old, Summary) and old.parts:
                    found.sending.passed(key, pack(self._joined(old, EMPTY)))
