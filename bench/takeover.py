"""How soon is everything well again when the host that serves is gone, and another takes over?

Two hosts run `roamcast keep`: two ports and data folders of this machine. Sessions of the SDK move
about and watch everything, and others put and remove contexts by HTTP. Then kill -9 of the host
that serves, its keeper included; when all is well the host comes back, stands by, and it is the
other one's turn. Measured from the kill, as in `kill`.
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from time import monotonic

import msgspec

from bench.kill import LOAD_S, PATIENCE_S, Crowd, Ready, Round, until
from roamcast.client import connect
from roamcast.client.asking import Asking
from roamcast.errors import RoamcastError
from roamcast.lab.report import Claim, Report, Steps
from roamcast.live.auth.admission import SCOPES, TokenKeys
from roamcast.transport.address import ServiceAddress
from roamcast.transport.http import HttpClient

TITLE = "the host that serves is gone: how soon another one has everything, and what is lost"

BAR_S = 10.0
FOLLOWER = b'roamcast_held{what="followers"} 1.0'


class Host:
    """One host: its keeper, and the service if it serves."""

    def __init__(self, name: str, folder: Path, port: int) -> None:
        self.name = name
        self.data = folder / name
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.process: asyncio.subprocess.Process | None = None
        self.pid = 0

    async def keep(self, settings: Path) -> None:
        """Start the keeper."""
        command = ("-m", "roamcast", "keep", "--json", "--settings", str(settings))
        where = ("--name", self.name, "--port", str(self.port), "--data", str(self.data))
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, *command, *where, stdout=asyncio.subprocess.PIPE
        )

    async def ready(self) -> None:
        """Wait until this host serves."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise RoamcastError(f"the keeper of host {self.name} ended")
        self.pid = msgspec.json.decode(line, type=Ready).pid

    async def die(self) -> None:
        """End everything of this host at once."""
        assert self.process is not None
        self.process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        await self.process.wait()


class Pair:
    """Two hosts with the same keys and the same secret."""

    def __init__(self, folder: Path, extra: str = "") -> None:
        self.hosts = [Host(name, folder, free_port()) for name in ("a", "b")]
        secret, self.settings = folder / "secret", folder / "roamcast.toml"
        secret.write_text(os.urandom(32).hex(), encoding="utf-8")
        secret.chmod(0o600)
        lines = [f'{one.name} = "{one.url}"' for one in self.hosts]
        self.settings.write_text(
            "\n".join(
                (
                    "[journal]\non = false\n[limits]\nrequests_burst = 1000000",
                    f'[cluster]\nsecret_file = "{secret}"\n{extra}\n[cluster.replicas]',
                    *lines,
                )
            ),
            encoding="utf-8",
        )
        first, second = (one.data for one in self.hosts)
        keys = TokenKeys.open(first)
        now = int(first.stat().st_mtime) * 1_000_000
        self.token = keys.issue("operator", SCOPES, lifetime_s=86_400, now=now)
        second.mkdir(mode=0o700)
        (second / "keys.json").write_bytes((first / "keys.json").read_bytes())
        (second / "keys.json").chmod(0o600)

    def asking(self, host: Host) -> Asking:
        """Ask one host and no other."""
        return Asking(HttpClient(ServiceAddress(host.url, self.token)))

    async def followed(self, host: Host) -> None:
        """Wait until another host has everything that this one acknowledged."""
        async with asyncio.timeout(PATIENCE_S):
            while FOLLOWER not in await asyncio.to_thread(self._measured, host):
                await asyncio.sleep(0.05)

    def _measured(self, host: Host) -> bytes:
        import urllib.request

        asked = urllib.request.Request(f"{host.url}/metrics")  # noqa: S310
        asked.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:  # noqa: S310
            page: bytes = answer.read()
        return page


def free_port() -> int:
    """Find a port that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.asynccontextmanager
async def pair(folder: Path, extra: str = "") -> AsyncIterator[Pair]:
    """Run two hosts until one serves and the other follows; the first of `hosts` serves."""
    both = Pair(folder, extra)
    try:
        await both.hosts[0].keep(both.settings)
        await both.hosts[0].ready()
        await both.hosts[1].keep(both.settings)
        await both.followed(both.hosts[0])
        yield both
    finally:
        for host in both.hosts:
            if host.process is not None and host.process.returncode is None:
                host.process.terminate()
                await host.process.wait()


async def storm(
    folder: Path, *, rounds: int, people: int, seed: int, step: Callable[[int], None]
) -> list[Round]:
    """Let the host that serves die so many times under load."""
    draw = random.Random(seed)
    found: list[Round] = []
    async with pair(folder) as both, contextlib.AsyncExitStack() as stack:
        serving, other = both.hosts
        connections = [
            connect(serving.url, both.token, device=f"d{n}", timeout_s=PATIENCE_S)
            for n in range(people)
        ]
        sessions = [await stack.enter_async_context(one) for one in connections]
        crowd = Crowd(sessions, seed)
        for _ in range(rounds):
            crowd.start()
            await asyncio.sleep(LOAD_S * (0.5 + draw.random()))
            await serving.die()
            killed_at = monotonic()
            resting = asyncio.create_task(crowd.rest())
            await other.ready()
            restart_s = monotonic() - killed_at
            await until(lambda: all(one.connected for one in sessions))
            linked_s = monotonic() - killed_at
            await resting
            lost = await crowd.lost()
            while not lost and not (crowd.right() and await crowd.known() and crowd.right()):
                await asyncio.sleep(0.01)
            equal_s = monotonic() - killed_at
            found.append(Round(restart_s, linked_s, equal_s, crowd.acknowledged, lost))
            await serving.keep(both.settings)
            serving, other = other, serving
            await both.followed(serving)
            step(1)
    return found


def run(quick: bool, progress: Steps) -> Report:
    """Let hosts die, and see how soon all is well."""
    rounds, people = (2, 10) if quick else (10, 50)
    with tempfile.TemporaryDirectory() as folder, progress("take-overs", rounds) as step:
        found = asyncio.run(storm(Path(folder), rounds=rounds, people=people, seed=1, step=step))
    slowest = max(one.equal_s for one in found)
    lost = sum(one.lost for one in found)
    claims = [
        Claim(
            "all clients are at the other host and equal within so many seconds of every kill",
            round(slowest, 2),
            slowest <= BAR_S,
            bar=BAR_S,
        ),
        Claim("nothing acknowledged is lost", lost, lost == 0, bar=0),
    ]
    rows = [
        {
            "take-over": number,
            **{name: round(value, 2) for name, value in msgspec.to_builtins(one).items()},
        }
        for number, one in enumerate(found, start=1)
    ]
    parameters = {"take-overs": rounds, "sessions": people, "writers": 4, "silent_s": 3.0}
    return Report("takeover", parameters, rows, claims)
