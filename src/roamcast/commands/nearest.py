"""`roamcast nearest`: query the map by distance."""

from typing import Annotated

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
    root.command("nearest", rich_help_panel="The map")(nearest)


def nearest(
    to: Annotated[str, typer.Option(help="LON,LAT in degrees, such as 13.4,52.5.")],
    where: WhereOption = None,
    template: TemplateOption = None,
    values: ValuesOption = None,
    count: Annotated[int, typer.Option(help="Maximum number of contexts to print.")] = 1,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Find the contexts nearest to a point that satisfy a filter, nearest first."""
    from roamcast.model.contexts import to_feature

    asked, given = asking(data), wanted(where, template, values)
    found, node = run(with_node(asked, asked.nearest(_point(to), given, count=count)))
    features = [to_feature(near.context) for near in found]
    for feature, near in zip(features, found, strict=True):
        feature["properties"]["distance_m"] = near.metres
    rows = [[f"{near.metres:,.1f}", *cells(near.context)] for near in found]
    show(features, ["metres", *HEADS], rows, json=json)
    tell_node(node, "the map")


def _point(text: str) -> tuple[float, float]:
    from roamcast.errors import InputError

    try:
        longitude, latitude = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--to takes LON,LAT such as 13.4,52.5, not {text[:60]!r}") from None
    if not (-180 <= longitude <= 180 and -90 <= latitude <= 90):
        raise InputError("--to lies outside the earth: LON within ±180, LAT within ±90")
    return longitude, latitude
