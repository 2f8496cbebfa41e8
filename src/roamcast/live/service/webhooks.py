"""The driver of webhooks: asks receivers for consent and posts messages to them, in threads.

A receiver is on the public network, reached by https, unless the setting `private_addresses` says
otherwise: whoever registers a webhook must not reach this machine's neighbours through it. A name
is resolved once, every address it has is checked, and the connection goes to a checked one; no
redirect is followed.
"""

import asyncio
import http.client
import ipaddress
import socket
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

from roamcast.broker import CheckWebhook, PostWebhook, WebhookAnswered, WebhookChecked
from roamcast.errors import InputError
from roamcast.live.config.settings import WebhookSection
from roamcast.model.machine import Input

THREADS: Final = 8
URL_LENGTH_MAX: Final = 2_048
ANSWER_BYTES_MAX: Final = 65_536
"""Bytes of an answer that are read; what it says does not matter."""

Resolve = Callable[[str, int], list[str]]


def addresses_of(host: str, port: int) -> list[str]:
    """Give the addresses of a name."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def check_url(url: str, settings: WebhookSection) -> None:
    """Refuse an address that no webhook may have; its name is resolved with each request."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InputError("url is not an address") from None
    if len(url) > URL_LENGTH_MAX or any(ord(one) <= 32 or ord(one) > 126 for one in url):
        raise InputError(f"url has at most {URL_LENGTH_MAX} printable ASCII characters")
    if parts.scheme not in ("https", "http") or not parts.hostname or port == 0:
        raise InputError("url is an address such as https://example.org/hook")
    if parts.username is not None or parts.fragment:
        raise InputError("url has neither a user nor a fragment")
    if parts.scheme == "http" and not settings.private_addresses:
        raise InputError("url begins with https://")


class WebhookRefusedError(Exception):
    """A receiver was not asked, or did not agree."""


class WebhookDriver:
    """Carries out the effects of a broker's webhooks."""

    def __init__(
        self,
        settings: WebhookSection,
        *,
        origin: str,
        give: Callable[[Input], None],
        resolve: Resolve = addresses_of,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._origin = origin
        self._give = give
        self._resolve = resolve
        self._tls = tls
        self._threads = ThreadPoolExecutor(THREADS, "webhooks")
        self._tasks: set[asyncio.Task[None]] = set()

    def check(self, effect: CheckWebhook) -> None:
        """Ask a receiver for its consent (CloudEvents Web Hooks, abuse protection)."""

        def ask() -> Input:
            headers = {"WebHook-Request-Origin": self._origin}
            try:
                status, said = self._ask("OPTIONS", effect.url, headers, None)
            except (WebhookRefusedError, OSError, http.client.HTTPException) as error:
                return WebhookChecked(effect.webhook, f"the receiver cannot be asked: {error}")
            allowed = {one.strip() for one in said.get("webhook-allowed-origin", "").split(",")}
            if status in range(200, 300) and allowed & {"*", self._origin}:
                return WebhookChecked(effect.webhook)
            return WebhookChecked(
                effect.webhook,
                "the receiver does not allow it: answer OPTIONS with the header "
                f"`WebHook-Allowed-Origin: {self._origin}`",
            )

        self._run(ask)

    def post(self, effect: PostWebhook) -> None:
        """Post a message; the answer's status is all that counts."""

        def ask() -> Input:
            try:
                status, _ = self._ask("POST", effect.url, effect.headers, effect.body)
            except (WebhookRefusedError, OSError, http.client.HTTPException):
                status = 0
            return WebhookAnswered(effect.webhook, effect.number, status)

        self._run(ask)

    async def close(self) -> None:
        """Wait for nobody: what was not answered is sent again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, ask: Callable[[], Input]) -> None:
        loop = asyncio.get_running_loop()

        async def run() -> None:
            self._give(await loop.run_in_executor(self._threads, ask))

        task = loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ask(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, dict[str, str]]:
        parts = urlsplit(url)
        assert parts.hostname
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        taken: Any = socket.create_connection(
            (self._address(parts.hostname, port), port), timeout=self._settings.timeout_s
        )
        try:
            if secure:
                tls = self._tls or ssl.create_default_context()
                taken = tls.wrap_socket(taken, server_hostname=parts.hostname)
            connection = http.client.HTTPConnection(parts.netloc)
            connection.sock = taken
            target = parts.path or "/"
            target += f"?{parts.query}" if parts.query else ""
            connection.request(method, target, body, {**headers, "Connection": "close"})
            answer = connection.getresponse()
            answer.read(ANSWER_BYTES_MAX)
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}
        finally:
            taken.close()

    def _address(self, host: str, port: int) -> str:
        found = self._resolve(host, port)
        private = [
            one for one in found if not ipaddress.ip_address(one.partition("%")[0]).is_global
        ]
        if private and not self._settings.private_addresses:
            raise WebhookRefusedError("its address is not public")
        if not found:
            raise WebhookRefusedError("its name has no address")
        return found[0]
