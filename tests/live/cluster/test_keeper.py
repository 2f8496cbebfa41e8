"""`roamcast keep`: a service that falls or hangs is started again, at the same address."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roamcast.commands.keep import say
from tests.running_service import RunningService

pytestmark = pytest.mark.process

DEADLINE_S = 300.0


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
    with RunningService(tmp_path, command=["keep"]) as kept:
        first = kept.greeting
        os.kill(first["pid"], signal.SIGSTOP)
        kept.wait_until_ready()
        second = kept.greeting
        assert second["url"] == first["url"]
        assert second["pid"] != first["pid"]
        assert gone(first["pid"])
        assert kept.get("/healthz").status == 200
        kept.kill()  # and now the keeper itself
        assert gone(second["pid"])


def test_a_mistake_in_the_settings_ends_the_keeper_with_its_reason(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "roamcast", "keep", "--data", str(tmp_path)]
        command += ["--port", port, "--no-spare"]
        done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 2
        assert b"could not start" in done.stderr


def test_the_keeper_and_its_service_end_together_when_asked(tmp_path: Path) -> None:
    with RunningService(tmp_path, command=["keep", "--no-spare"]) as kept:
        assert kept.end() == 0
        assert gone(kept.greeting["pid"])


def test_a_reader_that_has_gone_does_not_stop_the_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its service seemed to hang then, and was killed and started again for ever."""
    read, write = os.pipe()
    os.close(read)
    gone = os.fdopen(write, "w")
    monkeypatch.setattr(sys, "stdout", gone)
    say("Roamcast is ready")
    monkeypatch.undo()
    with pytest.raises(BrokenPipeError):  # it was written to
        gone.close()
