"""How is a relay started, and how does it end? Dial the service, listen, serve, say good-bye."""

import asyncio
import random
import ssl
from collections.abc import Callable

from roamcast.errors import RoamcastError
from roamcast.live.config.settings import Settings, check_secured
from roamcast.live.relay.app import RelayGate
from roamcast.live.relay.forward import Forwarding
from roamcast.live.relay.relay import LiveRelay
from roamcast.live.service.running import UvicornServer, listen, uvicorn_config
from roamcast.transport.address import ServiceAddress

OPEN_S = 10.0


async def serve(
    address: ServiceAddress,
    settings: Settings,
    *,
    started: Callable[[str], None],
    interface: str = "",
    tls: ssl.SSLContext | None = None,
) -> None:
    """Run a relay until a signal ends it, or its own token does."""
    check_secured(settings.server)
    listening = listen(settings.server)
    relay = LiveRelay(
        address,
        settings,
        draw=random.SystemRandom().random,
        open_s=OPEN_S,
        interface=interface,
        tls=tls,
    )
    forwarding = Forwarding(address.url, timeout_s=OPEN_S, tls=tls)

    def began(port: int) -> None:
        host = settings.server.host
        scheme = "https" if settings.server.tls_cert else "http"
        started(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")

    server = UvicornServer(uvicorn_config(settings, RelayGate(relay, forwarding)), relay, began)
    try:
        await relay.start()
        assert relay.ended is not None
        relay.ended.add_done_callback(lambda _: server.handle_exit(0, None))
        await server.serve(sockets=[listening])
        if relay.ended.done():
            await relay.ended  # raises why
    finally:
        listening.close()
        forwarding.close()
        await relay.stop()


def run(
    address: ServiceAddress,
    settings: Settings,
    *,
    started: Callable[[str], None],
    interface: str = "",
    tls: ssl.SSLContext | None = None,
) -> None:
    """Run a relay in this process until it ends."""
    import uvloop

    try:
        uvloop.run(serve(address, settings, started=started, interface=interface, tls=tls))
    except (OSError, asyncio.CancelledError) as error:
        raise RoamcastError(f"the relay could not start: {error}") from None
