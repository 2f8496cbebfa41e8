"""The columnar scan: equal to the live agents however rows are chunked and batched."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.identity import attributes
from roamcast.identity.agent import Closed, UserAgent
from roamcast.identity.agent_settings import AgentSettings
from roamcast.identity.keys import new_keys
from roamcast.identity.pseudonyms import HANDLE, REGISTER, resolve
from roamcast.identity.sightings import SOURCES, Sighting
from roamcast.pipeline.ingest import rows
from roamcast.pipeline.ingest import scan as ingest_scan
from roamcast.pipeline.ingest.run import EVER
from tests.strategies_sightings import agent_settings, sightings

KEYS = new_keys("trusted.example.org", lambda count: bytes(range(count)))
NAMES = [name for name in rows.GIVEN.names if name not in {"t_d", "vid", "kind"}]


def row_of(seen: Sighting) -> dict[str, Any]:
    lon, lat = seen.point or (None, None)
    said = seen.attributes
    spoken = None
    if said is not None:
        spoken = attributes.to_text(said)
        spoken = as_source_wrote(spoken)
    return {
        "person": seen.person,
        "time": seen.time,
        "source": SOURCES.index(seen.source),
        "place": seen.place,
        "lon": lon,
        "lat": lat,
        "attributes": spoken,
        "rank": rows.RANK_SIGHTING,
        "fresh": True,
    }


def as_source_wrote(canonical: str) -> str:
    """Undo the canonical column names: sources know nothing of kinds."""
    import json

    plain: dict[str, Any] = {}
    for column, value in json.loads(canonical).items():
        kind, _, name = column.partition(":")
        plain[name] = {"timestamp": value} if kind == "timestamp" else value
    return json.dumps(plain)


SCHEMA = pa.schema([rows.TAKEN.field(name) for name in (*NAMES, "rank", "fresh")])


def in_order(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((row.get(name) is not None, row.get(name)) for name in rows.SORTED_BY)


def run(taken: list[dict[str, Any]], chosen: AgentSettings, until: int) -> dict[str, Any]:
    """Run one batch through the scanner; give its rows by kind."""
    table = pa.Table.from_pylist(sorted(taken, key=in_order), schema=SCHEMA)
    task = ingest_scan.ScanTask(KEYS, chosen, until)
    given_rows: dict[str, list[Any]] = {}
    for batch in ingest_scan.Scanner(task)(iter(table.to_batches(max_chunksize=3))):
        for row in batch.to_pylist():
            given_rows.setdefault(row["kind"], []).append(row)
    return given_rows


def again(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Turn what a batch left into what the next one takes."""
    ranks = {rows.PERSON: 0, rows.OPEN: 1, rows.PENDING: 2}
    return [
        {name: row[name] for name in NAMES} | {"rank": rank, "fresh": False}
        for kind, rank in ranks.items()
        for row in found.get(kind, [])
    ]


def contexts_of(batches: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    people = batches[-1].get(rows.PERSON, [])
    register = pa.table(
        [
            pa.array([p["person"] for p in people], pa.string()),
            pa.array([p["handle"] for p in people], pa.binary()).cast(HANDLE),
        ],
        schema=REGISTER,
    )
    found = [row for batch in batches for row in batch.get(rows.CONTEXT, [])]
    names = resolve(pa.array([row["vid"] for row in found], pa.string()), KEYS, register)
    return sorted(
        (name, r["time"], r["t_d"], r["place"] or "", r["lon"] or 0.0, r["attributes"])
        for name, r in zip(names.to_pylist(), found, strict=True)
    )


def live(seen: list[Sighting], chosen: AgentSettings) -> list[tuple[Any, ...]]:
    ordered = sorted(seen, key=lambda s: in_order(row_of(s)))
    agents: dict[str, UserAgent] = {}
    closed = []
    for one in ordered:
        agent = agents.setdefault(one.person, UserAgent(one.person, chosen))
        effects = agent.receive(one, one.time)
        closed += [(one.person, e.stay) for e in effects if isinstance(e, Closed)]
    for person, agent in agents.items():
        closed += [(person, e.stay) for e in agent.advance(EVER) if isinstance(e, Closed)]
    return sorted(
        (p, s.t_r, s.t_d, s.place or "", s.point[0] if s.point else 0.0,
         attributes.to_text(s.attributes))
        for p, s in closed
    )  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Any:
    before, ingest_scan.CHUNK_ROWS = ingest_scan.CHUNK_ROWS, 4
    yield
    ingest_scan.CHUNK_ROWS = before


people = st.lists(sightings(people=("ann", "bob", "cid")), max_size=30)


@given(people, agent_settings())
@settings(max_examples=60)
def test_chunks_of_columns_give_the_contexts_of_the_live_agents(
    seen: list[Sighting], chosen: AgentSettings
) -> None:
    found = run([row_of(s) for s in seen], chosen, EVER)
    assert contexts_of([found]) == live(seen, chosen)
    (count,) = found[rows.COUNT]
    assert rows.counts_of(count)[0][0] == len(seen)


@given(people, agent_settings(), st.lists(st.integers(0, 30), max_size=3), st.integers(0, 320))
@settings(max_examples=60)
def test_a_stream_gives_what_one_batch_gives_when_rows_are_no_later_than_promised(
    seen: list[Sighting], chosen: AgentSettings, cuts: list[int], late_s: int
) -> None:
    """Batches in any cut; each row at most `late` behind the newest of the batches before it."""
    late = late_s * 1_000_000
    parts = np.split(np.array(seen, dtype=object), sorted(cuts)) if seen else []
    batches: list[dict[str, Any]] = []
    held: list[dict[str, Any]] = []
    newest = released = -(2**62)
    worked_in: list[Sighting] = []
    for part in parts:
        in_time = [s for s in part if s.time > released]
        worked_in += in_time
        released = max(released, newest - late)
        in_time_rows = [row_of(s) for s in in_time]
        batches.append(run(held + in_time_rows, chosen, released))
        held = again(batches[-1])
        newest = max([newest, *(s.time for s in in_time)])
    batches.append(run(held, chosen, EVER))
    assert contexts_of(batches) == live(worked_in, chosen)
    assert not any(row["reason"] for batch in batches for row in batch.get(rows.DEAD, []))


@given(people, agent_settings(), st.integers(0, 400), st.booleans())
@settings(max_examples=60)
def test_earlier_rows_after_later_ones_give_what_the_right_order_gives(
    seen: list[Sighting], chosen: AgentSettings, cut_s: int, finished: bool
) -> None:
    """Before a silence longer than the heartbeat; closer rows cannot be joined any more."""
    cut = cut_s * 1_000_000
    later = [s for s in seen if s.time >= cut]
    began: dict[str, int] = {}
    for one in later:
        began[one.person] = min(one.time, began.get(one.person, one.time))
    silence = chosen.vector()[0]
    gap = {name: begin - silence for name, begin in began.items()}
    earlier = [s for s in seen if s.time < min(cut, gap.get(s.person, cut))]
    first = run([row_of(s) for s in later], chosen, EVER if finished else 2**62)
    second = run(again(first) + [row_of(s) for s in earlier], chosen, EVER)
    assert contexts_of([first, second]) == live(later + earlier, chosen)
    assert not second.get(rows.DEAD)


def test_a_row_too_near_to_what_was_worked_in_is_late() -> None:
    chosen = AgentSettings(heartbeat_s=10)
    first = run([row_of(Sighting("ann", "gps", 100_000_000, "a/1"))], chosen, EVER)
    near, far = (row_of(Sighting("ann", "gps", at, "a/1")) for at in (90_000_000, 89_999_999))
    second = run([*again(first), near, far], chosen, EVER)
    assert [row["time"] for row in second[rows.DEAD]] == [90_000_000]
    assert [row["time"] for row in second[rows.CONTEXT]] == [89_999_999]
    (ann,) = second[rows.PERSON]
    assert (ann["file"], ann["time"]) == (89_999_999, 100_000_000)


def test_people_of_a_register_that_does_not_say_since_when_get_nothing_filled_in() -> None:
    first = run([row_of(Sighting("ann", "gps", 10**12, "a/1"))], AgentSettings(), EVER)
    before = [{**row, "file": None} for row in again(first)]
    second = run([*before, row_of(Sighting("ann", "gps", 1, "a/1"))], AgentSettings(), EVER)
    assert len(second[rows.DEAD]) == 1
    assert not second.get(rows.CONTEXT)


def test_a_row_behind_what_was_worked_in_is_a_dead_letter_with_its_fields() -> None:
    chosen = AgentSettings()
    first = run([row_of(Sighting("ann", "gps", 100, "a/1"))], chosen, EVER)
    late = row_of(Sighting("ann", "gps", 99, "a/2"))
    other = row_of(Sighting("bob", "gps", 5, "a/2"))
    second = run([*again(first), late, other], chosen, EVER)
    (letter,) = second[rows.DEAD]
    assert (letter["person"], letter["place"]) == ("ann", "a/2")
    assert "late" in letter["reason"]
    assert len(second[rows.CONTEXT]) == 1, "bob's history begins later than ann's; it may be older"


def test_attributes_that_are_none_are_dead_letters_and_the_rest_goes_on() -> None:
    good = row_of(Sighting("ann", "gps", 100, "a/1", None, {"age": 5}))
    bad = {**row_of(Sighting("ann", "gps", 200, "a/1")), "attributes": '{"age":[1]}'}
    found = run([good, bad], AgentSettings(), EVER)
    assert [row["reason"] for row in found[rows.DEAD]] == [
        "attribute 'age' is none of boolean, string, integer, float, timestamp"
    ]
    assert [row["attributes"] for row in found[rows.CONTEXT]] == ['{"integer:age":5}']
    assert rows.counts_of(found[rows.COUNT][0])[1] == ["integer:age"]


def test_a_person_keeps_one_handle_for_ever_and_vids_are_fresh() -> None:
    seen = [row_of(Sighting("ann", "gps", n * 10**9, "a/1")) for n in range(9)]
    first = run(seen, AgentSettings(), EVER)
    second = run(again(first), AgentSettings(), EVER)
    assert first[rows.PERSON][0]["handle"] == second[rows.PERSON][0]["handle"]
    vids = [row["vid"] for row in first[rows.CONTEXT]]
    assert len(set(vids)) == len(vids) == 9
    assert all(row["person"] is None for row in first[rows.CONTEXT])


@given(
    st.lists(
        st.tuples(*(st.sampled_from([0, 1, 2, 2**40]) for _ in range(4))).map(list), max_size=30
    )
)
def test_rows_that_are_equal_have_one_number(codes: list[list[int]]) -> None:
    table = np.array(codes, dtype=np.int64).reshape(-1, 4)
    first, which = ingest_scan._alike(table)
    assert table[first][which].tolist() == codes
    assert len(first) == len({tuple(row) for row in codes})
