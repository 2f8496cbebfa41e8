"""`roamcast placement`: which nodes of the overlay match what passes, and what that spares."""

from pathlib import Path
from typing import Annotated, Any

import typer

from roamcast.commands._service import DataOption, JsonOption, asking, run
from roamcast.errors import InputError

MATCHING = ("active", "migrating", "spawning")
"""States of a filter in which its node matches."""


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("placement", rich_help_panel="The service")(placement)


def placement(
    draw: Annotated[
        Path | None, typer.Option(help="Draw the tree and its filters (.png, .svg, .pdf).")
    ] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """List which nodes filter, what each spares, when and why it moved, what one more brings."""
    import msgspec
    from rich.console import Console
    from rich.table import Table

    from roamcast.model.time import format_instant

    found = run(asking(data).placement())
    if json:
        typer.echo(msgspec.json.encode(found))
    plan = found["placement"]
    if plan is None:
        if draw is not None:
            raise InputError(f"{found['root']} plans the placement: ask that node")
        if not json:
            typer.echo(f"{found['node']} is {found['state']}; {found['root']} plans: ask that node")
        return
    if draw is not None:
        _draw(plan, draw)
    if json:
        return
    shown = Table("node", "below", "filter", "wanted", "spares", "since", "why")
    for row in plan["nodes"]:
        above = "" if row["node"] == row["parent"] else row["parent"]
        flow, saves = f"{row['flow']:g}", f"{row['saves']:g}"
        since = format_instant(row["changed_us"]).partition(".")[0] if row["changed_us"] else ""
        shown.add_row(row["node"], above, row["state"], flow, saves, since, row["why"])
    Console().print(shown)
    spared = plan["traffic"] - plan["one_more"]
    typer.echo(
        f"items on links in the last batch: {plan['traffic']:g} (best {plan['best']:g}, filters"
        f" everywhere {plan['everywhere']:g}, none {plan['nowhere']:g}); one filter more would"
        f" spare {max(0.0, spared):g}; last batch: {plan['reason']}"
    )


def _draw(plan: dict[str, Any], path: Path) -> None:
    import numpy as np

    from roamcast.lab._cbm_drawing import draw_tree
    from roamcast.placement.optimal import Placement
    from roamcast.placement.problem import traffic
    from roamcast.placement.tree import Tree

    rows = plan["nodes"]
    names = [row["node"] for row in rows]
    parents = [-1 if row["parent"] == row["node"] else names.index(row["parent"]) for row in rows]
    problem = traffic(Tree.of(parents), np.array([row["flow"] for row in rows]))
    matching = [number for number, row in enumerate(rows) if row["state"] in MATCHING]
    title = f"{len(matching)} filters: traffic {plan['traffic']:,g} of {plan['nowhere']:,g}"
    draw_tree(problem, Placement(tuple(matching), plan["traffic"]), path, title)
