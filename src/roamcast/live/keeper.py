"""Who starts the service again when it falls? A process beside it that carries out its watchdog.

`channels.watchdog` decides: a service that ended, or whose loop answers nothing, is started again
after a rest that doubles while it keeps falling. Here its effects become processes. One spare is
kept warm, because loading a service takes seconds and starting a loaded one does not.
"""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from roamcast.channels.recovery_messages import Alive, Probe
from roamcast.channels.watchdog import MAP_SERVER, Watchdog, WatchdogSettings
from roamcast.client.driver import Driver, wall_clock
from roamcast.errors import RoamcastError
from roamcast.live.settings import Settings, with_server
from roamcast.live.spare import Said
from roamcast.model.machine import Effect, Ended, Received, Send, Start, Stop

HOST: Final = "here"
START_S_MAX: Final = 600.0
"""A service that is not ready by then, on however busy a machine, is not alive."""

PATIENCE: Final = WatchdogSettings(rest_us_max=1_000_000)
"""There is no other host that would start a service meanwhile, so rests are short."""

SPARE_AFTER_S: Final = 0.5
"""A new spare is loaded so long after the last one became a service: first things first."""

LINE_BYTES_MAX: Final = 65_536

_LOG = logging.getLogger("roamcast.live.keeper")

Ready = Callable[[str, str, int], None]
"""Called with the address, a token and the process whenever a service takes requests."""


class Child:
    """One process: a spare, then perhaps the service."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.epoch = 0
        self.started_at = 0.0
        self.ready = False

    def tell(self, line: bytes) -> None:
        """Write a line to it; one that is gone reads nothing."""
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):
            self.process.stdin.write(line + b"\n")

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


class Keeper:
    """Keeps one service running on this host."""

    def __init__(
        self,
        settings: Settings,
        *,
        ready: Ready,
        spare: bool = True,
        watchdog: WatchdogSettings | None = None,
    ) -> None:
        clock = wall_clock()
        patience = watchdog or PATIENCE
        # Nobody has served here for as long as it takes to miss it: the first start is at once.
        machine = Watchdog(HOST, seats=(HOST,), now=clock() - patience.silent_us, settings=patience)
        self.starts = 0
        self.driver = Driver(machine, clock=clock, carry=self._carry)
        self._settings = settings
        self._ready = ready
        self._wants_spare = spare
        self._child: Child | None = None
        self._spare: Child | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Keep the service running until a signal, or until it can not start at all."""
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(one, self.stop)
        self.driver.start()
        try:
            await self._over
        finally:
            self.driver.close()
            await self._end()

    def stop(self) -> None:
        """Let the service go down, and then this process."""
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    async def _end(self) -> None:
        child, spare = self._child, self._spare
        self._child = self._spare = None
        if spare is not None:
            spare.kill()
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.process.terminate()
            try:
                async with asyncio.timeout(self._settings.server.shutdown_s + 10):
                    await child.process.wait()
            except TimeoutError:
                child.kill()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _carry(self, effect: Effect) -> None:
        match effect:
            case Send(_, Probe()):
                self._probe()
            case Start(_, epoch):
                self._spawn(self._serve(epoch))
            case Stop():
                child, self._child = self._child, None
                if child is not None:
                    _LOG.warning("the service does not answer: it is ended")
                    child.kill()

    def _probe(self) -> None:
        child = self._child
        if child is None:
            return
        if child.ready:
            child.tell(b"?")
        elif asyncio.get_running_loop().time() - child.started_at < START_S_MAX:
            self._alive(child)  # it loads, which is no silence

    def _alive(self, child: Child) -> None:
        if child is self._child:
            self.driver.give(Received(HOST, Alive(child.epoch, child.epoch)))

    async def _serve(self, epoch: int) -> None:
        """Make the spare, or a new process, the service; and tell the watchdog when it ends."""
        child, self._spare = self._spare or await self._load(), None
        self._child = child
        child.epoch = epoch
        child.started_at = asyncio.get_running_loop().time()
        self.starts += 1
        child.tell(msgspec.json.encode(self._settings))
        code = await child.process.wait()
        if child is not self._child:
            return
        self._child = None
        if self.starts == 1 and not child.ready:
            assert self._over is not None
            if not self._over.done():  # a mistake in the settings does not go away by itself
                problem = f"the service could not start (exit {code}): see what it said above"
                self._over.set_exception(RoamcastError(problem))
            return
        _LOG.warning("the service ended: it starts again")
        self.driver.give(Ended(MAP_SERVER, epoch))

    async def _load(self) -> Child:
        """Start a process that loads everything and waits."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "roamcast.live.spare",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process; it tells the service
            limit=LINE_BYTES_MAX,
        )
        child = Child(process)
        self._spawn(self._hear(child))
        return child

    async def _hear(self, child: Child) -> None:
        """Take what a process says."""
        assert child.process.stdout is not None
        while line := await child.process.stdout.readline():
            said = msgspec.json.decode(line, type=Said)
            if said.kind == "alive":
                self._alive(child)
            elif said.kind == "ready":
                child.ready = True
                self._alive(child)
                self._keep_port(said.url)
                self._ready(said.url, said.token, child.process.pid)
                if self._wants_spare and self._spare is None:
                    self._spawn(self._next_spare())

    async def _next_spare(self) -> None:
        await asyncio.sleep(SPARE_AFTER_S)
        if self._spare is None and self._child is not None:
            self._spare = await self._load()

    def _keep_port(self, url: str) -> None:
        """Whatever port the system chose, clients will look for the service there."""
        port = int(url.rpartition(":")[2])
        if self._settings.server.port != port:
            self._settings = with_server(self._settings, port=port)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
