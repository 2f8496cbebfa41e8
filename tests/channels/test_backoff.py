"""Back-off: the drawn distribution is RFC 5740's, and a crowd stays quiet."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.channels.reliable.backoff import backoff_us
from roamcast.channels.reliable.settings import ChannelSettings

SETTINGS = ChannelSettings()


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 10**9), st.integers(0, 10**7))
def test_a_wait_lies_within_the_interval(draw: float, interval: int, receivers: int) -> None:
    assert 1 <= backoff_us(lambda: draw, interval, receivers) <= interval


def rfc_5740(uniform: float, interval: float, group: int) -> float:
    """RandomBackoff as section 5.3 prints it; `uniform` is from [0, 1)."""
    steep = math.log(group) + 1
    x = uniform * steep / interval + steep / (interval * (math.exp(steep) - 1))
    return (interval / steep) * math.log(x * (math.exp(steep) - 1) * (interval / steep))


@given(st.floats(0, 1, exclude_max=True), st.integers(10, 10**9), st.integers(1, 10**6))
def test_the_wait_is_the_rfcs(draw: float, interval: int, group: int) -> None:
    ours = backoff_us(lambda: draw, interval, group)
    assert ours == pytest.approx(max(1, rfc_5740(draw, interval, group)), abs=1)


@pytest.mark.parametrize("receivers", [10, 100, 1_000, 10_000])
def test_few_of_a_crowd_fire_before_the_first_answer_is_back(receivers: int) -> None:
    """Within a round trip of the first timer about (e·N)^(1/6) others fire, not N."""
    generator = random.Random(7)
    interval = SETTINGS.backoff_interval_us
    early = []
    for _ in range(100_000 // receivers + 30):
        waits = [backoff_us(generator.random, interval, receivers) for _ in range(receivers)]
        soon = min(waits) + SETTINGS.round_trip_us
        early.append(sum(wait <= soon for wait in waits))
    assert sum(early) / len(early) < 2 * (math.e * receivers) ** (1 / 6)
