"""What a bar says, and that nobody pays for one that is not shown."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError

from roamcast.pipeline.spark import progress
from roamcast.pipeline.spark.progress import (
    QUIET,
    STAGES_MAX,
    Bar,
    Stage,
    Stages,
    TaskCount,
    followed,
    progress_text,
)


def test_a_count_is_said_in_tasks_rows_and_rate() -> None:
    assert progress_text(TaskCount(8, 3, 0, 0), 12_000, 2.0) == "3/8 tasks  12,000 rows, 6,000/s"
    assert progress_text(TaskCount(8, 3, 0, 4_000_000), 0, 2.0) == "3/8 tasks  4.0 MB, 2.0 MB/s"
    assert progress_text(TaskCount(), 0, 1.0) == ""


class Display:
    """Stands for the terminal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[float, str]] = []

        @contextmanager
        def displayed(what: str) -> Iterator[Any]:
            del what
            yield lambda share, text: self.seen.append((share, text))

        monkeypatch.setattr(progress, "_displayed", displayed)
        monkeypatch.setattr(progress.time, "monotonic", lambda: 0.0)


def test_rows_worked_through_here_move_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    display = Display(monkeypatch)
    with Bar("load", show=True) as bar:
        bar.expect(40)
        assert list(bar.counted([10, 30], lambda rows: rows)) == [10, 30]
    assert [share for share, _ in display.seen] == [0.0, 0.25, 1.0]
    assert display.seen[-1][1].startswith("40 rows")


def test_tasks_that_read_files_themselves_count_by_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    display = Display(monkeypatch)
    with Bar("lookup", show=True) as bar:
        bar.expect(1_000)
        stages = Stages()
        stages.note(1, Stage(tasks=4, tasks_done=1))
        bar._saw(stages)
    share, said = display.seen[-1]
    assert share == 0.25
    assert said.startswith("1/4 tasks  250 rows")


def test_a_spark_connect_server_reports_by_itself() -> None:
    """Its handlers are called by names, and its stages count bytes, not rows."""
    handlers: list[Any] = []
    session = SimpleNamespace(
        registerProgressHandler=handlers.append, removeProgressHandler=handlers.remove
    )
    seen: list[TaskCount] = []
    with followed(session, lambda stages: seen.append(stages.count())):
        stage = SimpleNamespace(
            stage_id=3, num_tasks=4, num_completed_tasks=2, num_bytes_read=70, done=False
        )
        said = {"inflight_tasks": 2, "operation_id": "one", "done": False}
        handlers[0](**said, stages=[stage])
        stage.num_completed_tasks = 4
        handlers[0](**said, stages=[stage])
        handlers[0](**said | {"done": True}, stages=None)
        handlers[0](**said | {"operation_id": "another"}, stages=[stage])
    assert seen == [
        TaskCount(4, 2, 0, 70),
        TaskCount(4, 4, 0, 70),
        TaskCount(4, 4, 0, 70),
        TaskCount(8, 8, 0, 140),
    ]
    assert not handlers


def test_a_session_that_tells_nothing_ends_no_job() -> None:
    def refuse(handler: object) -> None:
        raise PySparkRuntimeError(f"not supported: {handler}")

    done = []
    with followed(SimpleNamespace(registerProgressHandler=refuse), lambda _: None):
        done.append(True)
    assert done


def test_a_bar_that_is_not_shown_watches_nothing() -> None:
    with QUIET as bar, bar.watch(None):  # type: ignore[arg-type]
        bar.expect(3)
        bar.step(3)


def test_a_watch_of_months_forgets_old_stages() -> None:
    stages = Stages()
    for number in range(STAGES_MAX + 5):
        stages.note(number, Stage(tasks=1))
    assert len(stages.known) == STAGES_MAX
    assert 4 not in stages.known
    assert stages.count().tasks == STAGES_MAX
