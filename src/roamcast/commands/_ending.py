"""SIGTERM ends an experiment as Ctrl-C does: what it has started ends with it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

EXIT_CODE = 128 + signal.SIGTERM


@contextmanager
def ends_what_it_starts() -> Iterator[None]:
    """Let SIGTERM unwind this process, so that everything is closed on the way.

    By itself it ends a process at once: brokers, network namespaces and workers stayed behind.
    """
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(*_: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not end the unwinding
    for child in _children():  # else a pool waits for what its workers are at
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
    raise SystemExit(EXIT_CODE)


def _children() -> list[int]:
    """Find the processes of which this one is the parent, where Linux lists them."""
    lists = Path("/proc/self/task").glob("*/children")
    return [int(child) for one in lists for child in one.read_text(encoding="utf-8").split()]
