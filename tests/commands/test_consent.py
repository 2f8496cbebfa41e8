"""`roamcast consent` and `roamcast why --mail`: a second person agrees, and a reader learns why."""

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from roamcast.client import connect
from roamcast.live.auth.admission import TokenKeys
from roamcast.live.auth.authority import CastAuthority
from tests.commands.test_cast_refusals import Terminal
from tests.live.casts.test_consent import crowd
from tests.live.trust.test_trust import HOST
from tests.running_service import RunningService

pytestmark = [pytest.mark.process, pytest.mark.slow]

CROWD = 60
SETTINGS = f'[casts]\nconsent_above = 30\n[identity]\nhosts = ["{HOST}"]\n'


def holder(running: RunningService, subject: str) -> str:
    return TokenKeys.open(running.data).issue(
        subject,
        ("cast", "subscribe"),
        lifetime_s=600,
        now=time.time_ns() // 1000,
        cast=CastAuthority(("hq",)),
    )


class Asking:
    """Asks a service in a process of its own as `crowd` asks one in this process."""

    def __init__(self, running: RunningService) -> None:
        self._running = running

    async def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Any:
        given = (headers or {}).get("authorization", f"Bearer {self._running.operator}")
        token = given.removeprefix("Bearer ")
        return self._running.ask(method, path, token, body, headers={"host": HOST})


async def visit(running: RunningService, token: str, keys: Path) -> None:
    """Be in the building for a moment, without a name."""
    async with connect(running.url, token, anonymous=True, keys=keys) as me:
        await me.appear("hq/1", type="person")


def test_a_cast_waits_for_a_second_person_and_its_reader_learns_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunningService(tmp_path, SETTINGS) as running:
        terminal = Terminal(running, monkeypatch, capsys)
        ann, bob = holder(running, "ann"), holder(running, "bob")
        asyncio.run(crowd(Asking(running), CROWD))  # type: ignore[arg-type]
        now = datetime.now(UTC)
        ends = (f"{now + timedelta(hours=hours):%Y-%m-%dT%H:%M:%SZ}" for hours in (-1, 1))
        where = "within(place, 'hq') AND T_INTERSECTS(time, INTERVAL('{}', '{}'))".format(*ends)

        def run(token: str, *words: str) -> str:
            monkeypatch.setenv("ROAMCAST_TOKEN", token)
            code, out, err = terminal.run(*words)
            assert code == 0, err
            return out

        sent = json.loads(run(ann, "cast", "--where", where, "--json", "the door is open"))
        cast = sent["id"]
        assert sent["state"] == "pending"
        assert f"roamcast consent {cast}" in run(bob, "consent")
        assert "yours: another person consents" in run(ann, "consent")
        monkeypatch.setenv("ROAMCAST_TOKEN", ann)
        code, _, err = terminal.run("consent", cast)
        assert (code, "a second person consents" in err) == (2, True), err
        assert f"sent {cast}" in run(bob, "consent", cast)
        assert "nothing waits for consent" in run(bob, "consent")

        reader, keys = running.token("reader", ("subscribe",)), tmp_path / "reader.keys"
        asyncio.run(visit(running, reader, keys))
        told = ""
        deadline = time.monotonic() + 60
        while cast not in told and time.monotonic() < deadline:
            monkeypatch.setenv("ROAMCAST_TOKEN", reader)
            told = terminal.run("why", cast, "--mail", "any", "--keys", str(keys))[1]
        assert "to your pseudonym" in told
        assert "the signature holds" in told
        code, _, err = terminal.run("why", "another", "--mail", "any", "--keys", str(keys))
        assert (code, "you have no mail of the cast 'another'" in err) == (2, True), err

        second = json.loads(run(ann, "cast", "--where", where, "--json", "never mind"))["id"]
        assert f"refused {second}: nothing was sent" in run(bob, "consent", "--refuse", second)
