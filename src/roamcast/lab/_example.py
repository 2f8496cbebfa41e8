"""The worked example: a Tuesday in a small building, queried in three tenses."""

import random
from pathlib import Path
from typing import Any

from roamcast.lab.report import Claim, Report
from roamcast.matching import FilterSet
from roamcast.model import time
from roamcast.model.buildings import FloorPlan, campus, offices
from roamcast.model.casts import tense
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.places import Places

PEOPLE = 40
GROUPS = ("legal", "research", "sales")
NOW = time.parse_instant("2026-11-10T18:00:00Z")
QUESTIONS = {
    "present: everyone on the second floor": "within(place, 'campus/b1/2')",
    "present: legal, anywhere in the building": "group = 'legal' AND within(place, 'campus/b1')",
    "past: who was in the meeting between 15 and 17": (
        "within(place, '{hall}') AND "
        "overlaps(time, INTERVAL('2026-11-10T15:00:00Z','2026-11-10T17:00:00Z'))"
    ),
    "past: who was there all the time": (
        "within(place, '{hall}') AND "
        "contains(time, INTERVAL('2026-11-10T15:10:00Z','2026-11-10T16:50:00Z'))"
    ),
    "future: who comes in tomorrow morning": (
        "within(place, 'campus/b1') AND "
        "start_by(time, INTERVAL('2026-11-11T06:00:00Z','2026-11-11T12:00:00Z'))"
    ),
}


def building() -> Places:
    """Return a building of two small storeys."""
    return campus("campus", 1, 2, FloorPlan(cells=8, rooms_per_side=1, meeting_rooms=1))


def hall(places: Places) -> str:
    """Return the path of the meeting room on the first floor."""
    return places.of_kind("meeting", "campus/b1/1")[0]


def day(places: Places, seed: int = 1) -> list[Context]:
    """Return everybody's contexts of the day; each has its own vid, so they cannot be linked."""
    draw = random.Random(seed)
    rooms = offices(places)
    contexts = []
    for person in range(PEOPLE):
        home = rooms[person % len(rooms)]
        group = GROUPS[person % len(GROUPS)]
        stops = [(home, "09:00", "14:50")]
        if person % 3 == 0:
            late, early = draw.randrange(0, 20), draw.randrange(0, 20)
            stops.append((hall(places), f"15:{late:02}", f"16:{59 - early:02}"))
        stops.append((home, "17:10", ""))
        for place, begins, ends in stops:
            vid = f"{draw.getrandbits(64):016x}@trust.example"
            contexts.append(_context(places, draw, vid, place, group, begins, ends))
    return contexts


def _context(
    places: Places, draw: random.Random, vid: str, place: str, group: str, begins: str, ends: str
) -> Context:
    centre = places.centre(place)
    assert centre is not None
    point = (centre[0] + draw.uniform(-1.5e-5, 1.5e-5), centre[1] + draw.uniform(-1.2e-5, 1.2e-5))
    t_r = time.parse_instant(f"2026-11-10T{begins}:00Z")
    t_d = time.parse_instant(f"2026-11-10T{ends}:00Z") if ends else None
    return Context(vid, place, point, {"type": "person", "group": group}, t_r, t_d)


def run() -> tuple[Report, Places, list[Context], dict[str, list[str]]]:
    """Run every query of the day; return the report and the contexts that match each."""
    places = building()
    contexts = day(places)
    filters = {
        name: Filter.parse(text.replace("{hall}", hall(places))) for name, text in QUESTIONS.items()
    }
    index = FilterSet()
    index.add_many(filters.items())
    reached: dict[str, list[str]] = {name: [] for name in filters}
    for context in contexts:
        for name in index.match(context):
            if tense(filters[name], NOW) != "present" or context.t_d is None:
                reached[name].append(context.vid)
    rows: list[dict[str, Any]] = [
        {
            "question": name,
            "tense": tense(wanted, NOW),
            "reached": len(reached[name]),
            "filter": wanted.source,
        }
        for name, wanted in filters.items()
    ]
    agree = all(
        wanted.matches(context) == (name in index.match(context))
        for name, wanted in filters.items()
        for context in contexts
    )
    claim = Claim("the index and the reference evaluator agree", agree, held=agree, bar=True)
    parameters = {"people": PEOPLE, "contexts": len(contexts), "now": time.format_instant(NOW)}
    return Report("example", parameters, rows, [claim]), places, contexts, reached


def draw_day(path: Path) -> None:
    """Draw the first floor, who is there now, and whom the cast to the past reaches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    _, places, contexts, reached = run()
    past = set(reached["past: who was in the meeting between 15 and 17"])
    figure, axes = pyplot.subplots(figsize=(9, 3.6), layout="constrained")
    colours = {"meeting": "#f4d9a8", "office": "#eef1f5", "corridor": "#dfe5ec"}
    for place in places.paths:
        shape = places.polygon(place)
        if shape is None or not place.startswith("campus/b1/1/"):
            continue
        x, y = shape.exterior.xy
        axes.fill(x, y, facecolor=colours.get(places[place].kind, "#e6ebe2"), edgecolor="#9aa5b1")
    for label, colour, wanted in (
        ("was in the meeting between 15 and 17: gets the minutes", "#c0392b", True),
        ("is there now", "#2c6fbb", False),
    ):
        dots = [
            c.point
            for c in contexts
            if c.point
            and (c.place or "").startswith("campus/b1/1/")
            and ((c.vid in past) if wanted else c.t_d is None)
        ]
        axes.scatter(
            [d[0] for d in dots], [d[1] for d in dots], s=26, color=colour, label=label, zorder=3
        )
    axes.set_title("A cast to the past: “everyone who was in the meeting room, 15–17”", fontsize=11)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, frameon=False, fontsize=9)
    axes.set_aspect(1.25)
    axes.set_axis_off()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
