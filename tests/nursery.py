"""A process that has imported the package, and forks a command of it whenever a test wants one.

What a service does before it serves, importing and loading kernels, takes two seconds of CPU. Tests
start hundreds: the nursery does it once for each worker. A forked command is a process of its own
like any other; it can be killed, and it ends as the interpreter ends.
"""

import importlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
REQUEST_BYTES_MAX = 1 << 20
NUMBER = struct.Struct("i")
"""A pid, then an exit code, as the nursery reports them."""

READ_AT_START = ("PYTHON", "NUMBA", "LD_", "MALLOC_")
"""Variables that only count when an interpreter or a library starts."""

_running: "Nursery | None" = None


class Forked:
    """A command forked from the nursery; what tests use of `subprocess.Popen`."""

    def __init__(
        self, words: Sequence[str], *, stdin: int | None, stdout: int | None, stderr: int | None
    ) -> None:
        """Start it; each stream is a file, PIPE or DEVNULL, or None for our own."""
        global _running
        if _running is None:
            _running = Nursery()
        self.args = ["roamcast", *words]
        self.returncode: int | None = None
        ours: list[IO[bytes] | None] = []
        theirs = []
        for number, stream in enumerate((stdin, stdout, stderr)):
            kept, given = _stream(number, stream)
            ours.append(kept)
            theirs.append(given)
        self.stdin, self.stdout = ours[0], ours[1]
        self._report, reporter = os.pipe()
        try:
            _running.ask(words, [*theirs, reporter])
        finally:
            for descriptor in (*theirs, reporter):
                os.close(descriptor)
        self.pid = self._number(None)

    def _number(self, seconds: float | None) -> int:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._report, selectors.EVENT_READ)
            if not waiting.select(seconds):
                raise subprocess.TimeoutExpired(self.args, seconds or 0)
        found = os.read(self._report, NUMBER.size)
        assert found, "the nursery ended"
        return int(NUMBER.unpack(found)[0])

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its code, negative if a signal ended it."""
        if self.returncode is None:
            self.returncode = self._number(timeout)
            os.close(self._report)
        return self.returncode

    def poll(self) -> int | None:
        """Give its code if it has ended."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The worker's end of a nursery."""

    def __init__(self) -> None:
        self.environment = environment()
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.nursery", str(its.fileno())],
            pass_fds=[its.fileno()],
            env=self.environment,
        )
        its.close()

    def close(self) -> None:
        """Let it end."""
        self._socket.close()
        self._process.wait()

    def ask(self, words: Sequence[str], descriptors: Sequence[int]) -> None:
        """Ask for a command with these streams, and where its pid and code are to be written."""
        request = {"words": words, "folder": str(Path.cwd()), "environment": environment()}
        socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors))


def close() -> None:
    """End the nursery of this process, if it has one."""
    global _running
    if _running is not None:
        _running.close()
        _running = None


def environment() -> dict[str, str]:
    """Give a process its variables: a checkout's tests run its own sources."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def can_fork() -> bool:
    """Tell whether what is read at an interpreter's start is as it was at the nursery's."""
    now = environment()
    then = now if _running is None else _running.environment
    names = {name for name in {*then, *now} if name.startswith(READ_AT_START)}
    return all(then.get(name) == now.get(name) for name in names)


def _stream(number: int, stream: int | None) -> tuple[IO[bytes] | None, int]:
    """Give our end of a pipe, if it is one, and the descriptor that the command gets."""
    if stream is None:
        return None, os.dup(number)
    if stream == subprocess.DEVNULL:
        return None, os.open(os.devnull, os.O_RDWR)
    if stream != subprocess.PIPE:
        return None, os.dup(stream)
    reading, writing = os.pipe()
    if number == 0:
        return os.fdopen(writing, "wb"), reading
    return os.fdopen(reading, "rb", buffering=0), writing


def main(descriptor: int) -> None:
    """Fork until nobody can ask any more, and report each command's end."""
    preload()
    asked = socket.socket(fileno=descriptor)
    woken, waker = socket.socketpair()
    for end in (woken, waker):
        end.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    reporters: dict[int, int] = {}
    with selectors.DefaultSelector() as waiting:
        waiting.register(asked, selectors.EVENT_READ)
        waiting.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in waiting.select()}
            if woken in ready:
                woken.recv(4_096)
                _reap(reporters)
            if asked not in ready:
                continue
            message, given, _, _ = socket.recv_fds(asked, REQUEST_BYTES_MAX, 4)
            if not message:
                break
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for mine in (asked, woken, waker):
                    mine.close()
                for other in (given[3], *reporters.values()):
                    os.close(other)
                become(json.loads(message), given[:3])
                return
            for stream in given[:3]:
                os.close(stream)
            reporters[pid] = given[3]
            os.write(given[3], NUMBER.pack(pid))
    for pid in reporters:  # the worker was killed: nobody else ends them
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _reap(reporters: dict[int, int]) -> None:
    while reporters:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        reporter = reporters.pop(pid)
        with suppress(BrokenPipeError):  # the test has forgotten it
            os.write(reporter, NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os.close(reporter)


def become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Run a command in this process; it ends with it."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = ["roamcast", *request["words"]]
    from roamcast.cli import main as command

    command()


def preload() -> None:
    """Import what a service imports, and load its kernels."""
    import gc
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of litestar
        for name in ("cli", "live.service.running", "live.trust.app", "live.relay.app"):
            importlib.import_module(f"roamcast.{name}")
    from roamcast.matching import FilterSet
    from roamcast.matching.live import questions

    FilterSet().warm_up()
    questions.warm_up()
    gc.collect()
    gc.freeze()  # else the first collection of a command would copy all these pages


if __name__ == "__main__":
    main(int(sys.argv[1]))
