"""Reports of figures and benches: rows and claims, as text or as one JSON object."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A statement about the results, and one of three words about it.

    `paper` is what the paper reports: a number with the `tolerance` within which ours counts as
    *reproduced*, or a statement. `bar` is a number to be better than, the paper's or our own: what
    is better *beats* it. The rest is *not held*. Both are of the same kind as `ours`.
    """

    claim: str
    ours: Any
    held: bool
    paper: Any = None
    bar: Any = None
    note: str = ""
    tolerance: float | None = None
    verdict: str = ""

    def __post_init__(self) -> None:
        number = isinstance(self.paper, int | float)
        assert not number or self.tolerance is not None, f"{self.claim}: within which tolerance?"
        assert (self.paper is None) != (self.bar is None), f"{self.claim}: against what?"
        word = "reproduced" if self.bar is None else "beats"
        msgspec.structs.force_setattr(self, "verdict", word if self.held else "not held")


def near(claim: str, ours: float, paper: float, tolerance: float, note: str = "") -> Claim:
    """Claim that ours is the paper's number, within a tolerance."""
    held = bool(abs(ours - paper) <= tolerance)
    return Claim(claim, ours, held, paper=paper, note=note, tolerance=tolerance)


class Report(msgspec.Struct, frozen=True):
    """A named table, its parameters, and the claims it tests."""

    name: str
    parameters: dict[str, Any]
    rows: list[dict[str, Any]]
    claims: list[Claim]


class Steps:
    """Progress of long work: `with steps("seeds", 100) as step: step()` moves the bar by one."""

    def __init__(self, *, show: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not show,
            transient=True,
        )

    @contextmanager
    def __call__(self, what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show a bar called `what` for as long as the block lasts."""
        with self._progress:
            task = self._progress.add_task(what, total=total, rate="")

            def step(count: int = 1) -> None:
                speed = self._progress.tasks[self._progress.task_ids.index(task)].speed
                rate = f"{speed:,.1f}/s" if speed else ""
                self._progress.update(task, advance=count, rate=rate)

            yield step
            self._progress.remove_task(task)


QUIET = Steps(show=False)


def to_json(report: Report) -> str:
    """Return the report as one JSON object."""
    return msgspec.json.encode(report).decode()


def to_text(report: Report, console: Console) -> None:
    """Print the report for people: the table, then the claims."""
    if report.rows:
        console.print(_table(report.name, report.rows))
    if report.parameters:
        said = ", ".join(f"{name} = {shown(value)}" for name, value in report.parameters.items())
        console.print(f"parameters: {said}", markup=False, highlight=False)
    for claim in report.claims:
        against = f"paper {shown(claim.paper)}" if claim.paper is not None else ""
        against += f" ± {shown(claim.tolerance)}" if claim.tolerance else ""
        against = f"bar {shown(claim.bar)}" if claim.bar is not None else against
        tail = f" ({claim.note})" if claim.note else ""
        line = f"{claim.verdict:10} {claim.claim}: ours {shown(claim.ours)}, {against}{tail}"
        console.print(line, markup=False, highlight=False)


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(shown(row.get(name)) for name in columns))
    return table


def shown(value: Any) -> str:
    """Give a value as people read it."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(shown(part) for part in value)
    return str(value)
