"""Watch-dogs (AMS 14): one server is there again, on some host, whatever happened to the last."""

from hypothesis import given
from hypothesis import strategies as st

from roamcast.channels.failover.epochs import AHEAD_US_MAX, SEATS_MAX, epoch_at, genuine, seat_of
from roamcast.channels.failover.messages import Alive, Probe
from roamcast.channels.failover.watchdog import (
    MAP_SERVER,
    Watchdog,
    WatchdogSettings,
    WatchdogState,
)
from roamcast.channels.server.messages import ServerHere
from roamcast.model.addresses import Replica
from roamcast.model.machine import Effect, Ended, Received, Send, Start, Stop
from tests.strategies_recovery import SECOND, RecoveryWorld

SETTINGS = WatchdogSettings()
SEATS = ("s0", "s1", "s2")
LATE_2100_US = 4_133_980_800 * SECOND


def watchdog(name: str = "s0", now: int = 0) -> Watchdog:
    made = Watchdog(name, seats=SEATS, now=now, settings=SETTINGS)
    made.advance(now)
    return made


def run(machine: Watchdog, until: int) -> list[tuple[int, Effect]]:
    """Advance at every deadline up to a time; give what was done when, probes left out."""
    done: list[tuple[int, Effect]] = []
    while (due := machine.deadline()) is not None and due <= until:
        done += [(due, effect) for effect in machine.advance(due)]
        assert machine.deadline() > due  # type: ignore[operator]
    return [(at, effect) for at, effect in done if isinstance(effect, Start | Stop)]


@given(
    st.integers(0, LATE_2100_US),
    st.lists(st.tuples(st.integers(0, SEATS_MAX - 1), st.integers(0, 10**6)), min_size=1),
)
def test_every_start_has_an_epoch_above_all_it_has_heard_of(
    now: int, starts: list[tuple[int, int]]
) -> None:
    newest = 0
    for seat, later_us in starts:
        now += later_us
        epoch = epoch_at(now, seat, newest)
        assert newest < epoch < 2**63
        assert seat_of(epoch) == seat
        newest = epoch


def test_two_hosts_that_start_at_the_same_moment_have_different_epochs() -> None:
    assert len({epoch_at(7, seat, 0) for seat in range(SEATS_MAX)}) == SEATS_MAX


def test_an_epoch_is_only_believed_of_the_host_that_it_names_and_not_from_the_far_future() -> None:
    assert genuine(epoch_at(5, 1, 0), "s1", SEATS, 0)
    assert not genuine(epoch_at(5, 1, 0), "s2", SEATS, 0)
    assert not genuine(epoch_at(5, 3, 0), "s2", SEATS, 0)
    assert genuine(epoch_at(AHEAD_US_MAX, 1, 0), "s1", SEATS, 0)
    assert not genuine(epoch_at(AHEAD_US_MAX + 1, 1, 0), "s1", SEATS, 0)


def test_where_nobody_serves_the_seats_wait_in_their_order() -> None:
    for seat, name in enumerate(SEATS):
        (at, effect), *_ = run(watchdog(name), 10 * SECOND)
        assert at == SETTINGS.silent_us + seat * SETTINGS.stagger_us
        assert isinstance(effect, Start)
        assert seat_of(effect.epoch) == seat


def test_answers_keep_a_watchdog_quiet_and_announcements_alone_do_not() -> None:
    epoch = epoch_at(1, 0, 0)
    answered, unanswered = watchdog("s1"), watchdog("s1")
    for machine in (answered, unanswered):
        machine.receive(Received("s0", ServerHere(epoch, 0), "map/well-known"), 0)
    started = {True: 0, False: 0}
    for now in range(0, 6 * SECOND, 100_000):
        for machine in (answered, unanswered):
            machine.receive(Received("s0", ServerHere(epoch, 0), "map/well-known"), now)
            for effect in machine.advance(now):
                started[machine is answered] += isinstance(effect, Start)
                if effect == Send(Replica("s0"), Probe()) and machine is answered:
                    machine.receive(Received("s0", Alive(epoch, epoch)), now)
    assert started == {True: 0, False: 1}


def test_a_server_that_hangs_is_stopped_and_started_in_a_newer_epoch() -> None:
    machine = watchdog()
    (_, first), (_, stop), (_, second), *_ = run(machine, 8 * SECOND)
    assert isinstance(first, Start)
    assert stop == Stop(MAP_SERVER)
    assert isinstance(second, Start)
    assert second.epoch > first.epoch


def test_a_server_that_ends_again_and_again_rests_longer_each_time_up_to_the_bound() -> None:
    machine = watchdog()
    (now, start), *_ = run(machine, SETTINGS.silent_us)
    rests = []
    for _ in range(10):
        assert isinstance(start, Start)
        machine.receive(Ended(MAP_SERVER, start.epoch), now)
        assert machine.state is WatchdogState.RESTING
        again = machine.deadline()
        while machine.state is WatchdogState.RESTING:
            assert again is not None
            ((_, start),) = run(machine, again) or ((0, start),)
            rested, again = again, machine.deadline()
        rests.append(rested - now)
        now = rested
    assert rests[:3] == [SETTINGS.rest_us, 2 * SETTINGS.rest_us, 4 * SETTINGS.rest_us]
    assert rests[-1] == SETTINGS.rest_us_max


def test_a_server_that_lived_long_rests_as_shortly_as_the_first_time() -> None:
    machine = watchdog()
    (now, _), *_ = run(machine, SETTINGS.silent_us)
    for _ in range(3):
        machine.receive(Ended(MAP_SERVER, machine.epoch), now)
        assert machine._start_at is not None
        now = machine._start_at
        machine.advance(now)
    now += 2 * SETTINGS.silent_us + 1
    machine.receive(Ended(MAP_SERVER, machine.epoch), now)
    assert machine._start_at == now + SETTINGS.rest_us


def test_a_server_that_hands_over_is_not_started_again_and_is_stopped_if_it_takes_too_long() -> (
    None
):
    for ends in (True, False):
        machine = watchdog()
        (now, start), *_ = run(machine, SETTINGS.silent_us)
        assert isinstance(start, Start)
        newer = epoch_at(now, 1, start.epoch)
        machine.receive(Received("s1", ServerHere(newer, 0), "map/well-known"), now)
        assert machine.state is WatchdogState.LEAVING
        if ends:
            machine.receive(Ended(MAP_SERVER, start.epoch), now)
            assert machine.state is WatchdogState.STANDBY
        stops = []
        while (due := machine.deadline()) is not None and due <= now + SETTINGS.leave_us:
            machine.receive(Received("s1", Alive(newer, newer)), due)
            stops += [one for one in machine.advance(due) if isinstance(one, Stop | Start)]
        assert stops == ([] if ends else [Stop(MAP_SERVER)])
        assert machine.state is WatchdogState.STANDBY


def test_a_watchdog_that_slept_does_not_judge_by_what_it_missed() -> None:
    machine = watchdog("s1")
    machine.receive(Received("s0", ServerHere(epoch_at(1, 0, 0), 0), "map/well-known"), 0)
    machine.advance(0)
    asked = [one for one in machine.advance(60 * SECOND) if isinstance(one, Start | Send)]
    assert asked == [Send(Replica("s0"), Probe())]


def test_an_epoch_that_only_clients_know_of_is_outdone() -> None:
    machine = watchdog()
    (now, start), *_ = run(machine, SETTINGS.silent_us)
    assert isinstance(start, Start)
    lost = epoch_at(now + SECOND, 2, start.epoch)
    machine.receive(Received("s0", Alive(start.epoch, lost)), now)
    done = []
    while (due := machine.deadline()) is not None and due <= now + 2 * SETTINGS.silent_us:
        done += [one for one in machine.advance(due) if isinstance(one, Start | Stop)]
        machine.receive(Received("s0", Alive(machine.epoch, machine.newest)), due)
    assert [type(one) for one in done] == [Stop, Start]
    assert machine.epoch > lost


def test_exactly_one_takes_over_when_the_serving_host_is_gone_and_clients_follow() -> None:
    world = RecoveryWorld()
    world.client("a")
    world.client("b")
    world.put("a", "a", "l/1")
    world.watch("b")
    world.run(6)
    assert list(world.servers) == ["s0"]
    before = world.servers["s0"]
    world.crash("s0")
    world.run(8)
    assert list(world.servers) == ["s1"]
    assert world.servers["s1"] > before
    world.put("a", "a", "l/2")
    world.run(1)
    assert world.sees("b") == {"a": "l/2"}
    world.restart("s0")
    world.run(10)
    assert list(world.servers) == ["s1"]  # whoever comes back waits for its turn
    world.crash("s1")
    world.run(8)
    assert list(world.servers) == ["s0"]
    assert world.sees("b") == {"a": "l/2"}


def test_a_server_that_falls_alone_is_back_on_the_same_host_within_a_second() -> None:
    world = RecoveryWorld()
    world.client("a")
    world.put("a", "a", "l/1")
    world.watch("a")
    world.run(6)
    before = world.servers["s0"]
    host = world.world.hosts["s0"]
    world.world.kernel.perform(host, world.post("s0").fall(world.world.now))
    world.world.kernel.arm(host)
    world.run(1)
    assert list(world.servers) == ["s0"]
    assert world.servers["s0"] > before
    assert world.machine("a").epoch == world.servers["s0"]
    assert world.sees("a") == {"a": "l/1"}


def test_a_server_that_can_be_heard_and_hears_nobody_is_replaced() -> None:
    world = RecoveryWorld()
    world.client("a")
    world.watch("a")
    world.run(6)
    world.cut("s0", outwards=False)
    world.run(8)
    world.put("a", "a", "l/1")
    world.run(2)
    assert world.machine("a").server == "s1"
    assert world.sees("a") == {"a": "l/1"}
    world.world.mend()
    world.run(8)
    assert list(world.servers) == ["s1"]


def test_a_client_that_alone_remembers_a_newer_epoch_is_served_again() -> None:
    world = RecoveryWorld(seats=2)
    world.client("a")
    world.put("a", "a", "l/1")
    world.watch("a")
    cut = world.cut("s1", "a")
    world.run(8)
    assert set(world.servers) == {"s0", "s1"}
    lost = world.servers["s1"]
    assert world.machine("a").epoch == lost
    world.crash("s1")
    world.world.network.mend(cut)
    world.run(1)
    assert world.servers["s0"] < lost
    world.restart("s1")
    world.run(12)
    assert len(world.servers) == 1
    assert world.machine("a").epoch > lost
    assert world.machine("a").idle
    assert world.sees("a") == {"a": "l/1"}
