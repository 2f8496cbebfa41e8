"""Can an archive's reader chain a person's vids? Every attack, against grid, crowd and density.

`roamcast.lab._linkability` has the people, the vids and the attacks. Vids alone (issue order, issue
time, pool, connection times) are tried on ours and on the paper's timestamps; boundaries, movement
and attributes on ours, with rounded times and with places coarsened where few people are. Chance is
to draw among all vids, for connection times among those that connect within a step of the grid: who
is there at that time is no secret, and no attack (decision 0222).
"""

from math import sqrt
from typing import Any

from roamcast.identity.live_blur import GRID_S
from roamcast.lab import _linkability as link
from roamcast.lab.report import Claim, Report, Steps
from roamcast.model.time import MICROSECONDS

TITLE = "Linkability: what a reader of the archive can chain, against grid, crowd and density"

GRIDS_S = (0, 60, 300, 900, 1_800, 3_600)
CROWDS = (5, 20)
PEOPLE_IN_CELL = 20
BROKER = ", at a broker"
FIRST = ("issue order", "issue time", "pool", "connection times", f"connection times{BROKER}")
Row = dict[str, Any]


def run(quick: bool, progress: Steps) -> Report:
    """Attack made people at several densities, and the real traces where they are at hand."""
    densities = (PEOPLE_IN_CELL, 100) if quick else (5, PEOPLE_IN_CELL, 100, 500)
    data = {f"campus, {each} a building": link.made(each * link.BUILDINGS) for each in densities}
    path = link.geolife_path()
    if path is not None:
        data["GeoLife"] = link.geolife(path)
    cases = [(grid_s, 0) for grid_s in GRIDS_S] + [(GRID_S, crowd) for crowd in CROWDS]
    rows: list[dict[str, Any]] = []
    with progress("archives", len(data) * (len(cases) + 2)) as step:
        for name, stays in data.items():
            for paper in (True, False):
                vids, truth = link.vids_of(stays, paper=paper)
                grid_s = 0 if paper else GRID_S
                stored = link.stored(stays, vids, grid_s)
                common = {"data": name, "vids": "paper" if paper else "ours", "grid_s": grid_s}
                blind = link.chance(truth)
                found = link.by_vids(vids, truth, stored.begin)
                rows += [_against(common, row, blind, blind) for row in found[:-1]]
                # A reader has rounded begins, a broker what its sockets tell it.
                seen = link.by_vids(vids, truth, connected := link.connected(stays))[-1]
                seen["attack"] += BROKER
                for row, times in ((found[-1], stored.begin), (seen, connected)):
                    then = link.chance_then(truth, times, GRID_S * MICROSECONDS)
                    rows.append(_against(common, row, then, blind))
                step(1)
            for grid_s, crowd in cases:
                stored = link.stored(stays, vids, grid_s, crowd)
                price = round(link.found_over_exact(stays, stored), 3)
                kept = round(link.places_left(stays, stored), 3)
                common = {"data": name, "vids": "ours", "grid_s": grid_s, "crowd_min": crowd}
                told = {"found_over_exact": price, "exact_places": kept}
                found = link.by_succession(stored, truth, link.NEARS)
                rows += [{**common, **_short(row), **told} for row in found]
                step(1)
    parameters = {"quick": quick, "hours": link.HOURS, "dwell_min": link.DWELL_MIN}
    return Report("linkability", {**parameters, "default_grid_s": GRID_S}, rows, claims(rows))


def _against(common: Row, row: Row, chance: float, blind: float) -> Row:
    """Give a row with what chance gives: among all vids, or those that connect at that time."""
    beside = {"chance": round(chance, 5), "blind": round(blind, 5)}
    return {**common, **_short(row), **beside}


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {name: round(one, 4) if isinstance(one, float) else one for name, one in row.items()}


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """State what holds: vids at chance, exact times linked, rounded ones not."""
    crowd = f"campus, {PEOPLE_IN_CELL} a building"
    exact, default = (best_join(rows, crowd, grid_s) for grid_s in (0, GRID_S))
    found = [
        Claim("paper's vids by issue order: precision", _first(rows, crowd, "paper", FIRST[0]),
              _first(rows, crowd, "paper", FIRST[0]) > 0.9, paper="linkable"),
        Claim("exact times chain vids: precision of the best boundary join", exact, exact > 0.9,
              bar=0.9),
        Claim(f"at the default grid with {PEOPLE_IN_CELL} people in a building: precision",
              default, default <= 0.1, bar=0.1),
    ]  # fmt: skip
    for name in sorted({row["data"] for row in rows}):
        for attack in FIRST:
            (row,) = (
                one for one in rows
                if (one["data"], one["vids"], one["attack"]) == (name, "ours", attack)
            )  # fmt: skip
            # Three standard deviations above blind drawing are not chance any more.
            most = row["chance"] + 3 * sqrt(row["chance"] / row["guesses"])
            note = f"chance is {row['chance']}, of two vids drawn blindly {row['blind']}"
            claim = f"our vids by {attack}, {name}: precision"
            held = row["precision"] <= most
            found.append(Claim(claim, row["precision"], held, bar=round(most, 5), note=note))
    return found


def best_join(rows: list[dict[str, Any]], data: str, grid_s: int) -> float:
    """Give the precision of the best boundary join."""
    return max(
        row["precision"]
        for row in rows
        if row["data"] == data
        and row["grid_s"] == grid_s
        and not row.get("crowd_min")
        and row["attack"].removeprefix("mutual ") in link.JOINS
    )


def _first(rows: list[dict[str, Any]], data: str, vids: str, attack: str) -> float:
    wanted = data, vids, attack
    (row,) = (one for one in rows if (one["data"], one["vids"], one["attack"]) == wanted)
    return float(row["precision"])
