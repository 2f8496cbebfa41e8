"""Contexts on their way into the archive: who writes which."""

from hypothesis import given
from hypothesis import strategies as st

from roamcast.pipeline.ingest.archive import TASK_ROWS, Run, divided

runs = st.lists(
    st.builds(
        Run,
        partition=st.sampled_from(["a", "b", "c"]),
        path=st.sampled_from(["1", "2", "3"]),
        at=st.integers(0, 100),
        rows=st.integers(1, TASK_ROWS),
    ),
    max_size=30,
)


@given(runs)
def test_every_run_is_written_by_one_task_and_none_has_too_many(found: list[Run]) -> None:
    tasks = divided(found)
    assert sorted(map(repr, (run for task in tasks for run in task))) == sorted(map(repr, found))
    assert all(tasks)
    for task in tasks:
        count = sum(run.rows for run in task)
        # partitions that are few rows share a task; the last one to come may be whole
        assert count <= TASK_ROWS or count - task[-1].rows < TASK_ROWS
        for partition in {run.partition for run in task}:
            own = sum(run.rows for run in task if run.partition == partition)
            assert own <= TASK_ROWS


def test_a_partition_of_many_rows_is_several_tasks() -> None:
    found = [Run("a", "1", at, TASK_ROWS // 2) for at in range(5)]
    assert [len(task) for task in divided(found)] == [2, 2, 1]
    assert divided([]) == []
