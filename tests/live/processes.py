"""Processes of members, and the wait until every member's view equals the service's."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0


class Process:
    """One process, optionally run by a command such as `ip netns exec NAME`."""

    def __init__(self, *command: str, around: list[str] | None = None) -> None:
        paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [*(around or []), sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the process ended: {self._process.args}"
        return json.loads(line)

    def ask(self, command: str, given: Any = None) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, given]) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> "Process":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


def members(given: dict[str, Any], around: list[str] | None = None) -> Process:
    return Process("-m", "tests.live.members", json.dumps(given), around=around)


def reports_of(processes: list[Process]) -> dict[str, Any]:
    """What every member shows, and what the service answers to it."""
    found: dict[str, Any] = {}
    for process in processes:
        found.update(process.ask("views"))
    return found


def wait_until_equal(processes: list[Process], way: str) -> dict[str, Any]:
    """Wait until every update was taken and every view equals the service's; give the reports."""
    end = time.monotonic() + DEADLINE_S
    while True:
        found = reports_of(processes)
        wrong = {
            name: one
            for name, one in found.items()
            if not one["published"] or one["way"] != way or one["shown"] != one["answered"]
        }
        if not wrong:
            return found
        assert time.monotonic() < end, "\n".join(map(_difference, wrong, wrong.values()))
        time.sleep(0.2)


def _difference(name: str, one: dict[str, Any]) -> str:
    shown, answered = one["shown"], one["answered"]
    lacks = [vid for vid in answered if shown.get(vid) != answered[vid]]
    beyond = [vid for vid in shown if vid not in answered]
    rest = {key: value for key, value in one.items() if key not in ("shown", "answered")}
    return f"{name}: {rest}; lacks {lacks[:5]}, shows beyond {beyond[:5]}"
