"""A real service in a process of its own, on a free loopback port, and plain talk with it."""

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from websockets.sync.client import ClientConnection, connect

from roamcast.live.auth.admission import SCOPES, TokenKeys
from tests.processes import Child, roamcast

DEADLINE_S = 60.0


class Answer(NamedTuple):
    """An HTTP answer, whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The detail of a problem; fails where the answer is none."""
        assert self.headers["content-type"].startswith("application/problem+json"), self
        told = self.json
        assert told["status"] == self.status
        assert told["title"]
        assert isinstance(told["detail"], str)
        return str(told["detail"])


class RunningService:
    """Started when entered, ended by SIGTERM when left; between, it may be killed and started."""

    def __init__(
        self,
        folder: Path,
        settings: str = "",
        around: Sequence[str] = (),
        *,
        data: Path | None = None,
        command: Sequence[str] = ("serve",),
    ) -> None:
        """`around`: a command that runs it elsewhere, such as `ip netns exec NAME`."""
        self.data = data or folder / "data"
        self._settings = folder / "roamcast.toml"
        self._settings.write_text(settings, encoding="utf-8")
        self._log = folder / "log.txt"
        self._around = around
        self._command = command
        self._child: Child | None = None
        self.greeting: dict[str, Any] = {}
        self.port = 0
        self.operator = ""
        self.url = ""

    def start(self) -> None:
        """Start it, at the port it had before, and wait until it says that it is ready."""
        self._child = roamcast(*self.words(), around=self._around, log=self._log)
        self.wait_until_ready()

    def words(self) -> list[str]:
        """Give the command and its options."""
        words = [*self._command, "--json", "--settings", str(self._settings)]
        return [*words, "--data", str(self.data), "--port", str(self.port)]

    def wait_until_ready(self) -> None:
        """Read the next line it says of itself; one under a keeper says it after every start."""
        assert self._child is not None
        line = self._child.line()
        if not line:
            self.kill()
            raise AssertionError(f"it did not start: {self.log}")
        self.greeting = json.loads(line)
        port = urlsplit(self.greeting["url"]).port
        assert port is not None
        self.port, self.url = port, self.greeting["url"]
        self.operator = self.greeting.get("token", self.operator)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._child is not None, "it was not started"
        return self._child.process

    def kill(self) -> None:
        """End it as kill -9 does."""
        assert self._child is not None
        self._child.kill()

    def end(self) -> int:
        """Ask it to go down; the code it ended with."""
        assert self._child is not None
        return self._child.end()

    def __enter__(self) -> "RunningService":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is not None:  # killed or ended by the test
            self.kill()
            return
        code = self.end()
        assert code == 0 or kind is not None, f"the service ended with {code}: {self.log}"

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    @property
    def memory_bytes_max(self) -> int:
        """The most memory the service has ever held."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    def token(
        self,
        subject: str = "ada",
        scopes: Sequence[str] = SCOPES,
        groups: Sequence[str] = (),
        *,
        lifetime_s: float = 3_600,
        late_s: float = 0,
    ) -> str:
        """Make a token, `late_s` seconds from now by the maker's clock."""
        now = time.time_ns() // 1000 + round(late_s * 1_000_000)
        keys = TokenKeys.open(self.data)
        return keys.issue(subject, scopes, groups, lifetime_s=lifetime_s, now=now)

    def ask(
        self,
        method: str,
        path: str,
        token: str = "",
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        port: int = 0,
    ) -> Answer:
        """Send one request; `body` is bytes as they are, or what JSON makes of it."""
        target = f"{path}?{urlencode(query)}" if query else path
        said = dict(headers or {})
        if token:
            said["authorization"] = f"Bearer {token}"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=DEADLINE_S)
        try:
            connection.request(method, target, body=data, headers=said)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path: str, token: str | None = None, **query: Any) -> Answer:
        """Ask for something, as the operator unless another token is given."""
        return self.ask("GET", path, self.operator if token is None else token, query=query)

    def put(
        self,
        vid: str,
        place: str,
        point: Sequence[float] | None = None,
        token: str | None = None,
        **attributes: Any,
    ) -> Answer:
        """Publish a context, as the operator unless another token is given."""
        made = feature(place=place, **attributes)
        if point is not None:
            made["geometry"] = {"type": "Point", "coordinates": list(point)}
        key = self.operator if token is None else token
        return self.ask("PUT", f"/contexts/{vid}", key, made)

    def vids(self, where: str = "true") -> list[str]:
        """Name the contexts a filter finds for the operator."""
        answer = self.get("/collections/contexts/items", filter=where, limit=10_000)
        assert answer.status == 200, answer.body
        return [one["id"] for one in answer.json["features"]]

    @contextmanager
    def session(self, token: str, path: str = "/session") -> Iterator[ClientConnection]:
        """Hold a WebSocket open."""
        headers = {"authorization": f"Bearer {token}"}
        url = f"ws://127.0.0.1:{self.port}{path}"
        with connect(
            url,
            additional_headers=headers,
            open_timeout=DEADLINE_S,
            max_size=None,
            compression=None,
            ping_interval=None,  # the service pings; a busy machine must not end a session
        ) as held:
            yield held

    @contextmanager
    def raw(self) -> Iterator[socket.socket]:
        """Hold a bare connection open."""
        with socket.create_connection(("127.0.0.1", self.port), DEADLINE_S) as held:
            yield held


def feature(vid: str | None = None, **attributes: Any) -> dict[str, Any]:
    """Make a GeoJSON Feature without a point."""
    properties = {"place": "hq/1", **attributes}
    made = {"type": "Feature", "geometry": None, "properties": properties}
    return made if vid is None else {**made, "id": vid}


def hears(held: ClientConnection, kind: str, **wanted: Any) -> dict[str, Any]:
    """Read a session's messages up to one of a kind."""
    end = time.monotonic() + DEADLINE_S
    while True:
        told: dict[str, Any] = json.loads(held.recv(max(end - time.monotonic(), 0)))
        if told["type"] == kind and wanted.items() <= told.items():
            return told


def all_of(held: socket.socket) -> bytes:
    """Read a bare connection to its end."""
    parts = []
    try:
        while part := held.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def one_answer(held: socket.socket) -> bytes:
    """Read one HTTP answer with a length from a bare connection, which may stay open after it."""
    found = b""
    while b"\r\n\r\n" not in found:
        part = held.recv(65_536)
        assert part, found
        found += part
    head, _, body = found.partition(b"\r\n\r\n")
    lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
    size = next(int(value) for name, _, value in lines if name == b"content-length")
    while len(body) < size:
        part = held.recv(65_536)
        assert part, found
        body += part
    return head + b"\r\n\r\n" + body
