"""Transition counts by Spark, from archives and journals, and what is left out of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roamcast.errors import InputError
from roamcast.journal.book import Journal
from roamcast.journal.segments import Segments
from roamcast.model.context_arrow import to_arrow
from roamcast.model.contexts import Context
from roamcast.model.records import ContextChanged, ContextClosed, ContextOpened
from roamcast.model.transitions import read_transitions
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.transitions import transitions
from tests.strategies_pipeline import BEGIN

pytestmark = [pytest.mark.spark]

WALKS = [["a/1", "a/2", "b/1"]] * 6 + [["a/1", "a/2", "c/1"]] * 4 + [["a/1", "a/1"]]
COUNTS = {"a/1": {"a/2": 10}, "a/2": {"b/1": 6}}
"""Four who went to c are below k."""


TO_AND_FRO = ["d/1", "d/2"] * 10
"""One who goes so often is still one."""


def archive(folder: Path) -> Path:
    steps = [
        Context(f"v{who}", place, None, {}, BEGIN + 1_000_000 * at, BEGIN + 1_000_000 * (at + 1))
        for who, walk in enumerate([*WALKS, TO_AND_FRO])
        for at, place in enumerate(walk)
    ]
    append(to_arrow(steps), folder)
    return folder


def journals(folder: Path) -> Path:
    """Three brokers' journals: who crosses opens a context at the other one."""
    books = {name: Journal(Segments(folder, name)) for name in "abc"}
    for at in range(3):
        for who, walk in enumerate(WALKS):
            if at >= len(walk):
                continue
            node, vid = walk[at][0], f"v{who}"
            began = at == 0 or walk[at - 1][0] != node
            kind = ContextOpened if began else ContextChanged
            books[node].write(BEGIN + 1_000_000 * at + who, node, kind(vid, walk[at]))
            if began and at:
                left = ContextClosed(vid)
                books[walk[at - 1][0]].write(BEGIN + 1_000_000 * at + who, walk[at - 1][0], left)
    for book in books.values():
        book.close()
    return folder


def test_moves_of_one_vid_are_counted_and_rare_ones_left_out(spark: Any, tmp_path: Path) -> None:
    assert transitions(spark, [archive(tmp_path / "archive")], k=5).counts == COUNTS
    assert transitions(spark, [journals(tmp_path / "books")], k=5).counts == COUNTS
    assert transitions(spark, [tmp_path / "archive"], k=7).counts == {"a/1": {"a/2": 10}}


def test_the_command_writes_what_brokers_read(command: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "transitions.json"
    source = archive(tmp_path / "archive")
    told = command("pipeline", "plan", "transitions", source, "--out", out, "--json")
    assert msgspec.json.decode(told) == {"places": 2, "pairs": 2, "k": 5}
    assert read_transitions(out.read_bytes()).counts == COUNTS


def test_without_a_source_nothing_is_counted(spark: Any) -> None:
    with pytest.raises(InputError, match="give an archive"):
        transitions(spark, [], k=5)
