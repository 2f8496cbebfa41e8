"""Batches of few rows: remembered in thin layers, done without Spark."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roamcast.errors import MissingError
from roamcast.identity.agent_core import NEVER
from roamcast.identity.agent_settings import AgentSettings
from roamcast.identity.keys import new_keys
from roamcast.model.time import EARLIEST, parse_instant
from roamcast.pipeline.archive.layout import ArchiveSettings
from roamcast.pipeline.archive.storage import Storage
from roamcast.pipeline.ingest import few, rows
from roamcast.pipeline.ingest.check_row import degrees, instant
from roamcast.pipeline.ingest.layers import LAYERS_MAX, SMALL_ROWS, Layers, newest, taken_over
from roamcast.pipeline.ingest.run import IngestSettings, ingest_once
from roamcast.pipeline.ingest.scan import EVER, ScanTask
from roamcast.pipeline.ingest.state import IngestState, SightingBatch, opened
from roamcast.pipeline.ingest.trusted import people_behind
from roamcast.pipeline.ingest.write import ScanAndWrite, WriteTask
from tests.pipeline.test_archive import everything

NOW = 1_800_000_000_000_000


def sighting(person: str, minute: int, place: str = "a/1") -> str:
    at = f"2026-01-01T{minute // 60:02d}:{minute % 60:02d}:00Z"
    return json.dumps({"person": person, "source": "badge", "time": at, "place": place})


def written(tmp_path: Path, name: str, *lines: str) -> Path:
    (tmp_path / "in").mkdir(exist_ok=True)
    path = tmp_path / "in" / name
    path.write_text("\n".join(lines))
    return path


def state_of(tmp_path: Path, name: str = "archive") -> Any:
    private = tmp_path / f"{name}.private"
    return opened(private, tmp_path / name, "trusted.example.org", os.urandom)


def ingested(state: IngestState, *paths: Path, finish: bool = False, **more: Any) -> SightingBatch:
    def no_spark() -> Any:
        raise AssertionError("few rows need no Spark")

    settings = IngestSettings(**more)
    return ingest_once(no_spark, state, paths, settings, lambda: NOW, finish=finish)


def lived(state: IngestState) -> list[Any]:
    table = everything(Path(state.archive))
    people = people_behind(state, table["vid"].combine_chunks()).to_pylist()
    times = [table[name].cast(pa.int64()).to_pylist() for name in ("t_r", "t_d")]
    return sorted(zip(people, table["place"].to_pylist(), *times, strict=True))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.5", 1.5),
        (" -2e3 ", -2000.0),
        (".5d", 0.5),
        ("7f", 7.0),
        ("Infinity", math.inf),
        ("-inf", -math.inf),
        ("1_0", None),
        ("0x10", None),
        ("", None),
        (None, None),
        ("true", None),
    ],
)
def test_numbers_are_read_as_sql_casts_them(text: str | None, number: float | None) -> None:
    assert degrees(text) == number


def test_moments_are_those_of_the_model_and_beyond_its_years() -> None:
    for text in ("2026-11-15T09:00:00Z", "2026-11-15T09:00:00.25+01:30", "0001-01-01T00:00:00Z"):
        assert instant(text, None) == parse_instant(text)
    assert instant("2026-11-15 09:00:00", "+01:00") == parse_instant("2026-11-15T08:00:00Z")
    for text in ("2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:00:00+19:00"):
        assert instant(text, None) is None
    early = instant("0000-12-31T23:59:59.999999Z", None)
    assert early == EARLIEST - 1


def test_a_batch_of_few_rows_leaves_the_layer_of_many_as_it_is(tmp_path: Path) -> None:
    crowd = [sighting(f"p{n:05d}", 0) for n in range(2 * SMALL_ROWS + 50)]
    with state_of(tmp_path) as state:
        ingested(state, written(tmp_path, "1.jsonl", *crowd), late_s=0)
        batch = ingested(state, written(tmp_path, "2.jsonl", sighting("p00007", 1)), late_s=0)
        assert batch.layers == (), "everybody waited for a time that has come"
        base = {path: path.read_bytes() for _, path in state.layers.files(rows.PERSON)}
        batch = ingested(state, written(tmp_path, "3.jsonl", sighting("p00007", 2)), late_s=0)
        assert batch.layers == (2,)
        assert state.layers.sizes() == [len(crowd), 1]
        assert {path: path.read_bytes() for path in base} == base
        batch = ingested(state, written(tmp_path, "4.jsonl", sighting("new", 60)), late_s=0)
        assert state.layers.sizes() == [len(crowd), 2]
        counts = [batch.counts[name] for name in ("people", "open", "pending", "contexts")]
        assert counts == [len(crowd) + 1, len(crowd), 1, 0]
        # whoever fell silent ends, whoever's rows come
        batch = ingested(state, written(tmp_path, "5.jsonl", sighting("new", 61)), late_s=0)
        counts = [batch.counts[name] for name in ("people", "open", "pending", "contexts")]
        assert counts == [len(crowd) + 1, 1, 1, len(crowd)]
        assert batch.layers == (), "everybody was due: one layer again"
        found = lived(state)
        assert len(found) == len(crowd)
        (own,) = [row for row in found if row[0] == "p00007"]
        assert own[3] - own[2] >= 120 * 1_000_000


def test_thin_layers_give_what_one_layer_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(3)
    paths = []
    for number in range(12):
        minutes = number * 5 + generator.integers(0, 5, 4)
        who = generator.integers(0, 5, 4)
        lines = [sighting(f"p{w}", int(m), f"a/{w % 2}") for w, m in zip(who, minutes, strict=True)]
        paths.append(written(tmp_path, f"{number:02d}.jsonl", *lines))
    results = []
    for name, most in (("one", few.STATE_ROWS), ("thin", 0)):
        monkeypatch.setattr(few, "STATE_ROWS", most)
        with state_of(tmp_path, name) as state:
            counts = []
            for path in paths:
                batch = ingested(state, path, late_s=120)
                counts.append(batch.counts)
            assert bool(batch.layers) is (most == 0)
            counts.append(ingested(state, paths[0], finish=True).counts)
            results.append((lived(state), counts))
    assert results[0] == results[1]
    assert len(results[0][0]) > 5


def test_layers_are_never_more_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few, "STATE_ROWS", 0)
    with state_of(tmp_path) as state:
        for number in range(LAYERS_MAX):
            ingested(state, written(tmp_path, f"{number}.jsonl", sighting("ann", number)))
        assert len(state.layers.folders) == LAYERS_MAX
        more = written(tmp_path, "more.jsonl", sighting("ann", 100))
        with pytest.raises(AssertionError, match="no Spark"):  # it makes one layer of them
            ingested(state, more)


def test_a_layer_is_taken_over_by_one_that_is_half_as_large() -> None:
    large = 10 * SMALL_ROWS
    assert taken_over([large], 10, most=10**6) == 0
    assert taken_over([large, SMALL_ROWS], 10, most=10**6) == 1
    assert taken_over([large, SMALL_ROWS, SMALL_ROWS + 1], 1, most=10**6) == 0
    assert taken_over([large], large // 2, most=10**6) == 1
    assert taken_over([large], large // 2 - 1, most=10**6) == 0
    assert taken_over([large], large // 2, most=large) == 0
    assert taken_over([], 5, most=10) == 0


def test_only_the_newest_layer_of_a_person_counts() -> None:
    def row(person: str | None, rank: int, layer: int | None, time: int) -> dict[str, Any]:
        return {
            "person": person,
            "rank": rank,
            "layer": layer,
            "time": time,
            "fresh": layer is None,
        }

    told = [
        row("ann", rows.RANK_PERSON, 0, 1),
        row("ann", rows.RANK_OPEN, 0, 2),
        row("ann", rows.RANK_PERSON, 1, 3),
        row("bob", rows.RANK_PERSON, 0, 4),
        row("bob", rows.RANK_OPEN, 0, 5),
        row("ann", rows.RANK_SIGHTING, None, 6),
        row(None, rows.RANK_DEAD, None, 7),
    ]
    left = newest(pa.Table.from_pylist(told, schema=rows.TAKEN))
    assert left["time"].to_pylist() == [3, 4, 5, 6, 7]


def test_layers_of_earlier_versions_do_not_say_when_and_all_are_looked_at(tmp_path: Path) -> None:
    folder = tmp_path / f"kind={rows.OPEN}"
    folder.mkdir()
    pq.write_table(
        pa.table({"person": ["ann"], "numbers": [b""], "texts": [""]}), folder / "1.parquet"
    )
    layers = Layers([tmp_path])
    assert layers.due(NEVER + 1, 0, most=1) == {"ann"}
    assert layers.due(NEVER + 1, 0, most=0) is None


def test_a_worker_without_the_shared_folders_says_so_and_makes_none(tmp_path: Path) -> None:
    scan = ScanTask(new_keys("trusted.example.org", os.urandom), AgentSettings(), EVER)
    target = tmp_path / "private" / "batches" / "00000001"
    task = WriteTask(scan, str(target), ArchiveSettings())
    with pytest.raises(MissingError, match=r"does not see .*private folder"):
        ScanAndWrite(task).written(rows.TAKEN.empty_table())
    with pytest.raises(MissingError, match="does not see the archive"):
        Storage(tmp_path / "archive").create("span=hours/x.parquet")
    assert list(tmp_path.iterdir()) == []
