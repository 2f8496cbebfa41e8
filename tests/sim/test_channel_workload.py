"""A thousand listeners on one channel: a common loss must not become a storm of requests."""

from collections import Counter

import pytest

from roamcast.channels.reliable.messages import PROTOCOL
from roamcast.channels.reliable.receiver import ChannelReceiver
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.journal.book import Entry, Journal
from roamcast.model.records import Transmission
from roamcast.sim.host import Boot
from roamcast.sim.network import LinkQuality, NetworkCut
from roamcast.sim.workloads.channel import CHANNEL, SERVER, START, ListenerHost, Say, ServerHost
from roamcast.sim.world import World

SETTINGS = ChannelSettings()
ROUND = 1_000_000


class Sent:
    """Counts what was sent, by kind of message."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()

    def add(self, entries: list[Entry]) -> None:
        self.count.update(r.message for _, _, r in entries if isinstance(r, Transmission))

    def close(self) -> None:
        pass


class Crowd:
    """One server and so many listeners, all told where the channel starts."""

    def __init__(self, listeners: int, settings: ChannelSettings = SETTINGS) -> None:
        self.sent = Sent()
        self.journal = Journal(self.sent)
        quality = LinkQuality(delay_us=4_000, jitter_us=2_000)
        self.world = World(1, PROTOCOL, quality=quality, journal=self.journal)
        self.settings = settings
        self.world.add_host(SERVER, lambda boot: ServerHost(boot, settings))
        for number in range(listeners):
            self.world.add_host(f"listener-{number}", self.listener)
        self.world.kernel.run(ROUND)

    def listener(self, boot: Boot) -> ListenerHost:
        receiver = ChannelReceiver(
            CHANNEL,
            source=SERVER,
            now=boot.now,
            settings=self.settings,
            draw=boot.generator.random,
            start=(1, 1) if boot.number == 1 else None,
        )
        return ListenerHost(boot.host, receiver, START, boot.number)

    def say(self, *, lost: bool) -> None:
        cut = NetworkCut(frozenset([SERVER]), inwards=False)
        if lost:
            self.world.network.cut(cut)
        payload = self.world.now.to_bytes(8, "big") + bytes(16)
        self.world.give(self.world.hosts[SERVER], Say(payload))
        self.world.kernel.run(self.world.now + 1)
        self.world.network.mend(cut)
        self.world.kernel.run(self.world.now + ROUND)

    def positions(self) -> set[tuple[int, int]]:
        machines = (host.machine for host in self.world.hosts.values())
        listeners = [machine for machine in machines if isinstance(machine, ListenerHost)]
        return {(each.receiver.incarnation, each.receiver.expected - 1) for each in listeners}

    def close(self) -> Counter[str]:
        self.journal.close()
        return self.sent.count


@pytest.mark.parametrize("listeners", [1, 30, 1_000])
def test_a_loss_common_to_all_costs_few_requests_and_one_answer(listeners: int) -> None:
    crowd = Crowd(listeners)
    losses = 8
    for _ in range(losses):
        crowd.say(lost=True)
    assert crowd.positions() == {(1, losses)}
    count = crowd.close()
    assert count["channel.heal"] == losses
    assert losses <= count["channel.ask"] <= 6 * losses  # without back-off: listeners × losses


def test_losses_of_their_own_cost_a_thousand_listeners_few_requests_each() -> None:
    crowd = Crowd(1_000)
    crowd.world.network.quality = LinkQuality(delay_us=4_000, jitter_us=2_000, loss=0.3)
    said = 5
    for _ in range(said):
        crowd.say(lost=False)
    crowd.world.network.quality = LinkQuality(delay_us=4_000)
    crowd.world.kernel.run(crowd.world.now + 5 * ROUND)
    assert crowd.positions() == {(1, said)}
    count = crowd.close()
    # 300 of 1,000 lose every message, and 30 % of the answers: a request each would be over 400.
    assert count["channel.ask"] < 60 * said
    assert count["channel.heal"] < 12 * said


def test_when_the_sender_restarts_a_thousand_listeners_share_a_few_snapshots() -> None:
    crowd = Crowd(1_000)
    crowd.say(lost=False)
    server = crowd.world.hosts[SERVER]
    crowd.world.crash(server)
    crowd.world.restart(server)
    crowd.world.kernel.run(crowd.world.now + 3 * ROUND)
    assert crowd.positions() == {(2, 0)}
    count = crowd.close()
    assert count["channel.snapshot"] <= 2 * SETTINGS.snapshot_unicasts_max
    assert count["channel.join"] < 100
