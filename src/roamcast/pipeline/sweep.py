"""Experiments as Spark tasks: every set of parameters under every seed.

An experiment is a function that a worker can import, `package.module:function`. Task number t is
parameter set t // seeds under seed first + t % seeds, wherever it runs. So neither partitions nor
executors, nor a worker that dies and is replaced, can change a row. Parameters and results travel
as JSON text.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from roamcast.errors import InputError, LimitError
from roamcast.pipeline.spark.errors import collected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASKS_MAX = 10_000_000
PARAMETERS_BYTES_MAX = 1 << 20
"""All parameter sets together: they travel in the tasks' closure."""

PARTITIONS = 256
"""Unless said otherwise, at most: small enough to spread, large enough to start few tasks."""

Parameters = Mapping[str, Any]
_ROW = "task long, seed long, parameters string, result string, error string"
_ROWS = pa.schema(
    [
        ("task", pa.int64()),
        ("seed", pa.int64()),
        ("parameters", pa.string()),
        ("result", pa.string()),
        ("error", pa.string()),
    ]
)


class Outcome(msgspec.Struct, frozen=True):
    """One row of a task: an experiment that gives a list of rows has several."""

    parameters: dict[str, Any]
    seed: int
    result: dict[str, Any]
    error: str = ""


def find(experiment: str) -> Callable[..., Any]:
    """Import an experiment's function."""
    name, colon, function = experiment.partition(":")
    if not colon or not name or not function:
        raise InputError(f"{experiment!r} is no experiment such as package.module:function")
    try:
        found = getattr(importlib.import_module(name), function)
    except (ImportError, AttributeError) as error:
        raise InputError(f"no experiment {experiment!r}: {error}") from None
    if not callable(found):
        raise InputError(f"{experiment!r} is not a function")
    return found  # type: ignore[no-any-return]


def check(experiment: str, sets: Sequence[Parameters], seeds: int) -> None:
    """Raise, before Spark starts, for an experiment that no task could run."""
    takes = inspect.signature(find(experiment))
    if seeds < 1 or not sets:
        raise InputError("a sweep has at least one seed and one set of parameters")
    if len(sets) * seeds > TASKS_MAX:
        raise LimitError(f"a sweep has at most {TASKS_MAX} tasks, not {len(sets) * seeds}")
    if len(msgspec.json.encode(sets)) > PARAMETERS_BYTES_MAX:
        raise LimitError(f"a sweep's parameters have at most {PARAMETERS_BYTES_MAX} bytes")
    if seeds > 1 and "seed" not in takes.parameters:
        raise InputError(f"{experiment} takes no seed: run it with --seeds 1")
    for one in sets:
        try:
            takes.bind(**_given(takes, one, 0))
        except TypeError as error:
            raise InputError(f"{experiment} cannot take {dict(one)}: {error}") from None


def sweep(
    spark: "SparkSession",
    experiment: str,
    sets: Sequence[Parameters],
    seeds: int,
    *,
    first: int = 0,
    partitions: int | None = None,
) -> "DataFrame":
    """Give a row (task, seed, parameters, result, error) for each row of each task."""
    check(experiment, sets, seeds)
    count = len(sets) * seeds
    spread = max(1, min(count, partitions or PARTITIONS))
    given = [msgspec.json.encode(one) for one in sets]

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        function = find(experiment)
        for batch in batches:
            for task in batch.column(0).to_pylist():
                rows = run_task(function, given[task // seeds], first + task % seeds)
                found = [{"task": task, **row} for row in rows]
                yield pa.RecordBatch.from_pylist(found, schema=_ROWS)

    numbers = spark.range(0, count, 1, spread)
    return numbers.mapInArrow(work, _ROW).select(*_ROWS.names)


def run_task(
    function: Callable[..., Any], parameters: bytes, seed: int
) -> Iterator[dict[str, Any]]:
    """Run one task; an error becomes its row, and the other tasks go on."""
    said = {"seed": seed, "parameters": parameters.decode(), "result": None, "error": None}
    try:
        one = msgspec.json.decode(parameters)
        answer = function(**_given(inspect.signature(function), one, seed))
        rows = answer if isinstance(answer, list | tuple) else [answer]
        results = [msgspec.json.encode(row).decode() for row in rows]
    except Exception as error:  # noqa: BLE001 - an experiment may raise anything; it is a row
        yield said | {"error": f"{type(error).__name__}: {error}"[:2_000]}
        return
    for result in results:
        yield said | {"result": result}


def _given(takes: inspect.Signature, parameters: Parameters, seed: int) -> dict[str, Any]:
    return {**parameters, "seed": seed} if "seed" in takes.parameters else dict(parameters)


def outcomes(frame: "DataFrame") -> list[Outcome]:
    """Run a sweep and give its rows in the order of the tasks, a task's own rows in their order."""
    found = []
    # stable: rows of one task come from one worker, in order
    rows = collected(frame, "the sweep failed").to_pylist()
    for row in sorted(rows, key=lambda row: row["task"]):
        result = msgspec.json.decode(row["result"]) if row["result"] is not None else {}
        if not isinstance(result, dict):
            result = {"value": result}
        parameters = msgspec.json.decode(row["parameters"])
        found.append(Outcome(parameters, row["seed"], result, row["error"] or ""))
    return found
