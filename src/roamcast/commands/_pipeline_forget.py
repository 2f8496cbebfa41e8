"""`roamcast pipeline forget`: erase people at the trusted node and in an archive, with a report."""

from pathlib import Path
from typing import Annotated

import typer

from roamcast.commands._progress import QuietOption, bar
from roamcast.commands._spark import OnOption, SparkOption, workers

TrustOption = Annotated[
    str, typer.Option(help="Address of the trusted node whose vids the archive has.")
]
TokenOption = Annotated[
    Path, typer.Option(help="File with a token of that node, of scope admin; for its owner only.")
]


def add(app: typer.Typer) -> None:
    """Add the command to the `pipeline` group."""
    app.command("forget")(forget)


def forget(
    archive: Annotated[str, typer.Option(help="The archive's folder or URI.")],
    trust: TrustOption,
    trust_token: TokenOption,
    person: Annotated[
        str | None,
        typer.Argument(help="Who is erased at the trusted node first; without: all who were."),
    ] = None,
    private: Annotated[
        Path | None, typer.Option(help="An ingest's private folder; default ARCHIVE.private.")
    ] = None,
    on: OnOption = "auto",
    spark: SparkOption = None,
    quiet: QuietOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Erase a person: at the trusted node at once, then their contexts in the archive.

    Without a name, erase the contexts of everybody who was erased at the trusted node, also by
    themselves, since the last time. Prints what was deleted where.
    """
    from contextlib import ExitStack

    import msgspec

    from roamcast.client.operating import TrustClient
    from roamcast.errors import RoamcastError
    from roamcast.pipeline.ingest.forgetting import forget_departed

    client = TrustClient(trust, trust_token)
    with ExitStack() as stack:
        shown = stack.enter_context(bar("forget", json=json, quiet=quiet))
        session = workers(stack, on, spark, shown)
        report = forget_departed(archive, client, person, private, spark=session, progress=shown)
    if json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        there = (
            "nobody was named"
            if report.person_entries is None
            else (f"the person is gone, with {report.person_entries:,} entries of the mailbox")
        )
        typer.echo(f"trusted node: {there}")
        typer.echo(f"private folder: {report.private_rows:,} rows deleted")
        erased = report.archive
        typer.echo(
            f"archive: {erased.rows_erased:,} contexts of {erased.vids:,} vids erased, "
            f"{erased.files_left:,} files left"
        )
    if report.archive.files_left:
        raise RoamcastError(
            f"{report.archive.files_left} files outside the archive still hold these vids: "
            "a writer is at work or crashed; run vacuum, then this again"
        )
