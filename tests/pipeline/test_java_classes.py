"""Java keeps Spark's classes, uses them where they fit, and says nothing where they do not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from roamcast.errors import RoamcastError
from roamcast.pipeline.spark import java_classes
from tests.pipeline.clusters import need_java

pytestmark = pytest.mark.process

SHOWN = """
from roamcast.pipeline.spark.session import Settings, started
with started(Settings(master="local[1]", memory="1g")) as spark:
    print(spark.range(7).count())
"""


def shown(file: Path, options: str) -> str:
    """Count in a session that is told of a file, and give everything it says."""
    done = subprocess.run(
        [sys.executable, "-c", SHOWN],
        env=os.environ | {java_classes.VARIABLE: str(file), "SPARK_SUBMIT_OPTS": options},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.spark
@pytest.mark.soak  # four starts of Spark
def test_kept_classes_are_used_and_a_file_that_does_not_fit_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_java()
    monkeypatch.delenv(java_classes.VARIABLE, raising=False)
    kept = java_classes.FILE
    if not kept.exists():  # setting this environment up made it, where there was Java
        java_classes.make()
    assert java_classes.options()[0] == f"-XX:SharedArchiveFile={kept}"
    told = shown(kept, "-Xlog:class+load=info")
    assert "org.apache.spark.sql.SparkSession source: shared objects file (top)" in told
    changed = bytearray(kept.read_bytes())
    changed[64:4_096] = bytes(4_032)  # where it says of which Java it is
    file = tmp_path / "changed.jsa"
    file.write_bytes(changed)
    unfit = shown(file, "-XX:TieredStopAtLevel=1")
    assert unfit.splitlines() == ["7"], "nothing of classes, nor of incubators"


def test_java_is_told_of_no_file_that_is_not_there_or_cannot_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(java_classes.VARIABLE, "")
    assert java_classes.options() == []
    for name in ("none.jsa", "a b.jsa"):
        monkeypatch.setenv(java_classes.VARIABLE, str(tmp_path / name))
        (tmp_path / "a b.jsa").touch()
        assert java_classes.options() == []


def test_what_java_did_not_keep_is_told_and_no_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(RoamcastError, match="JAVA_HOME"):
        java_classes.make(tmp_path / "classes.jsa")
    assert not list(tmp_path.iterdir())
