"""How fast is the simulator? Its kernel beside SimPy's timeouts, a channel's crowd, topologies.

Both kernels draw the same waiting times from one list. A SimPy process waits for timeouts; ours is
a machine on a target as `sim.host` makes them: the kernel asks its deadline, advances it, performs
the one effect it returns and asks again. Times are CPU seconds of this process, ours and SimPy's
taken in turns; the ratio is the median of the turns' ratios.
"""

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import msgspec
import simpy

from roamcast.channels.reliable.messages import PROTOCOL
from roamcast.channels.reliable.receiver import ChannelReceiver
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.journal.book import Entry, Journal
from roamcast.lab.report import Claim, Report, Steps
from roamcast.model.machine import Effect
from roamcast.model.records import Transmission
from roamcast.sim.host import Boot
from roamcast.sim.kernel import NEVER, Kernel
from roamcast.sim.network import LinkQuality, NetworkCut
from roamcast.sim.workloads.channel import CHANNEL, SERVER, START, ListenerHost, Say, ServerHost
from roamcast.sim.world import World

TITLE = "simulator: the kernel beside SimPy, 1,000 channel receivers, building topologies"

PROCESSES = (10, 1_000, 100_000)
BAR = 1.5
WAIT_US_MAX = 1_000_000
ROUTERS = (10_000, 100_000)
RECEIVERS = 1_000
REQUESTS_BAR = 10
FAIR = LinkQuality(delay_us=4_000, jitter_us=2_000)
STORMS = ((1.0, 6), (1.0, 4), (0.3, 6), (0.3, 4))
"""(loss, interval of the back-off in round trips); a loss of 1 is common to all receivers."""


class Beat(Effect, frozen=True, gc=False):
    """What a ticker wants done at every beat."""

    at: int


class Ticker:
    """A machine that beats after every wait."""

    __slots__ = ("due", "wait")

    def __init__(self, wait: Callable[[], int]) -> None:
        self.wait = wait
        self.due = wait()

    def receive(self, _given: object, _now: int) -> Sequence[Effect]:
        """Nobody says anything to a ticker."""
        return ()

    def advance(self, now: int) -> Sequence[Effect]:
        """Beat, and wait again."""
        wait = self.wait
        self.due = now + wait()
        return (Beat(now),)

    def deadline(self) -> int | None:
        """The next beat."""
        return self.due


class Target:
    """A machine's place in the kernel, as a host has it."""

    __slots__ = ("advance", "beats", "deadline", "receive", "wake")

    def __init__(self, machine: Ticker) -> None:
        self.wake = NEVER
        self.beats = 0
        self.receive, self.advance = machine.receive, machine.advance
        self.deadline = machine.deadline


def count_beat(target: Target, _effect: Beat) -> None:
    target.beats += 1


def waits() -> Callable[[], int]:
    generator = random.Random(20261116)
    return cycle([generator.randrange(1, WAIT_US_MAX) for _ in range(4_099)]).__next__


def ours(processes: int, events: int) -> tuple[float, int]:
    """Run about so many beats; give the CPU seconds and the number of beats."""
    kernel = Kernel(1)
    kernel.on(Beat, count_beat)
    wait = waits()
    targets = [Target(Ticker(wait)) for _ in range(processes)]
    for target in targets:
        kernel.arm(target)
    kernel.run(0)
    before = time.process_time()
    kernel.run(events * WAIT_US_MAX // 2 // processes)
    return time.process_time() - before, sum(target.beats for target in targets)


def simpys(processes: int, events: int) -> float:
    """Run the same number of timeouts; give the CPU seconds."""
    environment = simpy.Environment()
    wait = waits()

    def process(environment: simpy.Environment) -> Any:
        timeout = environment.timeout
        while True:
            yield timeout(wait())

    for _ in range(processes):
        environment.process(process(environment))
    environment.run(until=0.5)  # starting the processes is not measured
    before = time.process_time()
    environment.run(until=events * WAIT_US_MAX // 2 // processes + 1)
    return time.process_time() - before


def compare(processes: int, events: int, turns: int) -> dict[str, Any]:
    rates, theirs, ratios = [], [], []
    for _ in range(turns):
        seconds, beats = ours(processes, events)
        simpy_seconds = simpys(processes, events)
        rates.append(beats / seconds)
        theirs.append(beats / simpy_seconds)  # the same waits, so the same number of timeouts
        ratios.append(simpy_seconds / seconds)
    return {
        "measured": f"{processes:,} processes",
        "ours_per_second": round(statistics.median(rates)),
        "simpy_per_second": round(statistics.median(theirs)),
        "ratio": round(statistics.median(ratios), 2),
    }


def kernel_alone(chains: int, events: int) -> dict[str, Any]:
    """Plain actions that schedule the next one: no machine, no effect."""
    kernel = Kernel(1)
    wait = waits()
    ran = [0]

    def act(now: int) -> None:
        ran[0] += 1
        kernel.call(now + wait(), act)

    for _ in range(chains):
        kernel.call(wait(), act)
    before = time.process_time()
    kernel.run(events * WAIT_US_MAX // 2 // chains)
    seconds = time.process_time() - before
    return {
        "measured": f"kernel alone, {chains:,} actions waiting",
        "ours_per_second": round(ran[0] / seconds),
        "seconds": round(seconds, 3),
    }


def crowd(receivers: int, settings: ChannelSettings, journal: Journal | None = None) -> World:
    """One server and many receivers that were told where the channel starts."""
    world = World(1, PROTOCOL, quality=FAIR, journal=journal)

    def listener(boot: Boot) -> ListenerHost:
        receiver = ChannelReceiver(
            CHANNEL,
            source=SERVER,
            now=boot.now,
            settings=settings,
            draw=boot.generator.random,
            start=(1, 1),
        )
        return ListenerHost(boot.host, receiver, START, boot.number)

    world.add_host(SERVER, lambda boot: ServerHost(boot, settings))
    for number in range(receivers):
        world.add_host(f"listener-{number}", listener)
    world.kernel.run(20_000)
    return world


def delivered(world: World) -> int:
    machines = [host.machine for host in world.hosts.values()]
    return sum(m.receiver.expected - 1 for m in machines if isinstance(m, ListenerHost))


def channel_crowd(receivers: int, messages: int) -> dict[str, Any]:
    """Many receivers, 5 % loss: every event crosses network, machine and journal."""
    world = crowd(receivers, ChannelSettings())
    world.network.quality = msgspec.structs.replace(FAIR, loss=0.05)
    for number in range(messages):
        at = 20_000 + number * 20_000
        world.kernel.call(at, lambda _: world.give(world.hosts[SERVER], Say(bytes(100))))
    before = time.process_time()
    events = world.kernel.run(messages * 20_000 + 3_000_000)
    seconds = time.process_time() - before
    return {
        "measured": f"{receivers:,} channel receivers",
        "ours_per_second": round(events / seconds),
        "seconds": round(seconds, 3),
        "deliveries": delivered(world),
    }


class Sent:
    """Counts what was sent, by kind of message."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()

    def add(self, entries: list[Entry]) -> None:
        """Count the transmissions among the entries."""
        self.count.update(r.message for _, _, r in entries if isinstance(r, Transmission))

    def close(self) -> None:
        """Nothing is held."""


def requests(receivers: int, messages: int, *, loss: float, round_trips: int) -> dict[str, Any]:
    """Count the requests for each message; a loss of 1 hits every receiver's first copy."""
    sent = Sent()
    journal = Journal(sent)
    world = crowd(receivers, ChannelSettings(backoff_round_trips=round_trips), journal)
    common = loss == 1
    cut = NetworkCut(frozenset([SERVER]), inwards=False)
    world.network.quality = msgspec.structs.replace(FAIR, loss=0.0 if common else loss)
    for _ in range(messages):
        if common:
            world.network.cut(cut)
        world.give(world.hosts[SERVER], Say(bytes(100)))
        world.kernel.run(world.now + 1)
        world.network.mend(cut)
        world.kernel.run(world.now + 1_000_000)
    world.network.quality = FAIR
    world.kernel.run(world.now + 5_000_000)
    journal.close()
    said = "lost to all" if common else f"{loss:.0%} loss each"
    return {
        "measured": f"{receivers:,} receivers, {said}, {round_trips} round trips",
        "requests_per_message": round(sent.count["channel.ask"] / messages, 1),
        "heals_per_message": round(sent.count["channel.heal"] / messages, 1),
        "deliveries": delivered(world),
    }


def topology(routers: int) -> dict[str, Any]:
    from roamcast.sim.topology import tradeoff

    tradeoff.warm_up()
    before = time.process_time()
    built = tradeoff.build_for_bench(routers)
    seconds = time.process_time() - before
    return {
        "measured": f"trade-off graph of {routers:,} routers",
        "seconds": round(seconds, 3),
        "degree_max": built["degree_max"],
    }


def run(quick: bool, progress: Steps) -> Report:
    events = 50_000 if quick else 100_000
    turns = 5 if quick else 15
    messages = 10 if quick else 50
    rows: list[dict[str, Any]] = []
    with progress("measurements", len(PROCESSES) + 2 + len(STORMS) + len(ROUTERS)) as step:
        for processes in PROCESSES:
            rows.append(compare(processes, max(events, 2 * processes), turns))
            step(1)
        crowded = channel_crowd(RECEIVERS, messages)
        rows.append(crowded)
        step(1)
        for loss, round_trips in STORMS:
            rows.append(requests(RECEIVERS, messages // 5, loss=loss, round_trips=round_trips))
            step(1)
        rows.append(kernel_alone(1_000, events))
        step(1)
        for routers in ROUTERS:
            rows.append(topology(routers))
            step(1)
    claims = [
        Claim(
            claim=f"machines and effects beside SimPy's timeouts, {row['measured']}",
            ours=row["ratio"],
            bar=BAR,
            held=row["ratio"] >= BAR,
        )
        for row in rows[: len(PROCESSES)]
    ]
    claims.append(
        Claim(
            claim="every receiver of the crowd ends with the whole sequence",
            ours=crowded["deliveries"],
            bar=RECEIVERS * messages,
            held=crowded["deliveries"] == RECEIVERS * messages,
        )
    )
    claims += [
        Claim(
            claim="requests for a message that was lost to all 1,000 receivers",
            ours=row["requests_per_message"],
            bar=REQUESTS_BAR,
            held=row["requests_per_message"] <= REQUESTS_BAR,
            note="without back-off every receiver asks",
        )
        for row in rows
        if "lost to all, 6" in row["measured"]
    ]
    parameters = {"events": events, "turns": turns, "wait_us_max": WAIT_US_MAX, "loss": 0.05}
    return Report(name="sim", parameters=parameters, rows=rows, claims=claims)
