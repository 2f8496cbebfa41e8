"""What works is not taken for dead, and what hangs is."""

import asyncio
import os
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from roamcast.channels.failover.messages import Alive
from roamcast.live.cluster.keeper import Keeper
from roamcast.live.cluster.pulse import BUSY_S_MAX, SHARE_MIN, Pulse
from roamcast.live.config.settings import Settings
from tests.processes import Child

TICKS = os.sysconf("SC_CLK_TCK")


class System:
    """What is said of one process: its state, and for how long it has worked."""

    def __init__(self) -> None:
        self.state, self.worked_s = "S", 5.0

    def read(self, pid: int) -> str:
        if not self.state:
            raise FileNotFoundError(pid)
        # A name may hold anything.
        rest = f"{self.state} " + "0 " * 10 + f"{int(self.worked_s * TICKS)} 0 0"
        return f"{pid} (a) R (b) {rest}"


def test_who_works_or_waits_for_a_processor_is_busy_and_who_sleeps_is_not() -> None:
    system = System()
    pulse = Pulse(1, 100.0, system.read)
    pulse.works(100.5)  # what it did before says nothing
    assert not pulse.works(101.0)
    system.worked_s += SHARE_MIN + 1.5 / TICKS
    assert pulse.works(102.0)
    assert not pulse.works(103.0)
    system.worked_s += SHARE_MIN - 1.5 / TICKS
    assert not pulse.works(104.0)
    system.state = "R"
    assert pulse.works(105.0)
    system.state = "T"
    assert not pulse.works(106.0)
    system.state = ""  # it has gone, or this is no Linux
    assert not pulse.works(107.0)


def test_who_is_busy_is_waited_for_so_long_and_no_longer() -> None:
    system = System()
    system.state = "R"
    pulse = Pulse(1, 100.0, system.read)
    assert pulse.works(100.0 + BUSY_S_MAX - 1)
    assert not pulse.works(100.0 + BUSY_S_MAX)
    pulse.answered(100.0 + BUSY_S_MAX)
    assert pulse.works(99.0 + 2 * BUSY_S_MAX)
    assert not pulse.works(100.0 + 2 * BUSY_S_MAX)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_linux_says_it_of_a_process() -> None:
    def busy(pulse: Pulse, wanted: bool) -> bool:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            time.sleep(0.1)
            if pulse.works(time.monotonic()) == wanted:
                return True
        return False

    with Child(sys.executable, "-c", "while True: pass", quiet=True) as one:
        pulse = Pulse(one.process.pid, time.monotonic())
        assert busy(pulse, True)
        os.kill(one.process.pid, signal.SIGSTOP)
        assert busy(pulse, False)
        os.kill(one.process.pid, signal.SIGCONT)
        assert busy(pulse, True)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("busy", [True, False])
def test_a_keeper_counts_a_busy_service_as_alive_where_no_other_host_takes_over(
    busy: bool, alone: bool
) -> None:
    async def probe() -> list[Any]:
        given: list[Any] = []
        keeper = Keeper(Settings(), ready=lambda *_: None)
        keeper._alone = alone
        asked: list[bytes] = []
        keeper._driver = SimpleNamespace(give=given.append)  # type: ignore[assignment]
        keeper._child = SimpleNamespace(  # type: ignore[assignment]
            ready=True, tell=asked.append, epoch=7, pulse=SimpleNamespace(works=lambda _now: busy)
        )
        keeper._probe()
        assert asked == [b"?"]
        return [one.message for one in given]

    assert asyncio.run(probe()) == ([Alive(7, 7)] if busy and alone else [])
