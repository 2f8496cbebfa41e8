"""Spans: for each step in the log, from when to when what it says held.

A step says what holds from now on (0107); how long is known when the next step of its vid is there.
The index of the log (`index.py`) has a span for each step and keeps it up to date, so a question
reads only the steps whose spans it touches (0350). `following` says what one step means for its own
span and for the one before it; `read` in `pieces.py` says the same of a whole log.
"""

from typing import Final, NamedTuple

import msgspec

from roamcast.channels.past.part import Step, after

ENDED_MAX: Final = 62
"""Levels from 0 up to here: it ended, after less than 2 ** level microseconds."""
OPEN: Final = 63
"""It lasts."""
SOFT: Final = 64
"""It lasts, if the life of the broker does that it belongs to, or its publisher came back."""
LOST: Final = 65
"""It ended with the life of the broker that it belongs to: before the next step was written."""
CONTINUED: Final = -1
"""The next step says the same again: one piece, and that step has its span."""
END: Final = -2
"""A step that ended what the step before it says."""
STRAY: Final = -3
"""A step that ended nothing."""


class ReachedTime(NamedTuple):
    """The time whose pieces decide a question, both ends belonging to it.

    What is shown of some vids is rounded, so pieces of theirs beyond it may come to lie within.
    """

    low: int
    high: int
    margin: int = 0
    """How far beyond it such pieces may lie."""
    letters: int = 0
    """Vids with fewer letters are not rounded: pieces of theirs are asked for without a margin."""

    def touches(self, vid: str, begin: int, end: int | None) -> bool:
        """Whether a piece may matter."""
        margin = self.margin if len(vid) >= self.letters else 0
        return begin <= self.high + margin and (end is None or end >= self.low - margin)


class StepSpan(msgspec.Struct, gc=False):
    """From when to when what a step says held, as far as the log alone tells."""

    written: int
    """When the step was written, as its key says."""
    begin: int
    level: int
    """How it ended, or that it lasts: one of the numbers above."""
    mark: int
    """Its end on a level up to `ENDED_MAX`, else its begin."""
    life: int = 0
    """The life of the broker that it belongs to; 0 if the broker stores it."""

    @property
    def stated(self) -> bool:
        """Whether its step says that something is there."""
        return self.level not in (END, STRAY)

    def open(self) -> None:
        """Let it last: no step after it is known."""
        self.level, self.mark = (SOFT if self.life else OPEN), self.begin

    def close(self, end: int) -> None:
        """Let it end."""
        self.level, self.mark = (end - self.begin).bit_length(), end
        assert 0 < self.level <= ENDED_MAX

    def joined(self, other: "StepSpan") -> bool:
        """Whether later steps mean the same after this span as after another of the same step."""
        if self.stated:
            return other.stated and self.begin == other.begin
        return self.level == other.level


def following(before: StepSpan | None, was: Step | None, written: int, step: Step) -> StepSpan:
    """Give the span of a step, and let the span before it end as the step says.

    `was` is the step before it; it is looked at only if both say that something is there.
    """
    at = step.at
    if before is not None and not before.stated:
        before = None
    if before is not None and lost(before.life, step):
        before.level, before.mark = LOST, before.begin
        before, at = None, max(at, written)
    if not step.body:
        if before is None:
            return StepSpan(written, at, STRAY, at)
        before.close(after(before.begin, at))
        return StepSpan(written, at, END, at)
    if before is not None:
        assert was is not None
        if (was.body, was.rules) == (step.body, step.rules):
            before.level, before.mark = CONTINUED, before.begin
            at = before.begin
        else:
            at = after(before.begin, at)
            before.close(at)
    span = StepSpan(written, at, OPEN, at, step.life)
    span.open()
    return span


def lost(life: int, step: Step) -> bool:
    """Whether what belongs to a life had ended with it when a vid's next step was written."""
    return bool(life and step.life and step.life != life and step.settled)
