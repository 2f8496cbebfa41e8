"""`roamcast example`: a small worked example, end to end."""

from pathlib import Path
from typing import Annotated

import typer


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("example", rich_help_panel="Experiments")(example)


def example(
    out: Annotated[Path | None, typer.Option(help="Draw the day into this PNG.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ask who is, was and will be somewhere, on a simulated day in a small building."""
    from roamcast.commands._output import print_report
    from roamcast.lab import _example

    report, *_ = _example.run()
    print_report(report, json=json)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        _example.draw_day(out)
        if not json:
            typer.echo(f"drawn: {out}")
