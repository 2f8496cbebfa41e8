"""`roamcast watch`: follow a standing query, as a live table or as JSON lines."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roamcast.commands._service import (
    DataOption,
    JsonOption,
    TemplateOption,
    ValuesOption,
    WhereOption,
    run,
    wanted,
)

if TYPE_CHECKING:
    from roamcast.client import Change
    from roamcast.model.filters import Filter


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("watch", rich_help_panel="The map")(watch)


def watch(
    where: WhereOption = None,
    template: TemplateOption = None,
    values: ValuesOption = None,
    changes: Annotated[
        int, typer.Option(help="Stop after this many changes; 0: never.", min=0)
    ] = 0,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Follow a standing query until Ctrl-C: the current set, then everything that changes.

    On a terminal a table shows the current set. Otherwise, or with --json, every change is one line
    of JSON: `kind` (appeared, changed, left, or current when the current set is complete), `vid`,
    and `context` as a GeoJSON Feature.
    """
    import sys

    query = wanted(where, template, values)
    try:
        if json or not sys.stdout.isatty():
            run(_lines(query, data, changes))
        else:
            from roamcast.commands._watch_table import show

            run(show(query, data, changes))
    except KeyboardInterrupt:
        return  # the usual way to stop


async def _lines(query: "Filter", data: Path | None, most: int) -> None:
    import sys

    from roamcast.client import connect

    printed = 0
    async with connect(data=data) as me, me.watch(query) as view:
        async for change in view:
            sys.stdout.write(line(change) + "\n")
            sys.stdout.flush()
            printed += 1
            if printed == most:
                return


def line(change: "Change") -> str:
    """Give a change as a line of JSON."""
    import msgspec

    from roamcast.model.contexts import to_feature

    fields: dict[str, object] = {"kind": change.kind}
    if change.context is None:
        fields |= {"count": change.count, "complete": change.complete}
    else:
        fields |= {"vid": change.vid, "context": to_feature(change.context)}
    return msgspec.json.encode(fields).decode()
