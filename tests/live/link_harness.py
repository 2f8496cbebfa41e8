"""A map server and its clients in processes of their own, with real sockets between them.

`python -m tests.live.link_harness server|clients JSON` runs one process. It reads a command a line
and answers with a line of JSON. Unicast goes over plain TCP with a length before each frame; groups
go by UDP multicast, NATS or that same socket, through the very classes of the service and the SDK.
"""

import asyncio
import json
import os
import random
import struct
import sys
import traceback
from typing import Any

from roamcast.channels.client import MapClient, PublishObject, Watch
from roamcast.channels.link_messages import (
    LINK_PROTOCOL,
    Goodbye,
    Grouped,
    Tune,
    Welcome,
    settings_of,
)
from roamcast.channels.map_settings import MapSettings
from roamcast.channels.server import MapServer
from roamcast.client.driver import Driver, wall_clock
from roamcast.client.group_choice import ChosenGroups, chosen_groups
from roamcast.live.link_groups import groups_of
from roamcast.live.links import Links
from roamcast.live.settings import Channels, Limits
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Ignore, Listen, Multicast, Received, Send
from roamcast.model.wire import Message, Unreadable
from roamcast.sim.workloads._map_parts import Coarse

LENGTH = struct.Struct(">I")
ROOMS = tuple(f"lab/{floor}/{room}" for floor in (1, 2) for room in "abc")
PREFIX = "roamcast-test"


def frame_of(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


async def frames(reader: asyncio.StreamReader) -> Any:
    """Give every frame until the other end closes."""
    while True:
        try:
            (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            yield await reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return


class StreamSocket:
    """A TCP connection as the service's links see one."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    @property
    def waiting_bytes(self) -> int:
        return self._writer.transport.get_write_buffer_size()

    def write(self, framed: bytes) -> None:
        self._writer.write(framed)

    def hold(self, seconds: float) -> None:
        transport = self._writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        asyncio.get_running_loop().call_later(seconds, transport.resume_reading)

    def close(self, code: int, reason: str) -> None:
        del code, reason
        self._writer.close()


class ServerProcess:
    """One map server behind links."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.clock = wall_clock()
        self.policy = Coarse()
        now = self.clock()
        settings = MapSettings(subscribers_min=2)
        self.server = MapServer("server", epoch=now, now=now, settings=settings, policy=self.policy)
        self.driver = Driver(self.server, clock=self.clock, carry=self.carry)
        self.host = given["host"]
        channels = Channels(
            udp=given.get("udp", ""),
            udp_interface=given.get("interface", ""),
            nats=given.get("nats", ""),
        )
        secret, mark = os.urandom(32), os.urandom(4)
        self.ways = groups_of(channels, prefix=PREFIX, secret=secret, mark=mark)
        self.links = Links(
            server="server",
            epoch=now,
            settings=settings,
            limits=Limits(frames_per_s=100_000, frames_burst=100_000),
            secret=secret,
            give=self.driver.give,
            class_of=self.class_of,
            clock=self.clock,
            frame_of=frame_of,
            groups=self.ways,
            udp=channels.udp,
            nats=channels.nats,
            prefix=PREFIX,
            probe_us=int(given.get("probe_s", 0.25) * 1_000_000),
        )

    def class_of(self, group: str) -> str | None:
        use = self.server.desk.channels.get(group)
        return None if use is None else use.view_class

    def carry(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self.links.send(effect)
        elif isinstance(effect, Multicast):
            self.links.multicast(effect)

    async def start(self) -> dict[str, Any]:
        self.server.dissemination.view_class("")  # loads the compiled kernel before clients come
        self.driver.start()
        await self.links.start()
        self.listening = await asyncio.start_server(self.accept, self.host, 0)
        return {"port": self.listening.sockets[0].getsockname()[1]}

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = (await reader.readline()).decode().strip()
        link = self.links.connect(StreamSocket(writer), name, self.policy.view_class(name))
        async for frame in frames(reader):
            link.received(frame)
        self.links.disconnected(link)
        writer.close()

    async def command(self, name: str, given: Any) -> Any:
        """`views`: what each client should see, by the reference evaluator."""
        assert name == "views"
        shown = {}
        objects = [one.context for one in self.server.map.objects.values()]
        for client, text in given.items():
            wanted = Filter.parse(text)
            seen_as = self.policy.view_class(client)
            visible = [self.policy.visible(one, seen_as, self.clock()) for one in objects]
            shown[client] = view_of(one for one in visible if one and wanted.matches(one))
        return {
            "updates": self.server.desk.number,
            "views": shown,
            "channels": len(self.server.desk.channels),
            "counts": dict(self.links.counts),
            "ways": [dict(way.counts) for way in self.ways],  # type: ignore[attr-defined]
        }

    async def stop(self) -> None:
        await self.links.close()
        self.driver.close()
        self.listening.close()


def view_of(contexts: Any) -> dict[str, list[Any]]:
    return {one.vid: [one.place, one.attributes.get("step")] for one in contexts}


class ClientLink:
    """One client: its machine, its socket and its groups."""

    def __init__(self, name: str, text: str, interface: str) -> None:
        self.name = name
        self.text = text
        self.clock = wall_clock()
        self.shown = 0
        self.goodbye = ""
        self._interface = interface

    async def start(self, host: str, port: int) -> None:
        reader, self.writer = await asyncio.open_connection(host, port, limit=1 << 20)
        self.writer.write(self.name.encode() + b"\n")
        self._frames = frames(reader)
        welcome = LINK_PROTOCOL.decode(await anext(self._frames))
        assert isinstance(welcome, Welcome)
        self.machine = MapClient(
            welcome.client,
            server=welcome.server,
            epoch=welcome.epoch,
            now=self.clock(),
            settings=settings_of(welcome.settings),
            draw=random.Random(self.name).random,
        )
        self.groups: ChosenGroups = chosen_groups(
            welcome,
            tune=self._say,
            deliver=lambda group, frame: self._deliver(frame, group),
            clock=self.clock,
            mark=os.urandom(4),
            interface=self._interface,
        )
        await self.groups.start()
        self.driver = Driver(self.machine, clock=self.clock, carry=self._carry)
        self.driver.start()
        self.driver.give(Watch("s", self.text))
        self.reading = asyncio.create_task(self._read())
        self.reading.add_done_callback(end_loudly)

    async def _read(self) -> None:
        async for frame in self._frames:
            message = LINK_PROTOCOL.decode(frame)
            if isinstance(message, Grouped):
                self._deliver(message.frame, message.group)
            elif isinstance(message, Goodbye):
                self.goodbye = message.reason
            else:
                self._deliver(frame, "")

    def _deliver(self, frame: bytes, group: str) -> None:
        message = LINK_PROTOCOL.decode(frame)
        assert not isinstance(message, Unreadable), message
        self.driver.give(Received(self.machine.server, message, group))

    def _say(self, message: Message | Tune) -> None:
        self.writer.write(frame_of(LINK_PROTOCOL.encode(message)))

    def _carry(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._say(effect.message)
        elif isinstance(effect, Listen):
            self.groups.listen(effect.group)
        elif isinstance(effect, Ignore):
            self.groups.ignore(effect.group)
        else:
            self.shown += 1

    def report(self) -> dict[str, Any]:
        watching = self.machine.watching
        return {
            "view": view_of(watching.replica.shown("s").values()),
            "complete": self.machine.idle and watching.complete("s"),
            "using": self.groups.using,
            "moves": self.groups.moves,
            "goodbye": self.goodbye,
            "shown": self.shown,
            "counts": {
                way.name: dict(way.groups.counts)  # type: ignore[attr-defined]
                for way in self.groups._ways
            },
        }

    async def stop(self) -> None:
        self.driver.close()
        await self.groups.close()
        self.reading.cancel()
        self.writer.close()


class ClientsProcess:
    """Some clients; each may publish."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.clients = [
            ClientLink(name, text, given.get("interface", ""))
            for name, text in given["clients"].items()
        ]
        self.publishing: set[asyncio.Task[None]] = set()

    async def start(self) -> dict[str, Any]:
        for client in self.clients:
            await client.start(self.given["host"], self.given["port"])
        return {"clients": len(self.clients)}

    async def command(self, name: str, given: Any) -> Any:
        """`publish`: so many updates by each client; `views`: what each shows."""
        if name == "publish":
            for client in self.clients:
                task = asyncio.create_task(publish(client, given))
                task.add_done_callback(end_loudly)
                self.publishing.add(task)
            return {}
        assert name == "views"
        return {
            "published": all(task.done() for task in self.publishing),
            "clients": {client.name: client.report() for client in self.clients},
        }

    async def stop(self) -> None:
        for task in self.publishing:
            task.cancel()
        for client in self.clients:
            await client.stop()


def end_loudly(task: "asyncio.Task[None]") -> None:
    """A client whose task failed must not look like one that is merely behind."""
    if not task.cancelled() and task.exception() is not None:
        traceback.print_exception(task.exception())
        os._exit(3)


async def publish(client: ClientLink, updates: int) -> None:
    """Move this client's objects about; never two updates of one object in a request."""
    draw = random.Random(client.name)
    objects = 80
    for step in range(updates):
        while len(client.machine._waiting) >= objects - 16:
            await asyncio.sleep(0.005)
        attributes = {"type": "person", "step": step, "private": draw.random() < 0.1}
        vid = f"{client.name}/{step % objects}"
        context = Context(vid, draw.choice(ROOMS), None, attributes, client.clock())
        client.driver.give(PublishObject(context))


def tell(said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


async def main(role: str, given: dict[str, Any]) -> None:
    """Start, then answer commands until the input ends."""
    process = {"server": ServerProcess, "clients": ClientsProcess}[role](given)
    tell(await process.start())
    lines = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    while line := await lines.readline():
        command, said = json.loads(line)
        tell(await process.command(command, said))
    await process.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
