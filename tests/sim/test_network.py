"""The network: delay, order, bandwidth, loss, doubles, truncation, groups, partitions, radio."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roamcast.channels.reliable.messages import PROTOCOL, Data, Join
from roamcast.journal.book import Entry, Journal
from roamcast.model.addresses import Client
from roamcast.model.machine import Effect, Ignore, Input, Listen, Machine, Multicast, Received, Send
from roamcast.model.records import Drop, Transmission
from roamcast.sim.host import INBOX_MAX, Boot
from roamcast.sim.network import Deaf, LinkQuality, NetworkCut, connect, queued, within
from roamcast.sim.network import SimulatedLink as NetworkLink
from roamcast.sim.radio import RadioField
from roamcast.sim.world import World

FAST = LinkQuality(delay_us=100)
FRAME_BYTES = len(PROTOCOL.encode(Join("c", 0, 1)))


class Do(Input, frozen=True):
    effects: tuple[Effect, ...]


class Echo:
    """Does what it is told and notes what it hears."""

    def __init__(self, _boot: Boot) -> None:
        self.heard: list[tuple[int, str, int]] = []

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        if isinstance(given, Do):
            return given.effects
        assert isinstance(given, Received)
        assert isinstance(given.message, Join)
        self.heard.append((now, given.sender, given.message.sequence))
        return ()

    def advance(self, _now: int) -> Sequence[Effect]:
        return ()

    def deadline(self) -> int | None:
        return None


class Notes:
    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, entries: list[Entry]) -> None:
        self.entries += entries

    def close(self) -> None:
        pass


class Net:
    """Hosts called by letters, and what became of what they sent."""

    def __init__(self, names: str, quality: LinkQuality = FAST, seed: int = 1) -> None:
        self.notes = Notes()
        self.world = World(seed, PROTOCOL, quality=quality, journal=Journal(self.notes))
        for name in names:
            self.world.add_host(name, Echo)

    def tell(self, name: str, *effects: Effect, at: int | None = None) -> None:
        host = self.world.hosts[name]
        time = self.world.now if at is None else at
        self.world.kernel.call(time, lambda _: self.world.give(host, Do(effects)))

    def run(self, until: int = 10_000_000) -> None:
        self.world.kernel.run(until)

    def heard(self, name: str) -> list[tuple[int, str, int]]:
        machine: Machine | None = self.world.hosts[name].machine
        assert isinstance(machine, Echo)
        return machine.heard

    def numbers(self, name: str) -> list[int]:
        return [number for _, _, number in self.heard(name)]

    def drops(self) -> Counter[str]:
        self.world.journal.close()
        return Counter(r.reason for _, _, r in self.notes.entries if isinstance(r, Drop))


def note(number: int) -> Join:
    return Join("c", 0, number)


def send_many(net: Net, count: int, every_us: int = 1_000) -> None:
    for number in range(1, count + 1):
        net.tell("a", Send(Client("b"), note(number)), at=number * every_us)


def test_a_message_arrives_after_the_delay() -> None:
    net = Net("ab")
    net.tell("a", Send(Client("b"), note(7)))
    net.run()
    assert net.heard("b") == [(100, "a", 7)]


def test_jitter_alone_never_lets_messages_overtake() -> None:
    net = Net("ab", LinkQuality(delay_us=100, jitter_us=5_000))
    send_many(net, 200, every_us=100)
    net.run()
    assert net.numbers("b") == list(range(1, 201))
    assert len({at for at, _, _ in net.heard("b")}) > 20


def test_reordering_lets_messages_overtake_and_loses_none() -> None:
    net = Net("ab", LinkQuality(delay_us=100, reorder=0.3, reorder_us=5_000))
    send_many(net, 200)
    net.run()
    assert net.numbers("b") != sorted(net.numbers("b"))
    assert sorted(net.numbers("b")) == list(range(1, 201))


def test_loss_and_duplication_come_as_often_as_asked() -> None:
    net = Net("ab", LinkQuality(delay_us=100, loss=0.3, duplicate=0.2))
    send_many(net, 2_000)
    net.run()
    heard = Counter(net.numbers("b"))
    assert len(heard) == pytest.approx(1_400, abs=80)
    assert sum(count == 2 for count in heard.values()) == pytest.approx(280, abs=60)
    assert net.drops()["loss"] == 2_000 - len(heard)


def test_a_truncated_frame_is_dropped_with_its_reason_and_never_heard() -> None:
    net = Net("ab", LinkQuality(delay_us=100, truncate=0.5))
    send_many(net, 200)
    net.run()
    drops = net.drops()
    assert drops["unreadable: truncated"] > 20
    assert sum(drops.values()) + len(net.numbers("b")) == 200


def test_bandwidth_spreads_messages_and_a_full_queue_drops() -> None:
    one_ms_each = LinkQuality(
        delay_us=0, bandwidth_bps=FRAME_BYTES * 8 * 1_000, queue_bytes_max=4 * FRAME_BYTES
    )
    net = Net("ab", one_ms_each)
    net.tell("a", *(Send(Client("b"), note(number)) for number in range(1, 11)))
    net.run()
    assert net.heard("b") == [(1_000 * number, "a", number) for number in range(1, 5)]
    assert net.drops() == {"queue full": 6}


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 5)), max_size=30))
def test_a_queue_never_holds_more_than_its_bound(sent: list[tuple[int, int]]) -> None:
    quality = LinkQuality(bandwidth_bps=8_000_000, queue_bytes_max=10)  # 1 byte a µs
    link = NetworkLink(lambda: 0.5, None)
    out: list[tuple[int, int]] = []
    now = 0
    for wait, size in sent:
        now += wait
        leaves = queued(link, quality, size, now)
        waiting = sum(bytes_ for end, bytes_ in out if end > now)
        if leaves is not None:
            assert leaves == max([now, *(end for end, _ in out)]) + size
            out.append((leaves, size))
        else:
            assert waiting + size > quality.queue_bytes_max


def test_what_a_host_sends_over_all_links_is_bounded_and_a_multicast_counts_once() -> None:
    net = Net("abc", LinkQuality(delay_us=0))
    net.world.network.set_egress("a", bandwidth_bps=FRAME_BYTES * 8_000, queue_bytes_max=10**6)
    for name in "bc":
        net.tell(name, Listen("g"))
    net.tell("a", Send(Client("b"), note(1)), Send(Client("c"), note(2)), Multicast("g", note(3)))
    net.run()
    assert net.heard("b") == [(1_000, "a", 1), (3_000, "a", 3)]
    assert net.heard("c") == [(2_000, "a", 2), (3_000, "a", 3)]


def test_a_full_egress_queue_drops_for_everyone() -> None:
    net = Net("ab")
    net.world.network.set_egress("a", bandwidth_bps=8_000, queue_bytes_max=2 * FRAME_BYTES)
    net.tell("a", *(Send(Client("b"), note(number)) for number in range(1, 5)))
    net.run()
    assert net.drops() == {"egress queue full": 2}


def test_a_link_may_have_a_quality_of_its_own() -> None:
    net = Net("abc")
    connect(net.world.network, [("a", "b")], LinkQuality(delay_us=9_000))
    net.tell("a", Send(Client("b"), note(1)), Send(Client("c"), note(1)))
    net.tell("b", Send(Client("a"), note(1)))
    net.run()
    assert [net.heard(name)[0][0] for name in "bca"] == [9_000, 100, 9_000]


def test_a_group_reaches_its_members_and_not_the_sender() -> None:
    net = Net("abcd")
    for name in "abc":
        net.tell(name, Listen("g"))
    net.tell("a", Multicast("g", note(1)), at=10)
    net.tell("c", Ignore("g"), at=1_000)
    net.tell("d", Multicast("g", note(2)), at=2_000)
    net.run()
    assert [net.numbers(name) for name in "abcd"] == [[2], [1, 2], [1], []]
    assert net.world.network.members("g") == ["a", "b"]
    net.world.journal.close()
    sent = [r for _, _, r in net.notes.entries if isinstance(r, Transmission)]
    assert [(r.channel, r.receivers, r.bytes) for r in sent] == [
        ("g", 2, FRAME_BYTES),
        ("g", 2, FRAME_BYTES),
    ]


def test_a_scoped_multicast_stays_in_its_site_and_cannot_come_from_outside() -> None:
    net = Net("")
    for name, site in {"a": "x/1", "b": "x/2", "c": "x", "d": "xy", "e": "y/1"}.items():
        net.world.add_host(name, Echo, site=site)
        net.tell(name, Listen("g"))
    net.tell("a", Multicast("g", note(1), "x"), at=10)
    net.tell("e", Multicast("g", note(2), "x"), at=20)
    net.run()
    assert [net.numbers(name) for name in "abcde"] == [[], [1], [1], [], []]
    assert net.drops() == {"outside scope": 1}


@pytest.mark.parametrize(
    ("site", "scope", "inside"),
    [("", "", True), ("x", "", True), ("x", "x", True), ("x/1", "x", True), ("xy", "x", False)],
)
def test_a_scope_is_a_site_and_all_below(site: str, scope: str, inside: bool) -> None:
    assert within(site, scope) is inside


def test_a_partition_stops_messages_between_its_sides_until_it_heals() -> None:
    net = Net("abcd")
    cut = NetworkCut(frozenset("ab"))
    net.world.network.cut(cut)
    net.tell("a", Send(Client("b"), note(1)), Send(Client("c"), note(1)))
    net.tell("c", Send(Client("d"), note(1)), Send(Client("a"), note(1)))
    net.run(1_000)
    assert [net.numbers(name) for name in "abcd"] == [[], [1], [], [1]]
    net.world.network.mend(cut)
    net.world.network.mend(cut)
    net.tell("a", Send(Client("c"), note(2)))
    net.run()
    assert net.numbers("c") == [2]
    assert net.drops() == {"partition": 2}


@pytest.mark.parametrize(("inwards", "heard"), [(True, [[], [1]]), (False, [[1], []])])
def test_a_partition_may_be_one_way(inwards: bool, heard: list[list[int]]) -> None:
    net = Net("ab")
    net.world.network.cut(NetworkCut(frozenset("a"), inwards=inwards, outwards=not inwards))
    net.tell("a", Send(Client("b"), note(1)))
    net.tell("b", Send(Client("a"), note(1)))
    net.run()
    assert [net.numbers("a"), net.numbers("b")] == heard


def test_a_deaf_host_misses_what_goes_to_groups_and_hears_what_goes_to_it_alone() -> None:
    net = Net("abc")
    for name in "bc":
        net.tell(name, Listen("g"))
    deaf = Deaf(frozenset("b"))
    net.world.network.deafen(deaf)
    net.tell("a", Multicast("g", note(1)), Send(Client("b"), note(2)), at=10)
    net.run(1_000)
    assert [net.numbers(name) for name in "bc"] == [[2], [1]]
    net.world.network.undeafen(deaf)
    net.world.network.undeafen(deaf)
    net.tell("a", Multicast("g", note(3)))
    net.run()
    assert [net.numbers(name) for name in "bc"] == [[2, 3], [1, 3]]
    assert net.drops() == {"group lost": 1}


def test_a_host_that_is_hard_of_hearing_misses_as_often_as_asked() -> None:
    net = Net("ab")
    net.tell("b", Listen("g"))
    net.world.network.deafen(Deaf(frozenset("b"), 0.5))
    for number in range(1, 401):
        net.tell("a", Multicast("g", note(number)), at=1_000 * number)
    net.run()
    assert 150 < len(net.numbers("b")) < 250


def test_one_more_host_changes_nobody_elses_luck() -> None:
    def heard(names: str) -> list[tuple[int, str, int]]:
        net = Net(names, LinkQuality(delay_us=100, jitter_us=900, loss=0.3, duplicate=0.2))
        for name in names[1:]:
            net.tell(name, Listen("g"))
        for number in range(1, 200):
            net.tell("a", Multicast("g", note(number)), at=number * 1_000)
        net.run()
        return net.heard("b")

    assert heard("ab") == heard("azyxb")


def test_a_host_that_does_not_exist_is_a_drop() -> None:
    net = Net("a")
    net.tell("a", Send(Client("z"), note(1)))
    net.run()
    assert net.drops() == {"no such host": 1}


def test_a_message_that_breaks_its_own_limits_is_our_own_mistake() -> None:
    net = Net("ab")
    net.tell("a", Send(Client("b"), Data("c", 1, 0, b"")))
    with pytest.raises(AssertionError, match="nobody can read"):
        net.run()


def test_radio_reaches_who_is_in_range_at_the_time() -> None:
    net = Net("abc", LinkQuality(delay_us=100))
    field = RadioField(range_m=10)
    for name, x in {"a": 0.0, "b": 10.0, "c": 20.1}.items():
        field.move(net.world.hosts[name], x, 0)
    net.world.network.reach = field.hops
    net.tell("a", Send(Client("b"), note(1)), Send(Client("c"), note(1)))
    net.run(1_000)
    field.move(net.world.hosts["c"], 5, 5)
    net.tell("a", Send(Client("c"), note(2)))
    net.run(2_000)
    assert (net.numbers("b"), net.numbers("c")) == ([1], [2])
    assert net.drops() == {"out of reach": 1}
    field.remove(net.world.hosts["c"])
    assert field.hops(net.world.hosts["a"], net.world.hosts["c"]) is None


@example(points=[(0.0, 5.0), (0.0, -1e-199)], range_m=5.0)
@given(
    points=st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50)), min_size=2, max_size=12),
    range_m=st.floats(5, 40),
)
def test_radio_hops_are_the_shortest_paths_of_the_range_graph(
    points: list[tuple[float, float]], range_m: float
) -> None:
    names = [chr(ord("a") + number) for number in range(len(points))]
    net = Net("".join(names))
    field = RadioField(range_m, relay=True)
    hosts = [net.world.hosts[name] for name in names]
    for host in hosts:  # everyone moves twice: only the last place counts
        field.move(host, 0, 0)
    for host, (x, y) in zip(hosts, points, strict=True):
        field.move(host, x, y)
    size = len(points)
    near = [[math.dist(a, b) <= range_m for b in points] for a in points]
    hops = [[0 if i == j else 1 if near[i][j] else 99 for j in range(size)] for i in range(size)]
    for middle in range(size):
        for i in range(size):
            for j in range(size):
                hops[i][j] = min(hops[i][j], hops[i][middle] + hops[middle][j])
    for i in range(size):
        assert [host.name for host in field.neighbours(hosts[i])] == [
            names[j] for j in range(size) if i != j and near[i][j]
        ]
        for j in range(size):
            assert field.hops(hosts[i], hosts[j]) == (hops[i][j] if hops[i][j] < 99 else None)


def test_every_hop_costs_its_delay_and_may_lose() -> None:
    net = Net("abc", LinkQuality(delay_us=100))
    field = RadioField(range_m=10, relay=True)
    for number, name in enumerate("abc"):
        field.move(net.world.hosts[name], 10 * number, 0)
    net.world.network.reach = field.hops
    net.tell("a", Send(Client("c"), note(1)))
    net.run()
    assert net.heard("c") == [(200, "a", 1)]


def test_the_inbox_of_a_paused_host_is_bounded() -> None:
    net = Net("ab")
    net.world.pause(net.world.hosts["b"])
    net.tell("a", *(Send(Client("b"), note(number)) for number in range(1, INBOX_MAX + 3)))
    net.run(1_000_000)
    assert net.drops() == {"inbox full": 2}
    net.world.resume(net.world.hosts["b"])
    net.run(2_000_000)
    assert net.numbers("b") == list(range(1, INBOX_MAX + 1))
