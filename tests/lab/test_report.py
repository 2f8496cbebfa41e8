"""Claims end in one of three words, and a number of a paper has a tolerance."""

import msgspec
import pytest
from rich.console import Console

from roamcast.lab import cbm_3
from roamcast.lab.report import QUIET, Claim, Report, near, to_json, to_text


@pytest.mark.parametrize(
    ("claim", "word"),
    [
        (near("x", 0.79, 0.75, 0.05), "reproduced"),
        (near("x", 0.71, 0.75, 0.05), "reproduced"),
        (near("x", 0.81, 0.75, 0.05), "not held"),
        (near("x", 0.69, 0.75, 0.05), "not held"),
        (near("x", 16, 16, 0), "reproduced"),
        (near("x", 17, 16, 0), "not held"),
        (Claim("x", 1, True, bar=66), "beats"),
        (Claim("x", 99, False, bar=66), "not held"),
        (Claim("x", [3, 2, 1], True, paper="falling"), "reproduced"),
        (Claim("x", [1, 2, 3], False, paper="falling"), "not held"),
    ],
)
def test_a_claim_is_reproduced_beats_its_bar_or_is_not_held(claim: Claim, word: str) -> None:
    assert claim.verdict == word
    report = Report("r", {}, [], [claim])
    assert msgspec.json.decode(to_json(report))["claims"][0]["verdict"] == word
    with (console := Console(width=200)).capture() as printed:
        to_text(report, console)
    assert printed.get().startswith(word)


def test_a_number_of_the_paper_needs_a_tolerance_and_a_claim_one_side() -> None:
    with pytest.raises(AssertionError, match="tolerance"):
        Claim("x", 1, True, paper=1)
    with pytest.raises(AssertionError, match="against what"):
        Claim("x", 1, True)
    with pytest.raises(AssertionError, match="against what"):
        Claim("x", 1, True, paper="more", bar=2)


def test_a_claim_over_a_range_is_tried_over_the_range() -> None:
    claims = {claim.claim: claim for claim in cbm_3.run(True, QUIET).claims}
    (share,) = [claim for name, claim in claims.items() if name.startswith("15 filters")]
    assert share.verdict == "not held"
    least, most = share.ours
    assert least < 0.5
    assert most > 0.9
