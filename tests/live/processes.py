"""Processes of the link harness, and the wait until every client's view equals the server's."""

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
    """One process of the harness, optionally run by a command such as `ip netns exec NAME`."""

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


def harness(role: str, given: dict[str, Any], around: list[str] | None = None) -> Process:
    return Process("-m", "tests.live.link_harness", role, json.dumps(given), around=around)


def wait_until_equal(
    server: Process, clients: list[Process], wanted: dict[str, str], updates: int, using: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ask until all updates were taken and every view equals the server's; give what was said."""
    end = time.monotonic() + DEADLINE_S
    while True:
        said = server.ask("views", wanted)
        reports: dict[str, Any] = {}
        published = True
        for process in clients:
            told = process.ask("views")
            published &= told["published"]
            reports.update(told["clients"])
        wrong = [
            name
            for name, report in reports.items()
            if not report["complete"]
            or report["using"] != using
            or report["view"] != said["views"][name]
        ]
        if published and said["updates"] >= updates and not wrong:
            return said, reports
        assert time.monotonic() < end, _difference(said, reports, wrong)
        time.sleep(0.2)


def _difference(said: dict[str, Any], reports: dict[str, Any], wrong: list[str]) -> str:
    lines = [f"{said['updates']} updates, {said['counts']}"]
    for name in wrong:
        report, right = reports[name], said["views"][name]
        differing = [vid for vid in right if report["view"].get(vid) != right[vid]]
        lines.append(f"{name}: { ({**report, 'view': None}) } lacks {differing[:5]}")
    return "\n".join(lines)
