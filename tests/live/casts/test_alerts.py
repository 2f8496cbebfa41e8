"""Alerts in and out of a real service: the same bytes, and updates to the first one's people."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

from roamcast.client import connect
from roamcast.client.casting import CastProgress
from roamcast.errors import ConflictError, InputError, NotFoundError
from roamcast.model.alerts import read_alert
from tests.alert_cases import ALL, AMBER, EARTHQUAKE, STORM
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
    for name, point in (("inside", INSIDE), ("outside", OUTSIDE), ("later", OUTSIDE)):
        token = running.token(name, ("subscribe",))
        me = await connect(running.url, token, anonymous=True, keys=folder / f"{name}.keys")
        await me.appear(point=point, type="person")
        people[name] = me
    async with connect(running.url, running.operator) as sender:
        inbox = people["inside"].inbox()
        for step in ("Update", "Cancel"):
            alert = CURRENT.replace("KSTO1055887203", f"KSTO-{step}")
            follows = UPDATE.replace("KSTO1055887203", f"KSTO-{step}").replace(
                "<msgType>Update", f"<msgType>{step}"
            )
            follows = follows.replace("876.2", f"876.{step}")
            await people["inside"].appear(point=INSIDE)
            await people["later"].appear(point=OUTSIDE)
            sent = await sender.casts.send_alert(alert.encode())
            assert isinstance(sent, CastProgress)
            first = await asyncio.wait_for(anext(inbox), 60)
            assert first.letter.payload == alert.encode()
            assert first.text.startswith("SEVERE THUNDERSTORM WARNING")
            await people["inside"].appear(point=OUTSIDE)  # what follows goes to the person
            await people["later"].appear(point=INSIDE)  # and not to who came after the first
            assert isinstance(await sender.casts.send_alert(follows.encode()), str)
            second = await asyncio.wait_for(anext(inbox), 60)
            assert second.letter.payload == follows.encode()
            with pytest.raises((ConflictError, NotFoundError)):
                await sender.casts.send_alert(follows.replace("876.", "877.").encode())
        await inbox.aclose()
        for name in ("outside", "later"):
            assert [one async for one in people[name].inbox(follow=False)] == []
        with pytest.raises(InputError, match="say where it goes"):
            await sender.casts.send_alert(AMBER.encode())
    for me in people.values():
        await me.close()


@pytest.mark.slow
def test_all_examples_go_in_and_come_out_as_they_are(tmp_path: Path) -> None:
    with RunningService(tmp_path) as running:
        asyncio.run(in_and_out(running, tmp_path, [text.encode() for text in ALL.values()]))


async def in_and_out(running: RunningService, folder: Path, alerts: list[bytes]) -> None:
    """Send alerts to somebody; what an Update references is sent before it."""
    token = running.token("reader", ("subscribe",))
    async with (
        connect(running.url, token, anonymous=True, keys=folder / "reader.keys") as me,
        connect(running.url, running.operator) as sender,
    ):
        await me.appear(place="hq/1", type="person")
        inbox = me.inbox()
        for data in alerts:
            alert = read_alert(data)
            if alert.references:
                before = re.sub(rb"<references>.*</references>", b"", data)
                before = before.replace(b"<msgType>Update", b"<msgType>Alert")
                first = re.search(rb"<references>[^,]*,([^,]*),", data)
                assert first is not None
                before = re.sub(rb"<identifier>[^<]*", b"<identifier>" + first[1], before, count=1)
                await sender.casts.send_alert(before, "within(place, 'hq')", lifetime_s=3_600)
                assert (await asyncio.wait_for(anext(inbox), 60)).letter.payload == before
                await sender.casts.send_alert(data)
            else:
                await sender.casts.send_alert(data, "within(place, 'hq')", lifetime_s=3_600)
            mail = await asyncio.wait_for(anext(inbox), 60)
            assert mail.letter.payload == data
            assert alert.texts[0].event in data.decode()
            assert {mail.text_in(one.language) for one in alert.texts} == {
                alert.text_in(one.language) for one in alert.texts
            }
        await inbox.aclose()
