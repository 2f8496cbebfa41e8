"""Whoever has every table that the questions publish learns no count below k.

Small random archives; an exact attacker (`attacker`) has all numbers of all tables, at every level,
and knows which cells each of them is a sum of, which is more than anybody is told. All that it does
not know are the counts. `make soak` tries more archives, and every level on Spark.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast import pipeline
from roamcast.errors import InputError
from roamcast.pipeline.analysis import crowds as crowding
from roamcast.pipeline.analysis import moves as moving
from roamcast.pipeline.analysis.crowds import crowds, gathered
from roamcast.pipeline.analysis.visits import visits
from tests.pipeline.attacker import Attacker

K = 3
LEVELS = (0, 1, 2, 3)
HOUR_US = 3_600_000_000
DAY = 20_000 * 24
ARCHIVES = 30
ROOMS = ("a/1", "a/2", "a", "b/1", "b/2")


class Cell(NamedTuple):
    """What tables can tell of a visit; `left` is of visits that ended."""

    place: str
    entered: int
    since: int
    left: int
    ended: bool = True


class Visit(NamedTuple):
    """A visit of a random archive, with the one that the same vid made before."""

    vid: str
    cell: Cell
    before: Cell | None


def archive(number: int) -> list[Visit]:
    """Draw people who walk through a few rooms within some hours; many make the same walk."""
    rng = np.random.default_rng([46, number])
    found: list[Visit] = []
    for walk in range(rng.integers(2, 8)):
        steps = []
        hour = DAY + int(rng.integers(0, 4))
        for _ in range(rng.integers(1, 4)):
            left = hour + int(rng.integers(0, 3))
            steps.append((f"w{number}/{rng.choice(ROOMS)}", hour, left))
            hour = left + int(rng.random() < 0.3)
        for person in range(int(rng.choice([1, 1, 2, 3, 4, 7]))):
            before: Cell | None = None
            counted: dict[str, int] = {}
            for place, entered, left in steps:
                since = max(entered, counted.get(place, -1) + 1)
                counted[place] = max(left, counted.get(place, -1))
                cell = Cell(place, entered, since, left)
                found.append(Visit(f"w{number}-{walk}-{person}", cell, before))
                before = cell
    return found


def rows(found: Iterable[Visit]) -> Iterator[tuple[str, str, int, int]]:
    """Give contexts (vid, place, t_r, t_d) of visits, one after another within an hour."""
    turns: Counter[tuple[str, int]] = Counter()
    for visit in found:
        moments = []
        for hour in (visit.cell.entered, visit.cell.left):
            turns[visit.vid, hour] += 1
            moments.append(hour * HOUR_US + turns[visit.vid, hour] * 60_000_000)
        yield visit.vid, visit.cell.place, moments[0], moments[1]


def short(place: str, level: int) -> str:
    return "/".join(place.split("/")[:level]) if level else place


Key = tuple[Any, ...]


def cells_told(cell: Cell) -> Iterator[Key]:
    """Name the cells of tables, at every level, that a visit belongs to."""
    for level in LEVELS:
        place = short(cell.place, level)
        yield "dwell", level, place
        yield "entry", level, place, cell.entered
        yield "exit", level, place, cell.left
        for hour in range(cell.since, cell.left + 1):
            yield "occupancy", level, place, hour


def flows_told(before: Cell, cell: Cell) -> Iterator[Key]:
    """Name the cells of tables of flows, at every level, that a move belongs to."""
    for level in LEVELS:
        ends = short(before.place, level), short(cell.place, level)
        if ends[0] != ends[1]:
            yield "flow", level, *ends, cell.entered


def truth(found: Iterable[Visit]) -> Counter[Key]:
    """Count everything that tables without suppression would tell."""
    counts: Counter[Key] = Counter()
    for visit in found:
        counts.update(cells_told(visit.cell))
        if visit.before is not None:
            counts.update(flows_told(visit.before, visit.cell))
    return counts


class Crowd:
    """Cells that are counted together, and the cells of tables that all of their visits are in."""

    def __init__(self, cells: list[Cell], level: int) -> None:
        self.cells, self.level = sorted(cells), level
        self.entered = {cell.entered for cell in cells}
        self.left_max = max(cell.left for cell in cells)
        common = set.intersection(*(set(cells_told(cell)) for cell in cells))
        self.told = [key for key in common if not level or 0 < key[1] <= level]


class Published:
    """All tables of an archive, and which cells each crowd has: more than anybody publishes."""

    def __init__(self, tables: dict[Key, int], told: list[Crowd], flows: dict[Key, int]) -> None:
        self.tables, self.crowds, self.flows = tables, told, flows
        self._of = {cell: crowd for crowd in told for cell in crowd.cells}

    def flow_of(self, before: Cell, cell: Cell) -> tuple[int, str, str, int] | None:
        """Give the flow that moves between two cells are told by, if they may be told."""
        one, other = self._of.get(before), self._of.get(cell)
        if one is None or other is None or len(other.entered) > 1:
            return None
        if one.left_max > cell.entered:
            return None
        depth = min(one.level or 99, other.level or 99)
        for level in (0, 3, 2, 1):
            if depth < (level or 99):
                continue
            ends = short(before.place, level), short(cell.place, level)
            key = level, *ends, cell.entered
            if ends[0] != ends[1] and key in self.flows:
                return key
        return None

    def attacker(self, cells: set[Cell], withheld: int = K) -> Attacker:
        """Give all of it to somebody who knows which cells there are, and wants their counts."""
        equal: dict[Key, Counter[Any]] = defaultdict(Counter)
        for crowd in self.crowds:
            for key in crowd.told:
                equal[key].update(crowd.cells)
        at_most: dict[Key, Counter[Any]] = defaultdict(Counter)
        spare: dict[Key, int] = defaultdict(int)
        for before, cell in walks(cells):
            # a visit has one before it and one after it at most
            flow = self.flow_of(before, cell)
            limits: list[tuple[Key, list[Cell]]] = [(("to", cell), [cell])]
            limits.append((("from", before), [before]))
            moves = [(False, before, cell)]
            if flow is not None:
                moves.append((True, before, cell))
                limits += [
                    self._arrival(cell),
                    (("of", *self._of[before].cells), self._of[before].cells),
                ]
                for key in flows_told(before, cell):
                    if flow[0] == 0 or 0 < key[1] <= flow[0]:
                        equal[key][moves[1]] += 1
            for limit, members in limits:
                at_most[limit].update(moves if limit[0] in {"to", "from"} else moves[1:])
                for member in members:
                    at_most[limit][member] = -1
                spare[limit] = 0 if limit[0] in {"to", "from"} else -withheld
        levels = {key[1] for key in self.tables}
        asked = {key: parts for key, parts in equal.items() if key[1] in levels}
        assert asked.keys() == self.tables.keys()
        return Attacker(
            [(dict(parts), self.tables[key]) for key, parts in asked.items()],
            [(dict(parts), spare[limit]) for limit, parts in at_most.items()],
        )

    def _arrival(self, cell: Cell) -> tuple[Key, list[Cell]]:
        """Name those who came with a visit, of whom k are never destinations."""
        crowd = self._of[cell]
        if crowd.level:
            return ("at", *crowd.cells), crowd.cells
        together = [
            one
            for other in self.crowds
            if not other.level and other.entered == {cell.entered}
            for one in other.cells
            if one.place == cell.place
        ]
        return ("at", cell.place, cell.entered), together


def walks(cells: set[Cell]) -> list[tuple[Cell, Cell]]:
    """Give the pairs of cells that somebody may have visited one after another."""
    return [
        (before, cell)
        for before in sorted(cells)
        for cell in sorted(cells)
        if before.left <= cell.entered and before.place != cell.place
    ]


def learned(found: list[Visit], attacker: Attacker) -> list[tuple[Key, int]]:
    """Give every count below k that somebody can tell to be below k."""
    wanted: dict[Key, set[Any]] = defaultdict(set)
    cells = {visit.cell for visit in found}
    for cell in cells:
        for key in cells_told(cell):
            wanted[key].add(cell)
    for before, cell in walks(cells):
        # most moves can never be told: there is no such number
        ways = {way for told in (True, False) if attacker.knows(way := (told, before, cell))}
        for key in flows_told(before, cell):
            wanted[key] |= ways or {(False, before, cell)}
    small = sorted((key for key, count in truth(found).items() if 0 < count < K), key=repr)
    bounds = [(key, attacker.most(wanted[key], K)) for key in small]
    return [(key, most) for key, most in bounds if most < K]


def together(found: Iterable[Visit]) -> Published:
    """Publish all tables but flows, without Spark: `gathered` says what is counted together."""
    people: dict[Cell, set[int]] = defaultdict(set)
    counts: Counter[Cell] = Counter()
    for visit in found:
        people[visit.cell].add(hash(visit.vid))
        counts[visit.cell] += 1
    columns = zip(*sorted(counts), strict=True)
    table = pa.table(dict(zip(Cell._fields, map(list, columns), strict=True)))
    table = table.append_column("people", pa.array([sorted(people[c])[:K] for c in sorted(counts)]))
    told = gathered(table, K)
    turned = table.take(pa.array(range(table.num_rows - 1, -1, -1), pa.int64()))
    assert as_crowds(told.to_pylist()).keys() == as_crowds(gathered(turned, K).to_pylist()).keys()
    some = list(as_crowds(told.to_pylist()).values())
    tables: Counter[Key] = Counter()
    for crowd in some:
        assert len(set.union(*(people[cell] for cell in crowd.cells))) >= K
        for key in crowd.told:
            tables[key] += sum(counts[cell] for cell in crowd.cells)
    return Published(tables, some, {})


def as_crowds(cells: Iterable[Any]) -> dict[tuple[Cell, ...], Crowd]:
    """Put cells (as rows) together by their crowd."""
    members: dict[int, list[Any]] = defaultdict(list)
    for row in cells:
        members[row["crowd"]].append(row)
    found = [
        Crowd([Cell(*(row[name] for name in Cell._fields)) for row in some], some[0]["level"])
        for some in members.values()
    ]
    return {tuple(crowd.cells): crowd for crowd in found}


@given(st.integers(0, 10**6))
def test_tables_of_visits_give_no_count_below_k_away(number: int) -> None:
    found = archive(number)
    told = together(found)
    assert learned(found, told.attacker({visit.cell for visit in found})) == []


def test_regions_of_k_visits_would_give_moves_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted defect: two places that share k visits cannot have k moves between them."""
    joined = crowding._joined
    monkeypatch.setattr(crowding, "_joined", lambda *given: joined(*given[:-1], K))
    assert any(
        learned(found, together(found).attacker({visit.cell for visit in found}))
        for found in map(archive, range(ARCHIVES))
    )


def alone(found: list[Visit]) -> dict[Key, int]:
    """Publish as before decision 0460: each table by itself, with complementary cells.

    Of each place, hour and region either nothing is missing, or two cells with a sum of k.
    """
    counts = truth(found)
    hidden = {key for key, count in counts.items() if count < K}
    groups: dict[Key, list[Key]] = defaultdict(list)
    for key in counts:
        places = [part for part in key[2:] if isinstance(part, str)]
        hours = key[2 + len(places) :]
        for place in {*places, *(short(name, 2) for name in places)}:
            groups[*key[:2], place, *hours].append(key)
            groups[*key[:2], place].append(key)
        groups[*key[:2], *hours].append(key)
    again = True
    while again:
        again = False
        for group in groups.values():
            missing = [key for key in group if key in hidden]
            shown = sorted((counts[key], key) for key in group if key not in hidden)
            few = len(missing) < 2 or sum(counts[key] for key in missing) < K
            if missing and few and shown:
                hidden.add(shown[0][1])
                again = True
    return {key: count for key, count in counts.items() if key not in hidden}


def test_tables_that_are_suppressed_one_by_one_give_counts_away() -> None:
    """The defect that crowds mend: three tables together tell what no two of them tell."""
    leaks: Counter[str] = Counter()
    for found in map(archive, range(ARCHIVES)):
        shown = alone(found)
        cells = {visit.cell for visit in found}
        parts: dict[Key, set[Any]] = defaultdict(set)
        for cell in cells:
            for key in cells_told(cell):
                parts[key].add(cell)
        visible = [key for key in shown if key[0] != "flow"]
        known = [(dict.fromkeys(parts[key], 1), shown[key]) for key in visible]
        attacker = Attacker(known)
        leaks.update(key[0] for key, _ in learned(found, attacker) if key[0] != "flow")
    assert set(leaks) >= {"occupancy", "entry", "exit"}


def published(contexts: Any, names: Iterable[str], levels: Iterable[int]) -> dict[str, Published]:
    """Ask every question of all archives at once; each archive is a region of its own."""
    tables: dict[str, dict[Key, int]] = {name: {} for name in names}

    def put(place: str, *key: Any, count: int) -> None:
        tables[short(place, 1)][key] = count

    for level in levels:
        for row in pipeline.occupancy(contexts, level=level, k=K).collect():
            put(row.place, "occupancy", level, row.place, hour(row), count=row["count"])
        for row in pipeline.entries(contexts, level=level, k=K).collect():
            put(row.place, row.kind, level, row.place, hour(row), count=row["count"])
        for row in pipeline.dwell(contexts, level=level, k=K).collect():
            put(row.place, "dwell", level, row.place, count=row["count"])
        for row in pipeline.flows(contexts, level=level, k=K).collect():
            ends = row.origin, row.destination
            put(row.origin, "flow", level, *ends, hour(row), count=row["count"])
    visited = visits(contexts)
    crowded = crowds(visited, K)
    told: dict[str, list[Crowd]] = {name: [] for name in names}
    for crowd in as_crowds(crowded.collect()).values():
        told[short(crowd.cells[0].place, 1)].append(crowd)
    flows: dict[str, dict[Key, int]] = {name: {} for name in names}
    for row in moving.moves(visited, crowded, K).collect():
        key = row.level, row.origin, row.destination, row.hour
        flows[short(row.origin, 1)][key] = row["count"]
    return {name: Published(tables[name], told[name], flows[name]) for name in names}


def hour(row: Any) -> int:
    return int(row["hour"].timestamp()) // 3_600


def frame(spark: Any, drawn: dict[str, list[Visit]]) -> Any:
    every = [row for found in drawn.values() for row in rows(found)]
    columns = "vid string, place string, r long, d long"
    made = spark.createDataFrame(every, columns).selectExpr(
        "vid", "place", "timestamp_micros(r) t_r", "timestamp_micros(d) t_d"
    )
    return made.repartition(4).cache()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("levels", "archives"), [((0, 2), 60), pytest.param(LEVELS, 400, marks=pytest.mark.soak)]
)
def test_all_tables_of_all_questions_give_no_count_below_k_away(
    spark: Any, levels: tuple[int, ...], archives: int
) -> None:
    drawn = {f"w{number}": archive(number) for number in range(archives)}
    flows = 0
    for name, told in published(frame(spark, drawn), drawn, levels).items():
        assert min(told.tables.values(), default=K) >= K
        cells = {visit.cell for visit in drawn[name]}
        assert learned(drawn[name], told.attacker(cells)) == [], name
        flows += len(told.flows)
    assert flows > archives // 10  # enough of them to give something away


@pytest.mark.spark
@pytest.mark.slow
def test_flows_of_everybody_would_give_the_others_away(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted defect: nobody is left out of the flows, so what is not told is a remainder."""
    withheld = moving._withheld
    monkeypatch.setattr(moving, "_withheld", lambda walked, _k: withheld(walked, 0))
    drawn = {f"w{number}": archive(number) for number in range(ARCHIVES)}
    assert any(
        learned(drawn[name], told.attacker({visit.cell for visit in drawn[name]}, withheld=0))
        for name, told in published(frame(spark, drawn), drawn, (0,)).items()
    )


@pytest.mark.spark
def test_with_k_of_1_crowds_count_what_is_counted_without_them(spark: Any) -> None:
    drawn = {f"w{number}": archive(number) for number in range(5)}
    contexts = frame(spark, drawn)
    want = truth(visit for found in drawn.values() for visit in found)
    got: Counter[Key] = Counter()
    for level in (0, 2):
        for row in pipeline.occupancy(contexts, level=level, k=1).collect():
            got["occupancy", level, row.place, hour(row)] = row["count"]
        for row in pipeline.flows(contexts, level=level, k=1).collect():
            got["flow", level, row.origin, row.destination, hour(row)] = row["count"]
    assert got == {
        k: n for k, n in want.items() if k[0] in {"occupancy", "flow"} and k[1] in {0, 2}
    }
    cells = crowds(visits(contexts), 1).collect()
    assert sum(row["count"] for row in cells) == sum(map(len, drawn.values()))
    assert len({row.crowd for row in cells}) == len(cells)
    for ask in (pipeline.entries, pipeline.occupancy):
        with pytest.raises(InputError, match="hour"):
            ask(contexts, hour_s=900, k=K)
