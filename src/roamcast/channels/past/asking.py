"""Questions about the past: who was there in a window of time, and what they were like.

The meaning is that of `pipeline lookup`, with one difference that makes it right for a log: a
change of an attribute cuts an interval, and must not hide that somebody stayed. So a term about t_r
or t_d is asked of the whole stretch of a run over which the filter's other terms hold, not of one
piece.
Pieces that lie beyond every moment that the filter and the window name cannot change an answer, so
they are not read (`Asked.reach`).

Of each vid the answer has one context: the last of its pieces within the window. The sources are
read in the order in which pieces move, memory, log, archive, so that none slips between; a piece
found in two of them counts once.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Final, Protocol

import msgspec

from roamcast.channels.past.part import Lives
from roamcast.channels.past.pieces import Piece, StepLog, pieces_within
from roamcast.channels.past.spans import ReachedTime
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.atoms import T_D, T_R, All, Any, Conjunction, Normal, Values
from roamcast.model.filters.holds import holds
from roamcast.model.filters.lasting import relates_time
from roamcast.model.filters.normal import all_of, any_of
from roamcast.model.time import FOREVER

Rows = Sequence[tuple[str, bytes]]
Seen = Callable[[Context, str], Context | None]
"""(a context, the id of its rules) → what whoever asks may see of it."""

Whole = Callable[[str, str], bool]
"""(a vid, the id of its rules) → whether everybody sees all of it."""

EVER: Final = (-FOREVER, FOREVER)


class Blur(Protocol):
    """How what is shown of pseudonyms is rounded; `identity.blurring` has it (0220)."""

    @property
    def margin(self) -> tuple[int, int]:
        """By how much an interval may grow at either end, and the letters that such a vid has."""

    def concerns(self, vid: str) -> bool:
        """Whether a vid stands for somebody who changes it."""

    def begin(self, vid: str, moment: int) -> int:
        """Round a begin outwards."""

    def end(self, vid: str, moment: int | None) -> int | None:
        """Round an end outwards."""

    def thickened(self, contexts: Sequence[Context]) -> list[Context]:
        """Coarsen where few are."""


class Asked:
    """One question: a filter and a window, both ends belonging to it."""

    def __init__(self, wanted: Filter, window: tuple[int, int]) -> None:
        self.wanted = wanted
        self.window = window
        conjunctions = wanted.conjunctions()
        self.parts: list[tuple[Normal, Normal]] | None = None
        """For each conjunction its terms about the times, and its other terms."""
        if conjunctions is not None:
            self.parts = [_divided(part) for part in conjunctions]

    @cached_property
    def reach(self) -> tuple[int, int]:
        """The span whose pieces decide: the window, and all moments that the filter names."""
        low, high = self.window
        if self.parts is None:
            return EVER
        for times, _ in self.parts:
            for moment in _moments(times):
                low, high = min(low, moment), max(high, moment)
        return low, high

    @cached_property
    def without_times(self) -> Normal:
        """What every piece of an answer satisfies, whatever its interval."""
        if self.parts is None:
            return All(())
        return any_of(other for _, other in self.parts)

    def answer(self, run: Sequence[Context]) -> Context | None:
        """Give the last context in the window of a vid's contexts, in order, if it is wanted."""
        best: Context | None = None
        if self.parts is None:  # too many alternatives to take apart: each piece by itself
            return self._last([one for one in run if holds(self.wanted.normal, one)], best)
        for times, other in self.parts:
            for stretch in stretches([one for one in run if holds(other, one)]):
                last = max(stretch, key=lambda one: one.end)
                whole = msgspec.structs.replace(last, t_r=stretch[0].t_r)
                if holds(times, whole):
                    best = self._last(stretch, best)
        return best

    def _last(self, contexts: Sequence[Context], best: Context | None) -> Context | None:
        low, high = self.window
        for one in reversed(contexts):
            if one.t_r <= high and one.end >= low:
                return one if best is None or one.t_r >= best.t_r else best
        return best


def _divided(part: Conjunction) -> tuple[Normal, Normal]:
    about = [atom for atom in part if _about_times(atom)]
    return all_of(about), all_of(atom for atom in part if not _about_times(atom))


def _about_times(atom: Normal) -> bool:
    return (isinstance(atom, Values) and atom.property in (T_R, T_D)) or relates_time(atom)


def _moments(normal: Normal) -> Iterable[int]:
    """Give every moment that terms about the times compare with; EVER if that is not known."""
    if isinstance(normal, All | Any):
        for part in normal.parts:
            yield from _moments(part)
    elif isinstance(normal, Values):
        for interval in normal.intervals:
            for end in (interval.low, interval.high):
                if isinstance(end, int):
                    # one beyond on both sides: whether it is open or closed matters
                    yield from (end - 1, end + 1)
    else:
        yield from EVER


def stretches(contexts: Sequence[Context]) -> list[list[Context]]:
    """Divide contexts at the gaps between them."""
    found: list[list[Context]] = []
    end = 0
    for one in contexts:
        if found and one.t_r <= end:
            found[-1].append(one)
            end = max(end, one.end)
        else:
            found.append([one])
            end = one.end
    return found


def coalesced(contexts: Iterable[Context]) -> list[Context]:
    """Put contexts of one vid in order, and join those that follow each other and look alike.

    Rules hide some changes: then the cut that such a change made must not show either (0090).
    """
    found: list[Context] = []
    for one in sorted(contexts, key=lambda one: (one.t_r, one.end)):
        last = found[-1] if found else None
        if last is not None and one.t_r <= last.end and _alike(last, one):
            t_d = one.t_d if one.end >= last.end else last.t_d
            found[-1] = msgspec.structs.replace(last, t_d=t_d)
        else:
            found.append(one)
    return found


def _alike(first: Context, other: Context) -> bool:
    return (first.place, first.point) == (other.place, other.point) and repr(
        sorted(first.attributes.items())
    ) == repr(sorted(other.attributes.items()))


def within(pieces: Iterable[Piece], reach: ReachedTime) -> list[Piece]:
    """Give the pieces that touch a time."""
    return [piece for piece in pieces if reach.touches(piece.vid, piece.begin, piece.end)]


def widened(reach: tuple[int, int], blur: Blur | None) -> ReachedTime:
    """Give the time whose pieces may come to lie within another one when they are rounded."""
    return ReachedTime(*reach) if blur is None else ReachedTime(*reach, *blur.margin)


def found(
    asked: Asked,
    seen: Seen,
    *,
    waiting: Rows,
    log: StepLog,
    archive: Callable[[], Iterable[Context]],
    known: Lives,
    whole: Whole,
    blur: Blur | None = None,
) -> dict[str, Context]:
    """Answer a question: vid → the last context of it in the window, as it may be seen.

    With a `blur` the question is asked of what may be shown: to ask for many windows must not tell
    more than the answers say.

    `waiting` was read before this is called, then the log is, then the archive: a step is in the
    log before it leaves memory, and a piece in the archive before it leaves the log.
    """
    pieces = pieces_within(log, widened(asked.reach, blur), waiting, known)
    archived = archive()
    answers = {}
    for vid, run in runs(asked, seen, pieces, archived, blur, whole):
        answer = asked.answer(run)
        if answer is not None:
            answers[vid] = answer
    return answers


def runs(
    asked: Asked,
    seen: Seen,
    pieces: Iterable[Piece],
    archived: Iterable[Context],
    blur: Blur | None = None,
    whole: Whole | None = None,
) -> Iterable[tuple[str, list[Context]]]:
    """Give the contexts of each vid that a question may be about, in order, as they may be seen.

    With `whole` they are shown: times beyond the question's own are cut off where something may be
    hidden (0450).
    """
    exact: dict[str, list[Context]] = {}
    partly: set[str] = set()
    for piece in within(pieces, widened(asked.reach, blur)):
        shown = seen(piece.context(), piece.rules)
        if shown is not None:
            exact.setdefault(piece.vid, []).append(shown)
            if whole is not None and not whole(piece.vid, piece.rules):
                partly.add(piece.vid)
    visible = [one for contexts in exact.values() for one in contexts]
    for context in archived:
        shown = seen(context, "")
        if shown is not None and not _known(shown, exact.get(context.vid, ())):
            visible.append(shown)
            if whole is not None and not whole(context.vid, ""):
                partly.add(context.vid)
    if blur is not None:
        visible = blur.thickened(visible)
    # Most vids are not asked for: their contexts need not be put in order.
    wanted = {one.vid for one in visible if holds(asked.without_times, one)}
    by_vid: dict[str, list[Context]] = {}
    for one in visible:
        if one.vid in wanted:
            by_vid.setdefault(one.vid, []).append(one)
    for vid in sorted(by_vid):
        run = coalesced(by_vid[vid])
        if blur is not None and blur.concerns(vid):
            run = _blurred(run, blur)
        yield vid, _cut(run, asked.reach) if vid in partly else run


def _cut(run: Iterable[Context], reach: tuple[int, int]) -> list[Context]:
    """Give the contexts of a run without the times that a question does not reach.

    Nothing beyond was read, so a change that rules hide would show as a begin or an end. No filter
    can tell: its moments lie within.
    """
    low, high = reach
    return [
        msgspec.structs.replace(
            one, t_r=max(one.t_r, low), t_d=one.t_d if one.end <= high else None
        )
        for one in run
        if one.t_r <= high and one.end >= low
    ]


def _blurred(run: Sequence[Context], blur: Blur) -> list[Context]:
    """Round where a stay under one vid begins and ends: these are where another vid follows.

    Changes in between link nothing that the vid does not link.
    """
    rounded: list[Context] = []
    for stretch in stretches(run):
        ends = max(one.end for one in stretch)
        for number, one in enumerate(stretch):
            t_r = one.t_r if number else blur.begin(one.vid, one.t_r)
            t_d = blur.end(one.vid, one.t_d) if one.end == ends else one.t_d
            rounded.append(msgspec.structs.replace(one, t_r=t_r, t_d=t_d))
    return rounded


def _known(archived: Context, exact: Sequence[Context]) -> bool:
    """Whether an archived context is one of the log's, its times rounded: it is leaving the log."""
    return any(
        archived.t_r <= one.t_r and one.end <= archived.end and _alike(archived, one)
        for one in exact
    )
