"""What is refused of casts, each in one clear line, with nothing sent and nothing lost."""

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from roamcast.live.auth.authority import CastAuthority
from roamcast.live.casts.preview import ANSWERS_A_DAY
from roamcast.model.casts import PAYLOAD_BYTES_MAX
from tests.live.in_process import Asked, gate
from tests.running_service import Answer

HQ = "within(place, 'hq')"
WINDOW = "overlaps(time, INTERVAL('{}', '{}'))"
UPSIDE_DOWN = WINDOW.format("2026-11-10T17:00:00Z", "2026-11-10T15:00:00Z")
ZONELESS = WINDOW.format("2026-11-10T15:00:00", "2026-11-10T17:00:00")
TOO_LARGE = b64encode(bytes(PAYLOAD_BYTES_MAX + 1)).decode()


def sender(asked: Asked, subject: str = "ann", areas: tuple[str, ...] = ("hq",)) -> dict[str, str]:
    token = asked.service.keys.issue(
        subject, ("cast",), lifetime_s=3_600, now=asked.service.clock(), cast=CastAuthority(areas)
    )
    return {"authorization": f"Bearer {token}"}


async def cast(asked: Asked, body: dict[str, Any], headers: Any = None, **query: Any) -> Answer:
    said = {"filter": HQ, **({} if "payload" in body else {"text": "hello"}), **body}
    return await asked.ask("POST", "/casts", said, headers=headers or sender(asked), **query)


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ({"filter": "type = 'person'"}, 403, "names no place, and only administrators cast"),
        ({"filter": "TRUE"}, 403, "names no place, and only administrators cast to the whole"),
        ({"filter": f"{HQ} AND {UPSIDE_DOWN}"}, 400, "an INTERVAL ends before it starts"),
        ({"filter": f"{HQ} AND {ZONELESS}"}, 400, "has no time zone"),
        ({"filter": f"{HQ} AND NOT {HQ}"}, 400, "no context can ever match"),
        ({"filter": "within(place, "}, 400, "position"),
        ({"payload": TOO_LARGE}, 400, "the payload exceeds the limit of 102400 bytes"),
        ({"text": ""}, 400, "a cast says something"),
        ({"filter": "within(place, 'lab')"}, 403, "lab is not granted: your token has hq"),
        ({"priority": "emergency"}, 403, "up to notice, not emergency"),
        ({"expires": "2020-01-01T00:00:00Z"}, 400, "expires after it is sent"),
        ({"expires": "2030-01-01T00:00:00"}, 400, "not an RFC 3339 timestamp such as"),
        ({"kind": ""}, 400, "kind"),
        ({"urgency": 1}, 400, "urgency"),
    ],
)  # fmt: skip
def test_a_cast_that_may_not_be_is_refused_in_one_line(
    tmp_path: Path, body: dict[str, Any], status: int, why: str
) -> None:
    async def run() -> None:
        async with gate(tmp_path, trusted=True) as asked:
            for query in ({}, {"preview": "true"}):
                answer = await cast(asked, {"id": "c1", **body}, **query)
                assert answer.status == status, answer
                assert why in answer.problem
                assert "\n" not in answer.problem
            assert (await asked.ask("GET", "/casts/c1")).status == 404

    asyncio.run(run())


def test_who_may_cast_to_the_whole_world_and_who_may_not_cast_at_all(tmp_path: Path) -> None:
    async def run() -> None:
        async with gate(tmp_path, trusted=True) as asked:
            operator = {"authorization": f"Bearer {asked.token}"}
            answer = await cast(asked, {"filter": "type = 'person'", "id": "w"}, operator)
            assert answer.status == 201, answer
            assert answer.json["tense"] == "present"
            nowhere = await cast(asked, {}, sender(asked, areas=()))
            assert nowhere.status == 403
            assert "grants no area" in nowhere.problem
            reader = asked.service.keys.issue(
                "bob", ("read",), lifetime_s=60, now=asked.service.clock()
            )
            refused = await cast(asked, {}, {"authorization": f"Bearer {reader}"})
            assert refused.status == 403
            assert "needs the scope cast" in refused.problem

    asyncio.run(run())


def test_a_cast_is_its_senders_and_is_cancelled_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with gate(tmp_path, trusted=True) as asked:
            ann, bob = sender(asked), sender(asked, "bob")
            later = WINDOW.format("2030-11-10T15:00:00Z", "2030-11-10T17:00:00Z")
            assert (
                await cast(asked, {"id": "c1", "filter": f"{HQ} AND {later}"}, ann)
            ).status == 201
            again = await cast(asked, {"id": "c1", "filter": f"{HQ} AND {later}"}, ann)
            assert again.status == 201  # a repeat sends nothing again
            for method, path in (("GET", "/casts/c1"), ("DELETE", "/casts/c1")):
                assert (await asked.ask(method, path, headers=bob)).status == 404
            why = (await asked.ask("GET", "/casts/c1/why", headers=ann)).json
            assert "it waits: who satisfies it from now on gets it" in why["lines"]
            assert (await asked.ask("DELETE", "/casts/c1", headers=ann)).status == 204
            twice = await asked.ask("DELETE", "/casts/c1", headers=ann)
            assert twice.status in (404, 409), twice
            assert "\n" not in twice.problem
            updated = await asked.ask("POST", "/casts/c1/updates", {"text": "x"}, headers=ann)
            assert updated.status in (404, 409)

    asyncio.run(run())


def test_counts_of_people_have_a_budget_and_asking_again_costs_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with gate(tmp_path, trusted=True) as asked:
            ann = sender(asked)
            for number in range(ANSWERS_A_DAY // 2):  # in all, and by place
                for _ in range(3):
                    answer = await cast(
                        asked, {"filter": f"{HQ} AND n = {number}"}, ann, preview="true"
                    )
                    assert answer.status == 200, answer
                    assert answer.json["present"] == {"about": 0, "places": []}
            over = await cast(asked, {}, ann, preview="true")
            assert over.status == 429
            assert "counts of people" in over.problem
            assert (await cast(asked, {}, sender(asked, "eve"), preview="true")).status == 200

    asyncio.run(run())
