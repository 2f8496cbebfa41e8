"""`roamcast figure`: the papers' figures, redrawn beside the papers' numbers."""

from pathlib import Path
from typing import Annotated

import typer

from roamcast.commands._ending import ends_what_it_starts

app = typer.Typer(no_args_is_help=True, help="Reproduce the papers' figures.")


def register(root: typer.Typer) -> None:
    """Add the group to the command line."""
    root.add_typer(app, name="figure", rich_help_panel="Experiments")


@app.command("list")
def list_figures(
    names: Annotated[bool, typer.Option(help="Names only, one per line.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the figures."""
    from roamcast.commands._output import print_titles
    from roamcast.lab import registry

    print_titles(registry.figure_names(), registry.figure, names=names, json=json)


@app.command("run")
@ends_what_it_starts()
def run_figure(
    name: Annotated[str, typer.Argument(help="A name from `roamcast figure list`.")],
    quick: Annotated[bool, typer.Option(help="Fewer runs, smaller sizes.")] = False,
    full: Annotated[
        bool, typer.Option(help="The largest sizes as well, where a figure has them.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write NAME.png and NAME.json here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run one figure; print its table and whether the paper's claims held."""
    from roamcast.commands._output import larger_sizes, print_report, steps
    from roamcast.lab import registry
    from roamcast.lab.report import to_json

    module = registry.figure(name)
    more = larger_sizes(name, module.run, full=full)
    report = module.run(quick, steps(json=json), **more)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        module.draw(report, out / f"{name}.png")
        (out / f"{name}.json").write_text(to_json(report) + "\n", encoding="utf-8")
    print_report(report, json=json)


@app.command("gallery")
def gallery(
    folder: Annotated[Path, typer.Argument(help="Where figures were run into with --out.")],
) -> None:
    """Write one page of all figures in a folder: pictures, and claims beside the papers'."""
    from roamcast.lab.gallery import write_gallery

    typer.echo(f"open {write_gallery(folder)}")
