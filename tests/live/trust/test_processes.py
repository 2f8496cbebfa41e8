"""A real service with its trusted node: mail survives kill -9, and no disk tells all."""

import base64
import http.client
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosedOK

from roamcast.identity.credentials import sign_registration, vid_of
from roamcast.identity.sealing import VidSecrets, seal_payload
from tests.running_service import RunningService

SUBJECT, PLACE, PAYLOAD = "subject-of-ada", "place-of-ada/room", b"what is said to her"


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def disk_of(folder: Path) -> bytes:
    return b"".join(one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file())


def leaks(data: Path) -> list[str]:
    """Say what lies on the wrong disk."""
    trusted = disk_of(data / "trust")
    broker = b"".join(
        disk_of(one) if one.is_dir() else one.read_bytes()
        for one in data.iterdir()
        if one.name != "trust"
    )
    found = []
    if SUBJECT.encode() in broker:
        found.append("a subject at the broker")
    if PLACE.encode() in trusted:
        found.append("a place at the trusted node")
    if PAYLOAD in trusted:
        found.append("a payload at the trusted node")
    return found


@pytest.mark.process
@pytest.mark.slow
def test_mail_survives_a_kill_and_each_disk_knows_its_own_half(tmp_path: Path) -> None:
    with RunningService(tmp_path) as running:
        person = running.token(SUBJECT, ("subscribe",))
        own = [VidSecrets(secrets.token_bytes(32)) for _ in range(32)]
        keys = [
            {"signing": text(one.public.signing), "sealing": text(one.public.sealing)}
            for one in own
        ]
        pool = running.ask("POST", "/pools", person, {"keys": keys})
        assert pool.status == 201, pool
        credential, secret = pool.json["credentials"][0], own[0]
        nonce = base64.b64decode(running.ask("GET", "/registrations/nonce").json["nonce"])
        signature = sign_registration(
            credential, nonce, f"127.0.0.1:{running.port}", secret.signing
        )
        body = {"credential": credential, "nonce": text(nonce), "signature": text(signature)}
        answer = running.ask("POST", "/registrations", "", body)
        assert answer.status == 201, answer
        vid = vid_of(credential)
        feature = {
            "type": "Feature",
            "geometry": {"type": "Point", "coordinates": [9.1, 48.7]},
            "properties": {"place": PLACE},
        }
        put = running.ask("PUT", f"/contexts/{vid}", answer.json["token"], feature)
        assert put.status == 201, put
        sealed = seal_payload(PAYLOAD, secret.public, "c1", vid)
        deposit = {
            "cast": "c1",
            "sender": "ann",
            "kind": "text",
            "expires_us": time.time_ns() // 1_000 + 3_600_000_000,
            "parcels": [{"vid": vid, "sealed": text(sealed)}],
        }
        with followed(running, person) as stream:
            assert running.ask("POST", "/deposits", running.operator, deposit).status == 200
            pushed = next_mail(stream)
        assert pushed["id"] == "c1"
        assert secret.open(base64.b64decode(pushed["sealed"]), "c1", vid) == PAYLOAD
        running.kill()
        assert leaks(running.data) == []
        running.start()
        assert running.ask("POST", "/deposits", running.operator, deposit).status == 200
        (mail,) = running.ask("GET", "/mailbox", token=person).json["mails"]
        assert mail["id"] == "c1"
        with running.session(person, "/mailbox") as socket:
            (came, newer) = (json.loads(socket.recv()), running.session(person, "/mailbox"))
            assert (came["type"], came["id"], came["vid"]) == ("mail", "c1", vid)
            assert secret.open(base64.b64decode(came["sealed"]), "c1", vid) == PAYLOAD
            socket.send('{"type":"ack"}')
            assert json.loads(socket.recv())["status"] == 400
            with newer as takes_over:
                assert json.loads(takes_over.recv())["id"] == "c1"
                with pytest.raises(ConnectionClosedOK, match="another connection"):
                    socket.recv()
                for _ in range(2):  # a repeat is harmless
                    takes_over.send('{"type":"ack","id":"c1","re":"1"}')
                    told = json.loads(takes_over.recv())
                    assert told == {"type": "done", "re": "1", "id": "c1"}
        running.ask("POST", "/deposits", running.operator, deposit)
        assert running.ask("GET", "/mailbox", token=person).json["mails"] == []
    assert leaks(running.data) == []


@pytest.mark.parametrize(
    ("where", "what", "leak"),
    [
        ("store.sqlite", SUBJECT.encode(), "a subject at the broker"),
        ("journal/segment", SUBJECT.encode(), "a subject at the broker"),
        ("trust/trust.sqlite", PLACE.encode(), "a place at the trusted node"),
        ("trust/trust.sqlite-wal", PAYLOAD, "a payload at the trusted node"),
    ],
)
def test_a_leak_on_either_disk_is_seen(tmp_path: Path, where: str, what: bytes, leak: str) -> None:
    (tmp_path / "trust").mkdir()
    assert leaks(tmp_path) == []
    (tmp_path / where).parent.mkdir(exist_ok=True)
    (tmp_path / where).write_bytes(b"before" + what + b"after")
    assert leaks(tmp_path) == [leak]


@contextmanager
def followed(running: RunningService, token: str) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    with closing(connection):
        connection.request("GET", "/mailbox/stream", headers={"authorization": f"Bearer {token}"})
        with connection.getresponse() as answer:
            assert answer.status == 200
            yield answer


def next_mail(stream: http.client.HTTPResponse) -> dict[str, str]:
    for line in stream:
        if line.startswith(b"data: "):
            found: dict[str, str] = json.loads(line[6:])
            return found
    raise AssertionError("the stream ended without mail")
