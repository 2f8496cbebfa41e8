"""Alerts in and out of a real service: the same bytes, and updates to the first one's people."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from roamcast.client import connect
from roamcast.client.casting import CastProgress
from roamcast.errors import ConflictError, InputError, NotFoundError
from tests.alert_cases import AMBER, EARTHQUAKE, STORM
from tests.running_service import RunningService

pytestmark = pytest.mark.process

LATER = time.strftime("%Y-%m-%dT%H:%M:%S-00:00", time.gmtime(time.time() + 7_200))
CURRENT = STORM.replace("2003-06-17T16:00:00-07:00", LATER)
UPDATE = EARTHQUAKE.replace(
    "trinet@caltech.edu,TRI13970876.1,2003-06-11T20:30:00-07:00",
    "KSTO@NWS.NOAA.GOV,KSTO1055887203,2003-06-17T14:57:00-07:00",
)
INSIDE, OUTSIDE = (-119.94, 38.48), (-121.0, 38.48)


def test_an_alert_and_its_update_reach_who_is_in_the_polygon_as_they_were_sent(
    tmp_path: Path,
) -> None:
    with RunningService(tmp_path) as running:
        asyncio.run(_an_alert_and_its_update(running, tmp_path))


async def _an_alert_and_its_update(running: RunningService, folder: Path) -> None:
    people: dict[str, Any] = {}
    for name, point in (("inside", INSIDE), ("outside", OUTSIDE)):
        token = running.token(name, ("subscribe",))
        me = await connect(running.url, token, anonymous=True, keys=folder / f"{name}.keys")
        await me.appear(point=point, type="person")
        people[name] = me
    async with connect(running.url, running.operator) as sender:
        sent = await sender.casts.send_alert(CURRENT.encode())
        assert isinstance(sent, CastProgress)
        inbox = people["inside"].inbox()
        first = await asyncio.wait_for(anext(inbox), 60)
        assert first.letter.payload == CURRENT.encode()
        assert first.text.startswith("SEVERE THUNDERSTORM WARNING")
        await people["inside"].appear(point=OUTSIDE)  # an update follows the person
        assert isinstance(await sender.casts.send_alert(UPDATE.encode()), str)
        second = await asyncio.wait_for(anext(inbox), 60)
        assert second.letter.payload == UPDATE.encode()
        await inbox.aclose()
        assert [one async for one in people["outside"].inbox(follow=False)] == []
        with pytest.raises((ConflictError, NotFoundError)):
            await sender.casts.send_alert(UPDATE.replace("876.2", "876.3").encode())
        with pytest.raises(InputError, match="say where it goes"):
            await sender.casts.send_alert(AMBER.encode())
    for me in people.values():
        await me.close()
