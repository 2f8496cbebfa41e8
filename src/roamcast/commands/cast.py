"""`roamcast cast`, `roamcast why`: write to everybody who was, is or will be somewhere."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from roamcast.client.casting import Casting, CastPreview, CastProgress

CastArgument = Annotated[str, typer.Argument(help="Id of the cast.")]


def register(root: typer.Typer) -> None:
    """Add the commands to the command line."""
    root.command("cast", rich_help_panel="The map")(cast)
    root.command("why", rich_help_panel="The map")(why)


def cast(
    text: Annotated[str, typer.Argument(help="What to say; - reads it from the input.")] = "",
    where: WhereOption = None,
    template: TemplateOption = None,
    values: ValuesOption = None,
    preview: Annotated[
        bool, typer.Option("--preview", help="Only say about how many it would reach.")
    ] = False,
    kind: Annotated[str, typer.Option(help="Kind, which people may refuse.")] = "text",
    priority: Annotated[
        str, typer.Option(help="routine, notice, warning or emergency.")
    ] = "routine",
    expires: Annotated[
        str | None, typer.Option(help="Last moment that counts, or a time from now such as 8h.")
    ] = None,
    cap: Annotated[
        Path | None,
        typer.Option(help="Send this alert (CAP 1.2, XML), to its own area or to --where."),
    ] = None,
    cancel: Annotated[str | None, typer.Option(help="Cancel this cast instead.")] = None,
    update: Annotated[
        str | None, typer.Option(help="Update this cast: write to those whom it has reached.")
    ] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Write to everybody who satisfies a filter: was there, is there, or will be.

    Nobody learns who they are. The token needs the scope cast and a granted place
    (roamcast token --cast-area); counts have noise, and small ones are not told.
    """
    from roamcast.errors import InputError

    casting = _casting(data)
    if cancel is not None:
        run(casting.cancel(cancel))
        _print({"cancelled": cancel}, f"cancelled {cancel}", json=json)
        return
    text = sys.stdin.read() if text == "-" else text
    if update is not None:
        name = run(casting.update(update, text, kind=kind))
        _print({"id": name}, f"updated {update} by {name}", json=json)
        return
    if cap is not None:
        _show_alert(casting, cap, where, json=json)
        return
    if where is None and template is None:
        raise InputError("a cast needs --where: a filter that names a place")
    filter_ = wanted(where, template, values)
    if preview:
        _show_preview(run(casting.preview(filter_, text or "?")), json=json)
        return
    sent = run(casting.cast(filter_, text, kind=kind, priority=priority, **_expiry(expires)))
    _show_sent(sent, json=json)


def _show_alert(casting: "Casting", path: Path, where: str | None, *, json: bool) -> None:
    from roamcast.errors import InputError

    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the alert: {error.strerror}", source=str(path)) from None
    sent = run(casting.send_alert(data, where or ""))
    if isinstance(sent, str):
        _print({"id": sent}, f"sent {sent} to those whom the alert before it reached", json=json)
    else:
        _show_sent(sent, json=json)


def why(
    cast: CastArgument,
    journal: Annotated[
        list[Path] | None,
        typer.Option(help="Journal of a node, also of a service that is down; may be repeated."),
    ] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Say why a cast reached whom it did: which node, filter, rule or limit decided.

    The service tells its sender. Operators read what each node did, step by step, from journals;
    those name nobody.
    """
    if journal:
        _show_steps(cast, journal, json=json)
        return
    told = run(_casting(data).why(cast))
    lines = [f"{told.id}: {told.filter}", *(f"  {line}" for line in told.lines)]
    _print(told, "\n".join(lines), json=json)


def _show_steps(cast: str, folders: list[Path], *, json: bool) -> None:
    """Print the steps of a cast at all nodes whose journals are given, in their order."""
    import msgspec

    from roamcast.errors import NotFoundError
    from roamcast.journal.segments import read_entries
    from roamcast.model.records import CastStep
    from roamcast.model.time import format_instant

    steps = [
        (time_us, node, record)
        for folder in folders
        for time_us, node, record in read_entries(folder)
        if isinstance(record, CastStep) and record.cast == cast
    ]
    steps.sort(key=lambda step: step[:2])
    if not steps:
        raise NotFoundError(f"no journal here tells of a cast {cast[:60]!r}")
    for time_us, node, record in steps:
        at = format_instant(time_us)
        if json:
            told = {"time": at, "node": node, **msgspec.structs.asdict(record)}
            typer.echo(msgspec.json.encode(told).decode())
            continue
        more = f" {record.number} pseudonyms" if record.number else ""
        peer = f" {record.peer}" if record.peer else ""
        typer.echo(f"{at}  {node}  {record.step}{peer}{more}")


def _casting(data: Path | None) -> "Casting":
    from roamcast.client.casting import Casting
    from roamcast.transport.address import find
    from roamcast.transport.http import HttpClient

    return Casting(HttpClient(find(data=data)))


def _expiry(expires: str | None) -> dict[str, Any]:
    from roamcast.commands.token import seconds_of

    if expires is None:
        return {}
    if expires[:-1].isdecimal():
        return {"lifetime_s": float(seconds_of("--expires", expires))}
    return {"expires": expires}


def _print(value: Any, text: str, *, json: bool) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(value).decode() if json else text)


def _show_sent(sent: "CastProgress", *, json: bool) -> None:
    lines = (
        f"sent {sent.id} ({sent.tense}); it expires at {sent.expires}\n"
        f"  roamcast why {sent.id}      says whom it reached and why\n"
        f"  roamcast cast --cancel {sent.id}   stops it"
    )
    _print(sent, lines, json=json)


def _show_preview(found: "CastPreview", *, json: bool) -> None:
    def about(count: int) -> str:
        return f"about {count}" if count else "too few to be told, perhaps nobody"

    lines = [f"{found.tense}; pseudonyms, of which a person may have several"]
    if found.tense in ("historic", "hybrid"):
        lines.append(f"  were there: {about(found.past.about)}")
    if found.tense == "present":
        lines.append(f"  are there: {about(found.present.about)}")
    if found.future is not None:
        lines.append(f"  may come, by who is there now: {about(found.future)}")
    places = (*found.past.places, *found.present.places)
    lines += [f"    {one.place}: about {one.about}" for one in places]
    _print(found, "\n".join(lines), json=json)
