"""A real service in a process of its own, on a free loopback port, and plain HTTP towards it."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

READY_S = 120.0


class Answer(msgspec.Struct):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Running:
    """A running service: its process, address and operator's token."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, token: str, data: Path) -> None:
        self.process = process
        self.url = url
        self.token = token
        self.data = data

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        body: Any = None,
        token: str | None = None,
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        """Send one request; every status comes back as an answer."""
        address = self.url + path + (f"?{urlencode(query)}" if query else "")
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, data=sent, method=method)
        key = self.token if token is None else token
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Answer(answer.status, answer.read(), dict(answer.headers))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read(), dict(error.headers))

    def put(self, vid: str, place: str | None = None, **more: Any) -> Answer:
        """Publish a context."""
        point, token = more.pop("point", None), more.pop("token", None)
        geometry = None if point is None else {"type": "Point", "coordinates": list(point)}
        properties = {**more, **({} if place is None else {"place": place})}
        feature = {"type": "Feature", "geometry": geometry, "properties": properties}
        return self.ask(f"/contexts/{vid}", method="PUT", body=feature, token=token)

    def vids(self, where: str = "true", token: str | None = None) -> list[str]:
        """Name the contexts a filter finds."""
        answer = self.ask("/collections/contexts/items", filter=where, limit=10_000, token=token)
        assert answer.status == 200, answer.body
        return [one["id"] for one in answer.json["features"]]

    def token_for(self, subject: str, *scopes: str, groups: tuple[str, ...] = ()) -> str:
        """Make a token with the command, as an operator would."""
        command = [sys.executable, "-m", "roamcast", "token", "--subject", subject]
        command += ["--data", str(self.data), "--json"]
        for scope in scopes:
            command += ["--scope", scope]
        for group in groups:
            command += ["--group", group]
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)
        token: str = json.loads(done.stdout)["token"]
        return token

    def end(self) -> int:
        """Ask the service to go down, and wait until it has."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def start(data: Path, *arguments: str, settings: str = "", port: int = 0) -> Running:
    """Start a service and wait until it says that it is ready."""
    data.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "roamcast", "serve", "--json", "--port", str(port)]
    command += ["--data", str(data), *arguments]
    if settings:
        path = data / "settings.toml"
        path.write_text(settings, encoding="utf-8")
        command += ["--settings", str(path)]
    with (data / "stderr.log").open("ab") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, env=os.environ)
    timer = threading.Timer(READY_S, process.kill)
    timer.start()
    assert process.stdout is not None
    line = process.stdout.readline()
    timer.cancel()
    if not line:
        problem = (data / "stderr.log").read_text(encoding="utf-8")
        raise AssertionError(f"the service did not start: {problem}")
    address = json.loads(line)
    return Running(process, address["url"], address["token"], data)


@contextmanager
def service(data: Path, *arguments: str, settings: str = "") -> Iterator[Running]:
    """Run a service for the length of a test."""
    running = start(data, *arguments, settings=settings)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait(60)
        if running.process.stdout is not None:
            running.process.stdout.close()
