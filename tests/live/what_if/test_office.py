"""One what-if at a time, each within its time; who asks meanwhile is told when to come again."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from roamcast.live.what_if import office
from roamcast.model.time import format_instant
from tests.live.in_process import Asked, gate
from tests.running_service import feature

LIMIT = {"limit_bytes": 1_024}


def now() -> str:
    return str(format_instant(time.time_ns() // 1_000))


async def lived(asked: Asked) -> dict[str, Any]:
    """Let something happen, and give a question about it."""
    begin = now()
    answer = await asked.ask("PUT", "/contexts/ann", feature(place="campus/b1", type="person"))
    assert answer.status == 201
    return {"from": begin, "to": now(), "settings": LIMIT}


def test_a_second_question_at_once_is_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        begun, free = asyncio.Event(), asyncio.Event()

        async def computed(_: Any) -> bytes:
            begun.set()
            await free.wait()
            return b"{}"

        monkeypatch.setattr(office, "_computed", computed)
        async with gate(tmp_path) as asked:
            question = await lived(asked)
            first = asyncio.create_task(asked.ask("POST", "/what-if", question))
            await begun.wait()
            second = await asked.ask("POST", "/what-if", question)
            assert second.status == 429
            assert second.headers["retry-after"] == "5"
            assert "one what-if is replayed at a time" in second.problem
            free.set()
            assert (await first).status == 200
            assert (await asked.ask("POST", "/what-if", question)).status == 200

    asyncio.run(body())


@pytest.mark.process
@pytest.mark.limit("what_if.answer_s_max")
def test_a_replay_that_takes_too_long_is_ended_and_the_next_one_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = []
    start = asyncio.create_subprocess_exec

    async def noted(*words: Any, **more: Any) -> Any:
        workers.append(await start(*words, **more))
        return workers[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)

    async def body() -> None:
        async with gate(tmp_path) as asked:
            question = await lived(asked)
            with monkeypatch.context() as short:
                short.setattr(office, "ANSWER_S_MAX", 0.01)  # Python alone needs longer to start
                refused = await asked.ask("POST", "/what-if", question)
            assert refused.status == 400
            assert refused.problem == "the replay took longer than 0.01 s: ask for a shorter time"
            assert (await asked.ask("POST", "/what-if", question)).status == 200
            assert workers[0].returncode < 0  # killed
            assert workers[1].returncode == 0

    asyncio.run(body())
