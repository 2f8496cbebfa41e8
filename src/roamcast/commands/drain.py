"""`roamcast drain`, `undrain` and `where`: take a node out without losing an event."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roamcast.commands._service import DataOption, JsonOption, asking, run

if TYPE_CHECKING:
    from roamcast.client.asking import Asking

LOOK_S = 0.2

NodeArgument = Annotated[str, typer.Argument(help="Name of a node of the overlay.")]


def register(root: typer.Typer) -> None:
    """Add the commands to the command line."""
    root.command("drain", rich_help_panel="The service")(drain)
    root.command("undrain", rich_help_panel="The service")(undrain)
    root.command("where", rich_help_panel="The service")(where)


def drain(
    node: NodeArgument,
    to: Annotated[
        list[str] | None, typer.Option(help="Node that everybody goes to; repeat for several.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Sessions a second.")] = 100.0,
    patience: Annotated[float, typer.Option(help="Seconds to wait for everybody.")] = 60.0,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Refuse newcomers, hand everybody over, wait for receipts, and say what moved."""
    asked = _node(data, node)
    run(asked.drain(to or (), rate))
    end = time.monotonic() + patience
    while True:
        found = run(asked.drained())
        over = not found["consumers"] and not found["sessions"]
        if over or time.monotonic() > end:
            break
        time.sleep(LOOK_S)
    _say(found, json)
    if not over:
        typer.echo(f"{found['sessions']} sessions did not go: they read no `moved`", err=True)
        raise typer.Exit(1)
    if found["lost"]:
        raise typer.Exit(1)


def undrain(node: NodeArgument, data: DataOption = None, json: JsonOption = False) -> None:
    """Let a node take newcomers again."""
    _say(run(_node(data, node).undrain()), json)


def where(
    client: Annotated[str, typer.Argument(help="`subject` or `subject#device`.")],
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Say which nodes serve a client."""
    import msgspec

    from roamcast.errors import NotFoundError, UnreachableError

    found = []
    for node in run(asking(data).overlay())["nodes"]:
        try:
            asked = run(_at(data, node["url"]).where(client)) if node["url"] else {"devices": ()}
        except UnreachableError as error:  # it is taken out, perhaps: others know still
            typer.echo(f"{node['node']} does not answer: {error}", err=True)
            continue
        if asked["devices"]:
            found.append(asked)
    if json:
        typer.echo(msgspec.json.encode(found))
        return
    if not found:
        raise NotFoundError(f"no node serves {client!r}")
    for one in found:
        typer.echo(f"{one['node']}: {', '.join(one['devices'])}, {one['subscriptions']} of events")


def _node(data: Path | None, name: str) -> "Asking":
    """Ask a node by its name: the one in --data, or another whose address that one knows."""
    from roamcast.errors import NotFoundError

    first = asking(data)
    seen = run(first.overlay())
    if seen["node"] == name:
        return first
    urls = [one["url"] for one in seen["nodes"] if one["node"] == name and one["url"]]
    if not urls:
        raise NotFoundError(f"no node {name!r} is known, or it says not where it is reached")
    return _at(data, urls[0])


def _at(data: Path | None, url: str) -> "Asking":
    """Ask another node with the same token: it holds at all nodes that have the same keys."""
    from roamcast.client.asking import Asking
    from roamcast.transport.address import ServiceAddress, find
    from roamcast.transport.http import HttpClient

    return Asking(HttpClient(ServiceAddress(url, find(data=data).token)))


def _say(found: dict[str, Any], json: bool) -> None:
    import msgspec

    if json:
        typer.echo(msgspec.json.encode(found))
    else:
        streams = f", streams ended {found['streams']}" if found.get("streams") else ""
        typer.echo(f"moved {found['moved']}, lost {found['lost']}{streams}")
