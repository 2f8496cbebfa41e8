"""Sightings of a DataFrame become the contexts that the same rows of a file become."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roamcast.errors import InputError
from roamcast.pipeline import IngestSettings, Reading, contexts, ingest_sightings
from roamcast.pipeline.archive.layout import ArchiveSettings
from roamcast.pipeline.ingest.dead_letters import dead_letters
from tests.pipeline.test_spark_ingest import open_state, table_of

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SAID = ["person", "source", "time", "place", "attributes"]
ROWS = [
    (f"p{n % 7}", "badge" if n % 10 else "smell", BEGIN + timedelta(minutes=n), f"a/{n % 3}",
     None if n % 2 else f'{{"role":"r{n % 4}"}}')
    for n in range(200)
]  # fmt: skip


def lived(archive: Path) -> list[Any]:
    names = ["place", "t_r", "t_d"]
    return sorted(map(repr, table_of(archive).select(names).to_pylist()))


def test_rows_of_a_data_frame_are_ingested_as_those_of_a_file(
    anywhere: Any, tmp_path: Path
) -> None:
    frame = anywhere.createDataFrame(ROWS, ", ".join(f"{n} string" for n in SAID).replace(
        "time string", "time timestamp"))  # fmt: skip
    exact = IngestSettings(archive=ArchiveSettings(grid_s=0))
    counted = ingest_sightings(anywhere, frame.repartition(3), tmp_path / "archive", settings=exact)
    assert (counted["sightings"], counted["malformed"]) == (200, 20)
    pq.write_table(pa.table(dict(zip(SAID, zip(*ROWS, strict=True), strict=True))),
                   tmp_path / "x.parquet")  # fmt: skip
    for _ in range(2):  # a file is taken once
        again = ingest_sightings(
            anywhere, tmp_path / "x.parquet", tmp_path / "other", settings=exact
        )
        assert again["sightings"] in {200, 0}
    assert lived(tmp_path / "archive") == lived(tmp_path / "other")
    assert contexts(anywhere, tmp_path / "archive").count() == counted["contexts"] > 20
    with open_state(tmp_path) as state:
        letters = dead_letters(state)
        assert set(letters["reason"].to_pylist()) == {
            "source is not one of badge, wifi, login, gps"
        }
        assert not (state.folder / "streamed").exists(), "it names people"
    assert ingest_sightings(anywhere, frame.limit(0), tmp_path / "archive")["sightings"] == 0


def test_a_data_frame_that_cannot_hold_sightings_leaves_nothing_behind(
    spark: Any, tmp_path: Path
) -> None:
    frame = spark.createDataFrame([(1, "x", 1.5)], "uid int, place string, time double")
    reading = Reading(columns={"person": "uid"}, constants={"source": "gps"})
    for settings, reason in (
        (None, "column 'person' is missing"),
        (IngestSettings(reading=reading), "column 'time' cannot be of type double"),
    ):
        with pytest.raises(InputError, match=f"the DataFrame: {reason}"):
            ingest_sightings(spark, frame, tmp_path / "archive", settings=settings)
    with pytest.raises(InputError, match="no such file"):
        ingest_sightings(spark, [tmp_path / "none.jsonl"], tmp_path / "archive")
    assert list(tmp_path.iterdir()) == []
