"""`roamcast match`: which contexts satisfy which filters, as JSON lines."""

from pathlib import Path
from typing import Annotated

import typer


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("match", rich_help_panel="Files and archives")(match)


def match(
    filters: Annotated[Path, typer.Argument(help='Lines of {"id": …, "filter": CQL2}.')],
    contexts: Annotated[Path, typer.Argument(help="Lines of GeoJSON Features.")],
    reference: Annotated[
        bool, typer.Option(help="Use the slow reference evaluator instead of the index.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON lines, as always.")] = False,
) -> None:
    """Print every pair (context, filter) that matches, one JSON object per line.

    Pairs are in the order of the contexts' file, then of the filters' file. Bad input prints only
    one line on stderr, with file, line and position.
    """
    del json
    import sys

    from roamcast.matching.files import write_matches

    write_matches(filters, contexts, sys.stdout.buffer, reference=reference)
