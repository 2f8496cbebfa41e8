"""Sessions under faults: a few dozen seeds here, a thousand by `roamcast swarm --only sessions`."""

from collections.abc import Sequence
from functools import partial

import msgspec
import pytest

from roamcast.channels.client.session import ClientSession
from roamcast.model.machine import Effect
from roamcast.sim.faults import Crash
from roamcast.sim.scenario import Narrowing, draw_scenario, narrow, play
from roamcast.sim.workload import Make
from roamcast.sim.workloads.sessions import SessionsWorkload

SEEDS = 60


@pytest.mark.parametrize("first", [0, 10, 20])
def test_every_user_sees_the_map_once_the_network_heals(first: int) -> None:
    for seed in range(first, first + 10):
        outcome = play(draw_scenario("sessions", SessionsWorkload, seed), SessionsWorkload)
        assert outcome.promise == "", (
            f"{outcome.detail}: roamcast swarm --only sessions --seed {seed}"
        )


def server_falls(seed: int, make: Make) -> str:
    """Let the server fall twice in a calm network, and name the promise that is broken."""
    scenario = narrow(draw_scenario("sessions", make, seed), Narrowing(settings={"calm": 1}))
    length = scenario.duration_us
    faults = (Crash(length // 2, 1_500_000, 0), Crash(length * 3 // 4, 300_000, 0))
    outcome = play(msgspec.structs.replace(scenario, faults=faults), make)
    return outcome.promise


def test_nobody_seems_to_have_left_while_the_server_restarts() -> None:
    make = partial(SessionsWorkload, only_server_fails=True)
    for seed in range(30):
        assert server_falls(seed, make) == "", seed


class Hasty(ClientSession):
    """Believes the first list of a restarted service."""

    def _is_doubtful(self, vid: str) -> bool:
        del vid
        return False


class Trusting(ClientSession):
    """Never believes that anybody left while the service was away."""

    def _believe(self) -> list[Effect]:
        return []


class Forgetful(ClientSession):
    """Does not compare the list of another service with what it had shown."""

    def _list(self, name: str, current: Effect) -> list[Effect]:  # type: ignore[override]
        del name
        return [current]


class Impatient(ClientSession):
    """Shows at once what the service lists, and hides it without looking."""

    def _hide(self, name: str, vids: Sequence[str]) -> list[Effect]:  # type: ignore[override]
        found = super()._hide(name, vids)
        return [*found, *found]


@pytest.mark.parametrize(
    ("session", "promise"),
    [
        (Hasty, "nobody seems to have left"),
        (Trusting, "views equal the map"),
        (Forgetful, "views equal the map"),
        (Impatient, "nothing leaves twice"),
    ],
)
def test_a_session_that_is_broken_on_purpose_is_found(
    session: type[ClientSession], promise: str
) -> None:
    calm = partial(SessionsWorkload, session, only_server_fails=True)
    for seed in range(SEEDS):
        stormy = partial(SessionsWorkload, session)
        found = {server_falls(seed, calm)}
        found.add(play(draw_scenario("sessions", stormy, seed), stormy).promise)
        if promise in found:
            return
    raise AssertionError("it was not found")
