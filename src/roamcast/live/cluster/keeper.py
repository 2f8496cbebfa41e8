"""The keeper: a process beside the service that starts it again when it falls.

It runs the host's post (`channels/failover/post.py`): the watchdog, which says when a service is
started and ended, and the copy of the store while another host serves. Here their effects become
processes, sockets and disk writes. One spare is kept warm, because loading a service takes seconds
and starting a loaded one does not.
"""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import msgspec

from roamcast.channels.failover.following import Following
from roamcast.channels.failover.messages import Alive, Probe
from roamcast.channels.failover.post import Post
from roamcast.channels.failover.replica_messages import ReplicaHere
from roamcast.channels.failover.replication import ReplicaGone
from roamcast.channels.failover.watchdog import (
    MAP_SERVER,
    Watchdog,
    WatchdogSettings,
    WatchdogState,
)
from roamcast.channels.server.messages import ServerHere
from roamcast.errors import RoamcastError, SettingsError
from roamcast.live.auth.admission import TokenKeys
from roamcast.live.cluster.link import ReplicaLink
from roamcast.live.cluster.pulse import Pulse
from roamcast.live.cluster.spare import SpareOrder, SpareReport
from roamcast.live.config.settings import STORE_FILE, Settings, with_server
from roamcast.live.store.store import DiskDriver, SqliteStore
from roamcast.model.addresses import Replica
from roamcast.model.machine import (
    Ended,
    Listen,
    Merge,
    ReadPage,
    Received,
    Send,
    Start,
    Stop,
    Store,
    StoreFailed,
)
from roamcast.model.records import Record
from roamcast.model.wire import Message
from roamcast.transport.driver import Carriers, Driver, nothing, steady_clock

START_S_MAX: Final = 600.0
"""A service that is not ready by then, on however busy a machine, is not alive."""

PATIENCE: Final = WatchdogSettings(rest_us_max=1_000_000)
"""Where no other host would start a service meanwhile, rests are short."""

SPARE_AFTER_S: Final = 0.5
"""A new spare is loaded so long after the last one became a service: first things first."""

FIRST_NICENESS: Final = 5
"""How gently a host of several loads its first service: the others of its machine serve meanwhile,
but its own operator waits."""

SPARE_NICENESS: Final = 10
"""How gently a spare is loaded: nobody waits for it."""

LINE_BYTES_MAX: Final = 65_536

_LOG = logging.getLogger("roamcast.live.cluster.keeper")

Ready = Callable[[str, str, int], None]
"""Called with the address, a token and the process whenever a service takes requests."""


class Child:
    """One process: a spare, then perhaps the service."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.epoch = 0
        self.started_at = 0.0
        self.ready = False
        loop = asyncio.get_running_loop()
        self.pulse = Pulse(process.pid, loop.time())
        self.warm: asyncio.Future[None] = loop.create_future()

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
    """Keeps one service running, on this host or with others on one of them."""

    def __init__(
        self,
        settings: Settings,
        *,
        ready: Ready,
        spare: bool = True,
        watchdog: WatchdogSettings | None = None,
    ) -> None:
        self.name = settings.server.name
        self.starts = 0
        self._settings = settings
        self._alone = len(settings.seats) == 1
        self._patience = watchdog or (PATIENCE if self._alone else settings.cluster.watchdog())
        self._ready = ready
        self._wants_spare = spare or not self._alone
        self._clock = steady_clock()
        self._driver: Driver | None = None
        self._child: Child | None = None
        self._ending: Child | None = None
        self._spare: Child | None = None
        self._post: Post | None = None
        self._disk: SqliteStore | None = None
        self._store: DiskDriver | None = None
        self._links: dict[str, ReplicaLink] = {}
        self._keys_differ: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Keep the service running until a signal, or until it can not start at all."""
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(one, self.stop)
        try:
            if not self._alone:
                await self._stand_by()
            self._drive()
            await self._over
        finally:
            if self._driver is not None:
                self._driver.close()
            await self._end()

    def _drive(self) -> None:
        now = self._clock()
        if self._alone:
            # Nobody has served here for as long as it takes to miss it: the first start is at once.
            now -= self._patience.silent_us
        seats = self._settings.seats
        self._post = Post(
            self.name,
            seats=seats,
            now=now,
            settings=self._patience,
            following=None if self._alone else Following(self.name, replicas=seats),
        )
        self._driver = Driver(self._post, clock=self._clock, carry=self._carriers())
        self._driver.start()

    async def _stand_by(self) -> None:
        """Be able to serve at once before this host counts as one that may; call the others."""
        assert self._over is not None
        self._keys = TokenKeys.open(
            Path(self._settings.server.data), skew_s=self._settings.limits.clock_skew_s_max
        )
        self._spare = await self._load(FIRST_NICENESS)
        await asyncio.wait((self._spare.warm, self._over), return_when=asyncio.FIRST_COMPLETED)
        for host in self._settings.seats:
            if host != self.name:
                link = self._links[host] = ReplicaLink(
                    host,
                    own=self.name,
                    part="watchdog",
                    cluster=self._settings.cluster,
                    clock=self._clock,
                    on_here=self._here,
                    on_message=self._receive,
                    on_lost=self._lost,
                )
                self._spawn(link.run())

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
        await self._close_disk()

    def _carriers(self) -> Carriers:
        return Carriers(
            {
                Send: self._send,
                Start: lambda effect: self._spawn(self._serve(effect.epoch)),
                Stop: self._stop,
                Store: self._use_disk,
                Merge: self._use_disk,
                ReadPage: self._use_disk,
                Listen: nothing,  # announcements come by the sockets between hosts
                Record: nothing,  # the journal is the service's
            }
        )

    def _send(self, effect: Send) -> None:
        if effect.to.name != self.name:
            self._links[effect.to.name].send(effect.message)
        elif isinstance(effect.message, Probe):
            self._probe()

    def _stop(self, effect: Stop) -> None:
        del effect
        child, self._child = self._child, None
        if child is not None:
            _LOG.warning("the service does not answer: it is ended")
            self._ending = child
            child.kill()

    def _use_disk(self, effect: Store | Merge | ReadPage) -> None:
        """Carry a disk effect; the store is opened when this host first copies another's."""
        assert self._driver is not None
        if self._store is None:
            path = Path(self._settings.server.data) / STORE_FILE
            try:
                self._disk = SqliteStore.open(path, copied=True)
            except RoamcastError as error:
                _LOG.error("what another host acknowledged is not written here: %s", error)
                failed = StoreFailed(effect.token, str(error))
                asyncio.get_running_loop().call_soon(self._driver.give, failed)
                return
            self._store = DiskDriver(self._disk, self._driver.give, on_failure=_note_failure)
        self._store.carry(effect)

    async def _close_disk(self) -> None:
        """Let go of the store: the service uses it, or this process ends."""
        store, disk = self._store, self._disk
        self._store = self._disk = None
        if store is not None and disk is not None:
            store.stop()
            await disk.close()

    def _here(self, here: ReplicaHere) -> None:
        """The service of another host has proved itself."""
        self._compare_keys(here)
        self._receive(here.host, ServerHere(here.epoch, 0))

    def _receive(self, host: str, message: Message) -> None:
        """Give the post what another host's service says."""
        if self._driver is not None:
            self._driver.give(Received(host, message))

    def _lost(self, host: str) -> None:
        if self._driver is not None:
            self._driver.give(ReplicaGone(Replica(host)))

    def _compare_keys(self, here: ReplicaHere) -> None:
        """Tokens that the other one signs must be good here."""
        if self._keys.knows(here.key_id):
            self._keys_differ.pop(here.host, None)
            return
        if self._keys_differ.get(here.host) == here.key_id:
            return
        self._keys_differ[here.host] = here.key_id
        _LOG.error("another host signs tokens with a key that is not in keys.json here: copy it")
        if self.starts == 0 and self._over is not None and not self._over.done():
            folder = self._settings.server.data
            problem = (
                f"tokens of host {here.host} would be refused here: "
                f"copy its keys.json into {folder} and start again"
            )
            self._over.set_exception(SettingsError(problem))

    def _probe(self) -> None:
        child = self._child
        if child is None:
            return
        now = asyncio.get_running_loop().time()
        if child.ready:
            child.tell(b"?")
            if self._alone and child.pulse.works(now):
                self._alive(child, child.epoch)  # busy: nobody else could take over sooner
        elif now - child.started_at < START_S_MAX:
            self._alive(child, child.epoch)  # it loads, which is no silence

    def _alive(self, child: Child, newest: int) -> None:
        if child is self._child and self._driver is not None:
            self._driver.give(Received(self.name, Alive(child.epoch, newest)))

    async def _serve(self, epoch: int) -> None:
        """Make the spare, or a new process, the service; and tell the watchdog when it ends."""
        await self._close_disk()
        if self._ending is not None:
            await self._ending.process.wait()  # its port and its store are free now
        child, self._spare = self._spare or await self._load(), None
        if self._watchdog.state is not WatchdogState.SERVING or self._watchdog.epoch != epoch:
            self._spare = child  # somebody newer was heard meanwhile
            self._gone(epoch)
            return
        self._child = child
        child.epoch = epoch
        child.started_at = asyncio.get_running_loop().time()
        self.starts += 1
        child.tell(msgspec.json.encode(SpareOrder(self._settings, epoch)))
        code = await child.process.wait()
        if child is not self._child:
            if self._ending is child:
                self._ending = None
            self._gone(epoch)
            return
        self._child = None
        if self.starts == 1 and not child.ready and code:
            assert self._over is not None
            if not self._over.done():  # a mistake in the settings does not go away by itself
                problem = f"the service could not start (exit {code}): see what it said above"
                self._over.set_exception(RoamcastError(problem))
            return
        _LOG.warning("the service ended")
        self._gone(epoch)

    @property
    def _watchdog(self) -> Watchdog:
        assert self._post is not None
        return self._post.watchdog

    def _gone(self, epoch: int) -> None:
        """The service of this host has ended: it starts again, or another one's is copied."""
        assert self._driver is not None
        self._driver.give(Ended(MAP_SERVER, epoch))
        if not self._alone and self._child is None and self._spare is None:
            self._spawn(self._next_spare())

    async def _load(self, niceness: int = 0) -> Child:
        """Start a process that loads everything, so gently, and waits."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "roamcast.live.cluster.spare",
            str(niceness),
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
            said = msgspec.json.decode(line, type=SpareReport)
            if said.kind == "alive":
                child.pulse.answered(asyncio.get_running_loop().time())
                self._alive(child, said.newest)
            elif said.kind == "warm":
                child.warm.set_result(None)
            elif said.kind == "ready":
                child.ready = True
                child.pulse.answered(asyncio.get_running_loop().time())
                self._alive(child, child.epoch)
                self._keep_port(said.url)
                self._ready(said.url, said.token, child.process.pid)
                if self._wants_spare and self._spare is None:
                    self._spawn(self._next_spare())
        if not child.warm.done():
            child.warm.set_result(None)  # it will be noticed when it should serve

    async def _next_spare(self) -> None:
        await asyncio.sleep(SPARE_AFTER_S)
        if self._spare is None and (self._child is not None or not self._alone):
            self._spare = await self._load(SPARE_NICENESS)

    def _keep_port(self, url: str) -> None:
        """Whatever port the system chose, clients will look for the service there."""
        port = int(url.rpartition(":")[2])
        if self._settings.server.port != port:
            self._settings = with_server(self._settings, port=port)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _note_failure() -> None:
    _LOG.error("the disk does not take what another host acknowledged")
