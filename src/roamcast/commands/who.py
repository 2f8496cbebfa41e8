"""`roamcast who`: what satisfies a filter now."""

import typer

from roamcast.commands._service import (
    HEADS,
    DataOption,
    JsonOption,
    TemplateOption,
    ValuesOption,
    WhereOption,
    asking,
    cells,
    run,
    wanted,
)


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("who")(who)


def who(
    where: WhereOption = None,
    template: TemplateOption = None,
    values: ValuesOption = None,
    limit: int = typer.Option(1_000, help="At most so many."),
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Query the map now: who and what satisfies a filter, as far as your token may see it.

    The service's address and your token come from ROAMCAST_URL and ROAMCAST_TOKEN, or from what a
    service on this machine wrote into its data folder.
    """
    import sys

    import msgspec
    from rich.console import Console
    from rich.table import Table

    from roamcast.model.contexts import to_feature

    found = run(asking(data).who(wanted(where, template, values), limit=limit))
    if json:
        listed = {"type": "FeatureCollection", "features": [to_feature(one) for one in found]}
        typer.echo(msgspec.json.encode(listed).decode())
        return
    table = Table(*HEADS)
    for one in found:
        table.add_row(*cells(one))
    console = Console(width=None if sys.stdout.isatty() else 160, markup=False)
    console.print(table)
    console.print(f"{len(found):,} found", highlight=False)
