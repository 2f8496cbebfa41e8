"""What a cast's filter means over the record of a node: judged per stretch, decided as time allows.

Terms about t_r and t_d are asked of a stretch: states of one vid without a gap over which the other
terms of one alternative hold (0109, trap 6). An open stretch counts only once no later end can
change the answer (trap 5). After `until`, the cast's expiry, nothing counts: a stretch that lasts
longer is judged by what was known then, so the answer is the same whenever it is asked.

`look_up` answers a batch of questions about the past for every driver, live or simulated.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from roamcast.channels.past.asking import EVER, Asked, Rows, Seen, runs, stretches
from roamcast.channels.past.part import Lives
from roamcast.channels.past.pieces import StepLog, pieces_within
from roamcast.channels.past.spans import ReachedTime
from roamcast.model.areas import Area
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.atoms import Normal
from roamcast.model.filters.holds import holds
from roamcast.model.filters.lasting import Decision, decide_normal
from roamcast.overlay.casts.messages import Lasting, Pair, PastFound, PastQuestion

NO: Final = Decision(False)

PAGE_VIDS: Final = 4_096
"""Vids in one page of an answer."""


class PastAnswer(msgspec.Struct):
    """Who matches for good, and who may match later."""

    found: list[str]
    lasting: list[Lasting]


@lru_cache(4_096)
def asked_of(text: str, window: tuple[int, int]) -> Asked:
    """Take a question apart, once."""
    return Asked(Filter.parse(text), window)


def judge(times: Normal, stretch: Context, now: int, until: int) -> Decision:
    """Decide the terms about times over one stretch, at `now`; nothing after `until` counts."""
    if stretch.t_r > until:
        return NO
    if stretch.t_d is not None and stretch.t_d <= until:
        return Decision(holds(times, stretch))
    lasting = msgspec.structs.replace(stretch, t_d=None)
    if stretch.t_d is not None:  # it was open at `until`
        return Decision(decide_normal(times, lasting, until).answer is True)
    decision = decide_normal(times, lasting, min(now, until))
    if decision.answer is None and (now >= until or (decision.again or 0) > until):
        return Decision(None)  # only its end can decide it now
    return decision


def answer_run(
    asked: Asked, run: Sequence[Context], now: int, until: int, into: PastAnswer
) -> None:
    """Add one vid's contexts, in their order, to an answer."""
    assert asked.parts is not None, "casts with too many alternatives are refused"
    lasting: list[Lasting] = []
    for number, (times, other) in enumerate(asked.parts):
        for stretch in stretches([one for one in run if holds(other, one)]):
            last = max(stretch, key=lambda one: one.end)
            whole = msgspec.structs.replace(last, t_r=stretch[0].t_r)
            decision = judge(times, whole, now, until)
            if decision.answer:
                into.found.append(whole.vid)
                return
            if whole.t_d is None:
                # Also one that is decided: a later state must not begin it anew (trap 6).
                lasting.append(Lasting(whole.vid, number, whole.t_r))
    into.lasting += lasting


def look_up(
    questions: Sequence[PastQuestion],
    seen: Sequence[Seen],
    *,
    waiting: Rows,
    log: StepLog,
    archive: Callable[[Asked], Iterable[Context]],
    known: Lives,
    now: int,
) -> list[PastAnswer]:
    """Answer a batch: `seen` says for each question what its viewer may see (`Broker.remembers`).

    `waiting` was read before this is called, then the log is, once for all, then the archive.
    """
    all_asked = [asked_of(question.filter, question.window) for question in questions]
    reaches = [asked.reach for asked in all_asked]
    reach = ReachedTime(min(low for low, _ in reaches), max(high for _, high in reaches))
    pieces = pieces_within(log, reach, waiting, known)
    answers = []
    for question, asked, sees in zip(questions, all_asked, seen, strict=True):
        answer = PastAnswer([], [])
        for _, run in runs(asked, sees, pieces, archive(asked)):
            answer_run(asked, run, now, question.until, answer)
        answers.append(answer)
    return answers


def paged(
    token: int,
    answers: Sequence[PastAnswer],
    size: int = PAGE_VIDS,
    keys: Mapping[str, bytes] | None = None,
) -> list[PastFound]:
    """Give a batch's answers as inputs; the last one is `done`. `keys`: those of archived vids."""
    pages: list[PastFound] = []
    for number, answer in enumerate(answers):
        for at in range(0, max(1, len(answer.found), len(answer.lasting)), size):
            found = tuple(answer.found[at : at + size])
            lasting = tuple(answer.lasting[at : at + size])
            pairs = tuple(Pair(vid, keys[vid]) for vid in found if vid in keys) if keys else ()
            pages.append(PastFound(token, number, found, lasting, done=False, keys=pairs))
    assert pages, "a batch has a question"
    pages[-1] = msgspec.structs.replace(pages[-1], done=True)
    return pages


def window_of(area: Area) -> tuple[int, int]:
    """Give a window that every stretch meets whose begin and end lie in a patch of the area."""
    low, high = EVER[1], EVER[0]
    for patch in area.patches:
        # It begins by one moment and ends from the other on: it has something between the two.
        latest_begin = EVER[1] if patch.begins[1] is None else patch.begins[1]
        earliest_end = EVER[0] if patch.ends[0] is None else patch.ends[0]
        low = min(low, latest_begin, earliest_end)
        high = max(high, latest_begin, earliest_end)
    return low, high
