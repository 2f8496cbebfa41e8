"""A simulated world: hosts on a network under one clock, with one journal and observers."""

from collections.abc import Callable
from typing import Any, Final

from roamcast.journal.book import Journal
from roamcast.model.machine import (
    Effect,
    Input,
    Merge,
    Merged,
    PageRead,
    ReadPage,
    Store,
    Stored,
    StoreFailed,
)
from roamcast.model.records import Record
from roamcast.model.wire import Registry
from roamcast.sim.clocks import Clock
from roamcast.sim.host import Factory, Host, HostState
from roamcast.sim.kernel import Kernel
from roamcast.sim.network import LinkQuality, Network
from roamcast.sim.storage import DiskState

SYNC_US: Final = 5_000
"""How long the simulated disk takes to make a write durable."""

HOSTS_MAX: Final = 1_000_000

Observer = Callable[[Host, Any, int], None]
"""Sees the effects that a machine addresses to its user: (host, effect, now)."""


class World:
    """Everything one run needs; the same seed makes the same world."""

    def __init__(
        self,
        seed: int,
        registry: Registry,
        *,
        quality: LinkQuality | None = None,
        journal: Journal | None = None,
        sync_us: int = SYNC_US,
        user_effects: tuple[type[Effect], ...] = (Effect,),
    ) -> None:
        """`user_effects`: what machines address to their users; anything else is a mistake."""
        self.kernel = Kernel(seed)
        self.journal = Journal() if journal is None else journal
        self.network = Network(
            self.kernel, registry, quality=quality or LinkQuality(), note=self.note
        )
        self.hosts = self.network.hosts
        self._sync_us = sync_us
        self._user_effects = user_effects
        self._observers: list[Observer] = []
        self.clock_of: Callable[[str], Clock | None] = lambda _: None
        """The clock of a host that is added; None shows the true time."""
        self.kernel.on(Store, self._store)
        self.kernel.on(Merge, self._merge)
        self.kernel.on(ReadPage, self._read_page)
        self.kernel.on(Record, self.note)
        self.kernel.on(Effect, self._tell)

    @property
    def now(self) -> int:
        """The virtual time, µs."""
        return self.kernel.now

    def add_host(self, name: str, factory: Factory, *, site: str = "") -> Host:
        """Add a host and boot it now."""
        assert name not in self.hosts
        assert len(self.hosts) < HOSTS_MAX
        host = Host(
            name,
            factory,
            site=site,
            generator_of=self.kernel.generator,
            note=self.note,
            clock=self.clock_of(name),
        )
        self.hosts[name] = host
        self._boot(host)
        return host

    def observe(self, observer: Observer) -> None:
        """Show an observer every effect that is for a machine's user."""
        self._observers.append(observer)

    def give(self, host: Host, given: Input) -> None:
        """Hand a user's input to a host now."""
        self.kernel.give(self.now, host, given)

    def crash(self, host: Host) -> None:
        """Crash a host that is not down already."""
        if host.state is not HostState.DOWN:
            host.crash()
            self.network.forget(host)

    def restart(self, host: Host) -> None:
        """Boot a host that is down."""
        if host.state is HostState.DOWN:
            self._boot(host)

    def pause(self, host: Host) -> None:
        """Pause a host that runs."""
        if host.state is HostState.UP:
            host.pause()

    def resume(self, host: Host) -> None:
        """Let a paused host go on: it finds what has waited, then its timers."""
        if host.state is HostState.PAUSED:
            for given in host.resume():
                self.kernel.give(self.now, host, given)
            self.kernel.arm(host)

    def mend(self) -> None:
        """Heal everything: no partition, no loss, every host up."""
        self.network.mend_all(LinkQuality())
        for host in self.hosts.values():
            host.disk.state = DiskState.WELL
            self.restart(host)
            self.resume(host)

    def note(self, host: Host, record: Effect) -> None:
        """Write a record to the journal."""
        assert isinstance(record, Record)
        self.journal.write(self.kernel.now, host.name, record)

    def _boot(self, host: Host) -> None:
        host.boot(self.now)
        self.kernel.perform(host, host.advance(self.now))
        self.kernel.arm(host)

    def _store(self, host: Host, effect: Store) -> None:
        reason = host.disk.refuses(effect.writes)
        if reason:
            self._answer_later(host, StoreFailed(effect.token, reason))
        else:
            end = host.disk.append(effect.writes, effect.stamp)
            self._sync_later(host, end, Stored(effect.token))

    def _merge(self, host: Host, effect: Merge) -> None:
        reason = host.disk.refuses(effect.entries)
        if reason:
            self._answer_later(host, StoreFailed(effect.token, reason))
        else:
            end, newer = host.disk.merge(effect.entries)
            self._sync_later(host, end, Merged(effect.token, newer))

    def _read_page(self, host: Host, effect: ReadPage) -> None:
        page = host.disk.page(effect.after, effect.until, effect.bytes_max)
        self._answer_later(host, PageRead(effect.token, page))

    def _answer_later(self, host: Host, answer: Input) -> None:
        boots = host.boots

        def give(now: int) -> None:
            if host.boots == boots and host.state is not HostState.DOWN:
                self.kernel.give(now, host, answer)

        self.kernel.call(self.now + self._sync_us, give)

    def _sync_later(self, host: Host, end: int, answer: Input) -> None:
        boots = host.boots

        def sync(now: int) -> None:
            if host.boots != boots or host.state is HostState.DOWN:
                return
            if host.disk.state is DiskState.STALLED:
                self.kernel.call(now + self._sync_us, sync)
                return
            host.disk.sync(end)
            self.kernel.give(now, host, answer)

        self.kernel.call(self.now + self._sync_us, sync)

    def _tell(self, host: Host, effect: Effect) -> None:
        assert isinstance(effect, self._user_effects), f"nobody carries {type(effect).__name__}"
        for observer in self._observers:
            observer(host, effect, self.kernel.now)
