"""The driver of webhooks: asks receivers for consent and posts messages to them, in threads.

A receiver is on the public network, reached by https, unless the setting `private_addresses` says
otherwise (`transport/outward.py`).
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from roamcast.broker import CheckWebhook, PostWebhook, WebhookAnswered, WebhookChecked
from roamcast.live.config.settings import WebhookSection
from roamcast.model.machine import Input
from roamcast.transport.outward import (
    OUTWARD_ERRORS,
    Resolve,
    addresses_of,
    ask_outward,
    check_outward,
)

THREADS: Final = 8


def check_url(url: str, settings: WebhookSection) -> None:
    """Refuse an address that no webhook may have; its name is resolved with each request."""
    check_outward(url, private=settings.private_addresses)


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
            except OUTWARD_ERRORS as error:
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
            except OUTWARD_ERRORS:
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
        return ask_outward(
            method,
            url,
            headers,
            body,
            private=self._settings.private_addresses,
            timeout_s=self._settings.timeout_s,
            resolve=self._resolve,
            tls=self._tls,
        )
