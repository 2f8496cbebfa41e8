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
    every: Annotated[
        bool, typer.Option("--every", help="Every event that it matches, as lines of JSON.")
    ] = False,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Follow a standing query until Ctrl-C: the current set, then everything that changes.

    On a terminal a table shows the current set. Otherwise, or with --json, every change is one line
    of JSON: `kind` (appeared, changed, left, or current when the current set is complete), `vid`,
    and `context` as a GeoJSON Feature. With --every the lines are events, each once and in order:
    `kind` (event, or lost where a log was too short), `context`, `data` in base64, and `origin`.
    """
    import sys

    query = wanted(where, template, values)
    try:
        if every:
            run(_events(query, data, changes))
        elif json or not sys.stdout.isatty():
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


async def _events(query: "Filter", data: Path | None, most: int) -> None:
    import sys

    import msgspec

    from roamcast.client import connect
    from roamcast.model.contexts import to_feature

    printed = 0
    async with connect(data=data) as me:
        stream = await me.subscribe(query)
        async for event in stream:
            while stream.gaps:  # they were told before it
                lost = {"kind": "lost", **msgspec.to_builtins(stream.gaps.popleft())}
                sys.stdout.write(msgspec.json.encode(lost).decode() + "\n")
            fields = {
                "kind": "event",
                "context": to_feature(event.context),
                "data": event.data,
                "origin": event.origin,
                "producer": event.producer,
                "number": event.number,
            }
            sys.stdout.write(msgspec.json.encode(fields).decode() + "\n")
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
