"""A session takes no more than it may: by its rate, while much waits, while nobody reads."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from roamcast.channels.sessions.messages import SUBSCRIPTIONS_A_MESSAGE_MAX
from roamcast.errors import LimitError
from roamcast.live.config.settings import Limits, Settings
from roamcast.live.links import session
from roamcast.live.links.session import IN_FLIGHT_MAX, LONG_S, PASSES, TURN_S, SessionSocket
from roamcast.live.service.reading import READ_STEPS
from tests.live.in_process import Asked, gate
from tests.running_service import feature

DEADLINE_S = 60.0
STEPS_BURST_MIN = 10_000
"""The smallest burst of steps that settings allow."""


class Socket:
    """A connection that writes down what happens to it."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []
        self.waiting_bytes = 0
        self.held_s = 0.0
        self.halted = False
        self.closed = ""

    async def serve(self, *_: Any, **__: Any) -> None:
        await asyncio.get_running_loop().create_future()

    def write(self, framed: bytes) -> None:
        while framed and not self.closed:  # several frames may come together
            start, size = 2, framed[1]
            if size == 126:
                start, size = 4, int.from_bytes(framed[2:4], "big")
            self.said.append(json.loads(framed[start : start + size]))
            framed = framed[start + size :]

    def hold(self, seconds: float) -> None:
        self.held_s = max(seconds, self.held_s)

    def halt(self, halted: bool) -> None:
        self.halted = halted

    def close(self, code: int, reason: str) -> None:
        self.closed = self.closed or f"{code} {reason}"

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.said if one["type"] == kind]


class Talk:
    """One session of a service, spoken to without a network."""

    def __init__(self, asked: Asked) -> None:
        self.service = asked.service
        self.socket = Socket()
        grant = self.service.keys.check(asked.token, self.service.clock())
        self.session = SessionSocket(self.service, self.socket, grant, "ada#one")  # type: ignore[arg-type]

    def say(self, kind: str, **more: Any) -> None:
        self.session.received(json.dumps({"type": kind, **more}))

    async def hears(self, kind: str, count: int) -> list[dict[str, Any]]:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.socket.kinds(kind)) < count:
                await asyncio.sleep(0.001)
        return self.socket.kinds(kind)


def run(folder: Path, limits: Limits, scene: Callable[[Talk], Awaitable[None]]) -> None:
    async def body() -> None:
        async with gate(folder, Settings(limits=limits)) as asked:
            talk = Talk(asked)
            running = asyncio.create_task(talk.session.run())
            await talk.hears("welcome", 1)
            await scene(talk)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(body())


@pytest.mark.limit("limits.frames_per_s", "limits.frames_burst")
def test_beyond_its_burst_a_session_is_held_and_beyond_twice_that_it_is_ended(
    tmp_path: Path,
) -> None:
    async def scene(talk: Talk) -> None:
        now = talk.service.clock()
        talk.service.clock = lambda: now
        for _ in range(20):
            talk.say("heartbeat")
        assert talk.socket.held_s == 0
        for debt in range(1, 21):
            talk.say("heartbeat")
            assert talk.socket.held_s == pytest.approx(debt / 10, rel=1e-4)
        assert not talk.socket.closed
        for _ in range(1_000):
            talk.say("heartbeat")
        assert len(talk.socket.kinds("alive")) == 40
        (told,) = talk.socket.kinds("error")
        assert told["detail"] == "too many messages: at most 10 a second"
        assert talk.socket.closed == f"1013 {told['detail']}"

    run(tmp_path, Limits(frames_per_s=10, frames_burst=20), scene)


def test_who_sends_no_faster_than_it_is_read_is_never_ended(tmp_path: Path) -> None:
    async def scene(talk: Talk) -> None:
        now = talk.service.clock()
        talk.service.clock = lambda: now
        for turn in range(50):
            for _ in range(20):
                talk.say("heartbeat")
            await talk.hears("alive", 20 * (turn + 1))  # others have turns between
            now += round(talk.socket.held_s * 1_000_000)
            talk.socket.held_s = 0.0
        assert len(talk.socket.kinds("alive")) == 1_000
        assert not talk.socket.closed

    run(tmp_path, Limits(frames_per_s=10, frames_burst=20), scene)


@pytest.mark.parametrize(
    ("spent_s", "most"), [(1.01 * TURN_S / 4, 4), (1.01 * TURN_S, 1), (2 * LONG_S, 1)]
)
def test_what_comes_in_one_piece_lets_others_have_turns_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spent_s: float, most: int
) -> None:
    async def scene(talk: Talk) -> None:
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(turn)

        had = []
        worked = itertools.count()

        def clock() -> float:
            had.append(turns)
            return next(worked) * spent_s

        turn()
        monkeypatch.setattr(session, "thread_time", clock)
        for _ in range(40):
            talk.say("heartbeat")
        await talk.hears("alive", 40)
        together = max(len([*same]) // 2 for _, same in itertools.groupby(had))
        between = {after - before for before, after in itertools.pairwise(had)} - {0}
        assert together == most
        assert min(between) >= PASSES

    run(tmp_path, Limits(), scene)


@pytest.mark.limit("session.publications_waiting_max")
def test_with_too_much_under_way_no_more_is_begun_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(talk: Talk) -> None:
        gates = [asyncio.Event() for _ in range(IN_FLIGHT_MAX + 10)]
        begun = 0

        async def publish(*_: Any, **__: Any) -> bool:
            nonlocal begun
            begun += 1
            await gates[begun - 1].wait()
            return True

        monkeypatch.setattr(talk.service, "publish", publish)
        for number in range(len(gates)):
            talk.say("publish", re=f"{number}", feature=feature(f"v{number}"))
        assert talk.socket.halted
        async with asyncio.timeout(DEADLINE_S):  # a slow message lets others go first for a moment
            while begun < IN_FLIGHT_MAX:
                await asyncio.sleep(0.001)
        for _ in range(5):
            await asyncio.sleep(0)
        assert begun == IN_FLIGHT_MAX
        gates[7].set()
        await talk.hears("done", 1)
        assert talk.socket.halted
        for one in gates:
            one.set()
        done = await talk.hears("done", len(gates))
        assert {one["re"] for one in done} == {f"{number}" for number in range(len(gates))}
        assert not talk.socket.halted

    run(tmp_path, Limits(), scene)


def test_who_does_not_read_the_answers_is_not_read(tmp_path: Path) -> None:
    async def scene(talk: Talk) -> None:
        limits = talk.service.settings.limits
        talk.say("heartbeat", re="a")
        assert not talk.socket.halted
        talk.socket.waiting_bytes = limits.socket_high_bytes + 1
        for re in "bc":
            talk.say("heartbeat", re=re)
        assert talk.socket.halted
        assert [one["re"] for one in talk.socket.kinds("alive")] == ["a"]
        talk.socket.waiting_bytes = limits.socket_high_bytes
        assert [one["re"] for one in await talk.hears("alive", 3)] == ["a", "b", "c"]
        assert not talk.socket.halted

    run(tmp_path, Limits(), scene)


def test_nobody_waits_for_ever_because_of_a_mistake_of_our_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(talk: Talk) -> None:
        async def publish(*_: Any, **__: Any) -> bool:
            raise ZeroDivisionError("ada is at hq/2")

        def subscribe(*_: Any) -> None:
            raise ZeroDivisionError("ada is at hq/2")

        monkeypatch.setattr(talk.service, "publish", publish)
        monkeypatch.setattr(talk.service, "subscribe", subscribe)
        caplog.clear()
        talk.say("publish", re="later", feature=feature("v"))
        talk.say("subscribe", re="at once", filter="true")
        talk.say("heartbeat", re="still here")
        told = await talk.hears("error", 2)
        assert [(one["re"], one["status"]) for one in told] == [("at once", 500), ("later", 500)]
        assert "ada" not in str(told)
        assert talk.socket.kinds("alive")
        assert [record.getMessage() for record in caplog.records] == ["our mistake"] * 2

    run(tmp_path, Limits(), scene)


def test_a_session_that_can_not_be_opened_is_closed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with gate(tmp_path) as asked:

            def full(*_: Any) -> None:
                raise LimitError("there is no room: come again later")

            monkeypatch.setattr(asked.service, "open_session", full)
            socket, told = Socket(), []

            async def receive() -> dict[str, str]:
                return {"type": "websocket.connect"}

            async def send(message: dict[str, Any]) -> None:
                told.append(message["type"])

            scope = {
                "type": "websocket",
                "path": "/session",
                "query_string": b"",
                "headers": [],
                "subprotocols": [f"roamcast.token.{asked.token}"],
                "extensions": {"roamcast.socket": socket},
            }
            await asked.gate(scope, receive, send)
            assert told == ["websocket.accept"]
            assert socket.closed == "1013 there is no room: come again later"

    asyncio.run(body())


@pytest.mark.limit("session.subscriptions_a_message_max")
def test_a_message_places_so_many_subscriptions_and_not_one_more(tmp_path: Path) -> None:
    async def scene(talk: Talk) -> None:
        most = SUBSCRIPTIONS_A_MESSAGE_MAX
        filters = {f"{number}": f"n = '{number}'" for number in range(most)}
        talk.say("subscribe_many", re="m", filters={**filters, "one more": "true"})
        (told,) = talk.socket.kinds("error")
        assert told["re"] == "m"
        talk.say("subscribe_many", filters=filters)
        await talk.hears("current", most)
        assert [one["re"] for one in talk.socket.kinds("subscribed")] == [*filters]
        talk.say("subscribe_many", filters={"0": "true", "one more": "true"})
        told = (await talk.hears("error", 2))[1]
        assert told["re"] == "one more"
        assert f"at most {most} subscriptions" in told["detail"]
        assert (await talk.hears("subscribed", most + 1))[-1]["re"] == "0"

    run(tmp_path, Limits(subscriptions_per_client_max=SUBSCRIPTIONS_A_MESSAGE_MAX), scene)


@pytest.mark.parametrize(
    "more", [{}, {"long": "n = 1 OR " * 200 + "n = 2"}, {"longer": "n" * 4_001}]
)
def test_of_many_subscriptions_each_is_answered_by_itself(
    tmp_path: Path, more: dict[str, str]
) -> None:
    async def scene(talk: Talk) -> None:
        filters = {"good": "n = 'x'", "bad": "n = ", **more, "better": "n > 1 AND n < 3"}
        talk.say("subscribe_many", filters=filters)
        placed = {"good", "better", *({"long"} & more.keys())}
        await talk.hears("current", len(placed))
        refused = filters.keys() - placed
        assert {one["re"] for one in await talk.hears("error", len(refused))} == refused
        assert {one["re"] for one in talk.socket.kinds("subscribed")} == placed

    run(tmp_path, Limits(filter_length_max=4_000), scene)


@pytest.mark.parametrize("contexts", [1, 3])
def test_many_subscriptions_begin_with_their_current_sets(tmp_path: Path, contexts: int) -> None:
    async def scene(talk: Talk) -> None:
        for number in range(contexts):
            talk.say("publish", feature=feature(f"v{number}"))
        await talk.hears("done", contexts)
        talk.say("subscribe_many", filters={"all": "true", "none": "n = 'x'", "one": "vid = 'v0'"})
        told = {one["re"]: one["count"] for one in await talk.hears("subscribed", 3)}
        assert told == {"all": contexts, "none": 0, "one": 1}

    run(tmp_path, Limits(), scene)


def test_each_of_many_subscriptions_counts_as_a_message(tmp_path: Path) -> None:
    async def scene(talk: Talk) -> None:
        now = talk.service.clock()
        talk.service.clock = lambda: now
        filters = {f"{number}": f"n = '{number}'" for number in range(20)}
        talk.say("subscribe_many", filters=filters)
        assert talk.socket.held_s == 0
        talk.say("subscribe_many", filters=filters)
        async with asyncio.timeout(DEADLINE_S):  # it may wait while others go first
            while talk.socket.held_s < 1:
                await asyncio.sleep(0.001)
        assert talk.socket.held_s == pytest.approx(2, rel=1e-4)
        talk.say("subscribe_many", re="m", filters={"a": "true", "b": "true"})
        assert len(await talk.hears("subscribed", 40)) == 40
        (told,) = await talk.hears("error", 1)
        assert told["detail"] == "too many messages: at most 10 a second"
        assert talk.socket.closed

    run(tmp_path, Limits(frames_per_s=10, frames_burst=20), scene)


def test_of_many_subscriptions_as_many_are_placed_as_are_paid_for(tmp_path: Path) -> None:
    async def scene(talk: Talk) -> None:
        now = talk.service.clock()
        talk.service.reader._clock = talk.service.clock = lambda: now
        filters = {f"{number}": f"n = '{number}'" for number in range(5)}
        price = READ_STEPS * len(filters["0"]) + 1
        assert price * 3 <= STEPS_BURST_MIN < price * 4
        talk.say("subscribe_many", filters=filters)
        assert [one["re"] for one in await talk.hears("subscribed", 3)] == ["0", "1", "2"]
        assert [one["re"] for one in await talk.hears("error", 2)] == ["3", "4"]
        assert {one["status"] for one in talk.socket.kinds("error")} == {429}

    run(tmp_path, Limits(steps_per_s=1, steps_burst=STEPS_BURST_MIN), scene)
