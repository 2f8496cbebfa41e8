"""A `lookup --watch` that is killed in the middle: every message gets its answer all the same."""

import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roamcast.pipeline.archive.append import append
from roamcast.pipeline.lookup.stream import answer_folder
from tests.pipeline.clusters import WAIT_SECONDS, kill_whole, watching
from tests.strategies_pipeline import contexts, expected, messages

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_watch_that_is_killed_answers_every_message(spark: Any, tmp_path: Path) -> None:
    table, asked = contexts(61, 200, days=2), messages(62, 30)
    append(table, tmp_path / "archive")
    encoded = [
        msgspec.json.encode({"id": name, "filter": one.source}) + b"\n"
        for name, one in asked.items()
    ]
    incoming, out = tmp_path / "in", tmp_path / "out"
    incoming.mkdir()
    for number in range(2):
        (incoming / f"{number}.jsonl").write_bytes(b"".join(encoded[number::3]))
    with watching(tmp_path, "in", stderr=subprocess.DEVNULL) as watch:
        until = time.monotonic() + WAIT_SECONDS
        while not (out / "answers-0.jsonl").exists():  # written before Spark counts the batch
            assert watch.poll() is None
            assert time.monotonic() < until
            time.sleep(0.005)
        kill_whole(watch)
    (incoming / "2.jsonl").write_bytes(b"".join(encoded[2::3]))
    answer_folder(spark, incoming, str(tmp_path / "archive"), out, once=True)
    lines = [
        line for path in out.glob("answers-*.jsonl") for line in path.read_bytes().splitlines()
    ]
    answers = [msgspec.json.decode(line) for line in lines]
    assert {one["id"]: one["vids"] for one in answers} == expected(table, asked)
    assert set(Counter(one["id"] for one in answers).values()) == {1}
