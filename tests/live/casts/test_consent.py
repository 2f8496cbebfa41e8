"""A second person's consent to casts to many, by HTTP; and the audit log, which names nobody."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import msgspec

from roamcast.live.auth.authority import CastAuthority
from roamcast.live.casts.audit import FILE_BYTES_MAX, AuditLine, AuditLog
from roamcast.live.config.casting import CastSection
from roamcast.live.config.settings import Settings
from roamcast.model.time import parse_instant
from tests.live.in_process import Asked, gate
from tests.live.trust.test_trust import FEATURE, as_vid, drawn, registered

HQ = "within(place, 'hq')"
CROWD = 60


def holder(asked: Asked, subject: str, *areas: str, priority: str = "notice") -> dict[str, str]:
    token = asked.service.keys.issue(
        subject,
        ("cast",),
        lifetime_s=3_600,
        now=asked.service.clock(),
        cast=CastAuthority(areas, priority),  # type: ignore[arg-type]
    )
    return {"authorization": f"Bearer {token}"}


async def crowd(asked: Asked, count: int) -> None:
    """Let so many pseudonyms be in the building."""
    pairs = [pair for _ in range(-(-count // 16)) for pair in await drawn(asked)]
    for credential, own in pairs[:count]:
        answer = await registered(asked, credential, own)
        assert answer.status == 201, answer
        feature = {**FEATURE, "properties": {"place": "hq/1"}}
        path = f"/contexts/{answer.json['vid']}"
        assert (await asked.ask("PUT", path, feature, headers=as_vid(answer))).status == 201


def settings(**casts: Any) -> Settings:
    return Settings(casts=CastSection(**casts))


def test_a_cast_to_many_is_sent_when_a_second_person_consents(tmp_path: Path) -> None:
    async def run() -> None:
        async with gate(tmp_path, settings(consent_above=20), trusted=True) as asked:
            ann, bob = holder(asked, "ann", "hq"), holder(asked, "bob", "hq", "lab")
            eve = holder(asked, "eve", "lab")
            few = await asked.ask("POST", "/casts", {"filter": HQ, "text": "x"}, headers=ann)
            assert few.status == 201  # nobody is there
            await crowd(asked, CROWD)
            # The same question gets the same answer for a while: this is another one.
            body = {
                "filter": f"{HQ} AND NOT within(place, 'hq/9')", "text": "come here", "id": "many"
            }  # fmt: skip
            asked_for = await asked.ask("POST", "/casts", body, headers=ann)
            assert asked_for.status == 202, asked_for
            assert asked_for.json["state"] == "pending"
            again = await asked.ask("POST", "/casts", body, headers=ann)
            assert again.status == 202  # a repeat asks for nothing again
            assert (await asked.ask("GET", "/casts/many", headers=ann)).json["state"] == "pending"
            trust = asked.service.trust
            assert trust is not None
            assert trust.node.mails_of("ada") == []
            seen = {
                name: (await asked.ask("GET", "/consents", headers=who)).json["consents"]
                for name, who in (("ann", ann), ("bob", bob), ("eve", eve))
            }
            assert [one["own"] for one in seen["ann"]] == [True]
            assert seen["eve"] == []
            (shown,) = seen["bob"]
            assert (shown["sender"], shown["own"], shown["id"]) == ("ann", False, "many")
            assert base64.b64decode(shown["payload"]) == b"come here"
            assert shown["about"] >= 20
            own = await asked.ask("POST", "/consents/many", headers=ann)
            assert own.status == 403
            assert "a second person consents" in own.problem
            assert (await asked.ask("POST", "/consents/many", headers=eve)).status == 404
            given = await asked.ask("POST", "/consents/many", headers=bob)
            assert given.status == 201, given
            assert given.json["state"] == "live"
            async with asyncio.timeout(30):
                while not trust.node.mails_of("ada"):
                    await asyncio.sleep(0.02)
            assert (await asked.ask("GET", "/casts/many", headers=ann)).json["state"] == "live"
            files = [path.read_text() for path in (tmp_path / "audit").glob("*.jsonl")]
            lines = [json.loads(line) for line in "".join(files).splitlines()]
            acts = [line["act"] for line in lines]
            assert acts == ["sent", "asked for consent", "consented"]
            assert len({line["by"] for line in lines}) == 2
            assert lines[1]["places"] == ["hq"]
            text = "".join(files)
            for secret in ("ann", "bob", "eve", "ada", "come here", "TRUE"):
                assert secret not in text

    asyncio.run(run())


def test_refused_and_taken_back_casts_are_not_sent(tmp_path: Path) -> None:
    async def run() -> None:
        async with gate(tmp_path, settings(consent_above=20), trusted=True) as asked:
            ann, bob = holder(asked, "ann", "hq"), holder(asked, "bob", "hq")
            await crowd(asked, CROWD)
            for name, path, who in (
                ("one", "/consents/one", bob),
                ("two", "/casts/two", ann),
            ):
                body = {"filter": HQ, "text": "x", "id": name}
                assert (await asked.ask("POST", "/casts", body, headers=ann)).status == 202
                assert (await asked.ask("DELETE", path, headers=who)).status == 204
                assert (await asked.ask("GET", f"/casts/{name}", headers=ann)).status == 404
                assert (await asked.ask("POST", f"/consents/{name}", headers=bob)).status == 404
            low = holder(asked, "low", "hq", priority="routine")
            body = {"filter": HQ, "text": "x", "id": "three", "priority": "notice"}
            assert (await asked.ask("POST", "/casts", body, headers=ann)).status == 202
            assert (await asked.ask("POST", "/consents/three", headers=low)).status == 404

    asyncio.run(run())


NOON = parse_instant("2026-11-17T12:00:00Z")
DAY = 86_400_000_000


def test_the_audit_log_has_a_file_a_day_a_key_for_each_and_forgets(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, days=2)
    handles = []
    for day in range(4):
        for who in ("ann", "ann", "bob"):
            log.note(NOON + day * DAY, "sent", who, cast="c")
        files = sorted(path.name for path in tmp_path.glob("*.jsonl"))
        lines = (tmp_path / files[-1]).read_bytes().splitlines()
        told = [msgspec.json.decode(line, type=AuditLine).by for line in lines]
        assert told[0] == told[1] != told[2]
        handles.append(told[0])
    assert len(set(handles)) == 4
    assert files == ["2026-11-18.0001.jsonl", "2026-11-19.0001.jsonl", "2026-11-20.0001.jsonl"]
    log.close()
    again = AuditLog(tmp_path, days=2)
    again.note(NOON + 3 * DAY, "sent", "ann", cast="c")
    lines = (tmp_path / files[-1]).read_bytes().splitlines()
    assert msgspec.json.decode(lines[-1], type=AuditLine).by == handles[-1]
    again.close()


def test_a_large_audit_file_is_followed_by_another_and_none_is_kept_at_0_days(
    tmp_path: Path,
) -> None:
    (tmp_path / "2026-11-17.0001.jsonl").write_bytes(b" " * FILE_BYTES_MAX)
    log = AuditLog(tmp_path, days=1)
    log.note(NOON, "refused", "ann")
    assert (tmp_path / "2026-11-17.0002.jsonl").stat().st_size == 0
    log.note(NOON, "sent", "ann")
    log.close()
    assert (tmp_path / "2026-11-17.0002.jsonl").stat().st_size > 0
    none = AuditLog(tmp_path / "none", days=0)
    none.note(NOON, "sent", "ann")
    assert not (tmp_path / "none").exists()
