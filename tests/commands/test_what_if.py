"""`roamcast what-if`: a journal replayed with another setting."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from roamcast.cli import build
from roamcast.errors import InputError
from roamcast.journal.book import Entry
from roamcast.journal.segments import Segments
from roamcast.model.contexts import Context, body_of
from roamcast.model.records import ContextOpened, QueryStep, UpdateMatched

BEGIN = 1_790_000_000_000_000
SECOND = 1_000_000


def journal(folder: Path, host: str = "b1", clients: int = 5) -> Path:
    """Write a minute in which people walk and clients on links watch all of them."""
    entries: list[Entry] = []
    for number in range(clients):
        step = QueryStep(1, "placed", f"c{number}", epoch=1, filter="true", view_class="*")
        entries.append((BEGIN, host, step))
    for number in range(60):
        at, vid, room = BEGIN + number * SECOND, f"v{number % 7}", number % 9
        context = Context(vid, f"campus/b1/1/10{room:02}", None, {"type": "person"}, at)
        entries.append((at, host, ContextOpened(vid, context.place or "", at, body_of(context))))
        match = UpdateMatched(str(number), vid, "changed", 1, clients, "1", epoch=1)
        entries.append((at, host, match))
    segments = Segments(folder, host)
    segments.add(entries)
    segments.close()
    return folder


def run(*words: str) -> Any:
    return CliRunner().invoke(build(), ["what-if", *words])


def test_q_tells_when_channels_pay_and_precision_what_is_shown(tmp_path: Path) -> None:
    folder = str(journal(tmp_path))
    done = run(folder, "--set", "subscribers_min=9", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["channels"]["was"]["transmissions"] == 60  # one channel for five
    assert found["channels"]["would"]["transmissions"] == 300  # one by one
    assert found["differences"]["contexts_max"] == 0
    done = run(folder, "--set", "default_precision=building", "--json")
    found = json.loads(done.output)
    assert (found["was"]["contexts"], found["would"]["contexts"]) == (7, 7)
    assert found["would"]["updates"] == 7 < found["was"]["updates"] == 60
    assert found["steps"] == 60


def test_the_table_says_both_and_how_they_differ(tmp_path: Path) -> None:
    done = run(str(journal(tmp_path)), "--set", "limit_bytes=1024", "--where", "type = 'person'")
    assert done.exit_code == 0, done.output
    assert "as it would have been" in done.output
    assert "the maps differed for" in done.output
    assert "60 changes replayed" in done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "limit_bytes"], "--set is NAME=VALUE"),
        (["--set", "limit_bytes=12"], "--set: Expected `int` >= 1024"),
        (["--set", "mode=many"], "unknown field `mode`"),
        (["--set", "limit_bytes=2000", "--where", "type ="], "position"),
        (["--set", "limit_bytes=2000", "--from", "noon"], "RFC 3339"),
        (["--set", "limit_bytes=2000", "--to", "2000-01-01T00:00:00Z"], "--from lies before --to"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, words: list[str], says: str) -> None:
    done = run(str(journal(tmp_path)), *words)
    assert isinstance(done.exception, InputError)
    assert says in str(done.exception)
    assert "\n" not in str(done.exception)


def test_a_folder_without_a_journal_or_with_two_brokers_is_refused(tmp_path: Path) -> None:
    tried = ["--set", "limit_bytes=2000"]
    assert "no journal segments there" in str(run(str(tmp_path), *tried).exception)
    journal(tmp_path)
    journal(tmp_path, "b2")
    assert "the journals of 2 hosts" in str(run(str(tmp_path), *tried).exception)
