"""`serve --demo --brokers N`: several nodes as processes of one machine, and people between them.

Each node has its own data folder, key, archive and port, and serves one building of the demo
campus. The first one has the data folder itself, so that commands find it as they find a service on
its own; it also serves the hall, the lab and the yard, and runs the trusted node, whose vids all
accept and where all deposit mail. Nodes have copies of its `keys.json`: a token holds at all of
them (0161). All are linked with each other. Who walks from one building to another is withdrawn at
the old node and published at the new one; some come without a name, so that a cast at any node
reaches them wherever they were. A process that dies is started again; Ctrl-C ends all.
"""

import asyncio
import contextlib
import json
import shutil
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
TRUST_FOLDER: Final = "trust"
PLACES_FILE: Final = "places.geojson"
SUMMARY_BYTES: Final = 1_024
"""A node's people are all in one building: finer bounds would change with every step of theirs."""

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


def nodes_of(
    data: Path, count: int, ports: Sequence[int] = (), *, trust_apart: bool = False
) -> list[DemoNode]:
    """Lay out the nodes and write their settings; folders are used again.

    `ports` are those of the first nodes; the others get free ones. With `trust_apart` the trusted
    node is a process of its own, the last of them, and the first node has a folder as the others.
    """
    if not 2 <= count <= BROKERS_MAX:
        raise SettingsError(f"--brokers is between 2 and {BROKERS_MAX}, one for each building")
    ports = [*ports, *_free_ports(count + 1 - len(ports))]
    nodes = []
    for number in range(count):
        places = [f"campus/b{number + 1}"]
        if number == 0:
            places += ["campus/hall", "campus/lab", "campus/yard"]
        if number == count - 1:
            places += [f"campus/b{more}" for more in range(count + 1, BROKERS_MAX + 1)]
        name = f"b{number + 1}"
        folder = data if number == 0 and not trust_apart else data / name
        nodes.append(DemoNode(folder, name, places, ports[number]))
    trust = nodes[0]
    if trust_apart:
        trust = DemoNode(data / TRUST_FOLDER, "trust", (), ports[-1], "trust")
    for folder in (*(node.folder for node in nodes), data / TRUST_FOLDER):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys = {node.name: _node_key(node.folder) for node in nodes}
    keys[TRUST] = _trust_key(data / TRUST_FOLDER)
    (data / PLACES_FILE).write_bytes(_places())
    for node in nodes:
        if node is not trust:
            token = _deposit_token(trust.folder, node.name).encode()
            write_whole(node.folder / DEPOSIT_FILE, token, mode=OWNER_ONLY)
        text = _settings(node, nodes, keys, trust, data / PLACES_FILE)
        (node.folder / SETTINGS_FILE).write_text(text, encoding="utf-8")
    _share_keys(nodes)  # at last: a token that lasts lets its key last
    if not trust_apart:
        return nodes
    text = f"[identity]\nnode = {json.dumps(TRUST)}\n"
    (trust.folder / SETTINGS_FILE).write_text(text, encoding="utf-8")
    return [*nodes, trust]


def _places() -> bytes:
    from roamcast.commands._demo import campus_places
    from roamcast.model.places_geojson import write_places

    return write_places(campus_places())


def _share_keys(nodes: Sequence[DemoNode]) -> None:
    """Give all nodes the keys of the first: a token of one holds at all."""
    from roamcast.live.auth.admission import TokenKeys
    from roamcast.live.config.settings import KEY_FILE

    first, *others = nodes
    TokenKeys.open(first.folder)
    for node in others:
        shutil.copy(first.folder / KEY_FILE, node.folder / KEY_FILE)


def _deposit_token(folder: Path, name: str) -> str:
    from roamcast.live.auth.admission import TokenKeys
    from roamcast.transport.driver import wall_clock

    now = wall_clock()()
    return TokenKeys.open(folder).issue(name, ("deposit",), lifetime_s=TOKEN_S, now=now)


def _settings(
    node: DemoNode,
    nodes: Sequence[DemoNode],
    keys: dict[str, str],
    trust: DemoNode,
    places: Path,
) -> str:
    quoted = json.dumps  # TOML's basic strings are JSON's
    identity = [
        "[identity]",
        'node = ""',
        f"accept = {{ {quoted(TRUST)} = {quoted(keys[TRUST])} }}",
        f"[identity.mail.{quoted(TRUST)}]",
        f"url = {quoted(trust.url)}",
        f"token_file = {quoted(str(node.folder / DEPOSIT_FILE))}",
    ]
    lines = [
        "[server]",
        f"name = {quoted(node.name)}",
        'host = "127.0.0.1"',
        f"port = {node.port}",
        f"data = {quoted(str(node.folder))}",
        f"places = {quoted(str(places))}",
        "[past]",
        f"archive = {quoted(str(node.folder / 'archive'))}",
        "store_hours = 1.0",
        *(["[identity]", f"node = {quoted(TRUST)}"] if node is trust else identity),
        "[overlay]",
        f"summary_bytes = {SUMMARY_BYTES}",
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

    async def withdraw(self, vid: str) -> None:
        """Take somebody off the map."""
        await self._try(self._sessions[self._at.pop(vid)].withdraw(vid))

    async def _try(self, work: Any) -> None:
        """Wait no longer than a moment: a node that is down gets it when it is back."""
        with contextlib.suppress(RoamcastError, TimeoutError):
            await asyncio.wait_for(work, AGAIN_S)


def run(
    data: Path,
    count: int,
    ports: Sequence[int],
    people: int,
    *,
    first_ready: Callable[[Any], None] | None = None,
    all_ready: Callable[[Any], None] | None = None,
) -> None:
    """Run all nodes and the people until a signal ends them.

    Each callback gets the nodes, when the first of them, or all, take requests.
    """
    asyncio.run(_run(nodes_of(data, count, ports), people, first_ready, all_ready))


async def _run(
    nodes: list[DemoNode],
    people: int,
    first_ready: Callable[[Any], None] | None,
    all_ready: Callable[[Any], None] | None,
) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    # A terminal that is closed hangs up, and the nodes are in sessions of their own.
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(one, over.set)
    running = asyncio.create_task(_running(nodes, people, first_ready, all_ready))
    waiting = asyncio.create_task(over.wait())
    try:
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (running, waiting):
            task.cancel()
        (failed, _) = await asyncio.gather(running, waiting, return_exceptions=True)
        await asyncio.gather(*(node.end() for node in nodes))
    if isinstance(failed, Exception):
        raise failed


async def _running(
    nodes: list[DemoNode],
    people: int,
    first_ready: Callable[[Any], None] | None,
    all_ready: Callable[[Any], None] | None,
) -> None:
    # The first one alone: on a fresh clone it compiles the kernels that all use.
    await nodes[0].start()
    if first_ready is not None:
        first_ready(nodes)
    await asyncio.gather(*(node.start() for node in nodes[1:]))
    if all_ready is not None:
        all_ready(nodes)
    await asyncio.gather(_walk(nodes, people), *(_keep(node) for node in nodes))


async def _keep(node: DemoNode) -> None:
    """Start a node again whenever it dies."""
    while True:
        assert node.process is not None
        await node.process.wait()
        print(f"node {node.name} died; it is started again", file=sys.stderr, flush=True)  # noqa: T201
        await asyncio.sleep(AGAIN_S)
        await node.start()


async def _walk(nodes: Sequence[DemoNode], people: int) -> None:
    """Let people walk about, watch the hall, and let a courier cross borders, until cancelled."""
    from roamcast.client import connect
    from roamcast.commands._demo import (
        NAME,
        WATCHERS_MAX,
        RenewedVids,
        campus_places,
        move_about,
        without_names,
    )
    from roamcast.commands._demo_courier import carry
    from roamcast.commands._demo_people import NamelessPerson
    from roamcast.commands._demo_watchers import watch_hall

    first, places = nodes[0], campus_places()

    def url_of(place: str) -> str:
        return next((one.url for one in nodes if one.serves(place)), first.url)

    nameless = {
        person: NamelessPerson(url_of, NAME.format(person), first.folder, first.url)
        for person in without_names(people)
    }
    async with contextlib.AsyncExitStack() as stack:
        sessions = {}
        for node in nodes:
            made = connect(node.url, node.token, device="campus")
            sessions[node.name] = await stack.enter_async_context(made)
        walkers = RenewedVids(Walkers(nodes, sessions))
        await asyncio.gather(
            move_about(walkers, people, places, nameless),
            watch_hall(first.url, first.folder, min(people, WATCHERS_MAX)),
            carry({node.url: node.name for node in nodes}, first.token, places),
        )


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


def listed(nodes: Sequence[DemoNode]) -> str:
    """Say which nodes there are."""
    return "\n".join(f"  {node.name}  {node.url}  {', '.join(node.places)}" for node in nodes)
