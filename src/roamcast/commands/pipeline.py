"""`roamcast pipeline`: contexts into the archive, questions out of it, and its upkeep."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roamcast.commands._pipeline_ingest import CrowdOption, GridOption
from roamcast.commands._progress import QuietOption, bar
from roamcast.commands._spark import OnOption, SparkOption, check_on, later, workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from roamcast.pipeline.archive.layout import ArchiveSettings

app = typer.Typer(no_args_is_help=True, help="Run the data pipeline; large jobs run on Spark.")

ArchiveOption = Annotated[str, typer.Option("--archive", help="The archive's folder or URI.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback()
def _options(
    conf: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of Spark for the command that follows: spark.ui.enabled=true."
        ),
    ] = None,
) -> None:
    """Run the data pipeline; large jobs run on Spark."""
    import os

    from roamcast.pipeline.spark.session import CONF_VARIABLE, given_options

    if conf:
        os.environ[CONF_VARIABLE] = "\n".join(conf)
    given_options()  # a wrong one is told before anything else


def register(root: typer.Typer) -> None:
    """Add the group, with the commands that other modules give it."""
    package = "roamcast.commands"
    for name in (
        "_pipeline_forget",
        "_pipeline_ingest",
        "_pipeline_keys",
        "_pipeline_metrics",
        "_pipeline_questions",
        "_pipeline_sweep",
    ):
        importlib.import_module(f"{package}.{name}").add(app)
    root.add_typer(app, name="pipeline", rich_help_panel="Files and archives")


@app.command("load")
def load_contexts(
    contexts: Annotated[
        Path,
        typer.Argument(help="CONTEXTS.jsonl, a GeoJSON Feature a line; or a folder of journals."),
    ],
    archive: ArchiveOption,
    resolution: Annotated[
        int | None, typer.Option(help="H3 resolution of a new archive's cells (default 4).")
    ] = None,
    grid_s: GridOption = None,
    crowd_min: CrowdOption = 0,
    batch: Annotated[
        str | None, typer.Option(help="NAME:NUMBER; a batch that landed before is not repeated.")
    ] = None,
    finish: Annotated[
        bool,
        typer.Option("--finish", help="For journals that have ended: load open contexts as well."),
    ] = False,
    on: OnOption = "auto",
    spark: SparkOption = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Append ready-made contexts, vids kept: all of the file, or nothing; of journals, the new."""
    from contextlib import ExitStack

    from roamcast.errors import InputError
    from roamcast.pipeline.archive.retention import thicken
    from roamcast.pipeline.archive.table import settings_for
    from roamcast.pipeline.load import HERE_BYTES, load

    check_on(on)
    settings = settings_for(archive, resolution=resolution, grid_s=grid_s)
    with ExitStack() as stack:
        shown = stack.enter_context(bar("load", json=json, quiet=quiet))
        if contexts.is_dir():
            if batch is not None:
                raise InputError("journals count their own batches: leave --batch out")
            if on == "driver":
                raise InputError("journals are read by Spark: leave --on driver out")
            start = later(stack, spark, shown)
            _load_journals(start, contexts, archive, settings, finish=finish, json=json)
            if crowd_min:
                thicken(archive, crowd_min, progress=shown)
            return
        if finish:
            raise InputError("--finish is for journals: give their folder", source=str(contexts))
        done = load(
            contexts,
            archive,
            settings=settings,
            transaction=_transaction(batch),
            spark=None if on == "driver" else later(stack, spark, shown),
            here_bytes=-1 if on == "spark" else HERE_BYTES,
            progress=shown,
        )
        if crowd_min:
            thicken(archive, crowd_min, progress=shown)
    told = f"{done.rows:,} contexts in {done.files:,} files"
    _tell(done, told if done.committed else "this batch was loaded before", json=json)


def _load_journals(
    spark: "Callable[[], SparkSession]",
    folder: Path,
    archive: str,
    settings: "ArchiveSettings | None",
    *,
    finish: bool,
    json: bool,
) -> None:
    from roamcast.pipeline.journals.load import load_journals
    from roamcast.pipeline.journals.read import segments

    segments([folder])  # what is no journal is told before Spark starts
    done = load_journals(spark(), [folder], archive, finish=finish, settings=settings)
    lines = [
        f"{one.journal}: {one.rows:,} contexts, {one.lasting:,} still last"
        + (f", {one.left_out:,} attribute names without room left out" if one.left_out else "")
        if one.committed
        else f"{one.journal}: nothing new"
        for one in done
    ]
    _tell(done, "\n".join(lines), json=json)


@app.command("lookup")
def lookup_messages(
    messages: Annotated[str, typer.Argument(help='Lines of {"id": …, "filter": CQL2}.')],
    archive: ArchiveOption,
    by_node: Annotated[
        bool, typer.Option(help="A line for each trusted node: the part of a vid after @.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            help="MESSAGES is a folder, or nats://host:port/STREAM: answer what comes, into --out."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A new folder of Parquet, columns id and vid; with --watch, for lines of answers."
        ),
    ] = None,
    once: Annotated[bool, typer.Option(help="With --watch: stop when all is answered.")] = False,
    password_file: Annotated[
        str,
        typer.Option(
            help="File with the password of the user in nats://user@…; workers read it, too."
        ),
    ] = "",
    on: OnOption = "auto",
    spark: SparkOption = None,
    quiet: QuietOption = False,
    json: Annotated[bool, typer.Option("--json", help="JSON lines, as always.")] = False,
) -> None:
    """Print whom each historic message reaches: {"id": …, "vids": […]} a line, vids sorted."""
    from contextlib import ExitStack

    from roamcast.errors import InputError

    check_on(on)
    with ExitStack() as stack:
        if watch:
            if out is None:
                raise InputError("--watch needs --out: the folder that answers go to")
            _watch(later(stack, spark), messages, password_file, archive, out, once=once)
            return
        if messages.startswith(("nats://", "tls://")):
            raise InputError("a stream is answered by --watch, or --watch --once", source=messages)
        shown = stack.enter_context(bar("lookup", json=json, quiet=quiet))
        from roamcast.matching.files import read_filters
        from roamcast.pipeline.lookup.run import Lookup, write_answers

        asked = dict(read_filters(Path(messages)))
        if out is not None:
            from roamcast.pipeline.lookup.tables import write_pairs

            start = None if on == "driver" else later(stack, spark, shown)
            count = write_pairs(start, archive, asked, out)
            typer.echo(f"{count:,} pairs of message and vid in {out}")
            return
        session = None if on == "driver" else later(stack, spark, shown)
        rows = 0 if on == "spark" else None
        found = Lookup(archive, session, driver_rows=rows, progress=shown).ask(asked)
    write_answers(found, by_node=by_node)


def _watch(
    spark: "Callable[[], SparkSession]",
    messages: str,
    password_file: str,
    archive: str,
    out: Path,
    *,
    once: bool,
) -> None:
    from roamcast.pipeline.lookup.nats import SCHEMES, parse_address
    from roamcast.pipeline.lookup.stream import answer_folder, answer_stream

    if messages.startswith(SCHEMES):
        address = parse_address(messages, password_file)
        answer_stream(spark(), address, archive, out, once=once)
    else:
        answer_folder(spark(), Path(messages), archive, out, once=once)


@app.command("compact")
def compact_archive(
    archive: ArchiveOption,
    on: OnOption = "auto",
    spark: SparkOption = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Join small files into sorted ones; lookups go on meanwhile."""
    from contextlib import ExitStack

    from roamcast.pipeline.archive.care import compact

    with ExitStack() as stack:
        shown = stack.enter_context(bar("compact", json=json, quiet=quiet))
        done = compact(archive, workers(stack, on, spark, shown), shown)
    _tell(done, f"{done.files_replaced:,} files became {done.files_written:,}", json=json)


@app.command("vacuum")
def vacuum_archive(
    archive: ArchiveOption,
    hours: Annotated[
        int, typer.Option(help="Keep files that were replaced within this many hours.")
    ] = 24,
    dry_run: Annotated[bool, typer.Option(help="Only list the files.")] = False,
    on: OnOption = "auto",
    spark: SparkOption = None,
    json: JsonOption = False,
) -> None:
    """Delete files that are no longer part of the archive."""
    from contextlib import ExitStack

    from roamcast.pipeline.archive.care import vacuum

    with ExitStack() as stack:
        # it reads no contexts: `auto` does it here
        there = later(stack, spark)() if check_on(on) == "spark" else None
        found = vacuum(archive, hours=hours, dry_run=dry_run, spark=there)
    told = f"{len(found):,} files {'to delete' if dry_run else 'deleted'}"
    _tell({"files": found, "deleted": not dry_run}, told, json=json)


@app.command("retain")
def retain_archive(
    archive: ArchiveOption,
    reduce_days: Annotated[
        int | None, typer.Option(help="Reduce contexts that ended more than this many days ago.")
    ] = None,
    drop_days: Annotated[
        int | None, typer.Option(help="Drop contexts that ended more than this many days ago.")
    ] = None,
    now: Annotated[str | None, typer.Option(help="Count from this RFC 3339 moment.")] = None,
    on: OnOption = "auto",
    spark: SparkOption = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Reduce old contexts to place and time, and drop older ones."""
    import time
    from contextlib import ExitStack

    from roamcast.errors import InputError
    from roamcast.model.time import MICROSECONDS, parse_instant
    from roamcast.pipeline.archive.retention import retain

    if reduce_days is None and drop_days is None:
        raise InputError("give --reduce-days, --drop-days or both")
    today = parse_instant(now) if now else time.time_ns() // 1_000
    before = [
        None if days is None else today - days * 86_400 * MICROSECONDS
        for days in (reduce_days, drop_days)
    ]
    with ExitStack() as stack:
        shown = stack.enter_context(bar("retain", json=json, quiet=quiet))
        done = retain(
            archive,
            reduce_before=before[0],
            drop_before=before[1],
            spark=workers(stack, on, spark, shown),
            progress=shown,
        )
    _tell(done, f"{done.rows_dropped:,} dropped, {done.files_replaced:,} files changed", json=json)


@app.command("blur")
def blur_archive(
    archive: ArchiveOption,
    grid_s: Annotated[int, typer.Option(min=1, help="The new step in seconds.")] = 900,
    crowd_min: Annotated[
        int, typer.Option(min=0, help="Coarsen places and points that fewer contexts share.")
    ] = 0,
    on: OnOption = "auto",
    spark: SparkOption = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Round the times of an archive to a coarser grid, so that they link no two vids."""
    from contextlib import ExitStack

    from roamcast.pipeline.archive.retention import blur

    with ExitStack() as stack:
        shown = stack.enter_context(bar("blur", json=json, quiet=quiet))
        found = workers(stack, on, spark, shown)
        done = blur(archive, grid_s, found, shown, crowd_min=crowd_min)
    _tell(done, f"{done.rows:,} contexts rounded, {done.files_deleted:,} files deleted", json=json)


@app.command("erase")
def erase_vids(
    vids: Annotated[Path, typer.Argument(help="A file with a vid a line, or - for stdin.")],
    archive: ArchiveOption,
    on: OnOption = "auto",
    spark: SparkOption = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Make contexts unreachable now; says how many files still hold one of the vids."""
    import sys
    from contextlib import ExitStack

    from roamcast.errors import MissingError, RoamcastError
    from roamcast.pipeline.archive.retention import erase

    try:
        text = sys.stdin.read() if str(vids) == "-" else vids.read_text(encoding="utf-8")
    except OSError as error:
        raise MissingError(f"{vids}: {error.strerror}") from None
    wanted = [line.strip() for line in text.splitlines() if line.strip()]
    with ExitStack() as stack:
        shown = stack.enter_context(bar("erase", json=json, quiet=quiet))
        done = erase(archive, wanted, workers(stack, on, spark, shown), shown)
    _tell(done, f"{done.rows_erased:,} contexts erased, {done.files_left:,} files left", json=json)
    if done.files_left:
        raise RoamcastError(
            f"{done.files_left} files outside the archive still hold these vids: "
            "a writer is at work or crashed; run vacuum, then erase again"
        )


def _transaction(batch: str | None) -> tuple[str, int] | None:
    from roamcast.errors import InputError

    if batch is None:
        return None
    name, _, number = batch.rpartition(":")
    if not name or not number.isdigit():
        raise InputError(f"{batch!r} is not NAME:NUMBER, such as nightly:17")
    return name, int(number)


def _tell(result: Any, text: str, *, json: bool) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(result).decode() if json else text)
