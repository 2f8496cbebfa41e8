"""`roamcast pipeline occupancy`, `dwell`, `entries`, `flows`, `exposure` and `export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roamcast.commands._spark import SparkOption, check_on

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_MAX = 1_000_000
"""Rows of an answer that are brought here; ask at a coarser level for fewer."""

SHOWN = 20

ArchiveOption = Annotated[str, typer.Option("--archive", help="The archive's folder or URI.")]
LevelOption = Annotated[int, typer.Option(min=0, help="Segments of a place's path; 0 for all.")]
KOption = Annotated[int, typer.Option("--k", min=1, help="Counts below this are left out.")]
WhereOption = Annotated[str | None, typer.Option(help="CQL2: only contexts that satisfy it.")]
OutOption = Annotated[Path | None, typer.Option(help="Write a .csv or .parquet file.")]
PlotOption = Annotated[Path | None, typer.Option(help="Draw a .png file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")]
OnOption = Annotated[
    str, typer.Option("--on", help="spark, as auto: questions are always Spark's work.")
]


def add(app: typer.Typer) -> None:
    """Add the commands to their group."""
    for name in ("occupancy", "flows"):
        app.command(name, help=_HELP[name])(_noisy(name))
    app.command("entries", help=_HELP["entries"])(_entries)
    app.command("dwell", help=_HELP["dwell"])(_dwell)
    app.command("exposure", help=_HELP["exposure"])(_exposure)
    app.command("export", help=_HELP["export"])(_export)


_HELP = {
    "occupancy": "Count who was at each place, hour by hour.",
    "entries": "Count arrivals and departures at each place, hour by hour.",
    "flows": "Count moves from place to place, hour by hour.",
    "dwell": "Say how long people stay at each place.",
    "export": "Write contexts as GeoParquet or CSV, for other tools.",
    "exposure": "Find the vids that shared a place with the given ones for some minutes.",
}


def _noisy(name: str) -> Any:
    def ask(
        archive: ArchiveOption,
        level: LevelOption = 0,
        k: KOption = 5,
        epsilon: Annotated[
            float | None, typer.Option(help="Noise within this budget, instead of --k.")
        ] = None,
        delta: Annotated[float, typer.Option(help="The budget's other part.")] = 1e-8,
        cells: Annotated[int, typer.Option(help="Cells that one vid may count in.")] = 8,
        where: WhereOption = None,
        out: OutOption = None,
        plot: PlotOption = None,
        on: OnOption = "auto",
        spark: SparkOption = None,
        json: JsonOption = False,
    ) -> None:
        budget = None
        if epsilon is not None:
            from roamcast.pipeline.analysis.noise import Budget

            budget = Budget(epsilon, delta, cells).check()
            typer.echo(
                f"ε = {epsilon:g}, δ = {delta:g} for one vid in {cells} cells; "
                f"counts from {budget.threshold()} on are told. Every such table spends anew.",
                err=True,
            )
        how = {"level": level, "k": k, "budget": budget}
        _answer(name, archive, where, out, plot, on, spark, json=json, **how)

    return ask


def _entries(
    archive: ArchiveOption,
    level: LevelOption = 0,
    k: KOption = 5,
    where: WhereOption = None,
    out: OutOption = None,
    plot: PlotOption = None,
    on: OnOption = "auto",
    spark: SparkOption = None,
    json: JsonOption = False,
) -> None:
    _answer("entries", archive, where, out, plot, on, spark, json=json, level=level, k=k)


def _export(
    out: Annotated[Path, typer.Argument(help="A .parquet (GeoParquet) or .csv file.")],
    archive: ArchiveOption,
    where: WhereOption = None,
) -> None:
    from roamcast.model.filters import Filter
    from roamcast.pipeline.analysis.export import export

    rows = export(archive, out, None if where is None else Filter.parse(where))
    typer.echo(f"{rows:,} contexts in {out}")


def _dwell(
    archive: ArchiveOption,
    level: LevelOption = 0,
    k: KOption = 5,
    where: WhereOption = None,
    out: OutOption = None,
    plot: PlotOption = None,
    on: OnOption = "auto",
    spark: SparkOption = None,
    json: JsonOption = False,
) -> None:
    _answer("dwell", archive, where, out, plot, on, spark, json=json, level=level, k=k)


def _exposure(
    archive: ArchiveOption,
    vids: Annotated[
        Path | None, typer.Argument(help="A file with a vid a line; without, everybody.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="Shared time at one place.")] = 15.0,
    level: LevelOption = 0,
    where: WhereOption = None,
    out: OutOption = None,
    plot: PlotOption = None,
    on: OnOption = "auto",
    spark: SparkOption = None,
    json: JsonOption = False,
) -> None:
    from roamcast.errors import MissingError

    asked: list[str] | None = None
    if vids is not None:
        try:
            lines = vids.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise MissingError(f"{vids}: {error.strerror}") from None
        asked = [line.strip() for line in lines if line.strip()]
    _answer(
        "exposure", archive, where, out, plot, on, spark,
        json=json, vids=asked, minutes=minutes, level=level,
    )  # fmt: skip


def _answer(
    name: str,
    archive: str,
    where: str | None,
    out: Path | None,
    plot: Path | None,
    on: str,
    master: str | None,
    *,
    json: bool,
    **how: Any,
) -> None:
    """Ask one question of an archive, and print, write or draw the answer."""
    from roamcast import pipeline
    from roamcast.errors import InputError, LimitError
    from roamcast.pipeline.archive.table import Archive
    from roamcast.pipeline.spark.errors import collected
    from roamcast.pipeline.spark.session import Settings, started

    if check_on(on) == "driver":
        raise InputError("questions are answered by Spark: leave --on driver out")
    if out is not None and out.suffix not in {".csv", ".parquet"}:
        raise InputError(f"--out ends with .csv or .parquet, not {out.suffix or 'nothing'}")
    failed = Archive.open(archive).storage.failed  # a wrong path is told before Spark starts
    with started(Settings(master=master)) as spark:
        vids = how.pop("vids", None)
        if vids is not None:
            how["of"] = spark.createDataFrame([(vid,) for vid in vids], "vid string")
        asked = getattr(pipeline, name)(pipeline.contexts(spark, archive, filter=where), **how)
        found = collected(asked.limit(ROWS_MAX + 1), failed)
    if found.num_rows > ROWS_MAX:
        raise LimitError(f"the answer has more than {ROWS_MAX} rows: ask with a smaller --level")
    found = found.sort_by([(column, "ascending") for column in found.column_names])
    if out is not None:
        _write(found, out)
    if plot is not None:
        _draw(found, name, plot)
    if json:
        import msgspec

        typer.echo(msgspec.json.encode(found.to_pylist()))
    elif out is None and plot is None:
        _show(found)


def _write(found: "pa.Table", out: Path) -> None:
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    from roamcast.errors import RoamcastError

    try:
        if out.suffix == ".csv":
            csv.write_csv(found, out)
        else:
            pq.write_table(found, out)
    except OSError as error:
        raise RoamcastError(f"cannot write {out}: {error.strerror}") from None
    typer.echo(f"{found.num_rows:,} rows in {out}")


def _show(found: "pa.Table") -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(*found.column_names)
    for row in found.slice(0, SHOWN).to_pylist():
        shown.add_row(*(str(value) for value in row.values()))
    Console().print(shown)
    if found.num_rows > SHOWN:
        typer.echo(f"and {found.num_rows - SHOWN:,} rows more: --out FILE.csv has all")


def _draw(found: "pa.Table", name: str, plot: Path) -> None:
    """Draw a line per place over the hours, or a bar per place with the longest times."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from roamcast.errors import InputError

    if not found.num_rows:
        raise InputError("there is nothing to draw: nobody, or no count large enough to be told")
    figure, axes = pyplot.subplots(figsize=(10, 5), layout="constrained")
    rows = found.to_pylist()
    if "hour" in found.column_names:
        labels = [name for name in ("place", "origin", "destination", "kind") if name in rows[0]]
        lines: dict[str, list[tuple[Any, int]]] = {}
        for row in rows:
            label = " → ".join(row[one] for one in labels)
            lines.setdefault(label, []).append((row["hour"], row["count"]))
        busiest = sorted(lines, key=lambda label: -sum(count for _, count in lines[label]))[:10]
        for label in busiest:
            axes.plot(*zip(*lines[label], strict=True), marker=".", label=label)
        axes.legend(title=f"the {len(busiest)} busiest of {len(lines)}")
        axes.set_ylabel("visits")
        figure.autofmt_xdate()
    else:
        spent: dict[str, float] = {}
        for row in rows:  # of exposure a place has a row for each pair that met
            minutes = row["minutes"] if name == "exposure" else row["median_s"] / 60
            spent[row["place"]] = spent.get(row["place"], 0.0) + minutes
        longest = sorted(spent, key=lambda place: (-spent[place], place))[:20]
        axes.barh(longest, [spent[place] for place in longest])
        axes.invert_yaxis()
        told = "time shared, minutes of all pairs" if name == "exposure" else "median stay, minutes"
        axes.set_xlabel(told)
    axes.set_title(name)
    figure.savefig(plot, dpi=120)
    pyplot.close(figure)
    typer.echo(f"drawn in {plot}")
