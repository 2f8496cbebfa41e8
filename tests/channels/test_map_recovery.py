"""Server-Restart (AMS 14): everyone registers again, spread, and nobody keeps a stale view."""

from roamcast.channels.client.copy import Appeared, Left
from roamcast.channels.server.settings import MapSettings
from tests.strategies_map import SECOND, SERVER, MapWorld


def test_after_a_restart_clients_register_again_and_views_are_right_without_flicker() -> None:
    world = MapWorld(MapSettings(restart_spread_us=2 * SECOND))
    for name in ("a", "b", "c"):
        world.client(name)
        world.put(name, name, "l1")
        world.watch(name, "place = 'l1'")
    world.run(2)
    epoch = world.server.epoch
    world.world.crash(world.world.hosts[SERVER])
    world.run(1)
    world.put("c", "c", "l2")  # while nobody is there to hear it
    world.forget()
    world.world.restart(world.world.hosts[SERVER])
    world.run(6)
    assert world.server.epoch > epoch
    for name in ("a", "b", "c"):
        assert world.sees(name) == {"a": "l1", "b": "l1"}
    assert [effect.vid for effect in world.told_to("a", Left)].count("c") == 1
    assert {effect.context.vid for effect in world.told_to("a", Appeared)} <= {"a", "b"}


def test_registrations_after_a_restart_are_spread_over_the_interval() -> None:
    spread = 4 * SECOND
    world = MapWorld(MapSettings(restart_spread_us=spread))
    names = [f"c{number}" for number in range(60)]
    for name in names:
        world.client(name)
    world.run(2)
    world.world.crash(world.world.hosts[SERVER])
    world.run(1)
    world.world.restart(world.world.hosts[SERVER])
    started = world.world.now
    world.run(8)
    sessions = sorted(world.machine(name).session - started for name in names)
    assert len(world.server.desk.clients) == len(names)
    per_second = [sum(at // SECOND == second for at in sessions) for second in range(5)]
    assert max(per_second) < len(names) / 2  # and not all at once
    assert sessions[-1] <= spread + SECOND


def test_a_client_that_was_given_up_finds_back_by_itself() -> None:
    from roamcast.sim.network import NetworkCut

    world = MapWorld(MapSettings(client_timeout_us=2 * SECOND))
    for name in ("a", "b"):
        world.client(name)
        world.put(name, name, "l1")
        world.watch(name, "place = 'l1'")
    world.run(2)
    cut = NetworkCut(frozenset({"a"}))
    world.world.network.cut(cut)
    world.run(5)
    assert world.sees("b") == {"b": "l1"}
    world.world.network.mend(cut)
    world.run(5)
    assert world.sees("a") == world.sees("b") == {"a": "l1", "b": "l1"}
