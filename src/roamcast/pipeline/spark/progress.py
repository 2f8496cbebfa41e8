"""A progress bar for long jobs: tasks, rows and rate, wherever Spark runs.

In this process the driver's status store is polled twice a second, for display alone: jobs use no
SparkContext. A Spark Connect server reports by itself, but bytes instead of rows. A job that knows
its rows beforehand calls `expect`, and one that works in this process counts them with `step`.
Without a terminal nothing is shown, polled or counted, and there is no thread.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S = 0.5
STAGES_MAX = 10_000
"""Stages remembered; a watch that runs for months forgets the oldest."""

Part = TypeVar("Part")


class Stage(msgspec.Struct):
    """State of one Spark stage."""

    tasks: int = 0
    tasks_done: int = 0
    rows: int = 0
    bytes: int = 0
    done: bool = False


class TaskCount(msgspec.Struct, frozen=True):
    """Progress of all stages together."""

    tasks: int = 0
    tasks_done: int = 0
    rows: int = 0
    bytes: int = 0


class Stages:
    """The stages seen so far, by their id."""

    def __init__(self) -> None:
        self.known: dict[Any, Stage] = {}

    def note(self, name: Any, stage: Stage) -> None:
        """Take the latest of a stage."""
        self.known[name] = stage
        while len(self.known) > STAGES_MAX:
            del self.known[next(iter(self.known))]

    def count(self) -> TaskCount:
        """Add the stages up."""
        parts = ("tasks", "tasks_done", "rows", "bytes")
        held = list(self.known.values())
        return TaskCount(*(sum(getattr(stage, part) for stage in held) for part in parts))


class Bar:
    """Progress display of a command; a context manager."""

    def __init__(self, what: str, *, show: bool) -> None:
        self.shown = show
        self._what = what
        self._stack = ExitStack()
        self._expected: int | None = None
        self._stepped = 0
        self._stages = Stages()
        self._began = time.monotonic()
        self._display: Callable[..., None] = lambda **_: None

    def __enter__(self) -> "Bar":
        if self.shown:
            self._display = self._stack.enter_context(_displayed(self._what))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def expect(self, rows: int) -> None:
        """Set the number of rows of the work that begins now."""
        self._expected, self._stepped, self._stages = rows, 0, Stages()
        self._began = time.monotonic()
        self._draw()

    def step(self, rows: int) -> None:
        """Count rows that were worked through in this process."""
        self._stepped += rows
        self._draw()

    def counted(self, parts: Iterable[Part], rows: Callable[[Part], int]) -> Iterator[Part]:
        """Hand parts of the work on, and count each one's rows when the next is asked for."""
        for part in parts:
            yield part
            self.step(rows(part))

    @contextmanager
    def watch(self, session: "SparkSession") -> Iterator[None]:
        """Follow the jobs of a session while the block lasts."""
        with followed(session, self._saw) if self.shown else nullcontext():
            yield

    def _saw(self, stages: Stages) -> None:
        self._stages = stages
        self._draw()

    def _draw(self) -> None:
        count = self._stages.count()
        share = count.tasks_done / count.tasks if count.tasks else 0.0
        rows = max(self._stepped, count.rows)
        if self._expected is not None:
            # tasks that read files themselves tell Spark no rows: their share of the whole
            rows = max(self._stepped, round(share * self._expected))
            share = rows / self._expected if self._expected else 1.0
        seconds = max(time.monotonic() - self._began, 1e-9)
        self._display(share=share, text=progress_text(count, rows, seconds))


def progress_text(count: TaskCount, rows: int, seconds: float) -> str:
    """Format the counts: tasks, rows and rate; bytes where no rows are known."""
    said = []
    if count.tasks:
        said.append(f"{count.tasks_done:,}/{count.tasks:,} tasks")
    if rows:
        said.append(f"{rows:,} rows, {rows / seconds:,.0f}/s")
    elif count.bytes:
        said.append(f"{count.bytes / 1e6:,.1f} MB, {count.bytes / 1e6 / seconds:,.1f} MB/s")
    return "  ".join(said)


QUIET = Bar("", show=False)


@contextmanager
def _displayed(what: str) -> Iterator[Callable[..., None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
    console = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(what, total=1.0, text="")

        def show(share: float, text: str) -> None:
            progress.update(task, completed=share, text=text)

        yield show


@contextmanager
def followed(session: Any, saw: Callable[[Stages], None]) -> Iterator[None]:
    """Tell `saw` of a session's stages while the block lasts, however Spark is reached."""
    if hasattr(session, "_jsparkSession"):
        with _polled(session, saw):
            yield
        return
    from pyspark.errors import PySparkException

    seen = Stages()

    # Spark calls it by these names.
    def handler(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        del inflight_tasks, done
        for one in stages or ():
            stage = Stage(one.num_tasks, one.num_completed_tasks, 0, one.num_bytes_read)
            seen.note((operation_id, one.stage_id), stage)
        saw(seen)

    try:
        session.registerProgressHandler(handler)
    except PySparkException:  # it offers neither: a bar must never end a job
        yield
        return
    try:
        yield
    finally:
        session.removeProgressHandler(handler)


@contextmanager
def _polled(session: Any, saw: Callable[[Stages], None]) -> Iterator[None]:
    # for display only; no public way leads to it from a session
    store = session._jsparkSession.sparkContext().statusStore()  # noqa: SLF001
    stages = Stages()
    over = threading.Event()

    def poll() -> None:
        while not over.wait(POLL_S):
            try:
                look(store, stages)
            except Exception:  # noqa: BLE001 - the session ended; a bar must never end a job
                return
            saw(stages)

    thread = threading.Thread(target=poll, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def look(store: Any, stages: Stages) -> None:
    """Take the stages that run from a driver's status store, and the end of those that did."""
    active = store.activeStages()
    running = {}
    for number in range(active.size()):
        data = active.apply(number)
        running[data.stageId()] = data
    ended = [name for name, stage in stages.known.items() if not stage.done]
    for name in ended:
        if name not in running:
            stages.note(name, _stage(store.lastStageAttempt(name), done=True))
    for name, data in running.items():
        stages.note(name, _stage(data, done=False))


def _stage(data: Any, *, done: bool) -> Stage:
    read = data.inputBytes()
    # A range of task numbers is input without bytes: there the rows are what the tasks make.
    rows = data.inputRecords() if read else data.shuffleWriteRecords()
    return Stage(data.numTasks(), data.numCompleteTasks(), rows, read, done)
