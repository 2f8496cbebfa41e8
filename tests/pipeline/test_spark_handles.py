"""An ingest whose people are the live trusted node's: their vids resolve there."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from roamcast.identity.trusted.epochs import ShareEpoch
from roamcast.identity.trusted.register import EnrolPerson
from roamcast.pipeline.ingest.run import IngestSettings, SightingBatch, ingest_once
from roamcast.pipeline.ingest.state import opened
from roamcast.pipeline.ingest.trusted import archived_vids
from tests.identity.trusted.scene import Scene

pytestmark = pytest.mark.spark


def written(path: Path, people: dict[str, int]) -> Path:
    """Write one sighting a person, at some minute; one line is no sighting."""
    lines = [
        json.dumps(
            {
                "person": name,
                "source": "badge",
                "time": f"2026-01-01T10:{minute:02}:00Z",
                "place": "hq/1",
            }
        )
        for name, minute in people.items()
    ]
    path.write_text("\n".join([*lines, '{"person": "eve", "time": "?"}']) + "\n")
    return path


@pytest.mark.parametrize("here_rows", [None, -1], ids=["here", "spark"])
def test_people_of_sightings_are_those_of_the_trusted_node(
    spark: Any, tmp_path: Path, here_rows: int | None
) -> None:
    scene = Scene()
    live = scene.vids("ada")[0]
    scene.give(ShareEpoch, "ingest")
    asked: list[list[str]] = []

    def handles_of(people: Any) -> list[bytes]:
        asked.append(list(people))
        for path in tmp_path.glob("*.jsonl"):
            path.unlink()  # files are read once, before
        for name in people:
            scene.give(EnrolPerson, name)
        return [scene.node.handle_of(name) for name in people]

    def once(path: Path) -> SightingBatch:
        keys, archive = scene.node.shared_keys("ingest"), tmp_path / "archive"
        with opened(tmp_path / "private", archive, "x", os.urandom, keys) as state:
            state.handles_of = handles_of
            settings = IngestSettings(here_rows=here_rows)
            return ingest_once(spark, state, [path], settings, lambda: 10**16)

    first = once(written(tmp_path / "1.jsonl", {"ada": 0, "bob": 1}))
    assert (first.counts["people"], first.counts["malformed"], first.counts["late"]) == (2, 1, 0)
    # A person who is known is not asked for again; earlier rows are still filled in.
    second = once(written(tmp_path / "2.jsonl", {"ada": 30, "cid": 31}))
    assert (second.counts["people"], second.counts["late"]) == (3, 0)
    assert asked == [["ada", "bob"], ["cid"]], "nobody is enrolled for a malformed line"
    vids = [vid for column in archived_vids(tmp_path / "archive") for vid in column.to_pylist()]
    behind = sorted(one.hex() for one in scene.node.resolve(vids) if one is not None)
    people = ["ada", "ada", "bob", "cid"]
    assert behind == sorted(scene.node.handle_of(name).hex() for name in people)
    assert scene.node.resolve([live]) == [scene.node.handle_of("ada")]
    assert {vid.rpartition("@")[2] for vid in vids} == {scene.node.name}
