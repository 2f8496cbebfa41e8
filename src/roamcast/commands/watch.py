"""`roamcast watch`: follow a standing query, as a table that lives or as JSON lines."""

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
    root.command("watch")(watch)


def watch(
    where: WhereOption = None,
    template: TemplateOption = None,
    values: ValuesOption = None,
    changes: Annotated[int, typer.Option(help="End after so many changes; 0: never.", min=0)] = 0,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Follow a standing query until Ctrl-C: the current set, then everything that changes.

    On a terminal a table shows what is there now. Otherwise, or with --json, every change is one
    line of JSON: `kind` (appeared, changed, left, or current when the current set has been told),
    `vid`, and `context` as a GeoJSON Feature.
    """
    import sys

    asked = wanted(where, template, values)
    try:
        if json or not sys.stdout.isatty():
            run(_lines(asked, data, changes))
        else:
            from roamcast.commands._watch_table import show

            run(show(asked, data, changes))
    except KeyboardInterrupt:
        return  # which is how one ends it


async def _lines(asked: "Filter", data: Path | None, most: int) -> None:
    import sys

    from roamcast.client import connect

    told = 0
    async with connect(data=data) as me, me.watch(asked) as view:
        async for change in view:
            sys.stdout.write(line(change) + "\n")
            sys.stdout.flush()
            told += 1
            if told == most:
                return


def line(change: "Change") -> str:
    """Give a change as a line of JSON."""
    import msgspec

    from roamcast.model.contexts import to_feature

    said: dict[str, object] = {"kind": change.kind}
    if change.context is None:
        said |= {"count": change.count, "complete": change.complete}
    else:
        said |= {"vid": change.vid, "context": to_feature(change.context)}
    return msgspec.json.encode(said).decode()
