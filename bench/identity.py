"""What does a trusted node cost, and does it lose or repeat a mail when it is killed?

Vids issued and resolved a second beside bare AES over as many blocks, in the same run. Deposits and
acknowledgements a second, as the machine alone and through the database that syncs. Then a node in
a process of its own is killed (kill -9) under load, again and again: every mail that was
acknowledged must be in its mailbox, and none may be there that was fetched. Rates are by CPU time,
except where the disk is what is measured.
"""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from roamcast.identity.credentials import VidKeys
from roamcast.identity.keys import new_keys
from roamcast.identity.pseudonyms import HANDLE, new_handles, open_vids, seal
from roamcast.identity.trusted.mailboxes import AckMail, Deposit, SealedParcel
from roamcast.identity.trusted.node import TrustedNode
from roamcast.identity.trusted.register import EnrolPerson
from roamcast.identity.trusted.settings import TrustSettings
from roamcast.lab.report import Claim, Report, Steps
from roamcast.live.trust.host import RunningTrust
from roamcast.model.machine import Store, Stored

TITLE = "a trusted node: vids and mails a second, and 0 lost and 0 twice under kill -9"

NODE = "trust.example"
HOUR_US = 3_600_000_000
SETTINGS = TrustSettings(mails_max=1_000_000, seen_max=1_000_000, mail_bytes_max=1 << 30)
PEOPLE = 8


def vids(count: int) -> list[dict[str, Any]]:
    """Seal and open a column of vids beside AES alone."""
    keys = new_keys(NODE, os.urandom)
    handles = new_handles(count, os.urandom).cast(HANDLE)
    blocks = os.urandom(16 * count)
    sealed: list[pa.Array] = []

    def bare() -> None:
        encryptor = Cipher(algorithms.AES(keys.key), modes.ECB()).encryptor()  # noqa: S305
        encryptor.update(blocks)

    timed = {
        "bare AES (peer)": _cpu(bare),
        "vids issued": _cpu(lambda: sealed.append(seal(handles, keys, os.urandom))),
        "vids resolved": _cpu(lambda: open_vids(sealed[0], keys)),
    }
    assert open_vids(sealed[0], keys).equals(handles)
    peer = timed["bare AES (peer)"]
    return [
        {"measured": name, "per_cpu_s": round(count / spent), "times_aes": round(spent / peer, 1)}
        for name, spent in timed.items()
    ]


def machine(count: int) -> list[dict[str, Any]]:
    """Deposit and acknowledge without a disk."""
    node = TrustedNode(
        NODE,
        now=1,
        load=lambda _: {},
        private=bytes(32),
        random_bytes=os.urandom,
        settings=SETTINGS,
    )

    def perform(effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, Store):
                perform(node.receive(Stored(effect.token), 1))

    perform(node.advance(1))
    perform(node.receive(EnrolPerson(1, "ada"), 1))
    handles = pa.array([node.handle_of("ada")] * count, HANDLE)
    own: list[str] = seal(handles, node._epochs.keys, os.urandom).to_pylist()  # noqa: SLF001

    def deposits() -> None:
        for number, vid in enumerate(own):
            parcel = SealedParcel(vid, b"m" * 300)
            perform(node.receive(Deposit(2, f"c{number}", "a", "t", HOUR_US, 0, (parcel,)), 1))

    def acks() -> None:
        for number in range(count):
            perform(node.receive(AckMail(3, "ada", f"c{number}"), 1))

    timed = {"mails in, machine alone": _cpu(deposits), "mails out, machine alone": _cpu(acks)}
    assert node.mails_of("ada") == []
    return [{"measured": name, "per_cpu_s": round(count / spent)} for name, spent in timed.items()]


def stored(folder: Path, count: int) -> list[dict[str, Any]]:
    """Deposit and acknowledge through the database, 100 at a time; its syncs are the wall's."""

    async def all_of() -> tuple[float, float]:
        trust = RunningTrust.open(folder, NODE, SETTINGS)
        trust.start()
        own = await _drawn(trust, "ada")
        until = trust.clock() + HOUR_US

        async def deposit(number: int) -> None:
            parcel = SealedParcel(own[number % len(own)], b"m" * 300)
            await trust.deposit(Deposit(0, f"c{number}", "a", "t", until, 0, (parcel,)))

        async def timed(make: Callable[[int], Any]) -> float:
            began = perf_counter()
            for first in range(0, count, 100):
                await asyncio.gather(*(make(number) for number in range(first, first + 100)))
            return perf_counter() - began

        into = await timed(deposit)
        out = await timed(lambda number: trust.ack("ada", f"c{number}"))
        assert trust.node.mails_of("ada") == []
        await trust.stop()
        return into, out

    into, out = asyncio.run(all_of())
    return [
        {"measured": "mails in, synced, 100 at a time", "per_wall_s": round(count / into)},
        {"measured": "mails out, synced, 100 at a time", "per_wall_s": round(count / out)},
    ]


CHILD = """
import asyncio, sys
from pathlib import Path
from bench.identity import under_load
asyncio.run(under_load(Path(sys.argv[1]), int(sys.argv[2])))
"""


async def under_load(folder: Path, turn: int) -> None:
    """Deposit and acknowledge for ever, and print each answer; the parent kills this process."""
    trust = RunningTrust.open(folder, NODE, SETTINGS)
    trust.start()
    own = {name: await _drawn(trust, name) for name in _people()}
    until = trust.clock() + HOUR_US
    number = 0
    while True:
        number += 1
        cast = f"c{turn}-{number}"
        parcels = tuple(SealedParcel(vid, b"m") for one in own.values() for vid in one[:4])
        await trust.deposit(Deposit(0, cast, "a", "t", until, 0, parcels))
        sys.stdout.write(f"in {cast}\n")
        sys.stdout.flush()
        if number % 2:
            for name in own:
                sys.stdout.write(f"try {name} {cast}\n")
                await trust.ack(name, cast)
                sys.stdout.write(f"out {name} {cast}\n")
            sys.stdout.flush()


def killed(folder: Path, kills: int, step: Callable[[int], None]) -> tuple[int, int, int]:
    """Kill the node again and again: mails acknowledged, of those lost, and fetched ones there."""
    arrived: dict[str, None] = {}
    asked: set[tuple[str, str]] = set()
    fetched: set[tuple[str, str]] = set()
    for turn in range(kills):
        child = subprocess.Popen(  # noqa: S603 — our own interpreter and code
            [sys.executable, "-c", CHILD, str(folder), str(turn)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        lines: list[str] = []
        most = 1 + secrets.randbelow(60)
        for line in child.stdout:
            lines.append(line)
            if len(lines) == most:
                child.send_signal(signal.SIGKILL)
        child.wait()
        for line in lines:
            kind, *told = line.split()
            if kind == "in" and line.endswith("\n"):
                arrived[told[0]] = None
            elif kind == "try" and len(told) == 2:
                asked.add((told[0], told[1]))
            elif kind == "out" and len(told) == 2 and line.endswith("\n"):
                fetched.add((told[0], told[1]))
        step(1)
    found = asyncio.run(_found(folder))
    lost = [
        (name, cast)
        for cast in arrived
        for name in _people()
        if (name, cast) not in asked and found[name].count(cast) != 1
    ]
    again = [(name, cast) for name, cast in fetched if cast in found[name]]
    again += [(name, cast) for name, own in found.items() for cast in own if own.count(cast) > 1]
    return len(arrived) * PEOPLE, len(lost), len(again)


async def _found(folder: Path) -> dict[str, list[str]]:
    trust = RunningTrust.open(folder, NODE, SETTINGS)
    trust.start()
    found = {name: [mail.cast for mail in trust.node.mails_of(name)] for name in _people()}
    await trust.stop()
    return found


async def _drawn(trust: RunningTrust, name: str) -> list[str]:
    from roamcast.identity.credentials import vid_of

    while not trust.node.ready:
        await asyncio.sleep(0.005)
    keys = [VidKeys(bytes(32), bytes(32))] * SETTINGS.pool_size
    return [vid_of(one) for one in await trust.draw(name, keys)]


def _people() -> list[str]:
    return [f"person-{number}" for number in range(PEOPLE)]


def _cpu(work: Callable[[], Any]) -> float:
    began = process_time()
    work()
    return max(process_time() - began, 1e-9)


def run(quick: bool, progress: Steps) -> Report:
    kills = 10 if quick else 200
    count = 200_000 if quick else 1_000_000
    mails = 2_000 if quick else 20_000
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, progress("kills", kills) as step:
        rows = [*vids(count), *machine(mails), *stored(Path(folder) / "synced", mails)]
        acknowledged, lost, again = killed(Path(folder) / "killed", kills, step)
    rows.append({"measured": f"kill -9, {kills} times", "mails": acknowledged})
    return Report(
        name="identity",
        parameters={"vids": count, "mails": mails, "kills": kills},
        rows=rows,
        claims=[
            Claim(claim="mails lost that were acknowledged", ours=lost, bar=0, held=lost == 0),
            Claim(claim="mails there that were fetched", ours=again, bar=0, held=again == 0),
        ],
    )
