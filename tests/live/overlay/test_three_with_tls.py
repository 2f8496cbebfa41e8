"""The three nodes of docs/overlay.md, with its own settings: they link by TLS, and nobody else."""

import json
import re
import socket
import ssl
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from roamcast.live.overlay.node import public_text
from tests.live.certificates import write_certificate
from tests.running_service import RunningService

pytestmark = [pytest.mark.process, pytest.mark.slow]

PAGE = Path(__file__).parents[3] / "docs" / "overlay.md"
DEADLINE_S = 120.0


def settings_of_the_page() -> str:
    """Give the settings of node a, which has b as its neighbour."""
    section = PAGE.read_text(encoding="utf-8").partition("## Three nodes with TLS")[2]
    found = re.search(r"```toml\n(.+?)```", section, re.DOTALL)
    assert found, "the page has no settings"
    return found[1]


def free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in taken]
    for one in taken:
        one.close()
    return ports


def test_they_link_as_the_page_says(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path, "127.0.0.1")
    ports = dict(zip("abc", free_ports(3), strict=True))
    folders = {name: tmp_path / name for name in "abc"}
    for folder in folders.values():
        (folder / "data").mkdir(parents=True)
    keys = {name: public_text(folder / "data") for name, folder in folders.items()}

    def filled(name: str) -> str:
        text = settings_of_the_page()
        text = text.replace("/etc/roamcast/cert.pem", str(certificate))
        text = text.replace("/etc/roamcast/ca.pem", str(certificate))
        text = text.replace("/etc/roamcast/key.pem", str(key))
        text = text.replace("/var/lib/roamcast", str(folders[name] / "data"))
        text = text.replace("0.0.0.0", "127.0.0.1")
        head, _, neighbour = text.partition("   [overlay.neighbours.b]")
        head = head.replace('node = "a"', f'node = "{name}"').replace("campus/a", f"campus/{name}")
        head = head.replace("https://a.example:8443", f"https://127.0.0.1:{ports[name]}")
        if name == "b":  # it awaits the others
            waits = (f'[overlay.neighbours.{one}]\nkey = "{keys[one]}"\n' for one in "ac")
            return head + "".join(waits)
        neighbour = neighbour.replace("ed25519:…", keys["b"])
        return f"{head}[overlay.neighbours.b]" + neighbour.replace(
            "https://b.example:8443", f"https://127.0.0.1:{ports['b']}"
        )

    with ExitStack() as stack:
        running = {}
        for name in "abc":
            service = RunningService(folders[name], filled(name))
            service.port = ports[name]
            running[name] = stack.enter_context(service)
        trusted = ssl.create_default_context(cafile=str(certificate))

        def overlay(name: str) -> dict[str, Any]:
            asked = urllib.request.Request(f"{running[name].url}/overlay")
            asked.add_header("Authorization", f"Bearer {running[name].operator}")
            with urllib.request.urlopen(asked, context=trusted, timeout=DEADLINE_S) as answer:
                found: dict[str, Any] = json.load(answer)
            return found

        end = time.monotonic() + DEADLINE_S
        for name in "abc":
            while {one["node"] for one in overlay(name)["nodes"]} != {"a", "b", "c"}:
                assert time.monotonic() < end, overlay(name)
                time.sleep(0.1)
        (link,) = overlay("a")["links"]
        assert (link["state"], link["address"]) == ("up", f"https://127.0.0.1:{ports['b']}")
