"""The index of the log of steps: which steps a question touches, in tables of the store's file.

Each step has a row with its span (`spans.py`). Rows change in the transaction that changes the
steps, so after a crash the index says what the log says, and nothing is built at a start (0350).

Ended spans are found by their length: those of level n are shorter than 2 ** n microseconds, so one
that overlaps a time ended at most so much after it. A question scans one range of each level.
Spans that last are a level of their own, by their begins.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import msgspec

from roamcast.channels.past.part import STEPS, Step, key_of, vid_of, written_of
from roamcast.channels.past.spans import (
    CONTINUED,
    END,
    ENDED_MAX,
    LOST,
    OPEN,
    SOFT,
    STRAY,
    ReachedTime,
    StepSpan,
    following,
)
from roamcast.errors import StoreError

PAGE_STEPS: Final = 1_000
"""Steps that are read before the store's writer may go on."""

LAST_MAX: Final = 4_096
LAST_BYTES_MAX: Final = 1_024
"""Vids whose last step is remembered, and the bytes of one that is: most changes follow it."""

MOMENT_MAX: Final = 2**62
"""Half of it bounds every moment of a step, so that ends and lengths have 64 bits."""

_EVER: Final = ReachedTime(-MOMENT_MAX, MOMENT_MAX)

Found = tuple[str, StepSpan, bytes]
"""A vid, the span of a step of it, and the step."""

_SINCE: Final = (
    "SELECT vid, written, begin, level, mark, life, value FROM steps WHERE vid = ?1 AND written >= "
    "coalesce((SELECT max(written) FROM spans WHERE vid = ?1 AND written < ?2), ?2) "
    "ORDER BY written"
)
_SINCE_SPANS: Final = _SINCE.replace(", value FROM steps", " FROM spans")

_TOUCHES: Final = (
    "mark <= :last AND begin <= :latest AND (length(vid) >= :letters "
    f"OR (begin <= :high AND (level > {ENDED_MAX} OR mark >= :low)))"
)
"""Answered by the index alone: what is too far away costs neither its row nor its step."""

_PAGE: Final = (
    "SELECT vid, written, begin, level, mark, life, value FROM steps WHERE level = :level "  # noqa: S608
    f"AND (mark, vid, written) > (:mark, :vid, :written) AND {_TOUCHES} "
    "ORDER BY mark, vid, written LIMIT :most"
)

_decode: Final = msgspec.msgpack.Decoder(Step).decode


def make_tables(connection: sqlite3.Connection) -> None:
    """Make the index's tables, in the transaction at hand."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS spans (vid TEXT, written INTEGER, begin INTEGER NOT NULL, "
        "level INTEGER NOT NULL, mark INTEGER NOT NULL, life INTEGER NOT NULL, "
        "PRIMARY KEY (vid, written)) WITHOUT ROWID"
    )
    connection.execute(
        "CREATE INDEX IF NOT EXISTS spans_by_level ON spans (level, mark, vid, written, begin)"
    )
    connection.execute(
        "CREATE VIEW IF NOT EXISTS steps AS SELECT *, (SELECT value FROM entries "
        "WHERE key = 'steps/' || printf('%016x', written) || '/' || vid) AS value FROM spans"
    )


class StepIndex:
    """The index of one store; `using` is held while the connection is."""

    def __init__(self, connection: sqlite3.Connection, using: AbstractContextManager[object]):
        self._connection = connection
        self._using = using
        self._last: dict[str, tuple[StepSpan, Step]] = {}
        """Vids → their last step and its span, as both are on disk or in the transaction."""

    # --- changes: in the writer's thread, in its transaction ------------------------------------

    def update(self, changed: Mapping[str, bytes | None]) -> None:
        """Take steps that are new, and keys of steps that are gone; others are passed over."""
        by_vid: dict[str, dict[int, Step | None]] = {}
        for key, value in changed.items():
            if key.startswith(STEPS):
                known = _known(key, value)
                if known is not None:
                    by_vid.setdefault(vid_of(key), {})[known[0]] = known[1]
        gone: list[tuple[str, int]] = []
        rows = [
            (vid, span.written, span.begin, span.level, span.mark, span.life)
            for vid, steps in by_vid.items()
            for span in self._spans_of(vid, steps, gone)
        ]
        if gone:
            self._connection.executemany("DELETE FROM spans WHERE vid = ? AND written = ?", gone)
        self._connection.executemany("REPLACE INTO spans VALUES (?, ?, ?, ?, ?, ?)", rows)

    def undone(self) -> None:
        """The transaction did not come to its end: what is remembered may be of it."""
        self._last.clear()

    def build(self) -> None:
        """Take up a log that has no index, in the transaction at hand."""
        after = STEPS
        while page := self._connection.execute(
            "SELECT key, value FROM entries WHERE key > ? AND key < ? AND value IS NOT NULL "
            "ORDER BY key LIMIT ?",
            (after, STEPS + "\U0010ffff", PAGE_STEPS),
        ).fetchall():
            after = page[-1][0]
            self.update(dict(page))

    def _spans_of(
        self, vid: str, changed: Mapping[int, Step | None], gone: list[tuple[str, int]]
    ) -> list[StepSpan]:
        """Give the spans of a vid that become others, without asking the disk if it may be."""
        known = self._last.pop(vid, None)
        if known is not None and len(changed) == 1:
            ((written, step),) = changed.items()
            if step is not None and written > known[0].written:
                return self._next(vid, known, written, step)
        return self._changed(vid, changed, gone)

    def _changed(
        self, vid: str, changed: Mapping[int, Step | None], gone: list[tuple[str, int]]
    ) -> list[StepSpan]:
        """Give the spans of a vid that become others; `gone` takes the steps that are no more.

        From the step before the first change on, up to where nothing is different any more.
        """
        first, last = min(changed), max(changed)
        cursor = self._connection.execute(_SINCE_SPANS, (vid, first))
        stored = (StepSpan(*row[1:]) for row in cursor)
        old = next(stored, None)
        others: list[StepSpan] = []
        before: StepSpan | None = None
        """The span of the step before, `kept` as it is stored, and `was`, the step itself."""
        kept: StepSpan | None = None
        was: Step | None = None
        if old is not None and old.written < first:
            kept, before = old, msgspec.structs.replace(old)
            if before.stated:
                before.open()
            old = next(stored, None)
        coming = sorted(changed.items(), reverse=True)
        while coming or old is not None:
            there = None
            if coming and (old is None or coming[-1][0] <= old.written):
                written, step = coming.pop()
                if old is not None and old.written == written:
                    there, old = old, next(stored, None)
            else:
                assert old is not None
                there, written, step = old, old.written, self._step(vid, old.written)
                old = next(stored, None)
            if step is None:
                gone.append((vid, written))
                continue
            if before is not None and before.stated and step.body and was is None:
                was = self._step(vid, before.written)
            span = following(before, was, written, step)
            if before is not None and before != kept:
                others.append(before)
            if there is not None and written > last and span.joined(there):
                before = None
                break
            before, kept, was = span, there, step
        cursor.close()
        if before is not None and before != kept:
            others.append(before)
        if before is not None and was is not None:
            self._remember(vid, before, was)
        return others

    def _next(
        self, vid: str, known: tuple[StepSpan, Step], written: int, step: Step
    ) -> list[StepSpan]:
        """Give the spans that change when a step follows the last of its vid."""
        kept, was = known
        before = msgspec.structs.replace(kept)
        if before.stated:
            before.open()
        span = following(before, was, written, step)
        self._remember(vid, span, step)
        return [span] if before == kept else [before, span]

    def _remember(self, vid: str, span: StepSpan, step: Step) -> None:
        if len(step.body) <= LAST_BYTES_MAX:
            if len(self._last) >= LAST_MAX:
                self._last.clear()
            self._last[vid] = span, step

    def _step(self, vid: str, written: int) -> Step | None:
        row = self._connection.execute(
            "SELECT value FROM entries WHERE key = ?", (key_of(written, vid),)
        ).fetchone()
        return None if row is None or row[0] is None else _decode(row[0])

    # --- reading: in any thread -----------------------------------------------------------------

    def within(self, reach: ReachedTime) -> list[Found]:
        """Give the steps whose spans touch a time, as far as the log alone tells; in any order.

        Page by page. A span that lasts may end meanwhile: such levels come first, and what was
        found first counts, so none is missed.
        """
        found: dict[tuple[str, int], Found] = {}
        for level, first, last in _ranges(reach):
            for vid, span, value in self._level(level, first, last, reach):
                found.setdefault((vid, span.written), (vid, span, value))
        return list(found.values())

    def count_within(self, reach: ReachedTime) -> int:
        """Count the steps that `within` would give."""
        with self._reading():
            return sum(
                self._connection.execute(
                    f"SELECT count(*) FROM spans WHERE level = :level AND mark >= :first "  # noqa: S608
                    f"AND {_TOUCHES}",
                    {"level": level, "first": first, **_bounds(last, reach)},
                ).fetchone()[0]
                for level, first, last in _ranges(reach)
            )

    def since(self, vid: str, written: int) -> list[Found]:
        """Give the steps of a vid from the last one before a moment of writing on, in order."""
        with self._reading():
            return list(map(_found, self._connection.execute(_SINCE, (vid, written))))

    def keys(self, vid: str) -> list[str]:
        """Give the keys of all steps of a vid, in order."""
        with self._reading():
            rows = self._connection.execute(
                "SELECT written FROM spans WHERE vid = ? ORDER BY written", (vid,)
            )
            return [key_of(written, vid) for (written,) in rows]

    def count(self) -> int:
        """Count the steps in the log."""
        with self._reading():
            return int(self._connection.execute("SELECT count(*) FROM spans").fetchone()[0])

    def ended(self, before: int, most: int) -> list[tuple[str, StepSpan]]:
        """Give spans that ended before a moment, the first to end first."""
        rows: list[tuple[str, StepSpan]] = []
        for level in range(ENDED_MAX + 1):
            with self._reading():
                found = self._connection.execute(
                    "SELECT vid, written, begin, level, mark, life FROM spans "
                    "WHERE level = ? AND mark < ? "
                    "ORDER BY mark, vid, written LIMIT ?",
                    (level, _moment(before), most),
                ).fetchall()
            rows += [(row[0], StepSpan(*row[1:])) for row in found]
        rows.sort(key=lambda row: (row[1].mark, row[1].written, row[0]))
        return rows[:most]

    def of_other_lives(self, life: int) -> list[Found]:
        """Give the steps whose spans end with a life of the broker, other than this one."""
        return [
            one
            for level in (SOFT, LOST)
            for one in self._level(level, -MOMENT_MAX, MOMENT_MAX, _EVER)
            if level == LOST or one[1].life != life
        ]

    def strays(self, most: int) -> list[str]:
        """Give the keys of steps that are of no use."""
        with self._reading():
            rows = self._connection.execute(
                "SELECT vid, written FROM spans WHERE level = ? ORDER BY mark LIMIT ?",
                (STRAY, most),
            )
            return [key_of(written, vid) for vid, written in rows]

    def piece(self, vid: str, written: int) -> list[Found]:
        """Give the steps of the piece that ends with a step's span, in order."""
        found: list[Found] = []
        with self._reading():
            earlier = self._connection.execute(
                "SELECT vid, written, begin, level, mark, life, value FROM steps "
                "WHERE vid = ? AND written <= ? ORDER BY written DESC",
                (vid, written),
            )
            for one in map(_found, earlier):
                if found and one[1].level != CONTINUED:
                    break
                found.append(one)
            earlier.close()
            found.reverse()
            later = self._connection.execute(
                "SELECT vid, written, begin, level, mark, life, value FROM steps "
                "WHERE vid = ? AND written > ? ORDER BY written LIMIT 1",
                (vid, written),
            )
            found += [one for one in map(_found, later) if one[1].level == END]
        return found

    def _level(self, level: int, first: int, last: int, reach: ReachedTime) -> Iterator[Found]:
        """Give the steps on a level with marks in a range that touch a time, in order."""
        after: tuple[int, str, int] = (first, "", -1)
        while True:
            with self._reading():
                page = self._connection.execute(
                    _PAGE,
                    {
                        "level": level,
                        **dict(zip(("mark", "vid", "written"), after, strict=True)),
                        "most": PAGE_STEPS,
                        **_bounds(last, reach),
                    },
                ).fetchall()
            yield from map(_found, page)
            if len(page) < PAGE_STEPS:
                return
            vid, written, _, _, mark, *_ = page[-1]
            after = (mark, vid, written)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._using:
            try:
                yield
            except sqlite3.Error as error:
                raise StoreError(f"the store can not be read: {error}") from None


def _found(row: tuple[str, int, int, int, int, int, bytes]) -> Found:
    vid, written, begin, level, mark, life, value = row
    return vid, StepSpan(written, begin, level, mark, life), value


def _ranges(reach: ReachedTime) -> Iterable[tuple[int, int, int]]:
    """Give for each level the marks that spans have that may touch a time."""
    low, high = reach.low - reach.margin, reach.high + reach.margin
    for level in (OPEN, SOFT, LOST):
        yield level, -MOMENT_MAX, _moment(high)
    for level in range(ENDED_MAX, -1, -1):
        yield level, _moment(low), _moment(high + (1 << level))


def _bounds(last: int, reach: ReachedTime) -> dict[str, int]:
    """Give the values that `_TOUCHES` names."""
    return {
        "last": last,
        "low": _moment(reach.low),
        "high": _moment(reach.high),
        "latest": _moment(reach.high + reach.margin),
        "letters": reach.letters,
    }


def _moment(moment: int) -> int:
    return max(-MOMENT_MAX, min(moment, MOMENT_MAX))


def _known(key: str, value: bytes | None) -> tuple[int, Step | None] | None:
    """Give when a step was written and what it says, if that is readable; None for other keys."""
    try:
        written = written_of(key)
    except ValueError:
        return None
    if key != key_of(written, vid_of(key)) or written > MOMENT_MAX // 2:
        return None
    try:
        step = None if value is None else _decode(value)
    except msgspec.DecodeError:
        return written, None
    if step is not None and max(abs(step.at), step.life) > MOMENT_MAX // 2:
        return written, None
    return written, step
