"""`roamcast pipeline metrics` and `plan`: journals in, numbers and plans out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roamcast.commands._progress import QuietOption, bar

if TYPE_CHECKING:
    import pyarrow as pa

JournalArgument = Annotated[
    list[Path], typer.Argument(metavar="JOURNAL…", help="Folders of journal segments, or segments.")
]
SparkOption = Annotated[str | None, typer.Option(help="Spark master; default local[*].")]


TRANSITIONS = "transitions"


def add(app: typer.Typer) -> None:
    """Add the commands to the `pipeline` group."""
    app.command("metrics")(metrics)
    app.command("plan")(plan)


def metrics(
    journals: JournalArgument,
    by_host: Annotated[
        bool, typer.Option("--by-host", help="Print each host's numbers, too.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the table: .parquet, .csv or .jsonl.")
    ] = None,
    spark: SparkOption = None,
    quiet: QuietOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a row.")] = False,
) -> None:
    """Print what journals say in numbers, run by run: updates, transmissions, bytes, delays."""
    from roamcast.errors import InputError
    from roamcast.pipeline import metrics as job
    from roamcast.pipeline.journals.read import FAILED, read_journals, segments
    from roamcast.pipeline.spark.errors import collected
    from roamcast.pipeline.spark.session import Settings, started

    if out is not None and out.suffix not in _WRITERS:
        raise InputError(f"--out ends in one of {', '.join(_WRITERS)}", source=str(out))
    found = segments(journals)
    with (
        bar("metrics", json=json, quiet=quiet) as shown,
        started(Settings(master=spark, name="roamcast metrics")) as session,
        shown.watch(session),
    ):
        table = collected(job.metrics(read_journals(session, found), by_host=by_host), FAILED)
    order = ("run", "host", "measure", "about")
    table = table.sort_by([(name, "ascending") for name in order])
    if out is not None:
        _WRITERS[out.suffix](table, out)
    if json:
        _lines(table)
    elif out is None:
        _print(table)


def plan(
    journals: Annotated[
        list[Path],
        typer.Argument(
            metavar="[transitions] JOURNAL…",
            help="Folders of journal segments, or segments; for transitions archives, too.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="The folder for the plan's files; for transitions the file.")
    ],
    tree: Annotated[
        Path | None,
        typer.Option(
            help='{"parent": […], "hosts": {NAME: VERTEX}}; default: root, brokers, clients.'
        ),
    ] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="Of transitions, fewer are left out.")] = 5,
    spark: SparkOption = None,
    quiet: QuietOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan channels, q and m, flows for filter placement and demand for home brokers.

    `plan transitions` counts from which place people go on to which instead: with that file
    brokers prepare only where people are likely to come (docs/flows.md).
    """
    import msgspec

    if str(journals[0]) == TRANSITIONS:
        _plan_transitions(journals[1:], out, k, spark, quiet=quiet, json=json)
        return

    from roamcast.pipeline.journals.plan_files import make_plan
    from roamcast.pipeline.journals.read import segments
    from roamcast.pipeline.spark.session import Settings, started

    found = segments(journals)
    with (
        bar("plan", json=json, quiet=quiet) as shown,
        started(Settings(master=spark, name="roamcast plan")) as session,
        shown.watch(session),
    ):
        made = make_plan(session, found, out, tree)
    if json:
        typer.echo(msgspec.json.encode(made))
        return
    for row in made.brokers:
        sent = row["transmissions"] + row["announcements"]
        typer.echo(
            f"{row['run']} {row['host']}: q = {row['subscribers_min']}, m = {row['history_max']}, "
            f"{sent:,} transmissions, {row['channels_max']:,} channels at most"
        )
    typer.echo(
        f"{made.channels:,} queries and sets, {made.vertices:,} vertices, "
        f"{made.clients:,} clients: {made.folder}"
    )


def _plan_transitions(
    sources: list[Path], out: Path, k: int, master: str | None, *, quiet: bool, json: bool
) -> None:
    import msgspec

    from roamcast.errors import InputError
    from roamcast.files import write_whole
    from roamcast.pipeline.spark.session import Settings, started
    from roamcast.pipeline.transitions import transitions

    absent = [source for source in sources if not source.exists()]
    if absent or not sources:
        named = f"{absent[0]} is not there" if absent else "none was given"
        raise InputError(f"transitions need archives or journals: {named}")
    with (
        bar("transitions", json=json, quiet=quiet) as shown,
        started(Settings(master=master, name="roamcast transitions")) as session,
        shown.watch(session),
    ):
        found = transitions(session, sources, k=k)
    write_whole(out, msgspec.json.encode(found))
    pairs = sum(map(len, found.counts.values()))
    if json:
        typer.echo(msgspec.json.encode({"places": len(found.counts), "pairs": pairs, "k": k}))
    else:
        typer.echo(f"{len(found.counts):,} places, {pairs:,} pairs of at least {k}: {out}")


def _lines(table: "pa.Table", out: Path | None = None) -> None:
    import msgspec

    lines = [msgspec.json.encode(row) for row in table.to_pylist()]
    if out is None:
        for line in lines:
            typer.echo(line)
    else:
        out.write_bytes(b"".join(line + b"\n" for line in lines))


def _parquet(table: "pa.Table", out: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, out)


def _csv(table: "pa.Table", out: Path) -> None:
    from pyarrow import csv

    csv.write_csv(table, out)


_WRITERS: dict[str, Any] = {".parquet": _parquet, ".csv": _csv, ".jsonl": _lines}


def _print(table: "pa.Table") -> None:
    run = None
    for row in table.to_pylist():
        if (row["run"], row["host"]) != run:
            run = (row["run"], row["host"])
            typer.echo(" ".join(part for part in run if part))
        named = f"{row['measure']}: {row['about']}" if row["about"] else row["measure"]
        value = f"{row['value']:,.0f}" if row["value"].is_integer() else f"{row['value']:,.4g}"
        typer.echo(f"  {named:<60} {value:>16}")
