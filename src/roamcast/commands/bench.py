"""`roamcast bench`: our speed beside a named peer's in the same run."""

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Measure ours beside a peer in the same run.")


def register(root: typer.Typer) -> None:
    """Add the group to the command line."""
    root.add_typer(app, name="bench")


@app.command("list")
def list_benches(
    names: Annotated[bool, typer.Option(help="Names only, one a line.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the benches."""
    from roamcast.commands._output import print_titles
    from roamcast.lab import registry

    print_titles(registry.bench_names(), registry.bench, names=names, json=json)


@app.command("run")
def run_bench(
    name: Annotated[str, typer.Argument(help="A name from `roamcast bench list`.")],
    quick: Annotated[bool, typer.Option(help="Smaller sizes.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run one bench; print its table and whether its bars held."""
    from roamcast.commands._output import print_report, steps
    from roamcast.lab import registry

    print_report(registry.bench(name).run(quick, steps(json=json)), json=json)
