"""`roamcast pipeline ingest`: sightings in, archived contexts out."""

from pathlib import Path
from typing import Annotated, Any

import typer

from roamcast.commands._progress import QuietOption, bar
from roamcast.commands._spark import OnOption, SparkOption, check_on, later, workers

CrowdOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=10_000,
        help="Afterwards coarsen places and points of the archive that fewer contexts share.",
    ),
]
GridOption = Annotated[
    int | None,
    typer.Option(
        min=0, help="Seconds that a new archive's times are rounded to (default 900; 0: exact)."
    ),
]


def add(app: typer.Typer) -> None:
    """Add the commands to the `pipeline` group."""
    app.command("ingest")(ingest)
    app.command("dead-letters")(dead_letters)
    app.command("vids")(vids)
    app.command("seeds")(seeds)


def ingest(
    archive: Annotated[str, typer.Option(help="The archive's folder; made if it is missing.")],
    sightings: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files or folders; .jsonl, .csv, .parquet. Or nats://host:port/STREAM, "
            "mqtt://host:port/TOPIC, kafka://host:port/TOPIC."
        ),
    ] = None,
    replay_dead_letters: Annotated[
        bool, typer.Option(help="Ingest the rows of all dead letters again, with these options.")
    ] = False,
    watch: Annotated[
        bool, typer.Option(help="Keep running, and ingest files as they arrive in the folder.")
    ] = False,
    until_idle: Annotated[
        bool, typer.Option(help="End a watch when nothing is left to do.")
    ] = False,
    keep_open: Annotated[
        bool,
        typer.Option(help="Leave contexts open at the end, because more sightings will follow."),
    ] = False,
    places: Annotated[Path | None, typer.Option(help="GeoJSON hierarchy of places.")] = None,
    resolution: Annotated[int, typer.Option(help="H3 resolution where no place is known.")] = 9,
    late_s: Annotated[
        float, typer.Option(help="Seconds that a watch waits for late rows.")
    ] = 600.0,
    heartbeat_s: Annotated[
        float, typer.Option(help="Seconds of silence that end a context.")
    ] = 300.0,
    dwell_s: Annotated[
        float, typer.Option(help="Seconds that a new place must last before it counts.")
    ] = 20.0,
    format: Annotated[str | None, typer.Option(help="json, csv or parquet.")] = None,  # noqa: A002
    column: Annotated[
        list[str] | None, typer.Option(help="A field's column, such as person=uid.")
    ] = None,
    constant: Annotated[
        list[str] | None, typer.Option(help="A field's value, such as source=gps.")
    ] = None,
    zone: Annotated[str | None, typer.Option(help="Zone of times without one: +00:00.")] = None,
    private: Annotated[
        Path | None, typer.Option(help="The trusted node's folder; default ARCHIVE.private.")
    ] = None,
    trusted_node: Annotated[
        str, typer.Option(help="Name of the trusted node: the part of a vid after @.")
    ] = "localhost",
    trust: Annotated[
        str | None,
        typer.Option(help="Address of a trusted node that gives handles and the key for vids."),
    ] = None,
    trust_token: Annotated[
        Path | None, typer.Option(help="File with a token of that node, of scope admin.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name of this ingest at that node: it has an epoch of its own.")
    ] = "ingest",
    password_file: Annotated[
        str, typer.Option(help="File with the password of the user in nats:// or mqtt://user@…")
    ] = "",
    files_a_batch: Annotated[
        int, typer.Option(min=1, help="Maximum files in one batch of a watch.")
    ] = 1_000,
    archive_resolution: Annotated[
        int | None, typer.Option(help="H3 resolution of a new archive's cells (default 4).")
    ] = None,
    grid_s: GridOption = None,
    crowd_min: CrowdOption = 0,
    on: OnOption = "auto",
    spark: SparkOption = None,
    quiet: QuietOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Turn sightings of people into contexts under fresh vids, and archive them exactly once.

    Files that were ingested before are left out. Malformed rows are kept and counted:
    `roamcast pipeline dead-letters`.
    """
    import time
    from contextlib import ExitStack
    from secrets import token_bytes

    from roamcast.errors import InputError
    from roamcast.identity.agent_settings import AgentSettings
    from roamcast.pipeline.archive.retention import thicken
    from roamcast.pipeline.archive.table import settings_for
    from roamcast.pipeline.ingest import run as work
    from roamcast.pipeline.ingest.files import Reading
    from roamcast.pipeline.ingest.state import opened, private_folder
    from roamcast.pipeline.ingest.streams import SCHEMES, check_stream, parse_stream
    from roamcast.pipeline.spark.session import Settings, check_reachable

    settings = work.check_settings(
        work.IngestSettings(
            agent=AgentSettings(heartbeat_s=heartbeat_s, dwell_s=dwell_s),
            reading=Reading(
                format=format, columns=_pairs(column), constants=_pairs(constant), zone=zone
            ),
            late_s=late_s,
            places=None if places is None else str(places.resolve()),
            resolution=resolution,
            archive=settings_for(archive, resolution=archive_resolution, grid_s=grid_s),
            here_rows={"auto": None, "driver": work.EVERYTHING, "spark": -1}[check_on(on)],
        )
    )

    def clock() -> int:
        return time.time_ns() // 1_000

    where = Settings(master=spark, name="roamcast ingest")
    if watch and where.remote:
        raise InputError("--watch does not run through Spark Connect: use --keep-open, repeatedly")
    folder = private or private_folder(archive)
    # what is refused here leaves nothing behind: no folder, no keys, no archive
    work.check_archive(archive, settings.archive)
    check_reachable(where.where)
    sightings = sightings or []
    if bool(sightings) is replay_dead_letters:
        raise InputError("give sightings, or --replay-dead-letters alone")
    client = _client(trust, trust_token)
    if replay_dead_letters:
        _replay(archive, private, settings, where, clock, client, quiet=quiet, json=json)
        return
    address = None
    if sightings[0].startswith(SCHEMES):
        if len(sightings) != 1 or not watch:
            raise InputError("a stream is ingested alone, by --watch or --watch --until-idle")
        address = parse_stream(sightings[0], password_file)
        check_stream(address)
    paths = [Path(text) for text in sightings]
    if not watch:
        work.check_files(paths, settings)
    elif address is None and (len(paths) != 1 or not paths[0].is_dir()):
        raise InputError("--watch takes one folder", source=sightings[0])
    keys = None if client is None else client.keys(name)
    with opened(folder, archive, trusted_node, token_bytes, keys) as state:
        _ask_handles(state, client)
        with ExitStack() as stack:
            shown = stack.enter_context(bar("ingest", json=json, quiet=quiet))
            start = later(stack, spark, shown, where.name)
            if watch:
                source = address or paths[0]
                _watch(start(), state, source, settings, clock, until_idle, files_a_batch, json)
            else:
                batch = work.ingest_once(start, state, paths, settings, clock, finish=not keep_open)
            if crowd_min:
                thicken(archive, crowd_min, start() if watch or on == "spark" else None)
        if not watch:
            _print(batch, json=json)


def _client(trust: str | None, token: Path | None) -> Any:
    """Give who asks the trusted node, None where the ingest is its own."""
    from roamcast.client.operating import TrustClient
    from roamcast.errors import InputError

    if (trust is None) is not (token is None):
        raise InputError("--trust and --trust-token go together")
    return None if trust is None or token is None else TrustClient(trust, token)


def _ask_handles(state: Any, client: Any) -> None:
    """Let a batch ask the trusted node for handles, if its vids are that node's."""
    from roamcast.errors import InputError

    if client is not None:
        state.handles_of = client.handles
    elif state.shared:
        raise InputError(f"its people are a trusted node's, {state.keys.node}: give --trust")


def _replay(
    archive: str,
    private: Path | None,
    settings: Any,
    where: Any,
    clock: Any,
    client: Any,
    *,
    quiet: bool,
    json: bool,
) -> None:
    from contextlib import ExitStack

    from roamcast.pipeline.ingest.dead_letters import replayed
    from roamcast.pipeline.ingest.run import ingest_once

    with opened_private(archive, private) as state, replayed(state) as found:
        _ask_handles(state, client)
        if not found:
            typer.echo("no dead letter holds a row to ingest again")
            return
        with ExitStack() as stack:
            shown = stack.enter_context(bar("replay", json=json, quiet=quiet))
            start = later(stack, where.master, shown, where.name)
            batch = ingest_once(start, state, found, settings, clock)
        _print(batch, json=json)


def dead_letters(
    archive: Annotated[str, typer.Option(help="The archive's folder.")],
    private: Annotated[Path | None, typer.Option(help="Default ARCHIVE.private.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
) -> None:
    """Print the rows that were no sightings, with reason and file; without --json, count them."""
    import msgspec

    from roamcast.pipeline.ingest import dead_letters as letters

    with opened_private(archive, private) as state:
        if json:
            for row in letters.dead_letters(state).to_pylist():
                typer.echo(msgspec.json.encode(row))
            return
        for reason, count in letters.counted(state).items():
            typer.echo(f"{count:>12,}  {reason}")


def vids(
    person: Annotated[str, typer.Argument(help="The person, as in the sightings.")],
    archive: Annotated[str, typer.Option(help="The archive's folder.")],
    private: Annotated[Path | None, typer.Option(help="Default ARCHIVE.private.")] = None,
    forget: Annotated[
        bool, typer.Option(help="Also delete the person from the register; this cannot be undone.")
    ] = False,
    on: OnOption = "auto",
    spark: SparkOption = None,
) -> None:
    """Print a person's vids in the archive, one a line, for `roamcast pipeline erase`."""
    from contextlib import ExitStack

    from roamcast.errors import InputError
    from roamcast.pipeline.ingest.trusted import forget_person, vids_of_person

    with ExitStack() as stack:
        state = stack.enter_context(opened_private(archive, private))
        try:
            found = vids_of_person(state, person, workers(stack, on, spark))
        except InputError:
            # somebody of whom there are only dead letters is not in the register
            if not forget or not forget_person(state, person):
                raise
            return
        for vid in found:
            typer.echo(vid)
        if forget:
            forget_person(state, person)


def seeds(
    person: Annotated[str, typer.Argument(help="The person, as in the sightings.")],
    archive: Annotated[str, typer.Option(help="The archive's folder.")],
    keys: Annotated[
        Path, typer.Option(help="The person's key store, made or added to, as ROAMCAST_KEYS.")
    ],
    private: Annotated[Path | None, typer.Option(help="Default ARCHIVE.private.")] = None,
    on: OnOption = "auto",
    spark: SparkOption = None,
) -> None:
    """Give a person the keys that open mail to what sensors saw of them."""
    from contextlib import ExitStack, closing

    from roamcast.identity.key_store import KeyStore
    from roamcast.pipeline.ingest import trusted

    with ExitStack() as stack:
        state = stack.enter_context(opened_private(archive, private))
        store = stack.enter_context(closing(KeyStore.open(keys)))
        count = trusted.give_seeds(state, person, store, workers(stack, on, spark))
    typer.echo(f"the keys of {count} vids are in {keys}")


def opened_private(archive: str, private: Path | None) -> Any:
    """Open the private folder that an ingest has made, under its lock."""
    from secrets import token_bytes

    from roamcast.errors import MissingError
    from roamcast.pipeline.ingest.state import opened, private_folder

    folder = private or private_folder(archive)
    if not (folder / "keys.json").exists():
        raise MissingError(f"no trusted node at {folder}: `roamcast pipeline ingest` makes one")
    return opened(folder, archive, "localhost", token_bytes)


def _watch(
    session: Any,
    state: Any,
    source: Any,
    settings: Any,
    clock: Any,
    until_idle: bool,
    files_a_batch: int,
    json: bool,
) -> None:
    from roamcast.pipeline.ingest.watch import ingest_stream, ingest_watch, wait

    how: dict[str, Any] = {
        "until_idle": until_idle,
        "on_batch": lambda batch: _print(batch, json=json),
    }
    watch: Any = ingest_stream
    if isinstance(source, Path):
        watch, how["files_a_batch"] = ingest_watch, files_a_batch
    with watch(session, state, source, settings, clock, **how) as query:
        wait(query)


def _print(batch: Any, *, json: bool) -> None:
    import msgspec

    counts = batch.counts
    dead = counts["malformed"] + counts["late"]
    if json:
        told = {"batch": batch.number, "files": len(batch.files), "dead_letters": dead, **counts}
        typer.echo(msgspec.json.encode(told))
        return
    typer.echo(
        f"batch {batch.number}: {len(batch.files):,} files, {counts['sightings']:,} sightings → "
        f"{counts['contexts']:,} contexts of {counts['people']:,} people; {dead:,} dead letters, "
        f"{counts['repeated']:,} repeated, {counts['pending']:,} waiting, {counts['open']:,} open"
    )


def _pairs(given: list[str] | None) -> dict[str, str]:
    from roamcast.errors import InputError

    pairs = [text.partition("=") for text in given or []]
    for field, equals, value in pairs:
        if not field or not equals or not value:
            raise InputError(f"{field + equals + value!r} is not FIELD=VALUE")
    return {field: value for field, _, value in pairs}
