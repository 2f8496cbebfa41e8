"""Hosts in a world: boots, crashes, pauses, disks, observers and the healing of everything."""

from collections.abc import Sequence

from roamcast.channels.reliable.messages import PROTOCOL, Join
from roamcast.model.addresses import Client
from roamcast.model.machine import Effect, Input, Listen, Received, Send, Store, Stored
from roamcast.model.records import Drop
from roamcast.sim.faults import Crash, Deafness, Partition, Pause, Weather, draw_faults, schedule
from roamcast.sim.host import Boot, HostState
from roamcast.sim.kernel import Kernel
from roamcast.sim.network import LinkQuality
from roamcast.sim.world import SYNC_US, World


class Told(Effect, frozen=True):
    text: str


class Put(Input, frozen=True):
    value: bytes


class Keeper:
    """Stores what it is given, beats every 100 µs, and tells its user about both."""

    def __init__(self, boot: Boot) -> None:
        self.boot = boot
        self.next = boot.now
        self.token = 0
        self.heard = 0

    def receive(self, given: Input, _now: int) -> Sequence[Effect]:
        if isinstance(given, Put):
            self.token += 1
            return (Store(self.token, (("value", given.value),)),)
        if isinstance(given, Stored):
            return (Told(f"stored {given.token}"),)
        self.heard += 1
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        if now < self.next:
            return ()
        first = self.next == self.boot.now
        self.next = now + 100
        return (Told("booted"), Listen("g")) if first else ()

    def deadline(self) -> int | None:
        return self.next


class Small:
    def __init__(self, names: str = "ab", seed: int = 1) -> None:
        self.world = World(seed, PROTOCOL, quality=LinkQuality(delay_us=10))
        self.told: list[tuple[int, str, str]] = []
        self.world.observe(self.observe)
        for name in names:
            self.world.add_host(name, Keeper)

    def observe(self, host: object, effect: Effect, now: int) -> None:
        assert isinstance(effect, Told)
        self.told.append((now, host.name, effect.text))  # type: ignore[attr-defined]

    def keeper(self, name: str) -> Keeper:
        machine = self.world.hosts[name].machine
        assert isinstance(machine, Keeper)
        return machine


def test_users_are_told_and_stores_are_acknowledged_when_synced() -> None:
    small = Small("a")
    small.world.give(small.world.hosts["a"], Put(b"x"))
    small.world.kernel.run(10_000)
    assert small.told == [(0, "a", "booted"), (SYNC_US, "a", "stored 1")]


def test_what_was_acknowledged_survives_a_crash_and_what_was_not_may_not() -> None:
    unsynced = set()
    for seed in range(40):
        small = Small("a", seed)
        host = small.world.hosts["a"]
        small.world.give(host, Put(b"first"))
        small.world.kernel.run(SYNC_US)
        small.world.give(host, Put(b"second"))
        small.world.kernel.run(SYNC_US + 1)
        small.world.crash(host)
        small.world.restart(host)
        unsynced.add(small.keeper("a").boot.stored["value"])
        small.world.kernel.run(10 * SYNC_US)
        assert [text for _, _, text in small.told if "stored" in text] == ["stored 1"]
    assert unsynced == {b"first", b"second"}


def test_a_crashed_host_hears_nothing_leaves_its_groups_and_boots_anew() -> None:
    small = Small()
    host = small.world.hosts["a"]
    small.world.kernel.run(1_000)
    small.world.crash(host)
    small.world.crash(host)
    assert small.world.network.members("g") == ["b"]
    small.world.kernel.perform(small.world.hosts["b"], [Send(Client("a"), Join("c", 0, 1))])
    small.world.kernel.run(2_000)
    assert any("host down" in line for line in small.world.journal.tail(5))
    small.world.restart(host)
    small.world.restart(host)
    small.world.kernel.run(3_000)
    assert small.keeper("a").boot.number == 2
    assert small.keeper("a").boot.now == 2_000
    assert small.keeper("a").heard == 0
    assert small.world.network.members("g") == ["b", "a"]


def test_a_paused_host_finds_everything_afterwards_and_its_timers_late() -> None:
    small = Small()
    host = small.world.hosts["a"]
    small.world.kernel.run(1_000)
    small.world.pause(host)
    small.world.pause(host)
    small.world.kernel.perform(small.world.hosts["b"], [Send(Client("a"), Join("c", 0, 1))])
    small.world.kernel.run(5_000)
    assert (small.keeper("a").heard, small.keeper("a").next) == (0, 1_100)
    small.world.resume(host)
    small.world.resume(host)
    small.world.kernel.run(5_001)
    assert (small.keeper("a").heard, small.keeper("a").next) == (1, 5_100)


def test_a_host_may_crash_while_paused() -> None:
    small = Small()
    host = small.world.hosts["a"]
    small.world.pause(host)
    small.world.crash(host)
    small.world.resume(host)
    assert host.state is HostState.DOWN
    small.world.restart(host)
    small.world.kernel.run(1_000)
    assert small.keeper("a").next > 1_000


def test_mending_brings_everyone_back() -> None:
    small = Small("abc")
    world = small.world
    world.kernel.run(100)
    world.crash(world.hosts["a"])
    world.pause(world.hosts["b"])
    world.network.quality = LinkQuality(loss=1.0)
    world.network.set_quality("b", "c", LinkQuality(loss=1.0))
    schedule(world, Partition(200, 10**6, every=2, offset=0))
    schedule(world, Deafness(200, 10**6, every=1, offset=0, loss=1.0))
    world.kernel.run(300)
    assert world.network._deaf
    world.mend()
    assert {host.state for host in world.hosts.values()} == {HostState.UP}
    for source in "abc":
        for destination in "abc".replace(source, ""):
            world.kernel.perform(world.hosts[source], [Send(Client(destination), Join("c", 0, 1))])
    world.kernel.run(10_000)
    assert [small.keeper(name).heard for name in "abc"] == [2, 2, 2]
    assert world.network._deaf == []


def test_scheduled_faults_begin_and_end() -> None:
    small = Small("abcd")
    world = small.world
    bad = LinkQuality(loss=0.5)
    schedule(world, Crash(100, 50, host=4))  # wraps around to a
    schedule(world, Pause(100, 50, host=1))
    schedule(world, Weather(100, 50, quality=bad))
    world.kernel.run(120)
    assert [world.hosts[name].state.value for name in "abc"] == ["down", "paused", "up"]
    assert world.network.quality is bad
    world.kernel.run(200)
    assert {host.state for host in world.hosts.values()} == {HostState.UP}
    assert world.network.quality.loss == 0


def test_a_partition_cuts_a_half_or_one_host_off() -> None:
    for every, offset, apart in ((2, 1, "bd"), (10**6, 6, "c"), (3, 0, "ad")):
        small = Small("abcd")
        schedule(small.world, Partition(10, 10, every, offset))
        small.world.kernel.run(15)
        (cut,) = small.world.network._cuts
        assert cut.hosts == frozenset(apart)
        small.world.kernel.run(30)
        assert small.world.network._cuts == []


def test_deafness_comes_over_everybody_a_half_or_one_host_and_goes() -> None:
    for every, offset, struck in ((1, 3, "abcd"), (2, 1, "bd"), (10**6, 6, "c")):
        small = Small("abcd")
        schedule(small.world, Deafness(10, 10, every, offset, 1.0))
        small.world.kernel.run(15)
        (deaf,) = small.world.network._deaf
        assert deaf.hosts == frozenset(struck)
        small.world.kernel.run(30)
        assert small.world.network._deaf == []


def test_drawn_faults_begin_and_end_within_the_time() -> None:
    for seed in range(300):
        for fault in draw_faults(Kernel(seed).generator("faults"), 1_000):
            assert 0 <= fault.at_us < 1_000
            assert fault.at_us + fault.lasts_us <= 1_000


def test_drops_of_a_host_that_is_down_name_the_message() -> None:
    small = Small()
    host = small.world.hosts["a"]
    small.world.crash(host)
    lost = host.receive(Received("b", Join("c", 0, 1)), 0)
    assert list(lost) == [Drop("host down", message="channel.join")]
    assert list(host.receive(Stored(1), 0)) == []
