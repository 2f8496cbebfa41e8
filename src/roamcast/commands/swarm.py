"""`roamcast swarm`: random faults under virtual time, over many seeds."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roamcast.commands._ending import ends_what_it_starts

if TYPE_CHECKING:
    from roamcast.journal.segments import Segments
    from roamcast.sim.scenario import Narrowing, RunOutcome
    from roamcast.sim.swarm import Failure, Shard, Tally

SEEDS_DEFAULT = 1_000
SEEDS_MAX = 10_000_000
MINUTES_MAX = 7 * 24 * 60
WORKERS_MAX = 1_024
SHARDS_MAX = 100_000
NOTE_S = 30
"""Interval of the progress lines where there is no terminal, seconds."""


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("swarm", rich_help_panel="Experiments")(swarm)


@ends_what_it_starts()
def swarm(
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds; 1000 without --minutes.")
    ] = None,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so many minutes; then any number of seeds.")
    ] = None,
    shard: Annotated[
        str, typer.Option(help="I/N: of these seeds only the I-th of N equal parts.")
    ] = "1/1",
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on after a failure; report each promise once.")
    ] = False,
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
    from roamcast.sim.scenario import SEED_MAX
    from roamcast.sim.workload import find_workload, workload_names

    names = only or workload_names()
    for name in names:
        find_workload(name)
    if seed is not None:
        if seeds or minutes or keep_going or shard != "1/1":
            raise InputError("--seed runs one seed: leave out --seeds, --minutes and the like")
        _single(names, seed, _narrowing(settings, faults), journal, json=json)
        return
    if settings or faults or journal:
        raise InputError("--set, --faults and --journal need a single seed: give it with --seed")
    if minutes is not None and not 0 < minutes <= MINUTES_MAX:
        raise InputError(f"--minutes is more than 0 and at most {MINUTES_MAX}")
    count = seeds if seeds is not None else SEEDS_MAX if minutes else SEEDS_DEFAULT
    if not 1 <= count <= SEEDS_MAX:
        raise InputError(f"--seeds is between 1 and {SEEDS_MAX}")
    if not 0 <= first <= SEED_MAX - count:
        raise InputError(f"--first is between 0 and {SEED_MAX - count} for {count} seeds")
    if not 0 <= workers <= WORKERS_MAX:
        raise InputError(f"--workers is between 0 and {WORKERS_MAX}")
    chosen = _shard(shard).seeds(first, count)
    _many(names, chosen, workers, minutes, keep_going=keep_going, json=json)


def _many(
    names: list[str],
    seeds: range,
    workers: int,
    minutes: float | None,
    *,
    keep_going: bool,
    json: bool,
) -> None:
    import os
    from contextlib import closing
    from time import perf_counter

    from roamcast.commands._output import steps
    from roamcast.sim.swarm import Tally, run_swarm
    from roamcast.sim.workload import find_workload

    began = perf_counter()
    ends = began + 60 * minutes if minutes else float("inf")
    noted = began
    tally = Tally()
    memory: list[float] = []
    total = None if minutes else len(seeds) * len(names)
    outcomes = run_swarm(names, seeds, workers=workers or os.cpu_count() or 1)
    with steps(json=json)("runs", total) as step, closing(outcomes):
        for outcome in outcomes:
            step(1)
            failure = tally.add(outcome, find_workload(outcome.workload))
            if failure is not None and keep_going and not json:
                typer.echo(_report(failure))
            now = perf_counter()
            if now - noted >= NOTE_S:
                noted = now
                memory = [*memory[:1], _resident_mb()]
                if not json and not sys.stderr.isatty():  # a terminal has its bar
                    said = f"{_rate(tally, now - began)}, seed {outcome.seed}, {memory[-1]:.0f} MB"
                    typer.echo(said, err=True)
            if (tally.failed and not keep_going) or now >= ends:
                break
        memory = [*memory[:1], _resident_mb()]
    seconds = perf_counter() - began
    _print_summary(tally, seconds, memory, keep_going=keep_going, json=json)
    if tally.failed:
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


def _resident_mb() -> float:
    """Return the memory of the largest of our processes; 0 where the system does not tell."""
    import multiprocessing
    import resource

    pids = ["self", *(str(child.pid) for child in multiprocessing.active_children())]
    pages = [0]
    for pid in pids:
        try:
            pages.append(int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]))
        except OSError:  # no Linux, or it has just ended
            continue
    return max(pages) * resource.getpagesize() / 1e6


def _print_summary(
    tally: "Tally", seconds: float, memory: list[float], *, keep_going: bool, json: bool
) -> None:
    import msgspec

    failure = tally.failures[0] if tally.failures else None
    if json:
        found = {
            "seeds": tally.runs,
            "failed": tally.failed > 0,
            "failed_runs": tally.failed,
            "seconds": round(seconds, 3),
            "seeds_per_second": round(tally.runs / seconds, 2),
            "memory_mb": [round(one, 1) for one in memory],
            "runs": tally.by_workload,
            "totals": tally.totals,
            "failure": failure,
            "command": failure.command if failure else None,
            "failures": [
                {"promise": one.outcome.promise, "detail": one.outcome.detail, "again": one.command}
                for one in tally.failures
            ],
        }
        typer.echo(msgspec.json.encode(found).decode())
        return
    summary = ", ".join(f"{value:,.0f} {name}" for name, value in tally.totals.items())
    typer.echo(f"{_rate(tally, seconds)}: {summary}")
    typer.echo(", ".join(f"{name} {count:,}" for name, count in tally.by_workload.items()))
    since = f" ({memory[0]:.0f} MB in its first minute)" if len(memory) > 1 else ""
    typer.echo(f"the largest process holds {memory[-1]:.0f} MB{since}")
    if failure is None:
        typer.echo("every promise was kept")
    elif keep_going:
        typer.echo(f"{tally.failed:,} runs FAIL, {len(tally.failures)} promises broken:")
        for one in tally.failures:
            typer.echo(f"  {_verdict(one.outcome)}\n    {one.command}")
    else:
        typer.echo(_report(failure))


def _rate(tally: "Tally", seconds: float) -> str:
    return f"{tally.runs:,} runs in {seconds:.1f} s ({tally.runs / seconds:.1f} seeds a second)"


def _report(failure: "Failure") -> str:
    outcome = failure.outcome
    lines = [
        f"seed {outcome.seed} of {outcome.workload} FAILS: {_verdict(outcome)}",
        f"reduced in {failure.runs} runs; to reproduce it:\n  {failure.command}",
        "the journal's last lines:",
        *outcome.tail,
    ]
    return "\n".join(lines)


def _shard(text: str) -> "Shard":
    from roamcast.errors import InputError
    from roamcast.sim.swarm import Shard

    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of) <= SHARDS_MAX):
        raise InputError(f"--shard takes I/N with 1 <= I <= N <= {SHARDS_MAX}, not {text!r}")
    return Shard(int(number), int(of))


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
