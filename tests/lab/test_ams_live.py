"""The live meeting's figure: one real meeting, and its sums by hand."""

from pathlib import Path
from typing import Any

import pytest

from roamcast.lab import ams_3_live as figure
from roamcast.lab._ams_live import Namespace
from roamcast.lab.ams_3_live import WAYS, Spent, measure
from roamcast.lab.report import QUIET

pytestmark = pytest.mark.process

PEOPLE = 4


def test_everybody_in_a_real_meeting_sees_everybody() -> None:
    way = "many channels by UDP"
    with Namespace() as network:
        row = measure(way, PEOPLE, 0.2, network.around)
    assert row["missing"] == 0
    assert row["by"] == WAYS[way][1] or not network.around
    # The kernel divides the time by its ticks, of which a short meeting may have none.
    assert row["service_us_per_update"] + row["kernel_us_per_update"] > 0
    assert row["mean_ms"] > 0


def row_of(way: str, people: int) -> dict[str, Any]:
    """A meeting in which a person costs 100 µs by unicast; UDP is carried to any size."""
    alone = way == "unicast"
    carried = people <= 100 or not alone
    return {
        "way": way,
        "people": people,
        "by": WAYS[way][1],
        "mean_ms": 5.0 if carried else 2_000.0,
        "missing": 0,
        "carried": carried,
        "service_us_per_update": 100 * people if alone else 500,
        "kernel_us_per_update": 0,
        "waited_for": "" if carried else "service",
    }


def test_meetings_grow_until_one_is_too_large_and_the_largest_is_told_of_each_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, int]] = []

    def measured(way: str, people: int, seconds: float, around: list[str]) -> dict[str, Any]:
        del seconds, around
        asked.append((way, people))
        return row_of(way, people)

    monkeypatch.setattr(figure, "measure", measured)
    monkeypatch.setattr(figure, "move_s", lambda *_: 1e-3)
    report = figure.run(False, QUIET)
    assert [people for way, people in asked if way == "unicast"] == [25, 50, 100, 150]
    said = report.parameters
    assert said["largest measured, unicast"] == 100
    assert said["largest measured, many channels by UDP"] == 800
    # 240 s of 100 µs for each of n by each of n, and a second's delay
    assert said["by the service in meeting_s, unicast"] == pytest.approx(1_550, rel=0.05)
    ratios = {claim.claim: claim.ours for claim in report.claims}
    assert ratios["many channels by UDP carries a larger meeting than unicast, times"] == 8
    assert ratios["in a meeting of 150 an update costs the service itself less by UDP, times"] == 30
    figure.draw(report, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 10_000


def test_processor_time_is_shared_between_program_and_kernel_by_ticks() -> None:
    before = Spent(1.0, 100, 50)
    assert Spent(3.0, 160, 90).since(before) == pytest.approx((1.2, 0.8))
    assert Spent(1.5, 100, 50).since(before) == (0.5, 0.0)
