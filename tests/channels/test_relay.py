"""Relays (AMS 17): channels in, unicast out, filtered; neither side can tell the difference."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.channels.client.copy import Appeared, Changed, Left
from roamcast.channels.client.map_client import LinkState
from roamcast.channels.client.publications import DisownContext
from roamcast.channels.client.watching import Current, Cut, Overtaken, Pending, Refusal
from roamcast.channels.relay.relay import BehalfAnswered, OnBehalf
from roamcast.channels.server.desk import Public
from roamcast.channels.server.messages import WELL_KNOWN
from roamcast.channels.server.settings import MapSettings
from roamcast.model.records import ContextOpened, QueryStep, Transmission, UpdateMatched
from roamcast.sim.checkers import BandwidthLimit
from roamcast.sim.network import LinkQuality
from roamcast.sim.network import NetworkCut as Partition
from tests.strategies_map import SERVER, MapWorld, updates

PEOPLE = "type = 'person'"


def crowd(world: MapWorld, count: int = 4, text: str = PEOPLE) -> list[str]:
    """A relay, and clients behind it that ask the same."""
    world.relay("relay")
    names = [f"weak-{number}" for number in range(count)]
    for name in names:
        world.weak(name, "relay")
        world.watch(name, text)
    return names


def test_one_message_of_the_server_reaches_all_clients_of_a_relay_one_by_one() -> None:
    world = MapWorld()
    names = crowd(world)
    world.client("strong")
    world.watch("strong", PEOPLE)
    world.run(2)
    world.forget()
    world.put("strong", "m", "hall", type="person")
    world.run(1)
    (sent,) = world.sent(updates)
    assert (sent.peer, sent.receivers) == ("", 2)  # the relay, and the one that hears groups
    assert sorted(one.peer for one in world.sent(updates, by="relay")) == names
    assert all(world.sees(name) == {"m": "hall"} for name in [*names, "strong"])


def test_a_relay_speaks_to_no_group_and_its_clients_hear_none() -> None:
    world = MapWorld()
    names = crowd(world)
    world.run(3)
    assert [one for one in world.sent(by="relay") if not one.peer] == []
    assert world.world.network.members(WELL_KNOWN) == ["relay"]
    assert all(world.machine(name).server == "relay" for name in names)


def test_a_relay_filters_for_each_client_and_asks_for_equal_filters_once() -> None:
    world = MapWorld()
    world.relay("relay")
    texts = {"a": "place = 'l1'", "b": "place='l1'", "c": "kind = 2"}
    for name, text in texts.items():
        world.weak(name, "relay")
        world.watch(name, text)
    world.client("mover")
    world.run(2)
    assert len(world.server.desk.clients["relay"].subscriptions) == 2
    world.forget()
    world.put("mover", "m", "l1", kind=1)
    world.put("mover", "n", "l2", kind=2)
    world.put("mover", "o", "l2", kind=3)
    world.run(1)
    assert world.sees("a") == world.sees("b") == {"m": "l1"}
    assert world.sees("c") == {"n": "l2"}
    assert len(world.sent(updates, by="relay")) == 3


def test_the_answer_is_the_servers_current_set_and_comes_when_that_has_come() -> None:
    world = MapWorld()
    world.client("mover")
    for number in range(5):
        world.put("mover", f"m{number}", "hall", type="person")
    world.relay("relay")
    world.weak("a", "relay")
    world.run(2)
    cut = Partition(frozenset({SERVER}))
    world.world.network.cut(cut)
    world.watch("a", PEOPLE)
    world.run(1)
    assert world.told_to("a", Current) == []
    world.world.network.mend(cut)
    world.run(3)
    (current,) = world.told_to("a", Current)
    assert (current.count, current.complete) == (5, True)
    world.weak("b", "relay")  # and the next one is answered without asking the server
    world.watch("b", PEOPLE)
    world.forget()
    world.run(0.5)
    assert [effect.count for effect in world.told_to("b", Current)] == [5]
    assert len(world.server.desk.clients["relay"].subscriptions) == 1


def test_what_clients_publish_goes_to_the_server_and_back_to_whoever_asked() -> None:
    world = MapWorld()
    names = crowd(world, 2)
    world.client("strong")
    world.watch("strong", PEOPLE)
    world.run(2)
    world.put(names[0], "m", "hall", type="person")
    world.run(1)
    assert all(world.sees(name) == {"m": "hall"} for name in [*names, "strong"])
    assert world.server.map.contexts["m"].owner == "relay"
    world.cancel(names[0], "m")
    world.run(1)
    assert all(world.sees(name) == {} for name in [*names, "strong"])


def test_a_client_that_moves_to_another_relay_takes_its_objects_along() -> None:
    world = MapWorld()
    for relay in ("relay-1", "relay-2"):
        world.relay(relay)
    world.client("strong")
    world.watch("strong", PEOPLE)
    world.weak("a", "relay-1")
    world.put("a", "m", "hall", type="person")
    world.run(2)
    machine = world.machine("a")
    machine.server = "relay-2"
    world.run(10)  # long enough for the first relay to give it up
    assert machine.state is LinkState.OPEN
    assert world.server.map.contexts["m"].owner == "relay-2"
    assert world.sees("strong") == {"m": "hall"}
    assert world.told_to("strong", Left) == []


def test_who_publishes_later_is_right_and_the_other_is_told_whichever_way_it_came() -> None:
    world = MapWorld()
    names = crowd(world, 2)
    world.client("strong")
    world.watch("strong", PEOPLE)
    world.run(2)
    for turn, name in enumerate([names[0], "strong", names[1], names[0]]):
        world.put(name, "m", f"r{turn}", type="person")
        world.run(1)
        assert all(world.sees(one) == {"m": f"r{turn}"} for one in [*names, "strong"])
        holders = [one for one in [*names, "strong"] if world.machine(one).published]
        assert holders == [name]
    world.cancel(names[0], "m")
    world.run(1)
    assert all(world.sees(one) == {} for one in [*names, "strong"])
    assert world.relay_machine("relay").down.contexts.owners == {}


def test_a_silent_client_is_collected_with_its_objects_and_queries() -> None:
    world = MapWorld()
    names = crowd(world, 2)
    world.put(names[0], "m", "hall", type="person")
    world.watch(names[0], "kind = 1", "mine")
    world.run(2)
    world.world.crash(world.world.hosts[names[0]])
    world.run(8)
    assert world.sees(names[1]) == {}
    assert len(world.server.map) == 0
    assert len(world.server.desk.clients["relay"].subscriptions) == 1


def test_a_slow_client_gets_the_latest_state_and_the_others_do_not_wait() -> None:
    world = MapWorld()
    slow, quick = crowd(world, 2)
    world.client("mover")
    world.run(2)
    cut = Partition(frozenset({slow}), outwards=False)
    world.world.network.cut(cut)
    for number in range(20):
        world.put("mover", "m", f"r{number}", type="person")
        world.run(0.05)
    world.run(0.5)
    assert world.sees(quick) == {"m": "r19"}
    world.world.network.mend(cut)
    world.forget()
    world.run(4)
    assert world.sees(slow) == {"m": "r19"}
    assert len(world.told_to(slow, Changed)) + len(world.told_to(slow, Appeared)) <= 2


def test_a_client_too_slow_for_its_queue_is_told_and_the_relay_asks_no_more_for_it() -> None:
    world = MapWorld(MapSettings(outbox_items_max=8))
    (slow,) = crowd(world, 1)
    world.client("mover")
    world.run(2)
    cut = Partition(frozenset({slow}), outwards=False)
    world.world.network.cut(cut)
    for number in range(20):
        world.put("mover", f"m{number}", "r", type="person")
        world.run(0.05)
    world.run(1)
    assert world.server.desk.clients["relay"].subscriptions == {}
    assert len(world.relay_machine("relay").down.map) == 0
    world.world.network.mend(cut)
    world.run(5)
    assert world.told_to(slow, Cut)
    world.watch(slow, "vid = 'm3'")
    world.run(3)
    assert world.sees(slow) == {"m3": "r"}


def test_a_limit_is_kept_on_the_last_hop() -> None:
    world = MapWorld(quality=LinkQuality(loss=0.05))
    world.relay("relay")
    for name, limit in (("low", 1_500), ("free", 0)):
        world.weak(name, "relay", limit_bytes=limit)
        world.watch(name, PEOPLE)
    world.client("mover")
    world.run(3)
    world.forget()
    for number in range(100):
        world.put("mover", f"m{number % 20}", f"r{number}", type="person", note="n" * 100)
        world.run(0.04)
    assert max(effect.count for effect in world.told_to("low", Pending)) > 0
    world.run(20)
    limit = BandwidthLimit({"low": 1_500})
    for now, host, record in world.records:
        if host == "relay" and isinstance(record, Transmission):
            limit.deliver(record.peer, record.bytes, now)
    assert world.sees("low") == world.sees("free")
    assert len(world.sees("free")) == 20


def test_after_a_restart_of_the_relay_its_clients_find_back() -> None:
    world = MapWorld()
    names = crowd(world, 3)
    for name in names:
        world.put(name, name, "hall", type="person")
    world.run(2)
    world.world.crash(world.world.hosts["relay"])
    world.run(8)  # the server has given the relay up, and all that came through it
    assert len(world.server.map) == 0
    world.world.restart(world.world.hosts["relay"])
    world.run(5)
    assert all(world.sees(name) == dict.fromkeys(names, "hall") for name in names)


def test_after_a_restart_of_the_server_the_relays_clients_notice_nothing() -> None:
    world = MapWorld(MapSettings(restart_spread_us=0))
    names = crowd(world, 3)
    for name in names:
        world.put(name, name, "hall", type="person")
    world.run(2)
    sessions = [world.machine(name).session for name in names]
    world.forget()
    world.world.crash(world.world.hosts[SERVER])
    world.run(1)
    world.put(names[0], names[0], "garden", type="person")
    world.world.restart(world.world.hosts[SERVER])
    world.run(5)
    seen = dict.fromkeys(names, "hall") | {names[0]: "garden"}
    assert all(world.sees(name) == seen for name in names)
    assert [world.machine(name).session for name in names] == sessions
    assert [world.told_to(name, Left) for name in names] == [[], [], []]


def test_a_relay_that_was_too_slow_for_the_server_asks_again_for_everything() -> None:
    world = MapWorld(MapSettings(outbox_items_max=4, relay_clients_max=2))
    (name,) = crowd(world, 1)
    world.client("mover")
    world.run(2)
    cut = Partition(frozenset({"relay"}), outwards=False)
    world.world.network.cut(cut)
    for number in range(20):
        world.put("mover", f"m{number}", "r", type="person")
        world.run(0.02)
    assert world.server.desk.clients["relay"].subscriptions == {}
    for number in range(18):
        world.cancel("mover", f"m{number}")
    world.run(0.5)
    world.world.network.mend(cut)
    world.run(6)
    assert world.sees(name) == {"m18": "r", "m19": "r"}


def test_what_the_server_refuses_the_clients_are_refused() -> None:
    world = MapWorld(MapSettings(queries_max=1))
    world.relay("relay")
    for number, name in enumerate(("a", "b")):
        world.weak(name, "relay")
        world.watch(name, f"kind = {number}")
    world.client("other")
    world.run(2)
    refused = [name for name in "ab" if world.told_to(name, Refusal)]
    assert len(refused) == 1
    assert world.machine(refused[0]).wanted == {}


def test_a_publication_that_the_server_refuses_is_refused_to_its_client_and_forgotten() -> None:
    world = MapWorld()
    names = crowd(world, 2)
    world.client("thief")
    world.run(2)
    world.server.policy.may_take = lambda *_: False  # type: ignore[method-assign]
    for vid in ("taken", "v" * 256):
        world.put("thief", vid, "hall", type="person")
        world.run(1)
        world.put(names[0], vid, "garden", type="person")
        world.run(1)
    refused = [(one.kind, one.name) for one in world.told_to(names[0], Refusal)]
    assert refused == [("publish", "taken"), ("publish", "v" * 256)]
    assert world.told_to(names[1], Refusal) == []
    relay = world.relay_machine("relay")
    assert relay.down.contexts.owners == relay.up.published == {}
    assert world.sees(names[1]) == {"taken": "hall", "v" * 256: "hall"}


def test_clients_that_publish_apart_do_so_in_their_own_names() -> None:
    world = MapWorld()
    world.relay("relay", apart=True)
    for name in ("a", "b"):
        world.weak(name, "relay")
    world.run(2)
    world.put("a", "m", "hall")
    world.run(1)
    (said,) = world.told_to("relay", OnBehalf)
    assert (said.client, said.given.context.vid) == ("a", "m")
    assert len(world.server.map) == 0
    world.put("b", "m", "garden")  # b may take what is a's
    world.run(1)
    stamp = world.relay_machine("relay").down.contexts.owners["m"].stamp
    relay = world.world.hosts["relay"]
    world.world.give(relay, BehalfAnswered("a", Overtaken("m", stamp)))
    world.world.give(relay, BehalfAnswered("a", Refusal("publish", "m", "too late")))
    world.run(1)
    assert world.machine("a").published == {}
    assert list(world.machine("b").published) == ["m"]  # what a's said is not about b's
    world.forget()
    world.world.give(relay, BehalfAnswered("b", Refusal("publish", "m", "not here")))
    world.run(1)
    assert [one.reason for one in world.told_to("b", Refusal)] == ["not here"]
    assert world.told_to("relay", OnBehalf) == [OnBehalf("b", DisownContext("m"))]
    world.put("b", "n", "hall")
    world.run(1)
    world.forget()
    world.world.crash(world.world.hosts["b"])
    world.run(8)
    assert world.told_to("relay", OnBehalf) == [OnBehalf("b", DisownContext("n"))]


def test_a_relay_serves_only_whoever_may_see_the_same() -> None:
    class Secret(Public):
        def view_class(self, client: str) -> str:
            return "guest" if client == "guest" else ""

    world = MapWorld(policy=Secret())
    world.relay("relay", policy=Secret())
    for name in ("guest", "member"):
        world.weak(name, "relay")
        world.watch(name, PEOPLE)
    world.client("mover")
    world.run(2)
    world.put("mover", "m", "hall", type="person")
    world.run(2)
    assert world.sees("member") == {"m": "hall"}
    assert world.sees("guest") == {}


def test_at_its_limit_of_clients_a_relay_takes_no_more() -> None:
    world = MapWorld(MapSettings(relay_clients_max=2, subscriptions_max=1))
    names = crowd(world, 3)
    world.watch(names[0], "kind = 1", "second")
    world.run(3)
    down = world.relay_machine("relay").down
    assert len(down.desk.clients) == 2
    assert len(world.told_to(names[0], Refusal)) == 1
    assert all(held <= bound for held, bound in down.occupancy().values())


def test_only_the_server_writes_down_what_happens_on_the_map() -> None:
    world = MapWorld()
    names = crowd(world, 2)
    world.put(names[0], "m", "hall", type="person")
    world.run(2)
    kinds = ContextOpened | UpdateMatched | QueryStep
    assert {host for _, host, record in world.records if isinstance(record, kinds)} == {SERVER}


@pytest.mark.parametrize("site", ["campus", "far"])
def test_a_relay_beyond_the_local_groups_is_served_like_any_remote_client(site: str) -> None:
    world = MapWorld(MapSettings(local_scope="campus", wide_subscribers_min=1))
    world.relay("relay", site=site)
    world.weak("a", "relay")
    world.watch("a", PEOPLE)
    world.client("mover")
    world.watch("mover", PEOPLE)
    world.run(2)
    world.put("mover", "m", "hall", type="person")
    world.run(1)
    assert world.sees("a") == {"m": "hall"}
    assert world.server.desk.clients["relay"].remote is (site == "far")


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "cancel", "watch", "unwatch"]),
        st.integers(0, 2),
        st.sampled_from("abc"),
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None)
@given(MOVES, st.integers(0, 99))
def test_a_client_behind_a_relay_sees_what_it_would_see_without(
    moves: list[tuple[str, int, str]], seed: int
) -> None:
    views = []
    for behind in (False, True):
        world = MapWorld(quality=LinkQuality(loss=0.1, jitter_us=2_000), seed=seed)
        world.relay("relay")
        names = [f"c{number}" for number in range(3)]
        for name in names:
            if behind:
                world.weak(name, "relay")
            else:
                world.client(name)
            world.watch(name, "place = 'a' OR kind = 1")
        for what, number, place in moves:
            world.run(0.1)
            name = names[number]
            if what == "put":
                world.put(name, f"{name}/{place}", place, kind=number)
            elif what == "cancel":
                world.cancel(name, f"{name}/{place}")
            elif what == "watch":
                world.watch(name, f"place = '{place}'", "more")
            else:
                world.unwatch(name, "more")
        world.world.network.mend_all(LinkQuality())
        world.run(6)
        views.append(
            {
                (name, subscription): world.sees(name, subscription)
                for name in names
                for subscription in world.machine(name).wanted
            }
        )
    assert views[0] == views[1]
