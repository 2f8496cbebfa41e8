"""An anonymous session with a real service: fresh vids, own links, mail to old vids opened."""

import asyncio
import json
import stat
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roamcast.client import Session, connect
from roamcast.client.own_vids import LOW, POOL_SIZE, keys_path
from roamcast.errors import AuthError, InputError
from roamcast.identity.key_store import KeyStore, store_of
from roamcast.identity.letters import Letter, encode_letter
from roamcast.identity.sealing import seal_payload
from roamcast.transport.address import ServiceAddress
from tests.running_service import RunningService

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(tmp_path_factory.mktemp("anonymous")) as started:
        yield started


def person(running: RunningService, name: str, keys: Path) -> Any:
    token = running.token(name, ("subscribe",))
    return connect(running.url, token, anonymous=True, keys=keys)


def deposited(running: RunningService, vid: str, cast: str, text: bytes, keys: Path) -> None:
    """Let the operator write to a vid as a broker does."""
    store = KeyStore.open(keys)
    own = store.of(vid)
    assert own is not None
    store.close()
    sealed = seal_payload(encode_letter(Letter(text)), own.secrets.public, cast, vid)
    deposit = {
        "cast": cast, "sender": "ann", "kind": "notice",
        "expires_us": time.time_ns() // 1_000 + 3_600_000_000,
        "parcels": [{"vid": vid, "sealed": b64encode(sealed).decode()}],
    }  # fmt: skip
    answer = running.ask("POST", "/deposits", running.operator, deposit)
    assert answer.status == 200, answer


async def first_mails(me: Session, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(30):
        async for mail in me.inbox():
            found.append(mail)
            if len(found) == count:
                break
    return found


def test_each_appearance_has_a_vid_of_the_trusted_node_and_mail_to_all_of_them_opens(
    running: RunningService, tmp_path: Path
) -> None:
    asyncio.run(_each_appearance_has_its_vid(running, tmp_path / "ada.keys"))


async def _each_appearance_has_its_vid(running: RunningService, keys: Path) -> None:
    async with person(running, "ada", keys) as me:
        first = await me.appear("hq/1", type="person")
        link = me._appearance
        changed = await me.change(type="guest")
        assert changed.vid == first.vid
        assert [one.vid for one in await me.who("place = 'hq/1'")] == [first.vid]
        second = await me.appear("hq/2")
        assert me._appearance is not link
        assert len({first.vid, second.vid, me._viewer.vid}) == 3
        assert all(one.endswith("@trust.localhost") for one in (first.vid, second.vid))
        assert [one.vid for one in await me.who()] == [second.vid]
        deposited(running, first.vid, "c1", b"to whom was at hq/1", keys)
        deposited(running, second.vid, "c1", b"to whom was at hq/1", keys)
        deposited(running, second.vid, "c2", b"and now", keys)
        mails = await first_mails(me, 2)
        assert [mail.text for mail in mails] == ["to whom was at hq/1", "and now"]
        assert [mail.sender for mail in mails] == ["ann", "ann"]
        with pytest.raises(InputError, match="draws its vids"):
            await me.appear("hq/1", vid="mine")
        stored = await me.appear("hq/3", lifetime_s=60)
        assert [one.vid for one in await me.who()] == [stored.vid]
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    store = KeyStore.open(keys)
    assert store.left(0) == POOL_SIZE - 4
    store.close()
    assert LOW < POOL_SIZE - 4  # so no second pool was due


def test_mail_waits_on_the_persons_disk_until_it_was_read(
    running: RunningService, tmp_path: Path
) -> None:
    asyncio.run(_mail_waits(running, tmp_path / "bob.keys"))


async def _mail_waits(running: RunningService, keys: Path) -> None:
    async with person(running, "bob", keys) as me:
        here = await me.appear("hq/1")
        deposited(running, here.vid, "c9", b"read me", keys)
        (kept,) = [mail async for mail in me.inbox(follow=False, keep=True)]
        # acknowledged at the trusted node, because it is on this disk
        token = running.token("bob", ("subscribe",))
        assert running.ask("GET", "/mailbox", token).json["mails"] == []
        (again,) = [mail async for mail in me.inbox(follow=False)]
        assert again == kept
        assert [mail async for mail in me.inbox(follow=False)] == []


def test_events_of_somebody_anonymous_have_one_vid_of_their_own(
    running: RunningService, tmp_path: Path
) -> None:
    asyncio.run(_events_have_their_vid(running, tmp_path / "fay.keys"))


async def _events_have_their_vid(running: RunningService, keys: Path) -> None:
    async with (
        person(running, "fay", keys) as me,
        connect(running.url, running.operator) as reader,
        asyncio.timeout(60),
    ):
        stream = await reader.subscribe("number > 0")
        mine = await me.subscribe("number = 2")
        here = await me.appear("hq/1")
        for number in (1, 2):
            await me.publish_event("hq/1", data=b"seen", number=number)
        found = [await anext(stream) for _ in range(2)]
        assert [one.context.attributes["number"] for one in found] == [1, 2]
        (vid,) = {one.context.vid for one in found}
        assert vid.endswith("@trust.localhost")
        assert vid not in (here.vid, me._viewer.vid)
        assert len({one.producer for one in found}) == 1
        assert "fay" not in repr(found)
        assert (await anext(mine)).data == b"seen"
        with pytest.raises(InputError):  # nobody publishes under another's
            await me.publish_event("hq/1", vid=here.vid, number=3)


def test_the_command_prints_mail(running: RunningService, tmp_path: Path) -> None:
    keys = store_of(running.data / "people", "eve")

    async def appear() -> str:
        async with person(running, "eve", keys) as me:
            return str((await me.appear("hq/1")).vid)

    deposited(running, asyncio.run(appear()), "c3", b"good news", keys)
    words = ["inbox", "--as", "eve", "--data", str(running.data)]
    for form in ([], ["--json", "--no-keep"]):
        done = subprocess.run(
            [sys.executable, "-m", "roamcast", *words, *form],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "good news" in done.stdout
    assert json.loads(done.stdout)["cast"] == "c3"
    done = subprocess.run(
        [sys.executable, "-m", "roamcast", *words], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.stdout == "no mail\n"


def test_somebody_whose_name_the_trusted_node_refuses_gets_no_session(
    running: RunningService, tmp_path: Path
) -> None:
    async def come() -> None:
        await connect(running.url, "no.such.token", anonymous=True, keys=tmp_path / "x.keys")

    with pytest.raises(AuthError):
        asyncio.run(come())


def test_each_name_and_node_has_a_key_store_of_its_own() -> None:
    here = {"XDG_DATA_HOME": "/home/a"}
    first = keys_path(ServiceAddress("http://one", "x.eyJzdWIiOiJhIiwic2NvcGVzIjpbXX0.y"), here)
    second = keys_path(ServiceAddress("http://two", "x.eyJzdWIiOiJhIiwic2NvcGVzIjpbXX0.y"), here)
    assert first != second
    assert first.parent == Path("/home/a/roamcast")
    assert keys_path(ServiceAddress("http://one", "t"), {"ROAMCAST_KEYS": "/k"}) == Path("/k")


def test_reach_rules_are_read_and_changed_from_a_terminal(
    running: RunningService, tmp_path: Path
) -> None:
    asyncio.run(_known(running, tmp_path / "rita.keys"))

    def reach(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "roamcast", "reach", "--as", "rita", *options]
        return subprocess.run(
            [*command, "--data", str(running.data)], capture_output=True, text=True, check=False
        )

    night = ("--quiet", "22:00-07:00", "--zone", "+01:00")
    told = reach("--stop", "ann", "--past-hours", "2", *night, "--json").stdout
    rules = json.loads(told)
    assert (rules["stopped"], rules["past_s"]) == (["ann"], 7_200)
    spans = [(one["start_min"], one["end_min"], one["offset_min"]) for one in rules["quiet"]]
    assert spans == [(1_320, 1_440, 60), (0, 420, 60)]
    assert "stopped         nobody" in reach("--allow", "ann").stdout
    refused = reach("--quiet", "22-7")
    assert refused.returncode == 2
    assert "quiet hours are such as 22:00-07:00" in refused.stderr


async def _known(running: RunningService, keys: Path) -> None:
    async with person(running, "rita", keys):
        pass
