"""A field is added to a journal record in one place: the record.

The test does it as a maintainer would. It copies the package, adds one line to `Drop`, and writes
and reads a journal with the copy: the column is in the schema, in the segment's file, in Arrow and
in Spark's DataFrame, and an older segment reads with the default.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from roamcast.journal.book import Journal
from roamcast.journal.segments import Segments
from roamcast.model.records import Drop
from tests.pipeline.clusters import need_java

PACKAGE = Path(__file__).parents[2] / "src" / "roamcast"
BEFORE = '    reason: str\n    message: str = ""\n    bytes: int = 0\n'
LAST = '    peer: str = ""\n    channel: str = ""\n'
ADDED = "    retries: int = 7\n"

PROGRAM = """
import sys
from pathlib import Path

import roamcast
from roamcast.journal.book import Journal
from roamcast.journal.schema import SCHEMA
from roamcast.journal.segments import Segments, read_entries
from roamcast.model.records import Drop

folder = Path(sys.argv[1])
assert Path(roamcast.__file__).is_relative_to(folder.parent), roamcast.__file__
assert str(SCHEMA.field("retries").type) == "int64"
journal = Journal(Segments(folder, "b1"))
journal.write(2, "b1", Drop("loss", retries=3))
print(*journal.tail(1))
journal.close()
assert [record.retries for _, _, record in read_entries(folder)] == [7, 3]
if sys.argv[2:]:
    from roamcast.pipeline.journals.read import read_journals, segments
    from roamcast.pipeline.spark.session import Settings, started

    with started(Settings(master="local[1]", memory="1g")) as spark:
        rows = read_journals(spark, segments([folder])).orderBy("time_us").collect()
    assert [row["retries"] for row in rows] == [None, 3], rows
"""


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """Copy the package and add one line to one record."""
    shutil.copytree(PACKAGE, tmp_path / "roamcast", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "roamcast" / "model" / "records.py"
    text = path.read_text(encoding="utf-8")
    assert text.count(BEFORE + LAST) == 1
    path.write_text(text.replace(BEFORE + LAST, BEFORE + LAST + ADDED), encoding="utf-8")
    journal = Journal(Segments(tmp_path / "journal", "b1"))
    journal.write(1, "b1", Drop("loss"))  # by the version without the field
    journal.close()
    return tmp_path


def run(changed: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(changed / "journal"), *words],
        env=os.environ | {"PYTHONPATH": str(changed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
def test_a_new_field_is_in_schema_line_segment_and_arrow(changed: Path) -> None:
    assert "Drop reason=loss bytes=0 retries=3" in run(changed)
    first, second = sorted((changed / "journal").glob("*.parquet"))
    assert "retries" not in pq.read_schema(first).names
    assert pq.read_table(second, columns=["retries"]).to_pydict() == {"retries": [3]}


@pytest.mark.process
@pytest.mark.spark
def test_spark_reads_a_new_field_beside_segments_without_it(changed: Path) -> None:
    need_java()
    run(changed, "spark")
