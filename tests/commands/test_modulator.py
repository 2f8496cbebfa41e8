"""`roamcast modulator test` shows what becomes of events, and refuses with the reason."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from roamcast.cli import build
from roamcast.errors import InputError, MissingError, ModulatorError

EXAMPLES = Path(__file__).parents[2] / "examples" / "modulators"
READINGS = EXAMPLES / "readings.jsonl"


def ran(*arguments):
    found = CliRunner().invoke(build(), ["modulator", "test", *map(str, arguments)])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return [json.loads(line) for line in found.stdout.splitlines()]


def test_it_prints_answers_and_fuel():
    rows = ran(EXAMPLES / "rising.wat", "--events", READINGS, "--check")
    assert [row["passed"] for row in rows] == [True, True, False, True]
    assert all(row["fuel"] > 10 for row in rows)
    assert rows[1]["data"] == "AAAAAAAACEA="
    assert rows[1]["feature"]["id"] == "gauge-2"


def test_a_list_of_built_ins_runs_as_well():
    rows = ran(EXAMPLES / "levels.json", "--events", READINGS)
    assert [row["passed"] for row in rows] == [False, True, False, True]
    assert rows[1]["feature"]["properties"]["level"] == 3


def test_bad_input_names_file_and_line(tmp_path):
    bad = tmp_path / "bad.wat"
    bad.write_text("(module (func (export 'run')")
    with pytest.raises(ModulatorError, match=r"bad\.wat"):
        ran(bad, "--events", READINGS)
    with pytest.raises(MissingError):
        ran(tmp_path / "none.wasm", "--events", READINGS)
    events = tmp_path / "events.jsonl"
    events.write_text('{"type": "Feature", "data": "?"}\n')
    with pytest.raises(InputError, match="base64"):
        ran(EXAMPLES / "rising.wat", "--events", events)
