"""The bench runs at a tiny size, and its workload is the published one, bit by bit."""

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from roamcast.lab import registry
from roamcast.lab.report import QUIET, to_json

PUBLISHED = Path(__file__).parents[3] / "shared" / "bench" / "gen_match_workload.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return registry.bench("match")


@pytest.mark.slow
def test_the_report_has_a_row_for_each_size_and_its_claims(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "CHANGES", 50)
    report = msgspec.json.decode(to_json(bench.measure((200, 500), 150, QUIET)))
    assert [(row["workload"], row["filters"]) for row in report["rows"]] == [
        ("friendly", 200),
        ("friendly", 500),
        ("unfriendly", 150),
    ]
    assert all(row["scan_us"] > 0 and row["batch_times"] > 0 for row in report["rows"])
    assert [claim["bar"] for claim in report["claims"]] == [10, 1]


def test_the_claims_name_every_bar_of_the_full_run(bench: ModuleType) -> None:
    row = {"one_by_one_times": 50.0, "batch_times": 99.0, "memory_mb": 600.0}
    rows = [row | {"filters": size} for size in (10_000, 100_000, 1_000_000)]
    claims = bench._claims(rows, row | {"filters": 100_000}, 20.0, 10.0)
    assert [(claim.bar, claim.held) for claim in claims] == [
        (40, True),
        (60, False),
        (100, False),
        (10, True),
        (1000, True),
        (1, True),
    ]


@pytest.mark.process
@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published generator is not beside us")
def test_the_workload_is_the_published_one(bench: ModuleType, tmp_path: Path) -> None:
    subprocess.run([sys.executable, PUBLISHED, tmp_path, "500", "20"], check=True)
    filters = (tmp_path / "workload_subs.jsonl").read_text(encoding="utf-8").splitlines()
    ours = islice(bench.workloads.filters(1000), 500)  # smaller sizes are prefixes of larger ones
    for line, one in zip(filters, ours, strict=True):
        assert json.loads(line)["preds"] == [list(predicate) for predicate in one]
    events = (tmp_path / "workload_events.jsonl").read_text(encoding="utf-8").splitlines()
    for line, attributes in zip(events, bench.workloads.contexts(20), strict=True):
        assert json.loads(line)["attrs"] == attributes
