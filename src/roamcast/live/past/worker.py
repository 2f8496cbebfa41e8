"""What a running service does about its past, beside its loop: answer questions, feed the archive.

Questions and batches read what they need of the log, page by page in a worker thread; between two
pages the store's writer goes on, and the loop never waits. One thread feeds, so that batches land
in their order.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from roamcast.broker import Broker
from roamcast.channels.past.asking import Asked, found, runs, widened
from roamcast.channels.past.leaving import StepsMissingError, contexts, ended
from roamcast.channels.past.messages import (
    BatchLanded,
    BatchRefused,
    ErasePast,
    FeedArchive,
    LookForEnded,
)
from roamcast.channels.past.pieces import pieces_within
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

STEP_STEPS: Final = 60
"""What reading one step of the log costs, in the steps of docs/queries.md: about 3 µs."""

QUESTIONS_MAX: Final = 2
"""Questions about the past that are answered at a time; others wait."""

ANYBODY: Final = Viewer("")
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
        self._closed = False

    def close(self) -> None:
        """Begin nothing more, and let what runs end."""
        self._closed = True
        self._feeding.shutdown(cancel_futures=True)
        self._asking.shutdown(cancel_futures=True)

    async def price(self, wanted: Filter, window: tuple[int, int]) -> int:
        """Give the steps that a question may take: those of the log that it reads, the archive."""
        reach = widened(Asked(wanted, window).reach, self._broker.blur)
        run = asyncio.get_running_loop().run_in_executor
        reads = await run(self._asking, self._disk.steps.count_within, reach)
        archived = 0 if self._archive is None else self._archive.rows
        matching = max(1, steps(wanted.normal))
        return (1 + reads) * (STEP_STEPS + matching) + archived * matching

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
                log=self._disk.steps,
                archive=lambda: self._archived(asked),
                known=memory.known,
                whole=memory.whole,
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
            reach = widened(asked.reach, blur)
            pieces = pieces_within(self._disk.steps, reach, memory.waiting, memory.known)
            archived = self._archived(asked)
            return list(runs(asked, memory.seen, pieces, archived, blur, memory.whole))

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
                    log=self._disk.steps,
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

    async def erase(self, vid: str, ask: Callable[[Callable[[int], Input]], Any]) -> int:
        """Delete everything of a vid that has ended, in the log and in the archive."""
        run = asyncio.get_running_loop().run_in_executor
        keys = await run(self._asking, self._disk.steps.keys, vid)
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
            return ended(self._disk.steps, memory.known, effect)

        def feed() -> Input:
            assert isinstance(effect, FeedArchive)
            number = effect.batch.number
            if self._archive is None:
                return BatchRefused(number, "the settings name no archive: [past] archive")
            try:
                if not self._archive.has(number):
                    firsts = [piece.keys[0] for piece in effect.batch.pieces]
                    values = [(key, self._disk.value(key)) for key in firsts]
                    rows = {key: value for key, value in values if value is not None}
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
