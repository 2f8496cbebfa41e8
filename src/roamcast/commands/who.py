"""`roamcast who`: query the map now, or as it was."""

import re

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
    tell_node,
    wanted,
    with_node,
)


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("who", rich_help_panel="The map")(who)


def who(
    where: WhereOption = None,
    template: TemplateOption = None,
    values: ValuesOption = None,
    at: str = typer.Option(
        "", help="A moment such as 2026-11-10T15:00Z, or start/end with .. for an open end."
    ),
    limit: int = typer.Option(1_000, help="Maximum number of contexts to print."),
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Query the map now: who and what satisfies a filter, as far as your token may see it.

    With --at, the map as it was at a moment or during a time: the last context of each then.

    The address and the token come from ROAMCAST_URL and ROAMCAST_TOKEN, or from the file that a
    service on this machine writes into its data folder. Of linked brokers one is asked.
    """
    from roamcast.model.contexts import to_feature

    at = re.sub(r"(T\d\d:\d\d)(?=[Zz+-])", r"\1:00", at)  # seconds may be left out
    asked, given = asking(data), wanted(where, template, values)
    found, node = run(with_node(asked, asked.who(given, limit=limit, at=at)))
    show([to_feature(context) for context in found], HEADS, map(cells, found), json=json)
    if not json:
        typer.echo(f"{len(found):,} found")
    tell_node(node, "the past" if at else "the map")
