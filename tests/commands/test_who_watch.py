"""`roamcast who`, `nearest` and `watch` against a real service, as a person would use them."""

import itertools
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from roamcast.cli import build
from roamcast.commands._service import _templates, _values, wanted
from roamcast.errors import FilterError, InputError
from tests.running_service import RunningService

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(tmp_path_factory.mktemp("terminal")) as one:
        one.put("p1", "hq/2/copy", point=[9.1072, 48.7454], type="printer", name="north")
        one.put("p2", "hq/1", point=[9.1069, 48.7421], type="printer", name="south")
        one.put("ada", "hq/2/hall", type="person")
        yield one


def roamcast(running: RunningService, *arguments: str, **environment: str) -> Any:
    where = {"ROAMCAST_URL": running.url, "ROAMCAST_TOKEN": running.operator, **environment}
    done = CliRunner().invoke(build(), list(arguments), env=where)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_who_lists_what_satisfies_a_filter(running: RunningService) -> None:
    done = roamcast(running, "who", "--where", "within(place, 'hq/2')", "--json")
    features = json.loads(done.output)["features"]
    assert [one["id"] for one in features] == ["ada", "p1"]
    table = roamcast(running, "who", "--where", "type = 'printer'").output
    assert "hq/2/copy" in table
    assert "name=north" in table
    assert "ada" not in table
    assert "2 found" in table
    assert roamcast(running, "who").stderr == ""  # it has no other brokers beside it
    assert len(json.loads(roamcast(running, "who", "--json").output)["features"]) == 3
    assert (
        len(json.loads(roamcast(running, "who", "--limit", "2", "--json").output)["features"]) == 2
    )


def test_who_hints_at_quotes_on_stderr(running: RunningService) -> None:
    done = roamcast(running, "who", "--where", "type = printer", "--json")
    assert json.loads(done.stdout)["features"] == []
    assert "hint: position 8: printer is read as the name of an attribute" in done.stderr


def test_nearest_comes_by_distance(running: RunningService) -> None:
    asked = ["nearest", "--to", "9.1066,48.7425", "--template", "kind", "--with", "type=printer"]
    done = roamcast(running, *asked, "--count", "5", "--json")
    features = json.loads(done.output)["features"]
    assert [one["id"] for one in features] == ["p2", "p1"]
    assert [round(one["properties"]["distance_m"]) for one in features] == [50, 325]
    assert "south" in roamcast(running, *asked).output


def test_watch_prints_a_line_for_every_change(running: RunningService) -> None:
    done = roamcast(running, "watch", "--where", "type = 'printer'", "--changes", "3")
    lines = [json.loads(line) for line in done.output.splitlines()]
    assert {one.get("vid") for one in lines[:2]} == {"p1", "p2"}
    assert lines[0]["context"]["type"] == "Feature"
    assert lines[2] == {"kind": "current", "count": 2, "complete": True}


def test_watch_every_prints_each_event_once_and_in_order(running: RunningService) -> None:
    over = threading.Event()

    def publish() -> None:
        for number in itertools.count(1):
            properties = {"place": "hq/1", "door": "front" if number % 2 else "back"}
            event = {
                "feature": {"type": "Feature", "geometry": None, "properties": properties},
                "data": b64encode(b"%d" % number).decode(),
                "producer": "sensor", "life": 1, "number": number,
            }  # fmt: skip
            for _ in range(2):  # sent again, it comes once
                assert running.ask("POST", "/events", running.operator, event).status == 200
            if over.is_set():
                return

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        done = roamcast(running, "watch", "--every", "--where", "door = 'front'", "--changes", "3")
    finally:
        over.set()
        publishing.join()
    lines = [json.loads(line) for line in done.output.splitlines()]
    first = lines[0]["number"]
    assert [one["number"] for one in lines] == [first, first + 2, first + 4]
    for one in lines:
        assert (one["kind"], one["context"]["properties"]["door"]) == ("event", "front")
        assert b64decode(one["data"]) == b"%d" % one["number"]
        assert one["origin"]
    with pytest.raises(FilterError, match="position 8"):
        roamcast(running, "watch", "--every", "--where", "door = ")


def test_watch_on_a_terminal_is_a_table_that_lives(running: RunningService) -> None:
    mine, theirs = pty.openpty()
    environment = {**os.environ, "ROAMCAST_URL": running.url, "ROAMCAST_TOKEN": running.operator}
    environment |= {"COLUMNS": "160", "LINES": "30", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "roamcast", "watch", "--where", "within(place, 'hq/9')"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    try:
        _read_until(mine, "0 there now")
        running.put("bob", "hq/9/lab", type="person")
        _read_until(mine, "hq/9/lab")
        _read_until(mine, "1 there now")
        process.send_signal(signal.SIGINT)
        _read_until(mine, "")
        assert process.wait(180) == 0
    finally:
        process.kill()
        process.wait()
        os.close(mine)


def _read_until(handle: int, wanted: str, seconds: float = 180.0) -> None:
    """Read a terminal until it shows something; with nothing wanted, to its end."""
    shown = ""
    end = time.monotonic() + seconds
    while not wanted or wanted not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown):
        ready, _, _ = select.select([handle], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"{wanted!r} was not shown: {shown[-2000:]}"
        try:
            data = os.read(handle, 65_536)
        except OSError:  # the terminal is closed
            data = b""
        if not data:
            assert not wanted, shown[-2000:]
            return
        shown += data.decode(errors="replace")


def test_the_address_comes_from_the_data_folder_too(
    running: RunningService, tmp_path: Path
) -> None:
    nowhere = {"ROAMCAST_URL": "", "ROAMCAST_TOKEN": ""}
    done = roamcast(running, "who", "--data", str(running.data), "--json", **nowhere)
    assert len(json.loads(done.output)["features"]) >= 3
    for command in ("who", "watch"):
        with pytest.raises(Exception, match="roamcast serve"):
            roamcast(running, command, "--data", str(tmp_path), **nowhere)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["who", "--where", "type ="], "position"),
        (["who", "--template", "nope"], "there is no template 'nope'"),
        (["who", "--template", "in"], "lacks place"),
        (["who", "--with", "a=b"], "needs a --template"),
        (["who", "--template", "in", "--with", "place"], "NAME=VALUE"),
        (["who", "--template", "in", "--where", "TRUE"], "exclude each other"),
        (["nearest", "--to", "1"], "LON,LAT"),
        (["nearest", "--to", "200,0"], "outside the earth"),
        (["watch", "--where", "type ="], "position"),
    ],
)
def test_a_wrong_call_says_what_to_do(
    running: RunningService, arguments: list[str], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        roamcast(running, *arguments)


def test_templates_and_their_values_complete() -> None:
    assert ("kind-in", "one kind of thing in a place") in _templates("k")
    assert [name for name, _ in _templates("in")] == ["in"]

    chosen = SimpleNamespace(params={"template": "kind-in", "values": ["type=printer"]})
    assert _values(chosen, "") == ["place="]  # type: ignore[arg-type]
    assert "vid=" in _values(SimpleNamespace(params={}), "v")  # type: ignore[arg-type]
    filled = wanted(None, "kind-in", ["type=printer", "place=hq/2"])
    assert filled.source == "type = 'printer' AND within(place, 'hq/2')"
    with pytest.raises(FilterError):
        wanted("type =", None, None)


def test_a_shell_completes_templates() -> None:
    environment = {
        **os.environ,
        "_ROAMCAST_COMPLETE": "complete_bash",
        "COMP_WORDS": "roamcast who --template k",
        "COMP_CWORD": "3",
    }
    program = "import sys; sys.argv[0] = 'roamcast'; from roamcast.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["kind-in", "kind"], done.stderr
