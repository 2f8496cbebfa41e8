"""Who moves about in `serve --demo`? AMS's office people, in real time, through the SDK."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from roamcast.sim.movement.workloads import BuildingWorkload, normal

PRINTERS = 12
SEED = 7
AT_ONCE_MAX = 500


def campus(people: int) -> Callable[[str, str], Awaitable[None]]:
    """Make the campus; what is returned publishes it at a service."""
    workload = normal(people, floors=4, moves_per_minute=2.0 * people)

    async def move(url: str, token: str) -> None:
        from roamcast.client import connect

        async with connect(url, token, device="campus") as me:
            await _publish(me, workload, people)

    return move


async def _publish(me: Any, workload: BuildingWorkload, people: int) -> None:
    """Publish everybody at their desk, then every move when it happens."""
    places = workload.places
    rooms = places.of_kind("kitchen") + places.of_kind("meeting")
    for number in range(PRINTERS):
        room = rooms[number % len(rooms)]
        await me.publish(
            f"printer-{number:02}", place=room, point=places.centre(room), type="printer",
            colour=number % 3 == 0,
        )  # fmt: skip
    names = [f"visitor-{person:04}" for person in range(people)]
    homes = [places.path(number) for number in workload.offices]
    for person, home in enumerate(homes):
        await _show(me, places, names[person], home, person)
    loop = asyncio.get_running_loop()
    start = loop.time()
    for move in workload.moves(random.Random(SEED)):  # noqa: S311 - a demonstration
        wait_s = move.time_us / 1_000_000 - (loop.time() - start)
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        if move.place is not None:
            await _show(me, places, names[move.person], move.place, move.person)


async def _show(me: Any, places: Any, name: str, place: str, person: int) -> None:
    await me.publish(
        name, place=place, point=places.centre(place), type="person",
        group=f"group-{person % 8}",
    )  # fmt: skip
