"""How do the pipeline's commands show how far they are? A bar, on a terminal and for people."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from roamcast.pipeline.spark.progress import Bar

QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


def bar(what: str, *, json: bool, quiet: bool) -> "Bar":
    """Give the bar of a job; it shows nothing with --json, --quiet, or without a terminal."""
    from roamcast.pipeline.spark.progress import Bar

    return Bar(what, show=not json and not quiet and sys.stderr.isatty())
