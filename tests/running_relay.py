"""A real `roamcast relay` of a running service, in a process of its own."""

import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from tests.running_service import START_DEADLINE_S, RunningService, _line


class RunningRelay(RunningService):
    """Started when entered, ended by SIGTERM when left."""

    def __init__(
        self,
        folder: Path,
        service: RunningService,
        settings: str = "",
        *arguments: str,
        token: str = "",
    ) -> None:
        """`token`: the relay's own; the service's operator's without one."""
        super().__init__(folder, settings, data=service.data)
        self.operator = token or service.operator
        self._arguments = [service.url, "--token", self.operator, *arguments]

    def start(self) -> None:
        command = [sys.executable, "-m", "roamcast", "relay", *self._arguments, "--json"]
        command += ["--settings", str(self._settings), "--listen", f"127.0.0.1:{self.port}"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        line = _line(self.process, START_DEADLINE_S)
        if not line:
            self.kill()
            raise AssertionError(f"the relay did not start: {self.log}")
        self.url = msgspec.json.decode(line)["url"]
        self.port = urlsplit(self.url).port or 0

    def held(self, what: str) -> float:
        """Read one of the relay's numbers."""
        answer = self.ask("GET", "/metrics", self.operator)
        assert answer.status == 200, answer
        line = f'roamcast_held{{what="{what}"}} '
        lines = answer.body.decode().splitlines()
        return float(next(one.removeprefix(line) for one in lines if one.startswith(line)))
