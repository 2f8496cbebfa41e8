"""`roamcast swarm`: random faults under virtual time, over many seeds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from roamcast.journal.segments import Segments
    from roamcast.sim.scenario import Narrowing, RunOutcome
    from roamcast.sim.swarm import Failure

SEEDS_MAX = 10_000_000


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("swarm")(swarm)


def swarm(
    seeds: Annotated[int, typer.Option(help="Number of seeds to try.")] = 1000,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Run this seed alone.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this workload; may be repeated.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes; 0 for one per core.")] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="With --seed: NAME=NUMBER, e.g. receivers=2.")
    ] = None,
    faults: Annotated[
        str | None, typer.Option(help="With --seed: the faults to keep, 0,3 or none.")
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(help="With --seed: write the run's journal into this folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Try random topologies, sizes and faults; print the seed that breaks a promise."""
    from roamcast.errors import InputError
    from roamcast.sim.workload import find_workload, workload_names

    names = only or workload_names()
    for name in names:
        find_workload(name)
    if seed is not None:
        _single(names, seed, _narrowing(settings, faults), journal, json=json)
        return
    if settings or faults or journal:
        raise InputError("--set, --faults and --journal need a single seed: give it with --seed")
    if not 1 <= seeds <= SEEDS_MAX:
        raise InputError(f"--seeds is between 1 and {SEEDS_MAX}")
    _many(names, range(first, first + seeds), workers, json=json)


def _many(names: list[str], seeds: range, workers: int, *, json: bool) -> None:
    import os
    from time import perf_counter

    from roamcast.commands._output import steps
    from roamcast.sim.swarm import run_swarm, shrink
    from roamcast.sim.workload import find_workload

    began = perf_counter()
    outcomes: list[RunOutcome] = []
    failure: Failure | None = None
    show = steps(json=json)
    with show("seeds", len(seeds) * len(names)) as step:
        for outcome in run_swarm(names, seeds, workers=workers or os.cpu_count() or 1):
            step(1)
            outcomes.append(outcome)
            if outcome.failed:
                failure = shrink(outcome, find_workload(outcome.workload))
                break
    seconds = perf_counter() - began
    _print_summary(outcomes, failure, seconds, json=json)
    if failure is not None:
        raise typer.Exit(1)


def _single(
    names: list[str], seed: int, narrowing: "Narrowing", folder: Path | None, *, json: bool
) -> None:
    import msgspec

    from roamcast.journal.book import Journal
    from roamcast.sim.scenario import draw_scenario, narrow, play
    from roamcast.sim.workload import find_workload

    broken = False
    for name in names:
        make = find_workload(name)
        scenario = narrow(draw_scenario(name, make, seed), narrowing)
        journal = Journal(_segments(folder, f"{name}-{seed}") if folder else None)
        outcome = play(scenario, make, journal)
        journal.close()
        broken = broken or outcome.failed
        if json:
            typer.echo(msgspec.json.encode({"scenario": scenario, "outcome": outcome}).decode())
            continue
        typer.echo(f"{name} seed {seed}: {_verdict(outcome)}")
        typer.echo(f"digest {outcome.digest}, {outcome.virtual_us / 1e6:.3f} s of virtual time")
        typer.echo(f"{scenario.shape}, sizes {scenario.sizes}, {len(scenario.faults)} faults")
        for number, fault in enumerate(scenario.faults):
            typer.echo(f"  fault {number}: {fault}")
        typer.echo("\n".join(outcome.tail), nl=bool(outcome.tail))
    if broken:
        raise typer.Exit(1)


def _segments(folder: Path, name: str) -> "Segments":
    from roamcast.journal.segments import Segments

    return Segments(folder, name)


def _print_summary(
    outcomes: "list[RunOutcome]", failure: "Failure | None", seconds: float, *, json: bool
) -> None:
    import msgspec

    totals: dict[str, float] = {"events": sum(outcome.events for outcome in outcomes)}
    for outcome in outcomes:
        for name, value in outcome.metrics.items():
            totals[name] = totals.get(name, 0) + value
    rate = len(outcomes) / seconds
    if json:
        found = {
            "seeds": len(outcomes),
            "failed": failure is not None,
            "seconds": round(seconds, 3),
            "seeds_per_second": round(rate, 2),
            "totals": totals,
            "failure": failure,
            "command": failure.command if failure else None,
        }
        typer.echo(msgspec.json.encode(found).decode())
        return
    summary = ", ".join(f"{value:,.0f} {name}" for name, value in totals.items())
    typer.echo(f"{len(outcomes):,} runs in {seconds:.1f} s ({rate:.1f} a second): {summary}")
    if failure is None:
        typer.echo("every promise was kept")
        return
    outcome = failure.outcome
    typer.echo(f"seed {outcome.seed} of {outcome.workload} FAILS: {_verdict(outcome)}")
    typer.echo(f"reduced in {failure.runs} runs; to reproduce it:\n  {failure.command}")
    typer.echo("the journal's last lines:")
    typer.echo("\n".join(outcome.tail))


def _verdict(outcome: "RunOutcome") -> str:
    return f"{outcome.promise}: {outcome.detail}" if outcome.failed else "every promise was kept"


def _narrowing(settings: list[str] | None, faults: str | None) -> "Narrowing":
    from roamcast.errors import InputError
    from roamcast.sim.scenario import Narrowing

    chosen: dict[str, int] = {}
    for setting in settings or []:
        name, _, value = setting.partition("=")
        if not value.isdecimal():
            raise InputError(f"--set takes NAME=NUMBER, not {setting!r}")
        chosen[name] = int(value)
    if faults is None:
        return Narrowing(None, chosen)
    parts = [] if faults == "none" else faults.split(",")
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--faults takes numbers such as 0,3 or none, not {faults!r}")
    return Narrowing(tuple(int(part) for part in parts), chosen)
