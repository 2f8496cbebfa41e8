"""`roamcast pipeline keys`: the epochs of the trusted node's keys, rotated and destroyed."""

from pathlib import Path
from typing import Annotated

import typer


def add(app: typer.Typer) -> None:
    """Add the command to the `pipeline` group."""
    app.command("keys")(keys)


def keys(
    archive: Annotated[str, typer.Option(help="The archive's folder.")],
    private: Annotated[Path | None, typer.Option(help="Default ARCHIVE.private.")] = None,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Seal with a fresh key from now on.")
    ] = False,
    destroy: Annotated[
        int | None,
        typer.Option(help="Destroy an old epoch's key, so that its vids cannot be resolved."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the epochs of the trusted node's key; begin a new one, or destroy an old one's key."""
    from secrets import token_bytes

    import msgspec

    from roamcast.commands._pipeline_ingest import opened_private
    from roamcast.pipeline.ingest import trusted

    with opened_private(archive, private) as state:
        found = trusted.epochs_of(state.keys)
        if rotate:
            found = trusted.rotate(state, token_bytes)
        if destroy is not None:
            found = trusted.destroy(state, destroy)
    if json:
        typer.echo(msgspec.json.encode(found))
        return
    typer.echo(f"{found.node}: epoch {found.current} seals")
    typer.echo(f"can be opened: {_numbers(found.open)}; destroyed: {_numbers(found.destroyed)}")


def _numbers(epochs: tuple[int, ...]) -> str:
    return ", ".join(map(str, epochs)) or "none"
