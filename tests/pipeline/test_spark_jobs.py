"""Journals and experiments on Spark: every job equals a plain computation of the same."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from roamcast.errors import InputError, LimitError, RoamcastError, TreeError
from roamcast.journal.book import Entry
from roamcast.journal.segments import Segments, read_entries, segments_of
from roamcast.model.context_arrow import column_of, from_arrow
from roamcast.model.contexts import Context, body_of
from roamcast.model.records import ContextClosed, ContextOpened, Transmission, UpdateMatched
from roamcast.pipeline.archive import table as archive_table
from roamcast.pipeline.archive.files import read_file
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.journals import load as load_journal
from roamcast.pipeline.journals import plan_files
from roamcast.pipeline.journals.load import load_journals
from roamcast.pipeline.journals.plan_files import make_plan
from roamcast.pipeline.journals.read import FAILED, read_journals, segments
from roamcast.pipeline.metrics import metrics
from roamcast.pipeline.plan import wanted
from roamcast.pipeline.spark.errors import collected, translated
from roamcast.pipeline.spark.progress import POLL_S, Stages, TaskCount, followed
from roamcast.pipeline.sweep import Outcome, outcomes, sweep
from roamcast.placement.document import read_demand
from roamcast.sim.experiment import play_workload, swarm_block
from roamcast.sim.workloads._map_parts import Coarse
from tests.strategies_journal import contexts_by_hand, expected_metrics, simulate, wanted_by_hand

pytestmark = pytest.mark.spark
SEEDS = (3, 4)
view_class = Coarse().view_class
PLAY = "roamcast.sim.experiment:play_workload"
SETS: list[dict[str, Any]] = [
    {"workload": "channel", "messages": 12, "receivers": receivers} for receivers in (1, 3)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("journals")
    for seed in SEEDS:
        simulate(made, seed, limited=0, remote=0)  # everyone hears channels
    return made


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, list[Entry]]:
    names = [f"map-{seed}" for seed in SEEDS]
    return {name: list(read_entries(folder, name)) for name in names}


def lines(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def test_metrics_are_those_of_a_plain_computation(
    spark: Any, folder: Path, runs: dict[str, list[Entry]]
) -> None:
    found = collected(metrics(read_journals(spark, segments([folder]))), FAILED).to_pylist()
    for run, entries in runs.items():
        ours = {(r["measure"], r["about"]): r["value"] for r in found if r["run"] == run}
        want = expected_metrics(entries)
        assert len(want) > 30
        assert {key: ours.get(key) for key in want} == pytest.approx(want, rel=1e-12)


@pytest.fixture(scope="module")
def planned(
    spark: Any,
    folder: Path,
    runs: dict[str, list[Entry]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    out = tmp_path_factory.mktemp("plan")
    made = make_plan(spark, segments([folder]), out)
    assert [row["run"] for row in made.brokers] == sorted(runs)
    return out


def test_flows_and_demand_are_what_each_client_wanted(
    planned: Path, runs: dict[str, list[Entry]]
) -> None:
    tree = msgspec.json.decode((planned / "tree.json").read_bytes())
    assert read_demand((planned / "tree.json").read_bytes()).flow.tolist() == tree["flow"]
    named = lines(planned / "vertices.jsonl")
    vertices = {(row["run"], row["receiver"]): row["vertex"] for row in named}
    root = 0
    demand: Counter[tuple[str, str, str]] = Counter()
    for run, entries in runs.items():
        want = wanted_by_hand(entries)
        root += sum(bool(clients) for clients in want.values())
        mine = Counter(client for clients in want.values() for client in clients)
        assert {c: tree["flow"][v] for (r, c), v in vertices.items() if r == run} == mine
        places = {
            (host, record.epoch, int(record.update)): record.place
            for _, host, record in entries
            if isinstance(record, UpdateMatched)
        }
        for update, clients in want.items():
            demand.update((run, client, places[update]) for client in clients)
    assert tree["flow"][0] == root
    assert {
        (row["run"], row["receiver"], row["place"]): row["updates"]
        for row in lines(planned / "demand.jsonl")
    } == demand


def test_channels_are_listed_by_what_they_save(planned: Path, runs: dict[str, list[Entry]]) -> None:
    rows = lines(planned / "channels.jsonl")
    assert [row["saved"] for row in rows] == sorted((row["saved"] for row in rows), reverse=True)
    assert all(row["saved"] == row["alone"] - row["updates"] for row in rows)
    for run, entries in runs.items():
        alone: Counter[str] = Counter()
        sets: Counter[tuple[str, ...]] = Counter()
        for clients in wanted_by_hand(entries).values():
            alone.update(text for texts in clients.values() for text in texts)
            for seen in ("", "guest"):
                texts = {t for c, ts in clients.items() if view_class(c) == seen for t in ts}
                sets[tuple(sorted(texts))] += len(texts) > 1
        mine = [row for row in rows if row["run"] == run]
        single: Counter[str] = Counter()
        several: Counter[tuple[str, ...]] = Counter()
        for row in mine:
            if len(row["queries"]) == 1:
                single[row["queries"][0]] += row["alone"]
            else:
                several[tuple(row["queries"])] += row["updates"]
        assert single == alone
        assert several == +sets


def test_a_given_tree_takes_the_flows(
    spark: Any, folder: Path, runs: dict[str, list[Entry]], tmp_path: Path
) -> None:
    want = [
        set(clients) for entries in runs.values() for clients in wanted_by_hand(entries).values()
    ]
    names = sorted(set().union(*want))
    first = set(names[: len(names) // 2])
    parent = [-1, 0, 0, *(1 if name in first else 2 for name in names)]
    hosts = {name: 3 + number for number, name in enumerate(names)}
    path = tmp_path / "hosts.json"
    path.write_bytes(msgspec.json.encode({"parent": parent, "hosts": hosts}))
    tree = plan_files.read_tree(path)
    places = [(run, "server", name) for run in runs for name in names]
    pairs = wanted(read_journals(spark, segments([folder])))
    vertices = plan_files.located(tree, places)
    found = collected(plan_files.flows(spark, pairs, parent, vertices), FAILED)
    flow = plan_files.tree_document(parent, found.to_pylist())["flow"]
    assert flow[:3] == [
        sum(bool(clients & part) for clients in want)
        for part in (set(names), first, set(names) - first)
    ]


def test_a_tree_that_lacks_a_client_is_refused(tmp_path: Path) -> None:
    tree = plan_files.TreeOfHosts([-1, 0], {"client-1": 1})
    with pytest.raises(TreeError, match="no vertex for 'client-2' \\(1 in all\\)"):
        plan_files.located(tree, [("run", "server", "client-1"), ("run", "server", "client-2")])
    path = tmp_path / "hosts.json"
    for text, problem in (
        ('{"parent": [-1, 0], "hosts": {"a": 2}}', "vertex 2, which is none"),
        ('{"parent": [-1, 0]}', "not a tree of hosts"),
        ('{"parent": [0, 0], "hosts": {}}', "hosts.json"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=problem):
            plan_files.read_tree(path)


def test_what_is_no_journal_is_told_with_its_name(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(InputError, match="no journal segments"):
        segments([tmp_path])
    with pytest.raises(InputError, match="give a folder"):
        segments([tmp_path / "nothing"])
    bad = tmp_path / "b-00000001.parquet"
    bad.write_bytes(b"PAR1 no more")
    with pytest.raises(InputError, match="b-00000001"):
        segments([tmp_path])
    pq.write_table(pq.read_table(segments([folder])[0], columns=["vid"]), bad)
    with pytest.raises(InputError, match="no time_us, host, kind"):
        segments([bad])


def test_a_sweep_does_not_depend_on_how_it_is_spread(spark: Any) -> None:
    want = [
        Outcome(one, seed, play_workload(seed=seed, **one)) for one in SETS for seed in (5, 6, 7, 8)
    ]
    for partitions in (1, 3, 8):
        frame = sweep(spark, PLAY, SETS, 4, first=5, partitions=partitions)
        assert outcomes(frame) == want, partitions


def test_a_task_that_fails_is_a_row_and_the_others_go_on(spark: Any) -> None:
    sets = [{"workload": "nothing"}, SETS[0]]
    bad, good = outcomes(sweep(spark, PLAY, sets, 1))
    assert bad.error.startswith("InputError: there is no workload 'nothing'")
    assert not good.error
    assert good.result == play_workload(seed=0, **SETS[0])


def test_a_swarm_spreads_over_spark_and_finds_what_it_finds_here(spark: Any) -> None:
    block = "roamcast.sim.experiment:swarm_block"
    sets = [{"workload": name, "block": 4} for name in ("channel", "sessions")]
    want = [Outcome(one, seed, swarm_block(seed=seed, **one)) for one in sets for seed in (1, 2)]
    assert outcomes(sweep(spark, block, sets, 2, first=1, partitions=3)) == want
    assert [one.result["first"] for one in want] == [4, 8, 4, 8]


def in_order(context: Context) -> tuple[str, int, int, str]:
    return context.vid, context.t_r, context.t_d or 0, context.place or ""


def archived(archive: Path) -> list[Context]:
    found = Archive.open(archive)
    tables = [read_file(found.storage, path) for path in found.files()["path"].to_pylist()]
    return sorted((one for table in tables for one in from_arrow(table)), key=in_order)


def test_a_journal_becomes_the_contexts_it_tells_of(
    spark: Any, folder: Path, runs: dict[str, list[Entry]], tmp_path: Path
) -> None:
    found = [contexts_by_hand(entries) for entries in runs.values()]
    ended = sorted((context for closed, _ in found for context in closed), key=in_order)
    assert len(ended) > 50
    assert any(len(context.attributes) > 2 for context in ended)
    landed = load_journals(spark, [folder], tmp_path)
    assert [(one.journal, one.rows, one.lasting) for one in landed] == [
        (run, len(closed), len(lasting)) for run, (closed, lasting) in zip(runs, found, strict=True)
    ]
    assert archived(tmp_path) == ended
    again = load_journals(spark, [folder], tmp_path)
    assert [(one.rows, one.committed) for one in again] == [(0, False)] * len(runs)


@pytest.mark.parametrize("here", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_attributes_without_room_do_not_stop_a_load_of_journals(
    spark: Any,
    folder: Path,
    runs: dict[str, list[Entry]],
    tmp_path: Path,
    here: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive_table, "COLUMNS_MAX", 2)
    if not here:
        monkeypatch.setattr(load_journal, "HERE_ROWS", 0)
    landed = load_journals(spark, [folder], tmp_path)
    assert any(one.left_out for one in landed)
    columns = Archive.open(tmp_path).columns()
    assert len(columns) == 2
    ended = [context for entries in runs.values() for context in contexts_by_hand(entries)[0]]
    kept = [
        replace(
            one,
            attributes={n: v for n, v in one.attributes.items() if column_of(n, v) in columns},
        )
        for one in ended
    ]
    assert any(one.attributes for one in kept)
    assert archived(tmp_path) == sorted(kept, key=in_order)


def test_a_large_journal_is_read_by_sparks_workers_alike(
    spark: Any,
    folder: Path,
    runs: dict[str, list[Entry]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_journal, "HERE_ROWS", 0)
    run = next(iter(runs))
    load_journals(spark, segments_of(folder, run), tmp_path)
    assert archived(tmp_path) == sorted(contexts_by_hand(runs[run])[0], key=in_order)


def test_a_journal_that_grows_is_loaded_bit_by_bit(spark: Any, tmp_path: Path) -> None:
    """Contexts that began in one load and end in another are there once, from end to end."""
    opened = [Context(f"v{n}", "lab", None, {"n": n}, 10 * n + 1) for n in range(4)]
    begins = [ContextOpened(c.vid, "lab", c.t_r, body_of(c)) for c in opened]
    parts: list[list[Entry]] = [
        [(100 + n, "b", record) for n, record in enumerate(begins)],
        [(200, "b", ContextClosed("v0", 200, "left")), (201, "b", begins[1])],
        [(300, "b", ContextClosed("v1", 300, "left"))],
    ]
    want: list[Context] = []
    journal, archive = tmp_path / "journal", tmp_path / "archive"
    ends = ({}, {0: 200}, {1: 300})
    for part, ended in zip(parts, ends, strict=True):
        sink = Segments(journal, "b")
        sink.add(part)
        sink.close()
        (landed,) = load_journals(spark, [journal], archive)
        want += [replace(opened[n], t_d=t_d) for n, t_d in ended.items()]
        assert (landed.rows, landed.committed) == (len(ended), True)
        assert archived(archive) == sorted(want, key=in_order)
    (last,) = load_journals(spark, [journal], archive, finish=True)
    assert (last.rows, last.lasting) == (2, 2)
    assert archived(archive) == sorted([*want, *opened[2:]], key=in_order)
    sink.add(parts[0])
    sink.close()
    with pytest.raises(InputError, match="finished"):
        load_journals(spark, [journal], archive)
    (journal / "b-00000002.parquet").unlink()
    with pytest.raises(InputError, match="segment 2 of the journal b is missing"):
        load_journals(spark, [journal], tmp_path / "other")


def test_what_does_not_return_after_a_restart_ended_when_the_broker_fell(
    spark: Any, tmp_path: Path
) -> None:
    second = 1_000_000
    vids = [f"v{n}" for n in range(5)]
    opened = [Context(vid, "lab", None, {}, (n + 1) * second) for n, vid in enumerate(vids)]
    moved = Context("v1", "hall", None, {}, 110 * second)

    def told(at_s: int, context: Context, epoch: int) -> list[Entry]:
        begins = ContextOpened(context.vid, context.place or "", context.t_r, body_of(context))
        return [(at_s * second, "b", begins), (at_s * second, "b", UpdateMatched("1", epoch=epoch))]

    alive = Transmission("heartbeat", 9)
    fell = [entry for n, context in enumerate(opened) for entry in told(n + 1, context, 1)]
    fell += [(8 * second, "b", ContextClosed("v4", 8 * second, "left")), (9 * second, "b", alive)]
    back = [*told(100, opened[0], 2), *told(110, moved, 2), (150 * second, "b", alive)]
    later = [(170 * second, "b", alive), *told(200, opened[2], 2)]
    ended = [
        [replace(opened[4], t_d=8 * second)],
        [replace(opened[1], t_d=110 * second)],  # v0 is as it was; who knows of v2 and v3 yet?
        [replace(opened[n], t_d=9 * second) for n in (2, 3)],
    ]
    lasting = [opened[0], moved, replace(opened[2], t_r=200 * second)]
    journal, archive = tmp_path / "journal", tmp_path / "archive"
    want: list[Context] = []
    for part, more in zip((fell, back, later), ended, strict=True):
        sink = Segments(journal, "b")
        sink.add(part)
        sink.close()
        load_journals(spark, [journal], archive)
        want += more
        assert archived(archive) == sorted(want, key=in_order)
    (last,) = load_journals(spark, [journal], tmp_path / "at once", finish=True)
    assert (last.rows, last.lasting) == (7, 3)
    assert archived(tmp_path / "at once") == sorted([*want, *lasting], key=in_order)


def test_an_error_of_ours_in_a_task_arrives_as_itself(spark: Any) -> None:
    def refuse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise LimitError("a line has at most 7 bytes", source="x.jsonl", line=3)
        yield from batches

    def stumble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ZeroDivisionError("over nothing")
        yield from batches

    numbers = spark.range(3)
    with pytest.raises(LimitError) as caught:
        collected(numbers.mapInArrow(refuse, "id long").select("id"), "it failed")
    assert str(caught.value) == "x.jsonl, line 3: a line has at most 7 bytes"
    with pytest.raises(RoamcastError) as other:
        collected(numbers.mapInArrow(stumble, "id long").select("id"), "it failed")
    assert str(other.value) == "it failed: ZeroDivisionError: over nothing"
    said = r"^it failed: .*PATH_NOT_FOUND"
    with pytest.raises(RoamcastError, match=said) as missing, translated("it failed"):
        spark.read.text("/nowhere/at/all")
    assert "\n" not in str(missing.value)


def test_progress_counts_tasks_and_rows(spark: Any, folder: Path) -> None:
    seen: list[TaskCount] = []
    whole = threading.Event()
    paths = segments([folder])
    rows = sum(pq.read_metadata(path).num_rows for path in paths)

    def saw(stages: Stages) -> None:
        seen.append(stages.count())
        if seen[-1].rows and seen[-1].rows % rows == 0:
            whole.set()

    with followed(spark, saw):
        for _ in range(50):  # jobs are short: a poll meets one after some, or in its middle
            collected(read_journals(spark, paths).select("vid").distinct(), FAILED)
            if whole.wait(2 * POLL_S):
                break
    assert whole.is_set(), "never were all rows counted"
    assert all(0 <= count.tasks_done <= count.tasks for count in seen)
