"""CBM's signals a batch: how far each travels, and the figure that counts them."""

import pytest

from roamcast.lab import cbm_2
from roamcast.lab._cbm import paper_tree
from roamcast.lab.report import QUIET
from roamcast.placement.batch import Signal


@pytest.mark.parametrize(
    ("signal", "links"),
    [
        (Signal("activate", 3, 3), (2, 0)),
        (Signal("passivate", 1, 1), (1, 0)),
        (Signal("migrate", 3, 4), (2, 2)),  # siblings
        (Signal("spawn", 0, 7), (0, 3)),  # the source itself sends the code
    ],
)
def test_a_signal_goes_down_from_the_source_and_code_along_the_tree(
    signal: Signal, links: tuple[int, int]
) -> None:
    assert cbm_2.links_of(paper_tree(), signal) == links


@pytest.mark.slow
def test_the_heuristic_needs_fewer_signals_than_the_optimum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cbm_2, "SEEDS_QUICK", 2)
    report = cbm_2.run(True, QUIET)
    assert [claim.claim for claim in report.claims if not claim.held] == []
