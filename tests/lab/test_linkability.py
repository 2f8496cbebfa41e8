"""The attacks on an archive: they find what is there to find, and the figure's claims hold."""

from pathlib import Path

import numpy as np
import pytest

from roamcast.lab import _linkability as link
from roamcast.lab import linkability
from roamcast.lab.report import Steps


@pytest.mark.slow
def test_exact_times_and_the_papers_vids_are_linked_and_ours_are_not() -> None:
    stays = link.made(40)
    paper, whose = link.vids_of(stays, paper=True)
    order, *_ = link.by_vids(paper, whose, stays.begin)
    assert order["precision"] > 0.9
    vids, truth = link.vids_of(stays, paper=False)
    assert len(np.unique(truth)) == 40, "the keys tell people apart"
    assert ((truth[1:] == truth[:-1]) == (stays.person[1:] == stays.person[:-1])).all()
    ours, *_ = link.by_vids(vids, truth, stays.begin)
    assert ours["precision"] < 3 * link.chance(truth)
    exact = link.stored(stays, vids, 0)
    rounded = link.stored(stays, vids, 900)
    for archive, least, most in ((exact, 0.95, 1.0), (rounded, 0.0, 0.4)):
        found = link.by_succession(archive, truth, link.NEARS)
        joins = [row["precision"] for row in found if row["attack"] in link.JOINS]
        assert least <= max(joins) <= most
    assert link.found_over_exact(stays, exact) == 1.0
    assert 1.0 < link.found_over_exact(stays, rounded) < 1.4


def test_coarser_places_hide_the_building_and_cost_rooms() -> None:
    stays = link.made(50)
    vids, truth = link.vids_of(stays, paper=False)
    plain, coarse = (link.stored(stays, vids, 900, crowd) for crowd in (0, 20))
    nears = {"nearest, same building": link.same_parent}
    _, near, _ = link.by_succession(plain, truth, nears)
    _, far, _ = link.by_succession(coarse, truth, nears)
    assert far["precision"] < near["precision"] / 2
    assert (link.places_left(stays, plain), link.places_left(stays, coarse)) == (1.0, 0.0)


@pytest.mark.slow
def test_the_figure_holds_its_claims(tmp_path: Path) -> None:
    report = linkability.run(True, Steps(show=False))
    assert all(claim.held for claim in report.claims), report.claims
    linkability.draw(report, tmp_path / "linkability.png")
    assert (tmp_path / "linkability.png").stat().st_size > 10_000
