"""A stranger's path: the blocks of docs/first-system.md, one script in an empty folder."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nats_server import BINARY

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "first-system.md").read_text("utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
PORTS = (8090, 4222, 8441, 8442, 8443, 7077)
DEADLINE_S = 900.0


def test_the_page_has_its_six_steps() -> None:
    assert len(BLOCKS) == 6


@pytest.mark.soak
@pytest.mark.process
def test_following_only_the_page_a_cast_arrives_and_spark_answers(tmp_path: Path) -> None:
    for port in PORTS:
        with socket.socket() as asked:
            if asked.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"something listens on port {port}, which the page uses")
    assert BINARY is not None
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{Path(BINARY).parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT / "src"),
        **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
    }
    script = "set -euo pipefail\n" + "\n".join(BLOCKS)
    with (tmp_path / "told.txt").open("w+", encoding="utf-8") as told:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=tmp_path, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=told, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            code = shell.wait(DEADLINE_S)
        finally:
            os.killpg(shell.pid, signal.SIGTERM)  # everything the page started, and nothing else
        told.seek(0)
        text = told.read()
    assert code == 0, text
    assert "The minutes are at …" in text
    assert "was within campus/b1/hall" in text  # the receipt
    assert re.search(r"campus/b1/hall\W.*\b5\b", text), text  # what the pipeline counts
