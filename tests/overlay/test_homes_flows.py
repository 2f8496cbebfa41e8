"""Homes on real links and flows: brokers ask each other, and a moved consumer misses nothing."""

import msgspec
import pytest

from roamcast.errors import ModulatorError
from roamcast.model.contexts import Context
from roamcast.model.events import Failed
from roamcast.overlay.flows.cursor import ConsumerCursor
from roamcast.overlay.flows.events import (
    EventsDelivered,
    EventsLost,
    EventsStanding,
    PublishEvent,
)
from roamcast.overlay.flows.settings import FlowSettings
from roamcast.overlay.handoff.messages import Attachment
from roamcast.overlay.homes.claims import HomeClaiming
from roamcast.overlay.homes.events import (
    AttachModulated,
    ConfirmModulated,
    DetachModulated,
    MeasureLoad,
    ModulatedAttached,
    ModulatorsAnew,
    ModulatorsStopped,
    MoveClient,
    ReportBrokers,
)
from roamcast.overlay.homes.managers import HomeSettings
from roamcast.overlay.homes.messages import HomeGiven
from roamcast.overlay.homes.records import PREFIX
from roamcast.overlay.homes.relocation import Relocation
from roamcast.overlay.homes.trail import HomeTrail
from roamcast.overlay.homes.working import BARRED_MAX, ServingStoreDue
from roamcast.overlay.modulators.events import (
    EndModulation,
    Modulate,
    ModulationFailed,
    ModuleReady,
    StartModulation,
)
from roamcast.overlay.modulators.specs import Code, EveryNth, Select
from roamcast.overlay.modulators.workshop import Workshop
from tests.overlay_net import Net, OneNode, beside

FLOWS = FlowSettings(
    empty_us=50_000, doubt_us=200_000, fetch_us=200_000, wave_us=400_000, hold_us=2_000_000
)
HOMES = HomeSettings(
    dwell_us=100_000, delay_us=100_000, ask_us=500_000, claim_us=100_000, lease_us=5_000_000
)
NEAR = {"a": "b", "b": "ac", "c": "b"}


def node(name: str, *, homes: HomeSettings = HOMES, **settings) -> OneNode:
    return OneNode(name, beside(*NEAR[name]), flows=FLOWS, homes=homes, **settings)


def line(homes: HomeSettings = HOMES) -> Net:
    net = Net(*(node(name, homes=homes) for name in NEAR))
    net.run(3_000_000)
    return net


class Mover:
    """A consumer's end and the drivers around it; they decide nothing."""

    def __init__(self, net: Net, specs, how: Relocation, *, confirms: bool = True) -> None:
        self.net = net
        self.specs = specs
        self.how = how
        self.confirms = confirms
        self.home = ""
        self.got: list[int] = []
        self.lost: list[EventsLost] = []
        self.said: list = []
        self.deaf = False
        self.held: Modulate | None = None
        """A checkpoint that is not answered yet."""
        self.holds = False
        self.cursor = ConsumerCursor()
        self.trail = HomeTrail(1)
        self.workshops = {name: Workshop() for name in NEAR}
        self.seen = len(net.out)
        self.attach("a")

    def attach(self, to: str) -> None:
        if self.home:
            self.net.give(self.home, DetachModulated("m", self.trail.attachment))
        trail = self.trail.goes_to(to)
        self.home = to
        self.net.give(
            to,
            AttachModulated(
                0, "m", "owner", self.trail.attachment, "true", self.specs, self.how,
                self.cursor.pairs, self.trail.served, trail, 0.1,
            ),
        )  # fmt: skip

    def run(self, duration_us: int) -> None:
        end = self.net.now + duration_us
        while self.net.now < end:
            self.net.run(min(10_000, end - self.net.now))
            self.work()

    def work(self) -> None:
        while self.seen < len(self.net.out):
            where, effect = self.net.out[self.seen]
            self.seen += 1
            if self.holds and isinstance(effect, Modulate) and not effect.events:
                self.held = effect
            elif isinstance(effect, StartModulation | Modulate | EndModulation):
                answer = self.workshops[where].work(effect)
                if answer is not None:
                    self.net.give(where, answer)
            elif where == self.home and not self.deaf:
                self.hear(effect)

    def hear(self, effect) -> None:
        match effect:
            case EventsStanding():
                assert not self.cursor.standing(effect)
            case EventsDelivered():
                taken = self.cursor.take(effect)
                assert not taken.missing
                self.got += [event.context.attributes["n"] for event in taken.events]
                if self.confirms:
                    vector = self.cursor.pairs
                    self.net.give(self.home, ConfirmModulated("m", self.trail.attachment, vector))
            case EventsLost():
                if self.cursor.lost(effect):
                    self.lost.append(effect)
            case ModulatedAttached():
                self.trail.served_by(self.home)
            case ModulatorsAnew() | ModulatorsStopped():
                self.said.append(effect)
            case MoveClient("m", to):
                self.attach(to)

    def publish(self, n: int) -> None:
        context = Context("e", attributes={"n": n})
        at = "ac"[n % 2]
        self.net.give(at, PublishEvent(n, "p" + at, 1, n // 2 + 1, context))


def walk(how: Relocation, specs, near: dict[int, str], **settings) -> Mover:
    """Publish at both ends while a consumer walks; it reports its nearest broker at these times."""
    mover = Mover(line(), specs, how, **settings)
    mover.run(1_000_000)
    for n in range(60):
        where = near.get(n)
        if where is not None:
            distances = tuple((b, 1.0 if b == where else 4.0) for b in "abc")
            mover.net.give(mover.home, ReportBrokers("m", distances))
        mover.publish(n)
        mover.run(20_000)
    mover.run(4_000_000)
    return mover


def in_order(mover: Mover) -> bool:
    return all(
        (numbers := [n for n in mover.got if n % 2 == parity]) == sorted(set(numbers))
        for parity in (0, 1)
    )


def test_a_move_is_asked_for_over_links_and_loses_nothing():
    mover = walk(Relocation(), (Select(),), {10: "c", 30: "b", 40: "a"})
    moves = [effect.to for _, effect in mover.net.out if isinstance(effect, MoveClient)]
    assert moves[0] == "c"
    assert len(moves) >= 2
    assert not mover.lost
    for parity in (0, 1):  # each producer's events, once and in order
        assert [n for n in mover.got if n % 2 == parity] == list(range(parity, 60, 2))


@pytest.mark.parametrize("confirms", [True, False])
def test_modulators_go_on_counting_where_they_were(confirms):
    mover = walk(Relocation(), (EveryNth(3),), {10: "c", 40: "b"}, confirms=confirms)
    assert mover.home == "b"
    assert not mover.said
    assert len(mover.got) == len(set(mover.got)) == 20
    assert in_order(mover)
    held = [name for name, one in mover.net.nodes.items() if one.overlay.serving.served]
    assert held == ["b"]
    assert [key for key in mover.net.nodes["a"].disk if key.startswith(PREFIX)] == [
        "serving/gone/m"
    ]


@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("spec", [Select(), EveryNth(1)])
def test_a_light_move_loses_no_more_than_it_says(state, spec):
    mover = walk(Relocation(events=False, state=state), (spec,), {10: "c"})
    assert mover.home == "c"
    lost = sum(span.upto.number - span.after.number for span in mover.lost)
    assert len(mover.got) == len(set(mover.got)) == 60 - lost
    assert in_order(mover)


def test_what_a_session_did_not_hear_is_repeated_from_the_checkpoint():
    mover = Mover(line(), (EveryNth(3),), Relocation(), confirms=False)
    mover.run(1_000_000)
    for n in range(60):
        mover.deaf = 20 <= n < 40  # what is sent meanwhile is lost on the way
        if n == 40:
            mover.attach("a")
        mover.publish(n)
        mover.run(20_000)
    mover.run(3_000_000)
    assert len(mover.got) == len(set(mover.got)) == 20
    assert in_order(mover)


def test_whoever_was_deaf_when_origins_were_told_still_confirms_what_it_had():
    """Origins without an event come with the first word only; modulators wait for confirmation."""
    short = msgspec.structs.replace(HOMES, renew_steps=2, steps_max=4)
    mover = Mover(line(short), (EveryNth(3),), Relocation())
    mover.deaf = True
    mover.run(1_000_000)
    mover.deaf = False
    mover.attach("a")
    mover.run(1_000_000)
    assert set(mover.cursor.vector) == set("abc")
    for n in range(60):
        mover.publish(n)
        mover.run(20_000)
    mover.run(1_000_000)
    assert len(mover.got) == len(set(mover.got)) == 20
    assert in_order(mover)


def test_a_checkpoint_under_way_is_not_the_last_one_if_the_end_did_not_hear_everything():
    often = msgspec.structs.replace(HOMES, renew_steps=1)
    mover = Mover(line(often), (EveryNth(1),), Relocation(), confirms=False)
    mover.run(1_000_000)
    mover.holds = mover.deaf = True
    mover.publish(0)
    mover.run(200_000)
    assert mover.held is not None
    mover.deaf = False
    mover.attach("c")
    mover.run(300_000)
    mover.net.give("a", mover.workshops["a"].work(mover.held))
    mover.holds = False
    mover.run(2_000_000)
    assert mover.got == [0]


def test_a_module_that_was_stopped_may_not_begin_again_at_once():
    net, module = line(), "0" * 64
    at_home = net.nodes["a"]

    def attach(consumer: str, owner: str) -> list:
        before = len(net.out)
        net.give(
            "a",
            AttachModulated(
                1, consumer, owner, Attachment(1, 1), "true", (Code(module),), Relocation()
            ),
        )
        net.give("a", ModuleReady(module))
        net.run(10_000)
        return [effect for _, effect in net.out[before:]]

    attach("first", "mallory")
    instance = at_home.overlay.serving.served["first"].instance
    net.give("a", ModulationFailed("first", instance, "out of fuel"))
    refused = next(one for one in attach("second", "mallory") if isinstance(one, Failed))
    assert (
        str(refused.error)
        == "this module was stopped: out of fuel; it may begin here again in 10 s"
    )
    assert not any(isinstance(one, Failed) for one in attach("third", "somebody else"))
    net.run(HOMES.barred_us)
    assert not any(isinstance(one, Failed) for one in attach("second", "mallory"))


def test_modules_that_were_stopped_are_remembered_within_a_bound():
    serving = line().nodes["a"].overlay.serving
    for number in range(BARRED_MAX + 1):
        assert serving.occupancy()["modules barred"] == (number, BARRED_MAX)
        serving._bar("mallory", f"{number:064}", "out of fuel", 0)
    assert serving.occupancy()["modules barred"] == (BARRED_MAX, BARRED_MAX)
    serving._check_barred("mallory", (Code(f"{0:064}"),), 1)  # the oldest is forgotten
    with pytest.raises(ModulatorError, match="in 10 s"):
        serving._check_barred("mallory", (Code(f"{1:064}"),), 1)


def test_a_home_that_crashes_goes_on_exactly():
    mover = Mover(line(), (EveryNth(3),), Relocation())
    mover.run(1_000_000)
    for n in range(60):
        if n == 30:
            net = mover.net
            net.nodes["a"] = node("a", now=net.now, epoch=2_000_000, disk=net.nodes["a"].disk)
            mover.workshops["a"] = Workshop()
        if n == 40:
            mover.attach("a")
        if n % 2 or not 30 <= n < 45:
            mover.publish(n)
        mover.run(20_000)
    mover.run(5_000_000)
    assert not mover.said
    published = 60 - 8
    assert len(mover.got) == len(set(mover.got)) == published // 3
    assert in_order(mover)


def test_nobody_is_told_to_be_served_before_the_record_is_on_disk():
    mover = Mover(line(), (EveryNth(3),), Relocation())
    mover.run(1_000_000)
    mover.net.nodes["a"].refuses = True
    mover.attach("a")
    mover.run(500_000)
    assert mover.trail.served != mover.trail.attachment
    mover.net.nodes["a"].refuses = False
    mover.run(500_000)
    assert mover.trail.served == mover.trail.attachment


def test_everything_is_forgotten_after_the_lease():
    mover = walk(Relocation(), (EveryNth(3),), {10: "c"})
    mover.net.give("c", DetachModulated("m", mover.trail.attachment))
    mover.home = ""
    mover.run(6_000_000)
    for one in mover.net.nodes.values():
        assert not one.overlay.serving.served
        assert one.overlay.serving.idle()
        assert not [key for key in one.disk if key.startswith(PREFIX)]


def test_a_loaded_broker_is_known_across_the_overlay_and_not_chosen():
    net = line()
    net.give("c", MeasureLoad(0.9))
    net.run(500_000)
    assert net.nodes["a"].overlay.homes.brokers.information["c"].loaded
    mover = Mover(net, (Select(),), Relocation())
    net.give("a", ReportBrokers("m", (("a", 5.0), ("b", 3.0), ("c", 1.0))))
    mover.run(2_000_000)
    assert mover.home == "b"


def test_a_state_on_its_way_elsewhere_is_awaited_by_the_home_that_sent_it():
    """A consumer turns round before its state has arrived where it was going."""
    mover = Mover(line(), (EveryNth(3),), Relocation())
    mover.run(1_000_000)
    for n in range(10):
        mover.publish(n)
        mover.run(20_000)
    nodes = mover.net.nodes
    nodes["b"].refuses = True  # parcels wait at a; every word about them passes
    mover.attach("c")
    mover.run(500_000)
    assert "serving/gone/m" in nodes["a"].disk
    mover.attach("a")
    mover.run(500_000)
    assert nodes["a"].overlay.serving.claims
    nodes["b"].refuses = False
    for n in range(10, 30):
        mover.publish(n)
        mover.run(20_000)
    mover.run(4_000_000)
    assert not mover.said
    assert len(mover.got) == len(set(mover.got)) == 10
    assert in_order(mover)


def test_an_answer_that_names_another_node_counts_also_from_one_it_was_sent_to():
    claim = HomeClaiming(
        "m", "owner", Attachment(2, 1), Attachment(1, 1), state=True, until_us=1_000
    )
    claim.was_given("b")
    claim.answered(HomeGiven("a", "b", "m", Attachment(2, 1), ""), "a")
    assert [*claim.nodes] == ["b"]  # it knows nothing yet
    claim.answered(HomeGiven("a", "b", "m", Attachment(2, 1), "c"), "a")
    assert [*claim.nodes] == ["c"]


def attached(net: Net, name: str) -> list:
    before = len(net.out)
    specs = (EveryNth(3),)
    given = AttachModulated(1, name, "owner", Attachment(1, 1), "true", specs, Relocation())
    net.give("a", given)
    return [effect for _, effect in net.out[before:]]


def test_whoever_begins_is_told_of_origins_by_flows_alone():
    effects = attached(line(), "m")
    assert any(isinstance(one, ModulatedAttached) for one in effects)
    assert not any(isinstance(one, EventsStanding) for one in effects)


def test_modulators_end_with_their_consumer():
    net = line()
    started = next(one for one in attached(net, "m") if isinstance(one, StartModulation))
    ended = net.give("a", DetachModulated("m", Attachment(1, 1), True))
    assert EndModulation(started.instance) in ended


def test_a_lease_ends_though_another_consumer_went_at_that_moment():
    net = line()
    serving = net.nodes["a"].overlay.serving
    for name in ("first", "second"):
        attached(net, name)
        net.give("a", DetachModulated(name, Attachment(1, 1)))
        serving.timers.set(ServingStoreDue(name), net.now + HOMES.lease_us)
    net.run(HOMES.lease_us + 1)
    assert not serving.served
