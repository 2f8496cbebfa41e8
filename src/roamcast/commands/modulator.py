"""`roamcast modulator`: try a modulator on events before brokers run it."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Try modulators: code that a broker runs for you.")


def register(root: typer.Typer) -> None:
    """Add the group to the command line."""
    root.add_typer(app, name="modulator", rich_help_panel="Files and archives")


@app.command("test")
def try_modulator(
    file: Annotated[Path, typer.Argument(help="A module (.wasm, .wat), or a JSON list of them.")],
    events: Annotated[Path, typer.Option(help="Lines of GeoJSON Features, with `data` in base64.")],
    settings: Annotated[str, typer.Option(help="Text that the module's `init` gets.")] = "",
    check: Annotated[
        bool, typer.Option(help="Also replay from a checkpoint after each event.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON lines, as always.")] = False,
) -> None:
    """Print what becomes of each event and the fuel it took, one JSON object per line.

    A module that is refused or stopped prints one line on stderr, with the reason.
    """
    del json
    import sys

    from roamcast.commands._modulator_test import write_answers

    write_answers(file, events, sys.stdout.buffer, settings=settings.encode(), check=check)
