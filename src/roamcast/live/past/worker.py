"""What a running service does about its past, beside its loop: answer questions, feed the archive.

Questions and batches read the log page by page in a worker thread; between two pages the store's
writer goes on, and the loop never waits. One thread feeds, so that batches land in their order.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from roamcast.broker import Broker
from roamcast.channels.past.asking import Asked, found, runs
from roamcast.channels.past.leaving import StepsMissingError, contexts, ended
from roamcast.channels.past.messages import (
    BatchLanded,
    BatchRefused,
    ErasePast,
    FeedArchive,
    LookForEnded,
)
from roamcast.channels.past.part import STEPS, vid_of
from roamcast.channels.past.pieces import read
from roamcast.errors import RoamcastError
from roamcast.identity.rules import Viewer
from roamcast.live.observe.logs import Log
from roamcast.live.store.store import SqliteStore
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.filters.price import steps
from roamcast.model.machine import Input
from roamcast.overlay.casts.looking import look_up, paged
from roamcast.overlay.casts.messages import LookUpPast, PastUnread

PAGE_STEPS: Final = 1_000
STEP_STEPS: Final = 60
"""What reading one step of the log costs, in the steps of docs/queries.md: about 3 µs."""

QUESTIONS_MAX: Final = 2
"""Questions about the past that are answered at a time; others wait."""

ANYBODY: Final = Viewer("")
AFTER: Final = STEPS + "\U0010fffe"
ERASED_TOGETHER: Final = 1_000

_LOG = Log("past")


class PastWorker:
    """One service's past."""

    def __init__(
        self,
        broker: Broker,
        disk: SqliteStore,
        *,
        archive: str,
        archive_days: float = 0.0,
        clock: Callable[[], int],
        give: Callable[[Input], None],
    ) -> None:
        self._broker = broker
        self._disk = disk
        self._clock = clock
        self._give = give
        self._archive: Any = None
        if archive:
            from roamcast.live.past.archive import FedArchive

            blur = broker.blur
            self._archive = FedArchive(
                archive, archive_days, grid_s=blur.grid_s, crowd_min=blur.crowd_min
            )
        self._feeding = ThreadPoolExecutor(1, "past-feed")
        self._asking = ThreadPoolExecutor(QUESTIONS_MAX, "past-ask")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._steps = 0
        self._closed = False

    def close(self) -> None:
        """Begin nothing more, and let what runs end."""
        self._closed = True
        self._feeding.shutdown(cancel_futures=True)
        self._asking.shutdown(cancel_futures=True)

    def price(self, wanted: Filter) -> int:
        """Give the steps that a question may take: every step of the log, and of the archive."""
        archived = 0 if self._archive is None else self._archive.rows
        matching = max(1, steps(wanted.normal))
        return (1 + self._steps) * (STEP_STEPS + matching) + archived * matching

    async def ask(
        self, viewer: Viewer, wanted: Filter, window: tuple[int, int], *, exact: bool = False
    ) -> list[Context]:
        """Answer a question about the past: one context of each vid, by vid.

        `exact`: as casts are matched, for counts that have noise; else as it may be shown (0220).
        """
        # Memory first, then the log, then the archive: the direction in which pieces move.
        memory = self._broker.remembers(viewer, self._clock())
        asked = Asked(wanted, window)
        blur = self._broker.blur

        def work() -> list[Context]:
            answers = found(
                asked,
                memory.seen,
                waiting=memory.waiting,
                log=self._log,
                archive=lambda: self._archived(asked),
                known=memory.known,
                blur=None if exact else blur,
            )
            return list(answers.values())

        return await asyncio.get_running_loop().run_in_executor(self._asking, work)

    async def stays(
        self, viewer: Viewer, window: tuple[int, int]
    ) -> list[tuple[str, list[Context]]]:
        """Give all contexts of each vid in a window, in order, as this viewer may see them."""
        memory = self._broker.remembers(viewer, self._clock())
        asked, blur = Asked(Filter.parse("true"), window), self._broker.blur

        def work() -> list[tuple[str, list[Context]]]:
            rows = dict(memory.waiting)
            rows.update(self._log())
            archived = self._archived(asked)
            pieces = read(sorted(rows.items()), memory.known).pieces
            return list(runs(asked, memory.seen, pieces, archived, blur))

        return await asyncio.get_running_loop().run_in_executor(self._asking, work)

    async def begins(self) -> int:
        """Give the earliest moment that the past may reach: nothing before it is kept any more."""
        now = self._clock()
        lives = self._broker.remembers(ANYBODY, now).known.lives.values()
        first = min(life.began for life in lives)
        if self._archive is None:
            return max(first, now - self._broker.past_stays_us)
        run = asyncio.get_running_loop().run_in_executor
        archived = await run(self._asking, self._archive.first)
        return first if archived is None else min(first, archived)

    def look_up(self, effect: LookUpPast) -> None:
        """Answer a batch of a cast's questions in a thread, page by page."""
        if self._closed:
            return
        self._loop = asyncio.get_running_loop()
        now = self._clock()
        memories = {one.viewer: self._broker.remembers(one.viewer, now) for one in effect.questions}
        memory = next(iter(memories.values()))
        keys: dict[str, bytes] = {}

        def work() -> Sequence[Input]:
            try:
                answers = look_up(
                    effect.questions,
                    [memories[one.viewer].seen for one in effect.questions],
                    waiting=memory.waiting,
                    log=self._log,
                    archive=lambda asked: self._archived(asked, keys),
                    known=memory.known,
                    now=now,
                )
            except RoamcastError as error:
                return [PastUnread(effect.token, str(error))]
            return paged(effect.token, answers, keys=keys)

        self._asking.submit(self._answer, work)

    def _answer(self, work: Callable[[], Sequence[Input]]) -> None:
        for given in work():
            if not self._closed and self._loop is not None:
                self._loop.call_soon_threadsafe(self._given, given)

    def _archived(self, asked: Asked, keys: dict[str, bytes] | None = None) -> Iterable[Context]:
        return () if self._archive is None else self._archive.contexts(asked, keys)

    def _log(self) -> Iterator[tuple[str, bytes]]:
        """Read the log in its order; steps that come meanwhile come last."""
        after, count = STEPS, 0
        while page := self._disk.values(after, AFTER, PAGE_STEPS):
            after = page[-1][0]
            count += len(page)
            yield from page
        self._steps = count

    async def erase(self, vid: str, ask: Callable[[Callable[[int], Input]], Any]) -> int:
        """Delete everything of a vid that has ended, in the log and in the archive."""
        run = asyncio.get_running_loop().run_in_executor
        keys = await run(
            self._asking, lambda: [key for key, _ in self._log() if vid_of(key) == vid]
        )
        for start in range(0, len(keys), ERASED_TOGETHER):
            some = tuple(keys[start : start + ERASED_TOGETHER])
            await ask(lambda ticket, some=some: ErasePast(ticket, vid, some))  # type: ignore[misc]
        archived = 0
        if self._archive is not None:
            archived = await run(self._feeding, lambda: self._archive.erase(vid))
        return len(keys) + int(archived)

    # --- what the broker asks for -------------------------------------------------------------

    def carry(self, effect: LookForEnded | FeedArchive) -> None:
        """Do what the broker asks about its past in the feeding thread, and give it the answer."""
        if self._closed:
            return
        self._loop = asyncio.get_running_loop()
        now = self._clock()
        memory = self._broker.remembers(ANYBODY, now)

        def look() -> Input:
            assert isinstance(effect, LookForEnded)
            return ended(self._log(), memory.known, effect)

        def feed() -> Input:
            assert isinstance(effect, FeedArchive)
            number = effect.batch.number
            if self._archive is None:
                return BatchRefused(number, "the settings name no archive: [past] archive")
            try:
                if not self._archive.has(number):
                    rows = dict(self._log())
                    shown = contexts(effect.batch, rows, memory.seen)
                    self._archive.append(effect.batch, shown)
                self._archive.retain(now)
            except StepsMissingError as error:
                return BatchRefused(number, str(error), lacking=True)
            except RoamcastError as error:
                _LOG.warning("the archive does not take the past", reason=str(error))
                return BatchRefused(number, str(error))
            return BatchLanded(number)

        self._feeding.submit(self._work, look if isinstance(effect, LookForEnded) else feed)

    def _work(self, work: Callable[[], Input]) -> None:
        try:
            given = work()
        except RoamcastError as error:  # the store cannot be read: it is looked again later
            _LOG.warning("the past cannot be read", reason=str(error))
            return
        if not self._closed and self._loop is not None:
            self._loop.call_soon_threadsafe(self._given, given)

    def _given(self, given: Input) -> None:
        if not self._closed:
            self._give(given)
