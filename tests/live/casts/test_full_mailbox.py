"""A full mailbox loses nothing: the mail waits with the broker and comes when there is room."""

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path

import msgspec

from roamcast.identity.letters import decode_letter
from tests.live.in_process import gate
from tests.live.trust.test_trust import FEATURE, as_vid, drawn, registered


def test_mail_for_a_full_mailbox_waits_and_comes_when_there_is_room(tmp_path: Path) -> None:
    asyncio.run(_mail_waits(tmp_path))


async def _mail_waits(tmp_path: Path) -> None:
    async with gate(tmp_path, trusted=True) as asked:
        trust = asked.service.trust
        assert trust is not None
        boxes = trust.node._mailboxes
        boxes.settings = msgspec.structs.replace(boxes.settings, mails_max=1)
        (credential, own), *_ = await drawn(asked)
        answer = await registered(asked, credential, own)
        who, name = as_vid(answer), answer.json["vid"]
        feature = {**FEATURE, "properties": {"place": "hq/1"}}
        assert (await asked.ask("PUT", f"/contexts/{name}", feature, headers=who)).status == 201
        for number in ("1", "2"):
            body = {"filter": "within(place, 'hq')", "text": f"text {number}", "id": number}
            assert (await asked.ask("POST", "/casts", body)).status == 201
            await _until(lambda: len(trust.node.mails_of("ada")) == 1)
        first = trust.node.mails_of("ada")[0]
        other = {"1": "2", "2": "1"}[first.cast]
        assert (await asked.ask("POST", f"/mailbox/{first.cast}/ack")).status == 204
        await _until(lambda: [one.cast for one in trust.node.mails_of("ada")] == [other])
        (mail,) = (await asked.ask("GET", "/mailbox")).json["mails"]
        letter = decode_letter(own.open(base64.b64decode(mail["sealed"]), other, name))
        assert letter.payload == f"text {other}".encode()


async def _until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not done():
            await asyncio.sleep(0.02)
