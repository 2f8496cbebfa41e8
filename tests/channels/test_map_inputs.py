"""What a map server and its clients take, record as dropped, or assert; and what they hold."""

import random

import pytest

from roamcast.channels.client.map_client import MapClient
from roamcast.channels.failover.epochs import epoch_at
from roamcast.channels.failover.messages import Alive
from roamcast.channels.reliable.messages import Data, HealRequest, Join
from roamcast.channels.server.desk import ChannelDue
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.messages import Hello, Publish, Receipt, Request, ServerHere, Settled
from roamcast.channels.server.settings import MapSettings
from roamcast.model.contexts import Context, body_of
from roamcast.model.machine import Input, Received, Stored
from roamcast.model.records import Drop
from roamcast.model.wire import Message
from tests.strategies_map import MapWorld


def server() -> MapServer:
    return MapServer("server", epoch=1, now=0, settings=MapSettings())


def client() -> MapClient:
    return MapClient("a", server="s", epoch=1, now=0, settings=MapSettings(), draw=lambda: 0.5)


@pytest.mark.parametrize("given", [Stored(1), Received("a", Alive(1, 1))])
def test_what_a_server_does_not_declare_is_an_assertion(given: Input) -> None:
    machine = server()
    if isinstance(given, Received):
        assert not isinstance(given.message, machine.messages)
    with pytest.raises(AssertionError, match="takes no"):
        machine.receive(given, 1)


def test_an_input_that_a_client_does_not_declare_is_an_assertion() -> None:
    with pytest.raises(AssertionError, match="takes no Stored"):
        client().receive(Stored(1), 1)


def test_a_strange_message_from_the_network_is_recorded_and_does_not_stop_a_client() -> None:
    machine = client()
    request = Request(1, 1, 1, ())
    assert not isinstance(request, machine.messages)
    (dropped,) = machine.receive(Received("b", request), 1)
    assert dropped == Drop("not for a client", "map.request", 0, "b")


def test_a_channel_that_a_client_does_not_listen_to_is_recorded() -> None:
    (dropped,) = client().receive(Received("s", Data("gone", 1, 1, b"")), 1)
    assert dropped == Drop("not listening", "channel.data", 0, "s", "gone")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Receipt(1, 7, 1), "a receipt of another session"),
        (Receipt(2, 9, 1), "a receipt of another session"),
        (Request(1, 8, 1, (Hello(),)), "a request of an earlier session"),
        (HealRequest("gone", 1, (1,)), "no such channel"),
        (Join("gone", 1, 1), "no such channel"),
    ],
)
def test_a_message_that_is_not_for_the_server_any_more_is_recorded(
    message: Message, reason: str
) -> None:
    machine = server()
    machine.receive(Received("a", Request(1, 9, 1, (Hello(),))), 1)
    (dropped,) = machine.receive(Received("a", message), 2)
    assert isinstance(dropped, Drop)
    assert (dropped.reason, dropped.peer) == (reason, "a")


def test_a_server_that_steps_down_records_what_it_no_longer_takes() -> None:
    older, newer = epoch_at(1, 0, 0), epoch_at(2, 1, 0)
    machine = MapServer("a", epoch=older, now=1, settings=MapSettings(), replicas=("a", "b"))
    machine.receive(Received("c", Request(older, 1, 1, (Hello(),))), 1)
    machine.receive(Received("b", ServerHere(newer, 0)), 2)
    assert machine.merging.leaving is not None
    (dropped,) = machine.receive(Received("c", Request(older, 1, 2, ())), 3)
    assert dropped == Drop("stepping down", "map.request", 0, "c")


def test_what_another_client_took_is_not_left_to_be_confirmed() -> None:
    machine = server()

    def request(name: str, session: int, number: int, *operations: Publish | Hello) -> None:
        machine.receive(Received(name, Request(1, session, number, operations)), 10)

    for life in range(1, 6):
        taken = [body_of(Context(f"p{life}-{n}", "hall", None, {}, 0)) for n in range(4)]
        request("a", life, 1, Hello(), *(Publish(body, 2 * life) for body in taken))
        request("b", life, 1, Hello(), *(Publish(body, 2 * life + 1) for body in taken))
        assert len(machine.desk.clients["a"].unconfirmed) == 0
    machine.receive(Received("b", Request(1, 5, 6, (Settled(),))), 11)
    assert len(machine.map) == 4


@pytest.mark.parametrize("silent", ["a", "a#relay"])
def test_what_two_ways_of_a_publisher_published_stays_with_the_one_that_is_left(
    silent: str,
) -> None:
    machine = server()
    timeout = machine.settings.client_timeout_us
    same = Publish(body_of(Context("p", "hall", None, {}, 0)), 5)
    for name in ("a", "a#relay"):  # the second may be a copy that was on its way for long
        machine.receive(Received(name, Request(1, 1, 1, (Hello(), same))), 10)
    left = "a" if silent == "a#relay" else "a#relay"
    for turn in range(1, 5):
        now = turn * timeout // 2
        machine.receive(Received(left, Request(1, 1, 3, ())), now)
        machine.advance(now)
    assert list(machine.desk.clients) == [left]
    assert machine.map.contexts["p"].owner == left
    machine.advance(now + timeout + 1)
    assert not machine.map.contexts


def test_what_is_held_stays_within_its_bounds_at_servers_and_clients() -> None:
    world = MapWorld(MapSettings(page_contexts_max=8, channels_max=6, history_max=4))
    draw = random.Random(3)
    names = [f"c{number}" for number in range(8)]
    for number, name in enumerate(names):
        world.client(name, limit_bytes=0 if number % 3 else 4_000 + 500 * number)
    for _ in range(150):
        name, number = draw.choice(names), draw.randrange(12)
        match draw.randrange(5):
            case 0:
                world.watch(name, f"within(place, 'lab/{number % 3}')", f"s{number % 2}")
            case 1:
                world.unwatch(name, f"s{number % 2}")
            case 2:
                world.cancel(name, f"{name}-{number}")
            case _:
                world.put(name, f"{name}-{number}", f"lab/{draw.randrange(4)}")
        world.run(0.05)
        for machine in (world.server, *map(world.machine, names)):
            over = {what: pair for what, pair in machine.occupancy().items() if pair[0] > pair[1]}
            assert over == {}


def test_a_timer_that_has_lost_its_owner_is_over_its_bound() -> None:
    machine = server()
    machine.advance(0)
    held, bound = machine.occupancy()["timers"]
    assert held == bound == 1
    machine.desk.timers.set(ChannelDue("given back"), 10)
    held, bound = machine.occupancy()["timers"]
    assert held > bound
