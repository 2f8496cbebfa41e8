"""Metrics, plan, load and sweep on three kinds of Spark: a journal gives the same on each."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.pipeline.clusters import (
    WAIT_SECONDS,
    Cluster,
    connect_server,
    environment,
    needs_connect,
)
from tests.pipeline.journal_jobs import results
from tests.strategies_journal import simulate

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@needs_connect
def test_a_cluster_and_connect_make_what_this_machine_makes(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    journals = tmp_path / "journals"
    simulate(journals, 3, limited=0, remote=0)
    with connect_server(tmp_path / "connect.log") as connect:
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.journal_jobs", *map(str, words)],
                cwd=Path(__file__).parents[2],
                env=environment(),
                stderr=subprocess.PIPE,
            )
            for words in (
                (cluster.master, journals, tmp_path / "cluster"),
                (connect, journals, tmp_path / "connect"),
            )
        ]
        want = msgspec.to_builtins(results(spark, journals, tmp_path / "here"))
        for process in started:
            _, told = process.communicate(timeout=WAIT_SECONDS)
            assert process.returncode == 0, told.decode()[-2_000:]
    assert len(want["contexts"]) > 20
    for name in ("cluster", "connect"):
        found = msgspec.json.decode((tmp_path / name / "results.json").read_bytes())
        assert found == want, name
