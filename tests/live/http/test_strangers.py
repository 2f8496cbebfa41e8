"""Connections without a token have a limit of their own, and the oldest make room for newcomers."""

import asyncio
import gc
import time
from typing import Any
from weakref import ref

import pytest
import uvicorn
from uvicorn.server import ServerState

from roamcast.live.config.settings import Limits
from roamcast.live.http.connections import (
    OVERDUE_AT_ONCE,
    LimitedHttp,
    Newcomer,
    Strangers,
    http_protocol,
)


class Connection:
    """Notes that it was refused."""

    refused = ""

    def refuse(self, problem: str) -> None:
        self.refused = problem


def entered(strangers: Strangers, *addresses: str) -> list[Connection]:
    made = []
    for address in addresses:
        made.append(Connection())
        strangers.enter(made[-1], address)  # type: ignore[arg-type]
    return made


@pytest.mark.limit("limits.anonymous_connections_max")
def test_beyond_the_limit_the_oldest_of_all_makes_room() -> None:
    strangers = Strangers(3, 3)
    made = entered(strangers, "a", "b", "c")
    assert not any(one.refused for one in made)
    made += entered(strangers, "d")
    assert [bool(one.refused) for one in made] == [True, False, False, False]
    assert len(strangers) == 3


@pytest.mark.limit("limits.anonymous_per_address_max")
def test_beyond_an_addresss_limit_its_oldest_makes_room() -> None:
    strangers = Strangers(10, 2)
    made = entered(strangers, "a", "b", "b")
    assert not any(one.refused for one in made)
    made += entered(strangers, "b")
    assert [bool(one.refused) for one in made] == [False, True, False, False]


def test_who_has_shown_a_token_or_left_counts_no_more() -> None:
    strangers = Strangers(1, 1)
    (first,) = entered(strangers, "a")
    strangers.leave(first)  # type: ignore[arg-type]
    strangers.leave(first)  # type: ignore[arg-type]
    second, third = entered(strangers, "a", "a")
    assert (first.refused, bool(second.refused), third.refused) == ("", True, "")


def test_a_service_has_its_own_strangers() -> None:
    made = http_protocol(Limits(anonymous_connections_max=2, anonymous_per_address_max=9))
    assert issubclass(made, Newcomer)
    assert made.strangers is not Newcomer.strangers
    assert made.silent is not Newcomer.silent
    assert made.http.strangers is made.strangers


class Wire(asyncio.Transport):
    """Notes what is written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 7), "sockname": ("192.0.2.2", 80)})
        self.said, self.closing = b"", False
        self.protocol: asyncio.BaseProtocol | None = None

    def write(self, data: Any) -> None:
        self.said += data

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol


async def answer(scope: Any, receive: Any, send: Any) -> None:
    del scope, receive
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})


class Door:
    """Lets connections in."""

    def __init__(self, **limits: Any) -> None:
        self.kind = http_protocol(Limits(**limits))
        self.state = ServerState()
        self.config = uvicorn.Config(answer, http=self.kind, lifespan="off", log_config=None)

    def open(self) -> tuple[Wire, Newcomer]:
        wire = Wire()
        made: Newcomer = self.kind(self.config, self.state, {}, asyncio.get_running_loop())
        made.connection_made(wire)
        return wire, made


async def served(wire: Wire) -> None:
    while b"here" not in wire.said:
        await asyncio.sleep(0)


def test_a_newcomer_is_served_from_its_first_bytes_on() -> None:
    async def go() -> None:
        door = Door()
        wire, made = door.open()
        assert (len(made.silent), len(made.strangers), len(door.state.connections)) == (1, 1, 1)
        made.data_received(b"GET / HTTP/1.1\r\n")
        http = wire.protocol
        assert isinstance(http, LimitedHttp)
        http.data_received(b"host: x\r\n\r\n")
        await served(wire)
        assert (len(made.silent), len(made.strangers), len(door.state.connections)) == (0, 1, 1)
        http.connection_lost(None)
        assert (len(made.strangers), len(door.state.connections)) == (0, 0)

    asyncio.run(go())


@pytest.mark.parametrize("silent", [True, False])
def test_a_stranger_who_is_too_many_is_told_so(silent: bool) -> None:
    async def go() -> None:
        door = Door(anonymous_connections_max=1)
        wire, made = door.open()
        if not silent:
            made.data_received(b"GET / HTTP/1.1\r\n")
        later, _ = door.open()
        assert wire.said.startswith(b"HTTP/1.1 503")
        assert wire.closing
        assert not later.said

    asyncio.run(go())


def test_silence_and_a_slow_head_have_one_time_limit_together() -> None:
    async def go() -> None:
        door = Door(first_bytes_s=0.2)
        silent, _ = door.open()
        slow, made = door.open()
        await asyncio.sleep(0.1)
        made.data_received(b"GET / HTTP/1.1\r\n")
        young, _ = door.open()
        began = asyncio.get_running_loop().time()
        while not (silent.closing and slow.closing):
            await asyncio.sleep(0.005)
        assert asyncio.get_running_loop().time() - began < 0.2
        assert silent.said.startswith(b"HTTP/1.1 408")
        assert slow.said.startswith(b"HTTP/1.1 408")
        assert not young.closing
        while not young.closing:
            await asyncio.sleep(0.005)

    asyncio.run(go())


def test_so_many_overdue_are_closed_at_once() -> None:
    async def go() -> None:
        door = Door(first_bytes_s=0.05)
        wires = [door.open()[0] for _ in range(OVERDUE_AT_ONCE + 1)]
        time.sleep(0.06)  # so that all of them are overdue when the loop looks
        seen = []
        while not wires[-1].closing:
            seen.append(sum(wire.closing for wire in wires))
            await asyncio.sleep(0)
        assert set(seen) == {0, OVERDUE_AT_ONCE}

    asyncio.run(go())


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_a_connection_that_is_over_needs_no_collector(said: bytes) -> None:
    async def go() -> ref[Any]:
        door = Door()
        wire, made = door.open()
        over: Any = made
        if said:
            made.data_received(said)
            await served(wire)
            over = wire.protocol
        over.connection_lost(None)
        wire.protocol = None
        return ref(over)

    gc.disable()
    try:
        assert asyncio.run(go())() is None
    finally:
        gc.enable()
