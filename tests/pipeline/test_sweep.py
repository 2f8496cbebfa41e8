"""What a sweep refuses before Spark starts, and what a task makes of an answer."""

from pathlib import Path
from typing import Any

import pytest

from roamcast.commands._pipeline_sweep import parameter_sets
from roamcast.errors import InputError, LimitError, MissingError
from roamcast.pipeline import sweep
from roamcast.pipeline.sweep import TASKS_MAX, check, run_task
from roamcast.sim.experiment import BLOCK_MAX, swarm_block

PLAY = "roamcast.sim.experiment:play_workload"


@pytest.mark.parametrize(
    ("experiment", "sets", "seeds", "problem"),
    [
        ("play", [{}], 1, "package.module:function"),
        ("roamcast.nowhere:f", [{}], 1, "no experiment"),
        ("roamcast.sim.experiment:nothing", [{}], 1, "no experiment"),
        ("roamcast.pipeline.sweep:TASKS_MAX", [{}], 1, "not a function"),
        (PLAY, [], 1, "at least one"),
        (PLAY, [{"workload": "map"}], 0, "at least one"),
        (PLAY, [{"workload": "map"}, {"calm": 1}], 1, "workload"),
        ("roamcast.lab.ams_3:share_row", [{"percent": 0, "people": 5}], 2, "takes no seed"),
    ],
)
def test_what_no_task_could_run_is_refused(
    experiment: str, sets: list[dict[str, Any]], seeds: int, problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        check(experiment, sets, seeds)


def test_a_sweep_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [{"workload": "map"}, {"workload": "channel"}]
    check(PLAY, sets, TASKS_MAX // 2)
    with pytest.raises(LimitError, match="tasks"):
        check(PLAY, sets, TASKS_MAX // 2 + 1)
    size = len(b'[{"workload":"map"},{"workload":"channel"}]')
    monkeypatch.setattr(sweep, "PARAMETERS_BYTES_MAX", size)
    check(PLAY, sets, 1)
    monkeypatch.setattr(sweep, "PARAMETERS_BYTES_MAX", size - 1)
    with pytest.raises(LimitError, match="bytes"):
        check(PLAY, sets, 1)


def test_an_answer_of_several_rows_gives_several_rows() -> None:
    def rows(count: int, seed: int) -> list[dict[str, int]]:
        return [{"number": number + seed} for number in range(count)]

    found = list(run_task(rows, b'{"count": 3}', 4))
    assert [row["result"] for row in found] == [f'{{"number":{n}}}' for n in (4, 5, 6)]
    (failed,) = run_task(rows, b'{"count": "three"}', 4)
    assert failed["result"] is None
    assert failed["error"].startswith("TypeError: ")


def test_a_block_of_a_swarm_is_one_row() -> None:
    row = swarm_block("channel", 2, block=5)
    assert (row["first"], row["runs"], row["failed"], row["again"]) == (10, 5, 0, "")
    for block in (0, BLOCK_MAX + 1):
        with pytest.raises(LimitError, match="block"):
            swarm_block("channel", 0, block=block)


def test_parameters_are_combined_or_read(tmp_path: Path) -> None:
    assert parameter_sets([]) == [{}]
    assert parameter_sets(["a=1|2,b=x,c=true"]) == [
        {"a": 1, "b": "x", "c": True},
        {"a": 2, "b": "x", "c": True},
    ]
    assert parameter_sets(["a=1", "a=0.5"]) == [{"a": 1}, {"a": 0.5}]
    path = tmp_path / "sets.json"
    path.write_text('[{"a": 1}, {"a": 2}]')
    assert parameter_sets([str(path), "b=3"]) == [{"a": 1}, {"a": 2}, {"b": 3}]
    path.write_text('{"a": 1}\n{"a": 4}\n')
    assert parameter_sets([str(path)]) == [{"a": 1}, {"a": 4}]
    path.write_text("a: 1")
    with pytest.raises(InputError, match="no JSON objects"):
        parameter_sets([str(path)])
    with pytest.raises(MissingError, match="nowhere"):
        parameter_sets([str(tmp_path / "nowhere")])
    with pytest.raises(InputError, match="is not name=value"):
        parameter_sets(["a=1,a=2"])
