"""A service and its HTTP in the test's own process, asked without a socket."""

import json
import warnings
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from roamcast.live.auth.admission import SCOPES, TokenKeys
from roamcast.live.config.settings import Settings, with_server
from roamcast.live.observe.metrics import Metrics
from roamcast.live.service.service import Service
from roamcast.live.store.store import SqliteStore
from roamcast.live.trust.host import RunningTrust
from tests.running_service import Answer

with warnings.catch_warnings():
    # litestar's older releases, which we allow, know no other way to name a parameter
    warnings.simplefilter("ignore", DeprecationWarning)
    from roamcast.live.http.app import make_gate


class Asked:
    """A gate with somebody at it who may do everything."""

    def __init__(self, service: Service) -> None:
        self.service = service
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.gate = make_gate(service)
        self.token = service.keys.issue("ada", SCOPES, (), lifetime_s=3_600, now=service.clock())

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        """Send one request; `path` may have a query of its own."""
        path, _, said = path.partition("?")
        encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = b"" if body is None else encoded
        said_by = {
            "host": "maps.example",
            "authorization": f"Bearer {self.token}",
            **(headers or {}),
        }
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": (said or urlencode(query)).encode(),
            "root_path": "",
            "headers": [
                *((name.encode(), value.encode()) for name, value in said_by.items()),
                (b"content-length", str(len(sent)).encode()),
            ],
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
        }
        told: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": sent, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            told.append(message)

        await self.gate(scope, receive, send)
        start = told[0]
        found = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], found, b"".join(one.get("body", b"") for one in told[1:]))


@asynccontextmanager
async def service_here(
    folder: Path,
    settings: Settings | None = None,
    *,
    serving: bool = True,
    trusted: bool = False,
) -> AsyncIterator[Service]:
    """Hold a service open in this process, on a real disk; `serving`: with its own timers, too.

    `trusted`: with a trusted node.
    """
    settings = with_server(settings or Settings(), data=str(folder))
    identity = msgspec.structs.replace(settings.identity, hosts=("maps.example",))
    settings = msgspec.structs.replace(settings, identity=identity)
    disk = SqliteStore.open(folder / "store.db", copied=bool(settings.cluster.replicas))
    trust = None
    if trusted:
        name = settings.identity.node
        trust = RunningTrust.open(folder / "trust", name, push=settings.push)
    keys = TokenKeys.open(folder)
    service = Service(settings, disk=disk, keys=keys, metrics=Metrics(), trust=trust)
    if trust is not None:
        trust.start()
    if serving:
        service.start()
    else:
        service.driver.start()
    try:
        yield service
    finally:
        await service.goodbye()
        await service.stop()
        if trust is not None:
            await trust.stop()


@asynccontextmanager
async def gate(
    folder: Path, settings: Settings | None = None, *, trusted: bool = False
) -> AsyncIterator[Asked]:
    """Hold a service open, with its HTTP."""
    async with service_here(folder, settings, trusted=trusted) as service:
        yield Asked(service)
