"""Where a job of the pipeline runs: here, or on Spark that starts when it is needed."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from pyspark.sql import SparkSession

    from roamcast.pipeline.archive.care import Workers
    from roamcast.pipeline.spark.progress import Bar

SparkOption = Annotated[
    str | None,
    typer.Option(
        "--spark", help="Spark master: local[*], spark://host:port, sc://host. [$ROAMCAST_SPARK]"
    ),
]
OnOption = Annotated[
    str,
    typer.Option("--on", help="auto: Spark if the job is large; or always driver, or spark."),
]


def later(
    stack: "ExitStack", master: str | None, shown: "Bar | None" = None, name: str = "roamcast"
) -> "Callable[[], SparkSession]":
    """Start Spark when, and only if, a job needs it; stop it when the command ends."""
    running: list[SparkSession] = []

    def start() -> "SparkSession":
        if not running:
            from roamcast.pipeline.spark.session import Settings, started

            running.append(stack.enter_context(started(Settings(master=master, name=name))))
            if shown is not None:
                stack.enter_context(shown.watch(running[0]))
        return running[0]

    return start


def check_on(on: str) -> str:
    """Return where a job is to run, or say what may be said."""
    from roamcast.errors import InputError

    if on not in {"auto", "driver", "spark"}:
        raise InputError(f"--on is auto, driver or spark, not {on!r}")
    return on


def workers(
    stack: "ExitStack", on: str, master: str | None, shown: "Bar | None" = None
) -> "Workers | None":
    """Use Spark for upkeep where it is asked for or a master was named: else it would not pay."""
    import os

    from roamcast.pipeline.archive.care import SPARK_BYTES, Workers
    from roamcast.pipeline.spark.session import MASTER_VARIABLE

    check_on(on)
    if on == "driver" or (on == "auto" and master is None and MASTER_VARIABLE not in os.environ):
        return None
    return Workers(later(stack, master, shown)(), 0 if on == "spark" else SPARK_BYTES)
