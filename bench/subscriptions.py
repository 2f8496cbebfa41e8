"""What does a subscription cost to place, and what does it cost every update afterwards?

100,000 subscriptions are placed through WebSocket sessions of a service, many in a message, and
some one by one. In the same run they are placed through sessions of the service at an
older commit, if this is a clone that has it, which takes one in a message: CPU time of the
service's process. Then updates on one broker, with nobody and with 1,000 viewers whom rules name.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench._subscription_load import updated
from bench.service import PER_SESSION, crowd
from roamcast.lab.report import Claim, Report, Steps

TITLE = "subscriptions: placing 100,000 of them, and updates beside 1,000 named viewers"
HERE = Path(__file__).parent
OLD_COMMIT = "7296ca9"
"""Where placing a subscription cost 1.4 ms."""

SETTINGS = """
[limits]
requests_per_s = 100000.0
requests_burst = 1000000
frames_per_s = 100000.0
frames_burst = 1000000
connections_per_subject_max = 1000
[journal]
on = false
"""
UNPRICED = SETTINGS.replace(
    "[journal]", "steps_per_s = 1e12\nsteps_burst = 1000000000000\n[journal]"
)


@contextmanager
def served(folder: Path, package: Path, settings: str) -> Iterator[tuple[int, str, str]]:
    """Run a service of a package; give its process, its address and a token."""
    (folder / "settings.toml").write_text(settings, encoding="utf-8")
    command = [sys.executable, "-m", "roamcast", "serve", "--json", "--port", "0"]
    with subprocess.Popen(  # noqa: S603 - our own program
        [*command, "--data", str(folder / "data"), "--settings", str(folder / "settings.toml")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(package)},
    ) as process:
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            yield process.pid, said["url"], said["token"]
        finally:
            process.terminate()


def cpu_s(process: int) -> float:
    """Give the CPU seconds that a process has taken, to the nanosecond: /proc counts in 10 ms."""
    return time.clock_gettime(~process << 3 | 2)  # clock_getcpuclockid(3), which Python lacks


def placed_ms(
    folder: Path, package: Path, settings: str, count: int, step: Any, together: int
) -> list[float]:
    """Give the CPU milliseconds of a subscription: of the first session's, and of the last's."""
    spent = []
    with served(folder, package, settings) as (process, url, token):
        links = crowd(url, token, PER_SESSION, lambda _: None)  # the compiled code is loaded
        for part in (PER_SESSION, count - 2 * PER_SESSION, PER_SESSION):
            began = cpu_s(process)
            links += crowd(url, token, part, step, first=len(links), together=together)
            spent.append((cpu_s(process) - began) * 1_000 / part)
        for link in links:
            link.close()
    return spent


def old_package(folder: Path) -> Path | None:
    """Unpack the older commit; None where this is no clone that has it."""
    asked = ["git", "-C", str(HERE.parent), "archive", OLD_COMMIT, "src"]
    archive = subprocess.run(asked, capture_output=True, check=False)  # noqa: S603 - fixed words
    if archive.returncode:
        return None
    unpack = ["tar", "x", "-C", str(folder)]
    subprocess.run(unpack, input=archive.stdout, check=True)  # noqa: S603 - as above
    return folder / "src"


def run(quick: bool, progress: Steps) -> Report:
    """Place subscriptions, new and old, and update beside named viewers."""
    count, singly = (10_000, 3_000) if quick else (100_000, 10_000)
    viewers, updates = 1_000, 300
    rows: list[dict[str, Any]] = []
    claims: list[Claim] = []
    with (
        tempfile.TemporaryDirectory(prefix="roamcast-bench-") as made,
        progress("subscriptions", 2 * count + singly) as step,
    ):
        folder = Path(made)
        spent: dict[str, list[float]] = {}
        ours = HERE.parent / "src"
        for who, package, settings, placed, together in (
            ("this commit", ours, UNPRICED, count, PER_SESSION),
            ("this commit, one by one", ours, UNPRICED, singly, 1),
            (OLD_COMMIT, old_package(folder), SETTINGS, count, 1),
        ):
            if package is None:
                continue
            here = folder / who.replace(" ", "-")
            here.mkdir()
            first, middle, last = spent[who] = placed_ms(
                here, package, settings, placed, step, together
            )
            rows.append(
                {"what": "placing", "who": who, "first_ms": first, "ms": middle, "last_ms": last}
            )
    together_ms = spent["this commit"]
    growth = together_ms[2] / together_ms[0]
    claims.append(Claim("the last thousand beside the first", growth, growth <= 1.5, bar="<= 1.5"))
    if OLD_COMMIT in spent:
        faster = spent[OLD_COMMIT][1] / together_ms[1]
        claims.append(Claim(f"faster than {OLD_COMMIT}", faster, faster >= 10, bar=">= 10 times"))
    for interested in (False, True):
        alone = updated(viewers, updates, named=False, interested=interested) * 1e6
        named = updated(viewers, updates, named=True, interested=interested) * 1e6
        what = f"update, {viewers} viewers {'told' if interested else 'not concerned'}"
        rows.append({"what": what, "unnamed_us": alone, "named_us": named})
        held = named <= 2 * alone
        claims.append(Claim(f"{what}, beside nobody named", named / alone, held, bar="<= 2 times"))
    return Report("subscriptions", {"subscriptions": count, "viewers": viewers}, rows, claims)
