"""Real services linked with each other, and what a session of one of them shows."""

import base64
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection

from roamcast.live.overlay.node import private_key
from roamcast.overlay.links.proof import signer
from tests.running_service import RunningService

DEADLINE_S = 60.0


def key_of(folder: Path) -> str:
    return "ed25519:" + base64.b64encode(signer(private_key(folder / "data"))[1]).decode()


def settings(node: str, *neighbours: tuple[str, str, str], more: str = "") -> str:
    """Give the settings of a node; a neighbour is its name, its key and its address or nothing."""
    text = f'[overlay]\nnode = "{node}"\nareas = ["campus/{node}"]\n{more}'
    for name, key, url in neighbours:
        urls = f'["{url}"]' if url else "[]"
        text += f'[overlay.neighbours.{name}]\nkey = "{key}"\nurls = {urls}\n'
    return text


def overlay(service: RunningService) -> dict[str, Any]:
    answer = service.ask("GET", "/overlay", service.operator)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def up(service: RunningService) -> set[str]:
    return {link["node"] for link in overlay(service)["links"] if link["state"] == "up"}


class View:
    """What a session's frames show, by vid."""

    def __init__(self, held: ClientConnection, wanted: str, scope: str = "everywhere") -> None:
        self._held = held
        self.contexts: dict[str, dict[str, Any]] = {}
        asked = {"type": "subscribe", "re": "all", "filter": wanted, "scope": scope}
        held.send(json.dumps(asked))

    def read(self, timeout_s: float) -> None:
        """Take the next frame, if one comes in time."""
        try:
            frame = json.loads(self._held.recv(timeout=timeout_s))
        except TimeoutError:
            return
        for one in frame.get("features", ()):
            self.contexts[one["id"]] = one["properties"]
        for event in frame.get("events", ()):
            if event["type"].endswith(".left"):
                self.contexts.pop(event["subject"])
            else:
                self.contexts[event["subject"]] = event["data"]["properties"]

    def until(self, true: Callable[[dict[str, Any]], bool], what: str) -> None:
        """Read until something is so."""
        end = time.monotonic() + DEADLINE_S
        while not true(self.contexts):
            assert time.monotonic() < end, (what, self.contexts)
            self.read(0.5)


def tree(
    folder: Path,
    parents: dict[str, str],
    within: ExitStack,
    settings_of: Callable[..., str] = settings,
) -> dict[str, RunningService]:
    """Start services that are linked as a tree; each dials its parent."""
    for name in parents:
        (folder / name / "data").mkdir(parents=True)
    keys = {name: key_of(folder / name) for name in parents}
    found: dict[str, RunningService] = {}
    for name, parent in parents.items():
        near = [(child, keys[child], "") for child, above in parents.items() if above == name]
        if parent:
            near.append((parent, keys[parent], found[parent].url))
        found[name] = within.enter_context(RunningService(folder / name, settings_of(name, *near)))
    return found
