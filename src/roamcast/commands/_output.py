"""How figures and benches print: reports, lists and progress, for people or as JSON."""

import sys
from collections.abc import Callable
from inspect import signature
from types import ModuleType
from typing import Any

import msgspec
import typer
from rich.console import Console

from roamcast.errors import InputError
from roamcast.lab.report import Report, Steps, to_json, to_text


def steps(*, json: bool) -> Steps:
    """Give a progress display, shown on a terminal and not with --json."""
    return Steps(show=not json and sys.stderr.isatty())


def larger_sizes(name: str, run: Callable[..., Report], *, full: bool) -> dict[str, Any]:
    """Give what `--full` passes to a figure or a bench; InputError if it has no larger sizes."""
    if full and "full" not in signature(run).parameters:
        raise InputError(f"{name} has no larger sizes: run it without --full")
    return {"full": True} if full else {}


def print_report(report: Report, *, json: bool) -> None:
    """Print a figure's or a bench's result."""
    if json:
        typer.echo(to_json(report))
    else:
        to_text(report, Console(width=None if sys.stdout.isatty() else 160))


def print_titles(
    found: list[str], load: Callable[[str], ModuleType], *, names: bool, json: bool
) -> None:
    """Print what can be run: names alone, or each with its title."""
    if names:
        typer.echo("\n".join(found))
        return
    titles = {name: str(load(name).TITLE) for name in found}
    if json:
        typer.echo(msgspec.json.encode([{"name": n, "title": t} for n, t in titles.items()]))
        return
    width = max(map(len, found), default=0)
    for name, title in titles.items():
        typer.echo(f"{name:<{width}}  {title}")
