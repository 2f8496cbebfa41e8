"""The package as users install it: sdist, then a wheel made from it where there is no node."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from random import Random

import pytest

ROOT = Path(__file__).parents[1]
BUILT = ROOT / "src" / "roamcast" / "page" / "index.html.gz"
NODE = Path(sys.executable).with_name("node")
ASK = """
import asyncio, sys
from pathlib import Path

import roamcast
from roamcast.live.auth.admission import TokenKeys
from roamcast.live.config.settings import Settings
from roamcast.live.http import page
from roamcast.live.http.app import make_gate
from roamcast.live.observe.metrics import Metrics
from roamcast.live.service.service import Service
from roamcast.live.store.store import SqliteStore

assert "site" in roamcast.__file__, roamcast.__file__
print(*sorted(page.built()))


async def main(folder):
    disk = SqliteStore.open(folder / "store.db")
    service = Service(Settings(), disk=disk, keys=TokenKeys.open(folder), metrics=Metrics())
    answer = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        answer.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": "/", "raw_path": b"/", "query_string": b"", "root_path": "",
        "headers": [(b"host", b"here"), (b"accept", b"text/html")], "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }
    await make_gate(service)(scope, receive, send)
    print(answer[0]["status"], b'<div id="app">' in b"".join(one["body"] for one in answer[1:]))
    await service.stop()


asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.process
@pytest.mark.parametrize(("kilobytes", "code"), [(519, 0), (521, 1)])
def test_a_page_beyond_its_budget_is_not_built(tmp_path: Path, kilobytes: int, code: int) -> None:
    if not NODE.exists():
        pytest.skip("node is not installed: make setup")
    built = tmp_path / "src" / "roamcast" / "page"
    built.mkdir(parents=True)
    (tmp_path / "web").mkdir()
    shutil.copy(ROOT / "web" / "pack.ts", tmp_path / "web")
    (built / "noise.js").write_bytes(Random(1).randbytes(kilobytes * 1024))
    done = subprocess.run(
        [NODE, "pack.ts"], cwd=tmp_path / "web", capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert ("the page is too large" in done.stderr) == bool(code)


@pytest.mark.process
def test_a_wheel_made_from_the_sdist_without_node_has_the_page(tmp_path: Path) -> None:
    if not BUILT.exists():
        pytest.skip("the page is not built: make web")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = "/usr/bin:/bin"
    _build(ROOT, "sdist", tmp_path / "sdist", environment)
    (packed,) = (tmp_path / "sdist").glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        assert not [name for name in archive.getnames() if "node_modules" in name]
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not before 3.11.4
        archive.extractall(tmp_path / "source")
    (source,) = (tmp_path / "source").iterdir()
    assert (source / "web" / "package-lock.json").exists()
    _build(source, "wheel", tmp_path / "wheel", environment)
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    shown = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASK, str(tmp_path)],
        env={**environment, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True, text=True, check=True, cwd=tmp_path,
    ).stdout  # fmt: skip
    names, answer = shown.splitlines()
    assert "index.html" in names.split()
    assert {name.rpartition(".")[2] for name in names.split()} == {"css", "html", "js", "svg"}
    assert answer == "200 True"


def _build(source: Path, target: str, into: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
    subprocess.run(command, cwd=source, env=environment, check=True, capture_output=True)
