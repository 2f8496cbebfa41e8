"""`roamcast who`: query the map now."""

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
    show,
    wanted,
)


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("who")(who)


def who(
    where: WhereOption = None,
    template: TemplateOption = None,
    values: ValuesOption = None,
    limit: int = typer.Option(1_000, help="Most contexts to print."),
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Query the map now: who and what satisfies a filter, as far as your token may see it.

    The address and the token come from ROAMCAST_URL and ROAMCAST_TOKEN, or from the file that a
    service on this machine writes into its data folder.
    """
    from roamcast.model.contexts import to_feature

    found = run(asking(data).who(wanted(where, template, values), limit=limit))
    show([to_feature(context) for context in found], HEADS, map(cells, found), json=json)
    if not json:
        typer.echo(f"{len(found):,} found")
