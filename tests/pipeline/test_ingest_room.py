"""An archive has room for so many attribute names. What is beyond stops nothing."""

from pathlib import Path
from typing import Any

import pytest

from roamcast.pipeline.archive import table as archive_table
from roamcast.pipeline.archive.table import Archive
from roamcast.pipeline.ingest.dead_letters import counted
from roamcast.pipeline.ingest.scan import NO_ROOM, Spoken
from tests.pipeline.test_spark_ingest import line, once, open_state, table_of


def test_attributes_without_room_are_told_and_the_others_are_gathered() -> None:
    spoken = Spoken([0, 1, 2, 3], frozenset({"integer:a", "string:b"}))
    assert spoken.canonical('{"a": 1, "b": "x"}') == ('{"integer:a":1,"string:b":"x"}', None)
    assert spoken.canonical('{"a": 1, "c": 1}') == (None, NO_ROOM)
    assert spoken.canonical('{"a": "another type"}') == (None, NO_ROOM)
    assert spoken.canonical("{}") == (None, None)
    assert spoken.columns == {"integer:a", "string:b"}


@pytest.mark.spark
def test_names_beyond_the_limit_are_dead_letters_and_every_batch_goes_on(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_table, "COLUMNS_MAX", 3)
    archive = tmp_path / "archive"

    def take(number: int, **people: dict[str, Any]) -> tuple[int, int]:
        path = tmp_path / f"{number}.jsonl"
        rows = [line(person, attributes=attributes) for person, attributes in people.items()]
        path.write_text("\n".join(rows))
        counts = once(spark, tmp_path, path).counts
        return counts["contexts"], counts["malformed"]

    assert take(1, ann={"a": 1, "b": 1}) == (1, 0)
    # one more fits, whichever task meets it: the first by its name
    assert take(2, bob={"z": 1}, cyd={"c": 1, "a": 2}, dan={"d": 1}, eve={}) == (2, 2)
    assert Archive.open(archive).columns() == ["integer:a", "integer:b", "integer:c"]
    # full: nothing is scanned twice any more
    assert take(3, fay={"b": 7}, gus={"b": "a text is another column"}) == (1, 1)
    with open_state(tmp_path) as state:
        assert counted(state) == {NO_ROOM: 3}
    rows = table_of(archive).select(["integer:a", "integer:b", "integer:c"]).to_pylist()
    found = [tuple(row.values()) for row in rows]
    assert sorted(found, key=str) == sorted(
        [(1, 1, None), (2, None, 1), (None, None, None), (None, 7, None)], key=str
    )
    assert not list((tmp_path / "archive.private").rglob("*.arrow"))


@pytest.mark.spark
def test_whoever_still_stays_has_the_room_that_its_sightings_took(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_table, "COLUMNS_MAX", 1)
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    first.write_text(line("ann", attributes={"z": 1}))
    second.write_text(line("bob", attributes={"a": 1}))
    assert once(spark, tmp_path, first, finish=False).counts["contexts"] == 0
    counts = once(spark, tmp_path, second).counts
    assert (counts["contexts"], counts["malformed"]) == (1, 1)
    assert table_of(tmp_path / "archive")["integer:z"].to_pylist() == [1]
