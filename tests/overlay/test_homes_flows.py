"""Homes on real links and flows: brokers ask each other, and a moved consumer misses nothing."""

import pytest

from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.overlay.flows.events import (
    EventsDelivered,
    EventsStanding,
    PublishEvent,
    SubscribeEvents,
    UnsubscribeEvents,
)
from roamcast.overlay.flows.settings import FlowSettings
from roamcast.overlay.homes.events import (
    AddHomeClient,
    DropHomeClient,
    MeasureLoad,
    MoveClient,
    ReportBrokers,
)
from roamcast.overlay.homes.managers import HomeSettings
from roamcast.overlay.homes.relocation import (
    LogSpan,
    ModulatedConsumer,
    Relocation,
    located,
    take_over,
)
from roamcast.overlay.modulators.modulation import Modulation
from roamcast.overlay.modulators.specs import EveryNth, Select
from tests.overlay_net import Net, OneNode, beside

FLOWS = FlowSettings(
    empty_us=50_000, doubt_us=200_000, fetch_us=200_000, wave_us=400_000, hold_us=2_000_000
)
HOMES = HomeSettings(dwell_us=100_000, delay_us=100_000, ask_us=500_000)
ALL = Filter.parse("true")


def line() -> Net:
    nodes = [
        OneNode(name, beside(*near), flows=FLOWS, homes=HOMES)
        for name, near in {"a": "b", "b": "ac", "c": "b"}.items()
    ]
    net = Net(*nodes)
    net.run(3_000_000)
    return net


class Mover:
    """What a driver does with moves: it carries one modulated consumer between its homes."""

    def __init__(self, net: Net, specs, how: Relocation) -> None:
        self.net = net
        self.specs = specs
        self.how = how
        self.home = "a"
        self.got: list[int] = []
        self.skipped: list[LogSpan] = []
        self.frozen = None
        self.consumer: ModulatedConsumer | None = None
        self.seen = 0
        net.give("a", AddHomeClient("m", 0.1))
        net.give("a", SubscribeEvents(0, "m", ALL))

    def work(self) -> None:
        """Carry out what the machines said since last time."""
        for node, effect in self.net.out[self.seen :]:
            match effect:
                case EventsStanding("m", vector) if node == self.home:
                    self.stands(dict(vector))
                case EventsDelivered("m", origin, after, upto, events) if node == self.home:
                    span = LogSpan(origin, after, upto)
                    assert self.consumer is not None
                    assert self.consumer.missing(span) is None
                    found = self.consumer.deliver(span, located(upto.epoch, events))
                    self.got += [s.context.attributes["n"] for s in found]
                case MoveClient("m", to):
                    self.move(to)
        self.seen = len(self.net.out)

    def stands(self, vector) -> None:
        if self.frozen is not None:
            self.consumer, skipped = take_over(self.frozen, vector, Modulation)
            self.skipped += skipped
            self.frozen = None
        elif self.consumer is None:
            self.consumer = ModulatedConsumer(self.specs, Modulation(self.specs), vector)

    def move(self, to: str) -> None:
        assert self.consumer is not None
        self.frozen = self.consumer.freeze(self.how)
        self.net.give(self.home, UnsubscribeEvents("m"))
        self.net.give(self.home, DropHomeClient("m"))
        self.home = to
        vector = self.frozen.vector if self.how.events else ()
        self.net.give(to, AddHomeClient("m", 0.1))
        self.net.give(to, SubscribeEvents(0, "m", ALL, vector))


def walk(how: Relocation, specs, near: dict[int, str]) -> Mover:
    """Publish at both ends while a consumer walks; it reports its nearest broker at these times."""
    net = line()
    mover = Mover(net, specs, how)
    for _ in range(1_000):
        net.run(1_000)
    mover.work()
    for n in range(60):
        where = near.get(n)
        if where is not None:
            distances = tuple((b, 1.0 if b == where else 4.0) for b in "abc")
            net.give(mover.home, ReportBrokers("m", distances))
        context = Context("e", attributes={"n": n})
        net.give("ac"[n % 2], PublishEvent(n, "p" + "ac"[n % 2], 1, n // 2 + 1, context))
        net.run(20_000)
        mover.work()
    for _ in range(30):
        net.run(100_000)
        mover.work()
    return mover


def test_a_move_is_asked_for_over_links_and_loses_nothing():
    mover = walk(Relocation(), (Select(),), {10: "c", 30: "b", 40: "a"})
    moves = [effect.to for _, effect in mover.net.out if isinstance(effect, MoveClient)]
    assert moves[0] == "c"
    assert len(moves) >= 2
    assert not mover.skipped
    for parity in (0, 1):  # each producer's events, once and in order
        assert [n for n in mover.got if n % 2 == parity] == list(range(parity, 60, 2))


def test_modulators_go_on_counting_where_they_were():
    mover = walk(Relocation(), (EveryNth(3),), {10: "c", 40: "b"})
    assert mover.home == "b"
    assert len(mover.got) == len(set(mover.got)) == 20


@pytest.mark.parametrize("state", [True, False])
def test_a_light_move_loses_no_more_than_it_says(state):
    mover = walk(Relocation(events=False, state=state), (Select(),), {10: "c"})
    assert mover.home == "c"
    lost = sum(span.upto.number - span.after.number for span in mover.skipped)
    assert len(mover.got) == len(set(mover.got)) == 60 - lost
    for parity in (0, 1):
        numbers = [n for n in mover.got if n % 2 == parity]
        assert numbers == sorted(numbers)


def test_a_loaded_broker_is_known_across_the_overlay_and_not_chosen():
    net = line()
    net.give("c", MeasureLoad(0.9))
    net.run(500_000)
    assert net.nodes["a"].overlay.homes.brokers.information["c"].loaded
    mover = Mover(net, (Select(),), Relocation())
    net.give("a", ReportBrokers("m", (("a", 5.0), ("b", 3.0), ("c", 1.0))))
    net.run(2_000_000)
    mover.work()
    assert mover.home == "b"
