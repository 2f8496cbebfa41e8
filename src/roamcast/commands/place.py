"""`roamcast place`: where filters pay in a dissemination tree, and what they save."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from roamcast.errors import InputError, TreeError

if TYPE_CHECKING:
    from roamcast.placement.document import Demand
    from roamcast.placement.optimal import Placement
    from roamcast.placement.problem import Problem

Parsed = TypeVar("Parsed")


def register(root: typer.Typer) -> None:
    """Add the command to the command line."""
    root.command("place", rich_help_panel="Files and archives")(place)


def place(
    tree: Annotated[str, typer.Argument(metavar="TREE.json", help="The tree; - reads stdin.")],
    filters: Annotated[int | None, typer.Option(help="Maximum number of filters.")] = None,
    filter_delay: Annotated[
        float | None, typer.Option(help="Minimise delay; this is the delay of a filter.")
    ] = None,
    heuristic: Annotated[
        bool, typer.Option("--heuristic", help="The paper's moves instead of the optimum.")
    ] = False,
    traffic_weight: Annotated[
        float, typer.Option(help="With --filter-delay: count traffic as well, at this weight.")
    ] = 0.0,
    filter_cost: Annotated[float, typer.Option(help="Cost of each filter.")] = 0.0,
    current: Annotated[
        Path | None, typer.Option("--from", help="An earlier result: the current filters.")
    ] = None,
    move_cost: Annotated[
        float, typer.Option(help="With --from: cost of each newly placed filter.")
    ] = 0.0,
    moves: Annotated[
        int, typer.Option(help="With --from --heuristic: maximum number of moves.")
    ] = 1,
    curve: Annotated[
        bool, typer.Option("--curve", help="Print the least cost for every number of filters.")
    ] = False,
    draw: Annotated[
        Path | None, typer.Option(help="Draw the tree and its filters (.png, .svg, .pdf).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compute which vertices of a tree should filter, and the remaining traffic or delay."""
    from roamcast.placement.document import read_demand, read_filters

    if filters is None and filter_delay is None and filter_cost == 0 and not curve:
        raise TreeError(
            "give the number of filters (--filters K) or the delay of one (--filter-delay F)"
        )
    if filter_delay is None and traffic_weight != 0:
        raise TreeError(
            "--traffic-weight weighs traffic against delay: give --filter-delay as well"
        )
    if current is None and move_cost != 0:
        raise TreeError("--move-cost needs --from: where the filters are now")
    demand = _parsed(tree, read_demand)
    now = None if current is None else _parsed(str(current), read_filters)
    problem = _problem(demand, filter_delay, traffic_weight, filter_cost, now or (), move_cost)
    found = _solve(problem, filters, now, heuristic=heuristic, moves=moves)
    priced = filter_cost > 0 or move_cost > 0
    answer = _answer(demand, found, filter_delay, both=traffic_weight > 0, priced=priced)
    if now is not None:
        answer["signals"] = _signals(demand, now, found)
    if curve:
        answer["curve"] = _curve(problem, filters)
    if draw is not None:
        from roamcast.lab._cbm_drawing import draw_tree

        draw_tree(problem, found, draw, _title(answer))
    _print(answer, json=json)


def _parsed(path: str, parse: Callable[[bytes], Parsed]) -> Parsed:
    try:
        text = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=path) from None
    try:
        return parse(text)
    except InputError as error:
        raise error.located(path) from None


def _problem(
    demand: "Demand",
    filter_delay: float | None,
    traffic_weight: float,
    filter_cost: float,
    now: tuple[int, ...],
    move_cost: float,
) -> "Problem":
    from roamcast.placement.problem import combined

    delaying = filter_delay is not None
    return combined(
        demand.tree,
        demand.flow,
        traffic_weight=traffic_weight if delaying else 1.0,
        delay_weight=1.0 if delaying else 0.0,
        filter_delay=filter_delay or 0.0,
        link_delay=demand.link_delay,
        filter_cost=filter_cost,
        move_cost=move_cost,
        current=now,
    )


def _solve(
    problem: "Problem",
    limit: int | None,
    now: tuple[int, ...] | None,
    *,
    heuristic: bool,
    moves: int,
) -> "Placement":
    from roamcast.placement.heuristic import settle, step
    from roamcast.placement.optimal import optimal

    if not heuristic:
        return optimal(problem, limit)
    if now is None:
        return settle(problem, limit)
    return step(problem, now, limit, moves)[0]


def _answer(
    demand: "Demand", found: "Placement", filter_delay: float | None, *, both: bool, priced: bool
) -> dict[str, Any]:
    from roamcast.placement.cost import cost, cost_of_flags
    from roamcast.placement.problem import delay, traffic

    answer: dict[str, Any] = {"filters": list(found.filters)}
    main = traffic(demand.tree, demand.flow)
    if filter_delay is None or both:
        answer["traffic"] = _number(cost(main, found.filters))
    if filter_delay is not None:
        main = delay(demand.tree, demand.flow, filter_delay, demand.link_delay)
        total = cost(main, found.filters)
        answer["delay"] = _number(total)
        answer["mean_delay"] = _number(total / int(demand.tree.leaves[0]))
    if both or priced:
        answer["cost"] = _number(found.cost)
    answer["without_filters"] = _number(main.unfiltered)
    answer["with_all_filters"] = _number(cost_of_flags(main, demand.tree.inner()))
    return answer


def _signals(demand: "Demand", now: tuple[int, ...], found: "Placement") -> list[dict[str, Any]]:
    from roamcast.placement.batch import Filters, signals

    sent = signals(demand.tree, Filters.of(now), found.filters)
    return [{"kind": s.kind, "source": s.source, "target": s.target} for s in sent]


def _curve(problem: "Problem", limit: int | None) -> list[float]:
    from roamcast.placement.optimal import curve

    most = int(problem.tree.inner().sum())
    limit = None if limit is None else min(limit, most)
    return [_number(value) for value in curve(problem, limit)]


def _number(value: float) -> Any:
    return int(value) if float(value).is_integer() else float(value)


def _title(answer: dict[str, Any]) -> str:
    name = "delay" if "delay" in answer else "traffic"
    left, bare = answer[name], answer["without_filters"]
    saved = f", {1 - left / bare:.0%} saved" if bare else ""
    count = len(answer["filters"])
    return f"{count:,} filter{'' if count == 1 else 's'}: {name} {left:,} of {bare:,}{saved}"


def _print(answer: dict[str, Any], *, json: bool) -> None:
    import msgspec

    if json:
        typer.echo(msgspec.json.encode(answer).decode())
        return
    for name, value in answer.items():
        shown = value
        if name == "signals":
            shown = "; ".join(f"{s['kind']} {s['source']} → {s['target']}" for s in value) or "none"
        elif isinstance(value, list):
            shown = ", ".join(f"{part:,}" if name == "curve" else str(part) for part in value)
            shown = shown or "none"
        else:
            shown = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
        typer.echo(f"{name.replace('_', ' '):<17} {shown}")
