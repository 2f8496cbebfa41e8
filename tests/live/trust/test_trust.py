"""The trusted node over HTTP: pools, registrations without a name, sealed mail, reach, erasure."""

import asyncio
import base64
import secrets
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roamcast.errors import SettingsError
from roamcast.identity.credentials import (
    Credential,
    check_credential,
    public_key,
    sign_credential,
    sign_registration,
)
from roamcast.identity.sealing import VidSecrets, seal_payload
from roamcast.identity.trusted.mailboxes import Deposit, Mail, SealedParcel
from roamcast.journal.segments import read_entries
from roamcast.live.auth import registrations
from roamcast.live.config.settings import JournalSection, Settings, parse_settings
from roamcast.live.observe.metrics import Metrics
from roamcast.live.trust.host import RunningTrust
from roamcast.model.records import TrustStep
from tests.live.in_process import Asked, gate
from tests.running_service import Answer

HOST = "maps.example"
FEATURE = {
    "type": "Feature",
    "geometry": {"type": "Point", "coordinates": [9.1, 48.7]},
    "properties": {},
}


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def drawn(asked: Asked, size: int = 32) -> list[tuple[str, VidSecrets]]:
    """Draw a pool as the holder of the token."""
    own = [VidSecrets(secrets.token_bytes(32)) for _ in range(size)]
    keys = [
        {"signing": text(one.public.signing), "sealing": text(one.public.sealing)} for one in own
    ]
    answer = await asked.ask("POST", "/pools", {"keys": keys})
    assert answer.status == 201, answer
    return list(zip(answer.json["credentials"], own, strict=True))


async def registered(
    asked: Asked,
    credential: str,
    secret: VidSecrets,
    *,
    audience: str = HOST,
    nonce: bytes | None = None,
    host: str = "",
) -> Answer:
    """Register, as somebody without a token; `host` is dialled, signed for, and in the header."""
    if nonce is None:
        got = await asked.ask("GET", "/registrations/nonce", headers={"authorization": ""})
        nonce = base64.b64decode(got.json["nonce"])
    signature = sign_registration(credential, nonce, host or audience, secret.signing)
    body = {"credential": credential, "nonce": text(nonce), "signature": text(signature)}
    headers = {"authorization": "", **({"host": host} if host else {})}
    return await asked.ask("POST", "/registrations", body, headers=headers)


def as_vid(answer: Answer) -> dict[str, str]:
    assert answer.status == 201, answer
    return {"authorization": f"Bearer {answer.json['token']}"}


def test_a_vid_publishes_under_itself_and_nobody_else_does(tmp_path: Path) -> None:
    asyncio.run(_a_vid_publishes_under_itself_and_nobody_else_does(tmp_path))


async def _a_vid_publishes_under_itself_and_nobody_else_does(tmp_path: Path) -> None:
    async with gate(tmp_path, trusted=True) as asked:
        (first, own), (second, other), *_ = await drawn(asked)
        one, two = await registered(asked, first, own), await registered(asked, second, other)
        vid = one.json["vid"]
        assert "ada" not in one.json["token"]
        assert await _status(asked, "PUT", f"/contexts/{vid}", FEATURE, as_vid(one)) == 201
        # neither another vid nor a named subject, not even the same person's
        assert await _status(asked, "PUT", f"/contexts/{vid}", FEATURE, as_vid(two)) == 400
        unused = two.json["vid"]
        assert await _status(asked, "PUT", f"/contexts/{unused}", FEATURE) == 409
        # a credential is one context: whoever needs another uses another vid
        assert await _status(asked, "PUT", "/contexts/printer", FEATURE, as_vid(one)) == 400
        assert await _status(asked, "DELETE", f"/contexts/{vid}", None, as_vid(one)) == 204


async def _status(
    asked: Asked, method: str, path: str, body: Any = None, headers: Any = None
) -> int:
    return (await asked.ask(method, path, body, headers=headers)).status


def test_forged_foreign_expired_replayed_and_stolen_are_refused_by_name(
    tmp_path: Path,
) -> None:
    asyncio.run(_forged_foreign_expired_replayed_and_stolen_are_refused_by_name(tmp_path))


async def _forged_foreign_expired_replayed_and_stolen_are_refused_by_name(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path, trusted=True) as asked:
        (credential, own), *_ = await drawn(asked)
        trust = asked.service.trust
        assert trust is not None
        nodes = {trust.node.name: trust.node.public_key}
        read = check_credential(credential, nodes, asked.service.clock(), 0)
        private = bytes.fromhex((tmp_path / "trust" / "trust.key").read_text())
        expired = sign_credential(Credential(read.vid, read.keys, 1_000), private)
        foreign = sign_credential(
            Credential("A" * 24 + "@else.example", read.keys, 1 << 60), private
        )
        forged = sign_credential(Credential(read.vid, read.keys, 1 << 60), bytes(32))
        thief = VidSecrets(bytes(32))
        for answer, reason in (
            (await registered(asked, forged, own), "forged"),
            (await registered(asked, foreign, own), "foreign"),
            (await registered(asked, expired, own), "expired"),
            (await registered(asked, credential, thief), "stolen"),
            (await registered(asked, credential, own, audience="evil.example"), "stolen"),
            (await registered(asked, credential, own, nonce=bytes(32)), "foreign nonce"),
            (await registered(asked, "nonsense", own), "malformed"),
        ):
            assert answer.status == 401
            assert answer.problem.startswith(reason)
        # Another service passes on what somebody signed for it, under the name it was dialled by.
        nonce = asked.service.registrations.nonce(asked.service.clock())
        relayed = await registered(asked, credential, own, nonce=nonce, host="evil.example")
        assert relayed.status == 401
        assert relayed.problem.startswith("foreign service: 'evil.example'")
        assert (await registered(asked, credential, own, nonce=nonce)).status == 201
        replayed = await registered(asked, credential, own, nonce=nonce)
        assert replayed.problem.startswith("replayed")
        old = asked.service.registrations.nonce(1_000)
        assert (await registered(asked, credential, own, nonce=old)).problem.startswith("expired")


def test_used_nonces_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_used_nonces_are_bounded(tmp_path, monkeypatch))


async def _used_nonces_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "USED_MAX", 1)
    async with gate(tmp_path, trusted=True) as asked:
        (credential, own), *_ = await drawn(asked)
        assert (await registered(asked, credential, own)).status == 201
        assert (await registered(asked, credential, own)).status == 429


def test_a_vid_is_nobody_at_the_trusted_node(tmp_path: Path) -> None:
    asyncio.run(_a_vid_is_nobody_at_the_trusted_node(tmp_path))


async def _a_vid_is_nobody_at_the_trusted_node(tmp_path: Path) -> None:
    async with gate(tmp_path, trusted=True) as asked:
        (credential, own), *_ = await drawn(asked)
        who = as_vid(await registered(asked, credential, own))
        keys = [{"signing": text(bytes(32)), "sealing": text(bytes(32))}] * 32
        refused = await asked.ask("POST", "/pools", {"keys": keys}, headers=who)
        assert refused.status == 403
        for path in ("/mailbox", "/mailbox/stream", "/me/reach", "/me/push"):
            assert await _status(asked, "GET", path, None, who) == 403
        assert await _status(asked, "POST", "/deposits", {}, who) == 403


def test_sealed_mail_reaches_its_person_once_and_leaves_when_acknowledged(
    tmp_path: Path,
) -> None:
    asyncio.run(_sealed_mail_reaches_its_person_once_and_leaves_when_acknowledged(tmp_path))


async def _sealed_mail_reaches_its_person_once_and_leaves_when_acknowledged(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path, trusted=True) as asked:
        pool = await drawn(asked)
        now = asked.service.clock()
        read = [_read(credential) for credential, _ in pool]
        parcels = [
            {"vid": one.vid, "sealed": text(seal_payload(b"hello", one.keys, "c1", one.vid))}
            for one in read
        ]
        body = {
            "cast": "c1",
            "sender": "ann",
            "kind": "text",
            "expires_us": now + 60_000_000,
            "parcels": parcels,
        }
        answer = await asked.ask("POST", "/deposits", body)
        assert answer.json == {"reached": 30, "unreachable": 0, "refused": 0, "full": 0}
        (mail,) = (await asked.ask("GET", "/mailbox")).json["mails"]
        assert b"hello" not in base64.b64decode(mail["sealed"])
        secret = dict(zip((one.vid for one in read), (own for _, own in pool), strict=True))
        opened = secret[mail["vid"]].open(base64.b64decode(mail["sealed"]), "c1", mail["vid"])
        assert opened == b"hello"
        for _ in range(2):
            assert (await asked.ask("POST", "/mailbox/c1/ack")).status == 204
        assert (await asked.ask("GET", "/mailbox")).json == {"mails": []}
        await asked.ask("POST", "/deposits", body)
        assert (await asked.ask("GET", "/mailbox")).json == {"mails": []}


def _read(credential: str) -> Credential:
    data = base64.urlsafe_b64decode(credential[5:] + "=" * (-len(credential[5:]) % 4))
    return msgspec.msgpack.decode(data[64:], type=Credential)


def test_people_say_who_may_write_and_may_leave(tmp_path: Path) -> None:
    asyncio.run(_people_say_who_may_write_and_may_leave(tmp_path))


async def _people_say_who_may_write_and_may_leave(tmp_path: Path) -> None:
    async with gate(tmp_path, trusted=True) as asked:
        # Who never drew a vid has an empty mailbox, and may say who shall not write to it.
        assert (await asked.ask("GET", "/mailbox")).json == {"mails": []}
        assert (await asked.ask("GET", "/me/reach")).json["senders"] == ["*"]
        assert (await asked.ask("GET", "/me/push")).json == {"endpoints": []}
        assert (await asked.ask("PUT", "/me/reach", {"stopped": ["early"]})).status == 200
        assert (await asked.ask("GET", "/me/reach")).json["stopped"] == ["early"]
        pool = await drawn(asked)
        rules = {"stopped": ["spam"], "past_s": 3_600, "quiet": [{"end_min": 60}]}
        assert (await asked.ask("PUT", "/me/reach", rules)).status == 200
        told = (await asked.ask("GET", "/me/reach")).json
        assert told["stopped"] == ["spam"]
        assert told["past_s"] == 3_600
        assert (await asked.ask("PUT", "/me/reach", {"stoped": []})).status == 400
        vid = _read(pool[0][0]).vid
        body = {
            "cast": "c1",
            "sender": "spam",
            "kind": "text",
            "expires_us": asked.service.clock() + 60_000_000,
            "parcels": [{"vid": vid, "sealed": ""}] * 10,
        }
        assert (await asked.ask("POST", "/deposits", body)).json["refused"] == 10
        assert (await asked.ask("DELETE", "/me")).json == {"deleted": 0}
        assert (await asked.ask("GET", "/mailbox")).json == {"mails": []}
        assert (await asked.ask("POST", "/deposits", body)).json["unreachable"] == 10


def test_a_broker_vouches_for_senders_and_who_casts_deposits_under_their_own_name(
    tmp_path: Path,
) -> None:
    asyncio.run(_a_broker_vouches_for_senders(tmp_path))


async def _a_broker_vouches_for_senders(tmp_path: Path) -> None:
    async with gate(tmp_path, trusted=True) as asked:
        pool = await drawn(asked)
        keys, now = asked.service.keys, asked.service.clock()

        def as_one(subject: str, scope: str) -> dict[str, str]:
            token = keys.issue(subject, (scope,), lifetime_s=60, now=now)
            return {"authorization": f"Bearer {token}"}

        body = {
            "cast": "c1", "sender": "ann", "kind": "text", "expires_us": now + 60_000_000,
            "parcels": [{"vid": _read(pool[0][0]).vid, "sealed": ""}],
        }  # fmt: skip
        forged = await asked.ask("POST", "/deposits", body, headers=as_one("mallory", "cast"))
        assert forged.status == 403
        assert "vouches" in forged.problem
        for scope in ("read", "publish", "subscribe"):
            assert await _status(asked, "POST", "/deposits", body, as_one("ann", scope)) == 403
        assert (await asked.ask("GET", "/mailbox")).json["mails"] == []
        # Nobody takes the id of another's cast, which its people would then not get.
        squat = await asked.ask("POST", "/deposits", body, headers=as_one("ann", "cast"))
        assert squat.status == 403
        assert "begins with" in squat.problem
        own = {**body, "cast": "ann:1"}
        # A sender is not told what became of a vid: neither gone, nor full, nor refused.
        stranger = {"vid": "A" * 24 + "@trust.localhost", "sealed": ""}
        own["parcels"] = [*own["parcels"], *[stranger] * 9]
        told = await asked.ask("POST", "/deposits", own, headers=as_one("ann", "cast"))
        assert told.json == {"reached": 10, "unreachable": 0, "refused": 0, "full": 0}
        again = {**body, "cast": "c2"}
        assert await _status(asked, "POST", "/deposits", again, as_one("broker", "deposit")) == 200
        mails = (await asked.ask("GET", "/mailbox")).json["mails"]
        assert [(one["id"], one["sender"]) for one in mails] == [("ann:1", "ann"), ("c2", "ann")]


def test_a_registration_leaves_the_key_to_seal_to_also_after_a_restart(tmp_path: Path) -> None:
    asyncio.run(_a_registration_leaves_the_key(tmp_path))


async def _a_registration_leaves_the_key(tmp_path: Path) -> None:
    async with gate(tmp_path, trusted=True) as asked:
        (credential, own), (_, _), *_ = await drawn(asked)
        vid = (await registered(asked, credential, own)).json["vid"]
        assert asked.service.broker.key_of(vid) == own.public.sealing
    async with gate(tmp_path, trusted=True) as asked:
        assert asked.service.broker.key_of(vid) == own.public.sealing


class Sink:
    def __init__(self) -> None:
        self.mails: list[str] = []
        self.ended = asyncio.Event()

    def push(self, mail: Mail) -> None:
        self.mails.append(mail.cast)

    def end(self) -> None:
        self.ended.set()


def test_a_node_restarts_with_its_mail_and_without_destroyed_keys(tmp_path: Path) -> None:
    asyncio.run(_a_node_restarts_with_its_mail_and_without_destroyed_keys(tmp_path))


async def _a_node_restarts_with_its_mail_and_without_destroyed_keys(tmp_path: Path) -> None:
    trust = RunningTrust.open(tmp_path, "trust.example")
    trust.start()
    while not trust.node.ready:
        await asyncio.sleep(0.01)
    keys = [VidSecrets(bytes([number]) * 32).public for number in range(32)]
    old = [_read(one).vid for one in await trust.draw("ada", keys)]
    raw_key = trust.node._epochs.keys.key
    await trust.rotate()
    new = [_read(one).vid for one in await trust.draw("ada", keys)]
    await trust.destroy(1)
    assert raw_key not in _all_bytes(tmp_path)
    sink, newer = Sink(), Sink()
    await trust.connect("ada", sink)
    parcels = tuple(SealedParcel(vid, b"sealed") for vid in (*old, *new))
    done = await trust.deposit(Deposit(0, "c1", "ann", "text", trust.clock() + 10**9, 0, parcels))
    assert (done.reached, done.unreachable) == (30, 30)
    assert sink.mails == ["c1"]
    inbox = await trust.connect("ada", newer)
    assert sink.ended.is_set()
    assert newer.mails == ["c1"]
    trust.disconnect(inbox)
    await trust.stop()
    again = RunningTrust.open(tmp_path, "trust.example")
    again.start()
    assert [mail.cast for mail in again.node.mails_of("ada")] == ["c1"]
    assert again.node.resolve(old) == [None] * 32
    assert again.node.public_key == trust.node.public_key
    await again.stop()


def test_the_journal_and_metrics_of_a_node_count_what_it_did_and_name_nobody(
    tmp_path: Path,
) -> None:
    asyncio.run(_the_journal_and_metrics(tmp_path))


async def _the_journal_and_metrics(tmp_path: Path) -> None:
    metrics = Metrics()
    trust = RunningTrust.open(tmp_path, "trust.example", journal=JournalSection(), metrics=metrics)
    trust.start()
    while not trust.node.ready:
        await asyncio.sleep(0.01)
    keys = [VidSecrets(bytes([number]) * 32).public for number in range(32)]
    own = [_read(one).vid for one in await trust.draw("the-subject", keys)]
    parcels = (SealedParcel(own[0], b"s"), SealedParcel("A" * 24 + "@trust.example", b"s"))
    until = trust.clock() + 10**9
    await trust.deposit(Deposit(0, "the-cast", "the-sender", "text", until, 0, parcels))
    await trust.ack("the-subject", "the-cast")
    page = metrics.page().decode()
    for line in (
        'roamcast_held{what="trust people"} 1.0',
        'roamcast_trust_total{what="deposit, reached"} 1.0',
        'roamcast_trust_total{what="deposit, unreachable"} 1.0',
        'roamcast_trust_total{what="pool"} 32.0',
    ):
        assert line in page, line
    await trust.stop()
    steps = [
        (record.step, record.number, record.reason)
        for _, host, record in read_entries(tmp_path / "journal")
        if isinstance(record, TrustStep) and host == "trust.example"
    ]
    assert steps == [
        ("sealing", 1, ""),
        ("enrolled", 1, ""),
        ("pool", 32, ""),
        ("deposit", 1, "reached"),
        ("deposit", 1, "unreachable"),
        ("deleted", 1, "fetched"),
    ]
    written = _all_bytes(tmp_path / "journal") + page.encode()
    for secret in ("the-subject", "the-cast", "the-sender", own[0][:24]):
        assert secret.encode() not in written


def _all_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


def test_other_trusted_nodes_are_accepted_by_their_keys() -> None:
    key = text(public_key(bytes(32)))
    toml = f'[identity]\nnode = ""\n[identity.accept]\n"trust.example" = "ed25519:{key}"\n'
    settings = parse_settings(toml)
    assert settings.identity.accepted() == {"trust.example": public_key(bytes(32))}
    assert Settings().identity.accepted() == {}
    for wrong in (
        toml.replace("ed25519:", "rsa:"),
        toml.replace(key, "AAAA"),
        toml.replace("trust.", "-"),
    ):
        with pytest.raises(SettingsError):
            parse_settings(wrong)
