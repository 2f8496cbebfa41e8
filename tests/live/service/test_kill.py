"""kill -9 under load: the watchdog starts the service again, and nothing acknowledged is lost.

Twice in `make soak`; `roamcast bench run kill` does it twenty times and measures.
"""

import asyncio
from pathlib import Path

import pytest

from bench.kill import storm

pytestmark = pytest.mark.process


@pytest.mark.soak  # test_service.py kills once, and every seed of the simulated brokers does
def test_after_every_kill_all_views_are_right_again(tmp_path: Path) -> None:
    found = asyncio.run(storm(tmp_path, rounds=2, people=8, seed=3, step=lambda _: None))
    assert [one.lost for one in found] == [0, 0]
    assert found[-1].acknowledged > found[0].acknowledged > 0
