"""A reconnecting link dials, checks whom it reached, talks and dials again, for any protocol."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from roamcast.channels.client.link_messages import LINK_PROTOCOL, Goodbye, Tune
from roamcast.errors import RoamcastError, UnreachableError
from roamcast.model.wire import Message, Unreadable
from roamcast.transport.link import FRAMES_MAX, EndedError, LinkPolicy, LinkTarget, ReconnectingLink
from tests.strategies_service import in_loop, until

POLICY = LinkPolicy(0.01, 0.02, open_s=1.0, close_s=0.2, stagger_s=0.05)
HELLO = Goodbye("hello", 1)


class Caller(ReconnectingLink):
    """Accepts whoever begins with HELLO, and notes everything."""

    def __init__(self, *ports: int, policy: LinkPolicy = POLICY, silence_s: float = 5.0) -> None:
        super().__init__(LINK_PROTOCOL, policy, draw=lambda: 0.5)
        self.ports = ports
        self.silence_s: float | None = silence_s
        self.events: list[str] = []
        self.messages: list[Message] = []

    def targets(self) -> Sequence[LinkTarget]:
        return [
            LinkTarget(f"ws://127.0.0.1:{port}/", {"X-Me": "caller"}, str(port))
            for port in self.ports
        ]

    def dial_error(self, target: LinkTarget, error: Exception) -> RoamcastError:
        return UnreachableError(f"{target.name}: {type(error).__name__}")

    def check_first(self, target: LinkTarget, first: Message | Unreadable) -> None:
        if first != HELLO:
            raise UnreachableError(f"{target.name} is somebody else")

    def opened(self, target: LinkTarget, first: Message) -> float | None:
        assert first == HELLO
        self.events.append(f"open {target.name}")
        self.send(Tune("asked at once", True))
        return self.silence_s

    def received(self, message: Message) -> None:
        if isinstance(message, Goodbye) and not message.retry_us:
            raise EndedError(message.reason)
        self.messages.append(message)

    def closed(self) -> None:
        self.events.append("closed")


Handler = Callable[[ServerConnection], Awaitable[None]]


@contextlib.asynccontextmanager
async def answering(handler: Handler) -> AsyncIterator[int]:
    """Answer calls on a port of loopback."""
    async with serve(handler, "127.0.0.1", 0, compression=None) as server:
        yield server.sockets[0].getsockname()[1]


@contextlib.asynccontextmanager
async def running(link: ReconnectingLink) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(link.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def say(socket: ServerConnection, message: Message) -> None:
    await socket.send(LINK_PROTOCOL.encode(message))


def answer(first: Message, heard: list[Message | Unreadable]) -> Handler:
    async def handle(socket: ServerConnection) -> None:
        await say(socket, first)
        with contextlib.suppress(ConnectionClosed):
            async for data in socket:
                assert isinstance(data, bytes)
                heard.append(LINK_PROTOCOL.decode(data))

    return handle


@in_loop
async def test_it_dials_until_somebody_is_there_and_again_when_the_link_breaks() -> None:
    sockets: list[ServerConnection] = []

    async def handle(socket: ServerConnection) -> None:
        sockets.append(socket)
        assert socket.request is not None
        assert socket.request.headers["X-Me"] == "caller"
        await say(socket, HELLO)
        await say(socket, Tune("news", True))
        await socket.wait_closed()

    async with answering(handle) as port:
        pass  # its port is free now
    link = Caller(port)
    async with running(link):
        await until(lambda: link.dialled > 2)
        assert not link.connected
        async with serve(handle, "127.0.0.1", port, compression=None):
            await until(lambda: link.connected and bool(link.messages))
            sockets[-1].transport.abort()
            await until(lambda: link.events.count(f"open {port}") == 2)
            assert link.events[:3] == [f"open {port}", "closed", f"open {port}"]


@in_loop
async def test_whoever_does_not_begin_rightly_is_not_talked_to() -> None:
    wrong: list[Message | Unreadable] = []
    right: list[Message | Unreadable] = []
    async with (
        answering(answer(Tune("who is there?", True), wrong)) as stranger,
        answering(answer(HELLO, right)) as friend,
    ):
        link = Caller(stranger, friend)
        async with running(link):
            await until(lambda: bool(right))
        assert link.events == [f"open {friend}", "closed"]
        assert wrong == []


@in_loop
async def test_what_was_sent_to_a_target_that_is_passed_over_is_delivered() -> None:
    heard: list[Message | Unreadable] = []
    async with answering(answer(HELLO, heard)) as port:
        link = Caller(port)
        link.silence_s = None
        async with running(link):
            await until(lambda: len(heard) >= 2)
        assert heard[0] == Tune("asked at once", True)
        assert "closed" not in link.events


@in_loop
async def test_a_silent_link_is_dead() -> None:
    async with answering(answer(HELLO, [])) as port:
        link = Caller(port, silence_s=0.05)
        async with running(link):
            await until(lambda: link.events.count("closed") >= 2)


@in_loop
async def test_it_ends_for_good_when_the_other_side_says_so() -> None:
    async def handle(socket: ServerConnection) -> None:
        await say(socket, HELLO)
        await say(socket, Goodbye("never again", 0))
        await socket.wait_closed()

    async with answering(handle) as port:
        link = Caller(port)
        with pytest.raises(EndedError, match="never again"):
            await link.run()
        assert link.events == [f"open {port}", "closed"]


@in_loop
async def test_the_first_round_of_dials_may_be_asked_to_succeed() -> None:
    async with answering(answer(HELLO, [])) as port:
        pass
    policy = LinkPolicy(0.01, 0.02, first_must_open=True)
    with pytest.raises(UnreachableError, match="ConnectionRefusedError"):
        await Caller(port, policy=policy).run()


@in_loop
async def test_frames_that_wait_are_bounded_and_the_rest_is_dropped() -> None:
    link = Caller(1)
    link.send(HELLO)
    assert link.dropped == 1  # there is no link
    link._outgoing = asyncio.Queue(FRAMES_MAX)
    for _ in range(FRAMES_MAX):
        link.send(HELLO)
    assert link.dropped == 1
    link.send(HELLO)
    assert link.dropped == 2


def test_the_pause_is_a_part_of_the_outage_within_bounds() -> None:
    policy = LinkPolicy(0.1, 10.0, 0.25)
    for outage_s, longest_s in ((0.0, 0.1), (8.0, 2.0), (1_000.0, 10.0)):
        assert policy.wait_s(outage_s, lambda: 0.0) == pytest.approx(longest_s / 2)
        assert policy.wait_s(outage_s, lambda: 1.0) == pytest.approx(longest_s)
