"""`roamcast pipeline sweep`: one experiment under many parameters and seeds, on the cluster."""

from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from roamcast.commands._progress import QuietOption, bar


def add(app: typer.Typer) -> None:
    """Add the command to the `pipeline` group."""
    app.command("sweep")(sweep)


def sweep(
    experiment: Annotated[
        str,
        typer.Argument(help="swarm, one of its workloads, or package.module:function."),
    ],
    parameters: Annotated[
        list[str] | None,
        typer.Option(help="name=value,name=1|2|3 (every combination), or a file of JSON objects."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds for each set of parameters.")
    ] = 1,
    first: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Spark tasks; at most 256 by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the rows here, .jsonl.")] = None,
    spark: Annotated[str | None, typer.Option(help="Spark master; default local[*].")] = None,
    quiet: QuietOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run an experiment once for every set of parameters and every seed; print the rows."""
    import msgspec

    from roamcast.commands._output import print_report
    from roamcast.lab.report import Report
    from roamcast.pipeline import sweep as job
    from roamcast.pipeline.spark.session import Settings, started
    from roamcast.sim.workload import workload_names

    sets = parameter_sets(parameters or [])
    if experiment == "swarm":  # every workload, `--seeds` blocks of seeds each
        sets = [
            {**one, "workload": name}
            for one in sets
            for name in ([one["workload"]] if "workload" in one else workload_names())
        ]
        experiment = "roamcast.sim.experiment:swarm_block"
    elif experiment in workload_names():
        sets = [{"workload": experiment, **one} for one in sets]
        experiment = "roamcast.sim.experiment:play_workload"
    job.check(experiment, sets, seeds)
    with (
        bar("sweep", json=json, quiet=quiet) as shown,
        started(Settings(master=spark, name="roamcast sweep")) as session,
        shown.watch(session),
    ):
        frame = job.sweep(session, experiment, sets, seeds, first=first, partitions=partitions)
        found = job.outcomes(frame)
    if out is not None:
        out.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in found))
    rows = [
        {
            **one.parameters,
            "seed": one.seed,
            **one.result,
            **({"error": one.error} if one.error else {}),
        }
        for one in found
    ]
    said = {"experiment": experiment, "sets": len(sets), "seeds": seeds, "first": first}
    print_report(Report("sweep", said, rows, []), json=json)
    if any(one.error or one.result.get("failed") for one in found):
        raise typer.Exit(1)


def parameter_sets(given: list[str]) -> list[dict[str, Any]]:
    """Read sets of parameters: every combination of a text's values, every object of a file."""
    found: list[dict[str, Any]] = []
    for text in given:
        path = Path(text)
        if "=" not in text or path.is_file():
            found += _from_file(path)
            continue
        named: dict[str, list[Any]] = {}
        for part in text.split(","):
            name, _, values = part.partition("=")
            if not name or not values or name in named:
                from roamcast.errors import InputError

                raise InputError(f"{text!r} is not name=value,name=1|2|3")
            named[name] = [_value(value) for value in values.split("|")]
        found += [dict(zip(named, values, strict=True)) for values in product(*named.values())]
    return found or [{}]


def _from_file(path: Path) -> list[dict[str, Any]]:
    import msgspec

    from roamcast.errors import InputError, MissingError

    try:
        text = path.read_bytes()
        whole = text.lstrip()[:1] == b"["
        kind = list[dict[str, Any]]
        return (
            msgspec.json.decode(text, type=kind)
            if whole
            else msgspec.json.Decoder(dict[str, Any]).decode_lines(text)
        )
    except OSError as error:
        raise MissingError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"no JSON objects: {error}", source=str(path)) from None


def _value(text: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
