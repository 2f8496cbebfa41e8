"""The `roamcast` command: gathers `roamcast.commands` and turns errors into one line."""

import importlib
import pkgutil
import sys
from typing import Annotated

import typer

from roamcast import __version__, commands
from roamcast.errors import RoamcastError


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"roamcast {__version__}")
        raise typer.Exit


def build() -> typer.Typer:
    """Make the application; every module of `commands` registers what it offers."""
    app = typer.Typer(
        name="roamcast",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        add_completion=True,
    )

    @app.callback()
    def roamcast(
        version: Annotated[
            bool,
            typer.Option("--version", callback=_show_version, is_eager=True, help="Print it."),
        ] = False,
    ) -> None:
        """Reach people by where they are, were or will be, without learning who they are."""

    names = (info.name for info in pkgutil.iter_modules(commands.__path__))
    for module in sorted(name for name in names if not name.startswith("_")):
        importlib.import_module(f"{commands.__name__}.{module}").register(app)
    return app


def main() -> None:
    """Run the command line; the world's errors become one line on stderr and exit code 2."""
    try:
        build()()
    except RoamcastError as error:
        sys.stderr.write(f"roamcast: {' '.join(str(error).split())}\n")
        sys.exit(2)
