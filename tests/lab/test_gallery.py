"""The page of all figures: pictures, and claims beside the papers'."""

from pathlib import Path

import pytest

from roamcast.errors import MissingError
from roamcast.lab.gallery import write_gallery
from roamcast.lab.report import Claim, Report, to_json


def test_it_shows_every_claim_with_its_verdict_and_texts_stay_texts(tmp_path: Path) -> None:
    claims = [
        Claim("hops <40 nodes>", 5.73, True, paper=6.06, tolerance=0.9),
        Claim("faster", 0.8, False, bar=1),
    ]
    report = Report("oo-6", {"seeds": 10}, [], claims)
    (tmp_path / "oo-6.json").write_text(to_json(report))
    (tmp_path / "oo-6.png").write_bytes(b"")
    page = write_gallery(tmp_path).read_text("utf-8")
    assert "1 figures; claims: 1 not held, 1 reproduced." in page
    assert "hops &lt;40 nodes&gt;<td>5.73<td>6.06 ± 0.9" in page
    assert 'src="oo-6.png"' in page
    assert "OO figure 6" in page


def test_an_empty_folder_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="roamcast figure run NAME"):
        write_gallery(tmp_path)
