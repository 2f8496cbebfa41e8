"""Sightings from an MQTT broker: received, written to disk, then acknowledged.

MQTT numbers nothing and gives nothing again once it is acknowledged, so messages first go into
files of the private folder, with numbers of our own: `FIRST-LAST.jsonl`, whole or not there. A
micro-batch is a range of these numbers and the same lines however often it is tried (decision
0253). The session is persistent and of quality 1: what comes while nobody watches waits at the
broker, and what was not yet acknowledged when we fell comes again. A sighting that comes twice is
counted as repeated.
"""

import queue
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from roamcast.errors import InputError, MissingError, RoamcastError
from roamcast.files import make_private_folder, write_whole

SCHEMES = ("mqtt://", "mqtts://")
PORTS = {"mqtt": 1883, "mqtts": 8883}
WAITING_MAX = 65_536
"""Messages received and not yet on disk; beyond, receiving waits, and so the broker does."""

TOGETHER_MAX = 10_000
"""Messages of one file."""

CONNECT_S = 10.0
QUIET_S, SETTLE_S_MAX = 1.0, 60.0
"""With --until-idle: nothing has come for so long, and how long that is waited for at most."""

_ADDRESS = re.compile(r"(mqtts?)://(?:([^@/:]+)@)?(\[[0-9a-fA-F:]+\]|[^/:@]+)(?::(\d{1,5}))?/(.+)")
_FILE = re.compile(r"(\d{15})-(\d{15})\.jsonl")


class MqttAddress(msgspec.Struct, frozen=True):
    """A topic filter of a broker, and the user."""

    server: str
    port: int
    topic: str
    user: str = ""
    password_file: str = ""
    tls: bool = False


def parse_address(text: str, password_file: str = "") -> MqttAddress:
    """Read mqtt://user@host:port/topic/filter; a password stands in a file."""
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise InputError("this is no topic of MQTT: give mqtt://host:port/TOPIC", source=text)
    scheme, user, host, port, topic = found.groups()
    number = int(port or PORTS[scheme])
    if not 0 < number < 65_536 or len(topic.encode()) > 65_535 or "\0" in topic:
        raise InputError("this is no topic of MQTT: give mqtt://host:port/TOPIC", source=text)
    return MqttAddress(
        host.strip("[]"), number, topic, user or "", password_file, scheme == "mqtts"
    )


class Spool:
    """A folder of received lines, each with a number from 1 on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self) -> list[tuple[int, int, Path]]:
        """List the files with their first and last numbers, in order."""
        found = ((_FILE.fullmatch(path.name), path) for path in self.folder.iterdir())
        return sorted((int(name[1]), int(name[2]), path) for name, path in found if name)

    @property
    def newest(self) -> int:
        """The last number given; 0 before the first."""
        return max((last for _, last, _ in self.files()), default=0)

    def append(self, lines: list[bytes]) -> None:
        """Write lines to disk under the next numbers."""
        first = self.newest + 1
        path = self.folder / f"{first:015d}-{first + len(lines) - 1:015d}.jsonl"
        write_whole(path, b"".join(b" ".join(line.splitlines()) + b"\n" for line in lines))

    def read(self, after: int, until: int) -> list[bytes]:
        """Give the lines with numbers above `after` up to `until`."""
        found: list[bytes] = []
        for first, last, path in self.files():
            if last > after and first <= until:
                lines = path.read_bytes().split(b"\n")[:-1]
                found += lines[max(0, after + 1 - first) : until + 1 - first]
        return found

    def drop(self, until: int) -> None:
        """Delete the lines up to a number; the newest file's name says how far numbers went."""
        files = self.files()
        for _, last, path in files:
            if last > until:
                continue
            if last < files[-1][1]:
                path.unlink(missing_ok=True)
            elif path.stat().st_size:
                write_whole(path, b"")  # lines name people

    def settle(self) -> None:
        """Wait until what waited at the broker has come, for a run that ends."""
        end = time.monotonic() + SETTLE_S_MAX
        before = -1
        while before != self.newest and time.monotonic() < end:
            before = self.newest
            time.sleep(QUIET_S)


@contextmanager
def receiving(address: MqttAddress, folder: Path, client_id: str) -> Iterator[Spool]:
    """Receive a topic's messages into a folder while the block lasts."""
    try:
        import paho.mqtt.client as mqtt
        from paho.mqtt.enums import CallbackAPIVersion
    except ImportError:
        raise MissingError("MQTT needs paho: pip install 'roamcast[mqtt]'") from None
    if not folder.exists():
        make_private_folder(folder)
    spool = Spool(folder)
    arrived: queue.Queue[Any] = queue.Queue(WAITING_MAX)
    refused: list[str] = []
    subscribed = threading.Event()

    def connected(client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            refused.append(str(reason))
            subscribed.set()
        else:
            client.subscribe(address.topic, qos=1)

    def answered(_client: Any, _data: Any, _mid: Any, reasons: Any, _properties: Any) -> None:
        if any(reason.is_failure for reason in reasons):
            refused.append(f"{address.topic} may not be subscribed")
        subscribed.set()

    client = mqtt.Client(
        CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False, manual_ack=True
    )
    client.on_connect, client.on_subscribe = connected, answered
    client.on_message = lambda _client, _data, message: arrived.put(message)
    if address.tls:
        client.tls_set()
    if address.user:
        client.username_pw_set(address.user, _password(address.password_file))
    writer = threading.Thread(target=_write, args=(client, spool, arrived, refused), daemon=True)
    where = f"{address.server}:{address.port}"
    try:
        client.connect(address.server, address.port)
    except OSError as error:
        raise RoamcastError(f"{where} does not answer: {error}") from None
    client.loop_start()
    writer.start()
    try:
        if not subscribed.wait(CONNECT_S) or refused:
            reason = refused[0] if refused else "it does not answer as a broker of MQTT"
            raise RoamcastError(f"{where} refuses: {reason}")
        yield spool
        if refused:
            raise RoamcastError(refused[0])
    finally:
        client.disconnect()
        client.loop_stop()
        arrived.put(None)
        writer.join()


def _write(client: Any, spool: Spool, arrived: "queue.Queue[Any]", failed: list[str]) -> None:
    """Write what arrived, all of it together, and acknowledge it afterwards."""
    ending = False
    while not ending:
        held = [arrived.get()]
        while len(held) < TOGETHER_MAX and not arrived.empty():
            held.append(arrived.get_nowait())
        ending = held[-1] is None
        messages = [message for message in held if message is not None]
        if not messages or failed:
            continue
        try:
            spool.append([bytes(message.payload) for message in messages])
        except OSError as error:  # nothing is acknowledged, so all of it comes again
            failed.append(f"cannot write {spool.folder}: {error.strerror}")
            continue
        for message in messages:
            client.ack(message.mid, message.qos)


def _password(path: str) -> str | None:
    if not path:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise MissingError(f"cannot read the password in {path}: {error.strerror}") from None
