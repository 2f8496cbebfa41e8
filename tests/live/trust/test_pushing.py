"""Web Push against a push service that the test runs: who is asked, and that nothing is said."""

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey

from roamcast.errors import InputError, NotFoundError
from roamcast.identity.credentials import vid_of
from roamcast.identity.sealing import VidSecrets
from roamcast.identity.trusted.mailboxes import Deposit, SealedParcel
from roamcast.identity.trusted.settings import TrustSettings
from roamcast.identity.trusted.waking import PushAnswered, PushWakeUp
from roamcast.live.config.identity import PushSection
from roamcast.live.config.settings import Settings
from roamcast.live.trust.host import RunningTrust
from roamcast.live.trust.pushing import CLAIM_S, KEY_FILE, Pushing, PushKey
from tests.live.in_process import gate

CONTACT = "mailto:operator@example.org"
LOCAL = PushSection(contact=CONTACT, services=("127.0.0.1",), private_addresses=True)
NOW_US = 1_790_000_000_000_000


class PushService:
    """A push service on loopback that writes down what comes."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.status = 201
        self.came = threading.Event()
        self.url = ""


@contextmanager
def push_service() -> Iterator[PushService]:
    service = PushService()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            service.got.append((self.path, headers, body))
            self.send_response(service.status)
            if service.status == 302:
                self.send_header("Location", service.url + "/elsewhere")
            self.end_headers()
            service.came.set()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield service
        server.shutdown()


def test_a_person_is_woken_by_a_push_that_says_nothing(tmp_path: Path) -> None:
    with push_service() as service:
        asyncio.run(_woken(tmp_path, service))
        (path, headers, body), *others = service.got
        assert (path, body, others) == ("/ada-phone", b"", [])
        # Nothing of the cast, the sender, the person or the vid; only who pushes.
        assert set(headers) == {
            "host", "accept-encoding", "authorization", "ttl", "topic", "content-length",
            "connection",
        }  # fmt: skip
        assert (headers["content-length"], headers["topic"]) == ("0", "mail")
        claims = _claims(headers["authorization"], PushKey.open(tmp_path / KEY_FILE).public)
        assert claims["aud"] == service.url
        assert claims["sub"] == CONTACT
        assert set(claims) == {"aud", "exp", "sub"}


async def _woken(tmp_path: Path, service: PushService) -> None:
    at_once = TrustSettings(wake_delay_us=0)
    trust = RunningTrust.open(tmp_path, "trust.example", at_once, push=LOCAL)
    trust.start()
    while not trust.node.ready:
        await asyncio.sleep(0.01)
    keys = [VidSecrets(bytes([number]) * 32).public for number in range(32)]
    vid = vid_of((await trust.draw("ada", keys))[0])
    await trust.set_wake_up("ada", service.url + "/ada-phone")
    until = trust.clock() + 10**9
    parcels = (SealedParcel(vid, b"sealed"),)
    await trust.deposit(Deposit(0, "the-cast", "ann", "text", until, 0, parcels))
    assert await asyncio.to_thread(service.came.wait, 20)
    await trust.deposit(Deposit(0, "another", "ann", "text", until, 0, parcels))
    await trust.stop()


def _claims(header: str, expected: str) -> Any:
    """Check the signature as a push service does."""
    scheme, _, fields = header.partition(" ")
    assert scheme == "vapid"
    parts = dict(one.strip().split("=", 1) for one in fields.split(","))
    assert parts["k"] == expected
    point = base64.urlsafe_b64decode(parts["k"] + "==="[: -len(parts["k"]) % 4])
    assert (len(point), point[0]) == (65, 4)
    coordinates = (point[1:33], point[33:])
    x, y = (base64.urlsafe_b64encode(one).decode().rstrip("=") for one in coordinates)
    key = ECKey.import_key({"kty": "EC", "crv": "P-256", "x": x, "y": y})
    return json.loads(jws.deserialize_compact(parts["t"], key, algorithms=["ES256"]).payload)


def test_a_claim_is_for_one_push_service_and_some_hours(tmp_path: Path) -> None:
    key = PushKey.open(tmp_path / KEY_FILE)
    claims = _claims(key.authorization("https://a.example:8443/x/y", CONTACT, 1_000), key.public)
    assert claims == {"aud": "https://a.example:8443", "exp": 1_000 + CLAIM_S, "sub": CONTACT}
    assert PushKey.open(tmp_path / KEY_FILE).public == key.public
    (tmp_path / KEY_FILE).chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        PushKey.open(tmp_path / KEY_FILE)


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("https://evil.example/x", "no push service"),
        ("https://push.apple.com.evil.example/x", "no push service"),
        ("https://evilpush.apple.com/x", "no push service"),
        ("https://fcm.googleapis.com@evil.example/x", "neither a user"),
        ("http://fcm.googleapis.com/x", "begins with https"),
        ("https://127.0.0.1/x", "no push service"),
        ("https://[::1]/x", "no push service"),
        ("ftp://fcm.googleapis.com/x", "such as"),
        ("fcm.googleapis.com", "such as"),
    ],
)
def test_only_push_services_of_the_settings_are_asked(
    tmp_path: Path, endpoint: str, problem: str
) -> None:
    pushing = Pushing(
        PushSection(contact=CONTACT), tmp_path, give=lambda _: None, clock=lambda: NOW_US
    )
    with pytest.raises(InputError, match=problem):
        pushing.check(endpoint)
    for good in ("https://fcm.googleapis.com/fcm/send/x", "https://web.push.apple.com/x"):
        pushing.check(good)


def test_a_listed_name_that_leads_inside_is_not_asked_and_no_redirect_is_followed(
    tmp_path: Path,
) -> None:
    with push_service() as service:
        service.status = 302
        asyncio.run(_not_inside(tmp_path, service))
        assert [path for path, _, _ in service.got] == ["/x"]


async def _not_inside(tmp_path: Path, service: PushService) -> None:
    answered: asyncio.Queue[Any] = asyncio.Queue()
    common: Any = {"give": answered.put_nowait, "clock": lambda: NOW_US}
    listed = PushSection(contact=CONTACT, services=("push.example",))
    inside = Pushing(listed, tmp_path, resolve=lambda *_: ["10.0.0.1"], **common)
    inside.push(PushWakeUp("d", "https://push.example/x"))
    assert await answered.get() == PushAnswered("d", 0)
    local = Pushing(LOCAL, tmp_path, **common)
    local.push(PushWakeUp("d", service.url + "/x"))
    assert await answered.get() == PushAnswered("d", 302)
    # What was taken off the list since is not asked, either.
    local.push(PushWakeUp("d", "http://127.0.0.2:1/x"))
    assert await answered.get() == PushAnswered("d", 0)
    for one in (inside, local):
        await one.close()


def test_without_a_contact_no_pushes_are_sent(tmp_path: Path) -> None:
    pushing = Pushing(PushSection(), tmp_path, give=lambda _: None, clock=lambda: NOW_US)
    with pytest.raises(NotFoundError, match=r"\[push\] contact"):
        pushing.check("https://fcm.googleapis.com/x")
    assert not (tmp_path / KEY_FILE).exists()


def test_a_browsers_subscription_is_taken_over_http_and_removed(tmp_path: Path) -> None:
    asyncio.run(_over_http(tmp_path))


async def _over_http(tmp_path: Path) -> None:
    settings = Settings(push=PushSection(contact=CONTACT))
    async with gate(tmp_path, settings, trusted=True) as one:
        key = (await one.ask("GET", "/push/key")).json["key"]
        assert len(key) == 87
        endpoint = "https://fcm.googleapis.com/fcm/send/abc"
        given = {"endpoint": endpoint, "expirationTime": None, "keys": {"p256dh": "x", "auth": "y"}}
        first = await one.ask("PUT", "/me/push", given)
        assert first.json == {"endpoints": [endpoint]}, "before the first vid is drawn, too"
        pool = [VidSecrets(bytes([number]) * 32).public for number in range(32)]
        trust = one.service.trust
        assert trust is not None
        await trust.draw("ada", pool)
        assert (await one.ask("PUT", "/me/push", given)).json == {"endpoints": [endpoint]}
        evil = await one.ask("PUT", "/me/push", {"endpoint": "https://10.0.0.1/x"})
        assert evil.status == 400
        assert (await one.ask("DELETE", "/me/push")).status == 204
        assert (await one.ask("GET", "/me/push")).json == {"endpoints": []}
