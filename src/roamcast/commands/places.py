"""`roamcast places import`: a published indoor map as a file of places."""

import zipfile
from pathlib import Path
from typing import Annotated

import typer

BYTES_MAX = 256 << 20
"""Of one file in an archive, unpacked: a zip of zeros shall not fill the memory."""


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    group = typer.Typer(no_args_is_help=True, help="Files of places.")
    group.command("import")(import_imdf)
    root.add_typer(group, name="places", rich_help_panel="Files and archives")


def import_imdf(
    archive: Annotated[Path, typer.Argument(help="An IMDF archive: a zip, or its folder.")],
    out: Annotated[Path, typer.Option(help="File of places to write.")],
    json: Annotated[bool, typer.Option("--json", help="Print what was read as JSON.")] = False,
) -> None:
    """Read an IMDF venue, and write its places for `[server] places` (docs/places.md)."""
    from collections import Counter

    import msgspec

    from roamcast import files
    from roamcast.errors import InputError
    from roamcast.model.imdf import from_imdf
    from roamcast.model.places_geojson import write_places

    try:
        texts = _texts(archive)
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"the archive can not be read: {error}", source=str(archive)) from None
    try:
        places = from_imdf(texts)
    except InputError as error:
        raise error.located(str(archive)) from None
    files.write_whole(out, write_places(places))
    kinds = Counter(places[path].kind for path in places.paths)
    if json:
        found = {"places": len(places), "kinds": dict(sorted(kinds.items())), "file": str(out)}
        typer.echo(msgspec.json.encode(found))
        return
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    typer.echo(f"{len(places)} places ({listed}) are in {out}")


def _texts(archive: Path) -> dict[str, bytes]:
    """Read the GeoJSON files of a zip or a folder, by their names."""
    from roamcast.errors import LimitError

    if archive.is_dir():
        sizes = {path: path.stat().st_size for path in archive.glob("*.geojson")}
        if any(size > BYTES_MAX for size in sizes.values()):
            raise LimitError(f"a file of the archive has more than {BYTES_MAX} bytes")
        return {path.name: path.read_bytes() for path in sizes}
    found: dict[str, bytes] = {}
    with zipfile.ZipFile(archive) as packed:
        for entry in packed.infolist():
            name = entry.filename.rpartition("/")[2]
            if not name.endswith(".geojson") or name.startswith("."):
                continue
            with packed.open(entry) as file:
                text = file.read(BYTES_MAX + 1)
            if len(text) > BYTES_MAX:
                raise LimitError(f"{name} has more than {BYTES_MAX} bytes")
            found[name] = text
    return found
