"""`serve --demo --brokers N`: several nodes as processes of one machine, and people between them.

Each node has its own data folder, key, archive and port, and serves one building of the demo
campus; the first one also the hall and the yard. The trusted node is a process of its own, whose
vids all accept and where all deposit mail. All are linked with each other. Who walks from one
building to another is withdrawn at the old node and published at the new one; some come without a
name, so that a cast at any node reaches them wherever they were. A process that dies is started
again; Ctrl-C ends all.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from roamcast.errors import RoamcastError, SettingsError
from roamcast.files import OWNER_ONLY, write_whole
from roamcast.model.contexts import path_within

BROKERS_MAX: Final = 3
"""One for each building of the campus."""

TRUST: Final = "trust.localhost"
SETTINGS_FILE: Final = "settings.toml"
DEPOSIT_FILE: Final = "deposit.token"
TOKEN_S: Final = 365 * 86_400
READY_S: Final = 300.0
AGAIN_S: Final = 1.0
"""How long after its death a node is started again."""

END_S: Final = 30.0


class DemoNode:
    """One node: its folder, places and port, and the process that runs it."""

    def __init__(
        self, folder: Path, name: str, places: Sequence[str], port: int, command: str = "serve"
    ) -> None:
        """`command`: `trust` for a trusted node, which serves no places."""
        self.command = command
        self.folder = folder
        self.name = name
        self.places = tuple(places)
        self.port = port
        self.token = ""
        self.process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where it is reached."""
        return f"http://127.0.0.1:{self.port}"

    def serves(self, place: str) -> bool:
        """Whether a place is one of its own."""
        return any(path_within(place, own) for own in self.places)

    async def start(self) -> None:
        """Start its process, and wait until it is ready."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "roamcast", self.command, "--json",
            "--settings", str(self.folder / SETTINGS_FILE),
            "--port", str(self.port), "--data", str(self.folder),
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us: we end them in order
        )  # fmt: skip
        assert self.process.stdout is not None
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), READY_S)
            self.token = json.loads(line)["token"]
        except (TimeoutError, ValueError, KeyError):
            raise RoamcastError(f"node {self.name} did not start: see above") from None

    async def end(self) -> None:
        """End its process cleanly."""
        process = self.process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), END_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def nodes_of(data: Path, count: int, port: int) -> list[DemoNode]:
    """Lay out the nodes, the trusted one last, and write their settings; folders are used again."""
    if not 2 <= count <= BROKERS_MAX:
        raise SettingsError(f"--brokers is between 2 and {BROKERS_MAX}, one for each building")
    ports = [port + number for number in range(count + 1)] if port else _free_ports(count + 1)
    nodes = []
    for number in range(count):
        places = [f"campus/b{number + 1}"]
        if number == 0:
            places += ["campus/hall", "campus/lab", "campus/yard"]
        if number == count - 1:
            places += [f"campus/b{more}" for more in range(count + 1, BROKERS_MAX + 1)]
        name = f"b{number + 1}"
        nodes.append(DemoNode(data / name, name, places, ports[number]))
    trust = DemoNode(data / "trust", "trust", (), ports[-1], "trust")
    for node in (*nodes, trust):
        node.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys = {node.name: _node_key(node.folder) for node in nodes}
    keys[trust.name] = _trust_key(trust.folder)
    for node in nodes:
        token = _deposit_token(trust.folder, node.name).encode()
        write_whole(node.folder / DEPOSIT_FILE, token, mode=OWNER_ONLY)
        text = _settings(node, nodes, keys, trust)
        (node.folder / SETTINGS_FILE).write_text(text, encoding="utf-8")
    text = f"[identity]\nnode = {json.dumps(TRUST)}\n"
    (trust.folder / SETTINGS_FILE).write_text(text, encoding="utf-8")
    return [*nodes, trust]


def _deposit_token(folder: Path, name: str) -> str:
    from roamcast.live.auth.admission import TokenKeys
    from roamcast.transport.driver import wall_clock

    now = wall_clock()()
    return TokenKeys.open(folder).issue(name, ("deposit",), lifetime_s=TOKEN_S, now=now)


def _settings(
    node: DemoNode, nodes: Sequence[DemoNode], keys: dict[str, str], trust: DemoNode
) -> str:
    quoted = json.dumps  # TOML's basic strings are JSON's
    lines = [
        "[server]",
        f"name = {quoted(node.name)}",
        'host = "127.0.0.1"',
        f"port = {node.port}",
        f"data = {quoted(str(node.folder))}",
        "[past]",
        f"archive = {quoted(str(node.folder / 'archive'))}",
        "[identity]",
        'node = ""',
        f"accept = {{ {quoted(TRUST)} = {quoted(keys[trust.name])} }}",
        f"[identity.mail.{quoted(TRUST)}]",
        f"url = {quoted(trust.url)}",
        f"token_file = {quoted(str(node.folder / DEPOSIT_FILE))}",
        "[overlay]",
        f"node = {quoted(node.name)}",
        f"url = {quoted(node.url)}",
        f"areas = {quoted(list(node.places))}",
    ]
    for other in nodes:
        if other is not node:
            lines += [
                f"[overlay.neighbours.{other.name}]",
                f"key = {quoted(keys[other.name])}",
                f"urls = [{quoted(other.url)}]",
            ]
    return "\n".join(lines) + "\n"


def _node_key(folder: Path) -> str:
    from roamcast.live.overlay.node import public_text

    return public_text(folder)


def _trust_key(folder: Path) -> str:
    from roamcast.identity.credentials import public_key
    from roamcast.live.trust.host import KEY_FILE, load_private
    from roamcast.overlay.links.proof import key_text

    return key_text(public_key(load_private(folder / KEY_FILE)))


def _free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


class Walkers:
    """Publishes people at the node of the building that they are in, as one session would."""

    def __init__(self, nodes: Sequence[DemoNode], sessions: dict[str, Any]) -> None:
        self._nodes = nodes
        self._sessions = sessions
        self._at: dict[str, str] = {}

    async def publish(self, vid: str, place: str, **known: Any) -> None:
        """Withdraw somebody at the old node, and publish them at the new one."""
        node = next((one.name for one in self._nodes if one.serves(place)), self._nodes[0].name)
        before = self._at.get(vid)
        if before is not None and before != node:
            await self._try(self._sessions[before].withdraw(vid))
        self._at[vid] = node
        await self._try(self._sessions[node].publish(vid, place=place, **known))

    async def _try(self, work: Any) -> None:
        """Wait no longer than a moment: a node that is down gets it when it is back."""
        with contextlib.suppress(RoamcastError, TimeoutError):
            await asyncio.wait_for(work, AGAIN_S)


def run(data: Path, count: int, port: int, people: int, *, ready: Callable[[Any], None]) -> None:
    """Run all nodes and the people until a signal ends them; `ready` prints what to try."""
    asyncio.run(_run(nodes_of(data, count, port), people, ready))


async def _run(nodes: list[DemoNode], people: int, ready: Callable[[Any], None]) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, over.set)
    tasks: list[asyncio.Task[Any]] = []
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        ready(nodes)
        tasks = [asyncio.create_task(_keep(node)) for node in nodes]
        tasks.append(asyncio.create_task(_walk(nodes, people)))
        await over.wait()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(node.end() for node in nodes))


async def _keep(node: DemoNode) -> None:
    """Start a node again whenever it dies."""
    while True:
        assert node.process is not None
        await node.process.wait()
        print(f"node {node.name} died; it is started again", file=sys.stderr, flush=True)  # noqa: T201
        await asyncio.sleep(AGAIN_S)
        await node.start()


async def _walk(nodes: Sequence[DemoNode], people: int) -> None:
    from roamcast.client import connect
    from roamcast.commands._demo import NAME, move_about
    from roamcast.commands._demo_people import NAMELESS, NamelessPerson

    *brokers, trust = nodes

    def url_of(place: str) -> str:
        return next((one.url for one in brokers if one.serves(place)), brokers[0].url)

    nameless = {
        person: NamelessPerson(url_of, NAME.format(person), trust.folder, trust.url)
        for person in range(min(NAMELESS, people))
    }
    async with contextlib.AsyncExitStack() as stack:
        sessions = {}
        for node in brokers:
            made = connect(node.url, node.token, device="campus")
            sessions[node.name] = await stack.enter_async_context(made)
        await move_about(Walkers(brokers, sessions), people, nameless=nameless)


def described(nodes: Sequence[DemoNode]) -> list[dict[str, Any]]:
    """Give what to know of each node, as JSON has it."""
    return [
        {
            "node": node.name,
            "url": node.url,
            "token": node.token,
            "data": str(node.folder),
            "places": node.places,
            "pid": None if node.process is None else node.process.pid,
        }
        for node in nodes
    ]


def what_to_try(nodes: Sequence[DemoNode], program: str) -> str:
    """Say what runs, and what to try."""
    *brokers, trust = nodes
    first, last = brokers[0], brokers[-1]
    shown = "\n".join(
        f"  {node.name}  {node.url}  {', '.join(node.places)}  process "
        f"{node.process.pid if node.process else '-'}"
        for node in nodes
    )
    where = f"--data {os.fspath(first.folder)}"
    return (
        f"{len(brokers)} brokers are ready, linked with each other, and a trusted node:\n{shown}\n"
        f"token of {first.name}: {first.token}\n\n"
        f"Open {first.url} in a browser, and give it the token.\n\n"
        "Or try, in another terminal:\n"
        f"  {program} brokers {where}\n"
        f"  {program} who --where \"within(place, '{last.places[0]}')\" --data {last.folder}\n"
        f"  {program} place printer --place {last.places[0]}/1 {where}   "
        f"(refused: {last.name} serves it)\n"
        f"  {program} cast --where \"within(place, 'campus')\" 'Hello, everybody' {where}\n"
        f"  {program} inbox --as visitor-0001 --data {trust.folder}\n"
        f"  kill -9 {first.process.pid if first.process else '-'}   (it is started again)\n\n"
        "Ctrl-C stops all."
    )
