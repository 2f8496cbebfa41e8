"""The package as users install it: sdist, then a wheel made from it where there is no node."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from random import Random
from urllib.request import Request, urlopen

import pytest

from roamcast.live.http.page import POLICY

ROOT = Path(__file__).parents[1]
BUILT = ROOT / "src" / "roamcast" / "page" / "index.html.gz"
NODE = Path(sys.executable).with_name("node")
ASK = """
from roamcast.live.http import page
import roamcast
found = page.built()
assert "site" in roamcast.__file__, roamcast.__file__
print(*sorted(found))
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
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    assert (source / "web" / "package-lock.json").exists()
    _build(source, "wheel", tmp_path / "wheel", environment)
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    shown = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**environment, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True, text=True, check=True, cwd=tmp_path,
    ).stdout.split()  # fmt: skip
    assert "index.html" in shown
    assert {name.rpartition(".")[2] for name in shown} == {"css", "html", "js", "svg"}
    installed = {**environment, "PYTHONPATH": str(tmp_path / "site")}
    words = ["-m", "roamcast", "serve", "--json", "--port", "0", "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        [sys.executable, *words], env=installed, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as service:
        assert service.stdout is not None
        try:
            url = json.loads(service.stdout.readline())["url"]
            wanted = Request(url, headers={"accept": "text/html"})
            with urlopen(wanted) as answer:
                assert b'<div id="app">' in answer.read()
                assert answer.headers["content-security-policy"] == POLICY
        finally:
            service.terminate()


def _build(source: Path, target: str, into: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
    subprocess.run(command, cwd=source, env=environment, check=True, capture_output=True)
