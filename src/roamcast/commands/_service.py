"""What client commands share: their options, how they find the service, how they print."""

from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from roamcast.client.asking import Asking
    from roamcast.model.contexts import Context
    from roamcast.model.filters import Filter

Result = TypeVar("Result")


def _templates(incomplete: str) -> list[tuple[str, str]]:
    """Complete a template's name, with its description."""
    from roamcast.model.templates import STANDARD

    return [
        (name, template.says) for name, template in STANDARD.items() if name.startswith(incomplete)
    ]


def _values(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a value of the chosen template, or of any."""
    from roamcast.model.templates import STANDARD

    chosen = STANDARD.get(context.params.get("template") or "")
    templates = [chosen] if chosen else list(STANDARD.values())
    given = {pair.partition("=")[0] for pair in context.params.get("values") or ()}
    names = dict.fromkeys(name for template in templates for name in template.parameters)
    return [f"{name}=" for name in names if name not in given and name.startswith(incomplete)]


WhereOption = Annotated[
    str | None, typer.Option("--where", help="Filter in CQL2; everything without one.")
]
TemplateOption = Annotated[
    str | None,
    typer.Option(help="Standard query instead of a filter.", autocompletion=_templates),
]
ValuesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with", help="NAME=VALUE for the template; repeat for several.", autocompletion=_values
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data", envvar="ROAMCAST_DATA", help="Data folder of a service on this machine."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def wanted(where: str | None, template: str | None, values: list[str] | None) -> "Filter":
    """Give the filter of the options: --where, a template filled with values, or everything."""
    from roamcast.errors import FilterError, InputError
    from roamcast.model.filters import Filter
    from roamcast.model.templates import STANDARD

    if template is None:
        if values:
            raise InputError("--with needs a --template to fill")
        parsed = Filter.parse("TRUE" if where is None else where)
        if parsed.hint:
            typer.echo(f"hint: {parsed.hint}", err=True)
        return parsed
    if where is not None:
        raise InputError("--where and --template exclude each other: give one")
    chosen = STANDARD.get(template)
    if chosen is None:
        raise FilterError(f"there is no template {template!r}; there are {', '.join(STANDARD)}")
    filled: dict[str, str] = {}
    for pair in values or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--with takes NAME=VALUE, not {pair!r}")
        filled[name] = value
    return chosen.fill(filled)


def asking(data: Path | None) -> "Asking":
    """Connect to the service for one-time questions."""
    from roamcast.client.asking import Asking
    from roamcast.transport.address import find
    from roamcast.transport.http import HttpClient

    return Asking(HttpClient(find(data=data)))


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a command's asynchronous part."""
    import asyncio

    return asyncio.run(work)


async def with_node(asked: "Asking", work: Coroutine[Any, Any, Result]) -> tuple[Result, str]:
    """Give the answer to a question that is asked once, and the name of the node that gave it."""
    return await work, await asked.node()


def tell_node(node: str, what: str) -> None:
    """Say on stderr that other brokers, if there are any, were not asked (0230)."""
    if node:
        typer.echo(f"{what} of broker {node} alone; `roamcast watch` follows all brokers", err=True)


def cells(context: "Context") -> list[str]:
    """Give a context as a row of the table."""
    from roamcast.model.time import format_instant

    point = "" if context.point is None else "{:.5f}, {:.5f}".format(*context.point)
    attributes = ", ".join(f"{name}={value}" for name, value in sorted(context.attributes.items()))
    since = format_instant(context.t_r).partition(".")[0].rstrip("Z").replace("T", " ")
    return [context.vid, context.place or "", point, attributes, since]


HEADS = ("vid", "place", "point", "attributes", "since (UTC)")


def show(
    features: list[dict[str, Any]],
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    json: bool,
) -> None:
    """Print contexts as GeoJSON or as a table."""
    import sys

    import msgspec
    from rich.console import Console
    from rich.table import Table

    if json:
        listed = {"type": "FeatureCollection", "features": features}
        typer.echo(msgspec.json.encode(listed).decode())
        return
    table = Table(*heads)
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 160, markup=False)
    console.print(table)
