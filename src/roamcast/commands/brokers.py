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
    """List a node's neighbours, why one is not linked, all nodes, and what waits."""
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
    console = Console()
    typer.echo(f"node {found['node']}, epoch {found['epoch']}, key {found['key']}")
    shown = Table("neighbour", "state", "by", "tree", "epoch", "clock", "waiting", "why not")
    for link in found["links"]:
        up = link["state"] == "up"
        shown.add_row(
            link["node"],
            link["state"],
            "search" if link["found"] else "settings",
            "yes" if link["node"] in found["tree"] else "",
            str(link["epoch"] or ""),
            f"{link['offset_us'] / 1e6:+.1f} s" if up else "",
            str(link["waiting"]),
            "" if up else link["reason"],
        )
    console.print(shown)
    known = Table("node", "serves", "linked with", "reached at")
    entries = {node["node"]: node for node in found["nodes"]}
    for name in sorted({*entries, *found["graph"]}):
        node = entries.get(name, {"places": [], "polygons": [], "url": ""})
        areas = [*node["places"], *node["polygons"]]
        serves = ", ".join(areas) or ("every place" if name in entries else "")
        known.add_row(name, serves, ", ".join(found["graph"].get(name, ())), node["url"])
    console.print(known)
    held = {what: (size, bound) for what, (size, bound) in found["held"].items() if size}
    typer.echo("held: " + ("; ".join(_held(*one) for one in held.items()) or "nothing"))


def _held(what: str, sizes: tuple[int, int]) -> str:
    size, bound = sizes
    full = f" ({100 * size // bound} % of its bound)" if bound and size > bound // 10 else ""
    return f"{what.partition(': ')[2]} {size:,}{full}"


def _show_key(data: Path | None) -> None:
    from roamcast.live.overlay.node import public_text

    typer.echo(public_text(data or Path("roamcast-data")))
