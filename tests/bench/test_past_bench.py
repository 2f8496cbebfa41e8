"""The bench of the past: what it looks for is told apart from what it wrote in earlier rounds."""

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

from bench.past import OPEN_VIDS, Crowd, grown, growth
from roamcast.errors import RoamcastError
from roamcast.model.contexts import Context


class Writer:
    """A session that takes a few writes and is gone then."""

    def __init__(self) -> None:
        self.states: list[tuple[str, Any]] = []

    async def put(self, context: Context) -> None:
        if len(self.states) > 20:
            raise RoamcastError("gone")
        self.states.append((context.vid, context.attributes["step"]))

    async def remove(self, vid: str) -> None:
        del vid


def test_no_state_is_written_twice_in_any_round() -> None:
    """The same state again would be the same piece, with its earlier begin."""
    steps, writers = count(1), [Writer(), Writer()]
    for writer in writers:
        asyncio.run(Crowd([writer], 1, steps).write(0))  # type: ignore[list-item]
    first, second = (writer.states for writer in writers)
    assert first
    assert not {vid for vid, _ in first} & {vid for vid, _ in second}
    assert not {step for _, step in first} & {step for _, step in second}


def test_what_a_question_reads_does_not_grow_with_the_log(tmp_path: Path) -> None:
    rows = [asyncio.run(grown(tmp_path, length)) for length in (3_000, 9_000)]
    assert rows[0]["steps_read"] == rows[1]["steps_read"] < OPEN_VIDS + 1_100
    assert rows[0]["vids_found"] == rows[1]["vids_found"]
    assert [claim.bar for claim in growth(rows)] == [0.2, 1.0]
