"""The page where npm can not be reached: the service starts without it, and `/` says why."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.page.conftest import ROOT, WEB
from tests.running_service import RunningService

NOWHERE = "http://127.0.0.1:9"
"""Nothing listens on the discard port."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout in which the page was never built.

    Packages are links, so that compiled kernels are found; the page's folder is the clone's own.
    """
    made = tmp_path / "clone"
    shutil.copytree(WEB, made / "web", ignore=shutil.ignore_patterns("node_modules"))
    (made / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "build_page.py", made / "scripts")
    package = made / "src" / "roamcast"
    package.mkdir(parents=True)
    for part in (ROOT / "src" / "roamcast").iterdir():
        if part.name != "page":
            (package / part.name).symlink_to(part)
    return made


@pytest.mark.process
def test_where_npm_can_not_be_reached_the_service_starts_and_the_root_says_why(
    clone: Path, tmp_path: Path
) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if "npm" not in name.lower()},
        "npm_config_registry": NOWHERE,
        "npm_config_cache": str(tmp_path / "npm"),
        "HOME": str(tmp_path),
    }
    built = subprocess.run(
        [sys.executable, clone / "scripts" / "build_page.py"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    reason = "`npm install` failed: is npm's registry reachable?"
    if "npm is missing" in built.stderr:
        pytest.skip("npm is not installed: make setup")
    assert built.returncode == 1
    assert f"the map page is not built: {reason}" in built.stderr
    assert not (clone / "web" / "node_modules" / "vite").exists()
    # the clone's sources come first: as a program of the environment, not by PYTHONPATH of ours
    first = ["env", f"PYTHONPATH={clone / 'src'}"]
    with RunningService(tmp_path, around=first) as running:
        assert running.get("/readyz").status == 200
        page = running.ask("GET", "/", headers={"accept": "text/html"})
        assert page.status == 200
        assert "not built" in page.body.decode()
        assert reason.replace("'", "&#x27;") in page.body.decode()
        assert running.put("ann", "campus/b1", type="person").status == 201  # all else works
