"""`roamcast bench`: our speed beside a named program's, in the same run."""

from typing import Annotated

import typer

from roamcast.commands._ending import ends_what_it_starts

app = typer.Typer(
    no_args_is_help=True, help="Compare our speed with other software in the same run."
)


def register(root: typer.Typer) -> None:
    """Add the group to the command line."""
    root.add_typer(app, name="bench", rich_help_panel="Experiments")


@app.command("list")
def list_benches(
    names: Annotated[bool, typer.Option(help="Names only, one per line.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the benches."""
    from roamcast.commands._output import print_titles
    from roamcast.lab import registry

    print_titles(registry.bench_names(), registry.bench, names=names, json=json)


@app.command("run")
@ends_what_it_starts()
def run_bench(
    name: Annotated[str, typer.Argument(help="A name from `roamcast bench list`.")],
    quick: Annotated[bool, typer.Option(help="Smaller sizes.")] = False,
    full: Annotated[
        bool, typer.Option(help="The largest sizes as well, where a bench has them.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run one bench; print its table and whether its bars held."""
    from roamcast.commands._output import larger_sizes, print_report, steps
    from roamcast.lab import registry

    run = registry.bench(name).run
    more = larger_sizes(name, run, full=full)
    print_report(run(quick, steps(json=json), **more), json=json)
