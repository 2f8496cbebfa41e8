"""A broker, a trusted node and a person as real processes: what passes each is written down.

No subject is at the broker; no place, filter or plaintext is at the trusted node. Each leak is
planted as well, and seen.
"""

import asyncio
import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from roamcast.client import Session, connect
from roamcast.identity.key_store import KeyStore
from roamcast.identity.letters import Letter, encode_letter
from roamcast.identity.sealing import seal_payload
from tests.live.capture import Capture, visible
from tests.running_service import RunningService

pytestmark = [pytest.mark.process, pytest.mark.slow]

SUBJECT, PLACE, TEXT = "subject-of-ada", "place-of-ada/room-7", "what is said to her alone"
FILTER = f"within(place, '{PLACE}')"


class World(NamedTuple):
    """Both processes, and the proxies before them."""

    broker: RunningService
    trust: RunningService
    at_broker: Capture
    at_trust: Capture
    keys: Path

    def leaks(self) -> set[str]:
        """Say what is where it must not be: on a wire, or on a disk."""
        broker = self.at_broker.read() + disk_of(self.broker.data)
        trust = self.at_trust.read() + disk_of(self.trust.data)
        found = set()
        if SUBJECT.encode() in broker:
            found.add("subject at the broker")
        for name, secret in (("place", PLACE), ("filter", "within("), ("plaintext", TEXT)):
            if secret.encode() in trust:
                found.add(f"{name} at the trusted node")
        return found


def disk_of(folder: Path) -> bytes:
    return b"".join(one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for name in ("trust", "broker"):
        (tmp_path / name).mkdir()
    node = '[identity]\nnode = "trust.example"\n'
    token_file = tmp_path / "deposit.token"
    with (
        RunningService(tmp_path / "trust", node, command=("trust",)) as trust,
        Capture(trust.port) as at_trust,
    ):
        token_file.touch(0o600)
        token_file.write_text(trust.token("broker", ("deposit",)))
        settings = (
            f'[identity]\nnode = ""\naccept = {{ "trust.example" = "{trust.greeting["key"]}" }}\n'
            f'[identity.mail."trust.example"]\nurl = "{at_trust.url}"\n'
            f'token_file = "{token_file}"\n'
        )
        with (
            RunningService(tmp_path / "broker", settings) as broker,
            Capture(broker.port) as at_broker,
        ):
            yield World(broker, trust, at_broker, at_trust, tmp_path / "ada.keys")


async def walked(world: World) -> Session:
    """Appear twice, watch, and ask, as somebody without a name."""
    token = world.trust.token(SUBJECT, ("subscribe",))
    me = await connect(
        world.at_broker.url,
        token,
        anonymous=True,
        trust=(world.at_trust.url, token),
        keys=world.keys,
    )
    await me.appear(PLACE, type="person")
    await me.appear(PLACE + "/desk")
    assert len(await me.who(FILTER)) == 1
    return me


def deposit(world: World, vid: str, cast: str, *, kind: str = "text", plain: bool = False) -> None:
    """Write as the broker does; `plain`: forget to seal."""
    store = KeyStore.open(world.keys)
    own = store.of(vid)
    store.close()
    assert own is not None
    letter = encode_letter(Letter(TEXT.encode(), reason=FILTER))
    sealed = letter if plain else seal_payload(letter, own.secrets.public, cast, vid)
    body = {
        "cast": cast, "sender": "ann", "kind": kind, "back_s": 3_600,
        "expires_us": time.time_ns() // 1_000 + 3_600_000_000,
        "parcels": [{"vid": vid, "sealed": base64.b64encode(sealed).decode()}],
    }  # fmt: skip
    broker = world.trust.token("broker", ("deposit",))
    answer = world.trust.ask("POST", "/deposits", broker, body, port=world.at_trust.port)
    assert answer.status == 200, answer


def test_neither_side_learns_the_others_half_and_each_planted_leak_is_seen(world: World) -> None:
    asyncio.run(_neither_side_learns(world))


async def _neither_side_learns(world: World) -> None:
    me = await walked(world)
    first, *_ = [one.vid for one in await me.who(FILTER)]
    body = {"filter": FILTER, "text": TEXT}
    sent = world.broker.ask(
        "POST", "/casts", world.broker.operator, body, port=world.at_broker.port
    )
    assert sent.status == 201, sent
    async with asyncio.timeout(30):
        async for mail in me.inbox():
            assert mail.text == TEXT
            assert mail.letter.reason == FILTER
            # The access node signed it, and the person met that node when they registered.
            assert (mail.doubt, mail.letter.node) == ("", "roamcast")
            assert f"was within {PLACE}" in mail.receipt
            break
    assert (await me.reach.stop("operator")).stopped == ("operator",)
    # The captures hold what passed: the place and the text at the broker, the name at the node.
    assert TEXT.encode() in world.at_broker.read()
    assert PLACE.encode() in world.at_broker.read()
    assert SUBJECT.encode() in world.at_trust.read()
    assert first.encode() in disk_of(world.trust.data) + world.at_trust.read()
    assert world.leaks() == set()
    deposit(world, first, "c2", kind=PLACE)
    assert world.leaks() == {"place at the trusted node"}
    deposit(world, first, "c3", plain=True)
    assert world.leaks() >= {"plaintext at the trusted node", "filter at the trusted node"}
    assert "subject at the broker" not in world.leaks()
    await me.close()
    token = world.broker.token(SUBJECT, ("subscribe", "publish"))
    async with connect(world.at_broker.url, token) as named:
        await named.appear(PLACE)
    assert "subject at the broker" in world.leaks()


def test_the_capture_reads_behind_masks_and_base64() -> None:
    mask, secret = b"abcd", b"a name that is masked"
    body = bytes(byte ^ mask[n % 4] for n, byte in enumerate(secret))
    head = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"
    flow = head + bytes([0x82, 0x80 | len(body)]) + mask + body
    assert secret not in flow
    assert secret in b"\n".join(visible(flow))
    token = base64.urlsafe_b64encode(b'{"sub":"somebody"}').rstrip(b"=")
    assert b"somebody" in b"\n".join(visible(b"authorization: Bearer x." + token + b".y"))
