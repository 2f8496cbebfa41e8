"""Java's class data sharing for Spark: a session starts seconds sooner.

Most of what a short job takes, Java spends on reading and checking thousands of Spark's classes.
`make` stores the loaded classes in a file beside this Python environment; `scripts/setup.sh` calls
it, and sessions whose driver runs here use the file. A Java or a Spark that does not fit the file
ignores it (decision 0085).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from roamcast import files
from roamcast.errors import RoamcastError

VARIABLE: Final = "ROAMCAST_JAVA_CLASSES"
"""Names another file; empty: none is used."""

FILE: Final = Path(sys.prefix) / "share" / "roamcast" / "spark-classes.jsa"
TIMEOUT_S: Final = 300
_QUIET: Final = "-Xlog:cds*=off"
SIGHTING: Final = (
    '{"person": "p", "source": "badge", "time": "2026-01-01T00:00:00Z", "place": "a"}\n'
)
"""The shortest job there is; `bench run start` times it."""


def options() -> list[str]:
    """Return the Java options that use the shared class file, if there is one."""
    file = os.environ.get(VARIABLE, str(FILE))
    if not Path(file).is_file() or " " in file:  # Spark would take a space for the next option
        return []
    return [f"-XX:SharedArchiveFile={file}", "-Xshare:auto", _QUIET]


def make(file: Path = FILE) -> None:
    """Run a short ingest and save the classes that it loads."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        (folder / "in" / "one.jsonl").write_text(SIGHTING)
        written = folder / "classes.jsa"
        words = ["pipeline", "ingest", "in", "--archive", "archive", "--watch", "--until-idle"]
        words += ["--on", "spark"]
        told = {
            "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={written} {_QUIET}",
            "ROAMCAST_SPARK": "local[2]",
            VARIABLE: "",  # Java can not do both
        }
        try:
            # Java writes after Python has ended, but holds its output open until then
            done = subprocess.run(  # noqa: S603 - ourselves
                [sys.executable, "-m", "roamcast", *words],
                cwd=folder,
                env=os.environ | told,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RoamcastError(f"Java did not end within {TIMEOUT_S} s") from None
        if done.returncode or not written.exists():
            reason = (done.stderr.strip().splitlines() or ["it wrote no classes"])[-1]
            raise RoamcastError(f"Java kept no classes of Spark: {reason}")
        file.parent.mkdir(parents=True, exist_ok=True)
        moved = file.with_suffix(f".{os.getpid()}")
        shutil.move(written, moved)
        files.move_into_place(moved, file)  # Java crashes on half a file
