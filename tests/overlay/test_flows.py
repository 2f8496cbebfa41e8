"""Flows between nodes: every event, once, in order, and gaps that are told."""

from typing import Any

import pytest

from roamcast.channels.failover.epochs import epoch_at
from roamcast.model.contexts import Context
from roamcast.model.events import Failed
from roamcast.model.filters import Filter
from roamcast.overlay.events import WayLost
from roamcast.overlay.flows.cursor import ConsumerCursor
from roamcast.overlay.flows.events import (
    EventPublished,
    EventsDelivered,
    EventsLost,
    EventsStanding,
    PublishEvent,
    SubscribeEvents,
    UnsubscribeEvents,
)
from roamcast.overlay.flows.messages import DATA_BYTES_MAX, FlowChunk, FlowHello
from roamcast.overlay.flows.relay import Everything
from roamcast.overlay.flows.settings import FlowSettings
from roamcast.overlay.flows.vector import Position
from tests.overlay_net import EPOCH, Net, OneNode, beside

QUICK = FlowSettings(
    empty_us=50_000, doubt_us=200_000, fetch_us=200_000, wave_us=400_000, hold_us=2_000_000
)
ALL = Filter.parse("true")
RED = Filter.parse("colour = 'red'")


def line(*names: str, **settings: Any) -> Net:
    """Nodes in a line."""
    nodes = []
    for number, name in enumerate(names):
        near = [*names[max(0, number - 1) : number], *names[number + 1 : number + 2]]
        nodes.append(OneNode(name, beside(*near), **{"flows": QUICK, **settings}))
    net = Net(*nodes)
    net.run(3_000_000)
    return net


def publish(net: Net, node: str, number: int, *, colour: str = "red", **more: Any) -> list[Any]:
    context = Context("event", attributes={"colour": colour})
    made = {"producer": "p", "life": 1, **more}
    return net.give(
        node, PublishEvent(number, made.pop("producer"), made.pop("life"), number, context, **made)
    )


def subscribe(net: Net, node: str, name: str, wanted: Filter = RED, vector: Any = ()) -> None:
    net.give(node, SubscribeEvents(0, name, wanted, vector))


def numbers(net: Net, name: str, cursor: ConsumerCursor | None = None) -> list[int]:
    """The numbers a consumer sees, through its own cursor."""
    cursor = cursor or ConsumerCursor()
    seen = []
    for _, effect in net.out:
        if isinstance(effect, EventsStanding) and effect.consumer == name:
            cursor.standing(effect)
        elif isinstance(effect, EventsLost) and effect.consumer == name:
            cursor.lost(effect)
        elif isinstance(effect, EventsDelivered) and effect.consumer == name:
            taken = cursor.take(effect)
            assert not taken.missing
            seen += [event.number for event in taken.events]
    return seen


def standing(net: Net, name: str) -> dict[str, Position]:
    """The first vector that a consumer was told."""
    for _, effect in net.out:
        if isinstance(effect, EventsStanding) and effect.consumer == name:
            return dict(effect.vector)
    raise AssertionError(f"{name} does not stand")


def test_a_consumer_three_nodes_away_gets_what_it_wants_in_order() -> None:
    net = line("a", "b", "c", "d")
    subscribe(net, "d", "reader")
    net.run(500_000)
    assert set(standing(net, "reader")) == {"a", "b", "c", "d"}
    for number in range(1, 21):
        publish(net, "a", number, colour="red" if number % 2 else "blue")
        net.run(3_000)
    net.run(1_000_000)
    assert numbers(net, "reader") == list(range(1, 21, 2))
    assert all(net.nodes[name].overlay.flows.idle() for name in "abcd")


def test_what_nobody_wants_crosses_no_link() -> None:
    net = line("a", "b", "c")
    subscribe(net, "b", "reader")
    net.run(3_000_000)
    before = len(chunks(net))
    for number in range(1, 11):
        publish(net, "a", number, colour="blue")
    net.run(500_000)
    assert len(chunks(net)) == before
    publish(net, "a", 11)
    net.run(500_000)
    assert len(chunks(net)) == before + 1  # to b, and not to c


def chunks(net: Net, kind: type = FlowChunk) -> list[Any]:
    from roamcast.overlay.overlay import CARRIED

    found = []
    for source, to, frame in net.frames:
        part = getattr(frame, "part", None)
        data = getattr(part, "payload", None)
        if data is not None and isinstance(CARRIED.decode(data), kind):
            found.append((source, to))
    return found


def test_a_publication_sent_again_is_acknowledged_and_not_repeated() -> None:
    net = line("a", "b")
    subscribe(net, "b", "reader")
    net.run(500_000)
    first = [one for one in publish(net, "a", 1) if isinstance(one, EventPublished)]
    again = [one for one in publish(net, "a", 1) if isinstance(one, EventPublished)]
    net.run(500_000)
    assert first[0].at == again[0].at
    assert numbers(net, "reader") == [1]


def test_a_publication_sent_again_elsewhere_reaches_a_consumer_once() -> None:
    net = line("a", "b", "c")
    subscribe(net, "b", "reader")
    net.run(500_000)
    publish(net, "a", 1)
    publish(net, "c", 1)
    publish(net, "c", 2)
    net.run(500_000)
    assert numbers(net, "reader") == [1, 2]


def test_a_consumer_goes_on_elsewhere_from_its_vector() -> None:
    net = line("a", "b", "c")
    subscribe(net, "b", "reader")
    net.run(500_000)
    for number in range(1, 6):
        publish(net, "a", number)
    net.run(500_000)
    cursor = ConsumerCursor()
    assert numbers(net, "reader", cursor) == [1, 2, 3, 4, 5]
    net.give("b", UnsubscribeEvents("reader"))
    for number in range(6, 11):
        publish(net, "a", number)
    net.run(500_000)
    net.out.clear()
    subscribe(net, "c", "reader", vector=cursor.pairs)
    for number in range(11, 16):
        publish(net, "a", number)
        net.run(4_000)
    net.run(1_000_000)
    assert numbers(net, "reader", cursor) == list(range(6, 16))
    assert not net.nodes["c"].overlay.flows.home.behind()


def test_what_a_broken_link_did_not_deliver_is_fetched_from_the_log() -> None:
    net = line("a", "b", "c")
    subscribe(net, "c", "reader")
    net.run(500_000)
    net.cut |= {("a", "b"), ("b", "a")}
    for number in range(1, 6):
        publish(net, "a", number)
    net.run(5_000_000)
    net.cut.clear()
    net.run(5_000_000)
    assert numbers(net, "reader") == [1, 2, 3, 4, 5]


def take_over(net: Net, name: str, disk: dict[str, bytes], *near: str) -> None:
    """Let another host of a node serve it, from its own disk."""
    epoch = epoch_at(net.now, 1, net.nodes.pop(name).overlay.links.epoch)
    for other in near:
        net.give(other, WayLost(name, "closed"))
    more = {"now": net.now, "epoch": epoch, "disk": disk}
    net.nodes[name] = OneNode(name, beside(*near), flows=QUICK, **more)
    net.run(5_000_000)


def lost(net: Net, name: str) -> list[EventsLost]:
    found = [one for _, one in net.out if isinstance(one, EventsLost)]
    return [one for one in found if one.consumer == name]


def test_a_host_that_takes_over_with_an_older_disk_gives_no_number_again() -> None:
    """0431: its readers had numbers of which its own disk knows nothing."""
    net = line("a", "b")
    subscribe(net, "b", "reader")
    net.run(500_000)
    for number in range(1, 4):
        publish(net, "a", number)
    net.run(500_000)
    older = dict(net.nodes["a"].disk)
    for number in range(4, 7):
        publish(net, "a", number)
    net.run(500_000)
    assert numbers(net, "reader") == [1, 2, 3, 4, 5, 6]
    take_over(net, "a", older, "b")
    for number in range(7, 10):
        publish(net, "a", number)
    net.run(2_000_000)
    assert numbers(net, "reader") == list(range(1, 10))
    assert len(lost(net, "reader")) == 1, "the other host may have had more"


def test_a_host_that_takes_over_with_the_same_disk_loses_nothing_and_says_so() -> None:
    net = line("a", "b")
    subscribe(net, "b", "reader")
    net.run(500_000)
    for life in range(3):
        publish(net, "a", 2 * life + 1)
        net.run(500_000)
        net.cut |= {("a", "b"), ("b", "a")}
        publish(net, "a", 2 * life + 2)
        net.run(500_000)
        net.cut.clear()
        take_over(net, "a", dict(net.nodes["a"].disk), "b")
    publish(net, "a", 7)
    net.run(2_000_000)
    assert numbers(net, "reader") == list(range(1, 8))
    assert not lost(net, "reader")


def longest_silence(net: Net, steps: int, number: int) -> int:
    """Publish at c every ten milliseconds; give the longest time without an event for anybody."""
    longest, last, seen = 0, net.now, len(net.out)
    for step in range(steps):
        publish(net, "c", number + step)
        for _ in range(10):
            net.run(1_000)
            new, seen = net.out[seen:], len(net.out)
            if any(isinstance(one, EventsDelivered) and one.events for _, one in new):
                longest, last = max(longest, net.now - last), net.now
    return max(longest, net.now - last)


@pytest.mark.parametrize("doubt_us", [FlowSettings().doubt_us, 1_000_000])
def test_a_restart_of_the_node_between_two_others_is_a_short_silence(doubt_us: int) -> None:
    """The tree goes another way and comes back; the wave's answer ends the doubt (0310)."""
    names, flows = ("a", "b", "c"), FlowSettings(doubt_us=doubt_us)
    net = Net(*(OneNode(one, beside(*{*names} - {one}), flows=flows) for one in names))
    net.run(3_000_000)
    subscribe(net, "b", "reader")
    net.run(1_000_000)
    assert net.nodes["c"].overlay.topology.tree_links == ("a",)
    silences = [longest_silence(net, 50, 1)]
    gone = net.nodes.pop("a")
    for other in "bc":
        net.give(other, WayLost("a", "closed"))
    silences.append(longest_silence(net, 100, 51))
    assert net.nodes["c"].overlay.topology.tree_links == ("b",)
    more = {"now": net.now, "epoch": EPOCH + net.now, "disk": gone.disk}
    net.nodes["a"] = OneNode("a", beside("b", "c"), flows=flows, **more)
    silences.append(longest_silence(net, 300, 151))
    assert net.nodes["c"].overlay.topology.tree_links == ("a",)
    net.run(1_000_000)
    assert numbers(net, "reader") == list(range(1, 451))
    assert silences[0] < 20_000
    assert max(silences) < 100_000, silences


def test_a_log_too_short_is_told_as_a_gap() -> None:
    short = FlowSettings(empty_us=50_000, log_age_us=1_000_000, fetch_us=200_000)
    net = line("a", "b", flows=short)
    subscribe(net, "b", "reader")
    net.run(500_000)
    publish(net, "a", 1)
    net.run(200_000)
    cursor = ConsumerCursor()
    assert numbers(net, "reader", cursor) == [1]
    net.give("b", UnsubscribeEvents("reader"))
    publish(net, "a", 2)
    net.run(3_000_000)
    publish(net, "a", 3)
    net.run(100_000)
    net.out.clear()
    subscribe(net, "b", "reader", vector=cursor.pairs)
    net.run(1_000_000)
    lost = [one for _, one in net.out if isinstance(one, EventsLost)]
    assert [(one.consumer, one.origin, one.after.number, one.upto.number) for one in lost] == [
        ("reader", "a", 1, 2)
    ]
    assert numbers(net, "reader", cursor) == [3]
    assert not any(key.startswith("flows/log/0000000000000000002") for key in net.nodes["a"].disk)


def test_an_event_waits_for_what_it_needs() -> None:
    net = line("a", "b", "c")
    subscribe(net, "b", "reader")
    net.run(500_000)
    net.cut |= {("a", "b"), ("b", "a")}
    at = next(one.at for one in publish(net, "a", 1) if isinstance(one, EventPublished))
    publish(net, "c", 2, needs=(("a", at),))
    net.run(1_000_000)
    assert numbers(net, "reader") == []
    net.cut.clear()
    net.run(5_000_000)
    assert numbers(net, "reader") == [1, 2]


def test_what_is_needed_and_never_comes_is_given_up() -> None:
    net = line("a", "b")
    subscribe(net, "b", "reader")
    net.run(500_000)
    publish(net, "a", 1, needs=(("nowhere", Position(1, 5)),))
    publish(net, "a", 2)
    net.run(1_000_000)
    assert numbers(net, "reader") == []
    net.run(2_000_000)
    assert numbers(net, "reader") == [1, 2]


def after_a_move_from_out_of_reach(net: Net) -> None:
    """A producer publishes at a, which nobody reaches, and from then on at c."""
    net.cut |= {("a", "b"), ("b", "a")}
    at = next(one.at for one in publish(net, "a", 1) if isinstance(one, EventPublished))
    for number in range(2, 8):
        publish(net, "c", number, needs=(("a", at),))


def test_who_is_waited_for_in_vain_is_waited_for_once() -> None:
    net = line("a", "b", "c")
    subscribe(net, "b", "reader")
    net.run(500_000)
    after_a_move_from_out_of_reach(net)
    net.run(QUICK.hold_us + 500_000)
    assert numbers(net, "reader") == [2, 3, 4, 5, 6, 7]
    subscribe(net, "b", "newcomer", ALL)
    net.run(1_000_000)
    publish(net, "c", 8, needs=(("a", Position(EPOCH, 1)),))
    net.run(500_000)
    assert numbers(net, "newcomer") == [8]


def test_what_was_waited_for_in_vain_comes_late_and_is_told_so() -> None:
    net = line("a", "b", "c")
    subscribe(net, "b", "reader")
    net.run(500_000)
    after_a_move_from_out_of_reach(net)
    net.run(QUICK.hold_us + 500_000)
    net.cut.clear()
    net.run(5_000_000)
    publish(net, "a", 7)  # sent again at another node
    publish(net, "c", 8)
    net.run(1_000_000)
    cursor = ConsumerCursor()
    assert numbers(net, "reader", cursor) == [2, 3, 4, 5, 6, 7, 1, 8]
    assert cursor.late == 1


def test_an_earlier_life_of_a_producer_that_comes_after_the_next_one_is_not_dropped() -> None:
    net = line("a", "b", "c")
    subscribe(net, "b", "reader")
    net.run(500_000)
    net.cut |= {("a", "b"), ("b", "a")}
    publish(net, "a", 7)
    publish(net, "c", 1, life=2)
    net.run(500_000)
    net.cut.clear()
    net.run(5_000_000)
    assert numbers(net, "reader") == [1, 7]


def test_a_vector_of_the_far_future_is_told_and_set_right() -> None:
    net = line("a", "b")
    epoch = net.nodes["a"].overlay.flows.log.epoch
    subscribe(net, "b", "reader", vector=(("a", Position(epoch, 999)),))
    net.run(500_000)
    lost = [one for _, one in net.out if isinstance(one, EventsLost)]
    assert [one.reason for one in lost] == ["the vector lies beyond the end of the log"]
    publish(net, "a", 1)
    net.run(500_000)
    assert [one.upto.number for _, one in net.out if isinstance(one, EventsDelivered)][-1:] == [1]


@pytest.mark.parametrize("buffered", [False, True])
def test_a_vector_of_the_far_future_is_told_also_where_its_filter_stands(buffered: bool) -> None:
    """Because another one wants the same, or because its own home has prepared for it."""
    net = line("a", "b")
    epoch = net.nodes["a"].overlay.flows.log.epoch
    name = "reader" if buffered else "other"
    net.give("b", SubscribeEvents(0, name, RED, (), buffered=buffered))
    net.run(500_000)
    subscribe(net, "b", "reader", vector=(("a", Position(epoch, 999)),))
    net.run(1_000_000)
    assert [one.reason for one in lost(net, "reader")] == [
        "the vector lies beyond the end of the log"
    ]
    publish(net, "a", 1)
    net.run(500_000)
    assert numbers(net, "reader") == [1]
    assert all(net.nodes[name].overlay.flows.idle() for name in "ab")


def test_who_is_a_little_ahead_of_its_home_is_told_of_no_loss() -> None:
    net = line("a", "b", "c")
    subscribe(net, "b", "other")
    subscribe(net, "a", "reader")
    net.run(500_000)
    net.cut |= {("a", "b"), ("b", "a")}
    publish(net, "a", 1)
    net.run(100_000)
    cursor = ConsumerCursor()
    assert numbers(net, "reader", cursor) == [1]
    net.give("a", UnsubscribeEvents("reader"))
    subscribe(net, "b", "reader", vector=cursor.pairs)
    net.run(500_000)
    net.cut.clear()
    publish(net, "a", 2)
    net.run(5_000_000)
    assert not lost(net, "reader")
    assert numbers(net, "reader", cursor)[-1:] == [2]


@pytest.mark.parametrize("reached", [True, False])
def test_who_is_ahead_of_a_waves_start_is_told_of_no_loss(reached: bool) -> None:
    """A wave says since when flows are complete; logs may have gone on before it began.

    Of an origin that it did not reach it says nothing.
    """
    net = line("a", "b")
    subscribe(net, "b", "other")
    subscribe(net, "a", "reader")
    net.run(500_000)
    start = dict(net.nodes["b"].overlay.flows.home.vector)
    net.cut |= {("a", "b"), ("b", "a")}
    publish(net, "a", 1)
    net.run(100_000)
    cursor = ConsumerCursor()
    assert numbers(net, "reader", cursor) == [1]
    subscribe(net, "b", "reader", vector=cursor.pairs)
    home = net.nodes["b"].overlay.flows.home
    assert home.ahead
    assert not home.stood(*((start, cursor.vector) if reached else ({}, {})), ["reader"])
    assert not home.ahead


def test_a_megabyte_travels_in_chunks_and_one_byte_more_is_refused() -> None:
    net = line("a", "b", "c")
    subscribe(net, "c", "reader")
    net.run(500_000)
    data = bytes(DATA_BYTES_MAX)
    publish(net, "a", 1, data=data)
    publish(net, "a", 2, data=b"small")
    net.run(3_000_000)
    got = [
        event.data
        for _, one in net.out
        if isinstance(one, EventsDelivered)
        for _, event in one.events
    ]
    assert got == [data, b"small"]
    refused = publish(net, "a", 3, data=data + b"x")
    assert "bytes of data" in str(next(one for one in refused if isinstance(one, Failed)).error)


def test_what_the_disk_refuses_is_not_delivered_and_leaves_a_hole() -> None:
    net = line("a", "b")
    subscribe(net, "b", "reader")
    net.run(500_000)
    net.nodes["a"].refuses = True
    assert any(isinstance(one, Failed) for one in publish(net, "a", 1))
    net.nodes["a"].refuses = False
    publish(net, "a", 2)
    net.run(500_000)
    assert numbers(net, "reader") == [2]


def test_the_log_survives_a_restart_and_goes_on_counting() -> None:
    net = line("a", "b")
    subscribe(net, "b", "reader")
    net.run(500_000)
    publish(net, "a", 1)
    net.run(200_000)
    disk = net.nodes["a"].disk
    net.nodes["a"] = OneNode("a", beside("b"), now=net.now, epoch=2_000_000, disk=disk, flows=QUICK)
    net.run(4_000_000)
    publish(net, "a", 2)
    net.run(1_000_000)
    assert numbers(net, "reader") == [1, 2]


@pytest.mark.parametrize("passive", [("a",), ("b",), ("a", "b")])
def test_a_passive_node_forwards_everything_and_changes_nothing(passive: tuple[str, ...]) -> None:
    net = line("a", "b", "c")
    for name in passive:
        net.nodes[name].overlay.flows.relay.forwarding = Everything()
    subscribe(net, "c", "reader")
    net.run(500_000)
    for number in range(1, 7):
        publish(net, "a", number, colour="red" if number % 2 else "blue")
    net.run(500_000)
    assert numbers(net, "reader") == [1, 3, 5]


def test_an_equal_filter_stands_at_once() -> None:
    net = line("a", "b")
    subscribe(net, "b", "one")
    net.run(500_000)
    effects = net.give("b", SubscribeEvents(0, "other", RED))
    assert any(isinstance(one, EventsStanding) for one in effects)
    publish(net, "a", 1)
    net.run(500_000)
    assert numbers(net, "one") == numbers(net, "other") == [1]


def test_a_consumer_fetches_what_came_between_its_start_and_its_standing() -> None:
    net = line("a", "b")
    subscribe(net, "b", "first")
    net.run(500_000)
    home = net.nodes["b"].overlay.flows.home
    start = dict(home.vector)
    publish(net, "a", 1)
    net.run(500_000)
    home.subscribe("second", ALL, {}, buffered=False, now=net.now)
    assert not home.idle
    home.stood(start, home.vector, ["second"])
    (fetch,) = home.fetches(net.now)
    assert (fetch.to, fetch.after, fetch.upto) == ("a", start["a"], start["a"].number + 1)


def test_a_link_that_dropped_something_is_told_once_how_far_logs_reach() -> None:
    net = line("a", "b")
    before = len(chunks(net, FlowHello))
    net.nodes["a"].overlay.flows.relay.links["b"].dropped = True
    for number in (1, 2):
        publish(net, "a", number)
        net.run(500_000)
    assert chunks(net, FlowHello)[before:] == [("a", "b")]


def test_a_full_log_drops_its_head() -> None:
    small = FlowSettings(empty_us=50_000, log_bytes_max=5_000)
    net = line("a", flows=small)
    for number in range(1, 51):
        publish(net, "a", number)
        net.run(1_000)
    log = net.nodes["a"].overlay.flows.log
    assert log.bytes <= 5_000
    assert log.trimmed == 50 - len(log)
