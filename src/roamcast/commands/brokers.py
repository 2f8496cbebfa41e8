"""`roamcast brokers`: the overlay as one node sees it, and the key that its neighbours need."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roamcast.commands._service import DataOption, JsonOption, asking, run

if TYPE_CHECKING:
    from rich.console import Console


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
    """List a node's neighbours, why one is not linked, all nodes, homes, and what waits."""
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
    _show_homes(console, found)
    held = {what: (size, bound) for what, (size, bound) in found["held"].items() if size}
    typer.echo("held: " + ("; ".join(_held(*one) for one in held.items()) or "nothing"))


def _show_homes(console: "Console", found: dict[str, Any]) -> None:
    """Show how loaded nodes are, whom this one is home to, and why they came."""
    from rich.table import Table

    if found["loads"]:
        loads = (f"{name} {load:.0%}" for name, load in found["loads"].items())
        typer.echo("loads: " + ", ".join(loads))
    homes = {one["client"]: one for one in found["homes"]}
    serves = {one["consumer"]: one for one in found["modulators"]}
    shown = Table("client", "modulators", "events", "passed", "weight", "why here")
    for name in sorted({*homes, *serves}):
        work = serves.get(name, {"modulators": [], "events": 0, "passed": 1.0, "state": ""})
        home = homes.get(name)
        shown.add_row(
            name[:12],
            ", ".join(work["modulators"]),
            str(work["events"]),
            f"{work['passed']:.0%}",
            "" if home is None else f"{home['weight']:.1%}",
            work["state"] if home is None else _why_here(home),
        )
    if shown.row_count:
        console.print(shown)


def _why_here(home: dict[str, Any]) -> str:
    from roamcast.model.time import format_instant

    words = [home["reason"]]
    if home["moved_from"]:
        words = [f"from {home['moved_from']}", home["moved_because"], home["moved_way"]]
    if home["target"]:
        words.append(f"goes to {home['target']}: {home['reason']}")
    since = format_instant(home["since_us"]).partition(".")[0]
    return f"{', '.join(filter(None, words))}, since {since}"


def _held(what: str, sizes: tuple[int, int]) -> str:
    size, bound = sizes
    full = f" ({100 * size // bound} % of its bound)" if bound and size > bound // 10 else ""
    return f"{what.partition(': ')[2]} {size:,}{full}"


def _show_key(data: Path | None) -> None:
    from roamcast.live.overlay.node import public_text

    typer.echo(public_text(data or Path("roamcast-data")))
