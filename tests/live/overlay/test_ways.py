"""Bounds of the ways to neighbours: strangers give way, links stay, a slow way is closed."""

import asyncio
from typing import Any

from roamcast.live.overlay import ways
from roamcast.live.overlay.ways import CALLS_MAX, WAITING_BYTES_MAX, NeighbourWays
from roamcast.model.addresses import Neighbour
from roamcast.model.machine import Input, Send
from roamcast.overlay.events import HangUp, WayLost
from roamcast.overlay.links.messages import LinkRefusal


class Caller:
    """A connection that stays open until somebody closes it."""

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self.written: list[bytes] = []
        self.closed: str | None = None
        self._over = asyncio.Event()

    async def serve(self, endpoint: Any, **_: Any) -> None:
        self.endpoint = endpoint
        await self._over.wait()

    def write(self, framed: bytes) -> None:
        self.written.append(framed)

    def close(self, code: int, reason: str) -> None:
        self.closed = reason
        self._over.set()


def ways_of(given: list[Input], proved: set[str]) -> NeighbourWays:
    return NeighbourWays(tls_ca="", give=given.append, proved=lambda: proved)


async def called(made: NeighbourWays, caller: Caller) -> "asyncio.Task[None]":
    task = asyncio.ensure_future(made.serve(caller, high_bytes=1, low_bytes=0))
    await asyncio.sleep(0)
    return task


def test_the_oldest_call_that_is_no_link_gives_way_to_the_one_beyond_the_limit() -> None:
    async def body() -> None:
        given: list[Input] = []
        made = ways_of(given, {"call-1"})
        callers = [Caller() for _ in range(CALLS_MAX + 1)]
        tasks = [await called(made, caller) for caller in callers[:CALLS_MAX]]
        assert not any(caller.closed for caller in callers)
        tasks.append(await called(made, callers[-1]))
        assert [caller for caller in callers if caller.closed] == [callers[1]]
        await tasks[1]
        assert given == [WayLost("call-2", "the caller hung up")]
        assert len(made) == CALLS_MAX
        await made.close()
        await asyncio.gather(*tasks)

    asyncio.run(body())


def test_a_way_that_takes_nothing_is_closed_beyond_its_bytes() -> None:
    async def body() -> None:
        made = ways_of([], set())
        caller = Caller()
        task = await called(made, caller)
        message = Send(Neighbour("call-1"), LinkRefusal("a", "no"))
        caller.waiting_bytes = WAITING_BYTES_MAX
        made.send(message)
        assert (len(caller.written), caller.closed) == (1, None)
        caller.waiting_bytes += 1
        made.send(message)
        assert (len(caller.written), caller.closed) == (1, "too slow: call again")
        await task
        made.send(message)  # a call that is over: nobody is dialled for it
        assert len(made) == 0

    asyncio.run(body())


def test_a_dial_that_does_not_open_holds_so_many_frames_and_hangs_up_beyond(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(ways, "WAITING_FRAMES_MAX", 2)
    address = "http://127.0.0.1:9"

    async def body() -> None:
        given: list[Input] = []
        made = ways_of(given, set())
        message = Send(Neighbour(address), LinkRefusal("a", "no"))
        made.send(message)
        made.send(message)
        assert (len(made), given) == (1, [])
        made.send(message)
        assert (len(made), given) == (0, [WayLost(address, "hung up")])
        made.hang_up(HangUp(address, "again"))
        await made.close()

    asyncio.run(body())
