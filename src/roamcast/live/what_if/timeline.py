"""What a map showed in a window of time, as steps that a broker can be given again.

Of a service the steps are made from its past, which knows the rules of then and of now, what was
erased, and which times are rounded. Of a journal, which has what everybody might see and nothing
else, they are made from its records.
"""

from collections.abc import Iterable, Sequence

import msgspec

from roamcast.channels.past.settings import RETURN_US
from roamcast.journal.book import Entry
from roamcast.model.contexts import Context, body_of
from roamcast.model.records import ContextChanged, ContextClosed, ContextOpened, UpdateMatched

Window = tuple[int, int]
"""Begin and end, in microseconds since 1970; both belong to it."""


class TimelineStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From `at` on the map shows `body` of a vid; an empty body: it has left."""

    at: int
    vid: str
    body: bytes


def from_runs(runs: Iterable[tuple[str, Sequence[Context]]], window: Window) -> list[TimelineStep]:
    """Make steps of each vid's contexts, in order, as a question about the past has them."""
    begin, end = window
    steps = []
    for vid, run in runs:
        for number, context in enumerate(run):
            leaves = context.t_d
            if context.t_r > end or (leaves is not None and leaves <= begin):
                continue
            open_ended = msgspec.structs.replace(context, t_d=None)
            steps.append(TimelineStep(max(context.t_r, begin), vid, body_of(open_ended)))
            last = number + 1 == len(run) or run[number + 1].t_r > (leaves or end)
            if leaves is not None and leaves <= end and last:
                steps.append(TimelineStep(leaves, vid, b""))
    return sorted(steps, key=lambda step: step.at)


def from_entries(entries: Iterable[Entry], window: Window) -> list[TimelineStep]:
    """Make steps of one broker's journal, from its first entry on."""
    begin, end = window
    reader = _JournalReader(begin)
    for at, _, record in entries:
        reader.come_to(at)
        if at > end:
            break
        if isinstance(record, ContextOpened | ContextChanged):
            reader.show(at, record.vid, record.body)
        elif isinstance(record, ContextClosed):
            reader.show(at, record.vid, b"")
        elif isinstance(record, UpdateMatched):
            reader.matched(at, record)
    first = [TimelineStep(begin, vid, body) for vid, body in reader.started.items()]
    return [*first, *sorted(reader.steps, key=lambda step: step.at)]


class _JournalReader:
    """What a journal's map shows when the window begins, and the steps from then on.

    What does not come back within a minute of a restart ended with the life before it (0048).
    """

    def __init__(self, begin: int) -> None:
        self.started: dict[str, bytes] = {}
        self.steps: list[TimelineStep] = []
        self._begin = begin
        self._present: dict[str, None] = {}
        self._absent: dict[str, None] = {}
        """Contexts of the life before that have not come back yet."""
        self._epoch = self._now = 0
        self._fell = self._restarted = 0

    def come_to(self, at: int) -> None:
        if self._absent and at > self._restarted + RETURN_US:
            for vid in list(self._absent):
                self.show(self._fell, vid, b"")
        if at > self._now and not self._absent:
            self._fell = self._now
        self._now = at

    def show(self, at: int, vid: str, body: bytes) -> None:
        self._absent.pop(vid, None)
        self._present.pop(vid, None)
        if body:
            self._present[vid] = None
        if at > self._begin:
            self.steps.append(TimelineStep(at, vid, body))
        elif body:
            self.started[vid] = body
        else:
            self.started.pop(vid, None)

    def matched(self, at: int, record: UpdateMatched) -> None:
        if record.epoch == self._epoch:
            return
        if self._epoch:
            self._absent = dict.fromkeys(self._present)
            self._absent.pop(record.vid, None)  # the first that came back: it stands before this
            self._restarted = at
        self._epoch = record.epoch
