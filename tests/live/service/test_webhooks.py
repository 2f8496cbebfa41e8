"""Webhooks of a running service: consent, signed deliveries, kill -9, and no way to the inside."""

import asyncio
import base64
import hashlib
import hmac
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from roamcast.broker import CheckWebhook
from roamcast.errors import InputError
from roamcast.live.config.settings import Settings, WebhookSection
from roamcast.live.service.webhooks import WebhookDriver, check_url
from roamcast.transport.outward import URL_LENGTH_MAX
from tests.live.in_process import gate
from tests.running_service import RunningService


class Receiver:
    """An HTTP server on loopback; `status` is what it answers to messages."""

    def __init__(self, allowed: str = "*") -> None:
        self.allowed, self.status = allowed, 200
        self.view: dict[str, str] = {}
        self.messages: list[tuple[dict[str, str], bytes]] = []
        self.origins: list[str] = []
        self.changed = threading.Condition()

    def until(self, view: dict[str, str]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.view == view, 30), self.view

    def _take(self, headers: dict[str, str], body: bytes) -> None:
        with self.changed:
            self.messages.append((headers, body))
            if self.status == 200:
                for event in json.loads(body):
                    self.view.pop(event["subject"], None)
                    if event["data"] is not None:
                        self.view[event["subject"]] = event["data"]["properties"]["place"]
            self.changed.notify_all()

    @contextmanager
    def serving(self) -> Iterator[str]:
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_OPTIONS(self) -> None:
                receiver.origins.append(self.headers["WebHook-Request-Origin"])
                self.send_response(200)
                self.send_header("WebHook-Allowed-Origin", receiver.allowed)
                self.end_headers()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver._take({name.lower(): value for name, value in self.headers.items()}, body)
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook?x=1"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def feature(place: str) -> dict[str, Any]:
    return {"type": "Feature", "geometry": None, "properties": {"place": place}}


@pytest.mark.process
@pytest.mark.slow
def test_kill_9_loses_no_change_that_was_acknowledged(tmp_path: Path) -> None:
    receiver = Receiver()
    settings = "[webhooks]\nprivate_addresses = true\n"
    with receiver.serving() as url, RunningService(tmp_path, settings) as running:
        wish = {"url": url, "filter": "within(place, 'hq')"}
        made = running.ask("POST", "/webhooks", running.operator, wish)
        assert made.status == 201, made.body
        assert receiver.origins == ["roamcast"]
        running.ask("PUT", "/contexts/a", running.operator, feature("hq/1"))
        running.ask("PUT", "/contexts/b", running.operator, feature("hq/2"))
        receiver.until({"a": "hq/1", "b": "hq/2"})
        headers, body = receiver.messages[-1]
        key = base64.b64decode(made.json["secret"].removeprefix("whsec_"))
        said = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        mac = base64.b64encode(hmac.new(key, said, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{mac}"
        receiver.status = 503
        assert running.ask("PUT", "/contexts/a", running.operator, feature("hq/3")).status == 200
        assert running.ask("DELETE", "/contexts/b", running.operator).status == 204
        running.kill()
        receiver.status = 200
        running.start()
        receiver.until({"a": "hq/3"})
        (one,) = running.ask("GET", "/webhooks", running.operator).json
        assert one["id"] == made.json["id"]
        assert "secret" not in one
        assert running.ask("DELETE", f"/webhooks/{one['id']}", running.operator).status == 204
        assert running.ask("GET", "/webhooks", running.operator).json == []


def test_nobody_is_sent_messages_who_does_not_consent_or_is_not_public(tmp_path: Path) -> None:
    receiver = Receiver(allowed="https://other.example")

    async def told(url: str, settings: Settings) -> tuple[int, str]:
        async with gate(tmp_path / str(settings.webhooks.private_addresses), settings) as asked:
            answer = await asked.ask("POST", "/webhooks", {"url": url})
            return answer.status, answer.json["detail"]

    private = Settings(webhooks=WebhookSection(private_addresses=True))
    with receiver.serving() as url:
        status, detail = asyncio.run(told(url, private))
        assert (status, "WebHook-Allowed-Origin" in detail) == (409, True)
        assert asyncio.run(told(url, Settings()))[0] == 400  # http
        secure = url.replace("http:", "https:")
        status, detail = asyncio.run(told(secure, Settings()))
        assert (status, "not public" in detail) == (409, True)
    assert not receiver.messages


@pytest.mark.parametrize(
    "inside",
    ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "::1", "fe80::1%eth0", "fd00::1",
     "0.0.0.0", "100.64.0.1", "::ffff:127.0.0.1"],
)  # fmt: skip
def test_a_name_with_one_inner_address_is_not_asked(inside: str) -> None:
    given: list[Any] = []

    async def body() -> None:
        driver = WebhookDriver(
            WebhookSection(),
            origin="roamcast",
            give=given.append,
            resolve=lambda *_: ["93.184.215.14", inside],
        )
        driver.check(CheckWebhook("h", "https://receiver.example/"))
        await asyncio.gather(*driver._tasks)
        await driver.close()

    asyncio.run(body())
    assert "not public" in given[0].reason


@pytest.mark.parametrize(
    "url",
    ["ftp://a.example/", "https://", "https://u:p@a.example/", "http://a.example/", "a.example",
     "https://a.example/#x", "https://a.example:0/", "https://a.example:99999/",
     "https://a.example/\r\nX: y", "https://[::1/", "https://ä.example/"],
)  # fmt: skip
def test_addresses_that_no_webhook_may_have_are_refused(url: str) -> None:
    with pytest.raises(InputError):
        check_url(url, WebhookSection())


@pytest.mark.limit("webhooks.timeout_s")
def test_a_receiver_that_says_nothing_is_waited_for_so_long_and_no_longer() -> None:
    given: list[Any] = []

    async def body(port: int) -> None:
        settings = WebhookSection(timeout_s=0.1, private_addresses=True)
        driver = WebhookDriver(settings, origin="roamcast", give=given.append)
        driver.check(CheckWebhook("h", f"http://127.0.0.1:{port}/"))
        await asyncio.gather(*driver._tasks)
        await driver.close()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(body(silent.getsockname()[1]))
    assert "timed out" in given[0].reason


@pytest.mark.limit("webhook.url_length_max")
def test_an_address_is_taken_at_its_length_and_refused_beyond() -> None:
    longest = "https://a.example/".ljust(URL_LENGTH_MAX, "x")
    check_url(longest, WebhookSection())
    with pytest.raises(InputError):
        check_url(longest + "x", WebhookSection())
