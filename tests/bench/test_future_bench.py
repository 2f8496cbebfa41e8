"""The bench of cached casts runs at a tiny size, and its filters are those that parsing gives."""

from types import ModuleType

import pytest

from roamcast.lab import registry
from roamcast.lab.report import QUIET


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return registry.bench("future")


@pytest.mark.slow
def test_the_report_has_a_row_for_each_size(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "CONTEXTS", 20)
    monkeypatch.setattr(bench, "SAMPLE", 20)
    report = bench.measure((300, 2_000), QUIET)
    assert [row["casts"] for row in report.rows] == [300, 2_000]
    assert all(row["scan_us"] > 0 and row["stored_bytes"] > 50 for row in report.rows)
    assert [claim.bar for claim in report.claims][1:] == [1000]


def test_a_million_casts_have_a_bar(bench: ModuleType) -> None:
    row = {
        "casts": 1_000_000,
        "times": 51.0,
        "restart_s": 60.0,
        "restart_parsed_s": 500.0,
        "memory_mb": 600.0,
    }
    claims = bench._claims([row])
    assert [(claim.bar, claim.held) for claim in claims] == [
        (500.0, True),
        (1000, True),
        (50, True),
    ]
