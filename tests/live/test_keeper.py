"""`roamcast keep`: a service that falls or hangs is started again, at the same address."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

READY_S = 300.0


@contextmanager
def keep(data: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "roamcast", "keep", "--json", "--data", str(data), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    timer = threading.Timer(READY_S, process.kill)
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def ready(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    said: dict[str, Any] = json.loads(process.stdout.readline())
    return said


def gone(pid: int, seconds: float = 120.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except FileNotFoundError:
            return True
        if state[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_service_that_hangs_is_replaced_and_one_without_a_keeper_ends(tmp_path: Path) -> None:
    with keep(tmp_path, "--port", "0") as process:
        first = ready(process)
        os.kill(first["pid"], signal.SIGSTOP)
        second = ready(process)
        assert second["url"] == first["url"]
        assert second["pid"] != first["pid"]
        assert gone(first["pid"])
        with urllib.request.urlopen(f"{second['url']}/healthz", timeout=60) as answer:
            assert answer.status == 200
        process.kill()  # and now the keeper itself
        assert gone(second["pid"])


def test_a_mistake_in_the_settings_ends_the_keeper_with_its_reason(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with keep(tmp_path, "--port", port, "--no-spare") as process:
            _, said = process.communicate(timeout=READY_S)
            assert process.returncode == 2
            assert b"could not start" in said


def test_the_keeper_and_its_service_end_together_when_asked(tmp_path: Path) -> None:
    with keep(tmp_path, "--port", "0", "--no-spare") as process:
        service = ready(process)
        process.terminate()
        assert process.wait(120) == 0
        assert gone(service["pid"])
