"""`roamcast brokers`: the overlay as one node sees it, and the key that its neighbours need."""

from pathlib import Path
from typing import Annotated

import typer

from roamcast.commands._service import DataOption, JsonOption, asking, run


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("brokers", rich_help_panel="The service")(brokers)


def brokers(
    key: Annotated[
        bool, typer.Option("--key", help="Print the public key of the node in --data; make one.")
    ] = False,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """List a node's neighbours: whether they are linked, and why not; and all nodes it knows."""
    if key:
        _show_key(data)
        return
    import msgspec
    from rich.console import Console
    from rich.table import Table

    found = run(asking(data).overlay())
    if json:
        typer.echo(msgspec.json.encode(found))
        return
    shown = Table("neighbour", "state", "its links", "clock", "waiting", "why not")
    for link in found["links"]:
        up = link["state"] == "up"
        shown.add_row(
            link["node"],
            link["state"],
            ", ".join(found["graph"].get(link["node"], ())),
            f"{link['offset_us'] / 1e6:+.1f} s" if up else "",
            str(link["waiting"]),
            "" if up else link["reason"],
        )
    Console().print(shown)
    known = Table("node", "serves", "reached at")
    for node in found["nodes"]:
        known.add_row(node["node"], ", ".join(node["places"]) or "every place", node["url"])
    Console().print(known)
    others = sorted({*found["graph"]} - {link["node"] for link in found["links"]})
    beyond = [name for name in others if name != found["node"]]
    typer.echo(f"{found['node']} {found['key']}; beyond: {', '.join(beyond) or 'nobody'}")


def _show_key(data: Path | None) -> None:
    from roamcast.live.overlay.node import public_text

    typer.echo(public_text(data or Path("roamcast-data")))
