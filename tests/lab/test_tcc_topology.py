"""The trade-off topology's figure, and the fit it relies on."""

from pathlib import Path

import numpy as np
import pytest

from roamcast.lab import tcc_topology
from roamcast.lab._powerlaw import fit_body, fit_power, power_over_exponential
from roamcast.lab.report import QUIET, Report


@pytest.fixture(scope="module")
def report() -> Report:
    return tcc_topology.run(True, QUIET)


@pytest.mark.slow
def test_what_the_source_says_of_its_topology_holds(report: Report) -> None:
    assert [claim.claim for claim in report.claims if not claim.held] == []
    assert len(report.claims) == 9


def test_the_exponent_is_told_with_its_spread(report: Report) -> None:
    found = [r for r in report.rows if r.get("quantity") == "exponent"]
    assert len(found) == 4
    assert all(row["lowest"] <= row["ours"] <= row["highest"] for row in found)


@pytest.mark.slow
def test_it_can_be_drawn(report: Report, tmp_path: Path) -> None:
    tcc_topology.draw(report, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def power_sample(exponent: float, low: int, high: int, count: int) -> np.ndarray:
    support = np.arange(low, high + 1)
    law = support.astype(float) ** -exponent
    return np.random.default_rng(1).choice(support, size=count, p=law / law.sum())


@pytest.mark.parametrize("exponent", [0.5, 1.5, 2.5])
def test_the_fit_finds_the_exponent_a_sample_was_made_with(exponent: float) -> None:
    values = power_sample(exponent, 2, 300, 20_000)
    fit = fit_power(values, 2, 300)
    assert fit.exponent == pytest.approx(exponent, abs=0.05)
    assert fit.distance < 0.015
    assert fit.count == 20_000
    # Also from a part of the range: the law is bounded, so leaving out the end changes nothing.
    assert fit_body(values).exponent == pytest.approx(exponent, abs=0.08)


def test_a_heavy_tail_and_a_light_one_are_told_apart() -> None:
    assert power_over_exponential(power_sample(1.6, 2, 500, 2000)) > 0.1
    light = 1 + np.random.default_rng(1).geometric(0.4, size=2000)
    assert power_over_exponential(light) < -0.01
    assert fit_power(light, 2, 12).distance > 0.02
