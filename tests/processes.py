"""The one way tests start a process, talk with it line by line, and end it."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.nursery import Forked, can_fork, environment

ANSWER_DEADLINE_S = 300.0
"""The first start on a machine compiles the matching kernel."""

END_DEADLINE_S = 60.0


class Child:
    """A process of ours; whatever happens in the block, it is gone after it."""

    def __init__(
        self,
        *command: str,
        around: Sequence[str] = (),
        commands: bool = False,
        log: Path | None = None,
        quiet: bool = False,
        words: Sequence[str] | None = None,
    ) -> None:
        """Start it.

        `around`: a command that runs it elsewhere, such as `ip netns exec NAME`. `commands`: it
        reads them as lines of JSON, and ends with its input; without, it ends by SIGTERM. `log`:
        where its errors go. `quiet`: nobody reads what it writes. `words`: what follows
        `roamcast`, if that is the command: then it is forked, where that is the same.
        """
        errors = log.open("ab") if log else None
        stdin = subprocess.PIPE if commands else subprocess.DEVNULL
        stdout = subprocess.DEVNULL if quiet else subprocess.PIPE
        stderr = errors.fileno() if errors else subprocess.DEVNULL if quiet else None
        self.process: subprocess.Popen[bytes] | Forked
        try:
            if words is not None and not around and can_fork():
                self.process = Forked(words, stdin=stdin, stdout=stdout, stderr=stderr)
            else:
                self.process = subprocess.Popen(
                    [*around, *command],
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    env=environment(),
                )
        finally:
            if errors:
                errors.close()
        self._read = b""

    def line(self, seconds: float = ANSWER_DEADLINE_S) -> bytes:
        """Read the next line it writes; none if it ends or takes longer."""
        assert self.process.stdout is not None
        end = time.monotonic() + seconds
        while b"\n" not in self._read:
            left = max(end - time.monotonic(), 0)
            ready, _, _ = select.select([self.process.stdout], [], [], left)
            part = os.read(self.process.stdout.fileno(), 1 << 20) if ready else b""
            if not part:
                return b""
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        return line

    def answer(self, seconds: float = ANSWER_DEADLINE_S) -> Any:
        """Read a line of JSON."""
        line = self.line(seconds)
        assert line, f"the process said nothing more: {self.process.args}"
        return json.loads(line)

    def ask(self, command: str, given: Any = None, seconds: float = ANSWER_DEADLINE_S) -> Any:
        """Give it a command; its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([command, given]).encode() + b"\n")
        self.process.stdin.flush()
        return self.answer(seconds)

    def end(self) -> int:
        """Ask it to end, and kill it if it does not; the code it ended with."""
        if self.process.stdin is None:
            self.process.terminate()
        else:
            self.process.stdin.close()
        try:
            return self.process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.kill()

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> "Child":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


def roamcast(*words: str, **how: Any) -> Child:
    """Start a command of this checkout."""
    return Child(sys.executable, "-m", "roamcast", *words, words=words, **how)
