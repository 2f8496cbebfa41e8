"""The SDK, the service and a relay speak TLS to each other, and to nobody they cannot check."""

import asyncio
import ssl
from pathlib import Path

import pytest

from roamcast.client import connect
from roamcast.errors import UnreachableError
from roamcast.model.contexts import Context
from tests.live.certificates import write_certificate
from tests.running_relay import RunningRelay
from tests.running_service import RunningService

pytestmark = pytest.mark.process

DEADLINE_S = 120.0


async def speaks_tls(service: RunningService, relay: RunningRelay, certificate: Path) -> None:
    assert service.url.startswith("https://")
    assert relay.url.startswith("https://")
    trusted = ssl.create_default_context(cafile=str(certificate))
    token = service.token("ada")
    for url in (service.url, relay.url):
        async with connect(url, token, tls=trusted) as me:
            view = me.watch("type = 'person'")
            ada = await me.appear(place="hq/2", point=(9.1, 48.7), type="person")
            async with asyncio.timeout(DEADLINE_S):
                while set(view.contexts) != {ada.vid}:
                    await anext(view)
            assert [one.vid for one in await me.who("within(place, 'hq')")] == [ada.vid]
            (near,) = await me.nearest((9.1, 48.7), "type = 'person'")
            assert near.context.vid == ada.vid
            kept = Context("kept", "hq/1", None, {"type": "lamp"}, me.now())
            await me.put(kept, lifetime_s=60)
            assert await me.put_all([kept], lifetime_s=60) == [""]
            badge = await me.appear(place="hq/3", type="lamp", lifetime_s=60)
            assert await me.count("type = 'lamp'") == 2
        async with connect(url, token, tls=trusted) as me:
            assert await me.count("type = 'lamp'") == 2  # both outlive the session
            await me.remove("kept")
            await me.remove(badge.vid)
            gone = Context("gone", "hq/1", None, {"type": "lamp"}, me.now())
            await me.put(gone, lifetime_s=0.001)
            async with asyncio.timeout(DEADLINE_S):
                while await me.count("type = 'lamp'"):
                    await asyncio.sleep(0.05)
        with pytest.raises(UnreachableError, match="certificate"):
            await connect(url, token)  # nobody vouches for this certificate


def test_the_sdk_speaks_tls_with_a_service_and_a_relay_whose_certificate_it_trusts(
    tmp_path: Path,
) -> None:
    certificate, key = write_certificate(tmp_path, "127.0.0.1")
    settings = f'[server]\ntls_cert = "{certificate}"\ntls_key = "{key}"\n'
    folder = tmp_path / "relay"
    folder.mkdir()
    with (
        RunningService(tmp_path, settings) as service,
        RunningRelay(folder, service, settings, "--ca", str(certificate)) as relay,
    ):
        asyncio.run(speaks_tls(service, relay, certificate))
