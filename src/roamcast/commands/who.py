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
    limit: int = typer.Option(1_000, help="At most so many."),
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Query the map now: who and what satisfies a filter, as far as your token may see it.

    The service's address and your token come from ROAMCAST_URL and ROAMCAST_TOKEN, or from what a
    service on this machine wrote into its data folder.
    """
    from roamcast.model.contexts import to_feature

    found = run(asking(data).who(wanted(where, template, values), limit=limit))
    show([to_feature(one) for one in found], HEADS, map(cells, found), json=json)
    if not json:
        typer.echo(f"{len(found):,} found")
