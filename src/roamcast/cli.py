"""The `roamcast` command: collects the modules of `roamcast.commands` (decision 0002)."""

import functools
import importlib
import os
import pkgutil
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from roamcast import __version__, commands
from roamcast.errors import RoamcastError


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"roamcast {__version__}")
        raise typer.Exit


PANELS = ("The service", "The map", "Files and archives", "Experiments")
"""The groups of `roamcast --help`, in the order of a newcomer's day."""


class GroupedCommands(TyperGroup):
    """Lists commands by their `rich_help_panel`, in plain text as the rest of our help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel."""
        del ctx
        for panel in PANELS:
            listed = [
                (name, command)
                for name, command in sorted(self.commands.items())
                if getattr(command, "rich_help_panel", None) == panel
            ]
            width = formatter.width - 6 - max(map(len, self.commands))
            with formatter.section(panel):
                formatter.write_dl(
                    [(name, command.get_short_help_str(width)) for name, command in listed]
                )


@functools.cache  # groups of commands are module-level: each more call would register them again
def build() -> typer.Typer:
    """Return the application; every module of `commands` registers its commands."""
    app = typer.Typer(
        name="roamcast",
        cls=GroupedCommands,
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
    """Run the command line. A RoamcastError becomes one line on stderr and exit code 2."""
    try:
        code = build()(standalone_mode=False)
    except RoamcastError as error:
        _fail(str(error))
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        say = getattr(error, "format_message", None)  # typer's errors for a wrong command line
        if say is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(say())
            sys.exit(0)
        _fail(f"{say()} (roamcast --help says how it is called)")
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _fail(problem: str) -> NoReturn:
    sys.stderr.write(f"roamcast: {' '.join(problem.split())}\n")
    sys.exit(2)
