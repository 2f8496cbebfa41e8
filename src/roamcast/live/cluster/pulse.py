"""Busy or dead: does a service that answers nothing still work?

A service whose loop does something long answers no probe meanwhile, as one that hangs. The system
knows the difference: what is busy uses processor time, or waits for a processor. It is waited for,
but not for ever, because an endless loop is busy, too.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

BUSY_S_MAX: Final = 30.0
"""A service that works, but has answered nothing for so long, counts as dead."""

SHARE_MIN: Final = 0.1
"""Share of a processor from which on a process is busy; less may be a thread beside its loop."""


def read_stat(pid: int) -> str:
    """Give what Linux says of a process; OSError where there is none, or another system."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")


class Pulse:
    """The work of one process, looked at from time to time."""

    def __init__(self, pid: int, now: float, read: Callable[[int], str] = read_stat) -> None:
        self._pid = pid
        self._read = read
        self._answered = now
        self._looked = now
        self._worked = 0.0

    def answered(self, now: float) -> None:
        """The process has answered."""
        self._answered = now

    def works(self, now: float) -> bool:
        """Whether it is busy, as far as seen since the last look, and still to be waited for."""
        try:
            fields = self._read(self._pid).rpartition(")")[2].split()
        except OSError:
            return False
        worked = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        since, self._looked = now - self._looked, now
        more, self._worked = worked - self._worked, worked
        busy = fields[0] == "R" or more >= SHARE_MIN * since > 0
        return busy and now - self._answered < BUSY_S_MAX
