"""A spare loads behind whatever is served: `roamcast.live.cluster.spare`."""

import os
import sys
import threading

import pytest

from roamcast.errors import RoamcastError
from roamcast.live.cluster.spare import gently


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
def test_loading_has_a_lower_priority_and_serving_has_not() -> None:
    priorities: list[int] = []

    def work() -> None:
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, 0)
    gently(work, 7)
    assert priorities == [7]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_what_fails_while_loading_is_told() -> None:
    def work() -> None:
        raise RoamcastError("no such kernel")

    with pytest.raises(RoamcastError, match="no such kernel"):
        gently(work, 7)
